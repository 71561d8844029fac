//! What the control client writes down.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::control::Fault;

/// The longest latency that is told apart, in microseconds: ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;

/// Times at which the server was stopped by a signal: what the control client waits then is not the server's doing.
#[derive(Default)]
pub struct Stops(Mutex<Vec<(Instant, Option<Instant>)>>);

impl Stops {
    /// The server stands still from now on.
    pub fn begin(&self) {
        self.0.lock().expect("nobody panics with it").push((Instant::now(), None));
    }

    /// The server goes on.
    pub fn end(&self) {
        let mut stops = self.0.lock().expect("nobody panics with it");
        stops.last_mut().expect("it was begun").1 = Some(Instant::now());
    }

    /// How much of this time it ran.
    pub fn without(&self, begin: Instant, end: Instant) -> Duration {
        let stops = self.0.lock().expect("nobody panics with it");
        let stopped = |&(from, to): &(Instant, Option<Instant>)| {
            to.unwrap_or(end).min(end).saturating_duration_since(from.max(begin))
        };
        end.saturating_duration_since(begin).saturating_sub(stops.iter().map(stopped).sum())
    }
}

/// What one thread of the control client, or all of them, went through.
pub struct Tally {
    /// Jobs put, reserved, compared and deleted.
    pub cycles: u64,
    /// Puts that were refused where that is what the server has to do.
    pub refused: u64,
    /// Jobs that were put and never came back.
    pub lost: u64,
    /// What came that should not have.
    pub faults: Vec<Fault>,
    /// How much too early something came at most.
    pub early: Duration,
    /// From a command to its answer, and from when something was due to when it came, in microseconds.
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
            faults: Vec::new(),
            early: Duration::ZERO,
            latencies: histogram(),
            lateness: histogram(),
        }
    }
}

impl Tally {
    /// Something came so much too early, or not.
    pub fn note_early(&mut self, early: Duration) {
        self.early = self.early.max(early);
    }

    /// Adds what another thread went through.
    pub fn add(&mut self, other: Tally) {
        self.cycles += other.cycles;
        self.refused += other.refused;
        self.lost += other.lost;
        self.faults.extend(other.faults);
        self.early = self.early.max(other.early);
        self.latencies.add(other.latencies).expect("the bounds are the same");
        self.lateness.add(other.lateness).expect("the bounds are the same");
    }

    /// Whether everything came back once, as it was, and in its turn.
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.faults.is_empty()
    }
}

/// Writes a duration down.
pub fn note(histogram: &mut Histogram<u64>, duration: Duration) {
    histogram.saturating_record(duration.as_micros() as u64);
}

/// A quantile in milliseconds.
pub fn ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1000.0
}
