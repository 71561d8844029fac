//! Concurrency keys with very many jobs, or in very many tubes.

use std::time::Duration;

use beanring::queue::{BACKGROUND_STEPS, Begun, JobState, Moved, Notice, Reserved};
use beanring::time::Span;
use beanring::values::budget::Cost;
use beanring::values::ids::{ClientKey, JobId};
use beanring::values::tube_name::TubeName;

use super::bench::{Bench, MOVED_MAX, URGENT, USUAL, assert_steps, named};
use super::in_memory;
use beanring_testkit::peer::Peer;

#[test]
fn a_reserve_does_not_look_at_parked_jobs() {
    const JOBS: u32 = 1_000_000;
    const KEYS: u32 = 10;
    let mut bench = Bench::new();
    bench.is_large = true;
    let (producer, holder) = (bench.connect(), bench.connect());
    for number in 0..JOBS {
        bench.put_tagged(producer, URGENT, &format!("con:key-{}", number % KEYS));
    }
    (0..KEYS).for_each(|_| _ = bench.reserve_id(holder));
    // It shuts the lanes of all keys.
    assert_eq!(bench.reserve_now(holder), Reserved::TimedOut);
    assert_eq!(bench.ready(), JOBS - KEYS);
    bench.spent();
    for _ in 0..100 {
        let id = bench.put(producer, USUAL, 0);
        assert_eq!(bench.reserve_id(producer), id);
        assert!(bench.engine.delete(producer, id, bench.now));
        assert!(bench.spent() <= 2, "a reserve looks at one tube");
    }
}

#[test]
fn the_end_of_a_reservation_of_a_key_in_ten_thousand_tubes() {
    const TUBES: u32 = 10_000;
    let mut bench = Bench::new();
    let (producer, holder) = (bench.connect(), bench.connect());
    let held = bench.put_tagged(producer, URGENT, "con:key");
    assert_eq!(bench.reserve_id(holder), held);
    let mut worker = holder;
    for number in 0..TUBES {
        worker = bench.connect();
        bench.engine.use_tube(worker, named(&format!("tube-{number}")));
        bench.put_tagged(worker, USUAL, "con:key");
    }
    // One worker waits, for the last tube.
    bench.engine.watch(worker, named(&format!("tube-{}", TUBES - 1)));
    assert_eq!(bench.reserve(worker), Reserved::Waiting);
    bench.spent();
    assert!(bench.engine.delete(holder, held, bench.now));
    bench.take_steps(BACKGROUND_STEPS + 2 + Cost::TAGS_GONE.steps());
    assert_eq!(bench.engine.next_notice(), None);
    assert_steps(bench.finish(MOVED_MAX).0 + 2, TUBES);
    assert!(matches!(bench.only_notice(), Some(Notice::Reserved(..))), "the worker that waits gets its job");
}

/// Returns a client of the tube `other` with this number of jobs there, each of a key that is full since nothing has searched
/// the tube.
fn full_keys(keys: u32) -> (Bench, ClientKey) {
    let mut bench = Bench::new();
    let holder = bench.connect();
    let searcher = bench.connect_to("other");
    for number in 0..keys {
        bench.put_tagged(holder, USUAL, &format!("con:key-{number}"));
        bench.put_tagged(searcher, USUAL, &format!("con:key-{number}"));
    }
    (0..keys).for_each(|_| _ = bench.reserve_id(holder));
    bench.spent();
    (bench, searcher)
}

#[test]
fn lanes_that_a_search_shuts_are_paid_for_once() {
    const KEYS: u32 = 200;
    let (mut bench, other) = full_keys(KEYS);
    assert_eq!(bench.reserve_now(other), Reserved::TimedOut);
    assert!((KEYS..KEYS + 5).contains(&bench.spent()), "each lane of the tube is shut");
    assert_eq!(bench.reserve_now(other), Reserved::TimedOut);
    assert!(bench.spent() <= 2, "no lane is looked at again");
}

const MANY_KEYS: u32 = 2_000;

#[test]
fn a_reserve_behind_a_hundred_thousand_full_keys_waits_until_it_is_known_that_there_is_no_job() {
    const KEYS: u32 = 100_000;
    let (mut bench, searcher) = full_keys(KEYS);
    bench.is_large = true;
    assert_eq!(bench.reserve_now(searcher), Reserved::Waiting);
    bench.take_steps(BACKGROUND_STEPS + 5);
    assert_steps(bench.finish(MOVED_MAX).0 + 2, KEYS);
    assert_eq!(bench.engine.next_notice(), None, "the wait does not end before the search");
    bench.pass(Span::from_millis(1));
    bench.finish(MOVED_MAX);
    assert!(matches!(bench.only_notice(), Some(Notice::TimedOut(_))));
    assert_eq!(bench.reserve_now(searcher), Reserved::TimedOut);
    assert!(bench.spent() <= 5, "no lane is looked at again");
}

#[test]
fn a_job_behind_very_many_full_keys_goes_to_the_client_that_waits_longest() {
    let (mut bench, first) = full_keys(MANY_KEYS);
    let second = bench.connect_to("other");
    let id = bench.put(second, USUAL + 1, 0);
    assert_eq!(bench.reserve(first), Reserved::Waiting);
    assert_eq!(bench.reserve_now(second), Reserved::Waiting);
    bench.finish(MOVED_MAX);
    let job = bench.engine.jobs().find(id).expect("the job is there");
    assert_eq!(bench.engine.holder(job), Some(first));
    bench.pass(Span::from_millis(1));
    bench.finish(MOVED_MAX);
    let notices = bench.notices();
    assert!(matches!(notices[..], [Notice::Reserved(..), Notice::TimedOut(_)]), "{notices:?}");
}

#[test]
fn commands_on_a_tube_with_very_many_full_keys_take_bounded_steps() {
    let (mut bench, searcher) = full_keys(MANY_KEYS);
    let id = bench.put(searcher, USUAL + 1, 0);
    assert_eq!(bench.engine.peek_ready(searcher), None, "the job is not found yet");
    bench.take_steps(BACKGROUND_STEPS + 5);
    let moved =
        bench.engine.move_jobs(searcher, [named("other"), TubeName::DEFAULT], JobState::Ready, 5, bench.now);
    assert_eq!(moved, Begun::Working);
    bench.take_steps(BACKGROUND_STEPS + 5);
    bench.finish(MOVED_MAX);
    assert!(
        matches!(bench.only_notice(), Some(Notice::Moved(_, Moved { count: 1, .. }))),
        "jobs of full keys stay"
    );
    let job = bench.engine.jobs().find(id).expect("the job is there");
    assert_eq!(bench.engine.tube_of(job), TubeName::DEFAULT);
    let last = bench.put(searcher, USUAL, 0);
    let found = bench.engine.peek_ready(searcher).expect("the search is finished");
    assert_eq!(bench.engine.jobs().get(found).id, last);
}

#[test]
fn a_search_for_a_client_that_has_left_ends() {
    let (mut bench, searcher) = full_keys(MANY_KEYS);
    assert_eq!(bench.reserve(searcher), Reserved::Waiting);
    let boss = bench.connect();
    bench.engine.disconnect(searcher, bench.now);
    bench.spent();
    bench.finish(MOVED_MAX);
    bench.engine.check();
    let searcher = bench.connect_to("other");
    let id = bench.put(searcher, URGENT, 0);
    assert_eq!(bench.reserve_id(searcher), id, "nothing keeps the tube from handing out jobs");
    assert!(bench.engine.delete(searcher, id, bench.now));
    bench.engine.disconnect(searcher, bench.now);
    assert!(matches!(bench.engine.flush(boss, named("other"), bench.now), Begun::Working));
    bench.spent();
    bench.finish(MOVED_MAX);
    assert!(matches!(bench.only_notice(), Some(Notice::Flushed(_, MANY_KEYS))));
    assert!(bench.engine.tubes().find(named("other")).is_none());
}

/// A batch without a timeout gets an empty reply, and one with a timeout that of a reserve.
#[test]
fn a_batch_behind_many_full_keys_is_answered_after_the_search() {
    const KEYS: u32 = 2 * BACKGROUND_STEPS;
    let mut server = in_memory();
    let [holder, batch, timeout] = [(); 3].map(|()| server.open());
    let lanes = |tube: &str| {
        let jobs = (0..KEYS).map(|key| format!("put 0 0 60 1 con:key-{key}\r\nx\r\n"));
        format!("use {tube}\r\n{}", jobs.collect::<String>())
    };
    server.ask(holder, &lanes("default"));
    server.ask(holder, &lanes("other"));
    server.ask(holder, &format!("reserve-batch {KEYS}\r\n"));
    for client in [batch, timeout] {
        server.ask(client, "watch other\r\nignore default\r\n");
    }
    for (client, command) in [(batch, "reserve-batch 5\r\n"), (timeout, "reserve-batch 5 0\r\n")] {
        server.receive_at_once(client, command);
        assert_eq!(server.take(client), "", "the search is unfinished");
    }
    server.advance(Duration::from_millis(1));
    assert_eq!(server.take(batch), "RESERVED_BATCH 0\r\n");
    assert_eq!(server.take(timeout), "TIMED_OUT\r\n");
}

#[test]
fn reservations_that_end_at_once_open_lanes_within_one_share() {
    const KEYS: u32 = 64;
    const TUBES: u32 = 64;
    let mut bench = Bench::new();
    let (holder, searcher) = (bench.connect(), bench.connect());
    let tags: Vec<String> = (0..KEYS).map(|key| format!("con:key-{key}")).collect();
    let held: Vec<JobId> = tags.iter().map(|tag| bench.put_tagged(holder, URGENT, tag)).collect();
    (0..KEYS).for_each(|_| _ = bench.reserve_id(holder));
    for number in 0..TUBES {
        bench.use_and_watch(searcher, &format!("tube-{number}"));
        tags.iter().for_each(|tag| _ = bench.put_tagged(searcher, USUAL, tag));
    }
    // It shuts every lane.
    assert_eq!(bench.reserve(searcher), Reserved::Waiting);
    bench.finish(MOVED_MAX);
    bench.engine.end_wait(searcher);
    bench.spent();
    assert_eq!(bench.engine.delete_batch(holder, held.into_iter(), bench.now), (KEYS, 0));
    bench.take_steps(BACKGROUND_STEPS + (4 + Cost::TAGS_GONE.steps()) * KEYS);
    bench.finish(MOVED_MAX);
}
