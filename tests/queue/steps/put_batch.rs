//! `put-batch`: what a batch may contain, and how many jobs an iteration stores.

use beanring::queue::JobState;
use beanring::values::ids::ConnId;
use beanring::values::limits::{BATCH_BODY_BYTES_MAX, BATCH_JOB_STEPS, BATCH_JOBS_MAX, RUN_STEPS};

use super::iteration::Loop;

fn put(bytes: usize) -> String {
    format!("put 0 0 60 {bytes}\r\n{}\r\n", "x".repeat(bytes))
}

fn batch(sizes: &[usize]) -> String {
    let jobs: String = sizes.iter().map(|&bytes| put(bytes)).collect();
    format!("put-batch {}\r\n{jobs}", sizes.len())
}

/// Sends a batch of these sizes, and returns the reply.
fn answer(bench: &mut Loop, client: ConnId, sizes: &[usize]) -> String {
    bench.settle(client, &batch(sizes));
    bench.server.check();
    String::from_utf8(bench.sent.remove(&client).expect("there is a reply")).expect("it is ASCII")
}

#[test]
fn the_bodies_of_a_batch_have_a_mebibyte_unless_it_has_one_job() {
    let mut bench = Loop::new();
    let client = bench.connect();
    let half = BATCH_BODY_BYTES_MAX / 2;
    let ids = "INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n";
    assert_eq!(answer(&mut bench, client, &[half, 0, half]), format!("INSERTED_BATCH 3\r\n{ids}"));
    assert_eq!(answer(&mut bench, client, &[half, 0, half + 1]), "JOB_TOO_BIG\r\n");
    assert_eq!(answer(&mut bench, client, &[half, half + 1, 7]), "JOB_TOO_BIG\r\n");
    assert_eq!(answer(&mut bench, client, &[BATCH_BODY_BYTES_MAX + 1]), "INSERTED_BATCH 1\r\nINSERTED 4\r\n");
}

#[test]
fn a_batch_has_up_to_a_thousand_jobs() {
    let mut bench = Loop::new();
    let client = bench.connect();
    let sizes: Vec<usize> = (0..BATCH_JOBS_MAX as usize).map(|number| number % 70).collect();
    let ids: String = (1..=BATCH_JOBS_MAX).map(|id| format!("INSERTED {id}\r\n")).collect();
    assert_eq!(answer(&mut bench, client, &sizes), format!("INSERTED_BATCH {BATCH_JOBS_MAX}\r\n{ids}"));
    let sizes = vec![1; BATCH_JOBS_MAX as usize + 1];
    assert_eq!(answer(&mut bench, client, &sizes), "BAD_FORMAT\r\n");
    assert_eq!(bench.server.engine().jobs().len(), BATCH_JOBS_MAX as usize);
}

#[test]
fn many_batches_share_an_iteration() {
    const CLIENTS: u32 = 20;
    let mut bench = Loop::new();
    let clients: Vec<ConnId> = (0..CLIENTS).map(|_| bench.connect()).collect();
    let text = batch(&[1; BATCH_JOBS_MAX as usize]);
    let most = RUN_STEPS / BATCH_JOB_STEPS + BATCH_JOBS_MAX;
    let ready = |bench: &Loop| bench.server.engine().totals().in_state(JobState::Ready);
    let mut before = 0;
    for &client in &clients {
        bench.receive(client, &text);
    }
    assert_eq!(ready(&bench), 0, "the events of an iteration read no whole batch of a client");
    while bench.is_busy() {
        bench.turn();
        let stored = ready(&bench) - before;
        assert!(stored <= most, "an iteration stored {stored} jobs");
        assert!(stored.is_multiple_of(BATCH_JOBS_MAX), "a batch is stored as a whole");
        before = ready(&bench);
    }
    assert_eq!(before, CLIENTS * BATCH_JOBS_MAX);
    assert_eq!(bench.replies("INSERTED_BATCH 1000\r\n"), CLIENTS as usize);
}
