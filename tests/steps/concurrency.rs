//! Concurrency keys with very many jobs, or in very many tubes.

use beanring::ids::{ClientKey, JobId};
use beanring::queue::{BACKGROUND_STEPS, NewJob, Notice, Reserved};
use beanring::tags::Tags;
use beanring::time::{Seconds, Span};
use beanring::tube_name::TubeName;

use super::{Bench, MOVED_MAX, URGENT, USUAL, assert_steps};

fn put(bench: &mut Bench, client: ClientKey, pri: u32, tag: &str) -> JobId {
    let tags = Tags::new(tag.as_bytes()).expect("the tag is valid");
    let body = bench.engine.bodies_mut().allocate(2).expect("there is memory");
    let (id, extra) = (bench.engine.next_id(), bench.engine.announce_tags(tags));
    bench.engine.put(
        client,
        NewJob { id, pri, delay: Seconds::ZERO, ttr: Seconds::whole(100), body, extra },
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

#[test]
fn lanes_that_a_search_shuts_are_paid_for_once() {
    const KEYS: u32 = 1_000;
    let mut bench = Bench::new();
    let (one, other) = (bench.connect(), bench.connect());
    bench.engine.use_tube(other, TubeName::new(b"other").expect("a valid name"));
    bench.engine.watch(other, TubeName::new(b"other").expect("a valid name"));
    bench.engine.ignore(other, TubeName::DEFAULT);
    for number in 0..KEYS {
        put(&mut bench, one, USUAL, &format!("con:key-{number}"));
        put(&mut bench, other, USUAL, &format!("con:key-{number}"));
    }
    (0..KEYS).for_each(|_| assert!(matches!(bench.reserve(one), Reserved::Job(_))));
    bench.engine.take_steps();
    let search = |bench: &mut Bench| {
        assert_eq!(bench.engine.reserve(other, Some(Span::ZERO), bench.now), Reserved::TimedOut);
        bench.engine.take_steps()
    };
    assert!((KEYS..KEYS + 5).contains(&search(&mut bench)), "each lane of the tube is shut");
    assert!(search(&mut bench) <= 2, "no lane is looked at again");
    bench.engine.check();
}
