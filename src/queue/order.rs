//! The ready jobs of a tube in the order in which they became ready, so that the one that has been ready longest is
//! known.
//!
//! Two lists, each in order of time, since the line of a job has no room for two more links. A job that has no
//! [`Activity`] has been ready since it was put, and keeps one of its links where the key of the activity would be.
//! One that has an activity is linked there, by links that a ready job uses for nothing else, and keeps the time there.

use super::job::{Job, Jobs, State};
use crate::ids::{JobKey, TubeSlot};
use crate::intrusive::{List, NIL, Pages};
use crate::time::Time;

#[cfg(doc)]
use super::job::Activity;

/// The order of one tube. Every operation is O(1).
pub struct Order {
    /// The first of the jobs without activity.
    first: u32,
    /// The last of them.
    last: u32,
    /// The activities of the others.
    active: List,
}

impl Order {
    pub(super) const fn new() -> Self {
        Self { first: NIL, last: NIL, active: List::new() }
    }

    /// Puts a job at the end that becomes ready at `now`; one without activity was put just then.
    pub(super) fn push(&mut self, jobs: &mut Jobs, key: JobKey, now: Time) {
        let job = &mut jobs.slab[key.0];
        if let Some(activity) = job.activity() {
            jobs.activities[activity].since = now;
            return self.active.push_back(&mut jobs.activities, activity);
        }
        job.before = self.last;
        job.activity_or_after = NIL;
        self.link_back(&mut jobs.slab, self.last, key.0);
        self.last = key.0;
    }

    /// Takes a job out, and says since when it has been ready.
    pub(super) fn remove(&mut self, jobs: &mut Jobs, key: JobKey) -> Time {
        let job = &mut jobs.slab[key.0];
        if let Some(activity) = job.activity() {
            self.active.remove(&mut jobs.activities, activity);
            return jobs.activities[activity].since;
        }
        let since = job.created;
        let before = std::mem::replace(&mut job.before, NIL);
        let after = std::mem::replace(&mut job.activity_or_after, NIL);
        self.link_back(&mut jobs.slab, before, after);
        if after == NIL {
            assert_eq!(self.last, key.0, "a job with none after it is the last");
            self.last = before;
        } else {
            jobs.slab[after].before = before;
        }
        since
    }

    /// Since when the job has been ready that has been so longest.
    pub(super) fn oldest(&self, jobs: &Jobs) -> Option<Time> {
        let fresh = (self.first != NIL).then(|| jobs.slab[self.first].created);
        let active = self.active.front().map(|key| jobs.activities[key].since);
        [fresh, active].into_iter().flatten().min()
    }

    /// Asserts that it has `len` jobs, all ready and of this tube, and that both lists are in order.
    pub(super) fn check(&self, jobs: &Jobs, tube: TubeSlot, len: usize) {
        let is_ready = |job: &Job| (job.state, job.tube) == (State::Ready, tube);
        let (mut before, mut at, mut count, mut time) = (NIL, self.first, 0, Time::ZERO);
        while at != NIL {
            let job = &jobs.slab[at];
            assert!(is_ready(job) && !job.is_active, "job {} is ready and was never anything else", job.id);
            assert_eq!(job.before, before, "the order reads the same backwards");
            assert!(time <= job.created, "jobs are in the order in which they were put");
            (before, at, time) = (at, job.activity_or_after, job.created);
            count += 1;
            assert!(count <= len, "the order ends");
        }
        assert_eq!(self.last, before, "the order ends at its last");
        self.active.check(&jobs.activities);
        let active = || self.active.iter(&jobs.activities).map(|key| &jobs.activities[key]);
        assert!(active().all(|activity| is_ready(jobs.get(activity.job))), "what is in the order is ready");
        assert!(active().map(|activity| activity.since).is_sorted(), "it is in order of time");
        assert_eq!(count + self.active.len(), len, "what is ready is in the order");
    }

    /// Makes `after` the one that follows `before`, or the first.
    fn link_back(&mut self, slab: &mut Pages<Job>, before: u32, after: u32) {
        if before == NIL {
            self.first = after;
        } else {
            slab[before].activity_or_after = after;
        }
    }
}
