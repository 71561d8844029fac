//! The persistent state of a job, for the job log.

use crate::bodies::Slot;
use crate::queue::store::job::Counts;
use crate::time::{Seconds, Time};
use crate::values::ids::{JobId, TubeKey};
use crate::values::notes::Notes;
use crate::values::tags::Tags;

/// The part of a job's persistent state that can change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct PersistedState {
    pub pri: u32,
    /// The delay of the last put or release.
    pub delay: Seconds,
    pub state: LoggedState,
    pub counts: Counts,
}

/// The persistent state of a job. Unless reservations are kept, a reserved job counts as ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoggedState {
    /// Ready.
    Ready,
    /// Delayed until this time.
    Delayed(Time),
    /// Buried. Of two jobs in a tube, the one with the smaller number was buried first. The number is the time in nanoseconds. In
    /// logs of earlier versions and of beanstalkd it is a small number that counted burials.
    Buried(u64),
    /// Held until a group is done, and then delayed until this time.
    Held(Time),
    /// Reserved until this time.
    Reserved(Time),
}

/// A job to be restored.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Restored<'a> {
    pub id: JobId,
    pub created: Time,
    pub ttr: Seconds,
    pub tube: TubeKey,
    pub tags: Tags<'a>,
    pub notes: Notes<'a>,
    pub state: PersistedState,
    /// The body with its CR LF.
    pub body: Slot,
}
