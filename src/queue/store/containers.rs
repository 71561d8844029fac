//! The containers of jobs: a job leaves that of its state, and enters another. What follows from its tags comes from its parts.

use super::Store;
use super::job::{Job, JobState, URGENT_BELOW};
use super::latency::LatencyKind;
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
