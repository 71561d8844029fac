//! Why puts are refused: the counts that `/metrics` shows, and a warning when memory is the reason.

use tracing::warn;

use super::Config;
use super::outcome::{Refusal, Shortage};
use crate::time::{Span, Time};
use crate::values::log_limit::LogLimit;

/// How often, at most, a refusal at the limit of memory is logged.
const WARNING_INTERVAL: Span = Span::from_secs(60);

/// Why a well-formed put was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::server) enum PutReason {
    Memory,
    /// The share of idempotency keys of the memory limit is used up.
    Keys,
    Disk,
    TubeRule,
    Draining,
    TooBig,
}

/// How long refusals are recent at least, and half of how long they are at most.
const RECENT: Span = Span::from_secs(300);

type Counts = [u64; PutReason::ALL.len()];

/// Counts of refused puts by their reason. A batch counts once.
pub(super) struct PutRefusals {
    counts: Counts,
    /// The counts when the present interval began, and the one before.
    begin: Counts,
    begin_before: Counts,
    /// When the present interval began.
    begun_at: Time,
    at_memory_limit: LogLimit,
}

impl PutReason {
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Keys, Self::Disk, Self::TubeRule, Self::Draining, Self::TooBig];

    /// The value of the label `reason`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Keys => "keys",
            Self::Disk => "disk",
            Self::TubeRule => "tube_rule",
            Self::Draining => "draining",
            Self::TooBig => "too_big",
        }
    }

    /// The same in words.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Memory => "the limit of memory is reached",
            Self::Keys => "idempotency keys have used up their share of the memory",
            Self::Disk => "the disk of the job log is full",
            Self::TubeRule => "a tube was full by its rule",
            Self::Draining => "the server is in drain mode",
            Self::TooBig => "the job was too large",
        }
    }

    /// Whether the server, and neither the put itself nor a rule that an operator has set, is the cause.
    pub const fn is_of_the_server(self) -> bool {
        match self {
            Self::Memory | Self::Keys | Self::Disk | Self::Draining => true,
            Self::TubeRule | Self::TooBig => false,
        }
    }

    const fn of(refusal: Refusal) -> Option<Self> {
        Some(match refusal {
            Refusal::OutOfMemory(Shortage::Memory) => Self::Memory,
            Refusal::OutOfMemory(Shortage::Keys) => Self::Keys,
            Refusal::OutOfMemory(Shortage::JobLog) => Self::Disk,
            Refusal::OutOfMemory(Shortage::Rule(_)) => Self::TubeRule,
            Refusal::Draining => Self::Draining,
            Refusal::JobTooBig => Self::TooBig,
            _ => return None,
        })
    }
}

impl PutRefusals {
    pub const fn new() -> Self {
        const NONE: Counts = [0; PutReason::ALL.len()];
        Self {
            counts: NONE,
            begin: NONE,
            begin_before: NONE,
            begun_at: Time::ZERO,
            at_memory_limit: LogLimit::every(WARNING_INTERVAL),
        }
    }

    /// Counts a refused put. Whoever asks for recent ones begins another interval first.
    pub const fn add(&mut self, reason: PutReason) {
        self.counts[reason as usize] += 1;
    }

    /// Counts a refused `put`, or a refused batch.
    #[cold]
    pub fn note(&mut self, refusal: Refusal, config: &Config, now: Time) {
        let Some(reason) = PutReason::of(refusal) else { return };
        self.step(now);
        self.add(reason);
        if let (Refusal::OutOfMemory(Shortage::Memory), Some(max)) = (refusal, config.max_memory_bytes)
            && let Some(left_out) = self.at_memory_limit.admit(now)
        {
            warn!(
                "the limit of memory is reached: put is refused with OUT_OF_MEMORY; delete jobs, or raise --max-memory, which is \
                 {max} bytes{left_out}"
            );
        }
    }

    /// Begins another interval, if the present one is over.
    fn step(&mut self, now: Time) {
        if now >= self.begun_at + RECENT {
            self.begin_before = self.since(now);
            (self.begin, self.begun_at) = (self.counts, now);
        }
    }

    /// The counts when the recent time began.
    fn since(&self, now: Time) -> Counts {
        let over = self.begun_at + RECENT;
        match now {
            _ if now < over => self.begin_before,
            _ if now < over + RECENT => self.begin,
            _ => self.counts,
        }
    }

    /// The number of puts with this reason that were refused in the last 5 to 10 minutes.
    pub fn recent(&self, reason: PutReason, now: Time) -> u64 {
        self.count(reason) - self.since(now)[reason as usize]
    }

    /// The number of refused puts with this reason.
    pub const fn count(&self, reason: PutReason) -> u64 {
        self.counts[reason as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_recent_for_some_minutes() {
        let at = |seconds: u32| Time::ZERO + Span::from_secs(10_000 + seconds);
        let mut refusals = PutRefusals::new();
        for (now, adds, recent) in [
            (0, 3, 3),
            (299, 0, 3),
            (301, 1, 4),
            (599, 0, 4),
            (602, 1, 2),
            (1100, 0, 1),
            (1203, 0, 0),
            (9000, 2, 2),
        ] {
            for _ in 0..adds {
                refusals.step(at(now));
                refusals.add(PutReason::Memory);
            }
            assert_eq!(refusals.recent(PutReason::Memory, at(now)), recent, "after {now} s");
        }
        assert_eq!(refusals.recent(PutReason::Disk, at(9000)), 0);
    }
}
