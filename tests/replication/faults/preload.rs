//! Jobs that are there before the faults: a queue of the size that a take-over is judged by.

use std::thread;
use std::time::{Duration, Instant};

use super::place::{PATIENCE, Place};
use super::run::variable;

/// The tube of these jobs. Clients work in another one.
const TUBE: &str = "preloaded";

const CONNECTIONS: usize = 8;
const IN_FLIGHT: usize = 500;

/// Puts the number of jobs that a variable says into the queue, and waits until all servers have followed them. Returns it.
pub fn put(place: &Place) -> usize {
    let jobs = variable("JOBS", 0);
    if jobs == 0 {
        return 0;
    }
    let started = Instant::now();
    let put_some = |number: usize| {
        let mut client = place.nodes[number % place.nodes.len()].connect().expect("it listens");
        client.expect(&format!("use {TUBE}\r\n"), &format!("USING {TUBE}"));
        let mut left = jobs / CONNECTIONS + usize::from(number < jobs % CONNECTIONS);
        while left > 0 {
            let some = left.min(IN_FLIGHT);
            client.send(&format!("put 0 0 60 32\r\n{left:032}\r\n").repeat(some));
            for _ in 0..some {
                let line = client.line().expect("it is open");
                assert!(line.starts_with("INSERTED "), "{line}");
            }
            left -= some;
        }
    };
    place.at_clients(|| {
        thread::scope(|scope| {
            (0..CONNECTIONS).for_each(|number| drop(scope.spawn(move || put_some(number))))
        });
    });
    let took = started.elapsed();
    wait_until_warm(place);
    println!("preloaded {jobs} jobs in {took:.1?}");
    jobs
}

/// Waits until all servers follow the log to its end.
pub fn wait_until_warm(place: &Place) {
    let started = Instant::now();
    let is_warm = |at: usize| {
        // It grows from the start of a server until it has read everything once.
        let lag = place.nodes[at].metric("replication_lag_seconds");
        let epoch = place.nodes[at].metric("replication_epoch");
        lag.is_some_and(|lag| lag < 0.2) && epoch.is_some_and(|epoch| epoch > 0.0)
    };
    let all_are_warm = || place.at_clients(|| (0..place.nodes.len()).all(is_warm));
    // A server that has just started shows a short lag too.
    while !(all_are_warm() && {
        thread::sleep(Duration::from_millis(400));
        all_are_warm()
    }) {
        assert!(started.elapsed() < PATIENCE, "not all servers follow");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that all jobs of [`put`] are left.
pub fn check(place: &Place, jobs: usize) {
    if jobs > 0 {
        let count = place.count_of(TUBE);
        assert_eq!(count, jobs, "preloaded jobs are left");
    }
}
