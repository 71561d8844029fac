//! The containers of jobs: a job leaves that of its state, and enters another. What follows from its tags comes from its parts.
//!
//! The ready jobs of a tube are also in the order in which they became ready. The first one gives `oldest-ready-age`. There are two
//! lists, each sorted by time, because a job's cache line has no room for two more links. A job without a [`Lifecycle`] has been ready
//! since it was put; one of its links lies where the key of the lifecycle would be. A job with a lifecycle is linked by its lifecycle,
//! whose links a ready job does not need for anything else.
//!
//! The reserved jobs of a tube are also in the order in which they were reserved. A reserved job is in a heap and a list of its holder,
//! which use all of its links. Its neighbors in the order lie in its lifecycle, in the place of a number that only a buried job has.

use super::Store;
use super::job::{Job, JobState, Jobs, Lifecycle, URGENT_BELOW};
use super::latency::LatencyKind;
use crate::intrusive::{List, NIL, Pages};
use crate::time::{Seconds, Time};
use crate::values::ids::{ClientSlot, JobId, JobKey, TagsKey, TubeSlot};
use crate::values::limits::BURIALS_MAX;

/// What the containers of ready jobs need of one of them.
#[derive(Clone, Copy)]
pub struct ReadyJob {
    pub job: JobKey,
    pub pri: u32,
    pub id: JobId,
    pub tube: TubeSlot,
    pub tags_key: Option<TagsKey>,
}

impl ReadyJob {
    #[inline(always)]
    pub fn of(job: JobKey, record: &Job) -> Self {
        let &Job { pri, id, tube, .. } = record;
        Self { job, pri, id, tube, tags_key: record.tags_key() }
    }
}

impl Store {
    /// Removes a job that is not ready from its container.
    #[inline(always)]
    pub fn take_out(&mut self, job: JobKey, now: Time) {
        let record = self.jobs.get(job);
        let (state, tube) = (record.state, record.tube);
        let lifecycle = || record.lifecycle().expect("a delayed or reserved job has a lifecycle");
        match state {
            JobState::Ready => unreachable!("a ready job may be in a lane"),
            JobState::Buried => self.tubes[tube].buried.remove(&mut self.jobs.slab, job.0),
            JobState::Held => self.tubes[tube].held.remove(&mut self.jobs.slab, job.0),
            JobState::Delayed => {
                let lifecycle = lifecycle();
                let tube = &mut self.tubes[tube];
                tube.delayed.remove(&mut self.jobs.lifecycles, lifecycle);
                tube.delayed_order.remove(&mut self.jobs.slab, job.0);
            }
            JobState::Reserved => {
                let lifecycle = lifecycle();
                let record = &mut self.jobs.lifecycles[lifecycle];
                let (holder, since) = (record.take_holder(), record.since);
                let holder = &mut self.clients[holder];
                holder.reserved.remove(&mut self.jobs.lifecycles, lifecycle);
                holder.reserved_order.remove(&mut self.jobs.slab, job.0);
                self.tubes[tube].reserved.remove(&mut self.jobs.lifecycles, lifecycle);
                self.record_latency(tube, LatencyKind::Reserved, since, now);
            }
        }
        self.totals.jobs[state as usize] -= 1;
    }

    /// Removes a ready job from all but the ready heap or its lane, which it has left. Returns the time at which it became ready.
    #[inline(always)]
    pub fn take_out_ready(&mut self, ready: ReadyJob) -> Time {
        let ReadyJob { job, pri, tube: tube_key, tags_key, .. } = ready;
        let tube = &mut self.tubes[tube_key];
        let since = tube.ready_order.remove(&mut self.jobs, job);
        if pri < URGENT_BELOW {
            tube.urgent -= 1;
            self.totals.urgent -= 1;
        }
        // Another job of its key may take its place in the heap.
        if tags_key.is_some() || self.tubes.heads.get(tube_key).job(true) == Some(job) {
            self.refresh(tube_key);
        }
        self.totals.jobs[JobState::Ready as usize] -= 1;
        since
    }

    /// Adds a job to what a ready one is in besides the ready heap or its lane, where it is already.
    #[inline(always)]
    pub fn put_in_ready(&mut self, ready: ReadyJob, now: Time) {
        let ReadyJob { job, pri, id, tube: tube_key, tags_key } = ready;
        let tube = &mut self.tubes[tube_key];
        tube.ready_order.push(&mut self.jobs, job, now);
        if pri < URGENT_BELOW {
            tube.urgent += 1;
            self.totals.urgent += 1;
        }
        if tags_key.is_some() {
            self.refresh(tube_key);
        } else if tube.ready.min() == Some(job.0) {
            self.tubes.refresh_with(tube_key, Some((pri, id, job)));
        }
    }

    pub fn put_in_delayed(&mut self, job: JobKey, until: Time) {
        let lifecycle = self.jobs.lifecycle_key(job);
        self.jobs.lifecycles[lifecycle].deadline = until;
        let tube = &mut self.tubes[self.jobs.get(job).tube];
        tube.delayed.insert(&mut self.jobs.lifecycles, lifecycle);
        tube.delayed_order.push_back(&mut self.jobs.slab, job.0);
        self.timers.arm(tube.timer, until);
    }

    /// Begins the delay of a job that is to be held.
    pub fn begin_delay(&mut self, job: JobKey, delay: Seconds, now: Time) {
        let lifecycle = self.jobs.lifecycle_mut(job);
        lifecycle.set_delay(delay);
        lifecycle.deadline = now + delay.span();
    }

    pub fn put_in_held(&mut self, job: JobKey) {
        let tube = self.jobs.get(job).tube;
        self.tubes[tube].held.push_back(&mut self.jobs.slab, job.0);
    }

    /// Buries a job. The number of its burial is the time in nanoseconds, or the next number behind that of the last burial. So the
    /// numbers show both the order and the times, and a record needs nothing else.
    pub fn put_in_buried(&mut self, job: JobKey, now: Time) {
        let burial = self.burials.max(now.as_nanos()).min(BURIALS_MAX);
        self.burials = burial + 1;
        let lifecycle = self.jobs.lifecycle_mut(job);
        lifecycle.set_burial(burial);
        lifecycle.deadline = now;
        let tube = self.jobs.get(job).tube;
        self.tubes[tube].buried.push_back(&mut self.jobs.slab, job.0);
    }

    /// Gives a job to a client. `ready_since` is set if it was ready.
    #[inline(always)]
    pub fn put_in_reserved(&mut self, job: JobKey, client: ClientSlot, ready_since: Option<Time>, now: Time) {
        let record = self.jobs.get(job);
        let (ttr, tube, lifecycle) = (record.ttr, record.tube, record.lifecycle());
        let key = lifecycle.unwrap_or_else(|| self.jobs.lifecycle_key(job));
        let lifecycle = &mut self.jobs.lifecycles[key];
        // mutant ttr-from-the-put: now + lifecycle.ttr(ttr) => now.max(self.jobs.slab[job.0].created + lifecycle.ttr(ttr))
        lifecycle.deadline = now + lifecycle.ttr(ttr);
        lifecycle.since = now;
        lifecycle.counts.add_reserve();
        self.give_to(client, job, key);
        self.tubes[tube].reserved.push(&mut self.jobs.lifecycles, key);
        if let Some(since) = ready_since {
            self.record_latency(tube, LatencyKind::Queue, since, now);
        }
    }

    /// Restores the reservation of a job until a time for a client.
    pub fn restore_reserved(&mut self, job: JobKey, client: ClientSlot, since: Time, until: Time) {
        let tube = self.jobs.get(job).tube;
        let key = self.jobs.lifecycle_key(job);
        let lifecycle = &mut self.jobs.lifecycles[key];
        (lifecycle.deadline, lifecycle.since) = (until, since);
        self.give_to(client, job, key);
        self.tubes[tube].reserved.push(&mut self.jobs.lifecycles, key);
    }
}

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
        self.link_after(&mut jobs.slab, self.last, key.0);
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
        self.link_after(&mut jobs.slab, before, after);
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
    fn link_after(&mut self, slab: &mut Pages<Job>, before: u32, after: u32) {
        if before == NIL {
            self.first = after;
        } else {
            slab[before].lifecycle_or_after = after;
        }
    }
}

/// The reserved jobs of one tube. Every operation is O(1).
#[derive(Debug)]
pub struct ReservedOrder {
    /// The lifecycle of the first job.
    first: u32,
    /// The lifecycle of the last job.
    last: u32,
    len: u32,
}

/// The lifecycles of the jobs before and after a reserved one.
#[derive(Clone, Copy)]
pub struct Neighbors {
    pub before: u32,
    pub after: u32,
}

impl ReservedOrder {
    pub const fn new() -> Self {
        Self { first: NIL, last: NIL, len: 0 }
    }

    /// The number of jobs.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// The job that was reserved first.
    pub fn front(&self, jobs: &Jobs) -> Option<JobKey> {
        (self.first != NIL).then(|| jobs.lifecycles[self.first].job)
    }

    /// Appends the job with this lifecycle.
    pub fn push(&mut self, lifecycles: &mut Pages<Lifecycle>, key: u32) {
        let before = std::mem::replace(&mut self.last, key);
        lifecycles[key].set_neighbors(Neighbors { before, after: NIL });
        self.link_after(lifecycles, before, key);
        self.len += 1;
    }

    /// Removes the job with this lifecycle.
    pub fn remove(&mut self, lifecycles: &mut Pages<Lifecycle>, key: u32) {
        let Neighbors { before, after } = lifecycles[key].neighbors();
        self.link_after(lifecycles, before, after);
        if after == NIL {
            assert_eq!(self.last, key, "a job without a successor is the last");
            self.last = before;
        } else {
            let next = &mut lifecycles[after];
            next.set_neighbors(Neighbors { before, ..next.neighbors() });
        }
        self.len -= 1;
    }

    /// The jobs, first to last.
    pub fn iter(&self, jobs: &Jobs) -> impl Iterator<Item = JobKey> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let lifecycle = (at != NIL).then(|| &jobs.lifecycles[at])?;
            at = lifecycle.neighbors().after;
            Some(lifecycle.job)
        })
    }

    /// Asserts that the links agree in both directions, and that all jobs are reserved and of this tube.
    // Bounded by its caller: a test.
    pub fn check(&self, jobs: &Jobs, tube: TubeSlot) {
        let (mut before, mut at, mut count) = (NIL, self.first, 0);
        while at != NIL {
            let lifecycle = &jobs.lifecycles[at];
            let job = jobs.get(lifecycle.job);
            assert_eq!((job.state, job.tube), (JobState::Reserved, tube), "job {} is reserved", job.id);
            assert_eq!(lifecycle.neighbors().before, before, "the links agree in both directions");
            (before, at) = (at, lifecycle.neighbors().after);
            count += 1;
            assert!(count <= self.len, "the list ends");
        }
        assert_eq!((self.last, self.len), (before, count), "the list ends at its last job");
    }

    /// Makes `after` the successor of `before`, or the first.
    fn link_after(&mut self, lifecycles: &mut Pages<Lifecycle>, before: u32, after: u32) {
        if before == NIL {
            self.first = after;
        } else {
            let previous = &mut lifecycles[before];
            previous.set_neighbors(Neighbors { after, ..previous.neighbors() });
        }
    }
}
