//! A job log that was closed: damage to its last records is damage, and not a torn write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{put, start};
use beanring_testkit::driver;
use beanring_testkit::process::{REPLY_PATIENCE, program};
use beanring_testkit::scratch::{Scratch, contents};
use nix::sys::signal::Signal;

const MODES: [&[&str]; 3] = [&["-f", "0"], &["-f", "5"], &["-F"]];
const BODY: &str = "the body of the last job";

/// The frame of a record (32 bytes) and the fixed fields of a job (60 bytes), before the name of the tube.
const BEFORE_BODY: usize = 32 + 60 + "default".len();

fn drivers(what: &str) -> impl Iterator<Item = Driver> {
    Driver::ALL.iter().copied().filter(move |&io| driver::is_allowed(io, what))
}

fn tool(name: &str, dir: &Path) -> Output {
    Command::new(program()).args(["log", name]).arg(dir).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The kinds of all records in order, without padding.
fn kinds(dir: &Path) -> Vec<String> {
    let lines = text(&tool("dump", dir).stdout);
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let kinds = lines.map(|line| line["kind"].as_str().expect("a kind").to_owned());
    kinds.filter(|kind| kind != "padding" && kind != "segment").collect()
}

/// The same from a copy, since a server uses the log.
fn kinds_of_running(dir: &Path) -> Vec<String> {
    let name = dir.file_name().expect("a directory").to_string_lossy();
    let copy = Scratch::new(&format!("copy-of-{name}"));
    contents(dir).into_iter().for_each(|(name, bytes)| fs::write(copy.0.join(name), bytes).expect("a copy"));
    kinds(&copy.0)
}

/// Flips a bit in the last job's body. Returns the place of its record.
fn damage(dir: &Path) -> String {
    for (name, mut bytes) in contents(dir) {
        if let Some(at) = bytes.windows(BODY.len()).rposition(|window| window == BODY.as_bytes()) {
            bytes[at] ^= 4;
            fs::write(dir.join(&name), bytes).expect("a segment");
            return format!("{name}:{}", at - BEFORE_BODY);
        }
    }
    panic!("the job is in no segment");
}

fn refusal(dir: &Path) -> String {
    // timeout(1) ends a server that starts.
    let mut command = Command::new("timeout");
    command.args(["60", program(), "-l", "127.0.0.1", "-p", "0", "--io", "epoll", "-b"]).arg(dir);
    command.stdin(Stdio::null());
    let output = command.output().expect("it ends");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    message
}

fn assert_refused(dir: &Path, what: &str) {
    let place = damage(dir);
    let message = refusal(dir);
    let (file, offset) = place.split_once(':').expect("a file and an offset");
    let mismatch = format!("{file}: checksum mismatch at offset {offset}");
    assert!(message.contains(&mismatch), "{what}: {message}");
    let checked = tool("check", dir);
    assert_eq!(checked.status.code(), Some(1), "{what}");
    assert!(text(&checked.stdout).contains(&format!("{place}: ")), "{what}: {}", text(&checked.stdout));
}

/// Runs a test under each driver and in each of these modes, in parallel. The test gets the name of the combination.
fn in_parallel(
    what: &str,
    modes: &[&'static [&'static str]],
    test: impl Fn(Driver, &[&str], &Scratch, &str) + Sync,
) {
    let drivers: Vec<Driver> = drivers(what).collect();
    thread::scope(|scope| {
        for io in drivers {
            for mode in modes {
                let test = &test;
                scope.spawn(move || {
                    let name = format!("{} {mode:?}", io.name());
                    let scratch =
                        Scratch::new(&format!("{}-{}{}", what.replace(' ', "-"), io.name(), mode.concat()));
                    test(io, mode, &scratch, &name);
                });
            }
        }
    });
}

#[test]
fn after_a_clean_stop() {
    in_parallel("a clean stop", &MODES, |io, mode, scratch, what| {
        let (mut server, mut client) = start(&scratch.0, io, mode);
        client.expect(&put(0, 0, BODY), "INSERTED 1");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
        assert_eq!(kinds(&scratch.0), ["job", "closed"], "{what}");
        assert_eq!(tool("check", &scratch.0).status.code(), Some(0), "{what}");
        // A start and a stop without a change add no record.
        let (mut server, mut client) = start(&scratch.0, io, mode);
        client.expect("peek 1\r\n", &format!("FOUND 1 {}", BODY.len()));
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
        assert_eq!(kinds(&scratch.0), ["job", "closed"], "{what}");
        assert_refused(&scratch.0, what);
    });
}

/// It has nothing to protect, so a client that comes late finds the log as it began.
#[test]
fn a_new_log_stays_open() {
    let scratch = Scratch::new("a-new-log");
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, MODES[0]);
    thread::sleep(Duration::from_millis(1500));
    client.expect(&put(0, 0, BODY), "INSERTED 1");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    assert_eq!(kinds(&scratch.0), ["job", "closed"]);
}

#[test]
fn after_a_while() {
    in_parallel("an idle server", &MODES[..2], |io, mode, scratch, what| {
        let (mut server, mut client) = start(&scratch.0, io, mode);
        client.expect(&put(0, 0, BODY), "INSERTED 1");
        let asked = Instant::now();
        while kinds_of_running(&scratch.0) != ["job", "closed"] {
            assert!(asked.elapsed() < REPLY_PATIENCE, "{what}: {:?}", kinds_of_running(&scratch.0));
            thread::sleep(Duration::from_millis(50));
        }
        // One record per idle time.
        thread::sleep(Duration::from_millis(2500));
        assert_eq!(kinds_of_running(&scratch.0), ["job", "closed"], "{what}");
        server.signal(Signal::SIGKILL);
        server.wait();
        assert_eq!(tool("check", &scratch.0).status.code(), Some(0), "{what}");
        assert_refused(&scratch.0, what);
    });
}

/// Damage that looks like a torn write is discarded, and `check` reports it.
#[test]
fn before_it_is_closed() {
    let scratch = Scratch::new("open");
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &["-f", "0"]);
    client.expect(&put(0, 0, BODY), "INSERTED 1");
    server.signal(Signal::SIGKILL);
    server.wait();
    assert_eq!(kinds(&scratch.0), ["job"], "it was killed at once");
    assert_eq!(tool("check", &scratch.0).status.code(), Some(0));
    let place = damage(&scratch.0);
    let checked = tool("check", &scratch.0);
    assert_eq!(checked.status.code(), Some(1), "{}", text(&checked.stdout));
    let message = text(&checked.stderr);
    assert!(message.contains("discards") && message.contains(&place), "{message}");
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &["-f", "0"]);
    client.expect("peek 1\r\n", "NOT_FOUND");
}

/// The first file of a log has no records of an earlier use.
#[test]
fn discarded_bytes_that_are_no_record_are_reported_once() {
    let scratch = Scratch::new("unlike");
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &["-f", "5", "-s", "65536"]);
    client.expect(&put(0, 0, "first"), "INSERTED 1");
    client.expect(&put(0, 0, BODY), "INSERTED 2");
    server.signal(Signal::SIGKILL);
    server.wait();
    let (name, bytes) =
        contents(&scratch.0).into_iter().find(|(name, _)| name.starts_with("log.")).expect("a log");
    let begin = bytes.windows(BODY.len()).position(|window| window == BODY.as_bytes()).expect("a body");
    let (begin, end) = (begin - BEFORE_BODY, begin + BODY.len());
    // The frame alone, and all of the record.
    for until in [begin + 32, end] {
        let mut damaged = bytes.clone();
        damaged[begin..until].fill(0xee);
        fs::write(scratch.0.join(&name), damaged).expect("a segment");
        let place = format!("{name}:{begin}");
        let checked = tool("check", &scratch.0);
        assert_eq!(checked.status.code(), Some(1), "{}", text(&checked.stdout));
        let message = text(&checked.stderr);
        assert!(message.contains("discards") && message.contains(&place), "{message}");
        let to = Scratch::new("unlike-saved");
        let saved = Command::new(program()).args(["wal", "salvage"]).args([&scratch.0, &to.0]).output();
        assert_eq!(saved.expect("it runs").status.code(), Some(3));
        let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &["-f", "5", "-s", "65536"]);
        client.expect("peek 1\r\n", "FOUND 1 5");
        client.expect("peek 2\r\n", "NOT_FOUND");
        server.signal(Signal::SIGKILL);
        server.wait();
        assert_eq!(tool("check", &scratch.0).status.code(), Some(0), "the start has cleaned up");
    }
}

#[test]
fn check_reports_a_flipped_bit_anywhere_in_the_last_record() {
    let scratch = Scratch::new("bits");
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &["-f", "5", "-s", "65536"]);
    client.expect(&put(0, 0, BODY), "INSERTED 1");
    server.signal(Signal::SIGKILL);
    server.wait();
    let (name, bytes) =
        contents(&scratch.0).into_iter().find(|(name, _)| name.starts_with("log.")).expect("a log");
    let begin = 4096;
    let end = begin + BEFORE_BODY + BODY.len() + 2;
    for at in begin..end {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(scratch.0.join(&name), damaged).expect("a segment");
        assert_eq!(tool("check", &scratch.0).status.code(), Some(1), "byte {at}");
    }
}

#[test]
fn an_in_place_restart_continues_behind_it() {
    in_parallel("an in-place restart", &MODES, |io, mode, scratch, what| {
        let (mut server, mut client) = start(&scratch.0, io, mode);
        client.expect(&put(0, 0, "first"), "INSERTED 1");
        server.signal(Signal::SIGUSR2);
        while client.line().is_some() {}
        let mut client = beanring_testkit::client::Client::new(server.connect());
        client.expect(&put(0, 0, BODY), "INSERTED 2");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
        assert_eq!(kinds(&scratch.0), ["job", "closed", "job", "closed"], "{what}");
        assert_refused(&scratch.0, what);
    });
}

#[test]
fn salvage_closes_the_new_log() {
    let scratch = Scratch::new("salvage");
    let (from, to): (PathBuf, PathBuf) = (scratch.0.join("from"), scratch.0.join("to"));
    fs::create_dir(&from).expect("a new directory");
    let (mut server, mut client) = start(&from, Driver::Epoll, &["-f", "0"]);
    client.expect(&put(0, 0, BODY), "INSERTED 1");
    server.signal(Signal::SIGTERM);
    server.wait();
    let output =
        Command::new(program()).args(["wal", "salvage"]).args([&from, &to]).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(kinds(&to), ["job", "closed"]);
    assert_refused(&to, "salvaged");
}

/// What the closing record proves is on disk and need not be read again to see whether it is.
#[test]
fn a_start_reads_a_log_once() {
    const JOBS: u64 = 90;
    let scratch = Scratch::new("read-once");
    let flags = ["-s", "10M", "-z", "100k"];
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    let body = "r".repeat(100_000);
    (1..=JOBS).for_each(|id| client.expect(&put(0, 0, &body), &format!("INSERTED {id}")));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));

    let (server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    let io = fs::read_to_string(format!("/proc/{}/io", server.pid())).expect("it runs");
    let read: u64 = io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).expect("a number");
    assert_eq!(client.stat("current-jobs-ready"), JOBS);
    // The records are nine tenths of the segment, which is searched to its end.
    assert!(read < 13 << 20, "{read} bytes for 10 MiB");
}
