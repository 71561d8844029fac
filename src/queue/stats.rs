//! Figures about the queue, a tube, a job: gathered here, rendered elsewhere.

use super::engine::Engine;
use super::job::{Counts, State};
use super::latency::{LatencyKind, Percentiles};
use crate::histogram::Histogram;
use crate::ids::{ClientSlot, JobId, JobKey, TubeKey};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// Counts over the whole queue, kept up to date.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct JobTotals {
    /// How many jobs there are in each [`State`].
    pub jobs: [u32; 4],
    /// How many ready jobs are urgent.
    pub urgent: u32,
    /// How many clients wait.
    pub waiting: u32,
    /// How many clients have put.
    pub producers: u32,
    /// How many clients have reserved.
    pub workers: u32,
    /// How many jobs have been stored since the start.
    pub total_jobs: u64,
    /// How many reservations have timed out since the start.
    pub timeouts: u64,
}

impl JobTotals {
    /// How many jobs are in this state.
    pub const fn in_state(&self, state: State) -> u32 {
        self.jobs[state as usize]
    }
}

/// The queue at a glance.
#[derive(Clone, Copy, Debug)]
pub struct QueueStats {
    /// Jobs and clients.
    pub totals: JobTotals,
    /// How many tubes there are.
    pub tubes: usize,
}

/// One tube at a glance.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct TubeStats<'a> {
    pub name: TubeName<'a>,
    pub urgent: u32,
    pub ready: usize,
    pub reserved: u32,
    pub delayed: usize,
    pub buried: usize,
    pub total_jobs: u64,
    pub using: u32,
    pub watching: u32,
    pub deletes: u64,
    pub pauses: u64,
    /// How long the pause under way was asked to be; zero without one.
    pub pause: Span,
    pub pause_left: Span,
    /// How long the job has been ready that has been so longest; zero without one.
    pub oldest_ready: Span,
}

/// One job at a glance.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct JobStats<'a> {
    pub id: JobId,
    pub tube: TubeName<'a>,
    pub state: State,
    pub pri: u32,
    pub age: Span,
    /// Seconds.
    pub delay: u32,
    /// Seconds.
    pub ttr: u32,
    /// Until a delayed job is ready or a reserved one times out; zero for others.
    pub time_left: Span,
    pub counts: Counts,
}

impl Engine {
    /// Figures about the whole queue.
    pub fn queue_stats(&self) -> QueueStats {
        QueueStats { totals: self.totals, tubes: self.tubes.len() }
    }

    /// How long jobs were ready before they were reserved, over the whole queue.
    pub fn queue_times(&self) -> &Histogram {
        self.latency.get(LatencyKind::Queue)
    }

    /// How long jobs were held, over the whole queue.
    pub fn held_times(&self) -> &Histogram {
        self.latency.get(LatencyKind::Held)
    }

    /// How many clients watch a tube and wait. Looks at [some](Self::tube_waiting_looks) of the wide ones.
    pub fn tube_waiting(&self, key: TubeKey) -> usize {
        let (tube, clients) = (self.tubes.get(key), &self.clients);
        let wide = if clients.line.count_after(tube.seen) < tube.wide.len() {
            let waiting = clients.line.after(tube.seen).filter_map(|place| place.client);
            waiting.filter(|&client| clients.is_watching(client, key.slot)).count()
        } else {
            let watching = tube.wide.iter(&clients.watches).map(|watch| clients.watches[watch].client);
            watching.filter(|&client: &ClientSlot| clients[client].is_waiting()).count()
        };
        tube.waiting.len() + wide
    }

    /// How many clients are looked at to tell how many wait for a tube: the wide ones that watch it, or those that wait
    /// and are not known to watch other tubes, whichever are fewer.
    pub fn tube_waiting_looks(&self, key: TubeKey) -> usize {
        let tube = self.tubes.get(key);
        tube.wide.len().min(self.clients.line.count_after(tube.seen))
    }

    /// How long jobs of one tube were ready, or held. Looks at every bin of what is kept of it.
    pub fn tube_times(&self, key: TubeKey, kind: LatencyKind) -> Percentiles {
        let latency = self.tubes.get(key).latency.as_ref();
        latency.map_or(Percentiles::default(), |latency| latency.percentiles(kind))
    }

    /// Figures about one tube, but for who [waits](Self::tube_waiting) for its jobs, and [times](Self::tube_times).
    pub fn tube_stats(&self, key: TubeKey, now: Time) -> TubeStats<'_> {
        let tube = self.tubes.get(key);
        TubeStats {
            name: tube.name(),
            urgent: tube.urgent,
            ready: tube.ready.len(),
            reserved: tube.reserved,
            delayed: tube.delayed.len(),
            buried: tube.buried.len(),
            total_jobs: tube.counts.jobs,
            using: tube.using,
            watching: tube.watching,
            deletes: tube.counts.deletes,
            pauses: tube.counts.pauses,
            pause: tube.pause.map_or(Span::ZERO, |pause| pause.length),
            pause_left: tube.pause.map_or(Span::ZERO, |pause| pause.until.since(now)),
            oldest_ready: tube.ready_order.oldest(&self.jobs).map_or(Span::ZERO, |since| now.since(since)),
        }
    }

    /// Figures about one job.
    pub fn job_stats(&self, key: JobKey, now: Time) -> JobStats<'_> {
        let job = self.jobs.get(key);
        let activity = self.jobs.activity(key);
        let runs = matches!(job.state, State::Delayed | State::Reserved);
        JobStats {
            id: job.id,
            tube: self.tubes[job.tube].name(),
            state: job.state,
            pri: job.pri,
            age: now.since(job.created),
            delay: activity.map_or(0, |activity| activity.delay),
            ttr: job.ttr,
            time_left: activity.filter(|_| runs).map_or(Span::ZERO, |activity| activity.deadline.since(now)),
            counts: activity.map_or(Counts::default(), |activity| activity.counts),
        }
    }
}
