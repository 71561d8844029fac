//! Counts and latencies of connections under load.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use hdrhistogram::Histogram;

use crate::failure::Complaint;

/// Longer latencies are recorded as this.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;

/// Three digits: every value is exact within 0.1 %.
const LATENCY_FIGURES: u8 = 3;

/// The commands of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    Put,
    Reserve,
    ReserveWithTimeout,
    Delete,
    Use,
    Watch,
    Ignore,
    ListTubes,
    Lpush,
    Brpop,
    Unlink,
}

impl Command {
    const TEXTS: [&str; 11] = [
        "put",
        "reserve",
        "reserve-with-timeout",
        "delete",
        "use",
        "watch",
        "ignore",
        "list-tubes",
        "LPUSH",
        "BRPOP",
        "UNLINK",
    ];

    /// Returns the spelling of the protocol.
    pub fn text(self) -> &'static str {
        Command::TEXTS[self as usize]
    }
}

/// Number of sent commands of each kind, warm-up and clean-up included: the server must have counted the same.
#[derive(Default)]
pub struct Sent([Cell<u64>; Command::TEXTS.len()]);

impl Sent {
    pub fn count(&self, command: Command) {
        self.0[command as usize].update(|count| count + 1);
    }

    /// Returns the counters that are not 0, by name.
    pub fn totals(&self) -> BTreeMap<&'static str, u64> {
        let all = Command::TEXTS.into_iter().zip(self.0.iter().map(Cell::get));
        all.filter(|&(_, count)| count > 0).collect()
    }
}

/// Which of its two times decides whether an operation belongs to the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Belongs {
    /// Its begin: every operation that begins in the window is awaited. For counts and open loops.
    ByStart,
    /// Its end. For closed loops that run for a time.
    ByEnd,
}

/// A latency histogram.
pub type Latencies = Histogram<u32>;

/// The measurement of one phase.
pub struct Meter {
    belongs: Belongs,
    window: Cell<(u64, u64)>,
    /// In nanoseconds.
    pub latencies: RefCell<Latencies>,
    /// How late operations began, in nanoseconds.
    pub lateness: RefCell<Latencies>,
    /// Measured operations.
    pub operations: Cell<u64>,
    /// When the last of these ended.
    pub last_done_ns: Cell<u64>,
    by_connection: Vec<Cell<u64>>,
    /// Operations in flight.
    pub unsettled: Cell<u64>,
    pub replies: Cell<u64>,
    pub errors: Cell<u64>,
    complaints: RefCell<Vec<Complaint>>,
}

impl Meter {
    /// Creates a meter whose window is not open.
    pub fn new(belongs: Belongs, connections: usize) -> Rc<Meter> {
        Rc::new(Meter {
            belongs,
            window: Cell::new((u64::MAX, u64::MAX)),
            latencies: RefCell::new(latencies()),
            lateness: RefCell::new(latencies()),
            operations: Cell::default(),
            last_done_ns: Cell::default(),
            by_connection: vec![Cell::default(); connections],
            unsettled: Cell::default(),
            replies: Cell::default(),
            errors: Cell::default(),
            complaints: RefCell::default(),
        })
    }

    /// Opens the window at `now_ns`.
    pub fn open(&self, now_ns: u64) {
        self.window.set((now_ns, u64::MAX));
    }

    /// Closes the window before `now_ns`.
    pub fn close(&self, now_ns: u64) {
        self.window.set((self.window.get().0, now_ns));
    }

    /// Records the begin of an operation, `late_ns` after it was due.
    pub fn begun(&self, start_ns: u64, late_ns: u64) {
        self.unsettled.update(|count| count + 1);
        if self.is_inside(start_ns) {
            self.lateness.borrow_mut().saturating_record(late_ns);
        }
    }

    /// Records the end of an operation, successful or not.
    pub fn settled(&self) {
        self.unsettled.update(|count| count.checked_sub(1).expect("what ends has begun"));
    }

    /// Records the latency of a successful operation.
    pub fn done(&self, connection: usize, start_ns: u64, now_ns: u64) {
        let decides = match self.belongs {
            Belongs::ByStart => start_ns,
            Belongs::ByEnd => now_ns,
        };
        if self.is_inside(decides) {
            self.latencies.borrow_mut().saturating_record(now_ns.saturating_sub(start_ns));
            self.operations.update(|count| count + 1);
            self.last_done_ns.set(now_ns);
            self.by_connection[connection].update(|count| count + 1);
        }
    }

    /// Counts an error, and prints the first one of each kind.
    pub fn complain(&self, complaint: Complaint) {
        self.errors.update(|count| count + 1);
        let mut complaints = self.complaints.borrow_mut();
        if !complaints.contains(&complaint) {
            eprintln!("beanring-bench: error: {complaint} (more of these are only counted)");
            complaints.push(complaint);
        }
    }

    /// Returns when the window opened.
    pub fn opened_ns(&self) -> u64 {
        self.window.get().0
    }

    /// Returns the first error.
    pub fn first_complaint(&self) -> Option<Complaint> {
        self.complaints.borrow().first().copied()
    }

    /// Returns the fewest and the most operations of one connection, relative to the mean.
    pub fn shares(&self) -> (f64, f64) {
        let counts = || self.by_connection.iter().map(Cell::get);
        let mean = counts().sum::<u64>() as f64 / self.by_connection.len() as f64;
        let share = |count: Option<u64>| count.map_or(0.0, |count| count as f64 / mean);
        (share(counts().min()), share(counts().max()))
    }

    fn is_inside(&self, time_ns: u64) -> bool {
        let (from, to) = self.window.get();
        from <= time_ns && time_ns < to
    }
}

fn latencies() -> Latencies {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_FIGURES).expect("the bounds are in order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_decides_by_end() {
        let meter = Meter::new(Belongs::ByEnd, 2);
        meter.done(0, 1, 5);
        meter.open(10);
        meter.done(0, 5, 10);
        meter.done(1, 5, 19);
        meter.close(20);
        meter.done(0, 15, 20);
        assert_eq!(meter.operations.get(), 2);
        let latencies = meter.latencies.borrow();
        assert_eq!([0.0, 1.0].map(|quantile| latencies.value_at_quantile(quantile)), [5, 14]);
    }

    #[test]
    fn the_window_decides_by_start() {
        let meter = Meter::new(Belongs::ByStart, 2);
        meter.open(10);
        meter.done(0, 9, 12);
        meter.done(0, 10, 1000);
        assert_eq!(meter.operations.get(), 1);
    }

    #[test]
    fn shares_are_of_the_mean() {
        let meter = Meter::new(Belongs::ByStart, 2);
        meter.open(0);
        (0..3).for_each(|_| meter.done(0, 1, 2));
        meter.done(1, 1, 2);
        assert_eq!(meter.shares(), (0.5, 1.5));
    }

    #[test]
    fn long_latencies_are_kept_within_a_thousandth() {
        let meter = Meter::new(Belongs::ByStart, 1);
        meter.open(0);
        meter.done(0, 0, 7_000_000_000);
        let got = meter.latencies.borrow().value_at_quantile(1.0) as f64;
        assert!((got / 7e9 - 1.0).abs() < 0.001);
    }
}
