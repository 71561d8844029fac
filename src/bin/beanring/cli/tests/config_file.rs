//! Settings of the file: its keys, its tables of rules, and the places of mistakes.

use beanring::config::ServerConfig;
use beanring::flags::{FLAGS, Sources};
use beanring::time::Seconds;
use beanring::values::limits::RULED_TUBES_MAX;
use beanring::values::schedules::Missed;
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::RuleValue;

use super::config::{check, settings, with_file};

#[test]
fn every_flag_is_a_key_of_the_file() {
    let text = r#"
        listen = "::1"
        port = 11301
        wal-dir = "/var/lib/queue"
        sync-interval = 0
        wal-segment-size = "1m"
        keep-reservations = true
        user = "nobody"
        max-job-size = 7
        max-memory = "256m"
        max-connections = 9
        max-tubes = 8
        max-watches = "7"
        io = "uring"
        zero-copy-memory = 0
        tcp-keepalive = 9
        http = 9100
        http-host = ["queue.example", "*.svc"]
        http-token = "/etc/queue/token"
        http-allow-writes = true
        allow-foreign-protocols = true
        sub-second = true
        metrics-prefix = "queue"
        metrics-tubes = 10
        log-level = "debug"
        log-format = "json"
    "#;
    let line = "-l ::1 -p 11301 -b /var/lib/queue -f 0 -s 1048576 --keep-reservations -u nobody -z 7 --max-memory 256m --max-connections 9 \
                --max-tubes 8 --max-watches 7 --io uring --zero-copy-memory 0 --tcp-keepalive 9 --http 9100 --http-host queue.example,*.svc \
                --http-token /etc/queue/token --http-allow-writes --allow-foreign-protocols --sub-second --metrics-prefix queue --metrics-tubes 10 --log-level debug --log-format json";
    // A warning names where the setting is from.
    let without_warnings = |result: Result<ServerConfig, String>| {
        result.map(|config| ServerConfig { warnings: Vec::new(), ..config })
    };
    assert_eq!(without_warnings(with_file(text, "")), without_warnings(check(line)));
    let keys: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" =")?.0.trim())).collect();
    let tls = ["tls-listen", "tls-cert", "tls-key", "tls-client-ca", "http-tls", "proxy-protocol"];
    let replicate =
        ["replicate", "replicate-trust-storage", "lease", "advertise", "advertise-http", "no-forward"];
    let other = [&["no-sync", "verbose", "auth"][..], &tls, &replicate].concat();
    for flag in FLAGS.iter().filter(|flag| flag.sources == Sources::File) {
        assert!(keys.contains(&flag.name) || other.contains(&flag.name), "{} is a key", flag.name);
    }
    assert_eq!(with_file("auth = \"/users\"", ""), check("--auth /users"));
    #[cfg(feature = "tls")]
    assert_eq!(
        with_file(
            r#"
                tls-listen = "[::1]:11400"
                tls-cert = "/c"
                tls-key = "/k"
                tls-client-ca = "/ca"
                http = 9100
                http-tls = true
                proxy-protocol = ["listen", "http"]
            "#,
            ""
        ),
        check(
            "--tls-listen [::1]:11400 --tls-cert /c --tls-key /k --tls-client-ca /ca --http 9100 --http-tls --proxy-protocol listen,http"
        )
    );
    assert_eq!(with_file("no-sync = true\nverbose = 2", "-b /a"), check("-b /a -F -VV"));
    assert_eq!(with_file("wal-dir = \"/a\"", ""), check("-b /a"));
}

#[test]
fn the_command_line_overrides_the_file() {
    assert_eq!(with_file("port = 1", "-p 2"), check("-p 2"));
    assert_eq!(with_file("wal-dir = \"/a\"", "-b /b"), check("-b /b"));
    assert_eq!(with_file("no-sync = true", "-f 5"), check("-f 5"));
    assert_eq!(with_file("sync-interval = 5", "-F"), check("-F"));
    assert_eq!(with_file("sync-interval = 5\nno-sync = false", "-b /a"), check("-b /a -f 5"));
    assert_eq!(with_file("verbose = 1", "-VV"), check("-VV"));
    assert_eq!(with_file("verbose = 1", "--log-level warn"), check("--log-level warn"));
    assert_eq!(with_file("log-level = \"warn\"", "-V"), check("-V"));
    assert_eq!(with_file("http-host = \"a\"", "--http 1"), check("--http 1 --http-host a"));
    assert_eq!(with_file("http-host = \"a\"", "--http-host b"), check("--http-host b"));
}

#[test]
fn an_error_of_the_file_has_its_line() {
    for (text, error) in [
        ("[tube.mail]\nrate = 1", "beanring.toml:1:2: [tube.mail]: no such table; did you mean tubes?"),
        (
            "[[wal-dir]]\nport = 2",
            "beanring.toml:1:3: [[wal-dir]]: no such table; put the keys at the top of the file",
        ),
        (
            "server.port = 2",
            "beanring.toml:1:1: server.port = 2: no such table; put the keys at the top of the file",
        ),
        ("port = 1.5", "beanring.toml:1:8: port = 1.5: must be a whole number"),
        ("\nport = 70000", "beanring.toml:2: port = 70000: must be a number from 0 to 65535"),
        ("port = true", "beanring.toml:1:8: port = true: must be a number"),
        ("verbose = \"1\"", "beanring.toml:1:11: verbose = \"1\": must be a number from 0 to 2"),
        ("verbose = 3", "beanring.toml:1: verbose = 3: must be a number from 0 to 2"),
        (
            "wal-dir = \"\"",
            "beanring.toml:1: wal-dir = \"\": the value is empty; name a directory, or remove the setting",
        ),
        (
            "http-host = [1]",
            "beanring.toml:1:13: http-host = [1]: must be a text in quotes, or a list of them",
        ),
        (
            "http-host = [\n  \"a\",\n  1 # é\n]",
            "beanring.toml:1:13: http-host = [: must be a text in quotes, or a list of them",
        ),
        (
            "sync-interval = 5\nno-sync = true",
            "beanring.toml:1: sync-interval and no-sync of line 2 set the same thing; remove one of them",
        ),
        (
            "verbose = 1\nlog-level = \"warn\"",
            "beanring.toml:2: log-level and verbose of line 1 set the same thing; remove one of them",
        ),
    ] {
        assert_eq!(with_file(text, "").unwrap_err(), error, "{text:?}");
    }
}

/// The token itself is given where its file must be named, or the file of a token or of users is taken for this one.
#[test]
fn what_may_be_a_secret_is_not_shown() {
    const TOKEN: &str = "5d2e9c0f5d2e9c0f5d2e9c0f5d2e9c0f";
    let missing = "there is no such file, and the value may be a secret; name the file that contains it";
    for flag in ["--http-token", "--auth", "--tls-cert", "--auth /users --http-token"] {
        let name = flag.split(' ').next_back().expect("a flag");
        assert_eq!(check(&format!("{flag} {TOKEN}")).unwrap_err(), format!("{name}: {missing}"));
    }
    let config = settings(&format!("--config {TOKEN}")).complete().unwrap_err().to_string();
    assert_eq!(config, format!("--config: {missing}"));
    let base64 = "q3Fz8Kj2mN+vL0pRsT4uXw7yZaBcDeFgHiJkLmNoPQ==";
    for (text, error) in [
        (TOKEN.to_owned(), "beanring.toml:1:33: ***: must be KEY = VALUE, such as port = 11300"),
        (format!("{base64}\n"), "beanring.toml:1:44: ***: must be KEY = VALUE, with a text in quotes"),
        (format!("http-token = \"{TOKEN}\""), "beanring.toml:1: http-token: {missing}"),
        (
            format!("http-token = {TOKEN}"),
            "beanring.toml:1:15: http-token = ***: a text needs quotes: http-token = \"***\"",
        ),
        (
            format!("token = {TOKEN}"),
            "beanring.toml:1:10: token = ***: must be KEY = VALUE, with a text in quotes",
        ),
    ] {
        assert_eq!(with_file(&text, "").unwrap_err(), error.replace("{missing}", missing), "{text}");
    }
}

#[test]
fn a_text_that_is_not_toml_is_shown_with_its_remedy() {
    for (text, error) in [
        ("\n\nport = ", "beanring.toml:3:8: port =: the value is missing"),
        ("port = 1\n\nport = 2\n", "beanring.toml:3:1: port = 2: this key is set twice; remove one"),
        ("port", "beanring.toml:1:5: port: must be KEY = VALUE, such as port = 11300"),
        ("port: 1", "beanring.toml:1:7: port: 1: must be KEY = VALUE, such as port = 11300"),
        (
            "max-memory = 2g # two",
            "beanring.toml:1:14: max-memory = 2g # two: a text needs quotes: max-memory = \"2g\"",
        ),
        (
            "  wal-dir = /var/lib/é\n",
            "beanring.toml:1:13: wal-dir = /var/lib/é: a text needs quotes: wal-dir = \"/var/lib/é\"",
        ),
        ("listen = '::\nport = 1", "beanring.toml:1:13: listen = '::: the closing quote is missing"),
        (
            "wal-dir = \"C:\\jobs\"",
            "beanring.toml:1:15: wal-dir = \"C:\\jobs\": the escape is unknown; write \\\\ for a backslash, or put the text \
             in single quotes",
        ),
        (
            "listen = \"a\\u12\"",
            "beanring.toml:1:16: listen = \"a\\u12\": the escape is unknown; write \\\\ for a backslash, or put the text in \
             single quotes",
        ),
        (
            "listen = \"\"\"::\n",
            "beanring.toml:2:1: the file ends within a text, a list or a table; close it",
        ),
        ("no-sync = yes", "beanring.toml:1:11: no-sync = yes: must be true or false"),
        ("verbose = 1x", "beanring.toml:1:11: verbose = 1x: must be a number from 0 to 2"),
        ("nosuch = x", "beanring.toml:1:10: nosuch = x: must be KEY = VALUE, with a text in quotes"),
        (
            "http-host = [\"a\",\n",
            "beanring.toml:1:18: http-host = [\"a\",: must be a text in quotes, or a list of them",
        ),
        ("[", "beanring.toml:1:2: [: must be KEY = VALUE, such as port = 11300"),
        ("\u{7}=é", "beanring.toml:1:1: =é: must be KEY = VALUE, with a text in quotes"),
    ] {
        assert_eq!(with_file(text, "").unwrap_err(), error, "{text:?}");
    }
}

#[test]
fn the_file_has_rules_of_tubes() {
    let text = r#"
        port = 1
        [tubes.mail]
        max-attempts = 5
        dead-letter = "mail/dead"
        [tubes."mail/dead"]
        retention = 1_000
        [tubes.other]
        max-bytes = "64k"
        default-ttr = "90s"
        retention = "5m"
    "#;
    let config = with_file(text, "").expect("the file is valid");
    let rules = config.tube_rules.iter().flat_map(|(tube, rules)| {
        rules.iter().map(move |(key, value)| format!("{tube} {} {value:?}", key.word()))
    });
    let dead = TubeName::new(b"mail/dead").expect("a valid name");
    let expected = [
        format!("mail max-attempts {:?}", RuleValue::Number(5)),
        format!("mail dead-letter {:?}", RuleValue::Tube(dead)),
        format!("mail/dead retention {:?}", RuleValue::Number(1000)),
        format!("other max-bytes {:?}", RuleValue::Number(65_536)),
        format!("other default-ttr {:?}", RuleValue::Number(90)),
        format!("other retention {:?}", RuleValue::Number(300)),
    ];
    assert_eq!(rules.collect::<Vec<_>>(), expected);
}

#[test]
fn the_file_has_schedules() {
    let text = r#"
        port = 1
        [[schedule]]
        name = "nightly"
        tube = "mail/night"
        when = "0 3 * * *  Europe/Berlin"
        body = "a\nb"
        [[schedule]]
        name = "often"
        tube = "sync"
        when = "every:15m"
        body = ""
        pri = 0
        delay = 7
        ttr = "5m"
        missed = "all"
        overlap = false
    "#;
    let schedules = with_file(text, "").expect("the file is valid").schedules;
    let [nightly, often] = &schedules[..] else { panic!("{schedules:?}") };
    assert_eq!((&*nightly.name, &*nightly.tube), ("nightly", "mail/night"));
    assert_eq!(
        (nightly.plan.when.as_str(), &nightly.body[..]),
        ("0 3 * * * Europe/Berlin", &b"a\nb\r\n"[..])
    );
    assert_eq!((nightly.plan.pri, nightly.plan.missed, nightly.plan.overlaps), (65_536, Missed::Once, true));
    assert_eq!((nightly.plan.delay, nightly.plan.ttr), (Seconds::ZERO, Seconds::whole(60)));
    assert_eq!((often.plan.pri, often.plan.missed, often.plan.overlaps), (0, Missed::All, false));
    assert_eq!((often.plan.delay, often.plan.ttr), (Seconds::whole(7), Seconds::whole(300)));
}

#[test]
fn a_mistake_in_a_schedule_has_its_place() {
    const ONE: &str = "[[schedule]]\nname = \"n\"\ntube = \"t\"\nwhen = \"every:9\"\nbody = \"\"\n";
    let with = |line: &str| format!("{ONE}{line}");
    for (text, error) in [
        ("schedule = 1".to_owned(), "1:12: schedule = 1: must be tables, each below [[schedule]]"),
        ("[schedule]\nname = 1".to_owned(), "1:1: [schedule]: must be tables, each below [[schedule]]"),
        ("[[schedules]]\n".to_owned(), "1:3: [[schedules]]: no such table; did you mean schedule?"),
        ("[[schedule]]\nname = \"n\"".to_owned(), "1:1: [[schedule]]: the schedule lacks tube"),
        (ONE.replace("\"t\"", "5"), "3:8: tube = 5: must be a text in quotes"),
        (
            ONE.replace("\"t\"", "\"a b\""),
            "3:8: tube = \"a b\": must be 1 to 200 letters, digits or one of -+/;.$_(), not beginning with -",
        ),
        (
            ONE.replace("every:9", "* * * * * Mars"),
            "4:8: when = \"* * * * * Mars\": not a time zone of the IANA database, such as Europe/Berlin; a line has five fields, without seconds",
        ),
        (
            ONE.replace("every:9", "0 0 31 2 *"),
            "4:8: when = \"0 0 31 2 *\": at no date of the next four years",
        ),
        (
            with("priority = 1"),
            "6:1: priority = 1: no such key of a schedule; it has name, tube, when, body, pri, delay, ttr, missed, overlap",
        ),
        (with("bodi = 1"), "6:1: bodi = 1: no such key of a schedule; did you mean body?"),
        (with("pri = -1"), "6:7: pri = -1: must be a number from 0 to 4294967295"),
        (with("ttr = \"5 m\""), "6:7: ttr = \"5 m\": must be a number of seconds, or a text such as \"5m\""),
        (with("missed = \"no\""), "6:10: missed = \"no\": must be \"skip\", \"once\" or \"all\""),
        (with("overlap = \"no\""), "6:11: overlap = \"no\": must be true or false"),
        (with(ONE), "6:1: [[schedule]]: there is another schedule n"),
    ] {
        assert_eq!(with_file(&text, "").unwrap_err(), format!("beanring.toml:{error}"), "{text:?}");
    }
}

#[test]
fn a_schedule_whose_jobs_the_server_would_refuse_is_an_error() {
    let text = "[[schedule]]\nname = \"n\"\ntube = \"t\"\nwhen = \"every:9\"\nbody = \"1234\"\n";
    assert!(with_file(text, "-z 4").is_ok());
    let error = "beanring.toml: schedule n: its body has 4 bytes, and the maximum job size is 3; shorten it, or raise -z and -s";
    assert_eq!(with_file(text, "-z 3").unwrap_err(), error);
}

#[test]
fn a_mistake_in_a_rule_has_its_place() {
    let many: String = (0..=RULED_TUBES_MAX).map(|tube| format!("[tubes.t{tube}]\nrate = 1\n")).collect();
    for (text, error) in [
        ("tubes = 1", "1:9: tubes = 1: must be tables, such as [tubes.mail]"),
        ("[tubes]\nmail = 1", "2:8: mail = 1: must be a table: [tubes.mail]"),
        (
            "[tubes.mail/dead]\nrate = 1",
            "1:12: [tubes.mail/dead]: the name needs quotes: [tubes.\"mail/dead\"]",
        ),
        ("[tubes.\"a b\"]\nrate = 1", "1:8: [tubes.\"a b\"]: this is not the name of a tube"),
        ("[tubes.t]\nmax-job = 1", "2:1: max-job = 1: no such rule; did you mean max-jobs?"),
        (
            "[tubes.t]\nspeed = 1",
            "2:1: speed = 1: no such rule; the keys of the server stand before the first table",
        ),
        ("[tubes.t]\nrate = 0", "2:8: rate = 0: must be a number from 1 to 1000000"),
        ("[tubes.t]\nrate = 1.5", "2:8: rate = 1.5: must be a number from 1 to 1000000"),
        (
            "[tubes.t]\nretention = \"5 m\"",
            "2:13: retention = \"5 m\": must be a number of seconds from 1 to 4294967295, or a text such as \"5m\"",
        ),
        ("[tubes.t]\nretention = 5m", "2:13: retention = 5m: a text needs quotes: retention = \"5m\""),
        (
            "[tubes.t]\nmax-bytes = \"0\"",
            "2:13: max-bytes = \"0\": must be a number of bytes from 1 to 9223372036854775807, or a text such as \"64k\"",
        ),
        ("[tubes.t]\nmax-jobs = \"5\"", "2:12: max-jobs = \"5\": must be a number from 1 to 4294967295"),
        (
            "[tubes.t]\ndead-letter = \"t\"",
            "2:15: dead-letter = \"t\": must be the name of another tube, but for 0, as a text in quotes",
        ),
        (
            "[tubes.t]\ndead-letter = 5",
            "2:15: dead-letter = 5: must be the name of another tube, but for 0, as a text in quotes",
        ),
        (&many, "2001:8: [tubes.t1000]: at most 1000 tubes may have rules"),
    ] {
        assert_eq!(with_file(text, "").unwrap_err(), format!("beanring.toml:{error}"), "{text:?}");
    }
}
