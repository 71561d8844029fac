//! The ready jobs of a tube in the order in which they became ready. The first one gives `oldest-ready-age`.
//!
//! There are two lists, each sorted by time, because a job's cache line has no room for two more links. A job without an
//! [`Lifecycle`] has been ready since it was put; one of its links lies where the key of the lifecycle would be. A job with a
//! lifecycle is linked by its lifecycle, whose links a ready job does not need for anything else.

use super::job::{Job, JobState, Jobs};
use crate::intrusive::{List, NIL, Pages};
use crate::time::Time;
use crate::values::ids::{JobKey, TubeSlot};

#[cfg(doc)]
use super::job::Lifecycle;

/// The ready order of one tube. Every operation is O(1).
pub struct ReadyOrder {
    /// The first job without a lifecycle.
    first: u32,
    /// The last job without a lifecycle.
    last: u32,
    /// The lifecycles of the other jobs.
    active: List,
}

impl ReadyOrder {
    pub const fn new() -> Self {
        Self { first: NIL, last: NIL, active: List::new() }
    }

    /// Appends a job that becomes ready at `now`. A job without a lifecycle must have been put at `now`.
    pub fn push(&mut self, jobs: &mut Jobs, key: JobKey, now: Time) {
        let job = &mut jobs.slab[key.0];
        if let Some(lifecycle) = job.lifecycle() {
            jobs.lifecycles[lifecycle].since = now;
            return self.active.push_back(&mut jobs.lifecycles, lifecycle);
        }
        job.tags_or_before = self.last;
        job.lifecycle_or_after = NIL;
        self.link_back(&mut jobs.slab, self.last, key.0);
        self.last = key.0;
    }

    /// Removes a job and returns the time at which it became ready.
    pub fn remove(&mut self, jobs: &mut Jobs, key: JobKey) -> Time {
        let job = &mut jobs.slab[key.0];
        if let Some(lifecycle) = job.lifecycle() {
            self.active.remove(&mut jobs.lifecycles, lifecycle);
            return jobs.lifecycles[lifecycle].since;
        }
        let since = job.created;
        let before = std::mem::replace(&mut job.tags_or_before, NIL);
        let after = std::mem::replace(&mut job.lifecycle_or_after, NIL);
        self.link_back(&mut jobs.slab, before, after);
        if after == NIL {
            assert_eq!(self.last, key.0, "a job without a successor is the last");
            self.last = before;
        } else {
            jobs.slab[after].tags_or_before = before;
        }
        since
    }

    /// The time at which the first job became ready.
    pub fn oldest(&self, jobs: &Jobs) -> Option<Time> {
        let fresh = (self.first != NIL).then(|| jobs.slab[self.first].created);
        let active = self.active.front().map(|key| jobs.lifecycles[key].since);
        [fresh, active].into_iter().flatten().min()
    }

    /// All jobs: those without a lifecycle, then the others.
    pub fn iter(&self, jobs: &Jobs) -> impl Iterator<Item = JobKey> {
        let mut at = self.first;
        let fresh = std::iter::from_fn(move || {
            let key = (at != NIL).then_some(at)?;
            at = jobs.slab[key].lifecycle_or_after;
            Some(JobKey(key))
        });
        // Bounded by its caller: an iterator.
        fresh.chain(self.active.iter(&jobs.lifecycles).map(|key| jobs.lifecycles[key].job))
    }

    /// The first job of each list.
    pub fn fronts(&self, jobs: &Jobs) -> [Option<u32>; 2] {
        let fresh = (self.first != NIL).then_some(self.first);
        [fresh, self.active.front().map(|key| jobs.lifecycles[key].job.0)]
    }

    /// Asserts that there are `len` jobs, all ready and of this tube, and that both lists are sorted.
    // Bounded by its caller: a test.
    pub fn check(&self, jobs: &Jobs, tube: TubeSlot, len: usize) {
        let is_ready = |job: &Job| (job.state, job.tube) == (JobState::Ready, tube);
        let (mut before, mut at, mut count, mut time) = (NIL, self.first, 0, Time::ZERO);
        while at != NIL {
            let job = &jobs.slab[at];
            assert!(is_ready(job) && !job.has_lifecycle, "job {} is ready and has no lifecycle", job.id);
            assert_eq!(job.tags_or_before, before, "the links agree in both directions");
            assert!(time <= job.created, "the jobs are sorted by time");
            (before, at, time) = (at, job.lifecycle_or_after, job.created);
            count += 1;
            assert!(count <= len, "the list ends");
        }
        assert_eq!(self.last, before, "the list ends at its last job");
        self.active.check(&jobs.lifecycles);
        let active = || self.active.iter(&jobs.lifecycles).map(|key| &jobs.lifecycles[key]);
        assert!(active().all(|lifecycle| is_ready(jobs.get(lifecycle.job))), "the jobs are ready");
        assert!(active().map(|lifecycle| lifecycle.since).is_sorted(), "the lifecycles are sorted by time");
        assert_eq!(count + self.active.len(), len, "every ready job is in the order");
    }

    /// Links `after` behind `before`, or makes it the first.
    fn link_back(&mut self, slab: &mut Pages<Job>, before: u32, after: u32) {
        if before == NIL {
            self.first = after;
        } else {
            slab[before].lifecycle_or_after = after;
        }
    }
}
