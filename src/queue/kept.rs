//! What outlives the process: reading it off the queue for a log, and putting it back.

use super::engine::Engine;
use super::job::{Counts, State};
use super::tube::Pause;
use crate::bodies::Slot;
use crate::ids::{JobId, JobKey};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// What of a job changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Kept {
    pub pri: u32,
    /// Of the last put or release, in seconds.
    pub delay: u32,
    pub standing: Standing,
    pub counts: Counts,
}

/// Where a job is in its life, as far as that outlives the process: a reserved one is ready without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It can be reserved.
    Ready,
    /// It can be reserved from then on.
    Delayed(Time),
    /// Put aside; of two jobs in a tube the one with the smaller number was buried first.
    Buried(u64),
}

/// A job that is put back.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Restored<'a> {
    pub id: JobId,
    pub created: Time,
    pub ttr: u32,
    pub tube: TubeName<'a>,
    pub kept: Kept,
    /// With its CR LF.
    pub body: Slot,
}

impl Engine {
    /// What of a job changes, as it is now.
    pub fn kept(&self, job: JobKey) -> Kept {
        let record = self.jobs.get(job);
        let activity = self.jobs.activity(job);
        let standing = match (record.state, activity) {
            (State::Delayed, Some(activity)) => Standing::Delayed(activity.deadline),
            (State::Buried, Some(activity)) => Standing::Buried(activity.burial),
            _ => Standing::Ready,
        };
        Kept {
            pri: record.pri,
            delay: activity.map_or(0, |activity| activity.delay),
            standing,
            counts: activity.map_or(Counts::default(), |activity| activity.counts),
        }
    }

    /// The tube that a job is in.
    pub fn tube_of(&self, job: JobKey) -> TubeName<'_> {
        self.tubes.get(self.jobs.get(job).tube).name()
    }

    /// Puts a job back. Buried ones have to come in the order of their numbers. Not for use while there are
    /// clients.
    ///
    /// # Panics
    /// If there is a job with this id.
    pub fn restore(&mut self, restored: Restored<'_>, now: Time) -> JobKey {
        let Restored { id, created, ttr, tube, kept, body } = restored;
        let Kept { pri, delay, standing, counts } = kept;
        assert!(self.jobs.find(id).is_none(), "job {id} is put back once");
        let tube = self.find_or_make(tube);
        let job = self.jobs.insert(id, pri, ttr, body, tube, created);
        self.keep_ids_above(id);
        if delay != 0 || counts != Counts::default() || standing != Standing::Ready {
            let activity = self.jobs.activity_mut(job);
            (activity.delay, activity.counts) = (delay, counts);
        }
        match standing {
            Standing::Delayed(until) if until > now => self.enter_delayed(job, until),
            Standing::Buried(burial) => {
                self.enter_buried(job);
                self.jobs.activity_mut(job).burial = burial;
                self.burials = self.burials.max(burial + 1);
            }
            _ => self.enter_ready(job),
        }
        job
    }

    /// Pauses a tube again, if there is one of this name.
    pub fn restore_pause(&mut self, name: TubeName<'_>, until: Time, length: Span, now: Time) {
        if let Some(key) = self.tubes.find(name).filter(|_| until > now) {
            let tube = self.tubes.get_mut(key);
            tube.pause = Some(Pause { until, length });
            self.timers.arm(tube.timer, until);
            self.tubes.relist(key);
        }
    }

    /// The id that the next job will have.
    pub fn upcoming_id(&self) -> JobId {
        JobId(self.next_id)
    }

    /// No job to come has this id or a smaller one.
    pub fn keep_ids_above(&mut self, id: JobId) {
        self.next_id = self.next_id.max(id.0 + 1);
    }
}
