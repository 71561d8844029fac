//! Many events in one iteration of the event loop.

use std::collections::HashMap;

use beanring::queue::{BACKGROUND_STEPS, JobState};
use beanring::server::{Effect, Event, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::values::ids::ConnId;
use beanring::values::limits::{COMMAND_STEPS, RUN_STEPS, RUN_STEPS_MAX, SEND_STEPS, TURN_NOTICES_MAX};

use super::START;
use super::wide::{WATCHED, WIDE};
use beanring_testkit::config::config;
use beanring_testkit::connection::send_all;

/// A server without a kernel. It keeps the bytes sent to each connection.
pub struct Loop {
    pub server: Server,
    pub sent: HashMap<ConnId, Vec<u8>>,
    now: Time,
}

impl Loop {
    pub fn new() -> Self {
        Self { server: Server::new(config(2 << 20)), sent: HashMap::new(), now: START }
    }

    pub fn connect(&mut self) -> ConnId {
        self.server.accept(Protocol::Beanstalk)
    }

    pub fn receive(&mut self, conn: ConnId, text: &str) {
        self.server.handle(self.now, Event::Received { conn, bytes: text.as_bytes() });
        self.carry_out();
    }

    /// Sends commands and waits until the server has nothing left to do.
    pub fn settle(&mut self, conn: ConnId, text: &str) {
        self.receive(conn, text);
        while self.is_busy() {
            self.turn();
        }
    }

    /// Lets time pass, and waits until the server has nothing left to do.
    pub fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        while self.is_busy() {
            self.turn();
        }
    }

    pub fn is_busy(&self) -> bool {
        self.server.next_deadline().is_some_and(|at| at <= self.now)
    }

    pub fn turn(&mut self) {
        self.server.turn(self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Send(conn) => self.send(conn),
                Effect::Close(conn) => self.server.handle(self.now, Event::Closed { conn }),
                Effect::Pause(_) | Effect::Resume(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, conn: ConnId) {
        self.sent.entry(conn).or_default().extend(send_all(&mut self.server, conn, self.now));
    }

    /// Counts the replies that begin with this text.
    pub fn replies(&self, begin: &str) -> usize {
        let count = |sent: &Vec<u8>| String::from_utf8_lossy(sent).matches(begin).count();
        self.sent.values().map(count).sum()
    }
}

fn wide_watches(tube: &str) -> String {
    (0..WATCHED).map(|number| format!("watch {tube}-{number}\r\n")).collect()
}

#[test]
fn pipelined_stats_of_a_tube_with_many_wide_watchers() {
    const ASKED: usize = 1600;
    let mut bench = Loop::new();
    for _ in 0..WIDE {
        let waiting = bench.connect();
        bench.settle(waiting, &(wide_watches("busy") + "reserve\r\n"));
    }
    let curious = bench.connect();
    let other = bench.connect();
    let mut answered = 0;
    // A driver would leave the rest in the kernel, too.
    for _ in 0..ASKED / 100 {
        bench.receive(curious, &"stats-tube busy-0\r\n".repeat(100));
        loop {
            bench.turn();
            let replies = bench.replies("current-waiting: 1500\n");
            let looks = (replies - answered) * WIDE as usize;
            assert!(
                looks <= 2 * RUN_STEPS as usize + 2 * WIDE as usize,
                "an iteration checked {looks} clients"
            );
            answered = replies;
            bench.receive(other, "list-tube-used\r\n");
            assert_eq!(
                bench.sent.remove(&other).as_deref(),
                Some(&b"USING default\r\n"[..]),
                "other clients are served"
            );
            if !bench.is_busy() {
                break;
            }
        }
    }
    assert_eq!(answered, ASKED);
    bench.server.check();
}

#[test]
fn many_clients_that_pipeline_share_an_iteration() {
    const CLIENTS: usize = 500;
    const EACH: usize = 300;
    let mut bench = Loop::new();
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| bench.connect()).collect();
    for &client in &clients {
        bench.receive(client, &"list-tube-used\r\n".repeat(EACH));
    }
    assert_eq!(bench.sent.len(), CLIENTS, "each client has its first reply at once");
    let most = (2 * RUN_STEPS / COMMAND_STEPS) as usize + CLIENTS;
    let mut answered = 0;
    loop {
        bench.turn();
        let replies = bench.replies("USING default\r\n");
        assert!(replies - answered <= most, "an iteration served {} commands", replies - answered);
        answered = replies;
        if !bench.is_busy() {
            break;
        }
    }
    assert_eq!(answered, CLIENTS * EACH);
    assert!(bench.sent.values().all(|sent| sent.len() == EACH * "USING default\r\n".len()));
    bench.server.check();
}

#[test]
fn many_clients_that_send_one_large_kick_each() {
    const CLIENTS: u32 = 300;
    const EACH: u32 = 256;
    let mut bench = Loop::new();
    let other = bench.connect();
    for _ in 0..CLIENTS * EACH / 100 {
        bench.settle(other, &"put 0 1000 100 1\r\nx\r\n".repeat(100));
    }
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| bench.connect()).collect();
    let ready = |bench: &Loop| bench.server.engine().totals().in_state(JobState::Ready);
    for &client in &clients {
        bench.receive(client, &format!("kick {EACH}\r\n"));
    }
    let mut before = ready(&bench);
    assert!(before <= RUN_STEPS_MAX + EACH, "events of one iteration kicked {before} jobs");
    while bench.is_busy() {
        bench.turn();
        let kicked = ready(&bench) - before;
        assert!(kicked <= RUN_STEPS + BACKGROUND_STEPS + EACH, "an iteration kicked {kicked} jobs");
        before = ready(&bench);
        bench.sent.remove(&other);
        bench.receive(other, "list-tube-used\r\n");
        assert_eq!(
            bench.sent.remove(&other).as_deref(),
            Some(&b"USING default\r\n"[..]),
            "other clients are served"
        );
    }
    assert_eq!(before, CLIENTS * EACH);
    assert_eq!(bench.replies("KICKED 256\r\n"), CLIENTS as usize);
    bench.server.check();
}

#[test]
fn many_clients_that_request_stats_of_a_tube_with_wide_watchers() {
    const CLIENTS: usize = 300;
    let mut bench = Loop::new();
    for _ in 0..WIDE {
        let waiting = bench.connect();
        bench.settle(waiting, &(wide_watches("busy") + "reserve\r\n"));
    }
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| bench.connect()).collect();
    for &client in &clients {
        bench.receive(client, "stats-tube busy-0\r\n");
    }
    let mut answered = 0;
    loop {
        let replies = bench.replies("current-waiting: 1500\n");
        let looks = (replies - answered) * WIDE as usize;
        assert!(looks <= (RUN_STEPS_MAX + WIDE) as usize, "an iteration checked {looks} clients");
        answered = replies;
        if !bench.is_busy() {
            break;
        }
        bench.turn();
    }
    assert_eq!(answered, CLIENTS);
    bench.server.check();
}

#[test]
fn holders_that_disconnect_in_one_iteration() {
    const HOLDERS: u32 = 300;
    const HELD: u32 = 80;
    let mut bench = Loop::new();
    let other = bench.connect();
    for _ in 0..HOLDERS * HELD / 100 {
        bench.settle(other, &"put 0 0 100 1\r\nx\r\n".repeat(100));
    }
    let holders: Vec<ConnId> = (0..HOLDERS).map(|_| bench.connect()).collect();
    for &holder in &holders {
        bench.settle(holder, &"reserve\r\n".repeat(HELD as usize));
    }
    let ready = |bench: &Loop| bench.server.engine().totals().in_state(JobState::Ready);
    assert_eq!(ready(&bench), 0);
    for &conn in &holders {
        bench.server.handle(START, Event::InputEnded { conn });
        bench.carry_out();
    }
    let mut before = ready(&bench);
    assert!(before <= BACKGROUND_STEPS + 1, "{before} jobs went back at once");
    while bench.is_busy() {
        bench.turn();
        let moved = ready(&bench) - before;
        assert!(moved <= 2 * BACKGROUND_STEPS, "an iteration moved {moved} jobs");
        before = ready(&bench);
    }
    assert_eq!(before, HOLDERS * HELD);
    bench.server.check();
}

/// Very many clients wait for jobs of a tube when its pause ends. Background work gives it to them.
#[test]
fn a_batch_takes_no_job_that_clients_that_waited_longer_are_about_to_get() {
    const WORKERS: usize = 4 * BACKGROUND_STEPS as usize;
    let mut bench = Loop::new();
    let (producer, late) = (bench.connect(), bench.connect());
    let jobs = "put 5 0 60 1\r\nx\r\n".repeat(WORKERS + 10);
    bench.settle(producer, &format!("pause-tube default 100\r\n{jobs}use other\r\nput 9 0 60 1\r\ny\r\n"));
    for _ in 0..WORKERS {
        let worker = bench.connect();
        bench.settle(worker, "reserve\r\n");
    }
    bench.settle(late, "watch other\r\n");
    bench.sent.clear();
    bench.receive(producer, "pause-tube default 0\r\n");
    assert!(bench.replies("RESERVED ") < WORKERS, "the rest is background work");
    bench.receive(late, "reserve-batch 5 10\r\n");
    if !bench.sent.contains_key(&late) {
        // The answers to the clients that have waited are the work of an iteration.
        bench.turn();
    }
    let reply = String::from_utf8_lossy(&bench.sent[&late]).into_owned();
    assert!(reply.starts_with("RESERVED_BATCH 1\r\n") && reply.ends_with("\r\ny\r\n"), "{reply}");
    bench.settle(producer, "");
    assert_eq!(bench.replies("RESERVED "), WORKERS + 1);
}

/// Each put wakes a client. The answers to them are sends, which take longer than the puts.
#[test]
fn a_pipeline_of_puts_wakes_some_clients_in_a_turn() {
    const CLIENTS: usize = 2000;
    let mut bench = Loop::new();
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| bench.connect()).collect();
    clients.iter().for_each(|&client| bench.settle(client, "reserve\r\n"));
    let producer = bench.connect();
    bench.receive(producer, &"put 0 0 60 1\r\nx\r\n".repeat(CLIENTS));
    let mut woken = bench.replies("RESERVED ");
    assert!(woken <= TURN_NOTICES_MAX, "an event woke {woken} clients");
    let most = TURN_NOTICES_MAX + (RUN_STEPS / SEND_STEPS) as usize;
    while bench.is_busy() {
        bench.turn();
        let now = bench.replies("RESERVED ");
        assert!(now - woken <= most, "an iteration woke {} clients", now - woken);
        woken = now;
    }
    assert_eq!(woken, CLIENTS);
    bench.server.check();
}
