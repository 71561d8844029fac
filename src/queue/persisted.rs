//! What outlives the process: reading it off the queue for a log, and putting it back.

use super::engine::Engine;
use super::job::{Counts, Job, State};
use super::tube::Pause;
use crate::bodies::Slot;
use crate::ids::{JobId, JobKey, TubeKey, TubeSlot};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// What of a job changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct PersistedState {
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
pub struct Restored {
    pub id: JobId,
    pub created: Time,
    pub ttr: u32,
    pub tube: TubeKey,
    pub kept: PersistedState,
    /// With its CR LF.
    pub body: Slot,
}

impl Engine {
    /// What of a job changes, as it is now.
    pub fn kept(&self, job: JobKey) -> PersistedState {
        let record = self.jobs.get(job);
        let activity = self.jobs.activity(job);
        let standing = match (record.state, activity) {
            (State::Delayed, Some(activity)) => Standing::Delayed(activity.deadline),
            (State::Buried, Some(activity)) => Standing::Buried(activity.burial),
            _ => Standing::Ready,
        };
        PersistedState {
            pri: record.pri,
            delay: activity.map_or(0, |activity| activity.delay),
            standing,
            counts: activity.map_or(Counts::default(), |activity| activity.counts),
        }
    }

    /// The tube that a job is in.
    pub fn tube_of(&self, job: JobKey) -> TubeName<'_> {
        self.tubes[self.jobs.get(job).tube].name()
    }

    /// The tube of this name, to put jobs back into.
    pub fn restore_tube(&mut self, name: TubeName<'_>) -> TubeKey {
        let tube = self.find_or_make(name);
        self.tubes.key(tube)
    }

    /// Puts a job back, which nobody sees before [`settle_restored`](Self::settle_restored). Not for use while there
    /// are clients.
    ///
    /// # Panics
    /// If there is a job with this id.
    pub fn restore(&mut self, restored: Restored) -> JobKey {
        let Restored { id, created, ttr, tube, kept, body } = restored;
        let job = self.jobs.insert(id, kept.pri, ttr, body, self.tubes.slot(tube), created);
        self.keep_ids_above(id);
        self.restore_kept(job, &kept);
        job
    }

    /// What of the job changes is like this now. For jobs that nobody sees yet.
    pub fn restore_kept(&mut self, job: JobKey, kept: &PersistedState) {
        let &PersistedState { pri, delay, standing, counts } = kept;
        let record = self.jobs.get_mut(job);
        record.pri = pri;
        record.state = match standing {
            Standing::Ready => State::Ready,
            Standing::Delayed(_) => State::Delayed,
            Standing::Buried(_) => State::Buried,
        };
        let is_plain = delay == 0 && standing == Standing::Ready && counts == Counts::default();
        if is_plain && self.jobs.activity(job).is_none() {
            return;
        }
        let activity = self.jobs.activity_mut(job);
        (activity.delay, activity.counts) = (delay, counts);
        match standing {
            Standing::Ready => {}
            Standing::Delayed(until) => activity.deadline = until,
            Standing::Buried(burial) => activity.burial = burial,
        }
    }

    /// The job is gone. For jobs that nobody sees yet.
    pub fn drop_restored(&mut self, job: JobKey) {
        let body = self.jobs.remove(job);
        self.bodies_mut().free(body);
    }

    /// Jobs that were put back take their places in their tubes. None waits longer than it was told to at first: where
    /// the clock went back meanwhile, what is written down may lie far ahead.
    pub fn settle_restored(&mut self, now: Time) {
        let jobs: Vec<JobKey> = self.jobs.iter().map(|(job, _)| job).collect();
        let (mut ready, mut buried) = (Vec::new(), Vec::new());
        for job in jobs {
            let Job { id, state, created, .. } = *self.jobs.get(job);
            match (state, self.jobs.activity(job)) {
                (State::Delayed, Some(activity)) if activity.deadline > now => {
                    let latest = now + Span::from_secs(activity.delay);
                    self.enter_delayed(job, activity.deadline.min(latest));
                }
                (State::Buried, Some(activity)) => buried.push((activity.burial, id, job)),
                (State::Delayed, Some(activity)) => ready.push((activity.deadline, job)),
                (_, None) if created <= now => ready.push((created, job)),
                // Since when it has been ready is not written down, or lies ahead: that is kept in an activity.
                _ => {
                    self.jobs.activity_mut(job);
                    ready.push((now, job));
                }
            }
        }
        ready.sort_unstable();
        ready.into_iter().for_each(|(since, job)| self.enter_ready(job, since));
        buried.sort_unstable();
        for (burial, _, job) in buried {
            self.enter_buried(job);
            self.jobs.activity_mut(job).burial = burial;
            self.burials = self.burials.max(burial + 1);
        }
        let tubes: Vec<TubeSlot> = self.tubes.iter().map(|(tube, _)| tube.slot).collect();
        tubes.into_iter().for_each(|tube| self.drop_if_unwanted(tube));
    }

    /// Pauses a tube again, if there is one of this name, for no longer than it was paused at first.
    pub fn restore_pause(&mut self, name: TubeName<'_>, until: Time, length: Span, now: Time) {
        let until = until.min(now + length);
        if let Some(key) = self.tubes.find_slot(name).filter(|_| until > now) {
            let tube = &mut self.tubes[key];
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
