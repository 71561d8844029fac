//! The job log works while connections use every descriptor that the server may open.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{launch, put, start};
use beanring_testkit::driver;
use beanring_testkit::process::{REPLY_PATIENCE, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::stream::Stream;
use nix::sys::signal::Signal;

const DESCRIPTORS: usize = 64;

/// Jobs per batch: several segments of the smallest size.
const JOBS: usize = 100;
const ROUNDS: usize = 10;

#[test]
fn descriptors_are_reserved_for_the_job_log() {
    for &io in Driver::ALL.iter().filter(|&&io| driver::is_allowed(io, "a log without descriptors")) {
        for mode in [&["-f", "0"][..], &["-f", "10"], &["-F"]] {
            println!("{} {mode:?}", io.name());
            fill_segments_without_descriptors(io, &[mode, &["-s", "65536"]].concat());
        }
    }
}

fn fill_segments_without_descriptors(io: Driver, flags: &[&str]) {
    let dir = Scratch::new("shortage");
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\""), program()]);
    let (mut server, mut client) = launch(limited, &dir.0, io, flags);
    client.expect("use first\r\n", "USING first");
    // Clients connect and disconnect all the time, so that a connection takes each descriptor that becomes free.
    let mut crowd: Vec<Stream> = (0..DESCRIPTORS).map(|_| server.connect()).collect();
    let started = Instant::now();
    while server.descriptors() < DESCRIPTORS {
        assert!(started.elapsed() < REPLY_PATIENCE, "{} descriptors are in use", server.descriptors());
        thread::sleep(Duration::from_millis(5));
    }
    let body = "z".repeat(4000);
    let mut kept = 0;
    for round in 0..ROUNDS {
        client.send(&put(0, 0, &body).repeat(JOBS));
        let line = |line: Option<String>| line.expect("the server runs");
        let ids: Vec<String> = (0..JOBS).map(|_| line(client.line()).replace("INSERTED ", "")).collect();
        ids[1..].iter().for_each(|id| client.send(&format!("delete {id}\r\n")));
        (1..JOBS).for_each(|_| assert_eq!(line(client.line()), "DELETED"));
        kept += 1;
        for place in crowd.iter_mut().skip(round % 8).step_by(8) {
            *place = server.connect();
        }
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    drop(server);
    let (_server, mut client) = start(&dir.0, io, flags);
    assert_eq!(client.stat("current-jobs-ready"), kept);
}
