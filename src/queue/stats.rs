//! Statistics of the queue, a tube and a job, which the server renders. The memory of the queue is counted as it changes, so
//! that a query costs a few additions.

use super::engine::{Engine, Notice};
use super::groups::GroupStats;
use super::job::{Counts, JobState, Lifecycle};
use super::latency::{LatencyKind, Percentiles, TimeSum};
use crate::time::{Seconds, Span, Time};
use crate::values::histogram::Histogram;
use crate::values::ids::{JobId, JobKey, TubeKey};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

/// Counts of the whole queue, updated by every transition.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct JobTotals {
    /// Number of jobs in each [`JobState`].
    pub jobs: [u32; JobState::COUNT],
    /// Number of ready jobs that are urgent.
    pub urgent: u32,
    /// Number of clients that wait.
    pub waiting: u32,
    /// Number of clients that have put.
    pub producers: u32,
    /// Number of clients that have reserved.
    pub workers: u32,
    /// Jobs stored since the start.
    pub total_jobs: u64,
    /// Reservations that timed out since the start.
    pub timeouts: u64,
    /// Jobs deleted since the start.
    pub deletes: u64,
    /// Jobs released since the start.
    pub releases: u64,
    /// Jobs buried since the start.
    pub buries: u64,
    /// Jobs kicked since the start.
    pub kicks: u64,
    /// Jobs moved to another tube since the start.
    pub moves: u64,
    /// Puts since the start that repeated the idempotency key of another job.
    pub repeats: u64,
}

impl JobTotals {
    /// The number of jobs in this state.
    pub const fn in_state(&self, state: JobState) -> u32 {
        self.jobs[state as usize]
    }
}

/// Statistics of one tube.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct TubeStats<'a> {
    pub name: TubeName<'a>,
    pub urgent: u32,
    pub ready: usize,
    pub reserved: u32,
    pub delayed: usize,
    pub buried: usize,
    pub held: usize,
    pub total_jobs: u64,
    pub using: u32,
    pub watching: u32,
    pub deletes: u64,
    pub pauses: u64,
    pub timeouts: u64,
    pub buries: u64,
    /// The length of the current pause, zero without one.
    pub pause: Span,
    pub pause_left: Span,
    /// The age of the job that has been ready longest, zero without ready jobs.
    pub oldest_ready: Span,
}

/// Statistics of one job.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct JobStats<'a> {
    pub id: JobId,
    pub tube: TubeName<'a>,
    pub state: JobState,
    pub pri: u32,
    pub age: Span,
    pub delay: Seconds,
    pub ttr: Seconds,
    /// The time until a delayed job becomes ready or a reserved one times out. Zero in other states.
    pub time_left: Span,
    pub counts: Counts,
    pub tags: Tags<'a>,
    /// Of a job with a concurrency key: whether it is ready, and reserves pass it over because the key is at its limit.
    pub is_passed_over: Option<bool>,
    /// Of a held job: the group that it waits for, and how many members the group still has.
    pub waits_for: Option<(TubeName<'a>, u32)>,
}

impl Engine {
    /// The memory of jobs with their bodies, tubes and clients, including what is kept for reuse.
    pub fn memory_bytes(&self) -> usize {
        self.bodies().resident_bytes()
            + self.store.jobs.bytes()
            + self.store.tubes.bytes()
            + self.store.clients.bytes()
            + self.waits.bytes()
            + self.store.clients.watch_bytes()
            + self.idps.bytes()
            + self.cons.bytes()
            + self.groups.bytes()
            + self.rules.bytes()
            + self.store.timers.bytes()
            + self.job_waits.bytes()
            + self.effects.changes.bytes()
            + self.effects.work.bytes()
            + self.effects.notices.capacity() * size_of::<Notice>()
    }

    /// Memory reserved for the lifecycles and lanes of jobs that have none yet. Commands that create one are never refused for
    /// lack of memory, so a put must leave room for it.
    pub fn reserved_memory_bytes(&self) -> usize {
        self.store.jobs.reserved_memory_bytes() + self.cons.reserved_memory_bytes()
    }

    /// What the next `count` jobs add to both, without their bodies: nothing if they fit into memory that is kept for reuse.
    pub fn job_growth(&mut self, count: usize) -> usize {
        self.store.jobs.growth(count)
    }

    /// Counts of jobs and clients of the whole queue.
    pub const fn totals(&self) -> JobTotals {
        self.store.totals
    }

    /// The times from ready to reserved, in nanoseconds, of the whole queue.
    pub fn queue_times(&self) -> &Histogram {
        self.store.latency.get(LatencyKind::Queue)
    }

    /// The times for which clients reserved jobs, in nanoseconds, of the whole queue.
    pub fn reserved_times(&self) -> &Histogram {
        self.store.latency.get(LatencyKind::Reserved)
    }

    /// Counts the clients that watch a tube and wait. Checks the wide ones that watch the tube or those that wait, whichever are fewer.
    pub fn tube_waiting(&self, key: TubeKey) -> usize {
        self.waits.count(key, &self.store)
    }

    /// The number of clients that [`tube_waiting`](Self::tube_waiting) checks: the wide ones that watch the tube, or the wide
    /// ones that wait and may watch it, whichever are fewer.
    pub fn tube_waiting_cost(&self, key: TubeKey) -> usize {
        self.waits.count_cost(key, &self.store)
    }

    /// Computes the percentiles of one tube over the last 5 to 10 minutes. Reads every counter of the tube.
    pub fn tube_times(&self, key: TubeKey, kind: LatencyKind, now: Time) -> Percentiles {
        let latency = self.store.tubes.get(key).latency.as_ref();
        latency.map_or(Percentiles::default(), |latency| latency.percentiles(kind, now))
    }

    /// Returns the number and the sum of the times of one tube since it exists.
    pub fn tube_time_sum(&self, key: TubeKey, kind: LatencyKind) -> TimeSum {
        let latency = self.store.tubes.get(key).latency.as_ref();
        latency.map_or(TimeSum::default(), |latency| latency.sum(kind))
    }

    /// Returns the statistics of one tube, without those that cost more: [`tube_waiting`](Self::tube_waiting) and
    /// [`tube_times`](Self::tube_times).
    pub fn tube_stats(&self, key: TubeKey, now: Time) -> TubeStats<'_> {
        let tube = self.store.tubes.get(key);
        TubeStats {
            name: tube.name(),
            urgent: tube.urgent,
            ready: tube.ready_jobs(),
            reserved: tube.reserved.len(),
            delayed: tube.delayed.len(),
            buried: tube.buried.len(),
            held: tube.held.len(),
            total_jobs: tube.counts.jobs,
            using: tube.using,
            watching: tube.watching,
            deletes: tube.counts.deletes,
            pauses: tube.counts.pauses,
            timeouts: tube.counts.timeouts,
            buries: tube.counts.buries,
            pause: tube.pause.map_or(Span::ZERO, |pause| pause.length),
            pause_left: tube.pause.map_or(Span::ZERO, |pause| pause.until.since(now)),
            oldest_ready: tube
                .ready_order
                .oldest(&self.store.jobs)
                .map_or(Span::ZERO, |since| now.since(since)),
        }
    }

    /// The groups that are done and still hold jobs.
    pub fn done_groups(&self) -> impl Iterator<Item = TubeName<'_>> {
        self.groups.done(&self.store, &self.effects.work)
    }

    /// Returns the statistics of a group, if it has a member.
    pub fn group_stats(&self, name: TubeName<'_>) -> Option<GroupStats> {
        self.groups.stats(name, &self.store)
    }

    /// The groups that members of a group wait for.
    pub fn groups_ahead(&self, name: TubeName<'_>) -> impl Iterator<Item = TubeName<'_>> {
        // Bounded by its caller: an iterator, of which `stats-group` takes GROUPS_SHOWN_MAX.
        self.groups.all_ahead(name, &self.store)
    }

    /// Returns the statistics of one job.
    pub fn job_stats(&self, key: JobKey, now: Time) -> JobStats<'_> {
        let job = self.store.jobs.get(key);
        let lifecycle = self.store.jobs.lifecycle(key);
        let runs = matches!(job.state, JobState::Delayed | JobState::Reserved);
        JobStats {
            id: job.id,
            tube: self.store.tubes[job.tube].name(),
            state: job.state,
            pri: job.pri,
            age: now.since(job.created),
            delay: lifecycle.map_or(Seconds::ZERO, Lifecycle::delay),
            ttr: self.store.jobs.ttr(key),
            time_left: lifecycle
                .filter(|_| runs)
                .map_or(Span::ZERO, |lifecycle| lifecycle.deadline.since(now)),
            counts: lifecycle.map_or(Counts::default(), |lifecycle| lifecycle.counts),
            tags: self.store.tags(key),
            is_passed_over: self
                .store
                .jobs
                .con_of(key)
                .map(|_| job.state == JobState::Ready && self.cons.is_at_limit(key, &self.store.jobs)),
            waits_for: self.groups.ahead_of(key, &self.store),
        }
    }

    /// The number of clients that wait for the end of a job.
    pub fn job_waits(&self) -> usize {
        self.job_waits.len()
    }

    /// The time since a ready job became ready.
    pub fn ready_age(&self, job: JobKey, now: Time) -> Span {
        let lifecycle = self.store.jobs.lifecycle(job);
        now.since(lifecycle.map_or(self.store.jobs.get(job).created, |lifecycle| lifecycle.since))
    }
}
