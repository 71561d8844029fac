//! Which limit a command has met that was refused with `OUT_OF_MEMORY`. The reply of the protocol does not name it.

use super::api::Operation;
use super::response::{ErrorKind, Refusal};
use super::target::PutTarget;
use crate::server::Core;
use crate::tube_rules::RuleKey;
use crate::wal::Wal;

/// What the server lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortage {
    Tubes,
    /// The tube is full by this rule.
    Rule(RuleKey),
    RuledTubes,
    JobLog,
    Memory,
}

/// Counters of refusals, which tell afterwards why a command was refused.
#[derive(Clone, Copy)]
pub(super) struct RefusalCounts {
    tubes: u64,
    rules: u64,
}

impl Core {
    pub(super) fn refusal_counts(&self) -> RefusalCounts {
        RefusalCounts { tubes: self.tube_refusals, rules: self.engine.rule_totals().refusals }
    }

    /// What an operation has lacked that was refused just now.
    pub(super) fn shortage(&self, operation: &Operation, before: RefusalCounts) -> Shortage {
        let now = self.refusal_counts();
        if now.tubes > before.tubes {
            let count = self.engine.tubes().len();
            let is_at_max = self.config.max_tubes.is_some_and(|max| count >= max as usize);
            return if is_at_max { Shortage::Tubes } else { Shortage::Memory };
        }
        let full_by = match operation {
            _ if now.rules == before.rules => None,
            Operation::Put { job: PutTarget { tube, .. }, bytes } => {
                self.engine.full_by(tube.get(), 1, (*bytes).into())
            }
            Operation::MoveJob { id, to } => {
                let job = self.engine.jobs().find(*id);
                job.and_then(|job| self.engine.full_by(to.get(), 1, self.engine.body_bytes(job)))
            }
            _ => None,
        };
        match operation {
            _ if let Some(key) = full_by => Shortage::Rule(key),
            Operation::Config { .. } => Shortage::RuledTubes,
            Operation::MoveJob { .. } => Shortage::JobLog,
            _ if self.wal.as_ref().is_some_and(Wal::is_full) => Shortage::JobLog,
            _ => Shortage::Memory,
        }
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
            Self::JobLog => "the job log has no room for the job: free space on its disk",
            Self::Memory => {
                "the server is at its memory limit (--max-memory): delete jobs, or raise the limit"
            }
        };
        Refusal::new(ErrorKind::OutOfMemory, message)
    }
}
