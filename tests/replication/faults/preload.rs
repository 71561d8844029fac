//! Jobs that are there before the faults: a queue of the size that a take-over is judged by.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::place::{Place, rounds};

/// The tube of these jobs. Clients work in another one.
const TUBE: &str = "preloaded";

const CONNECTIONS: usize = 8;
const IN_FLIGHT: usize = 500;

/// How long a server may take to follow all of them.
const PATIENCE: Duration = Duration::from_secs(300);

/// The number of jobs that a run has in the queue beforehand.
pub fn jobs() -> usize {
    rounds("JOBS", 0)
}

/// Puts this number of jobs into the queue, and waits until all servers have followed them.
pub fn put(place: &Place, jobs: usize) {
    if jobs == 0 {
        return;
    }
    let started = Instant::now();
    let servers = place.addresses();
    let put_some = |number: usize| {
        let stream = TcpStream::connect(servers[number % servers.len()]).expect("it listens");
        let mut stream = BufReader::new(stream);
        let mut left = jobs / CONNECTIONS + usize::from(number < jobs % CONNECTIONS);
        let mut line = String::new();
        stream.get_mut().write_all(format!("use {TUBE}\r\n").as_bytes()).expect("it is open");
        stream.read_line(&mut line).expect("it replies");
        while left > 0 {
            let some = left.min(IN_FLIGHT);
            let text = format!("put 0 0 60 32\r\n{:032}\r\n", left).repeat(some);
            stream.get_mut().write_all(text.as_bytes()).expect("it is open");
            for _ in 0..some {
                line.clear();
                stream.read_line(&mut line).expect("it replies");
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
        assert!(started.elapsed() < PATIENCE, "not all servers follow\n{}", place.logs());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that all jobs of [`put`] are left.
pub fn check(place: &Place, jobs: usize) {
    if jobs > 0 {
        let count = place.count_of(TUBE);
        assert_eq!(count, jobs, "preloaded jobs are left\n{}", place.logs());
    }
}
