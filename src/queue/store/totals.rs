//! Counts of the whole queue.

use super::job::JobState;

/// Counts of the whole queue, updated by every transition.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct JobTotals {
    /// Number of jobs in each [`JobState`].
    pub jobs: [u32; JobState::COUNT],
    /// Number of ready jobs that are urgent.
    pub urgent: u32,
    /// Number of clients that wait.
    pub waiting: u32,
    /// Number of clients that have put.
    pub producers: u32,
    /// Number of clients that have reserved.
    pub workers: u32,
    /// Jobs stored since the start.
    pub total_jobs: u64,
    /// Reservations that timed out since the start.
    pub timeouts: u64,
    /// Reservations since the start that ended with the connection of their holder, and were counted as failures.
    pub losses: u64,
    /// Jobs deleted since the start.
    pub deletes: u64,
    /// Jobs released since the start.
    pub releases: u64,
    /// Jobs buried since the start.
    pub buries: u64,
    /// Jobs kicked since the start.
    pub kicks: u64,
    /// Jobs moved to another tube since the start.
    pub moves: u64,
    /// Puts since the start that repeated the idempotency key of another job.
    pub repeats: u64,
}

impl JobTotals {
    /// The number of jobs in this state.
    pub const fn in_state(&self, state: JobState) -> u32 {
        self.jobs[state as usize]
    }
}
