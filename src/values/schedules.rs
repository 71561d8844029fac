//! Schedules: what becomes of times at which they could not run, and how far they are.

use serde::Serialize;

use crate::time::{Seconds, Time};
use crate::values::ids::JobId;
use crate::values::when::When;

/// Runs that `missed:all` makes up for in one go.
pub const CATCH_UP_MAX: u8 = 100;

/// What becomes of times that have passed while the server could not run: it was stopped, followed another one, was draining, or had no
/// space.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Missed {
    /// The last one runs if it is at most a minute ago.
    Skip,
    /// The last one runs.
    #[default]
    Once,
    /// The first ones run, and the last one: 100 at most.
    All,
}

impl Missed {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Skip, Self::Once, Self::All];

    /// The word of the protocol for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }

    /// Returns the policy with this word.
    pub fn named(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.word().as_bytes() == word)
    }
}

/// When a schedule runs, and which jobs it puts.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Plan {
    pub when: When,
    pub pri: u32,
    pub delay: Seconds,
    /// 0 counts as 1, or as a rule of the tube says, at each run.
    pub ttr: Seconds,
    pub missed: Missed,
    /// Whether it runs while its last job still exists.
    pub overlaps: bool,
}

/// A schedule of the configuration file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct ConfiguredSchedule {
    pub name: String,
    pub tube: String,
    pub plan: Plan,
    /// The body with its CR LF.
    pub body: Vec<u8>,
}

impl ConfiguredSchedule {
    /// The size of the body without its CR LF.
    pub const fn body_bytes(&self) -> usize {
        self.body.len() - 2
    }
}

/// How far a schedule is. The job log keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// The last time that is dealt with: its job is put, or it was left out. At first, when the schedule was put.
    pub handled: Time,
    /// The time of the last run, at which it was due.
    pub due: Time,
    /// When that run was made. Zero before the first one.
    pub ran: Time,
    /// The job of the last run, or 0.
    pub job: JobId,
    /// Runs.
    pub runs: u64,
    /// Runs that were left out because the last job still existed.
    pub skips: u64,
    /// Runs whose tube could not take a job.
    pub refusals: u64,
    /// How often times were left out because the server could not run.
    pub gaps: u64,
    /// Missed times that have run since the last one on time.
    pub caught_up: u8,
}
