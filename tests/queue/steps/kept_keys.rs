//! Idempotency keys of deleted jobs that are forgotten together, and the memory that they take.

use beanring::queue::{Begun, NewJob, Notice};
use beanring::time::{Seconds, Span};
use beanring::values::ids::JobId;
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;

use super::{Bench, USUAL, assert_steps};

/// Puts a job with this tag, and deletes it.
fn put_and_delete(bench: &mut Bench, tag: &str) -> JobId {
    let client = bench.amid;
    let tags = Tags::new(tag.as_bytes()).expect("the tag is valid");
    let body = bench.engine.bodies_mut().allocate(2).expect("there is memory");
    let (id, tags_key) = (bench.engine.next_id(), bench.engine.store_tags(tags));
    bench.engine.put(
        client,
        NewJob { id, pri: USUAL, delay: Seconds::ZERO, ttr: Seconds::whole(100), body, tags_key },
        bench.now,
    );
    assert!(bench.engine.delete(client, id, bench.now));
    id
}

#[test]
fn a_hundred_thousand_kept_keys_are_forgotten_together() {
    const KEYS: u32 = 100_000;
    let mut bench = Bench::new();
    let without = bench.engine.memory_bytes();
    for number in 0..KEYS {
        put_and_delete(&mut bench, &format!("idp:key-{number}:10"));
    }
    let each = (bench.engine.memory_bytes() - without) / KEYS as usize;
    assert!((100..=200).contains(&each), "{each} bytes per kept key");
    assert_eq!(bench.engine.kept_keys().count(), KEYS as usize);
    bench.now = bench.now + Span::from_secs(10);
    let steps = bench.run_all_steps(|bench| KEYS - bench.engine.kept_keys().count() as u32);
    assert_steps(steps, KEYS);
    assert_eq!(bench.engine.kept_keys().count(), 0);
    bench.engine.check();
}

#[test]
fn keys_without_a_time_leave_nothing() {
    let mut bench = Bench::new();
    put_and_delete(&mut bench, "idp:early-0");
    // The index of jobs keeps two blocks of ids for a moment.
    (0..20).for_each(|_| _ = put_and_delete(&mut bench, "idp:key-1"));
    let before = bench.engine.memory_bytes();
    for number in 0..10_000 {
        put_and_delete(&mut bench, &format!("idp:key-{}", number % 90 + 10));
    }
    assert_eq!(bench.engine.memory_bytes(), before);
    assert_eq!(bench.engine.kept_keys().count(), 0);
}

/// Keys of other tubes and of jobs stay, and so do those of later jobs, although these come and go during the flush.
#[test]
fn a_hundred_thousand_kept_keys_are_flushed() {
    const KEYS: u32 = 100_000;
    let mut bench = Bench::new();
    let (client, default) = (bench.amid, TubeName::DEFAULT);
    let without = bench.engine.memory_bytes();
    for number in 0..KEYS {
        put_and_delete(&mut bench, &format!("idp:key-{number}:{}", u32::MAX));
    }
    bench.engine.use_tube(client, TubeName::new(b"other").expect("a valid name"));
    put_and_delete(&mut bench, "idp:key-1:1000");
    bench.engine.use_tube(client, default);
    assert_eq!(bench.engine.flush_keys(client, default), Begun::Working);
    let mut later = 0;
    while bench.engine.next_deadline().is_some_and(|at| at <= bench.now) {
        let before = bench.engine.kept_keys().count();
        bench.engine.step(bench.now);
        assert!(before - bench.engine.kept_keys().count() <= 64, "a step is bounded");
        later += 1;
        if later <= 1000 {
            put_and_delete(&mut bench, &format!("idp:later-{later}:1000"));
        }
    }
    let notices: Vec<Notice> = std::iter::from_fn(|| bench.engine.next_notice()).collect();
    assert_eq!(notices, [Notice::Flushed(bench.engine.clients().get(client).conn, KEYS)]);
    assert!((1500..3500).contains(&later), "{later} steps");
    assert_eq!(bench.engine.kept_keys().count(), 1001);
    bench.engine.check();
    // The arena of names and bodies keeps what it has freed for reuse.
    let left = |bench: &Bench| bench.engine.memory_bytes() - bench.engine.bodies().idle_bytes() - without;
    let among = left(&bench);
    assert!(among < 2 * 1024 * 1024, "{among} bytes are left");
    assert_eq!(bench.engine.flush_keys(client, default), Begun::Working);
    while bench.engine.step(bench.now) {}
    let after = left(&bench);
    assert!(after < 1024 * 1024, "{after} bytes are left");
    assert_eq!(
        bench.engine.next_notice(),
        Some(Notice::Flushed(bench.engine.clients().get(client).conn, 1000))
    );
}

#[test]
fn a_flush_of_keys_ends_with_its_client() {
    let mut bench = Bench::new();
    for number in 0..1000 {
        put_and_delete(&mut bench, &format!("idp:key-{number}:1000"));
    }
    let client = bench.connect();
    assert_eq!(bench.engine.flush_keys(client, TubeName::DEFAULT), Begun::Working);
    bench.engine.disconnect(client, bench.now);
    let kept = bench.engine.kept_keys().count();
    while bench.engine.step(bench.now) {}
    assert_eq!(bench.engine.kept_keys().count(), kept);
    assert_eq!(bench.engine.next_notice(), None);
    bench.engine.check();
}
