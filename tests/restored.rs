//! What is put back into a queue at its start, when the clock says something else than it did before.

use beanring::ids::JobId;
use beanring::queue::{Counts, Engine, Kept, Restored, Standing};
use beanring::time::{Span, Time};
use beanring::tube_name::TubeName;

const WRITTEN: Time = Time::from_nanos(1_000_000_000_000_000);
const HOUR: Span = Span::from_secs(3600);
const DELAY: u32 = 100;

/// A queue with a job that was delayed, in a tube that was paused, both for [`DELAY`] seconds.
fn restored(now: Time) -> Engine {
    let mut engine = Engine::new(1);
    let name = TubeName::new(b"tube").expect("a name");
    let tube = engine.restore_tube(name);
    let body = engine.bodies_mut().allocate(3).expect("there is memory");
    let delay = Span::from_secs(DELAY);
    let standing = Standing::Delayed(WRITTEN + delay);
    let kept = Kept { pri: 0, delay: DELAY, standing, counts: Counts::default() };
    engine.restore(Restored { id: JobId(1), created: WRITTEN, ttr: 60, tube, kept, body });
    engine.settle_restored(now);
    engine.restore_pause(name, WRITTEN + delay, delay, now);
    engine.check();
    engine
}

#[test]
fn nothing_waits_longer_than_it_was_told_to() {
    let delay = Span::from_secs(DELAY);
    let back = WRITTEN.back(HOUR);
    assert_eq!(restored(back).next_deadline(), Some(back + delay), "the clock went back by an hour");
    assert_eq!(restored(WRITTEN).next_deadline(), Some(WRITTEN + delay), "no time has passed");
    let soon = WRITTEN + Span::from_secs(40);
    assert_eq!(restored(soon).next_deadline(), Some(WRITTEN + delay), "less than half has passed");
}

#[test]
fn what_is_over_is_over() {
    assert_eq!(restored(WRITTEN + HOUR).next_deadline(), None);
}
