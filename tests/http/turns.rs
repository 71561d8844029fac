//! Answers take turns with commands and with each other. The tests count answers in each event-loop iteration and read no clock.

use beanring::server::{Config, HttpAccess, Token};
use beanring_testkit::config::config;
use beanring_testkit::http_client::{page, request};
use beanring_testkit::stepped::Stepped;
use nix::time::{ClockId, clock_gettime};

use super::tubes;

/// As many as may be open, less some for others.
const FLOODING: usize = 60;

/// Answers in one iteration: half of them at once, and as many from the queue.
const ANSWERS_MAX: usize = 70;

/// Counts the new answers of each HTTP connection. Returns their sum.
fn count(server: &mut Stepped, https: &[usize], answered: &mut [usize]) -> usize {
    for (&http, answered) in https.iter().zip(&mut *answered) {
        *answered += String::from_utf8_lossy(server.received(http)).matches("HTTP/1.1 ").count();
        server.received(http).clear();
    }
    answered.iter().sum()
}

#[test]
fn pipelined_requests_are_answered_in_turns_between_commands() {
    let http_access = HttpAccess { token: Token::parse(b"0123456789abcdef"), allow_writes: false };
    for (method, target) in [
        ("HEAD", "/metrics"),
        ("HEAD", "/healthz"),
        ("GET", "/api/v1/server"),
        ("PUT", "/readyz"),
        ("GET", "/none"),
    ] {
        let request = request(method, target, "", None);
        let each = 16 * 1024 / request.len();
        let mut server = Stepped::new(Config { http_access: http_access.clone(), ..config(65_535) });
        let client = server.open();
        server.load(client, &tubes(100, 0));
        let https: Vec<usize> = (0..FLOODING).map(|_| server.open_http()).collect();
        // All of this comes within one event-loop iteration.
        for &http in &https {
            server.send(http, &request.repeat(each));
        }
        let mut answered = [0; FLOODING];
        let mut before = count(&mut server, &https, &mut answered);
        assert!(before <= ANSWERS_MAX, "{target}: {before} answers at once");
        while server.is_busy() {
            server.turn();
            let sum = count(&mut server, &https, &mut answered);
            let new = sum - before;
            assert!((1..=ANSWERS_MAX).contains(&new), "{target}: {new} answers in one iteration");
            before = sum;
            let (least, most) = (answered.iter().min().copied(), answered.iter().max().copied());
            assert!(most <= least.map(|least| least + 2), "{target}: {least:?} to {most:?} answers each");
            server.send(client, b"use default\r\n");
            assert_eq!(std::mem::take(server.received(client)), b"USING default\r\n", "{target}");
        }
        assert_eq!(before, FLOODING * each, "{target}");
        server.server.check();
    }
}

#[test]
fn a_probe_is_answered_soon_beside_connections_that_pipeline() {
    let refill = request("HEAD", "/metrics", "", None).repeat(50);
    let mut server = Stepped::new(config(65_535));
    let https: Vec<usize> = (0..FLOODING).map(|_| server.open_http()).collect();
    let probe = server.open_http();
    let mut answered = [0; FLOODING];
    for _ in 0..100 {
        count(&mut server, &https, &mut answered);
        for (&http, answered) in https.iter().zip(&answered) {
            if !(1..=40).contains(&(answered % 50)) {
                server.send(http, &refill);
            }
        }
        server.received(probe).clear();
        server.send(probe, &page("/healthz"));
        let mut turns = 0;
        while server.received(probe).is_empty() {
            server.turn();
            turns += 1;
            assert!(turns <= 3, "the probe waits for {turns} iterations");
        }
    }
}

/// CPU time of the answers to 2,000 requests, in nanoseconds.
fn cpu_ns(tube_count: usize, target: &str) -> i64 {
    let mut server = Stepped::new(Config { metrics_tubes: u32::MAX, ..config(65_535) });
    let client = server.open();
    server.load(client, &tubes(tube_count, 0));
    let (http, request) = (server.open_http(), request("HEAD", target, "", None));
    let now = || {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the clock is there");
        time.tv_sec() * 1_000_000_000 + time.tv_nsec()
    };
    let begin = now();
    for _ in 0..2000 {
        server.send(http, &request);
    }
    now() - begin
}

#[test]
fn the_answer_to_a_head_does_not_look_at_tubes() {
    for target in ["/metrics", "/api/v1/tubes?sort=ready&offset=100000"] {
        let [some, many] = [2000, 8000].map(|tubes| (0..3).map(|_| cpu_ns(tubes, target)).min());
        assert!(many < some.map(|some| 2 * some), "{target}: {some:?} and {many:?} ns");
    }
}
