//! Answers take turns with commands and with each other. The tests count answers in each event-loop iteration and read no clock.

use std::io::IoSlice;

use beanring::server::{Config, Effect, Event, HttpAccess, Peer, PeerKind, Protocol, Server, Service, Token};
use beanring::time::Time;
use beanring::values::ids::ConnId;
use beanring_testkit::client::put;
use beanring_testkit::config::config;
use nix::time::{ClockId, clock_gettime};

use super::NOW;

/// As many as may be open, less some for others.
const FLOODING: usize = 60;

/// Answers in one iteration: half of them at once, and as many from the queue.
const ANSWERS_MAX: usize = 70;

/// A driver without a kernel, which sends everything at once.
pub struct Loop {
    pub server: Server,
    client: ConnId,
    https: Vec<ConnId>,
    /// The bytes sent to the client, and to each HTTP connection.
    replies: Vec<u8>,
    pub answers: Vec<Vec<u8>>,
    /// The number of answers of each HTTP connection.
    answered: Vec<usize>,
}

impl Loop {
    pub fn new(config: Config, https: usize) -> Self {
        let mut server = Server::new(config);
        let client = server.accept(Protocol::Beanstalk);
        let mut bench = Self {
            server,
            client,
            https: Vec::new(),
            replies: Vec::new(),
            answers: Vec::new(),
            answered: Vec::new(),
        };
        for _ in 0..https {
            bench.connect();
        }
        bench
    }

    fn connect(&mut self) -> usize {
        let conn = self.server.accept(Protocol::Http);
        self.server.set_peer(conn, Peer::new(PeerKind::Loopback, "loopback"));
        self.https.push(conn);
        self.answers.push(Vec::new());
        self.answered.push(0);
        self.https.len() - 1
    }

    /// Adds tubes with a job each. Their names begin with t0, t1, t2, and are filled up to this length.
    pub fn add_tubes(&mut self, count: usize, name_bytes: usize) {
        for tube in 0..count {
            let name = format!("t{tube}");
            self.command(&format!("use {name:.<name_bytes$}\r\n{}", put(0, 0, "x")));
            self.turn();
        }
        self.replies.clear();
    }

    pub fn command(&mut self, text: &str) {
        self.server.handle(NOW, Event::Received { conn: self.client, bytes: text.as_bytes() });
        self.carry_out();
    }

    pub fn request(&mut self, from: usize, text: &str) {
        self.server.handle(NOW, Event::Received { conn: self.https[from], bytes: text.as_bytes() });
        self.carry_out();
    }

    pub fn turn(&mut self) {
        self.server.turn(NOW);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Send(conn) => while self.send(conn) {},
                Effect::Pause(_) | Effect::Resume(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, conn: ConnId) -> bool {
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        self.server.outgoing(conn, &mut slices);
        let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        match self.https.iter().position(|&http| http == conn) {
            Some(http) => {
                self.answered[http] += String::from_utf8_lossy(&all).matches("HTTP/1.1 ").count();
                self.answers[http].extend(&all);
            }
            None => self.replies.extend(&all),
        }
        if !all.is_empty() {
            self.server.handle(NOW, Event::Sent { conn, bytes: all.len() });
        }
        !all.is_empty()
    }

    pub fn is_busy(&self) -> bool {
        self.server.next_deadline() == Some(Time::ZERO)
    }

    fn all_answered(&self) -> usize {
        self.answered.iter().sum()
    }
}

fn with_token() -> Config {
    let token = Token::parse(b"0123456789abcdef");
    Config { http_access: HttpAccess { token, allow_writes: false }, ..config(65_535) }
}

#[test]
fn pipelined_requests_are_answered_in_turns_between_commands() {
    for request in ["HEAD /metrics", "HEAD /healthz", "GET /api/v1/server", "PUT /readyz", "GET /none"] {
        let text = format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n");
        let each = 16 * 1024 / text.len();
        let mut bench = Loop::new(with_token(), FLOODING);
        bench.add_tubes(100, 0);
        // All of this comes within one event-loop iteration.
        for http in 0..FLOODING {
            bench.request(http, &text.repeat(each));
        }
        let mut before = bench.all_answered();
        assert!(before <= ANSWERS_MAX, "{request}: {before} answers at once");
        while bench.is_busy() {
            bench.turn();
            let answered = bench.all_answered();
            let new = answered - before;
            assert!((1..=ANSWERS_MAX).contains(&new), "{request}: {new} answers in one iteration");
            before = answered;
            let (least, most) = (bench.answered.iter().min().copied(), bench.answered.iter().max().copied());
            assert!(most <= least.map(|least| least + 2), "{request}: {least:?} to {most:?} answers each");
            bench.command("use default\r\n");
            assert_eq!(std::mem::take(&mut bench.replies), b"USING default\r\n", "{request}");
        }
        assert_eq!(before, FLOODING * each, "{request}");
        bench.server.check();
    }
}

#[test]
fn a_probe_is_answered_soon_beside_connections_that_pipeline() {
    let text = "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut bench = Loop::new(config(65_535), FLOODING);
    let probe = bench.connect();
    let refill = text.repeat(50);
    for _ in 0..100 {
        for http in 0..FLOODING {
            if !(1..=40).contains(&(bench.answered[http] % 50)) {
                bench.request(http, &refill);
            }
        }
        let before = bench.answered[probe];
        bench.request(probe, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut turns = 0;
        while bench.answered[probe] == before {
            bench.turn();
            turns += 1;
            assert!(turns <= 3, "the probe waits for {turns} iterations");
        }
    }
}

/// CPU time of the answers to 2,000 requests, in nanoseconds.
fn cpu_ns(tubes: usize, request: &str) -> i64 {
    let mut bench = Loop::new(Config { metrics_tubes: u32::MAX, ..config(65_535) }, 1);
    bench.add_tubes(tubes, 0);
    let text = format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n");
    let now = || {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("the clock is there");
        time.tv_sec() * 1_000_000_000 + time.tv_nsec()
    };
    let begin = now();
    for _ in 0..2000 {
        bench.request(0, &text);
    }
    now() - begin
}

#[test]
fn the_answer_to_a_head_does_not_look_at_tubes() {
    for request in ["HEAD /metrics", "HEAD /api/v1/tubes?sort=ready&offset=100000"] {
        let [some, many] = [2000, 8000].map(|tubes| (0..3).map(|_| cpu_ns(tubes, request)).min());
        assert!(many < some.map(|some| 2 * some), "{request}: {some:?} and {many:?} ns");
    }
}
