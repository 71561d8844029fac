//! What a call leads to: changes for the job log, notices for clients, and work that is left to do.

use std::collections::VecDeque;

use super::extensions::job_waits::JobEnd;
use super::logged::change::Changes;
use super::long_work::job_list::JobPage;
use super::long_work::moving::Moved;
use super::long_work::work::WorkQueue;
use crate::values::ids::{ConnId, JobKey};

/// What the queue has to tell, and what it has to continue.
#[derive(Default)]
pub(super) struct Effects {
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
