//! `move-job` and `move-jobs`: a job changes its tube, and keeps everything else.

use crate::queue::extensions::rules::FullBy;
use crate::queue::store::Store;
use crate::queue::store::job::JobState;
use crate::values::ids::{ConnId, JobId, JobKey, TubeKey};

/// The room of the job log for jobs whose tube name becomes longer.
#[derive(Clone, Copy, Debug)]
pub struct LogRoom {
    /// Tube name, tags and body together, with its CR LF, that one record has room for.
    pub job_bytes_max: usize,
    /// The disk is full: the space of jobs must not grow.
    pub is_full: bool,
}

impl LogRoom {
    /// Without a job log.
    pub const UNLIMITED: Self = Self { job_bytes_max: usize::MAX, is_full: false };
}

/// The answer to a `move-job`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobMoved {
    /// The job is in the tube.
    Done,
    /// There is no such job, or a client has reserved it.
    NotFound,
    /// The tube cannot take it.
    Refused(MoveRefusal),
}

/// Why a tube cannot take a job of another tube.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveRefusal {
    /// The job log has no room for the longer name.
    NoRoom,
    /// The share of idempotency keys has no room for the longer name.
    NoKeyRoom,
    /// The tube has the idempotency key of the job already.
    KeyExists,
    /// The tube is full by this rule.
    Full(FullBy),
}

/// What a `move-jobs` has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The number of jobs that it has moved.
    pub count: u32,
    /// The job that it has stopped at, if the other tube could not take one, and why.
    pub stop: Option<(JobId, MoveRefusal)>,
}

/// A `move-jobs` that is not finished.
pub struct Move {
    pub conn: ConnId,
    pub from: TubeKey,
    pub to: TubeKey,
    /// Neither `Reserved` nor `Held`.
    pub state: JobState,
    pub left: u32,
    pub moved: Moved,
}

impl Move {
    /// The first job of a tube in a state in which jobs move.
    pub fn next(&self, store: &Store) -> Option<JobKey> {
        let tube = store.tubes.get(self.from);
        match self.state {
            JobState::Delayed => tube.delayed.min().map(|key| store.jobs.lifecycles[key].job),
            JobState::Buried => tube.buried.front().map(JobKey),
            _ => tube.ready.min().map(JobKey),
        }
    }
}
