//! When operations begin. In a closed loop an operation begins when another one ends. In an open loop it begins by a
//! schedule that does not depend on the server, so its latency includes the time that it waits to begin.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::connection::Lane;

const NS_PER_S: u128 = 1_000_000_000;

/// The minimum sleep of the pacer. Above 20,000 operations per second it releases several at a time.
const SLEEP_NS_MIN: u64 = 50_000;

/// Nanoseconds since the start of the run.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Returns the time.
    pub fn now_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).expect("a run ends within 500 years")
    }
}

/// The operations that may still begin.
#[derive(Clone)]
pub enum Pace {
    /// As many as the supply holds, whenever one may begin.
    Closed(Rc<Supply>),
    /// Those that the schedule has released.
    Open(Rc<Schedule>),
}

/// Operations of a closed loop that have not begun.
pub struct Supply(Cell<u64>);

impl Supply {
    /// Creates a supply of `count` operations.
    pub fn new(operations: u64) -> Rc<Supply> {
        Rc::new(Supply(Cell::new(operations)))
    }

    /// Takes one operation.
    pub fn take(&self) -> bool {
        self.0.replace(self.0.get().saturating_sub(1)) > 0
    }

    /// Changes the number of operations.
    pub fn set(&self, operations: u64) {
        self.0.set(operations);
    }

    /// Returns whether none is left.
    pub fn is_empty(&self) -> bool {
        self.0.get() == 0
    }
}

/// A schedule: operation `k` is due at `start + k / rate` and belongs to connection `k % connections`.
pub struct Schedule {
    start_ns: u64,
    rate_per_s: u64,
    connections: u64,
    /// The total number of operations.
    total: Cell<u64>,
    released: Cell<u64>,
    begun: Cell<u64>,
}

impl Schedule {
    /// Creates a schedule of `total` operations over `connections`.
    pub fn new(start_ns: u64, rate_per_s: u64, connections: usize, total: u64) -> Schedule {
        assert!(rate_per_s > 0 && connections > 0);
        let connections = connections as u64;
        Schedule {
            start_ns,
            rate_per_s,
            connections,
            total: Cell::new(total),
            released: Cell::new(0),
            begun: Cell::new(0),
        }
    }

    /// Returns when operation `k` is due.
    pub fn due_ns(&self, k: u64) -> u64 {
        let after_ns = u128::from(k) * NS_PER_S / u128::from(self.rate_per_s);
        self.start_ns.saturating_add(u64::try_from(after_ns).unwrap_or(u64::MAX))
    }

    /// Returns when the last operation is due.
    pub fn end_ns(&self) -> u64 {
        self.due_ns(self.total.get())
    }

    /// Returns how many operations are due by `now_ns`.
    pub fn due_by(&self, now_ns: u64) -> u64 {
        let Some(passed_ns) = now_ns.checked_sub(self.start_ns) else { return 0 };
        // The largest k with k * NS / rate < passed + 1, where the division rounds down.
        let due = ((u128::from(passed_ns) + 1) * u128::from(self.rate_per_s)).div_ceil(NS_PER_S) as u64;
        due.min(self.total.get())
    }

    /// Returns when the `nth` operation of `connection` is due, if it has been released.
    pub fn released_start(&self, connection: usize, nth: u64) -> Option<u64> {
        let k = nth * self.connections + connection as u64;
        (k < self.released.get()).then(|| self.due_ns(k))
    }

    /// Records that a released operation has begun.
    pub fn begun(&self) {
        self.begun.update(|count| count + 1);
    }

    /// Returns whether some operations have not begun.
    pub fn is_owing(&self) -> bool {
        self.begun.get() < self.total.get()
    }

    /// Returns whether all operations have been released.
    pub fn is_over(&self) -> bool {
        self.released.get() >= self.total.get()
    }

    /// Ends the schedule and drops the released operations. If the rate is too high for the server, working them off
    /// would take longer than the run did.
    pub fn stop(&self) {
        self.total.set(0);
        self.released.set(0);
    }
}

/// Releases the operations of `schedule` when they are due, and wakes their connections.
pub async fn release(schedule: Rc<Schedule>, lanes: Rc<[Lane]>, clock: Clock) -> io::Result<()> {
    // tokio's own timers have a resolution of milliseconds, which is longer than most latencies here.
    let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
    let ticks = watch(&timer)?;
    while !schedule.is_over() {
        let now_ns = clock.now_ns();
        let before = schedule.released.get();
        let due = schedule.due_by(now_ns);
        schedule.released.set(due);
        for k in before..due.min(before + schedule.connections) {
            lanes[(k % schedule.connections) as usize].wake();
        }
        if !schedule.is_over() {
            let sleep_ns = schedule.due_ns(due).saturating_sub(now_ns).max(SLEEP_NS_MIN);
            let sleep = TimeSpec::from_duration(Duration::from_nanos(sleep_ns));
            timer.set(Expiration::OneShot(sleep), TimerSetTimeFlags::empty())?;
            ticks.readable().await?.clear_ready();
        }
    }
    lanes.iter().for_each(Lane::wake);
    Ok(())
}

#[expect(unsafe_code)]
fn watch(timer: &TimerFd) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    // SAFETY: the descriptor must stay open while it is registered; the borrow keeps the timer alive.
    Ok(unsafe { AsyncFd::register_with_interest(timer.as_fd(), Interest::READABLE) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_due_exactly_at_its_time() {
        for rate in [1, 3, 7, 1000, 999_983, 1_000_000_000] {
            let schedule = Schedule::new(1_000, rate, 4, u64::MAX);
            assert_eq!(schedule.due_by(999), 0);
            for k in [0, 1, 2, 3, 10, 12_345, 1_000_003] {
                let due = schedule.due_ns(k);
                assert_eq!(schedule.due_by(due).max(k + 1), schedule.due_by(due), "k {k} rate {rate}");
                if k > 0 {
                    assert!(schedule.due_by(due - 1) <= k, "k {k} rate {rate}");
                }
            }
        }
    }

    #[test]
    fn a_second_holds_the_rate() {
        let schedule = Schedule::new(0, 50_000, 16, u64::MAX);
        assert_eq!(schedule.due_by(999_999_999), 50_000);
        assert_eq!(schedule.due_ns(50_000), 1_000_000_000);
    }

    #[test]
    fn connections_take_turns() {
        let schedule = Schedule::new(0, 1_000, 3, 8);
        schedule.released.set(schedule.due_by(5_000_000));
        let starts =
            |connection| (0..).map_while(|nth| schedule.released_start(connection, nth)).collect::<Vec<_>>();
        assert_eq!(starts(0), [0, 3_000_000]);
        assert_eq!(starts(1), [1_000_000, 4_000_000]);
        assert_eq!(starts(2), [2_000_000, 5_000_000]);
        assert!(!schedule.is_over());
        schedule.released.set(schedule.due_by(1_000_000_000));
        assert_eq!(starts(1).len(), 3);
        assert_eq!(starts(2).len(), 2, "the total of 8 ends the schedule");
        assert!(schedule.is_over());
    }

    #[test]
    fn a_stopped_schedule_is_over() {
        let schedule = Schedule::new(0, 10, 1, 100);
        schedule.released.set(3);
        schedule.begun();
        assert!(schedule.is_owing());
        schedule.stop();
        assert!(schedule.is_over() && !schedule.is_owing());
        assert_eq!(schedule.released_start(0, 1), None, "what is released is not owed");
        assert_eq!(schedule.due_by(u64::MAX / 2), 0);
    }
}
