//! What a log has to record: one change a transition.

use crate::ids::{JobId, JobKey, TubeKey};
use crate::time::Time;

/// A transition of the queue's lasting state, in the order in which they happen. A change names the job
/// by its key: read the job before the next call of the engine.
///
/// A delay or a pause that ends is not among them: it follows from the time. Nor is `touch`, since a
/// reservation does not outlive the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A job was stored, ready or delayed.
    Put(JobKey),
    /// A client got a job.
    Reserved(JobKey),
    /// The job that a client got was delayed or buried before: without the client it is ready.
    TakenOut(JobKey),
    /// A client gave a job back, ready or delayed, with its priority.
    Released(JobKey),
    /// A reservation timed out.
    TimedOut(JobKey),
    /// The holder has gone.
    Returned(JobKey),
    /// A job was buried, with its priority.
    Buried(JobKey),
    /// A buried or delayed job was made ready.
    Kicked(JobKey),
    /// A job is gone, and its key free for another.
    Deleted(JobKey, JobId),
    /// No job is reserved from the tube until then.
    Paused {
        /// The tube.
        tube: TubeKey,
        /// When the pause ends.
        until: Time,
    },
    /// A paused tube is gone, and its pause with it. This is its name.
    PausedGone(Box<[u8]>),
}

/// The changes since the last look, while somebody records them.
#[derive(Default)]
pub struct Changes {
    recording: bool,
    pending: Vec<Change>,
}

impl Changes {
    pub(super) fn record(&mut self, on: bool) {
        self.recording = on;
    }

    #[inline]
    pub(super) fn push(&mut self, change: Change) {
        if self.recording {
            self.pending.push(change);
        }
    }

    /// The memory that they take.
    pub(super) const fn bytes(&self) -> usize {
        self.pending.capacity() * size_of::<Change>()
    }

    #[inline]
    pub(super) fn take_into(&mut self, changes: &mut Vec<Change>) {
        changes.append(&mut self.pending);
    }
}
