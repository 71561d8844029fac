//! Very many clients that wait for the end of jobs.

use beanring::queue::{BACKGROUND_STEPS, JobAwaited, JobEnd, Notice};
use beanring::time::Span;
use beanring::values::ids::{ConnId, JobId};

use super::bench::{Bench, USUAL, named};

/// Steps of an answer: it is a send.
const ANSWER: u32 = 5;

/// Adds clients that wait for the job.
fn add_waits(bench: &mut Bench, id: JobId, clients: u32, seconds: u32) {
    for _ in 0..clients {
        let client = bench.connect();
        let answer = bench.engine.wait_job(client, id, Span::from_secs(seconds), bench.now);
        assert_eq!(answer, JobAwaited::Waiting);
    }
}

fn answered(bench: &Bench, clients: u32) -> u32 {
    clients - bench.engine.job_waits() as u32
}

/// Takes all notices, which must be this one for one client after another.
fn assert_notices(bench: &mut Bench, clients: u32, notice: fn(ConnId) -> Notice) {
    let notices = bench.notices();
    assert!(notices.iter().all(|told| *told == notice(told.conn())), "every notice is the same");
    assert_eq!(notices.len() as u32, clients);
    assert!(notices.is_sorted_by_key(|notice| notice.conn().slot), "the longest wait comes first");
}

#[test]
fn a_hundred_thousand_clients_wait_for_one_job() {
    const CLIENTS: u32 = 100_000;
    let mut bench = Bench::new();
    let id = bench.put(bench.amid, USUAL, 0);
    add_waits(&mut bench, id, CLIENTS, 1000);
    bench.engine.check();
    bench.spent();
    assert!(bench.engine.delete(bench.amid, id, bench.now));
    bench.take_steps(BACKGROUND_STEPS);
    assert!(answered(&bench, CLIENTS) <= BACKGROUND_STEPS);
    bench.engine.check();
    bench.run_in_steps(ANSWER * CLIENTS, |bench| answered(bench, CLIENTS));
    assert_notices(&mut bench, CLIENTS, |conn| Notice::JobEnded(conn, JobEnd::Deleted));
}

#[test]
fn a_client_of_a_job_that_has_ended_gets_that_answer_or_leaves() {
    const CLIENTS: u32 = 1000;
    let mut bench = Bench::new();
    let id = bench.put(bench.amid, USUAL, 0);
    let (patient, leaving) = (bench.connect(), bench.connect());
    for client in [patient, leaving] {
        bench.engine.wait_job(client, id, Span::from_secs(1000), bench.now);
    }
    add_waits(&mut bench, id, CLIENTS, 1);
    assert!(bench.engine.reserve_job(bench.amid, id, bench.now).is_some());
    assert!(bench.engine.bury(bench.amid, id, USUAL, bench.now));
    bench.engine.disconnect(leaving, bench.now);
    // The job can be waited for again, and the time of the others is over, before all are answered.
    assert!(bench.engine.kick_job(id, bench.now));
    assert_eq!(bench.engine.wait_job(bench.apart, id, Span::from_secs(5), bench.now), JobAwaited::Waiting);
    bench.pass(Span::from_secs(1));
    bench.engine.check();
    while bench.step() {}
    let notices = bench.notices();
    assert!(notices.iter().all(|notice| matches!(notice, Notice::JobEnded(_, JobEnd::Buried))));
    assert_eq!(notices.len() as u32, CLIENTS + 1);
    assert_eq!(bench.engine.job_waits(), 1);
}

#[test]
fn a_hundred_thousand_waits_time_out_together() {
    const CLIENTS: u32 = 100_000;
    let mut bench = Bench::new();
    let id = bench.put(bench.amid, USUAL, 0);
    add_waits(&mut bench, id, CLIENTS, 10);
    bench.pass(Span::from_secs(10));
    bench.run_in_steps(ANSWER * CLIENTS, |bench| answered(bench, CLIENTS));
    assert_notices(&mut bench, CLIENTS, Notice::TimedOut);
}

#[test]
fn a_flush_of_jobs_with_many_waiting_clients() {
    const JOBS: u32 = 1000;
    const EACH: u32 = 20;
    let mut bench = Bench::new();
    let flusher = bench.connect();
    let name = named("awaited");
    bench.engine.use_tube(flusher, name);
    for _ in 0..JOBS {
        let id = bench.put(flusher, USUAL, 0);
        add_waits(&mut bench, id, EACH, 1000);
    }
    bench.engine.flush(flusher, name, bench.now);
    let steps = bench.run_all_steps(|bench| answered(bench, JOBS * EACH));
    assert!(steps <= JOBS * (ANSWER * EACH + 2) / (BACKGROUND_STEPS / 2) + 2, "{steps} steps");
}
