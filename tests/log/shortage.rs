//! The job log works while connections use every descriptor that the server may open.

use std::process::Command;

use beanring_testkit::client::{launch, put};
use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::stream::Stream;
use beanring_testkit::wait;

use super::common::{Case, MODES, cases, in_parallel};

const DESCRIPTORS: usize = 64;

/// Jobs per batch: several segments of the smallest size.
const JOBS: usize = 100;
const ROUNDS: usize = 10;

#[test]
fn descriptors_are_reserved_for_the_job_log() {
    in_parallel(cases("a log without descriptors", &MODES), |case| fill_segments_without_descriptors(&case));
}

fn fill_segments_without_descriptors(case: &Case) {
    let dir = Scratch::in_memory("shortage");
    let flags = ["-s", "65536"];
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\""), program()]);
    let (mut server, mut client) = launch(limited, &dir.0, case.io, &[case.mode, &flags].concat());
    client.expect("use first\r\n", "USING first");
    // Clients connect and disconnect all the time, so that a connection takes each descriptor that becomes free.
    let mut crowd: Vec<Stream> = (0..DESCRIPTORS).map(|_| server.connect()).collect();
    wait::until("all descriptors are in use", || server.descriptors() >= DESCRIPTORS);
    let command = put(0, 0, &"z".repeat(4000));
    for round in 0..ROUNDS {
        let puts = client.ask_all(vec![command.clone(); JOBS]);
        let ids = puts[1..].iter().map(|(line, _)| line.strip_prefix("INSERTED ").expect("there is space"));
        client.expect_all(ids.map(|id| format!("delete {id}\r\n")), "DELETED");
        for place in crowd.iter_mut().skip(round % 8).step_by(8) {
            *place = server.connect();
        }
    }
    server.stop();
    drop(server);
    let (_server, mut client) = case.start(&dir.0, &flags);
    assert_eq!(client.stat("current-jobs-ready"), ROUNDS as u64);
}
