//! What commands and events lead to at once, and what is left to background work.

use crate::values::budget::{Budget, Cost, Limit, Quota};

/// Elementary steps of one piece of background work: some 25 us. Each kind of work that commands and events lead to at once has a
/// share of this size in an event-loop iteration.
pub const BACKGROUND_STEPS: u32 = 256;

/// An answer to a client whose wait is over: at the end of very many waits, each client is sent one.
pub const ANSWER: Cost = Cost::visits(4);

/// What commands and events of one event-loop iteration lead to besides their own work. All work of a kind shares
/// [`BACKGROUND_STEPS`]; background work does the rest. The end of each reservation opens one lane even beyond that.
#[derive(Clone, Copy)]
pub enum FollowUp {
    /// Disconnects.
    Disconnects,
    /// The release of jobs that a group has held.
    Releases,
    /// The opening of lanes of concurrency keys.
    Lanes,
    /// Jobs of puts that waiting clients get.
    Assignments,
    /// Answers to clients that wait for the end of a job.
    Answers,
}

const KINDS: usize = FollowUp::Answers as usize + 1;

/// The steps that each kind of work has left.
pub struct Quotas([Quota; KINDS]);

impl Quotas {
    pub const WHOLE: Self = Self([Quota::of(BACKGROUND_STEPS); KINDS]);

    /// The limit of a piece of work that begins now.
    pub const fn limit(&self, kind: FollowUp, budget: &Budget) -> Limit {
        self.0[kind as usize].limit(budget)
    }

    /// Takes off what a piece of work with this limit has spent.
    pub const fn settle(&mut self, kind: FollowUp, limit: Limit, budget: &Budget) {
        self.0[kind as usize].settle(limit, budget);
    }
}
