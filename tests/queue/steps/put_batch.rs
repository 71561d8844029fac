//! `put-batch`: what a batch may contain, and how many jobs an iteration stores.

use beanring::values::budget::{Cost, RUN_STEPS};
use beanring::values::limits::{BATCH_BODY_BYTES_MAX, BATCH_JOBS_MAX};

use super::in_memory;
use super::iteration::{ready, run_iterations};
use beanring_testkit::in_memory::InMemoryServer;
use beanring_testkit::peer::Peer;

fn put(bytes: usize) -> String {
    format!("put 0 0 60 {bytes}\r\n{}\r\n", "x".repeat(bytes))
}

fn batch(sizes: &[usize]) -> String {
    let jobs: String = sizes.iter().map(|&bytes| put(bytes)).collect();
    format!("put-batch {}\r\n{jobs}", sizes.len())
}

/// Sends a batch of these sizes, and returns the reply.
fn answer(server: &mut InMemoryServer, client: usize, sizes: &[usize]) -> String {
    let reply = server.ask(client, &batch(sizes));
    server.check();
    reply
}

#[test]
fn the_bodies_of_a_batch_have_a_mebibyte_unless_it_has_one_job() {
    let mut server = in_memory();
    let client = server.open();
    let half = BATCH_BODY_BYTES_MAX / 2;
    let ids = "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n";
    assert_eq!(answer(&mut server, client, &[half, 0, half]), format!("INSERTED_BATCH 3\r\n{ids}"));
    assert_eq!(answer(&mut server, client, &[half, 0, half + 1]), "JOB_TOO_BIG\r\n");
    assert_eq!(answer(&mut server, client, &[half, half + 1, 7]), "JOB_TOO_BIG\r\n");
    assert_eq!(
        answer(&mut server, client, &[BATCH_BODY_BYTES_MAX + 1]),
        "INSERTED_BATCH 1\r\nINSERTED 4\r\n"
    );
}

#[test]
fn a_batch_has_up_to_a_thousand_jobs() {
    let mut server = in_memory();
    let client = server.open();
    let sizes: Vec<usize> = (0..BATCH_JOBS_MAX as usize).map(|number| number % 70).collect();
    let ids: String = (1..=BATCH_JOBS_MAX).map(|id| format!("INSERTED {id}\r\n")).collect();
    assert_eq!(answer(&mut server, client, &sizes), format!("INSERTED_BATCH {BATCH_JOBS_MAX}\r\n{ids}"));
    let sizes = vec![1; BATCH_JOBS_MAX as usize + 1];
    assert_eq!(answer(&mut server, client, &sizes), "BAD_FORMAT\r\n");
    assert_eq!(server.server().engine().jobs().len(), BATCH_JOBS_MAX as usize);
}

#[test]
fn many_batches_share_an_iteration() {
    const CLIENTS: usize = 20;
    let mut server = in_memory();
    let clients: Vec<usize> = (0..CLIENTS).map(|_| server.open()).collect();
    let text = batch(&[1; BATCH_JOBS_MAX as usize]);
    let most = RUN_STEPS / Cost::BATCH_JOB.steps() + BATCH_JOBS_MAX;
    let other = server.open();
    for &client in &clients {
        server.receive_at_once(client, &text);
    }
    assert_eq!(ready(&server), 0, "the events of an iteration read no whole batch of a client");
    let stored = run_iterations(&mut server, other, most as usize, |server| {
        let stored = ready(server);
        assert!(stored.is_multiple_of(BATCH_JOBS_MAX as usize), "a batch is stored as a whole");
        stored
    });
    assert_eq!(stored, CLIENTS * BATCH_JOBS_MAX as usize);
    assert_eq!(server.received("INSERTED_BATCH 1000\r\n"), CLIENTS);
}
