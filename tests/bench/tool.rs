//! Runs `beanring-bench` against servers that reply correctly, wrongly and not at all, and compares its counters with
//! the server's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::beanstalkd::installed;
use beanring_testkit::client::serve;
use beanring_testkit::process::{ServerProcess, Transport};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::number;
use beanring_testkit::{unused_address, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::beanring_bench;

/// How the fake server handles `put`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Right,
    AlteredBodies,
    OutOfMemoryEveryTenth,
    ClosesAfter(u64),
    NonsenseAfter(u64),
    SilentAfter(u64),
    TooBigAfter(u64),
}

/// Serves on a port of its own until the test process ends, with a queue for each connection.
fn fake(manner: Manner) -> String {
    counting_fake(manner).0
}

/// As `fake`, with the number of received `put`s.
fn counting_fake(manner: Manner) -> (String, Arc<AtomicU64>) {
    let all_puts = Arc::new(AtomicU64::new(0));
    let count = all_puts.clone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, count) = (stream.unwrap(), count.clone());
            // A client may disconnect at any time.
            thread::spawn(move || drop(converse(stream, manner, &count)));
        }
    });
    (addr, all_puts)
}

fn converse(stream: TcpStream, manner: Manner, all_puts: &AtomicU64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut jobs = std::collections::VecDeque::new();
    let (mut line, mut puts) = (String::new(), 0);
    while input.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["put", _, _, _, bytes] => {
                let mut body = vec![0; bytes.parse::<usize>().unwrap() + 2];
                input.read_exact(&mut body)?;
                puts += 1;
                all_puts.fetch_add(1, Ordering::Relaxed);
                match manner {
                    Manner::ClosesAfter(limit) if puts > limit => {
                        // If input were left unread, the kernel would reset the connection instead.
                        output.shutdown(Shutdown::Write)?;
                        std::io::copy(&mut input, &mut std::io::sink())?;
                        return Ok(());
                    }
                    Manner::NonsenseAfter(limit) if puts > limit => output.write_all(b"SERVED 1\r\n")?,
                    Manner::SilentAfter(limit) if puts > limit => {}
                    Manner::TooBigAfter(limit) if puts > limit => output.write_all(b"JOB_TOO_BIG\r\n")?,
                    Manner::OutOfMemoryEveryTenth if puts % 10 == 0 => {
                        output.write_all(b"OUT_OF_MEMORY\r\n")?
                    }
                    _ => {
                        body[20] ^= u8::from(manner == Manner::AlteredBodies);
                        jobs.push_back((puts, body));
                        write!(output, "INSERTED {puts}\r\n")?;
                    }
                }
            }
            ["reserve"] | ["reserve-with-timeout", "0"] => match jobs.pop_front() {
                Some((id, body)) => {
                    let head = format!("RESERVED {id} {}\r\n", body.len() - 2);
                    output.write_all(&[head.as_bytes(), &body].concat())?;
                }
                None => output.write_all(b"TIMED_OUT\r\n")?,
            },
            ["delete", _] => output.write_all(b"DELETED\r\n")?,
            ["use", tube] => write!(output, "USING {tube}\r\n")?,
            ["watch" | "ignore", _] => output.write_all(b"WATCHING 1\r\n")?,
            ["list-tubes"] => output.write_all(b"OK 14\r\n---\n- default\n\r\n")?,
            _ => output.write_all(b"UNKNOWN_COMMAND\r\n")?,
        }
        line.clear();
    }
    Ok(())
}

fn bench(addr: &str, options: &str) -> Command {
    let mut command = beanring_bench();
    command.args(["--addr", addr]).args(options.split_ascii_whitespace());
    command
}

pub fn run(addr: &str, options: &str) -> Output {
    bench(addr, options).output().unwrap()
}

fn stderr(output: &Output) -> String {
    // If the machine refuses io_uring, a first line says so.
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines()
        .filter(|line| !line.contains("io_uring is refused"))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Asserts one line of output that is not empty and has no results.
fn fails(addr: &str, options: &str, says: &str) {
    let output = run(addr, &format!("{options} --json -"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = stderr(&output);
    assert!(text.lines().count() == 1 && text.contains(says), "{text}");
}

#[test]
fn a_server_that_answers_well() {
    for io in ["auto", "epoll"] {
        let addr = fake(Manner::Right);
        let output = run(&addr, &format!("put cycle -c 3 -d 4 -n 500 --json - --io {io}"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report = json(&output);
        for row in [0, 1] {
            assert_eq!(report["rows"][row]["operations"], 500);
            assert_eq!(report["rows"][row]["errors"], 0);
        }
        assert_eq!(report["sent"]["put"], 1000);
        assert_eq!(report["sent"]["reserve"], 500);
    }
}

#[test]
fn wrong_answers_are_counted_and_shown_once() {
    let output = run(&fake(Manner::AlteredBodies), "cycle -c 2 -n 50 --json -");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["rows"][0]["errors"], 50);
    assert_eq!(stderr(&output).matches("other bytes than were put").count(), 1);

    let output = run(&fake(Manner::OutOfMemoryEveryTenth), "put -c 1 -n 50 --json -");
    assert_eq!(output.status.code(), Some(1));
    let row = &json(&output)["rows"][0];
    assert_eq!((&row["errors"], &row["operations"]), (&5.into(), &45.into()));
    assert_eq!(stderr(&output).matches("put was answered OUT_OF_MEMORY").count(), 1);
}

#[test]
fn no_figures_from_a_server_that_fails() {
    for io in ["auto", "epoll"] {
        let options = format!("put -c 2 -d 2 -n 1000 --timeout 300ms --io {io}");
        fails(&fake(Manner::ClosesAfter(20)), &options, "closed a connection");
        fails(&fake(Manner::NonsenseAfter(20)), &options, "the answer to put makes no sense: \"SERVED 1\"");
        fails(&fake(Manner::SilentAfter(20)), &options, "no answer for 0.3 s");
        fails(&fake(Manner::TooBigAfter(20)), &options, "the server answers JOB_TOO_BIG to put");
    }
}

#[test]
fn nobody_there() {
    let (_held, port) = unused_address::port();
    fails(&format!("127.0.0.1:{port}"), "put", "cannot connect");
    fails("unix:/nonexistent/socket", "put", "cannot connect");
    fails("127.0.0.1", "put", "HOST:PORT or unix:PATH");
    fails(&fake(Manner::Right), "put --pid 4294967295", "--pid 4294967295");
}

#[test]
fn a_file_that_cannot_be_written_is_found_before_the_load() {
    let begin = Instant::now();
    for path in ["/nonexistent/report.json", "/"] {
        let output = run(&fake(Manner::Right), &format!("put -t 60s --json {path}"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty() && stderr(&output).contains(path), "{output:?}");
    }
    assert!(begin.elapsed() < Duration::from_secs(30));

    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kept.json");
    std::fs::write(&path, "earlier").unwrap();
    let options = format!("put -n 10 --timeout 300ms --json {}", path.display());
    assert_eq!(run(&fake(Manner::ClosesAfter(0)), &options).status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "earlier");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(run(&fake(Manner::ClosesAfter(0)), &options).status.code(), Some(1));
    assert!(!path.exists(), "no run, no file");
}

#[test]
fn bad_options_are_named() {
    for (options, says) in [("delivery -b 8", "16 bytes"), ("put -n 5 -t 1s", "--duration"), ("fly", "fly")] {
        let output = run("127.0.0.1:1", options);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(says), "{output:?}");
    }
}

/// Sends the signal after this number of `put`s.
fn interrupted(manner: Manner, options: &str, puts: u64, signal: Signal) -> Output {
    let (addr, count) = counting_fake(manner);
    let child = bench(&addr, &format!("{options} --json -"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait::until("there are many puts", || count.load(Ordering::Relaxed) >= puts);
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    output
}

#[test]
fn an_interrupt_shows_what_was_measured() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let output = interrupted(Manner::Right, "put -c 2 -t 60s --warm-up 0", 1000, signal);
        let report = json(&output);
        assert_eq!(report["interrupted"], true);
        assert!(report["rows"][0]["operations"].as_u64().unwrap() > 0);
        assert!(report["rows"][0]["seconds"].as_f64().unwrap() < 30.0);
        assert!(stderr(&output).contains("INTERRUPTED"));
    }
}

#[test]
fn a_schedule_beyond_the_server_ends() {
    let begin = Instant::now();
    let output = run(&fake(Manner::Right), "cycle -c 2 -t 500ms --warm-up 0 -r 3000000 --json -");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(begin.elapsed() < Duration::from_secs(20));
    let report = json(&output);
    let row = &report["rows"][0];
    assert_eq!((&row["stopped_early"], &row["interrupted"]), (&true.into(), &false.into()));
    assert!(row["operations"].as_u64().unwrap() < 1_500_000);
    assert!(stderr(&output).contains("cannot keep up with --rate"));

    fails(
        &fake(Manner::Right),
        "cycle -c 2 -t 100ms --warm-up 200ms -r 100000000",
        "cannot keep up with --rate",
    );
}

#[test]
fn an_interrupt_drops_what_is_due_and_has_not_begun() {
    let begin = Instant::now();
    let options = "cycle -c 2 -t 60s --warm-up 0 -r 100000000";
    let output = interrupted(Manner::Right, options, 1000, Signal::SIGINT);
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert!(json(&output)["rows"][0]["operations"].as_u64().unwrap() > 0);
}

#[test]
fn an_interrupt_waits_for_a_silent_server_but_not_long() {
    let options = "cycle -c 2 -n 1000 --timeout 60s --no-cleanup";
    // The last put of each connection has no reply.
    let output = interrupted(Manner::SilentAfter(20), options, 2 * 21, Signal::SIGINT);
    assert_eq!(json(&output)["rows"][0]["operations"], 40);
}

/// Starts Debian's beanstalkd, if it is installed.
fn beanstalkd() -> Option<(ServerProcess, String)> {
    let Some(program) = installed() else {
        println!("skipped: the bench tool against beanstalkd, because that is not installed");
        return None;
    };
    let (server, _) = ServerProcess::start(&program, Transport::Tcp, &[""; 0]);
    let addr = server.address().to_string();
    Some((server, addr))
}

/// Runs `options`, compares every counter of the report with the server's, and asserts that the server is empty.
fn agrees(options: &str, check: impl Fn(&Value)) {
    let Some((server, addr)) = beanstalkd() else { return };
    let output = run(&addr, &format!("{options} --pid {} --json -", server.pid()));
    assert_eq!(output.status.code(), Some(0), "{options}: {output:?}");
    let report = json(&output);
    let stats = server.client().stats();
    for (name, count) in report["sent"].as_object().unwrap() {
        assert_eq!(number(&stats, &format!("cmd-{name}")), count.as_u64().unwrap(), "{options}: {name}");
    }
    assert_eq!(number(&stats, "total-jobs"), report["sent"]["put"].as_u64().unwrap(), "{options}");
    for state in ["ready", "reserved", "delayed", "buried"] {
        assert_eq!(number(&stats, &format!("current-jobs-{state}")), 0, "{options}");
    }
    assert_eq!(number(&stats, "current-tubes"), 1, "{options}");
    assert!(report["rows"][0]["server"]["rss_kib_after"].as_u64().unwrap() > 0);
    check(&report);
}

#[test]
fn each_thread_of_the_server_is_reported() {
    let scratch = Scratch::new("bench-threads");
    // This driver leaves durable writes to a thread.
    let log = scratch.0.to_str().expect("the path is text");
    let (server, _client) = serve(Transport::Tcp, &["--io", "epoll", "-b", log, "-f", "0"]);
    let options = format!("put -n 2000 -c 8 --pid {} --json -", server.pid());
    let output = run(&server.address().to_string(), &options);
    let row = &json(&output)["rows"][0]["server"];
    let threads = row["threads"].as_array().expect("a list of threads");
    let names: Vec<&str> = threads.iter().filter_map(|thread| thread["name"].as_str()).collect();
    assert_eq!(names[..2], ["beanring", "log"], "{row}");
    let cpu = |value: &Value| value["cpu_us_per_operation"].as_f64().expect("a number");
    let sum: f64 = threads.iter().map(cpu).sum();
    // The threads are read one after the other.
    assert!(sum > cpu(row) / 2.0 && sum < cpu(row) * 2.0, "{row}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("put: cpu of each thread: beanring "),
        "{output:?}"
    );
}

#[test]
fn counts_agree_with_the_server() {
    // The operations of each row, and commands that are sent.
    for (options, rows, sent) in [
        ("put -n 3000 -d 8", &[3000][..], &[][..]),
        ("cycle -n 3000 -d 8 --tubes 5", &[3000], &[("put", 3000), ("reserve", 3000)]),
        ("cycle -n 1000 -d 4 --tubes 20 --tube-by job", &[1000], &[]),
        ("delivery -n 3000 -d 4 --consumers 7", &[3000], &[("delete", 3000)]),
        ("delivery put -n 1000 -r 5000", &[1000, 1000], &[]),
        ("put -t 500ms --warm-up 100ms -r 3000", &[1500], &[]),
        ("fill-drain -n 3001 -d 16", &[3001, 3001], &[]),
        ("put cycle -n 200 -d 3 -b 60000 --io epoll", &[200, 200], &[]),
        ("cycle -n 500 -b 0 --idle 20", &[500], &[]),
    ] {
        agrees(options, |report| {
            for (row, &operations) in rows.iter().enumerate() {
                assert_eq!(report["rows"][row]["operations"], operations, "{options}");
                assert_eq!(report["rows"][row]["errors"], 0, "{options}");
            }
            sent.iter().for_each(|&(name, count)| assert_eq!(report["sent"][name], count, "{options}"));
        });
    }
    agrees("put cycle -t 300ms --warm-up 100ms -d 4", |report| {
        assert!(report["rows"][1]["operations"].as_u64().unwrap() > 0);
    });
}

#[test]
fn a_body_that_the_server_refuses() {
    let Some((_server, addr)) = beanstalkd() else { return };
    fails(&addr, "put -b 70000 -n 10", "the server answers JOB_TOO_BIG to put");
}

#[test]
fn the_queue_is_bounded() {
    let Some((_server, addr)) = beanstalkd() else { return };
    let output = run(&addr, "put -t 60s --warm-up 0 -b 60000 -d 8 --queue-max 100 --json -");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    assert_eq!(report["rows"][0]["stopped_early"], true);
    assert_eq!(report["rows"][0]["operations"], (100 << 20) / (60_000 + 320));
}

#[cfg(feature = "tls")]
#[test]
fn every_workload_over_tls() {
    use beanring_testkit::client::serve;
    use beanring_testkit::process::Address;
    let (server, _client) = serve(Transport::Tls, &[]);
    let Address::Tls(address) = server.address() else { panic!("it has TLS") };
    let (tls, all) = (address.at.to_string(), &address.certificates);
    let ca = all.ca.display();
    let options = format!("--tls --tls-ca {ca} --tls-name localhost");
    for load in [
        "put cycle -c 4 -d 16 -n 2000 --idle 20",
        "put cycle -c 2 -d 8 -b 60000 -n 200 --io epoll",
        "delivery fill-drain -c 4 -n 2000",
        "handshake -c 4 -n 100",
        "resume -c 16 -n 1000",
    ] {
        let output = run(&tls, &format!("{load} {options} --json -"));
        assert!(output.status.success(), "{load}: {}", stderr(&output));
        let handshakes = &json(&output)["rows"][0]["handshakes"];
        let [all, resumed] = ["all", "resumed"].map(|key| handshakes[key].as_u64());
        let expected = match load.split_once(' ') {
            Some(("handshake", _)) => [Some(100), Some(0)],
            // Only the first connection of each lane may have no session.
            Some(("resume", _)) => [Some(1000), resumed.filter(|&count| (984..=1000).contains(&count))],
            _ => [None, None],
        };
        assert_eq!([all, resumed], expected, "{load}: {handshakes}");
    }
    fails(
        &tls,
        &format!("put -n 1 --tls --tls-name localhost --tls-ca {}", all.other_ca.display()),
        "UnknownIssuer",
    );
    fails(&tls, &format!("put -n 1 --tls --tls-ca {ca}"), "not valid for name");
}
