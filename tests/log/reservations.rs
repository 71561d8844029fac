//! `--keep-reservations`: a reserved job stays reserved after a restart, and any client may finish it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring::wal::segment::{FORMAT, FORMAT_WITH_RESERVATIONS};
use beanring_testkit::client::{Client, start};
use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, delete, post};
use beanring_testkit::process::ServerProcess;
use beanring_testkit::scratch::{Scratch, contents, secret};
use beanring_testkit::statistics::{field, number};
use beanring_testkit::wait;
use nix::sys::signal::Signal;

use super::common::{in_parallel, tool};

const KEEP: [&str; 6] = ["--keep-reservations", "-f0", "-s", "65536", "-z", "1000"];

/// The format in the header of the newest segment.
fn newest_format(dir: &Path) -> u32 {
    let mut headers = contents(dir)
        .into_iter()
        .filter(|(name, bytes)| name.starts_with("log.") && bytes.starts_with(b"beanring log"));
    let header = headers.next_back().expect("a segment").1;
    u32::from_le_bytes(header[16..20].try_into().expect("four bytes"))
}

fn job(client: &mut Client, id: u64) -> String {
    client.ask(&format!("stats-job {id}\r\n")).1
}

fn state(client: &mut Client, id: u64) -> String {
    field(&job(client, id), "state").to_owned()
}

/// Puts jobs into the used tube with these times to run, and reserves them.
fn reserved(client: &mut Client, ttrs: &[u32]) {
    for (id, ttr) in (1..).zip(ttrs) {
        client.expect(&format!("put 0 0 {ttr} 1\r\nx\r\n"), &format!("INSERTED {id}"));
        client.expect("reserve\r\n", &format!("RESERVED {id} 1"));
    }
}

/// Ends the server by this signal and starts another, except that SIGUSR2 makes it restart in place.
fn again(
    mut server: ServerProcess,
    signal: Signal,
    dir: &Path,
    io: Driver,
    flags: &[&str],
) -> (ServerProcess, Client) {
    if signal == Signal::SIGUSR2 {
        let client = server.restart();
        return (server, client);
    }
    server.signal(signal);
    server.wait();
    start(dir, io, flags)
}

#[test]
fn any_client_may_finish_a_job_that_was_reserved_before_a_restart() {
    let signals = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGUSR2];
    in_parallel(
        driver::allowed("reservations").flat_map(|io| signals.map(|signal| (io, signal))),
        finish_jobs,
    );
}

fn finish_jobs((io, signal): (Driver, Signal)) {
    let scratch = Scratch::in_memory("reservations");
    let (server, mut worker) = start(&scratch.0, io, &KEEP);
    reserved(&mut worker, &[60; 5]);
    let (server, mut one) = again(server, signal, &scratch.0, io, &KEEP);
    for id in 1..=5 {
        let stats = job(&mut one, id);
        assert_eq!((field(&stats, "state"), field(&stats, "reserves")), ("reserved", "1"));
        assert!((50..=60).contains(&number(&stats, "time-left")), "{stats}");
    }
    let counts = ["current-jobs-reserved", "current-connections", "current-workers", "job-timeouts"];
    assert_eq!(counts.map(|key| one.stat(key)), [5, 1, 0, 0]);
    assert_eq!(number(&one.ask("stats-tube default\r\n").1, "current-using"), 1);
    assert_eq!(one.ask("list-jobs default reserved 0 9\r\n").1.matches("- {id: ").count(), 5);
    for (command, reply) in [
        ("peek-reserved", "FOUND 1 1"),
        ("reserve-with-timeout 0", "TIMED_OUT"),
        ("reserve-job 1", "NOT_FOUND"),
        ("delete 1", "DELETED"),
        ("release 2 7 0", "RELEASED"),
        ("bury 3 0", "BURIED"),
        ("touch 4", "TOUCHED"),
    ] {
        one.expect(&format!("{command}\r\n"), reply);
    }
    // Now it is that client's, and as if it had reserved it.
    let mut other = server.client();
    other.expect("delete 4\r\n", "NOT_FOUND");
    other.expect("touch 4\r\n", "NOT_FOUND");
    other.expect("touch 5\r\n", "TOUCHED");
    drop(one);
    wait::until("a disconnect returns the job", || state(&mut other, 4) != "reserved");
    other.expect("reserve\r\n", "RESERVED 4 1");
    other.expect("reserve\r\n", "RESERVED 2 1");
    // A second restart finds what the first clients have made of it.
    let (_server, mut last) = again(server, signal, &scratch.0, io, &KEEP);
    assert_eq!(last.ask("stats-job 1\r\n").0, "NOT_FOUND");
    let states = [2, 3, 4, 5].map(|id| state(&mut last, id));
    assert_eq!(states, ["reserved", "buried", "reserved", "reserved"]);
    last.expect("delete-batch 2 3 4 5\r\n", "DELETED_BATCH 4 0");
}

#[test]
fn a_reservation_ends_at_its_time_also_while_no_server_runs() {
    let scratch = Scratch::in_memory("reservations-end");
    let (server, mut worker) = start(&scratch.0, Driver::Epoll, &KEEP);
    reserved(&mut worker, &[1, 3, 60]);
    worker.expect("tube-config default max-attempts 1\r\n", "CONFIGURED");
    // Its worker loses the first job, which is buried after its only attempt.
    wait::until("the reservation ends", || state(&mut worker, 1) == "buried");
    worker.expect("touch 2\r\n", "TOUCHED");
    worker.expect("put 0 0 1 1\r\nx\r\n", "INSERTED 4");
    worker.expect("reserve\r\n", "RESERVED 4 1");
    let (server, mut one) = again(server, Signal::SIGKILL, &scratch.0, Driver::Epoll, &KEEP);
    one.expect("tube-config default max-attempts 0\r\n", "CONFIGURED");
    // The touch has moved the end of the reservation.
    let begin = Instant::now();
    assert!(number(&job(&mut one, 2), "time-left") >= 1);
    one.expect("reserve-job 2\r\n", "NOT_FOUND");
    drop(server);
    thread::sleep(Duration::from_millis(1200));
    let (_server, mut two) = start(&scratch.0, Driver::Epoll, &KEEP);
    let stats = job(&mut two, 4);
    assert_eq!((field(&stats, "state"), field(&stats, "timeouts")), ("ready", "1"), "{stats}");
    assert_eq!(two.stat("job-timeouts"), 1);
    two.expect("reserve\r\n", "RESERVED 4 1");
    two.expect("delete 4\r\n", "DELETED");
    two.expect("reserve-with-timeout 5\r\n", "RESERVED 2 1");
    assert!(begin.elapsed() >= Duration::from_millis(1500), "not before its time");
    assert_eq!(two.stat("job-timeouts"), 2);
    assert_eq!(state(&mut two, 3), "reserved");
}

#[test]
fn without_the_flag_a_reserved_job_is_ready_after_a_restart() {
    let scratch = Scratch::in_memory("reservations-off");
    let (server, mut worker) = start(&scratch.0, Driver::Epoll, &KEEP[1..]);
    reserved(&mut worker, &[60]);
    assert_eq!(newest_format(&scratch.0), FORMAT);
    let (server, mut one) = again(server, Signal::SIGTERM, &scratch.0, Driver::Epoll, &KEEP);
    let stats = job(&mut one, 1);
    assert_eq!((field(&stats, "state"), field(&stats, "reserves")), ("ready", "0"), "{stats}");
    one.expect("reserve\r\n", "RESERVED 1 1");
    assert_eq!(newest_format(&scratch.0), FORMAT_WITH_RESERVATIONS);
    let (server, mut two) = again(server, Signal::SIGTERM, &scratch.0, Driver::Epoll, &KEEP[1..]);
    let stats = job(&mut two, 1);
    let counts = ["state", "reserves", "timeouts", "releases"].map(|key| field(&stats, key));
    assert_eq!(counts, ["ready", "1", "0", "0"], "the flag is gone: {stats}");
    assert_eq!(newest_format(&scratch.0), FORMAT);
    let (_server, mut last) = again(server, Signal::SIGTERM, &scratch.0, Driver::Epoll, &KEEP);
    assert_eq!(state(&mut last, 1), "ready", "the return is in the job log");
}

#[test]
fn other_commands_leave_a_recovered_reservation_alone() {
    let scratch = Scratch::in_memory("reservations-meet");
    let (server, mut worker) = start(&scratch.0, Driver::Epoll, &KEEP);
    worker.expect("put 0 0 60 1 con:c:1 grp:g\r\nx\r\n", "INSERTED 1");
    worker.expect("put 0 0 60 1 con:c:1\r\nx\r\n", "INSERTED 2");
    worker.expect("put 0 0 60 1 aft:g\r\nx\r\n", "INSERTED 3");
    worker.expect("reserve\r\n", "RESERVED 1 1");
    let (server, mut one) = again(server, Signal::SIGKILL, &scratch.0, Driver::Epoll, &KEEP);
    one.expect("reserve-with-timeout 0\r\n", "TIMED_OUT");
    one.expect("reserve-job 2\r\n", "NOT_FOUND");
    assert_eq!(number(&one.ask("stats-group g\r\n").1, "reserved"), 1);
    one.expect("kick-job 1\r\n", "NOT_FOUND");
    one.expect("move-job 1 other\r\n", "NOT_FOUND");
    one.expect("pause-tube default 9\r\n", "PAUSED");
    one.expect("drain\r\n", "DRAINING");
    let mut taker = server.client();
    taker.send("reserve\r\n");
    one.expect("touch 1\r\n", "TOUCHED");
    one.expect("release 1 0 0\r\n", "RELEASED");
    one.expect("pause-tube default 0\r\n", "PAUSED");
    assert_eq!(taker.reply().expect("a job").0, "RESERVED 1 1");
    let (server, mut two) = again(server, Signal::SIGKILL, &scratch.0, Driver::Epoll, &KEEP);
    let mut waiting = server.client();
    waiting.send("wait-job 1 60\r\n");
    two.expect("flush-tube default\r\n", "FLUSHED 2");
    assert_eq!(state(&mut two, 1), "reserved");
    two.expect("delete 1\r\n", "DELETED");
    assert_eq!(waiting.reply().expect("the job has ended").0, "DELETED");
    assert_eq!(two.stat("current-jobs-reserved"), 0);
}

#[test]
fn with_users_only_those_who_may_consume_finish_a_job() {
    let scratch = Scratch::in_memory("reservations-auth");
    let log = scratch.dir("log");
    let file = scratch.0.join("users.toml");
    secret(
        &file,
        "[users.worker]\ntoken = \"worker-worker-worker\"\nproduce = [\"*\"]\nconsume = [\"*\"]\n\
         [users.producer]\ntoken = \"producer-producer-1\"\nproduce = [\"*\"]\ninspect = [\"*\"]\n",
    );
    let flags = [&KEEP[..], &["--auth", file.to_str().expect("a name in UTF-8")]].concat();
    let (server, mut worker) = start(&log, Driver::Epoll, &flags);
    worker.expect("auth worker-worker-worker\r\n", "AUTHENTICATED");
    reserved(&mut worker, &[60]);
    let (server, mut other) = again(server, Signal::SIGKILL, &log, Driver::Epoll, &flags);
    other.expect("auth producer-producer-1\r\n", "AUTHENTICATED");
    for command in ["touch 1\r\n", "release 1 0 0\r\n", "bury 1 0\r\n", "delete 1\r\n", "delete-batch 1\r\n"]
    {
        other.expect(command, "FORBIDDEN");
    }
    let mut worker = server.client();
    worker.expect("auth worker-worker-worker\r\n", "AUTHENTICATED");
    worker.expect("delete 1\r\n", "DELETED");
}

#[test]
fn the_api_finishes_a_job_too() {
    let scratch = Scratch::in_memory("reservations-http");
    let (log, socket) = (scratch.dir("log"), scratch.join("http"));
    let address = format!("unix:{}", socket.display());
    let flags = [&KEEP[..], &["--http", &address, "--http-allow-writes"]].concat();
    let (server, mut worker) = start(&log, Driver::Epoll, &flags);
    reserved(&mut worker, &[60; 3]);
    let (_server, mut client) = again(server, Signal::SIGKILL, &log, Driver::Epoll, &flags);
    for (request, status) in [
        (post("jobs/1/kick", "{}"), 409),
        (post("jobs/1/bury", "{\"priority\":1}"), 200),
        (post("jobs/2/release", "{\"priority\":1,\"delay\":0}"), 200),
        (delete("jobs/3"), 200),
    ] {
        let response = HttpClient::unix(&socket).ask(&request);
        assert_eq!(response.status, status, "{response:?}");
    }
    assert_eq!([1, 2].map(|id| state(&mut client, id)), ["buried", "ready"]);
    let reserves = [1, 2].map(|id| number(&job(&mut client, id), "reserves"));
    assert_eq!(reserves, [1, 1], "no client has reserved it again");
    assert_eq!(client.ask("stats-job 3\r\n").0, "NOT_FOUND");
}

#[test]
fn the_tools_know_reservations() {
    let scratch = Scratch::in_memory("reservations-tools");
    let [log, copy, saved, binlog] = ["log", "copy", "saved", "binlog"].map(|name| scratch.dir(name));
    let (mut server, mut worker) = start(&log, Driver::Epoll, &KEEP);
    reserved(&mut worker, &[60, 1]);
    tool("backup", &[&log, &copy]).succeeds("");
    server.kill();
    thread::sleep(Duration::from_millis(1100));
    for dir in [&log, &copy] {
        tool("check", &[dir]).succeeds("\n  default: 1 ready, 0 delayed, 0 buried, 1 reserved\n");
    }
    tool("dump", &[&log]).succeeds("\"state\":\"reserved\"").prints("\"reserved_until\":");
    tool("salvage", &[&log, &saved]).succeeds("");
    tool("export", &[&log, &binlog]).succeeds("");
    for (dir, expected) in [(&copy, "reserved"), (&saved, "reserved"), (&binlog, "ready")] {
        let (_server, mut client) = start(dir, Driver::Epoll, &KEEP);
        assert_eq!([1, 2].map(|id| state(&mut client, id)), [expected, "ready"], "{}", dir.display());
    }
}
