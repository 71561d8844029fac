//! A job log that was closed: damage to its last records is damage, and not a torn write.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::client::{put, start};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait;
use serde_json::Value;

use super::common::{FIRST, MODES, bytes_read, cases, change, in_parallel, refusal, remove_marks, tool};

const FLAGS: [&str; 4] = ["-s", "65536", "-z", "1000"];
const BODY: &str = "the body of the last job";

/// The frame of a record (32 bytes) and the fixed fields of a job (60 bytes), before the name of the tube.
const BEFORE_BODY: usize = 32 + 60 + "default".len();

/// The kinds of all records in order, without padding.
fn kinds(dir: &Path) -> Vec<String> {
    let lines = tool("dump", &[dir]).succeeds("").out;
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let kinds = lines.map(|line| line["kind"].as_str().expect("a kind").to_owned());
    kinds.filter(|kind| kind != "padding" && kind != "segment").collect()
}

/// Returns the place of the last job's record, and of its body.
fn place_of_last(bytes: &[u8]) -> (usize, usize) {
    let body = bytes.windows(BODY.len()).rposition(|window| window == BODY.as_bytes());
    let body = body.expect("the job is in the first segment");
    (body - BEFORE_BODY, body)
}

/// Flips a bit in the last job's body. Returns the offset of its record.
fn damage(dir: &Path) -> usize {
    let mut record = 0;
    change(&dir.join(FIRST), |bytes| {
        let body;
        (record, body) = place_of_last(bytes);
        bytes[body] ^= 4;
    });
    record
}

fn assert_refused_when_damaged(dir: &Path) {
    let offset = damage(dir);
    let message = refusal(dir, &["--io", "epoll"], 1);
    assert!(message.contains(&format!("{FIRST}: checksum mismatch at offset {offset}")), "{message}");
    tool("check", &[dir]).fails(1, "").prints(&format!("{FIRST}:{offset}: "));
}

#[test]
fn after_a_clean_stop() {
    in_parallel(cases("a clean stop", &MODES), |case| {
        let scratch = Scratch::in_memory("a-clean-stop");
        // A start and a stop without a change add no record.
        for command in [put(0, 0, BODY), "peek 1\r\n".to_owned()] {
            let (mut server, mut client) = case.start(&scratch.0, &FLAGS);
            let line = client.ask(&command).0;
            assert!(["INSERTED 1", &format!("FOUND 1 {}", BODY.len())].contains(&&*line), "{line}");
            server.stop();
            assert_eq!(kinds(&scratch.0), ["job", "closed"]);
            tool("check", &[&scratch.0]).succeeds("");
        }
        assert_refused_when_damaged(&scratch.0);
    });
}

/// It has nothing to protect, so a client that comes late finds the log as it began.
#[test]
fn a_new_log_stays_open() {
    let scratch = Scratch::in_memory("a-new-log");
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &FLAGS);
    thread::sleep(Duration::from_millis(1500));
    client.expect(&put(0, 0, BODY), "INSERTED 1");
    server.stop();
    assert_eq!(kinds(&scratch.0), ["job", "closed"]);
}

#[test]
fn after_a_while() {
    in_parallel(cases("an idle server", &MODES[..2]), |case| {
        let scratch = Scratch::in_memory("an-idle-server");
        let log = scratch.dir("log");
        let (mut server, mut client) = case.start(&log, &FLAGS);
        client.expect(&put(0, 0, BODY), "INSERTED 1");
        // The server uses the log, so the tool reads a copy.
        let mut copies = 0;
        let mut is_closed = || {
            copies += 1;
            kinds(&scratch.copy(&log, &copies.to_string())) == ["job", "closed"]
        };
        thread::sleep(Duration::from_secs(1));
        wait::until("the log is closed", &mut is_closed);
        // One record per idle time.
        thread::sleep(Duration::from_millis(2500));
        assert!(is_closed());
        server.kill();
        tool("check", &[&log]).succeeds("");
        assert_refused_when_damaged(&log);
    });
}

/// Puts jobs with these bodies, and kills the server.
fn killed(name: &str, flags: &[&str], bodies: &[&str]) -> Scratch {
    let scratch = Scratch::in_memory(name);
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &[&FLAGS, flags].concat());
    for (id, body) in (1..).zip(bodies) {
        client.expect(&put(0, 0, body), &format!("INSERTED {id}"));
    }
    server.kill();
    scratch
}

/// Damage that looks like a torn write is discarded, and `check` reports it.
#[test]
fn before_it_is_closed() {
    let scratch = killed("open", &["-f", "0"], &[BODY]);
    assert_eq!(kinds(&scratch.0), ["job"], "it was killed at once");
    tool("check", &[&scratch.0]).succeeds("");
    remove_marks(&scratch.0);
    let place = format!("{FIRST}:{}", damage(&scratch.0));
    tool("check", &[&scratch.0]).fails(1, "discards").fails(1, &place);
    let (_server, mut client) = start(&scratch.0, Driver::Epoll, &FLAGS);
    client.expect("peek 1\r\n", "NOT_FOUND");
}

/// The first file of a log has no records of an earlier use.
#[test]
fn discarded_bytes_that_are_no_record_are_reported_once() {
    let scratch = killed("unlike", &["-F"], &["first", BODY]);
    let log = &*scratch.0;
    let bytes = fs::read(scratch.join(FIRST)).expect("a segment");
    let (begin, body) = place_of_last(&bytes);
    // The frame alone, and all of the record.
    for until in [begin + 32, body + BODY.len()] {
        let mut damaged = bytes.clone();
        damaged[begin..until].fill(0xee);
        fs::write(scratch.join(FIRST), damaged).expect("a segment");
        // Those of the server below would show that it went on from here.
        remove_marks(log);
        tool("check", &[log]).fails(1, "discards").fails(1, &format!("{FIRST}:{begin}"));
        tool("salvage", &[log, &Scratch::in_memory("unlike-saved").0]).fails(3, "");
        let (mut server, mut client) = start(log, Driver::Epoll, &[&FLAGS[..], &["-F"]].concat());
        client.expect("peek 1\r\n", "FOUND 1 5");
        client.expect("peek 2\r\n", "NOT_FOUND");
        server.kill();
        tool("check", &[log]).succeeds("");
    }
}

#[test]
fn check_reports_a_flipped_bit_anywhere_in_the_last_record() {
    let scratch = killed("bits", &["-f", "5"], &[BODY]);
    let bytes = fs::read(scratch.join(FIRST)).expect("a segment");
    let (begin, body) = place_of_last(&bytes);
    assert_eq!(begin, 4096);
    for at in begin..body + BODY.len() + 2 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(scratch.join(FIRST), damaged).expect("a segment");
        let ended = tool("check", &[&scratch.0]);
        assert_eq!(ended.code, Some(1), "byte {at}: {ended:?}");
    }
}

#[test]
fn an_in_place_restart_continues_behind_it() {
    in_parallel(cases("an in-place restart", &MODES), |case| {
        let scratch = Scratch::in_memory("an-in-place-restart");
        let (mut server, mut client) = case.start(&scratch.0, &FLAGS);
        client.expect(&put(0, 0, "first"), "INSERTED 1");
        let mut client = server.restart();
        client.expect(&put(0, 0, BODY), "INSERTED 2");
        server.stop();
        assert_eq!(kinds(&scratch.0), ["job", "closed", "job", "closed"]);
        assert_refused_when_damaged(&scratch.0);
    });
}

#[test]
fn salvage_closes_the_new_log() {
    let scratch = Scratch::in_memory("salvage");
    let (from, to) = (scratch.dir("from"), scratch.join("to"));
    let (mut server, mut client) = start(&from, Driver::Epoll, &FLAGS);
    client.expect(&put(0, 0, BODY), "INSERTED 1");
    server.stop();
    tool("salvage", &[&from, &to]).succeeds("");
    assert_eq!(kinds(&to), ["job", "closed"]);
    assert_refused_when_damaged(&to);
}

/// What the closing record proves is on disk and need not be read again to see whether it is.
#[test]
fn a_start_reads_a_log_once() {
    const JOBS: u64 = 90;
    let scratch = Scratch::in_memory("read-once");
    let flags = ["-s", "10M", "-z", "100k"];
    let (mut server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    let command = put(0, 0, &"r".repeat(100_000));
    (1..=JOBS).for_each(|id| client.expect(&command, &format!("INSERTED {id}")));
    server.stop();

    let (server, mut client) = start(&scratch.0, Driver::Epoll, &flags);
    let read = bytes_read(server.pid());
    assert_eq!(client.stat("current-jobs-ready"), JOBS);
    // The records are nine tenths of the segment, which is searched to its end.
    assert!(read < 13 << 20, "{read} bytes for 10 MiB");
}
