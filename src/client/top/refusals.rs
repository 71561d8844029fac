//! Puts that the server has refused in the last minutes, by reason.

use std::time::{Duration, Instant};

use super::super::stats::Stats;

/// How long refusals are recent at least, and half of how long they are at most: as in the console.
const RECENT: Duration = Duration::from_mins(5);

/// Keys of `stats`, and the reason on the screen. A full tube and a large job are no lack of the server.
const REASONS: [(&str, &str); 4] = [
    ("put-refusals-memory", "memory limit"),
    ("put-refusals-keys", "idempotency keys"),
    ("put-refusals-disk", "full disk"),
    ("put-refusals-draining", "drain mode"),
];

type Counts = [u64; REASONS.len()];

/// Counts of refused puts since the program has seen the first statistics.
#[derive(Default, Debug)]
pub(super) struct Refusals {
    counts: Counts,
    /// The counts at the begin of the present interval, and of the one before.
    begins: [Counts; 2],
    begun_at: Option<Instant>,
}

impl Refusals {
    /// Takes over the counts of the server.
    pub(super) fn read(&mut self, now: Instant, stats: &Stats) {
        self.counts = REASONS.map(|(key, _)| stats.number(key));
        match self.begun_at {
            None => (self.begins, self.begun_at) = ([self.counts; 2], Some(now)),
            Some(at) if now.duration_since(at) >= RECENT => {
                (self.begins, self.begun_at) = ([self.counts, self.begins[0]], Some(now));
            }
            Some(_) => {}
        }
    }

    /// `puts refused: 12 (memory limit), 3 (full disk)`, if there are any.
    pub(super) fn text(&self) -> Option<String> {
        let recent = |at: usize| self.counts[at].saturating_sub(self.begins[1][at]);
        let parts = REASONS.iter().enumerate().filter(|(at, _)| recent(*at) > 0);
        let parts: Vec<String> = parts.map(|(at, (_, why))| format!("{} ({why})", recent(at))).collect();
        (!parts.is_empty()).then(|| format!("puts refused: {}", parts.join(", ")))
    }
}
