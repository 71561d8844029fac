//! Which limit a command has met that was refused with `OUT_OF_MEMORY`. The reply of the protocol does not name it.

use super::api::Operation;
use super::response::{ErrorKind, Refusal};
use super::target::PutTarget;
use crate::queue::{KeyStats, MoveBar};
use crate::server::Core;
use crate::time::Time;
use crate::values::tube_rules::RuleKey;
use crate::wal::Wal;

/// What the server lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortage {
    Tubes,
    /// The tube is full by this rule.
    Rule(RuleKey),
    RuledTubes,
    JobLog,
    /// A record of the job log is too short for the job with the name of the other tube.
    Record,
    /// The share of idempotency keys has no room.
    Keys,
    Memory,
}

/// Counters of refusals, which tell afterwards why a command was refused.
#[derive(Clone, Copy)]
pub(super) struct RefusalCounts {
    tubes: u64,
    rules: u64,
    keys: u64,
}

impl Core {
    pub(super) fn refusal_counts(&self) -> RefusalCounts {
        let KeyStats { refusals: keys, .. } = self.engine.key_stats();
        RefusalCounts { tubes: self.tube_refusals, rules: self.engine.rule_totals().refusals, keys }
    }

    /// What an operation has lacked that was refused just now.
    pub(super) fn shortage(&self, operation: &Operation, before: RefusalCounts, now: Time) -> Shortage {
        let counts = self.refusal_counts();
        if counts.tubes > before.tubes {
            let count = self.engine.tubes().len();
            let is_at_max = self.config.max_tubes.is_some_and(|max| count >= max as usize);
            return if is_at_max { Shortage::Tubes } else { Shortage::Memory };
        }
        match operation {
            Operation::Put { .. } if counts.keys > before.keys => Shortage::Keys,
            Operation::Put { job: PutTarget { tube, .. }, bytes }
                if counts.rules > before.rules
                    && let Some(key) = self.engine.full_by(tube.get(), 1, (*bytes).into()) =>
            {
                Shortage::Rule(key)
            }
            Operation::MoveJob { id, to }
                if let Some(job) = self.engine.jobs().find(*id)
                    && let Some(bar) = self.engine.bar(to.get(), job, now) =>
            {
                self.shortage_of(bar).unwrap_or(Shortage::JobLog)
            }
            Operation::Config { .. } => Shortage::RuledTubes,
            _ if self.is_disk_full() => Shortage::JobLog,
            _ => Shortage::Memory,
        }
    }

    /// What a tube lacks for a job that shall move there. It lacks nothing if it has the key of the job.
    pub(super) fn shortage_of(&self, bar: MoveBar) -> Option<Shortage> {
        match bar {
            MoveBar::KeyExists => None,
            MoveBar::Full(key) => Some(Shortage::Rule(key)),
            MoveBar::NoKeyRoom => Some(Shortage::Keys),
            MoveBar::NoRoom if self.is_disk_full() => Some(Shortage::JobLog),
            MoveBar::NoRoom => Some(Shortage::Record),
        }
    }

    fn is_disk_full(&self) -> bool {
        self.wal.as_ref().is_some_and(Wal::is_full)
    }
}

impl Shortage {
    pub fn refusal(self) -> Refusal {
        let message = match self {
            Self::Tubes => {
                "there are as many tubes as --max-tubes permits: use another tube, or raise the limit"
            }
            Self::Rule(key) => {
                let key = key.word();
                let message = format!("the tube is full by its rule {key}: delete jobs, or raise the rule");
                return Refusal::new(ErrorKind::OutOfMemory, message);
            }
            Self::RuledTubes => "1,000 tubes have rules: remove those of another one",
            Self::JobLog => "the disk of the job log is full: make room on it",
            Self::Record => "the body of the job leaves no room for this tube name: use a shorter one",
            Self::Keys => {
                "idempotency keys take their share of --max-memory: use a shorter time to live, or flush kept keys (flush-keys)"
            }
            Self::Memory => {
                "the server is at its memory limit (--max-memory): delete jobs, or raise the limit"
            }
        };
        Refusal::new(ErrorKind::OutOfMemory, message)
    }
}
