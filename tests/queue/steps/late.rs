//! A call that comes late handles what is due in the order of the deadlines.

use super::bench::{Bench, START, USUAL};
use beanring::queue::{Notice, Reserved};
use beanring::time::Span;

#[test]
fn a_touched_job_takes_its_turn_among_the_others_that_time_out() {
    let mut bench = Bench::new();
    let (toucher, holder, waiter) = (bench.connect(), bench.connect(), bench.connect());
    let touched = bench.put(holder, USUAL, 0);
    bench.reserve(toucher);
    bench.now = START + Span::from_secs(50);
    let other = bench.put(holder, USUAL, 0);
    bench.reserve(holder);
    bench.now = START + Span::from_secs(60);
    assert!(bench.engine.touch(toucher, touched, bench.now));
    assert_eq!(bench.reserve(waiter), Reserved::Waiting);

    bench.now = START + Span::from_secs(200);
    bench.step();
    let Some(Notice::Reserved(_, job)) = bench.only_notice() else {
        panic!("the client that waits gets a job")
    };
    assert_eq!(bench.ids_of(&[job]), [other], "its time to run ends first");
}
