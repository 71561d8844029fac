//! Concurrency keys with very many jobs, or in very many tubes.

use beanring::queue::{BACKGROUND_STEPS, Begun, JobState, Moved, NewJob, Notice, Reserved};
use beanring::time::{Seconds, Span};
use beanring::values::ids::{ClientKey, JobId};
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;

use super::iteration::Loop;
use super::{Bench, MOVED_MAX, URGENT, USUAL, assert_steps};

fn put(bench: &mut Bench, client: ClientKey, pri: u32, tag: &str) -> JobId {
    let tags = Tags::new(tag.as_bytes()).expect("the tag is valid");
    let body = bench.engine.bodies_mut().allocate(2).expect("there is memory");
    let (id, tags_key) = (bench.engine.next_id(), bench.engine.store_tags(tags));
    bench.engine.put(
        client,
        NewJob { id, pri, delay: Seconds::ZERO, ttr: Seconds::whole(100), body, tags_key },
        bench.now,
    );
    id
}

fn tube(number: u32) -> String {
    format!("tube-{number}")
}

#[test]
fn a_reserve_does_not_look_at_parked_jobs() {
    const JOBS: u32 = 1_000_000;
    const KEYS: u32 = 10;
    let mut bench = Bench::new();
    let (producer, holder) = (bench.connect(), bench.connect());
    for number in 0..JOBS {
        put(&mut bench, producer, URGENT, &format!("con:key-{}", number % KEYS));
    }
    (0..KEYS).for_each(|_| assert!(matches!(bench.reserve(holder), Reserved::Job(_))));
    // It shuts the lanes of all keys.
    assert_eq!(bench.engine.reserve(holder, Some(Span::ZERO), bench.now), Reserved::TimedOut);
    assert_eq!(bench.ready(), JOBS - KEYS);
    bench.engine.take_steps();
    for _ in 0..100 {
        let id = bench.put(producer, USUAL, 0);
        let reserved = bench.engine.reserve(producer, Some(Span::ZERO), bench.now);
        assert_eq!(bench.id(reserved), id);
        assert!(bench.engine.delete(producer, id, bench.now));
        assert!(bench.engine.take_steps() <= 2, "a reserve looks at one tube");
    }
}

#[test]
fn the_end_of_a_reservation_of_a_key_in_ten_thousand_tubes() {
    const TUBES: u32 = 10_000;
    let mut bench = Bench::new();
    let (producer, holder) = (bench.connect(), bench.connect());
    let held = put(&mut bench, producer, URGENT, "con:key");
    assert!(matches!(bench.reserve(holder), Reserved::Job(_)));
    let mut workers = Vec::new();
    for number in 0..TUBES {
        let worker = bench.connect();
        let name = tube(number);
        let name = TubeName::new(name.as_bytes()).expect("a valid name");
        bench.engine.use_tube(worker, name);
        put(&mut bench, worker, USUAL, "con:key");
        workers.push((worker, name.as_bytes().to_vec()));
    }
    // One worker waits, for the last tube.
    let (worker, name) = workers.last().expect("there are workers");
    bench.engine.watch(*worker, TubeName::new(name).expect("a valid name"));
    assert_eq!(bench.reserve(*worker), Reserved::Waiting);
    bench.engine.take_steps();
    assert!(bench.engine.delete(holder, held, bench.now));
    let first = bench.engine.take_steps();
    assert!(first <= BACKGROUND_STEPS + 2, "the command takes {first} steps");
    assert_eq!(bench.engine.next_notice(), None);
    let mut steps = 0;
    while bench.engine.next_deadline().is_some_and(|at| at <= bench.now) {
        bench.engine.step(bench.now);
        assert!(bench.engine.take_steps() <= MOVED_MAX);
        steps += 1;
    }
    assert_steps(steps + 2, TUBES);
    assert!(matches!(bench.only_notice(), Some(Notice::Reserved(..))), "the worker that waits gets its job");
    bench.engine.check();
}

/// Returns a client of the tube `other` with this number of jobs there, each of a key that is full since nothing has searched
/// the tube.
fn full_keys(keys: u32) -> (Bench, ClientKey) {
    let mut bench = Bench::new();
    let holder = bench.connect();
    let searcher = connect_to_other(&mut bench);
    for number in 0..keys {
        put(&mut bench, holder, USUAL, &format!("con:key-{number}"));
        put(&mut bench, searcher, USUAL, &format!("con:key-{number}"));
    }
    (0..keys).for_each(|_| assert!(matches!(bench.reserve(holder), Reserved::Job(_))));
    bench.engine.take_steps();
    (bench, searcher)
}

fn other() -> TubeName<'static> {
    TubeName::new(b"other").expect("a valid name")
}

fn connect_to_other(bench: &mut Bench) -> ClientKey {
    let client = bench.connect();
    bench.engine.use_tube(client, other());
    bench.engine.watch(client, other());
    bench.engine.ignore(client, TubeName::DEFAULT);
    client
}

/// Many times the steps that any work of these tests takes.
const STEPS_MAX: u32 = 100_000;

/// Steps until nothing is due. Returns the number of steps.
fn finish(bench: &mut Bench) -> u32 {
    let mut steps = 0;
    while bench.engine.next_deadline().is_some_and(|at| at <= bench.now) {
        bench.engine.step(bench.now);
        assert!(bench.engine.take_steps() <= MOVED_MAX);
        steps += 1;
        assert!(steps < STEPS_MAX, "the work has an end");
    }
    steps
}

#[test]
fn lanes_that_a_search_shuts_are_paid_for_once() {
    const KEYS: u32 = 200;
    let (mut bench, other) = full_keys(KEYS);
    let search = |bench: &mut Bench| {
        assert_eq!(bench.engine.reserve(other, Some(Span::ZERO), bench.now), Reserved::TimedOut);
        bench.engine.take_steps()
    };
    assert!((KEYS..KEYS + 5).contains(&search(&mut bench)), "each lane of the tube is shut");
    assert!(search(&mut bench) <= 2, "no lane is looked at again");
    bench.engine.check();
}

const MANY_KEYS: u32 = 2_000;

#[test]
fn a_reserve_behind_a_hundred_thousand_full_keys_waits_until_it_is_known_that_there_is_no_job() {
    // Too many for a check of all keys and jobs.
    const KEYS: u32 = 100_000;
    let (mut bench, searcher) = full_keys(KEYS);
    assert_eq!(bench.engine.reserve(searcher, Some(Span::ZERO), bench.now), Reserved::Waiting);
    assert!(bench.engine.take_steps() <= BACKGROUND_STEPS + 5);
    assert_steps(finish(&mut bench) + 2, KEYS);
    assert_eq!(bench.engine.next_notice(), None, "the wait does not end before the search");
    bench.now = bench.now + Span::from_millis(1);
    finish(&mut bench);
    assert!(matches!(bench.only_notice(), Some(Notice::TimedOut(_))));
    assert_eq!(bench.engine.reserve(searcher, Some(Span::ZERO), bench.now), Reserved::TimedOut);
    assert!(bench.engine.take_steps() <= 5, "no lane is looked at again");
}

#[test]
fn a_job_behind_very_many_full_keys_goes_to_the_client_that_waits_longest() {
    let (mut bench, first) = full_keys(MANY_KEYS);
    let second = connect_to_other(&mut bench);
    let id = bench.put(second, USUAL + 1, 0);
    assert_eq!(bench.reserve(first), Reserved::Waiting);
    assert_eq!(bench.engine.reserve(second, Some(Span::ZERO), bench.now), Reserved::Waiting);
    finish(&mut bench);
    let job = bench.engine.jobs().find(id).expect("the job is there");
    assert_eq!(bench.engine.holder(job), Some(first));
    bench.now = bench.now + Span::from_millis(1);
    finish(&mut bench);
    let notices: Vec<Notice> = std::iter::from_fn(|| bench.engine.next_notice()).collect();
    assert!(matches!(notices[..], [Notice::Reserved(..), Notice::TimedOut(_)]), "{notices:?}");
    bench.engine.check();
}

#[test]
fn commands_on_a_tube_with_very_many_full_keys_take_bounded_steps() {
    let (mut bench, searcher) = full_keys(MANY_KEYS);
    let id = bench.put(searcher, USUAL + 1, 0);
    let assert_bounded = |bench: &mut Bench, more: u32| {
        let steps = bench.engine.take_steps();
        assert!(steps <= BACKGROUND_STEPS + more, "the command takes {steps} steps");
    };
    assert_eq!(bench.engine.peek_ready(searcher), None, "the job is not found yet");
    assert_bounded(&mut bench, 5);
    let moved = bench.engine.move_jobs(searcher, [other(), TubeName::DEFAULT], JobState::Ready, 5, bench.now);
    assert_eq!(moved, Begun::Working);
    assert_bounded(&mut bench, 5);
    finish(&mut bench);
    assert!(
        matches!(bench.only_notice(), Some(Notice::Moved(_, Moved { count: 1, .. }))),
        "jobs of full keys stay"
    );
    let job = bench.engine.jobs().find(id).expect("the job is there");
    assert_eq!(bench.engine.tube_of(job), TubeName::DEFAULT);
    let last = bench.put(searcher, USUAL, 0);
    let found = bench.engine.peek_ready(searcher).expect("the search is finished");
    assert_eq!(bench.engine.jobs().get(found).id, last);
    bench.engine.check();
}

#[test]
fn a_search_for_a_client_that_has_left_ends() {
    let (mut bench, searcher) = full_keys(MANY_KEYS);
    assert_eq!(bench.reserve(searcher), Reserved::Waiting);
    let boss = bench.connect();
    bench.engine.disconnect(searcher, bench.now);
    bench.engine.take_steps();
    finish(&mut bench);
    bench.engine.check();
    let searcher = connect_to_other(&mut bench);
    let id = bench.put(searcher, URGENT, 0);
    let reserved = bench.reserve(searcher);
    assert_eq!(bench.id(reserved), id, "nothing keeps the tube from handing out jobs");
    assert!(bench.engine.delete(searcher, id, bench.now));
    bench.engine.disconnect(searcher, bench.now);
    assert!(matches!(bench.engine.flush(boss, other(), bench.now), Begun::Working));
    bench.engine.take_steps();
    finish(&mut bench);
    assert!(matches!(bench.only_notice(), Some(Notice::Flushed(_, MANY_KEYS))));
    assert!(bench.engine.tubes().find(other()).is_none());
    bench.engine.check();
}

/// A batch without a timeout gets an empty reply, and one with a timeout that of a reserve.
#[test]
fn a_batch_behind_many_full_keys_is_answered_after_the_search() {
    const KEYS: u32 = 2 * BACKGROUND_STEPS;
    let mut bench = Loop::new();
    let [holder, batch, timeout] = [(); 3].map(|()| bench.connect());
    let lanes = |tube: &str| {
        let jobs = (0..KEYS).map(|key| format!("put 0 0 60 1 con:key-{key}\r\nx\r\n"));
        format!("use {tube}\r\n{}", jobs.collect::<String>())
    };
    bench.settle(holder, &lanes("default"));
    bench.settle(holder, &lanes("other"));
    bench.settle(holder, &format!("reserve-batch {KEYS}\r\n"));
    for client in [batch, timeout] {
        bench.settle(client, "watch other\r\nignore default\r\n");
    }
    bench.sent.clear();
    for (client, command) in [(batch, "reserve-batch 5\r\n"), (timeout, "reserve-batch 5 0\r\n")] {
        bench.receive(client, command);
        assert_eq!(bench.sent.remove(&client), None, "the search is unfinished");
    }
    bench.settle(holder, "");
    bench.pass(Span::from_millis(1));
    assert_eq!(bench.sent.remove(&batch).as_deref(), Some(&b"RESERVED_BATCH 0\r\n"[..]));
    assert_eq!(bench.sent.remove(&timeout).as_deref(), Some(&b"TIMED_OUT\r\n"[..]));
    bench.server.check();
}

#[test]
fn reservations_that_end_at_once_open_lanes_within_one_share() {
    const KEYS: u32 = 64;
    const TUBES: u32 = 64;
    let mut bench = Bench::new();
    let (holder, searcher) = (bench.connect(), bench.connect());
    let tags: Vec<String> = (0..KEYS).map(|key| format!("con:key-{key}")).collect();
    let held: Vec<JobId> = tags.iter().map(|tag| put(&mut bench, holder, URGENT, tag)).collect();
    (0..KEYS).for_each(|_| assert!(matches!(bench.reserve(holder), Reserved::Job(_))));
    for number in 0..TUBES {
        let name = tube(number);
        let name = TubeName::new(name.as_bytes()).expect("a valid name");
        bench.engine.use_tube(searcher, name);
        bench.engine.watch(searcher, name);
        tags.iter().for_each(|tag| _ = put(&mut bench, searcher, USUAL, tag));
    }
    // It shuts every lane.
    assert_eq!(bench.reserve(searcher), Reserved::Waiting);
    finish(&mut bench);
    bench.engine.end_wait(searcher);
    bench.engine.take_steps();
    assert_eq!(bench.engine.delete_batch(holder, held.into_iter(), bench.now), (KEYS, 0));
    let steps = bench.engine.take_steps();
    assert!(steps <= BACKGROUND_STEPS + 4 * KEYS, "the batch takes {steps} steps");
    finish(&mut bench);
    bench.engine.check();
}
