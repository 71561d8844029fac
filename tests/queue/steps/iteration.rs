//! Many events in one iteration of the event loop.

use std::time::Duration;

use beanring::queue::{BACKGROUND_STEPS, JobState};
use beanring::values::budget::{Cost, RUN_STEPS, RUN_STEPS_MAX, TURN_STEPS};

use super::in_memory;
use super::wide::{WATCHED, WIDE};
use beanring_testkit::in_memory::InMemoryServer;
use beanring_testkit::peer::Peer;

/// What `stats-tube` shows of a tube with as many wide watchers.
const WAITING: &str = "current-waiting: 1500\n";

pub fn ready(server: &InMemoryServer) -> usize {
    server.server().engine().totals().in_state(JobState::Ready) as usize
}

/// Runs iterations until nothing is left to do. None adds more than `most` to the count, and all serve another client. Returns
/// the count at the end.
pub fn run_iterations(
    server: &mut InMemoryServer,
    other: usize,
    most: usize,
    count: impl Fn(&InMemoryServer) -> usize,
) -> usize {
    let mut before = count(server);
    while server.is_busy() {
        server.turn();
        let now = count(server);
        assert!(now - before <= most, "an iteration adds {} to {before}", now - before);
        before = now;
        server.receive_at_once(other, "list-tube-used\r\n");
        assert_eq!(server.take(other), "USING default\r\n", "other clients are served");
    }
    server.check();
    before
}

/// Adds clients with very many watches that wait.
fn add_wide_watchers(server: &mut InMemoryServer) {
    let watches: String = (0..WATCHED).map(|number| format!("watch busy-{number}\r\n")).collect();
    for _ in 0..WIDE {
        let waiting = server.open();
        server.ask(waiting, &(watches.clone() + "reserve\r\n"));
    }
}

#[test]
fn pipelined_stats_of_a_tube_with_many_wide_watchers() {
    const ASKED: usize = 1600;
    let mut server = in_memory();
    add_wide_watchers(&mut server);
    let (curious, other) = (server.open(), server.open());
    // Each checks all clients.
    let most = 2 * RUN_STEPS / WIDE + 2;
    let mut answered = 0;
    // A driver would leave the rest in the kernel, too.
    for _ in 0..ASKED / 100 {
        server.receive_at_once(curious, &"stats-tube busy-0\r\n".repeat(100));
        answered = run_iterations(&mut server, other, most as usize, |server| server.received(WAITING));
    }
    assert_eq!(answered, ASKED);
}

#[test]
fn many_clients_that_pipeline_share_an_iteration() {
    const CLIENTS: usize = 500;
    const EACH: usize = 300;
    let mut server = in_memory();
    let clients: Vec<usize> = (0..CLIENTS).map(|_| server.open()).collect();
    for &client in &clients {
        server.receive_at_once(client, &"list-tube-used\r\n".repeat(EACH));
    }
    let mut replies: Vec<String> = clients.iter().map(|&client| server.take(client)).collect();
    assert!(replies.iter().all(|text| !text.is_empty()), "each client has its first reply at once");
    let most = (2 * RUN_STEPS / Cost::COMMAND.steps()) as usize + CLIENTS;
    while server.is_busy() {
        server.turn();
        let served = server.received("USING default\r\n");
        assert!(served <= most, "an iteration served {served} commands");
        clients.iter().zip(&mut replies).for_each(|(&client, text)| text.push_str(&server.take(client)));
    }
    assert!(replies.iter().all(|text| *text == "USING default\r\n".repeat(EACH)));
    server.check();
}

#[test]
fn many_clients_that_send_one_large_kick_each() {
    const CLIENTS: usize = 300;
    const EACH: usize = 256;
    let mut server = in_memory();
    let other = server.open();
    server.ask(other, &"put 0 1000 100 1\r\nx\r\n".repeat(CLIENTS * EACH));
    let clients: Vec<usize> = (0..CLIENTS).map(|_| server.open()).collect();
    for &client in &clients {
        server.receive_at_once(client, &format!("kick {EACH}\r\n"));
    }
    let kicked = ready(&server);
    assert!(kicked <= RUN_STEPS_MAX as usize + EACH, "events of one iteration kicked {kicked} jobs");
    let most = (RUN_STEPS + BACKGROUND_STEPS) as usize + EACH;
    assert_eq!(run_iterations(&mut server, other, most, ready), CLIENTS * EACH);
    assert_eq!(server.received("KICKED 256\r\n"), CLIENTS);
}

#[test]
fn many_clients_that_request_stats_of_a_tube_with_wide_watchers() {
    const CLIENTS: usize = 300;
    let mut server = in_memory();
    add_wide_watchers(&mut server);
    let clients: Vec<usize> = (0..CLIENTS).map(|_| server.open()).collect();
    for &client in &clients {
        server.receive_at_once(client, "stats-tube busy-0\r\n");
    }
    // Each checks all clients.
    let most = (RUN_STEPS_MAX / WIDE) as usize + 1;
    assert!(server.received(WAITING) <= most, "the events of one iteration are answered");
    let other = server.open();
    assert_eq!(run_iterations(&mut server, other, most, |server| server.received(WAITING)), CLIENTS);
}

#[test]
fn holders_that_disconnect_in_one_iteration() {
    const HOLDERS: usize = 300;
    const HELD: usize = 80;
    let mut server = in_memory();
    let other = server.open();
    server.ask(other, &"put 0 0 100 1\r\nx\r\n".repeat(HOLDERS * HELD));
    let holders: Vec<usize> = (0..HOLDERS).map(|_| server.open()).collect();
    for &holder in &holders {
        server.ask(holder, &"reserve\r\n".repeat(HELD));
    }
    assert_eq!(ready(&server), 0);
    holders.iter().for_each(|&holder| server.end_input_at_once(holder));
    let moved = ready(&server);
    assert!(moved <= BACKGROUND_STEPS as usize + 1, "{moved} jobs went back at once");
    let most = 2 * BACKGROUND_STEPS as usize;
    assert_eq!(run_iterations(&mut server, other, most, ready), HOLDERS * HELD);
}

/// Very many clients wait for jobs of a tube when its pause ends. Background work gives it to them.
#[test]
fn a_batch_takes_no_job_that_clients_that_waited_longer_are_about_to_get() {
    const WORKERS: usize = 4 * BACKGROUND_STEPS as usize;
    let mut server = in_memory();
    let (producer, late) = (server.open(), server.open());
    let jobs = "put 5 0 60 1\r\nx\r\n".repeat(WORKERS + 10);
    server.ask(producer, &format!("pause-tube default 100\r\n{jobs}use other\r\nput 9 0 60 1\r\ny\r\n"));
    for _ in 0..WORKERS {
        let worker = server.open();
        server.ask(worker, "reserve\r\n");
    }
    server.ask(late, "watch other\r\n");
    server.receive_at_once(producer, "pause-tube default 0\r\n");
    assert!(server.received("RESERVED ") < WORKERS, "the rest is background work");
    server.receive_at_once(late, "reserve-batch 5 10\r\n");
    let mut reply = server.take(late);
    if reply.is_empty() {
        // The answers to the clients that have waited are the work of an iteration.
        server.turn();
        reply = server.take(late);
    }
    assert!(reply.starts_with("RESERVED_BATCH 1\r\n") && reply.ends_with("\r\ny\r\n"), "{reply}");
    server.advance(Duration::ZERO);
    assert_eq!(server.received("RESERVED "), WORKERS);
}

/// Each put wakes a client. The answers to them are sends, which take longer than the puts.
#[test]
fn a_pipeline_of_puts_wakes_some_clients_in_a_turn() {
    const CLIENTS: usize = 2000;
    let mut server = in_memory();
    let clients: Vec<usize> = (0..CLIENTS).map(|_| server.open()).collect();
    clients.iter().for_each(|&client| _ = server.ask(client, "reserve\r\n"));
    let producer = server.open();
    server.receive_at_once(producer, &"put 0 0 60 1\r\nx\r\n".repeat(CLIENTS));
    let woken = server.received("RESERVED ");
    assert!(woken <= (TURN_STEPS / Cost::SEND.steps()) as usize, "an event woke {woken} clients");
    let most = ((RUN_STEPS + TURN_STEPS) / Cost::SEND.steps()) as usize;
    let other = server.open();
    assert_eq!(run_iterations(&mut server, other, most, |server| server.received("RESERVED ")), CLIENTS);
}
