//! How a durable write is made where there are two ways: as a request on the driver's ring, or by a thread.
//!
//! On an idle machine the ring is faster. But the kernel ends a durable request with threads of its own (kworkers, bound to the
//! core that takes the disk's interrupts): if another program keeps that core busy, each write waits for them. So the
//! durations of the writes decide.

use crate::time::Time;

/// A way to make a durable write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Ring,
    Thread,
}

/// Writes by the faster way between two trials of the other, if both take the same time. If the other takes `n` times as
/// long there are `n` times as many: trials take 1/64 of the time in any case.
const WRITES_BETWEEN_TRIALS: u64 = 64;

/// A slower way counts as at most this many times slower, so that a single long write does not end the trials.
const RATIO_MAX: u64 = 64;

/// The share of a new duration in a mean: one eighth.
const MEAN_SHARE: u64 = 8;

/// Chooses the way of each write by how long earlier ones took.
#[derive(Default, Debug)]
pub struct Ways {
    /// Mean durations in nanoseconds, by way. `None`: not used yet.
    means_ns: [Option<u64>; 2],
    /// Writes by the faster way before the next trial.
    until_trial: u64,
    /// The write in flight, and when it began.
    in_flight: Option<(Way, Time)>,
}

impl Ways {
    /// Chooses the way of a write that begins now.
    ///
    /// # Panics
    /// If a write is in flight.
    pub fn begin(&mut self, now: Time) -> Way {
        assert!(self.in_flight.is_none(), "the log has one write in flight");
        let way = match self.means_ns {
            [None, _] => Way::Ring,
            [_, None] => Way::Thread,
            [Some(ring), Some(thread)] => {
                let (faster, slower) =
                    if ring <= thread { (Way::Ring, Way::Thread) } else { (Way::Thread, Way::Ring) };
                if self.until_trial == 0 {
                    let ratio = (ring.max(thread) / ring.min(thread).max(1)).clamp(1, RATIO_MAX);
                    self.until_trial = WRITES_BETWEEN_TRIALS * ratio;
                    slower
                } else {
                    self.until_trial -= 1;
                    faster
                }
            }
        };
        self.in_flight = Some((way, now));
        way
    }

    /// Takes the end of a write, and whether it was completed. A write that failed does not count: a full disk refuses
    /// at once. Nor does a write whose way was not chosen here.
    pub fn end(&mut self, now: Time, completed: bool) {
        let Some((way, began)) = self.in_flight.take().filter(|_| completed) else { return };
        let took_ns = now.since(began).as_nanos();
        let mean = &mut self.means_ns[way as usize];
        let before = mean.unwrap_or(took_ns);
        *mean = Some(before - before / MEAN_SHARE + took_ns / MEAN_SHARE);
        let other = self.means_ns[1 - way as usize];
        if other.is_some_and(|other| took_ns < other && before > other) {
            // The slower way was faster this time. Its mean follows with the next writes.
            self.until_trial = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    /// Makes writes that take as long as `duration` says, in microseconds. Returns how many went by each way, and the time
    /// that all of them took, in microseconds.
    fn run(ways: &mut Ways, writes: u64, duration: impl Fn(Way, u64) -> u64) -> ([u64; 2], u64) {
        let began = Time::from_nanos(1_000_000_000);
        let (mut counts, mut now) = ([0; 2], began);
        for number in 0..writes {
            let way = ways.begin(now);
            counts[way as usize] += 1;
            now = now + Span::from_nanos(1000 * duration(way, number));
            ways.end(now, true);
        }
        (counts, now.since(began).as_nanos() / 1000)
    }

    fn by(ring: u64, thread: u64) -> impl Fn(Way, u64) -> u64 {
        move |way, _| if way == Way::Ring { ring } else { thread }
    }

    #[test]
    fn nearly_all_writes_go_by_the_faster_way_and_trials_take_little_time() {
        for (ring, thread) in [(100, 120), (120, 100), (100, 4000), (4000, 100)] {
            let (counts, took) = run(&mut Ways::default(), 10_000, by(ring, thread));
            let faster = usize::from(thread < ring);
            assert!(counts[faster] > 9_800, "{ring} {thread}: {counts:?}");
            assert!(counts[1 - faster] > 3, "{ring} {thread}: the other is still tried: {counts:?}");
            let least = ring.min(thread) * 10_000;
            assert!(took < least + least / 32, "{ring} {thread}: {took}");
        }
    }

    /// Returns the share of writes by the ring in thousandths, where both ways were used before.
    fn by_ring_after(mut ways: Ways, writes: u64, duration: impl Fn(Way, u64) -> u64) -> u64 {
        run(&mut ways, writes, duration).0[0] * 1000 / writes
    }

    /// After writes with these durations by ring and thread.
    fn used(ring: u64, thread: u64) -> Ways {
        let mut ways = Ways::default();
        run(&mut ways, 1000, by(ring, thread));
        ways
    }

    #[test]
    fn a_way_that_becomes_slow_is_left_and_one_that_becomes_fast_is_found() {
        assert!(by_ring_after(used(100, 120), 1000, by(4000, 120)) < 10);
        assert!(by_ring_after(used(4000, 120), 10_000, by(90, 120)) > 600);
    }

    #[test]
    fn writes_that_fail_teach_nothing() {
        let mut ways = used(100, 120);
        let mut now = Time::from_nanos(2_000_000_000);
        for _ in 0..1000 {
            let way = ways.begin(now);
            now = now + Span::from_nanos(if way == Way::Ring { 1000 } else { 10 });
            ways.end(now, false);
        }
        assert!(by_ring_after(ways, 100, by(100, 120)) > 900);
    }

    #[test]
    fn one_long_write_does_not_end_the_trials() {
        let mut ways = Ways::default();
        run(&mut ways, 1000, |way, number| if (way, number) == (Way::Ring, 0) { 10_000_000 } else { 100 });
        assert!(by_ring_after(ways, 10_000, by(90, 120)) > 400);
    }
}
