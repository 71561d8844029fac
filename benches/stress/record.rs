//! What the control client measures.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::control::Violation;

/// The longest latency that is recorded, in microseconds: ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;

/// Periods in which a signal had stopped the server. The control client's latency does not include them.
#[derive(Default)]
pub struct Stops(Mutex<Vec<(Instant, Option<Instant>)>>);

impl Stops {
    /// Records that the server has been stopped.
    pub fn begin(&self) {
        self.0.lock().expect("no thread panicked while holding the lock").push((Instant::now(), None));
    }

    /// Records that the server has been continued.
    pub fn end(&self) {
        let mut stops = self.0.lock().expect("no thread panicked while holding the lock");
        stops.last_mut().expect("the server was stopped before").1 = Some(Instant::now());
    }

    /// Returns how long the server ran between two moments.
    pub fn without(&self, begin: Instant, end: Instant) -> Duration {
        let stops = self.0.lock().expect("no thread panicked while holding the lock");
        let stopped = |&(from, to): &(Instant, Option<Instant>)| {
            to.unwrap_or(end).min(end).saturating_duration_since(from.max(begin))
        };
        end.saturating_duration_since(begin).saturating_sub(stops.iter().map(stopped).sum())
    }
}

/// Counts and latencies of one thread of the control client, or of all threads.
pub struct Tally {
    /// Jobs that were put, reserved, compared and deleted.
    pub cycles: u64,
    /// Puts that the server refused while the fault made it refuse them.
    pub refused: u64,
    /// Jobs that were put and never came back.
    pub lost: u64,
    /// Replies and jobs that must not occur.
    pub violations: Vec<Violation>,
    /// The largest time by which something was early.
    pub early: Duration,
    /// Latency from a command to its reply, and from due time to arrival, in microseconds.
    pub latencies: Histogram<u64>,
    /// How late the client's own pauses ended.
    pub lateness: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are in order");
        Self {
            cycles: 0,
            refused: 0,
            lost: 0,
            violations: Vec::new(),
            early: Duration::ZERO,
            latencies: histogram(),
            lateness: histogram(),
        }
    }
}

impl Tally {
    /// Records by how much something was early, if it was.
    pub fn note_early(&mut self, early: Duration) {
        self.early = self.early.max(early);
    }

    /// Adds the counts of another thread.
    pub fn add(&mut self, other: Tally) {
        self.cycles += other.cycles;
        self.refused += other.refused;
        self.lost += other.lost;
        self.violations.extend(other.violations);
        self.early = self.early.max(other.early);
        self.latencies.add(other.latencies).expect("the bounds are the same");
        self.lateness.add(other.lateness).expect("the bounds are the same");
    }

    /// Returns whether every job came back once, unaltered and in order.
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.violations.is_empty()
    }
}

/// Records a duration.
pub fn note(histogram: &mut Histogram<u64>, duration: Duration) {
    histogram.saturating_record(duration.as_micros() as u64);
}

/// Returns a quantile in milliseconds.
pub fn ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}
