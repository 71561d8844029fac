//! Verbs for the server and its tubes, addresses, and exit codes.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::{fs, io::Read, io::Write};

use beanring::io::driver::Driver;
use beanring_testkit::process::{Address, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::{driver, unused_address};

use super::place::{Place, Ran, client, everywhere, ran, with_both};

#[test]
fn statistics_of_the_server_a_tube_and_a_job() {
    everywhere("statistics by the client", |place| {
        assert_eq!(place.number(&["stats"], "jobs.ready"), 0);
        assert_eq!(place.json(&["stats"])["draining"], false);
        assert!(place.json(&["stats"])["version"].is_string());
        assert_eq!(place.ok(&["put", "-t", "mail", "-p", "7", "-r", "2m", "hello"]), "1\n");
        let job = place.json(&["job", "1"]);
        assert_eq!(
            (&job["tube"], &job["state"], &job["priority"]),
            (&"mail".into(), &"ready".into(), &7.into())
        );
        let job = place.ok(&["job", "1"]);
        assert!(job.lines().any(|line| line.split_whitespace().eq(["ttr", "2", "min"])), "{job}");
        assert_eq!(place.number(&["tube", "mail"], "puts"), 1);
        place.run(&["tube", "none"]).fails(
            1,
            "tube none: NOT_FOUND: there is no such tube; it exists while it has jobs or is used or watched",
        );
        place.run(&["job", "9"]).fails(1, "job 9: NOT_FOUND: there is no such job");
        let stats = place.ok(&["stats"]);
        let titles: Vec<&str> =
            stats.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
        assert!(titles.starts_with(&["Server", "Jobs", "Tubes", "Connections"]), "{stats}");
        assert!(
            titles.contains(&"Commands") && (!place.is_beanring || !titles.contains(&"Other")),
            "{stats}"
        );
        for section in stats.split("\n\n") {
            let keys: Vec<&str> =
                section.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
            assert!(!keys.is_empty() && keys.is_sorted(), "{section}");
        }
    });
}

#[test]
fn tubes_are_sorted_filtered_and_aligned() {
    everywhere("tubes by the client", |place| {
        for (tube, count) in [("mail.send", 3), ("mail.bounce", 1), ("video", 12)] {
            let lines = "x\n".repeat(count);
            let printed = place.feed(&["put", "--lines", "-t", tube], lines.as_bytes()).ok();
            assert!(printed.starts_with(&format!("put {count} job")), "{printed}");
        }
        let names = |arguments: &[&str]| {
            let text = place.ok(&[&["tubes"], arguments].concat());
            let rows = text.lines().skip(1).map(|line| line.split(' ').next().expect("a name").to_owned());
            rows.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&[]), "default mail.bounce mail.send video");
        assert_eq!(names(&["--sort", "puts"]), "video mail.send mail.bounce default");
        assert_eq!(names(&["--sort", "ready"]), "video mail.send mail.bounce default");
        assert_eq!(names(&["-s", "ready", "--reverse"]), "default mail.bounce mail.send video");
        assert_eq!(names(&["--busy"]), "mail.bounce mail.send video");
        assert_eq!(names(&["mail"]), "mail.bounce mail.send");
        assert_eq!(names(&["*.s*d"]), "mail.send");
        assert_eq!((names(&["VID"]), names(&["Mail.S*"])), ("video".to_owned(), "mail.send".to_owned()));
        let table = place.ok(&["tubes", "-b"]);
        let ready =
            table.lines().next().and_then(|line| line.find("READY")).expect("a header") + "READY".len();
        let ends: Vec<&str> = table.lines().skip(1).map(|line| line[..ready].trim_end()).collect();
        assert!(ends.iter().all(|row| row.len() == ready), "numbers are right-aligned:\n{table}");
        let json = place.ok(&["tubes", "--json", "video"]);
        let tube: serde_json::Value = serde_json::from_str(&json).expect("one object");
        assert_eq!((&tube["name"], &tube["ready"]), (&"video".into(), &12.into()));
    });
}

#[test]
fn ten_thousand_tubes() {
    let place = Place::default();
    for tubes in (0..10_000).collect::<Vec<u32>>().chunks(500) {
        let commands: String =
            tubes.iter().map(|tube| format!("use t{tube}\r\nput 0 0 1 1\r\nx\r\n")).collect();
        let mut stream = place.server.connect();
        stream.send((commands + "quit\r\n").as_bytes());
        while let beanring_testkit::peer::Received::Bytes(_) =
            stream.receive(std::time::Duration::from_secs(60))
        {}
    }
    let table = place.ok(&["tubes", "--sort", "name"]);
    assert_eq!(table.lines().count(), 10_002);
}

#[test]
fn drain_and_undrain() {
    everywhere("drain by the client", |place| {
        if !place.is_beanring {
            place
                .run(&["drain"])
                .fails(1, "drain: UNKNOWN_COMMAND: the server does not know drain; send it SIGUSR1");
            let only =
                "undrain: UNKNOWN_COMMAND: the server does not know undrain; a restart ends its drain mode";
            place.run(&["undrain"]).fails(1, only);
            return;
        }
        let drains = "the server drains: it refuses new jobs until beanring undrain\n";
        assert_eq!(place.ok(&["drain"]), drains);
        assert_eq!(place.json(&["stats"])["draining"], true);
        place.run(&["put", "x"]).fails(
            1,
            "body 1: DRAINING: the server accepts no new jobs; put them to another one, or run beanring undrain",
        );
        assert_eq!(place.json(&["undrain"])["draining"], false);
        assert_eq!(place.ok(&["put", "x"]), "2\n");
    });
}

#[test]
fn a_tube_is_flushed() {
    everywhere("flush by the client", |place| {
        place.ok(&["put", "-t", "mail", "one", "two", "three"]);
        place.ok(&["put", "-t", "mail", "-d", "1h", "four"]);
        if !place.is_beanring {
            let reason = "tube mail: UNKNOWN_COMMAND: the server does not know flush-tube; beanring work -t mail --until-empty -- true deletes ready jobs";
            return place.run(&["flush", "--yes", "mail"]).fails(1, reason);
        }
        let problem = "flush deletes jobs and cannot ask without a terminal; add --yes to flush mail";
        place.feed(&["flush", "mail"], b"n\n").fails(2, problem);
        assert_eq!(place.jobs(), [3, 0, 1, 0]);
        place.ok(&["bury", "2"]);
        let terminal = place.on_terminal(&["flush", "mail"], &[]);
        let question = "delete 2 ready, 1 delayed and 1 buried jobs of mail? [y/N] ";
        assert!(terminal.contains(question), "{terminal}");
        assert!(terminal.ends_with("beanring: nothing is deleted\n"), "{terminal}");
        assert_eq!(place.jobs(), [2, 0, 1, 1]);
        assert_eq!(place.ok(&["flush", "--yes", "mail"]), "deleted 4 jobs of mail\n");
        place.ok(&["put", "-t", "mail", "five"]);
        assert_eq!(place.on_terminal(&["flush", "--yes", "mail"], &[]), "deleted 1 job of mail\n");
        place.ok(&["put", "-t", "mail", "six"]);
        assert_eq!(place.json(&["flush", "-y", "mail"]), serde_json::json!({"tube": "mail", "flushed": 1}));
        place.ok(&["put", "-t", "mail", "--grp", "parts", "part"]);
        place.ok(&["put", "-t", "mail", "--aft", "parts", "whole"]);
        let terminal = place.on_terminal(&["flush", "mail"], &[]);
        let question = "delete 1 ready, 0 delayed, 0 buried and 1 held jobs of mail? [y/N] ";
        assert!(terminal.contains(question), "{terminal}");
        assert_eq!(place.ok(&["flush", "--yes", "mail"]), "deleted 2 jobs of mail\n");
        place.run(&["flush", "-y", "mail"]).fails(1, "tube mail: NOT_FOUND: there is no such tube");
        place.run(&["flush", "-mail"]).code.map(|code| assert_eq!(code, 2)).expect("it ends");
    });
}

#[test]
fn keys_of_a_tube_are_flushed() {
    everywhere("flush --keys by the client", |place| {
        if !place.is_beanring {
            let reason = "tube mail: UNKNOWN_COMMAND: the server does not know flush-keys: it is beanstalkd, or an older beanring";
            return place.run(&["flush", "--keys", "mail"]).fails(1, reason);
        }
        for key in ["a:60", "b:60", "c"] {
            place.ok(&["put", "-t", "mail", "--idp", key, "body"]);
        }
        place.ok(&["flush", "-y", "mail"]);
        assert_eq!(place.json(&["stats"])["protocol"]["current-kept-keys"], 2);
        assert_eq!(place.ok(&["flush", "--keys", "mail"]), "forgot 2 keys of mail\n");
        assert_eq!(
            place.json(&["flush", "--keys", "mail"]),
            serde_json::json!({"tube": "mail", "flushed": 0})
        );
        assert_eq!(place.json(&["stats"])["protocol"]["current-kept-keys"], 0);
        place.run(&["flush", "--keys", "-y", "mail"]).code.map(|code| assert_eq!(code, 2)).expect("it ends");
    });
}

#[test]
fn rules_of_a_tube_are_set_shown_and_removed() {
    everywhere("tube-config by the client", |place| {
        if !place.is_beanring {
            let refused = "tube mail: UNKNOWN_COMMAND: the server does not know tube-config: it is beanstalkd, or an older beanring";
            place.run(&["tube-config", "mail"]).fails(1, refused);
            place.run(&["tube-config", "mail", "rate", "5"]).fails(1, refused);
            return;
        }
        let absent = "tube mail: NOT_FOUND: no such tube exists, and no rule is set for its name";
        place.run(&["tube-config", "mail"]).fails(1, absent);
        assert_eq!(place.ok(&["tube-config", "default"]), "");
        assert_eq!(place.on_terminal(&["tube-config", "default"], &[]), "tube default has no rules\n");
        let none = serde_json::json!({"tube": "default", "rules": {}});
        assert_eq!(place.json(&["tube-config", "default"]), none);
        assert_eq!(place.ok(&["tube-config", "mail", "retention", "90"]), "set retention of mail to 90\n");
        let set = serde_json::json!({"tube": "mail", "key": "dead-letter", "value": "7"});
        assert_eq!(place.json(&["tube-config", "mail", "dead-letter", "7"]), set);
        let rules = place.ok(&["tube-config", "mail"]);
        let lines: Vec<Vec<&str>> = rules.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, [vec!["retention", "90s"], vec!["dead-letter", "7"]], "{rules}");
        let rules = &place.json(&["tube-config", "mail"])["rules"];
        assert_eq!((&rules["retention"], &rules["dead-letter"]), (&90.into(), &"7".into()));
        assert_eq!(place.ok(&["tube-config", "mail", "retention", "0"]), "removed retention of mail\n");
        assert_eq!(place.ok(&["tube-config", "mail", "dead-letter", "0"]), "removed dead-letter of mail\n");
        place.run(&["tube-config", "mail"]).fails(1, absent);
        place
            .run(&["tube-config", "mail", "rate", "1000001"])
            .fails(2, "rate \"1000001\": must be a number from 1 to 1000000; 0 removes the rule");
        place
            .run(&["tube-config", "mail", "dead-letter", "mail"])
            .fails(2, "dead-letter \"mail\": must be the name of another tube; 0 removes the rule");
        for (key, given, number) in [
            ("max-bytes", "64k", "65536"),
            ("max-bytes", "1100000", "1100000"),
            ("default-ttr", "5m", "300"),
            ("retention", "1d", "86400"),
        ] {
            assert_eq!(
                place.ok(&["tube-config", "mail", key, given]),
                format!("set {key} of mail to {given}\n")
            );
            assert_eq!(place.json(&["tube-config", "mail", key, given])["value"].to_string(), number);
            assert_eq!(place.json(&["tube-config", "mail"])["rules"][key].to_string(), number);
        }
        place.ok(&["tube-config", "mail", "max-jobs", "1"]);
        place.ok(&["put", "-t", "mail", "x"]);
        let refused = place.run(&["put", "-t", "mail", "y"]);
        let limits =
            [" OUT_OF_MEMORY: ", "--max-memory", "job log", "beanring tube-config TUBE", "raise that limit"];
        assert!(limits.iter().all(|limit| refused.stderr.contains(limit)), "{refused:?}");
        for (key, given) in [
            ("max-jobs", "10k"),
            ("retention", "1g"),
            ("max-bytes", "0k"),
            ("max-bytes", "-1"),
            ("max-bytes", "1MB"),
        ] {
            let refused = place.run(&["tube-config", "mail", key, given]);
            let begin = format!("beanring: {key} \"{given}\": must be a ");
            assert!(refused.code == Some(2) && refused.stderr.starts_with(&begin), "{refused:?}");
        }
        assert_eq!(place.run(&["tube-config", "mail", "rate"]).code, Some(2));
        assert_eq!(place.run(&["tube-config", "mail", "speed", "1"]).code, Some(2));
    });
}

#[test]
fn a_tube_above_the_limit_names_the_limit() {
    let flags = ["--max-tubes", "2"].map(str::to_owned);
    let place = Place::launch(Path::new(program()), Address::fresh(Transport::Tcp), &flags, true);
    place.ok(&["put", "-t", "a", "x"]);
    let limits = |flags| {
        format!(
            "tube b: OUT_OF_MEMORY: there is no room for another tube: {flags} is reached; raise that limit"
        )
    };
    place.run(&["put", "-t", "b", "x"]).fails(1, &limits("--max-tubes or --max-memory"));
    place.run(&["move", "a", "b"]).fails(1, &limits("--max-tubes or --max-memory"));
    let watch = limits("--max-tubes, --max-watches or --max-memory");
    place.run(&["reserve", "-t", "b", "--timeout", "0"]).fails(1, &watch);
}

#[test]
fn a_paused_tube_gives_no_jobs() {
    everywhere("pause by the client", |place| {
        place.ok(&["put", "-t", "mail", "x"]);
        assert_eq!(place.ok(&["pause", "mail", "10m"]), "paused mail for 10 min\n");
        assert!(place.number(&["tube", "mail"], "paused_seconds") > 590);
        place
            .run(&["reserve", "-t", "mail", "--timeout", "0"])
            .fails(1, "reserve: TIMED_OUT: no job is ready");
        assert_eq!(place.ok(&["pause", "mail", "0"]), "resumed mail\n");
        assert_eq!(place.json(&["reserve", "-t", "mail", "--timeout", "5", "--delete"])["id"], 1);
        let most = "TIME \"99999999999\": must be at most 4294967295 s, 49710 days";
        place.run(&["pause", "mail", "99999999999"]).fails(2, most);
        place.run(&["pause", "none", "1"]).fails(1, "tube none: NOT_FOUND: there is no such tube");
    });
}

#[test]
fn watch_prints_a_line_per_interval() {
    everywhere("watch by the client", |place| {
        place.feed(&["put", "--lines", "-t", "mail"], b"1\n2\n3\n").ok();
        let text = place.ok(&["watch", "-n", "1"]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0][..5], ["READY", "RESERVED", "DELAYED", "BURIED", "WAITING"], "{text}");
        assert_eq!((&rows[1][..5], rows.len()), (&["3", "0", "0", "0", "0"][..], 2), "{text}");
        let result = place.run(&["watch", "mail", "none", "-n", "1"]);
        let note = "beanring: there is no tube none; its numbers are 0 until it exists\n";
        assert_eq!((result.code, &*result.stderr), (Some(0), note));
        let text = result.text();
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("mail        3")), "{text}");
        assert!(text.lines().nth(2).is_some_and(|line| line.starts_with("none        0")), "{text}");
        // Nothing changes after the first line.
        assert_eq!(place.ok(&["watch", "--quiet", "-n", "2"]).lines().count(), 2);
        let line = place.json(&["watch", "mail", "-n", "1"]);
        assert_eq!(
            (&line["tube"], &line["ready"], &line["put_per_second"]),
            (&"mail".into(), &3.into(), &0.0.into())
        );
    });
}

#[test]
fn watch_shows_rates() {
    let place = Place::default();
    let mut watch = place.command(&["watch", "--json", "-n", "2"]);
    let watch = super::place::spawn(watch.stdin(Stdio::null()));
    let started = std::time::Instant::now();
    let mut put = 0;
    while started.elapsed().as_millis() < 1500 {
        place.feed(&["put", "--lines"], b"1\n2\n3\n4\n").ok();
        put += 4;
    }
    let output = watch.wait_with_output().expect("it is ours");
    let rate = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["put_per_second"].as_f64().expect("a number")
    };
    let rates: f64 = String::from_utf8(output.stdout).expect("text").lines().map(rate).sum();
    assert!(rates > 0.0 && rates <= f64::from(put) + 1.0, "{rates} of {put}");
}

#[test]
fn every_kind_of_address() {
    for transport in [Transport::Tcp, Transport::Unix] {
        let place = Place::beanring(Driver::Epoll, transport, &[]);
        let by_flag = |flags: &[&str]| ran(client().args(flags).envs(place.variables()), b"");
        assert_eq!(by_flag(&["put", "x", "--addr", &place.address]).ok(), "1\n");
        assert_eq!(by_flag(&["put", "x", "-a", &place.address]).ok(), "2\n");
        // The flag wins.
        let mut command = client();
        command.args(["put", "x", "-a", &place.address]).env("BEANRING_ADDR", "127.0.0.1:1");
        command.envs(place.variables());
        assert_eq!(ran(&mut command, b"").ok(), "3\n");
        assert_eq!(place.ok(&["put", "x"]), "4\n");
    }
    let mut command = client();
    ran(command.arg("stats").env("BEANRING_ADDR", "unix"), b"")
        .fails(2, "BEANRING_ADDR=\"unix\": the path of the socket is missing; write unix:PATH, such as unix:/run/beanring/socket");
}

#[test]
fn a_server_that_cannot_be_reached_is_exit_code_3() {
    let (_held, port) = unused_address::port();
    let at = |address: &str| ran(client().args(["stats", "-a", address]), b"");
    let line = |text: &str| format!("cannot connect to {text}");
    at(&port.to_string()).fails(
        3,
        &line(&format!("127.0.0.1:{port}: Connection refused; start the server, or name it with --addr")),
    );
    at("unix:/nonexistent/socket").fails(
        3,
        &line("unix:/nonexistent/socket: No such file or directory; start the server, or correct the path"),
    );
    at("nowhere.invalid:1")
        .fails(3, &line("nowhere.invalid:1: no such host; correct the name, or check DNS"));
}

/// A server that sends these bytes after the first command, and closes the connection.
fn impostor(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection is accepted");
            let mut command = [0; 7];
            stream.read_exact(&mut command).expect("the command is received");
            stream.write_all(reply).expect("the client reads");
        }
    });
    address
}

#[test]
fn what_is_no_beanstalk_server_is_exit_code_3() {
    let closed = "closed the connection; is it a beanstalk server, and does it still run?";
    let foreign = |text: &str| {
        format!("replied \"{text}\", which is no reply of the beanstalk protocol; correct --addr")
    };
    for (reply, message) in [
        (&b""[..], closed.to_owned()),
        (b"OK 100\r\nshort", closed.to_owned()),
        (b"OK", closed.to_owned()),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", foreign("HTTP/1.1 400 Bad Request")),
        (b"-ERR \x1b[2J\r\n", foreign("-ERR \\x1b[2J")),
        (b"OK 1\r\nxxxxxx", foreign("OK 1")),
        (b"OK 18446744073709551616\r\n", foreign("OK 18446744073709551616")),
    ] {
        let address = impostor(reply);
        let result = ran(client().args(["stats", "-a", &address]), b"");
        result.fails(3, &format!("{address} {message}"));
    }
}

#[test]
fn data_that_no_command_asks_for_is_exit_code_3() {
    let address = impostor(b"OK 5\r\nhello\r\n");
    for arguments in [
        &["stats"][..],
        &["tubes"],
        &["tube", "mail"],
        &["group", "parts"],
        &["job", "1"],
        &["jobs", "mail"],
        &["tube-config", "mail"],
        &["watch", "-n", "1"],
        &["kick", "--all"],
        &["peek"],
        &["move", "a", "b"],
    ] {
        let mut command = client();
        let result = ran(command.args(arguments).env("BEANRING_ADDR", &address), b"");
        result.fails(
            3,
            "the server replied with \"hello\", which is not what the command asks for; is it a beanstalk server?",
        );
    }
    // `list-tubes` of a server has this form, and `stats` has not.
    let address = impostor(b"OK 14\r\n---\n- default\n\r\n");
    let unreadable = "the server replied with \"---\\n- default\\n\", which is not what the command asks for; is it a beanstalk server?";
    ran(client().args(["stats", "-a", &address]), b"").fails(3, unreadable);
    let address = impostor(b"OK 15\r\n---\nversion: 1\x1b\r\n");
    let result = ran(client().args(["stats", "-a", &address]), b"");
    assert_eq!(result.ok().split_whitespace().collect::<Vec<_>>(), ["Server", "version", "1\\x1b"]);
}

#[test]
fn a_tube_that_does_not_exist_is_exit_code_1() {
    everywhere("verbs for a missing tube by the client", |place| {
        for arguments in [
            &["kick", "--all", "-t", "none"][..],
            &["kick", "-n", "3", "-t", "none"],
            &["kick", "--all", "-t", "none", "--json"],
            &["peek", "-t", "none"],
            &["peek", "-t", "none", "-s", "buried"],
            &["pause", "none", "1"],
            &["move", "none", "other"],
        ] {
            place.run(arguments).fails(1, "tube none: NOT_FOUND: there is no such tube");
        }
        assert_eq!(place.number(&["stats"], "tubes"), 1);
    });
}

#[test]
fn an_order_that_the_server_does_not_know_is_named() {
    with_both("order by age by the client", |place| {
        place.ok(&["put", "-q", "-t", "mail", "x"]);
        let said = place.run(&["tubes", "--sort", "oldest"]).stderr;
        let note = "beanring: the server does not report the age of ready jobs; the order is by name\n";
        assert_eq!(said, if place.is_beanring { "" } else { note });
    });
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let place = Place::default();
    let scratch = Scratch::new("usage");
    let missing = scratch.join("missing");
    let missing = missing.to_str().expect("UTF-8");
    for (arguments, line) in [
        (&["put", "-f", missing][..], format!("cannot read {missing}: No such file or directory")),
        (&["put", "-f", "/"], "cannot read /: Is a directory".to_owned()),
        (&["put", "-f", "/", "-a", "127.0.0.1:1"], "cannot read /: Is a directory".to_owned()),
        (&["frob"], "frob: no such command; see beanring --help".to_owned()),
        (&["move", "a", "a"], "FROM and TO are the same tube, a; name another".to_owned()),
        (&["kick"], "name the ids of jobs, --count or --all; see beanring kick --help".to_owned()),
        (&["put", "-f", "Cargo.toml", "body"], "cannot read body: No such file or directory; give bodies or files, not both".to_owned()),
        (&["put", "body", "-f", "Cargo.toml"], "give bodies or files, not both".to_owned()),
        (&["put", "-t", "a", "--tube", "b", "body"], "-t/--tube: given twice; beanring put takes one tube".to_owned()),
        (&["peek", "-t", "a", "-t", "b"], "-t/--tube: given twice; beanring peek takes one tube".to_owned()),
        (&["kick", "-t", "a", "-t", "b", "--all"], "-t/--tube: given twice; beanring kick takes one tube".to_owned()),
        (&["work", "--tries", "3", "--", "true"], "--tries needs --on-failure release".to_owned()),
        (&["-a", "21009"], "-a/--addr: this is a flag of the client; name a verb, such as beanring stats --addr ADDR. A server listens on the address of -l/--listen".to_owned()),
        (&["--json", "tube", "mail"], "--json: put the flags of a verb behind its name: beanring tube --json".to_owned()),
        (&["work"], "CMD... is missing; usage: beanring work [FLAGS] -- CMD...".to_owned()),
        (&["work", "-j", "0", "--", "true"], "-j/--jobs \"0\": must be a number from 1 to 1000".to_owned()),
        (&["tube", "a b"], "NAME \"a b\": must be 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), and not begin with -".to_owned()),
    ] {
        let result: Ran = place.run(arguments);
        result.fails(2, &line);
    }
    assert_eq!(place.jobs(), [0; 4]);
    assert!(fs::read_dir(&scratch.0).expect("it is there").next().is_none());
}

#[test]
fn serve_is_the_server() {
    for io in Driver::ALL.iter().copied().filter(|&io| driver::is_allowed(io, "beanring serve")) {
        let mut command = std::process::Command::new(program());
        command.arg("serve");
        let address = beanring_testkit::process::Address::fresh(Transport::Tcp);
        let (_server, mut stream) =
            beanring_testkit::process::ServerProcess::launch(command, address, &driver::flags(io));
        stream.send(b"list-tube-used\r\n");
        let received = stream.receive(beanring_testkit::process::REPLY_PATIENCE);
        assert!(
            matches!(received, beanring_testkit::peer::Received::Bytes(bytes) if bytes == b"USING default\r\n")
        );
    }
}
