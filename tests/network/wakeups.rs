//! Clients that connect, or send, in the moment in which a server has processed everything before. After more than 128 other
//! wake-ups, kernels lose that of an io_uring then (docs/internals/IO.md).
//!
//! A round meets that moment by chance. `BEANRING_TEST_ROUNDS` sets the number of rounds.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use beanring::io::driver::Driver;
use beanring_testkit::driver;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::random::Random;
use beanring_testkit::stream::Stream;
use nix::sys::signal::Signal;

/// More wake-ups than the kernel counts.
const BURST: usize = 200;

const COMMAND: &[u8] = b"list-tube-used\r\n";
const REPLY: &[u8] = b"USING default\r\n";

/// The time in which a server accepts or receives a burst.
const DELAY_MAX: Duration = Duration::from_micros(2_500);

fn rounds() -> usize {
    env::var("BEANRING_TEST_ROUNDS").map_or(50, |text| text.parse().expect("a number of rounds"))
}

#[test]
fn epoll_serves_the_last_of_a_burst() {
    serve_the_last_of_a_burst(Driver::Epoll);
}

#[cfg(feature = "uring")]
#[test]
fn uring_serves_the_last_of_a_burst() {
    serve_the_last_of_a_burst(Driver::Uring);
}

#[cfg(feature = "tokio-uring")]
#[test]
fn tokio_uring_serves_the_last_of_a_burst() {
    serve_the_last_of_a_burst(Driver::TokioUring);
}

fn serve_the_last_of_a_burst(io: Driver) {
    if !driver::is_allowed(io, "the last of a burst") {
        return;
    }
    for transport in [Transport::Unix, Transport::Tcp] {
        let program = Path::new(program());
        let (server, mut first) = ServerProcess::start(program, transport, &driver::flags(io));
        ask(&mut first);
        let mut random = Random::new(7);
        for round in 0..rounds() {
            let what = format!("{} over {transport:?}, round {round}", io.name());
            pause(&server);
            let _burst: Vec<Stream> = (0..BURST).map(|_| server.connect()).collect();
            resume_and_wait(&server, &mut random);
            let mut last = server.connect();
            last.send(COMMAND);
            expect(&mut last, REPLY.len(), &format!("the last connection, {what}"));

            pause(&server);
            let input = COMMAND.repeat(BURST / COMMAND.len() + 1);
            let (end, burst) = input.split_last().expect("the input is not empty");
            burst.chunks(1).for_each(|byte| first.send(byte));
            resume_and_wait(&server, &mut random);
            first.send(&[*end]);
            expect(&mut first, input.len() / COMMAND.len() * REPLY.len(), &format!("the last byte, {what}"));
        }
        let repairs = stat(&mut first, "io-self-check-repairs");
        println!("{}, {transport:?}: {repairs} repairs in {} rounds", io.name(), rounds());
    }
}

/// Stops the process, and waits until it has stopped.
fn pause(server: &ServerProcess) {
    server.signal(Signal::SIGSTOP);
    let started = Instant::now();
    let stat = || fs::read_to_string(format!("/proc/{}/stat", server.pid())).expect("the process runs");
    while !stat().rsplit(") ").next().is_some_and(|fields| fields.starts_with('T')) {
        assert!(started.elapsed() < REPLY_PATIENCE, "the process stops");
        thread::sleep(Duration::from_micros(100));
    }
}

fn resume_and_wait(server: &ServerProcess, random: &mut Random) {
    let delay = Duration::from_nanos(random.below(DELAY_MAX.as_nanos() as usize) as u64);
    server.signal(Signal::SIGCONT);
    thread::sleep(delay);
}

fn ask(client: &mut Stream) {
    client.send(COMMAND);
    expect(client, REPLY.len(), "the first");
}

fn expect(client: &mut Stream, bytes: usize, what: &str) {
    let mut reply = Vec::new();
    while reply.len() < bytes {
        match client.receive(REPLY_PATIENCE) {
            Received::Bytes(more) => reply.extend(more),
            other => panic!("{what}: {other:?} after {} of {bytes} bytes", reply.len()),
        }
    }
    assert!(reply.chunks(REPLY.len()).all(|one| one == REPLY), "{what}");
}

fn stat(client: &mut Stream, key: &str) -> String {
    client.send(b"stats\r\n");
    let mut reply = String::new();
    while !reply.contains("io-self-check-repairs") || !reply.ends_with("\n\r\n") {
        match client.receive(REPLY_PATIENCE) {
            Received::Bytes(more) => reply += &String::from_utf8(more).expect("UTF-8"),
            other => panic!("{other:?}"),
        }
    }
    let line = reply.lines().find_map(|line| line.strip_prefix(key)).expect("the key is in the statistics");
    line.trim_start_matches(": ").to_owned()
}
