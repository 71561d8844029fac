//! Deadlines of both servers, and the lateness that excuses a difference: it must be measured here.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// All deadlines are one or two whole seconds after the command that sets them.
const SECONDS: [u64; 2] = [1, 2];

/// How long before a deadline the servers are stopped, and how long after it they are continued.
pub const BEFORE: Duration = Duration::from_millis(10);
const AFTER: Duration = Duration::from_millis(3);

/// Maximum drift between the wall clock, which beanstalkd uses, and the monotonic clock.
const STEP_MAX: Duration = Duration::from_millis(1);

/// Why the servers may differ from here on without a bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lateness {
    /// A deadline may have come while commands were compared.
    DeadlineWithinCommands,
    /// Two deadlines may pass at once, and beanstalkd orders them by kind.
    DeadlinesTooClose,
    /// A server was not stopped before a deadline.
    StoppedLate,
    /// A server did not sleep between two deadlines, and so may have seen both at once.
    NotAsleep,
    /// The wall clock was set.
    ClockSet,
}

/// A period in which a server may notice the end of a deadline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    pub from: Instant,
    pub to: Instant,
    /// The deadlines that may end in it.
    origins: BTreeSet<usize>,
}

/// The future deadlines.
pub struct Deadlines {
    moments: Vec<Moment>,
    set: usize,
    /// All deadlines that may end before this are known.
    checked: Instant,
    started: (Instant, SystemTime),
}

/// When a deadline was set.
struct Moment {
    first: Instant,
    last: Instant,
    origin: usize,
}

impl Deadlines {
    pub fn new(now: Instant) -> Self {
        Self { moments: Vec::new(), set: 0, checked: now, started: (now, SystemTime::now()) }
    }

    /// Records a deadline that was set between `first` and `last`.
    pub fn set(&mut self, first: Instant, last: Instant) {
        self.moments.push(Moment { first, last, origin: self.set });
        self.set += 1;
    }

    /// Records that deadlines that ended in this stop may have set another one between `first` and `last`.
    pub fn set_again(&mut self, stop: &Stop, first: Instant, last: Instant) {
        let next = stop.origins.iter().map(|&origin| Moment { first, last, origin });
        self.moments.extend(next);
    }

    /// Returns whether no deadline has ended since the last check.
    pub fn check(&mut self) -> Result<(), Lateness> {
        self.check_at(Instant::now(), SystemTime::now())
    }

    fn check_at(&mut self, now: Instant, wall: SystemTime) -> Result<(), Lateness> {
        let since = std::mem::replace(&mut self.checked, now);
        if self.ranges().any(|stop| stop.from <= now && stop.to >= since) {
            return Err(Lateness::DeadlineWithinCommands);
        }
        let expected = self.started.1 + (now - self.started.0);
        let step = wall.duration_since(expected).unwrap_or_else(|error| error.duration());
        if step > STEP_MAX { Err(Lateness::ClockSet) } else { Ok(()) }
    }

    /// Returns the start of the first period of this length, at `from` or later, in which no deadline can end.
    pub fn quiet(&self, from: Instant, length: Duration) -> Instant {
        let mut start = from;
        while let Some(stop) = self.ranges().find(|stop| stop.from <= start + length && stop.to >= start) {
            start = stop.to + Duration::from_millis(1);
        }
        start
    }

    /// Returns when the servers must be stopped from the last check until then, in order. Removes deadlines before
    /// that.
    pub fn stops(&mut self, until: Instant) -> Result<Vec<Stop>, Lateness> {
        let now = self.checked;
        let mut stops: Vec<Stop> = self.ranges().filter(|stop| stop.to >= now && stop.from < until).collect();
        stops.sort_by_key(|stop| stop.from);
        stops.dedup_by(|next, last| {
            let is_within = next.from <= last.to;
            if is_within {
                last.to = last.to.max(next.to);
                last.origins.append(&mut next.origins);
            }
            is_within
        });
        self.checked = until;
        self.moments.retain(|moment| moment.last + Duration::from_secs(2) + AFTER >= until);
        match stops.iter().find(|stop| stop.origins.len() > 1) {
            Some(_) => Err(Lateness::DeadlinesTooClose),
            None => Ok(stops),
        }
    }

    fn ranges(&self) -> impl Iterator<Item = Stop> {
        self.moments.iter().flat_map(|moment| {
            SECONDS.map(|seconds| {
                let later = Duration::from_secs(seconds);
                Stop {
                    from: moment.first + later - BEFORE,
                    to: moment.last + later + AFTER,
                    origins: BTreeSet::from([moment.origin]),
                }
            })
        })
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlineWithinCommands => "a deadline may have come while commands were compared",
            Self::DeadlinesTooClose => "two deadlines may have come at once",
            Self::StoppedLate => "a server was stopped late before a deadline",
            Self::NotAsleep => "a server did not get to sleep between two deadlines",
            Self::ClockSet => "the wall clock was set",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    impl Deadlines {
        /// A moment at which both clocks are equal.
        fn check_in_step(&mut self, now: Instant) -> Result<(), Lateness> {
            let (start, wall) = self.started;
            self.check_at(now, wall + (now - start))
        }
    }

    #[test]
    fn commands_beside_a_deadline_count_and_those_over_it_do_not() {
        let start = Instant::now();
        let mut deadlines = Deadlines::new(start);
        deadlines.set(start, start + ms(5));
        assert_eq!(deadlines.check_in_step(start + ms(900)), Ok(()));
        assert_eq!(deadlines.check_in_step(start + ms(995)), Err(Lateness::DeadlineWithinCommands));
        // Two checks with a deadline between them.
        let mut deadlines = Deadlines::new(start);
        deadlines.set(start, start + ms(5));
        assert_eq!(deadlines.check_in_step(start + ms(1500)), Err(Lateness::DeadlineWithinCommands));
        assert_eq!(deadlines.check_in_step(start + ms(1900)), Ok(()));
    }

    #[test]
    fn every_deadline_is_slept_over_once() {
        let start = Instant::now();
        let mut deadlines = Deadlines::new(start);
        deadlines.set(start, start + ms(5));
        deadlines.set(start + ms(40), start + ms(41));
        assert_eq!(deadlines.check_in_step(start + ms(100)), Ok(()));
        let stops = deadlines.stops(start + ms(1250)).expect("they are far apart");
        let spans: Vec<_> = stops.iter().map(|stop| (stop.from - start, stop.to - start)).collect();
        assert_eq!(spans, [(ms(990), ms(1008)), (ms(1030), ms(1044))]);
        // A deadline that ends sets another one.
        deadlines.set_again(&stops[0], start + ms(1008), start + ms(1010));
        assert_eq!(deadlines.check_in_step(start + ms(1300)), Ok(()));
        let stops = deadlines.stops(start + ms(2500)).expect("one is the child of the other");
        let spans: Vec<_> = stops.iter().map(|stop| (stop.from - start, stop.to - start)).collect();
        assert_eq!(spans, [(ms(1990), ms(2013)), (ms(2030), ms(2044))]);
    }

    #[test]
    fn deadlines_that_are_too_close_are_reported() {
        let start = Instant::now();
        let mut deadlines = Deadlines::new(start);
        deadlines.set(start, start + ms(5));
        deadlines.set(start + ms(10), start + ms(11));
        assert_eq!(deadlines.stops(start + ms(1250)), Err(Lateness::DeadlinesTooClose));
    }

    #[test]
    fn a_quiet_time_lies_between_deadlines() {
        let start = Instant::now();
        let mut deadlines = Deadlines::new(start);
        deadlines.set(start, start);
        deadlines.set(start + ms(100), start + ms(100));
        assert_eq!(deadlines.quiet(start + ms(500), ms(200)), start + ms(500));
        assert_eq!(deadlines.quiet(start + ms(900), ms(50)), start + ms(900));
        assert_eq!(deadlines.quiet(start + ms(900), ms(200)), start + ms(1104));
    }

    #[test]
    fn a_step_of_the_wall_clock_is_reported() {
        let mut deadlines = Deadlines::new(Instant::now());
        let (now, wall) = deadlines.started;
        assert_eq!(deadlines.check_at(now + ms(100), wall + ms(100)), Ok(()));
        assert_eq!(deadlines.check_at(now + ms(100), wall + ms(102)), Err(Lateness::ClockSet));
        assert_eq!(deadlines.check_at(now + ms(100), wall + ms(50)), Err(Lateness::ClockSet));
    }
}
