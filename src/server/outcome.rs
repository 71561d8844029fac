//! The outcome of a command. The beanstalk protocol renders it as lines and data, the HTTP API as JSON.

use super::log::Log;
use super::rights::Missing;
use crate::protocol::reply::Reply;
use crate::queue::{FullBy, JobEnd, JobPage, JobState, MoveRefusal, Moved, Notice, Repeated};
use crate::values::ids::{JobKey, TubeKey};
use crate::values::tube_name::TubeName;
use crate::wal::{PutSpace, Wal};

/// The end of a command.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Outcome<'a> {
    /// It is done, and its reply is one line.
    Done(Reply<'a>),
    /// It has done nothing.
    Refused(Refusal),
    /// The client has reserved this job.
    Reserved(JobKey),
    /// The client has reserved these jobs for a `reserve-batch`.
    ReservedBatch(Vec<JobKey>),
    /// A `put-batch` is stored. Each of its jobs has this reply.
    InsertedBatch(Vec<Reply<'static>>),
    /// The client sees this job.
    Found(JobKey),
    /// `move-jobs` has moved jobs.
    Moved(Moved),
    Stats,
    JobStats(JobKey),
    TubeStats(TubeKey),
    GroupStats(TubeName<'a>),
    ScheduleStats(TubeName<'a>),
    /// A page of schedules after this name.
    Schedules {
        after: Option<TubeName<'a>>,
        limit: u32,
    },
    Rules(TubeName<'a>),
    Jobs(JobPage),
    TubeUsed,
    Tubes,
    TubesWatched,
    /// There is no reply now. The state of the client says what comes.
    Pending,
}

/// Why a command has done nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// There is no such job, or this client may not do this with it.
    NoJob,
    /// The tube has no job in this state.
    NoJobInState,
    NoTube,
    NoGroup,
    NoSchedule,
    /// Another client has reserved the job, and its time to run ends in this time.
    JobReserved {
        seconds_left: u64,
    },
    /// A job in this state does not permit it.
    JobState(JobState),
    /// The job is in the tube that it shall be moved to.
    SameTube,
    /// The other tube has the idempotency key of the job.
    KeyExists,
    /// The client watches no other tube.
    LastTube,
    /// The server is in drain mode.
    Draining,
    JobTooBig,
    NoCrlf,
    BadFormat,
    /// The user lacks a right.
    Forbidden(Missing),
    /// The users have changed since the request began, and its user is not among them.
    UserGone,
    OutOfMemory(Shortage),
}

/// What the server lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shortage {
    /// There are as many tubes as `--max-tubes` permits.
    Tubes,
    /// The tube is full by this rule.
    Rule(FullBy),
    /// As many tubes have rules as may have them.
    RuledTubes,
    /// There are as many schedules as there may be.
    Schedules,
    /// The disk of the job log is full.
    JobLog,
    /// A record of the job log is too short for the job with the name of the other tube.
    Record,
    /// The share of idempotency keys has no room.
    Keys,
    Memory,
}

impl Outcome<'static> {
    /// What a notice says, except that of a reservation for a `reserve-batch`.
    pub fn of(notice: Notice) -> Self {
        match notice {
            Notice::Reserved(_, job) => Self::Reserved(job),
            Notice::TimedOut(_) => Self::Done(Reply::TimedOut),
            Notice::DeadlineSoon(_) => Self::Done(Reply::DeadlineSoon),
            Notice::Kicked(_, count) => Self::Done(Reply::Kicked(count.into())),
            Notice::Flushed(_, count) => Self::flushed(count),
            Notice::JobEnded(_, JobEnd::Deleted) => Self::Done(Reply::Deleted),
            Notice::JobEnded(_, JobEnd::Buried) => Self::Done(Reply::Buried),
            Notice::Moved(_, moved) => Self::Moved(moved),
            Notice::Listed(_, page) => Self::Jobs(*page),
        }
    }

    /// The reply, if the command was done, or that there is no such job.
    pub fn done(is_done: bool, reply: Reply<'static>) -> Self {
        if is_done { Self::Done(reply) } else { Self::Refused(Refusal::NoJob) }
    }

    /// The number of jobs or keys that a flush has deleted.
    pub fn flushed(count: u32) -> Self {
        Self::Done(Reply::Flushed(count.into()))
    }

    /// The job, or the refusal.
    pub fn found(job: Option<JobKey>, refusal: Refusal) -> Self {
        job.map_or(Self::Refused(refusal), Self::Found)
    }
}

impl Outcome<'_> {
    /// Whether a command that changes jobs or tubes has changed something.
    pub fn has_changed(&self) -> bool {
        match self {
            Self::Done(Reply::Kicked(count) | Reply::Flushed(count)) => *count > 0,
            Self::Moved(moved) => moved.count > 0,
            Self::Refused(_) => false,
            _ => true,
        }
    }
}

impl Refusal {
    /// The reply of the protocol.
    pub const fn reply(self) -> Reply<'static> {
        match self {
            Self::NoJob
            | Self::NoJobInState
            | Self::NoTube
            | Self::NoGroup
            | Self::NoSchedule
            | Self::JobReserved { .. }
            | Self::JobState(_)
            | Self::SameTube => Reply::NotFound,
            Self::KeyExists => Reply::NotMoved,
            Self::LastTube => Reply::NotIgnored,
            Self::Draining => Reply::Draining,
            Self::JobTooBig => Reply::JobTooBig,
            Self::NoCrlf => Reply::ExpectedCrlf,
            Self::BadFormat => Reply::BadFormat,
            Self::Forbidden(_) => Reply::Forbidden,
            Self::UserGone => Reply::Unauthorized,
            Self::OutOfMemory(_) => Reply::OutOfMemory,
        }
    }

    /// Whether it may reveal an uncommitted change of a job. A lack of space and a wrong form reveal none.
    pub const fn may_reveal(self) -> bool {
        match self {
            Self::Forbidden(missing) => missing.may_reveal,
            _ => matches!(self.reply(), Reply::NotFound | Reply::NotMoved),
        }
    }

    /// The refusal of jobs, if the job log has no space for them. Space for those that fit into no segment will never come.
    pub const fn for_space(space: PutSpace) -> Option<Self> {
        match space {
            PutSpace::Available | PutSpace::Pending => None,
            PutSpace::TooLarge => Some(Self::JobTooBig),
            PutSpace::Unavailable => Some(Self::OutOfMemory(Shortage::JobLog)),
        }
    }

    /// Why a tube cannot take a job of another tube.
    pub fn of_move(refusal: MoveRefusal, log: &Log) -> Self {
        match refusal {
            MoveRefusal::KeyExists => Self::KeyExists,
            MoveRefusal::Full(full) => Shortage::Rule(full).into(),
            MoveRefusal::NoKeyRoom => Shortage::Keys.into(),
            MoveRefusal::NoRoom if log.wal().is_some_and(Wal::is_full) => Shortage::JobLog.into(),
            MoveRefusal::NoRoom => Shortage::Record.into(),
        }
    }
}

impl From<Shortage> for Refusal {
    fn from(shortage: Shortage) -> Self {
        Self::OutOfMemory(shortage)
    }
}

/// The reply to a `put` that has repeated the idempotency key of this job.
pub(super) fn repeated(first: Repeated) -> Reply<'static> {
    let Repeated { id, state, pri } = first;
    Reply::Repeated { id, state: state.map_or("deleted", JobState::word), pri }
}
