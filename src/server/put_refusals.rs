//! Why puts are refused: the counts that `/metrics` shows, and a warning when memory is the reason.

use tracing::warn;

use super::Core;
use super::client_state::{Input, ProtocolState};
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

/// Counts of refused puts by their reason. A batch counts once.
pub(super) struct PutRefusals {
    counts: [u64; PutReason::ALL.len()],
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
        Self { counts: [0; PutReason::ALL.len()], at_memory_limit: LogLimit::every(WARNING_INTERVAL) }
    }

    /// Counts a refused put.
    pub const fn add(&mut self, reason: PutReason) {
        self.counts[reason as usize] += 1;
    }

    /// The number of refused puts with this reason.
    pub const fn count(&self, reason: PutReason) -> u64 {
        self.counts[reason as usize]
    }
}

impl Core {
    /// Counts a `put`, or a batch, that was refused before its last byte arrived. Its client leaves now, and gets no reply. A put that
    /// would be refused for its tube or in drain mode is not counted: that is decided once the body is complete.
    pub(super) fn note_put_cut_off(&mut self, protocol: &ProtocolState, now: Time) {
        let of_batch = protocol.put_batch.as_ref().and_then(|batch| batch.refusal());
        let of_body = match protocol.input {
            Input::Skip { refusal, .. } => Some(refusal),
            _ => None,
        };
        if let Some(refusal) = of_batch.or(of_body) {
            self.note_refused_put(refusal, now);
        }
    }

    /// Counts a refused `put`, or a refused batch.
    #[cold]
    pub(super) fn note_refused_put(&mut self, refusal: Refusal, now: Time) {
        let Some(reason) = PutReason::of(refusal) else { return };
        let refusals = &mut self.put_refusals;
        refusals.add(reason);
        if let (Refusal::OutOfMemory(Shortage::Memory), Some(max)) = (refusal, self.config.max_memory_bytes)
            && let Some(left_out) = refusals.at_memory_limit.admit(now)
        {
            warn!(
                "the limit of memory is reached: put is refused with OUT_OF_MEMORY; delete jobs, or raise --max-memory, which is \
                 {max} bytes{left_out}"
            );
        }
    }
}
