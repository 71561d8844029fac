//! Verbs for the server and its tubes, addresses, and exit codes.

use std::fs;
use std::process::Command;
use std::time::Instant;

use beanring::io::driver::Driver;
use beanring_testkit::client::serve_by;
use beanring_testkit::process::{Address, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::{driver, unused_address};
use serde_json::Value;

use super::fake::impostor;
use super::place::{Place, client, everywhere, ran, run_at};
use super::session::sessions;

sessions! {
    everywhere drain_and_undrain "drain by the client" r#"
        beanstalkd: drain =1> drain: UNKNOWN_COMMAND: the server does not know drain; send it SIGUSR1
        beanstalkd: undrain =1> undrain: UNKNOWN_COMMAND: the server does not know undrain; a restart ends its drain mode
        beanring: drain => drain mode is on: new jobs are refused. End it with beanring undrain
        beanring: stats =~ {"draining": true}
        beanring: put x =1> body 1: DRAINING: the server accepts no new jobs; put them to another one, or run beanring undrain
        beanring: undrain =~ {"draining": false}
        beanring: put x => 2
    "#

    everywhere keys_of_a_tube_are_flushed "flush --keys by the client" r#"
        beanstalkd: flush --keys mail =1> tube mail: UNKNOWN_COMMAND: the server does not know flush-keys: it is beanstalkd, or an older beanring
        beanring: put -t mail --idp a:60 body
        beanring: put -t mail --idp b:60 body
        beanring: put -t mail --idp c body
        beanring: flush -y mail
        beanring: stats =~ {"protocol": {"current-kept-keys": 2}}
        beanring: flush --keys mail => forgot 2 keys of mail
        beanring: flush --keys mail --json => {"tube":"mail","flushed":0}
        beanring: stats =~ {"protocol": {"current-kept-keys": 0}}
        beanring: flush --keys -y mail =2
    "#

    everywhere a_tube_that_does_not_exist_is_exit_code_1 "verbs for a missing tube by the client" r#"
        kick --all -t none =1> tube none: NOT_FOUND: there is no such tube
        kick -n 3 -t none =1> tube none: NOT_FOUND: there is no such tube
        kick --all -t none --json =1> tube none: NOT_FOUND: there is no such tube
        peek -t none =1> tube none: NOT_FOUND: there is no such tube
        peek -t none -s buried =1> tube none: NOT_FOUND: there is no such tube
        pause none 1 =1> tube none: NOT_FOUND: there is no such tube
        move none other =1> tube none: NOT_FOUND: there is no such tube
        stats =~ {"tubes": 1}
    "#

    with_both an_order_that_the_server_does_not_know_is_named "order by age by the client" r#"
        put -q -t mail x
        beanring: tubes --sort oldest
        beanstalkd: tubes --sort oldest =0> the server does not report the age of ready jobs; the order is by name
    "#
}

#[test]
fn statistics_of_the_server_a_tube_and_a_job() {
    everywhere("statistics by the client", |place| {
        place.session(
            r#"
            stats =~ {"jobs": {"ready": 0}, "draining": false}
            put -t mail -p 7 -r 2m hello => 1
            job 1 =~ {"tube": "mail", "state": "ready", "priority": 7}
            job 1 =* ttr 2 min
            tube mail =~ {"puts": 1}
            tube none =1> tube none: NOT_FOUND: there is no such tube; it exists while it has jobs or is used or watched
            job 9 =1> job 9: NOT_FOUND: there is no such job
            "#,
        );
        assert!(place.json(&["stats"])["version"].is_string());
        let stats = place.ok(&["stats"]);
        let titles: Vec<&str> =
            stats.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
        assert!(titles.starts_with(&["Server", "Jobs", "Tubes", "Connections"]), "{stats}");
        assert!(titles.contains(&"Commands"), "{stats}");
        assert!(!place.is_beanring || !titles.contains(&"Other"), "{stats}");
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
        for (arguments, expected) in [
            (&[][..], "default mail.bounce mail.send video"),
            (&["--sort", "puts"], "video mail.send mail.bounce default"),
            (&["--sort", "ready"], "video mail.send mail.bounce default"),
            (&["-s", "ready", "--reverse"], "default mail.bounce mail.send video"),
            (&["--busy"], "mail.bounce mail.send video"),
            (&["mail"], "mail.bounce mail.send"),
            (&["*.s*d"], "mail.send"),
            (&["VID"], "video"),
            (&["Mail.S*"], "mail.send"),
        ] {
            let text = place.ok(&[&["tubes"], arguments].concat());
            let names = text.lines().skip(1).map(|line| line.split(' ').next().expect("a name"));
            assert!(names.eq(expected.split(' ')), "{arguments:?}: {text}");
        }
        let table = place.ok(&["tubes", "-b"]);
        let ready =
            table.lines().next().and_then(|line| line.find("READY")).expect("a header") + "READY".len();
        let ends: Vec<&str> = table.lines().skip(1).map(|line| line[..ready].trim_end()).collect();
        assert!(ends.iter().all(|row| row.len() == ready), "numbers are right-aligned:\n{table}");
        place.session(r#"tubes video =~ {"name": "video", "ready": 12}"#);
    });
}

#[test]
fn ten_thousand_tubes() {
    let place = Place::default();
    for first in (0..10_000).step_by(500) {
        let tubes = first..first + 500;
        let commands: String = tubes.map(|tube| format!("use t{tube}\r\nput 0 0 1 1\r\nx\r\n")).collect();
        let mut client = place.control();
        client.send(&(commands + "quit\r\n"));
        while client.line().is_some() {}
    }
    let table = place.ok(&["tubes", "--sort", "name"]);
    assert_eq!(table.lines().count(), 10_002);
}

#[test]
fn a_tube_is_flushed() {
    everywhere("flush by the client", |place| {
        place.session(
            "
            put -t mail one two three
            put -t mail -d 1h four
            beanstalkd: flush --yes mail =1> tube mail: UNKNOWN_COMMAND: the server does not know flush-tube; beanring work -t mail --until-empty -- true deletes ready jobs
            ",
        );
        if !place.is_beanring {
            return;
        }
        place.session(
            r"
            flush mail << n\n =2> flush deletes jobs and cannot ask without a terminal; add --yes to flush mail
            [3 0 1 0]
            bury 2
            ",
        );
        let terminal = place.on_terminal(&["flush", "mail"], &[]);
        let question = "delete 2 ready, 1 delayed and 1 buried jobs of mail? [y/N] ";
        assert!(terminal.contains(question), "{terminal}");
        assert!(terminal.ends_with("beanring: nothing is deleted\n"), "{terminal}");
        place.session("[2 0 1 1]\nflush --yes mail => deleted 4 jobs of mail\nput -t mail five");
        assert_eq!(place.on_terminal(&["flush", "--yes", "mail"], &[]), "deleted 1 job of mail\n");
        place.session(
            r#"
            put -t mail six
            flush -y mail --json => {"tube":"mail","flushed":1}
            put -t mail --grp parts part
            put -t mail --aft parts whole
            "#,
        );
        let terminal = place.on_terminal(&["flush", "mail"], &[]);
        let question = "delete 1 ready, 0 delayed, 0 buried and 1 held jobs of mail? [y/N] ";
        assert!(terminal.contains(question), "{terminal}");
        place.session(
            "
            flush --yes mail => deleted 2 jobs of mail
            flush -y mail =1> tube mail: NOT_FOUND: there is no such tube
            flush -mail =2
            ",
        );
    });
}

#[test]
fn rules_of_a_tube_are_set_shown_and_removed() {
    everywhere("tube-config by the client", |place| {
        if !place.is_beanring {
            return place.session(
                "
                tube-config mail =1> tube mail: UNKNOWN_COMMAND: the server does not know tube-config: it is beanstalkd, or an older beanring
                tube-config mail rate 5 =1> tube mail: UNKNOWN_COMMAND: the server does not know tube-config: it is beanstalkd, or an older beanring
                ",
            );
        }
        assert_eq!(place.on_terminal(&["tube-config", "default"], &[]), "tube default has no rules\n");
        place.session(
            r#"
            tube-config mail =1> tube mail: NOT_FOUND: no such tube exists, and no rule is set for its name
            tube-config default =|
            tube-config default --json => {"tube":"default","rules":{}}
            tube-config mail retention 90 => set retention of mail to 90
            tube-config mail dead-letter 7 --json => {"tube":"mail","key":"dead-letter","value":"7"}
            tube-config mail =* retention 90s
            tube-config mail =* dead-letter 7
            tube-config mail =~ {"rules": {"retention": 90, "dead-letter": "7"}}
            tube-config mail retention 0 => removed retention of mail
            tube-config mail dead-letter 0 => removed dead-letter of mail
            tube-config mail =1> tube mail: NOT_FOUND: no such tube exists, and no rule is set for its name
            tube-config mail rate 1000001 =2> rate "1000001": must be a number from 1 to 1000000; 0 removes the rule
            tube-config mail dead-letter mail =2> dead-letter "mail": must be the name of another tube; 0 removes the rule
            tube-config mail rate =2
            tube-config mail speed 1 =2
            "#,
        );
        for (key, given, number) in [
            ("max-bytes", "64k", "65536"),
            ("max-bytes", "1100000", "1100000"),
            ("default-ttr", "5m", "300"),
            ("retention", "1d", "86400"),
        ] {
            place.session(&format!(
                r#"
                tube-config mail {key} {given} => set {key} of mail to {given}
                tube-config mail {key} {given} =~ {{"value": {number}}}
                tube-config mail =~ {{"rules": {{"{key}": {number}}}}}
                "#
            ));
        }
        place.session("tube-config mail max-jobs 1\nput -t mail x");
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
    });
}

#[test]
fn a_tube_above_the_limit_names_the_limit() {
    let place = Place::beanring(Driver::Epoll, Transport::Tcp, &["--max-tubes", "2"]);
    let refused = "tube b: OUT_OF_MEMORY: there is no room for another tube";
    let is_reached = "--max-memory is reached; raise that limit";
    place.session(&format!(
        "
        put -t a x
        put -t b x =1> {refused}: --max-tubes or {is_reached}
        move a b =1> {refused}: --max-tubes or {is_reached}
        reserve -t b --timeout 0 =1> {refused}: --max-tubes, --max-watches or {is_reached}
        "
    ));
}

#[test]
fn a_paused_tube_gives_no_jobs() {
    everywhere("pause by the client", |place| {
        place.session("put -t mail x\npause mail 10m => paused mail for 10 min");
        assert!(place.number(&["tube", "mail"], "paused_seconds") > 590);
        place.session(
            r#"
            reserve -t mail --timeout 0 =1> reserve: TIMED_OUT: no job is ready
            pause mail 0 => resumed mail
            reserve -t mail --timeout 5 --delete =~ {"id": 1}
            pause mail 99999999999 =2> TIME "99999999999": must be at most 4294967295 s, 49710 days
            pause none 1 =1> tube none: NOT_FOUND: there is no such tube
            "#,
        );
    });
}

#[test]
fn watch_prints_a_line_per_interval() {
    everywhere("watch by the client", |place| {
        place.session(r"put --lines -t mail << 1\n2\n3\n");
        // Each takes as many seconds as it has intervals.
        let all = place.begin(&["watch", "-n", "1"]);
        let named = place.begin(&["watch", "mail", "none", "-n", "1"]);
        let quiet = place.begin(&["watch", "--quiet", "-n", "2"]);
        let json = place.begin(&["watch", "mail", "-n", "1", "--json"]);
        let text = all.end().ok();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0][..5], ["READY", "RESERVED", "DELAYED", "BURIED", "WAITING"], "{text}");
        assert_eq!((&rows[1][..5], rows.len()), (&["3", "0", "0", "0", "0"][..], 2), "{text}");
        let result = named.end();
        let note = "beanring: there is no tube none; its numbers are 0 until it exists\n";
        assert_eq!((result.code, &*result.stderr), (Some(0), note));
        let text = result.text();
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("mail        3")), "{text}");
        assert!(text.lines().nth(2).is_some_and(|line| line.starts_with("none        0")), "{text}");
        // Nothing changes after the first line.
        assert_eq!(quiet.end().ok().lines().count(), 2);
        let line = json.end().json();
        assert_eq!((&line["tube"], &line["ready"]), (&"mail".into(), &3.into()));
        assert_eq!(line["put_per_second"], 0.0);
    });
}

#[test]
fn watch_shows_rates() {
    let place = Place::default();
    let watch = place.begin(&["watch", "--json", "-n", "2"]);
    let started = Instant::now();
    let mut put = 0;
    while started.elapsed().as_millis() < 1500 {
        place.feed(&["put", "--lines"], b"1\n2\n3\n4\n").ok();
        put += 4;
    }
    let rate = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["put_per_second"].as_f64().expect("a number")
    };
    let rates: f64 = watch.end().text().lines().map(rate).sum();
    assert!(rates > 0.0 && rates <= f64::from(put) + 1.0, "{rates} of {put}");
}

#[test]
fn every_kind_of_address() {
    for transport in [Transport::Tcp, Transport::Unix] {
        let place = Place::beanring(Driver::Epoll, transport, &[]);
        let at = |variable: Option<&str>, flags: &[&str]| {
            let mut command = client();
            command.args(["put", "x"]).args(flags).envs(place.variables());
            ran(command.envs(variable.map(|address| ("BEANRING_ADDR", address))), b"").ok()
        };
        assert_eq!(at(None, &["--addr", &place.address]), "1\n");
        assert_eq!(at(None, &["-a", &place.address]), "2\n");
        // The flag wins.
        assert_eq!(at(Some("127.0.0.1:1"), &["-a", &place.address]), "3\n");
        assert_eq!(at(Some(&place.address), &[]), "4\n");
    }
    run_at("unix", &["stats"])
        .fails(2, "BEANRING_ADDR=\"unix\": the path of the socket is missing; write unix:PATH, such as unix:/run/beanring/socket");
}

#[test]
fn a_server_that_cannot_be_reached_is_exit_code_3() {
    let (_held, port) = unused_address::port();
    for (address, said) in [
        (
            port.to_string(),
            format!("127.0.0.1:{port}: Connection refused; start the server, or name it with --addr"),
        ),
        (
            "unix:/nonexistent/socket".to_owned(),
            "unix:/nonexistent/socket: No such file or directory; start the server, or correct the path"
                .to_owned(),
        ),
        (
            "nowhere.invalid:1".to_owned(),
            "nowhere.invalid:1: no such host; correct the name, or check DNS".to_owned(),
        ),
    ] {
        ran(client().args(["stats", "-a", &address]), b"").fails(3, &format!("cannot connect to {said}"));
    }
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
        run_at(&address, &["stats"]).fails(3, &format!("{address} {message}"));
    }
}

#[test]
fn data_that_no_command_asks_for_is_exit_code_3() {
    let unasked = |text: &str| {
        format!(
            "the server replied with \"{text}\", which is not what the command asks for; is it a beanstalk server?"
        )
    };
    let address = impostor(b"OK 5\r\nhello\r\n");
    for arguments in [
        &["stats"][..],
        &["tubes"],
        &["tube", "mail"],
        &["group", "parts"],
        &["job", "1"],
        &["jobs", "mail"],
        &["tube-config", "mail"],
        &["schedule", "list"],
        &["schedule", "show", "a"],
        &["watch", "-n", "1"],
        &["kick", "--all"],
        &["peek"],
        &["move", "a", "b"],
    ] {
        run_at(&address, arguments).fails(3, &unasked("hello"));
    }
    // `list-tubes` of a server has this form, and `stats` has not.
    let address = impostor(b"OK 14\r\n---\n- default\n\r\n");
    run_at(&address, &["stats"]).fails(3, &unasked("---\\n- default\\n"));
    let address = impostor(b"OK 15\r\n---\nversion: 1\x1b\r\n");
    let result = run_at(&address, &["stats"]);
    assert_eq!(result.ok().split_whitespace().collect::<Vec<_>>(), ["Server", "version", "1\\x1b"]);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let place = Place::default();
    let scratch = Scratch::new("usage");
    let missing = scratch.join("missing");
    place.session(&format!(
        r#"
        put -f {0} =2> cannot read {0}: No such file or directory
        put -f / =2> cannot read /: Is a directory
        put -f / -a 127.0.0.1:1 =2> cannot read /: Is a directory
        frob =2> frob: no such command; see beanring --help
        move a a =2> FROM and TO are the same tube, a; name another
        kick =2> name the ids of jobs, --count or --all; see beanring kick --help
        put -f Cargo.toml body =2> cannot read body: No such file or directory; give bodies or files, not both
        put body -f Cargo.toml =2> give bodies or files, not both
        put -t a --tube b body =2> -t/--tube: given twice; beanring put takes one tube
        peek -t a -t b =2> -t/--tube: given twice; beanring peek takes one tube
        kick -t a -t b --all =2> -t/--tube: given twice; beanring kick takes one tube
        work --tries 3 -- true =2> --tries needs --on-failure release
        -a 21009 =2> -a/--addr: this is a flag of the client; name a verb, such as beanring stats --addr ADDR. A server listens on the address of -l/--listen
        --json tube mail =2> --json: put the flags of a verb behind its name: beanring tube --json
        work =2> CMD... is missing; usage: beanring work [FLAGS] -- CMD...
        work -j 0 -- true =2> -j/--jobs "0": must be a number from 1 to 1000
        tube 'a b' =2> NAME "a b": must be 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), and not begin with -
        [0 0 0 0]
        "#,
        missing.display()
    ));
    assert!(fs::read_dir(&scratch.0).expect("it is there").next().is_none());
}

#[test]
fn serve_is_the_server() {
    driver::under_each("beanring serve", |io| {
        let mut command = Command::new(program());
        command.arg("serve");
        let (_server, mut client) = serve_by(command, Address::fresh(Transport::Tcp), &driver::flags(io));
        client.expect("list-tube-used\r\n", "USING default");
    });
}
