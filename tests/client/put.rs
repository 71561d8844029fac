//! `beanring put`: arguments, files, lines, refused jobs, and memory.

use std::fs;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::process::Transport;
use beanring_testkit::scratch::Scratch;
use nix::sys::signal::Signal;
use serde_json::json;

use super::place::{Place, everywhere, with_both};
use super::session::sessions;

sessions! {
    with_both ids_are_printed_unless_there_are_many "ids by the client" r#"
        put -t default a b => 1\n2
        put a --quiet =|
        put a b --json -t mail => {"id":4,"tube":"mail"}\n{"id":5,"tube":"mail"}
    "#
}

/// Deletes the ready jobs of a tube, and returns their bodies in order.
fn bodies(place: &Place, tube: &str) -> Vec<Vec<u8>> {
    let next = || place.run(&["reserve", "-t", tube, "--timeout", "0", "--delete", "--body"]);
    std::iter::from_fn(|| Some(next()).filter(|ran| ran.code == Some(0)).map(|ran| ran.stdout)).collect()
}

#[test]
fn bodies_from_arguments_files_and_input() {
    everywhere("put by the client", |place| {
        let scratch = Scratch::new("put");
        let (one, two) = (scratch.join("one"), scratch.join("two"));
        fs::write(&one, b"1\n2\r\n\n\xff").expect("a file");
        fs::write(&two, b"").expect("a file");
        let paths = [one.to_str().expect("UTF-8"), two.to_str().expect("UTF-8")];
        let put = |arguments: &[&str], input: &[u8]| {
            place.feed(&[&["put", "-t", "mail", "-q"], arguments].concat(), input).ok();
            bodies(place, "mail")
        };
        assert_eq!(put(&["a", "", "-p", "1", "b c"], b"not read"), [&b"a"[..], b"", b"b c"]);
        assert_eq!(put(&["--", "--lines", "-"], b""), [&b"--lines"[..], b"-"]);
        assert_eq!(put(&[], b"all\r\nof it\n"), [b"all\r\nof it\n"]);
        assert_eq!(put(&["--allow-empty"], b""), [b""]);
        assert_eq!(put(&["--lines"], b"a\n\nb\r\nlast"), [&b"a"[..], b"", b"b\r", b"last"]);
        assert_eq!(put(&["--lines"], b""), Vec::<Vec<u8>>::new());
        assert_eq!(put(&["-f", paths[0], paths[1]], b""), [&b"1\n2\r\n\n\xff"[..], b""]);
        assert_eq!(put(&["-f", paths[0], "-f", "-"], b"in"), [&b"1\n2\r\n\n\xff"[..], b"in"]);
        assert_eq!(put(&["--lines", "-f", paths[0], paths[1]], b""), [&b"1"[..], b"2\r", b"", b"\xff"]);
    });
}

#[test]
fn priority_delay_and_ttr() {
    everywhere("put with a delay by the client", |place| {
        place.session(
            r#"
            put x -p 4294967295 -d 1h -r 90 => 1
            job 1 =~ {"priority": 4294967295, "ttr_seconds": 90, "state": "delayed"}
            "#,
        );
        assert!(place.number(&["job", "1"], "time_left_seconds") > 3590);
    });
}

#[test]
fn tags_of_a_job() {
    everywhere("tags by the client", |place| {
        if !place.is_beanring {
            for tag in ["--idp", "--con", "--grp", "--aft"] {
                let unknown = "the server does not know tags; leave out --idp, --con, --grp and --aft";
                place.run(&["put", "x", tag, "a"]).fails(1, unknown);
            }
            // The body is not sent.
            return place.session(r#"stats =~ {"totals": {"puts": 0}}"#);
        }
        let put = "put x --idp order-7:60 --con user-7:2";
        place.session(&format!(
            r#"
            {put} => 1
            {put} =0> no job is added: job 1 has this key and is ready
            {put} =0| 1
            {put} --pri 7 =0> no job is added: job 1 has this key and is ready; its priority is 7 now
            {put} --quiet =|
            {put} --json => {{"id":1,"tube":"default","state":"ready"}}
            {put} --pri 5 --json => {{"id":1,"tube":"default","state":"ready","priority":5}}
            bury 1
            {put} =0> no job is added: job 1 has this key and is buried
            kick 1
            [1 0 0 0]
            job 1 =~ {{"tags": {{"idp": "order-7:60", "con": "user-7:2"}}}}
            put -t default x y --idp key =2> --idp and several bodies: a tube has one job of a key; put them one by one, each with a key
            put x --grp a --aft a =2> --grp and --aft: a job cannot wait for its own group; name two groups
            "#
        ));
        for wrong in
            [["--idp", "a b"], ["--idp", "a con:b"], ["--idp", "a:b"], ["--con", "a:0"], ["--con", ""]]
        {
            let ran = place.run(&[&["put", "x"], &wrong[..]].concat());
            assert!(ran.code == Some(2) && ran.stderr.contains("must be a key"), "{ran:?}");
        }
    });
}

#[test]
fn jobs_wait_for_a_group() {
    everywhere("groups by the client", |place| {
        if !place.is_beanring {
            let unknown = "the server does not know tags; leave out --idp, --con, --grp and --aft";
            place.run(&["put", "part", "-t", "parts", "--grp", "parts"]).fails(1, unknown);
            return place.session("group parts =1> group parts: BAD_FORMAT: the server does not know groups");
        }
        place.session("put part -t parts --grp parts");
        let header = || place.ok(&["tubes"]).lines().next().expect("a header").to_owned();
        assert!(!header().contains("HELD"));
        place.session("put join -t whole --grp wholes --aft parts");
        assert!(header().contains("  BURIED  HELD  WAITING  "), "{}", header());
        let busiest = place.ok(&["tubes", "--sort", "held"]);
        assert!(busiest.lines().nth(1).expect("a tube").starts_with("whole "), "{busiest}");
        assert!(place.ok(&["tubes", "--busy"]).contains("whole"));
        place.session(
            r#"
            tube whole =~ {"held": 1}
            jobs whole -s held =~ {"id": 2}
            group wholes --json => {"name":"wholes","ready":0,"reserved":0,"delayed":0,"buried":0,"held":1,"waiting_jobs":0,"waits_for":["parts"]}
            "#,
        );
        let rows = |arguments: &[&str]| {
            let text = place.ok(arguments);
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        let expected = [
            "name parts",
            "ready 1",
            "reserved 0",
            "delayed 0",
            "buried 0",
            "held 0",
            "waiting-jobs 1",
            "waits-for -",
        ];
        assert_eq!(rows(&["group", "parts"]), expected);
        let expected = ["tags grp:wholes aft:parts", "waits-for parts", "waits-for-jobs 1"];
        assert_eq!(rows(&["job", "2"])[14..], expected);
        place.session(
            r#"
            bury 2 =1> job 2: it waits for group parts; beanring kick 2 makes it ready
            delete 1
            job 2 =~ {"state": "ready"}
            group parts =1> group parts: NOT_FOUND: there is no such group; it exists while it has a job
            "#,
        );
        assert!(!rows(&["job", "2"]).contains(&"waits-for parts".to_owned()));
    });
}

#[test]
fn refused_jobs_are_counted_and_the_first_is_named() {
    everywhere("refused puts by the client", |place| {
        let long = "x".repeat(65_536);
        let meaning = "JOB_TOO_BIG: the body is larger than the server accepts; raise -z of the server, or split the job";
        place.feed(&["put"], long.as_bytes()).fails(1, &format!("body 1: {meaning}"));
        let input = format!("a\n{long}\nb\n{long}\nc\n");
        let result = place.feed(&["put", "--lines"], input.as_bytes());
        assert_eq!(result.code, Some(1));
        assert!(result.text().starts_with("put 3 jobs into default in "), "{result:?}");
        assert_eq!(
            result.stderr,
            format!("beanring: 2 of 5 jobs were refused; the first: line 2: {meaning}\n")
        );
        let error = |input: &str| format!("{input}: {meaning}");
        let refused = place.feed(&["put", "--json"], long.as_bytes()).json();
        assert_eq!(
            refused,
            json!({"input": "body 1", "reply": "JOB_TOO_BIG", "error": "too-large", "message": error("body 1")})
        );
        let summary = place.feed(&["put", "--lines", "--json"], input.as_bytes()).json();
        assert_eq!((&summary["put"], &summary["refused"]), (&3.into(), &2.into()), "{summary}");
        assert_eq!(summary["first_refusal"], json!({"error": "too-large", "message": error("line 2")}));
        assert_eq!(place.jobs(), [6, 0, 0, 0]);
    });
}

#[test]
fn a_million_lines_in_bounded_memory() {
    with_both("a million lines by the client", |place| {
        let lines: String = (0..1_000_000).map(|line| format!("{line}\n")).collect();
        let (mut running, mut stdin) = place.begin_fed(&["put", "--lines"]);
        let started = Instant::now();
        let peak_kb = thread::scope(|scope| {
            // If the client stops early, its own error says why.
            scope.spawn(move || _ = stdin.write_all(lines.as_bytes()));
            let mut peak_kb = 0;
            while running.0.try_wait().expect("it is ours").is_none() {
                peak_kb = peak_kb.max(peak_rss_kb(running.0.id()));
                thread::sleep(Duration::from_millis(2));
            }
            peak_kb
        });
        println!("{:.2} s, {peak_kb} kB", started.elapsed().as_secs_f64());
        let printed = running.end().text();
        assert!(printed.starts_with("put 1000000 jobs into default in "), "{printed}");
        assert!((1..20_000).contains(&peak_kb), "{peak_kb} kB");
        assert_eq!(place.jobs(), [1_000_000, 0, 0, 0]);
    });
}

/// The peak RSS of a process, or 0 if it has ended.
fn peak_rss_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_line_is_put_before_the_next_one_comes() {
    with_both("slow lines by the client", |place| {
        let (running, mut stdin) = place.begin_fed(&["put", "--lines"]);
        for count in 1..4 {
            stdin.write_all(b"line\n").expect("it reads");
            place.wait_for_jobs([count, 0, 0, 0]);
        }
        drop(stdin);
        assert_eq!(running.end().code, Some(0));
    });
}

#[test]
fn a_signal_ends_put_with_a_count() {
    with_both("put that a signal ends", |place| {
        for (signal, name, code, flags) in [
            (Signal::SIGINT, "SIGINT", 130, &["put", "--lines"][..]),
            (Signal::SIGTERM, "SIGTERM", 143, &["put", "--lines", "--quiet"]),
        ] {
            let (running, mut stdin) = place.begin_fed(flags);
            // A line without its end is no job.
            stdin.write_all(b"one\ntwo\npart").expect("it reads");
            place.wait_for_jobs([2, 0, 0, 0]);
            running.signal(signal);
            let ran = running.end();
            assert!(ran.stdout.is_empty(), "{ran:?}");
            ran.fails(code, &format!("put 2 jobs; stopped by {name}"));
            assert_eq!(bodies(place, "default"), [&b"one"[..], b"two"]);
        }
        // Of these connections, one looks.
        let mut looking = place.control();
        looking.await_stat("current-connections", |count| count == 1);
        // Without lines the whole input is the body, and it has not ended.
        let (running, _stdin) = place.begin_fed(&["put"]);
        looking.await_stat("current-connections", |count| count == 2);
        running.signal(Signal::SIGINT);
        running.end().fails(130, "put 0 jobs; stopped by SIGINT");
        assert_eq!(place.jobs(), [0; 4]);
    });
}

#[test]
fn a_server_that_goes_away_is_an_error_with_a_count() {
    let mut place = Place::default();
    let (running, mut stdin) = place.begin_fed(&["put", "--lines"]);
    stdin.write_all(b"1\n2\n").expect("it reads");
    place.wait_for_jobs([2, 0, 0, 0]);
    place.server.signal(Signal::SIGKILL);
    place.server.wait();
    // The first line after the end may still be sent without an error.
    for _ in 0..100 {
        if stdin.write_all(b"3\n").is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    drop(stdin);
    let ran = running.end();
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.starts_with("beanring: put 2 jobs before the error"), "{ran:?}");
}

#[test]
fn large_bodies() {
    let place = Place::beanring(Driver::Epoll, Transport::Unix, &["-z", "64m"]);
    let body: Vec<u8> = (0..20_000_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(place.feed(&["put"], &body).ok(), "1\n");
    let printed = place.run(&["peek", "1", "--body"]);
    assert!(printed.stdout == body && printed.code == Some(0));
}
