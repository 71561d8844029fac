//! Idempotency keys of deleted jobs that are forgotten together, and the memory that they take.

use beanring::queue::{Begun, Notice};
use beanring::time::Span;
use beanring::values::tube_name::TubeName;

use super::bench::{Bench, USUAL, named};

/// Puts a job with this tag, and deletes it.
fn put_and_delete(bench: &mut Bench, tag: &str) {
    let id = bench.put_tagged(bench.amid, USUAL, tag);
    assert!(bench.engine.delete(bench.amid, id, bench.now));
}

fn kept(bench: &Bench) -> u32 {
    bench.engine.kept_keys().count() as u32
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
    assert_eq!(kept(&bench), KEYS);
    bench.pass(Span::from_secs(10));
    bench.run_in_steps(KEYS, |bench| KEYS - kept(bench));
    assert_eq!(kept(&bench), 0);
}

#[test]
fn keys_without_a_time_leave_nothing() {
    let mut bench = Bench::new();
    put_and_delete(&mut bench, "idp:early-0");
    // The index of jobs keeps two blocks of ids for a moment.
    (0..20).for_each(|_| put_and_delete(&mut bench, "idp:key-1"));
    let before = bench.engine.memory_bytes();
    for number in 0..10_000 {
        put_and_delete(&mut bench, &format!("idp:key-{}", number % 90 + 10));
    }
    assert_eq!(bench.engine.memory_bytes(), before);
    assert_eq!(kept(&bench), 0);
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
    bench.engine.use_tube(client, named("other"));
    put_and_delete(&mut bench, "idp:key-1:1000");
    bench.engine.use_tube(client, default);
    assert_eq!(bench.engine.flush_keys(client, default), Begun::Working);
    let mut later = 0;
    while bench.is_due() {
        let before = kept(&bench);
        bench.step();
        assert!(before - kept(&bench) <= 64, "a step is bounded");
        later += 1;
        if later <= 1000 {
            put_and_delete(&mut bench, &format!("idp:later-{later}:1000"));
        }
    }
    let conn = bench.engine.clients().get(client).conn;
    assert_eq!(bench.only_notice(), Some(Notice::Flushed(conn, KEYS)));
    assert!((1500..3500).contains(&later), "{later} steps");
    assert_eq!(kept(&bench), 1001);
    bench.engine.check();
    // The arena of names and bodies keeps what it has freed for reuse.
    let left = |bench: &Bench| bench.engine.memory_bytes() - bench.engine.bodies().idle_bytes() - without;
    assert!(left(&bench) < 2 * 1024 * 1024, "{} bytes are left", left(&bench));
    assert_eq!(bench.engine.flush_keys(client, default), Begun::Working);
    while bench.step() {}
    assert!(left(&bench) < 1024 * 1024, "{} bytes are left", left(&bench));
    assert_eq!(bench.only_notice(), Some(Notice::Flushed(conn, 1000)));
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
    let before = kept(&bench);
    while bench.step() {}
    assert_eq!(kept(&bench), before);
    assert_eq!(bench.engine.next_notice(), None);
}
