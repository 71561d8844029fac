//! Command lines, and what the configuration makes of them.

mod config;
mod config_file;

use beanring::logging::{LogFormat, LogLevel};
use clap::ValueEnum;

use super::*;

fn words(line: &str) -> impl Iterator<Item = &str> + Clone {
    ["beanring"].into_iter().chain(line.split_whitespace())
}

fn parse_line(line: &str) -> CommandLine {
    match parse(words(line)) {
        Ok(ControlFlow::Continue(parsed)) => parsed,
        other => panic!("{line}: {other:?}"),
    }
}

fn error_of(line: &str) -> String {
    parse(words(line)).map(|_| ()).unwrap_err().to_string()
}

fn value(line: &str, name: &str) -> Option<String> {
    parse_line(line).settings.take(name).map(|setting| setting.value.into_string().expect("UTF-8"))
}

#[test]
fn the_definition_is_consistent() {
    command().debug_assert();
    for flag in FLAGS {
        let takes_value = !matches!(flag.kind, Kind::Switch | Kind::Count);
        let has_default = flag.help.contains("[default: ");
        assert!(takes_value || !has_default, "{}: a switch has no default", flag.name);
    }
}

#[test]
fn the_words_of_choices_are_those_of_their_types() {
    fn check<T: ValueEnum>(name: &str) {
        let variants: Vec<String> = T::value_variants()
            .iter()
            .map(|variant| variant.to_possible_value().expect("it is a word").get_name().to_owned())
            .collect();
        let Some(Kind::Choice(_, words)) = Flag::find(name).map(|flag| flag.kind) else {
            panic!("{name} is no choice")
        };
        assert_eq!(variants, words, "{name}");
    }
    check::<LogLevel>("log-level");
    check::<LogFormat>("log-format");
    check::<beanring::io::driver::Choice>("io");
}

#[test]
fn the_help_fits_into_a_terminal() {
    let help = |line: &str| match parse(words(line)) {
        Ok(ControlFlow::Break(help)) => help.to_string(),
        other => panic!("{line}: {other:?}"),
    };
    let top = command();
    let with_own = |command: &clap::Command| {
        let name = command.get_name().to_owned();
        let own = command.get_subcommands().map(|inner| format!("help {name} {}", inner.get_name()));
        own.chain([format!("help {name}")]).collect::<Vec<_>>()
    };
    let commands: Vec<String> = top.get_subcommands().flat_map(with_own).collect();
    let lines = ["--help", "help", "help help", "wal salvage --help", "healthcheck --help"];
    for line in lines.into_iter().chain(commands.iter().map(String::as_str)) {
        let help = help(line);
        assert!(help.lines().all(|line| line.len() <= beanring::help::COLUMNS), "{help}");
        for other in ["OPTIONS", "Options", "(s)"] {
            assert!(!help.contains(other), "{help}");
        }
    }
    let help = help("--help");
    let joined = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for flag in FLAGS {
        let begin = format!("--{}", flag.name);
        let is_there = joined.match_indices(&begin).any(|(at, _)| {
            let rest = joined[at + begin.len()..].split_once(flag.help).map(|(between, _)| between);
            rest.is_some_and(|between| between.trim().split(' ').count() == 1)
        });
        assert!(is_there, "{begin} is missing in\n{help}");
    }
    for heading in [flags::NETWORK, flags::JOB_LOG, flags::LIMITS] {
        assert!(help.contains(&format!("\n{heading}:\n")), "{help}");
    }
}

#[test]
fn flags_glued_or_apart() {
    for line in ["-p11301 -z9 -VV", "-p 11301 -z 9 -V -V", "--port=11301 --max-job-size 9 -VV"] {
        assert_eq!(value(line, "port").as_deref(), Some("11301"), "{line}");
        assert_eq!(value(line, "max-job-size").as_deref(), Some("9"), "{line}");
        assert_eq!(value(line, "verbose").as_deref(), Some("2"), "{line}");
    }
}

#[test]
fn the_last_of_several_counts() {
    assert_eq!(value("-p 1 -p 2", "port").as_deref(), Some("2"));
    assert_eq!(value("-p 6 healthcheck -l ::1 -p 7", "port").as_deref(), Some("7"));
    for (line, interval, no_sync) in [("-f 5 -F", None, Some("yes")), ("-F -f 5", Some("5"), None)] {
        assert_eq!(value(line, "sync-interval").as_deref(), interval, "{line}");
        assert_eq!(value(line, "no-sync").as_deref(), no_sync, "{line}");
    }
}

#[test]
fn serve_has_the_flags_of_the_server() {
    assert_eq!(value("serve -p 7", "port").as_deref(), Some("7"));
    assert_eq!(value("-p 6 serve -p 7", "port").as_deref(), Some("7"));
    assert_eq!(value("-p 6 serve -z 9", "port").as_deref(), Some("6"));
    assert_eq!(value("serve --wal-dir /a", "wal-dir").as_deref(), Some("/a"));
    assert_eq!(value("-F serve -f 5", "no-sync"), None);
    assert_eq!(parse_line("-c serve -c -n").settings.obsolete, ["-c", "-n"]);
    assert!(parse_line("serve --check-config").checks_config);
}

#[cfg(feature = "client")]
#[test]
fn verbs_name_their_own_flags() {
    for (line, error) in [
        ("put --tub x", "--tub: no such flag; did you mean --tube?"),
        ("put -p -1 x", "-p/--pri \"-1\": must be a number from 0 to 4294967295"),
        (
            "put --ttr 5x",
            "-r/--ttr \"5x\": must be a whole number of seconds, or a time such as 90s, 10m, 2h or 1d",
        ),
        (
            "put --delay 0.1234",
            "-d/--delay \"0.1234\": must be a number of seconds with one to three decimals, such as 0.25, or a whole number \
             with a unit, such as 90m",
        ),
        ("put a --lines", "BODY... and --lines cannot be combined; remove one of them"),
        (
            "-p 1 put x",
            "-p/--port: this is a flag of the server; beanring put takes its flags behind its name, see beanring put \
             --help",
        ),
        ("job 0", "\"0\": must be the id of a job, a number from 1"),
        ("delete 1 -1", "\"-1\": must be the id of a job, a number from 1"),
        ("jobs a --after 0", "--after \"0\": must be the id of a job, a number from 1"),
        ("job '", "\"'\": must be the id of a job, a number from 1"),
        ("job \\'", "\"\\\\'\": must be the id of a job, a number from 1"),
        ("job 1 2", "2: unexpected argument; see beanring job --help"),
        (
            "tubes --sort x",
            "-s/--sort \"x\": must be name, ready, reserved, delayed, buried, held, waiting, puts, deletes, oldest or paused",
        ),
        ("jobs a -s hel", "-s/--state \"hel\": must be ready, reserved, delayed, buried or held"),
        ("peek -s held", "-s/--state \"held\": must be ready, reserved, delayed or buried"),
        (
            "put --grp a:1 x",
            "--grp \"a:1\": must be the name of a group, which has 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ \
             ( ), and does not begin with -",
        ),
        ("stats -a 99999", "-a/--addr \"99999\": the port must be a number from 1 to 65535"),
        ("stats -a host:0", "-a/--addr \"host:0\": the port must be a number from 1 to 65535"),
        (
            "stats -a x:y",
            "-a/--addr \"x:y\": must be PORT, HOST:PORT, [IPV6]:PORT, unix:PATH, or for TLS beanstalks://HOST",
        ),
        (
            "schedule add a --when 0 3",
            "-w/--when \"0\": not a cron line of five fields: minute, hour, day of the month, month and day of the week; a time \
             zone may follow; write a line in quotes, and an interval as every:15m",
        ),
        (
            "schedule add a -t b -t c --when every:9",
            "-t/--tube: given twice; beanring schedule add takes one tube",
        ),
        ("schedule", "beanring schedule: name a command: add, list, rm, run or show"),
        ("schedule list --tube a", "--tube: no such flag; see beanring schedule list --help"),
        ("putt", "putt: no such command; did you mean put?"),
        ("tube-confg", "tube-confg: no such command; did you mean tube-config?"),
    ] {
        assert_eq!(error_of(line), error, "{line}");
    }
}

#[cfg(feature = "client")]
#[test]
fn the_address_may_stand_before_the_verb() {
    let address = |line| match parse_line(line).tool {
        Some(Tool::Client(Verb::Stats(common))) => common.server.addr.map(|address| address.to_string()),
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(address("stats"), None);
    for line in ["--addr :7 stats", "-a7 stats", "stats -a 7", "--addr=8 stats --addr 7"] {
        assert_eq!(address(line).as_deref(), Some("127.0.0.1:7"), "{line}");
    }
    for line in ["-a 7", "-a 7 serve", "serve -a 7", "-a 7 healthcheck", "wal check a -a 7"] {
        let error = error_of(line);
        assert!(error.starts_with("-a/--addr: this is a flag of the client; name a verb"), "{line}: {error}");
    }
}

#[test]
fn help_and_version_are_asked_for() {
    let text = |line| match parse(words(line)) {
        Ok(ControlFlow::Break(text)) => text,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(text("help --help"), text("help help"));
    for line in ["help wal --help", "wal --help", "help wal -h"] {
        assert_eq!(text(line), text("help wal"), "{line}");
    }
}

#[test]
fn a_wrong_command_line_is_an_error_of_one_line() {
    for (line, error) in [
        ("extra", "extra: no such command; see beanring --help"),
        ("healthchek", "healthchek: no such command; did you mean healthcheck?"),
        ("wal export a", "NEWDIR is missing; usage: beanring wal export DIR NEWDIR"),
        ("healthcheck --timeout 0", "--timeout \"0\": must be a number from 1 to 3600"),
        ("healthcheck --timeout", "--timeout: the value is missing"),
        ("healthcheck --timeot 1", "--timeot: no such flag; did you mean --timeout?"),
        ("servee", "servee: no such command; did you mean serve?"),
        ("start", "start: no such command; did you mean serve?"),
        ("serve -p", "-p/--port: the value is missing"),
        ("help nosuch", "nosuch: no such command; see beanring --help"),
    ] {
        assert_eq!(error_of(line), error, "{line}");
    }
}
