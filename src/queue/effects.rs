//! What a call leads to: changes for the job log, one per transition, notices for clients that wait, and work that is left to do.

use std::collections::VecDeque;

use super::extensions::idempotency::FlushedKey;
use super::extensions::job_waits::JobEnd;
use super::extensions::schedules::ScheduleName;
use super::long_work::job_list::JobPage;
use super::long_work::{Moved, WorkQueue};
use crate::time::Time;
use crate::values::ids::{ConnId, IdpSlot, JobId, JobKey, TubeKey};
use crate::values::tube_rules::RuleKey;

/// What the queue has to tell, and what it has to continue.
#[derive(Default)]
pub struct Effects {
    pub work: WorkQueue,
    pub notices: VecDeque<Notice>,
    pub changes: Changes,
}

/// The late answer to a command.
#[derive(PartialEq, Eq, Debug)]
pub enum Notice {
    /// The waiting client of this connection has reserved a job.
    Reserved(ConnId, JobKey),
    /// The wait of this connection timed out.
    TimedOut(ConnId),
    /// The wait ended because a reserved job times out within the safety margin.
    DeadlineSoon(ConnId),
    /// The `kick` is finished. It has kicked this many jobs.
    Kicked(ConnId, u32),
    /// The `flush-tube` or `flush-keys` is finished. It has deleted this many jobs, or forgotten this many keys.
    Flushed(ConnId, u32),
    /// The job that this connection has waited for has ended.
    JobEnded(ConnId, JobEnd),
    /// The `move-jobs` is finished.
    Moved(ConnId, Moved),
    /// The `list-jobs` is finished, with this page. Its jobs must be read before the next call.
    Listed(ConnId, Box<JobPage>),
}

impl Notice {
    /// The connection to notify.
    pub const fn conn(&self) -> ConnId {
        match *self {
            Self::Reserved(conn, _)
            | Self::TimedOut(conn)
            | Self::DeadlineSoon(conn)
            | Self::Kicked(conn, _)
            | Self::Flushed(conn, _)
            | Self::JobEnded(conn, _)
            | Self::Moved(conn, _)
            | Self::Listed(conn, _) => conn,
        }
    }
}

/// A transition of persistent state. A change names the job by its key, so the job must be read before the next call of the
/// engine.
///
/// The end of a delay or a pause is no change, because it follows from the time. So does the end of a kept key, but the job log
/// keeps no list of them. Reservations are changes only if
/// [they are kept](crate::queue::Engine::keep_reservations).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A job was stored, ready or delayed.
    Put(JobKey),
    /// A client reserved a job, or restarted its time to run.
    Reserved(JobKey),
    /// A client reserved a delayed or buried job, which is ready after a restart. Only if reservations are not kept.
    TakenOut(JobKey),
    /// A client released a job, ready or delayed, with a priority.
    Released(JobKey),
    /// A reservation timed out.
    TimedOut(JobKey),
    /// The holder disconnected, and the job is ready again.
    Returned(JobKey),
    /// A client buried a job, with a priority.
    Buried(JobKey),
    /// A buried or delayed job was made ready.
    Kicked(JobKey),
    /// The group of this name is done: the jobs that it has held so far are ready or delayed, at once or later.
    GroupDone(Box<[u8]>),
    /// A repeated put has raised the priority of a job.
    Reprioritized(JobKey),
    /// The holder of a job has noted why an attempt failed.
    Noted(JobKey),
    /// A job was moved to another tube: no client held it, or it has had all attempts.
    Moved(JobKey),
    /// A job was deleted. Another job may have its key.
    Deleted(JobKey, JobId),
    /// A job was deleted, and its [idempotency key](crate::queue::KeptKey) is kept.
    DeletedKeepingKey(JobKey, IdpSlot),
    /// The idempotency key of a deleted job was forgotten, because its time was over. Another key may have its slot.
    KeyForgotten(IdpSlot),
    /// The idempotency key of a deleted job was forgotten, because a client has flushed the keys of a tube.
    KeyFlushed(IdpSlot, Box<FlushedKey>),
    /// A tube was paused, or its pause was ended.
    Paused {
        /// The tube.
        tube: TubeKey,
        /// When the pause ends.
        until: Time,
    },
    /// A paused tube was removed. This is its name.
    PausedGone(Box<[u8]>),
    /// A client has set or removed a rule of the tube of this name.
    RuleSet(Box<[u8]>, RuleKey),
    /// A schedule was put, for the first time or again.
    ScheduleSet(ScheduleName),
    /// A schedule was deleted.
    ScheduleGone(ScheduleName),
    /// A schedule has put a job.
    Ran(JobKey, ScheduleName),
    /// A run of a schedule was left out.
    LeftOut(ScheduleName),
}

/// The changes since the last call of [`take_into`](Self::take_into), if recording is on.
#[derive(Default)]
pub struct Changes {
    recording: bool,
    /// Reservations are changes.
    keeps_reservations: bool,
    pending: Vec<Change>,
}

impl Changes {
    /// Turns recording on or off.
    pub const fn record(&mut self, on: bool) {
        self.recording = on;
    }

    /// Turns on or off that reservations are changes.
    pub const fn keep_reservations(&mut self, on: bool) {
        self.keeps_reservations = on;
    }

    /// Whether reservations are changes.
    #[inline]
    pub const fn keeps_reservations(&self) -> bool {
        self.keeps_reservations
    }

    #[inline]
    pub fn push_reservation(&mut self, job: JobKey) {
        if self.keeps_reservations {
            self.push(Change::Reserved(job));
        }
    }

    #[inline]
    pub fn push(&mut self, change: Change) {
        if self.recording {
            self.pending.push(change);
        }
    }

    /// Whether there are changes that the caller has not taken.
    pub const fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub const fn bytes(&self) -> usize {
        self.pending.capacity() * size_of::<Change>()
    }

    #[inline]
    pub fn take_into(&mut self, changes: &mut Vec<Change>) {
        changes.append(&mut self.pending);
    }
}
