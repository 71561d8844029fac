//! Pages of the jobs of a tube in one state, in the order of their ids.
//!
//! No container has this order. If few jobs are in the state, the command visits their list, and sorts them. Otherwise
//! background work visits the records of all jobs of the queue and keeps the smallest ids that the page has room for. A
//! record keeps its slot as long as its job exists, so jobs may come, go and move between two pieces of this work.

use std::collections::BinaryHeap;

use crate::queue::store::Store;
use crate::queue::store::job::{Job, JobState, Jobs};
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{ClientKey, ConnId, JobId, JobKey, TubeKey};
use crate::values::limits::ALLOCATION_BYTES;

/// The most jobs in a state that a command visits at once: some 100 us.
const VISITED_AT_ONCE_MAX: usize = 1000;

/// Slots visited in the time of one elementary step. They lie next to each other in memory.
const SLOTS_PER_STEP: u32 = 16;

/// Which jobs a page shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageQuery {
    /// The state of the jobs.
    pub state: JobState,
    /// Only jobs with a larger id are shown.
    pub after: JobId,
    /// Maximum number of jobs, at least 1.
    pub limit: u32,
}

/// Jobs of a tube. It is empty only if no further job is in the state.
#[derive(PartialEq, Eq, Debug)]
pub struct JobPage {
    /// The state of the jobs.
    pub state: JobState,
    /// The jobs, the smallest id first.
    pub jobs: Vec<JobKey>,
}

/// A `list-jobs` that is not finished.
pub struct JobSearch {
    pub client: ClientKey,
    pub conn: ConnId,
    pub tube: TubeKey,
    query: PageQuery,
    /// The next slot to visit.
    at: u32,
    /// The smallest ids found so far, the largest of them first.
    found: BinaryHeap<(JobId, JobKey)>,
}

impl JobPage {
    /// Lists the jobs of a tube, if few are in the state.
    // Bounded by VISITED_AT_ONCE_MAX: the list is short.
    pub(in crate::queue) fn of_short_list(
        key: TubeKey,
        query: PageQuery,
        store: &Store,
        budget: &mut Budget,
    ) -> Option<Self> {
        let (tube, jobs) = (store.tubes.get(key), &store.jobs);
        let there = tube.jobs_in(query.state);
        if there > VISITED_AT_ONCE_MAX {
            return None;
        }
        budget.charge(Cost::visits(there));
        let all: Box<dyn Iterator<Item = JobKey>> = match query.state {
            JobState::Ready => Box::new(tube.ready_order.iter(jobs)),
            JobState::Reserved => Box::new(tube.reserved.iter(jobs)),
            JobState::Delayed => Box::new(tube.delayed_order.iter(&jobs.slab).map(JobKey)),
            JobState::Held => Box::new(tube.held.iter(&jobs.slab).map(JobKey)),
            JobState::Buried => Box::new(tube.buried.iter(&jobs.slab).map(JobKey)),
        };
        let ids = all.map(|job| (jobs.get(job).id, job));
        let mut page: Vec<(JobId, JobKey)> = ids.filter(|&(id, _)| id > query.after).collect();
        page.sort_unstable();
        page.truncate(query.limit as usize);
        Some(Self { state: query.state, jobs: page.into_iter().map(|(_, job)| job).collect() })
    }
}

impl JobSearch {
    /// A search for background work. It is to pin its tube.
    pub fn new(client: ClientKey, conn: ConnId, tube: TubeKey, query: PageQuery) -> Self {
        let found = BinaryHeap::with_capacity(query.limit as usize);
        Self { client, conn, tube, query, at: 0, found }
    }

    /// Its memory.
    pub const fn bytes(&self) -> usize {
        let page = self.query.limit as usize * size_of::<(JobId, JobKey)>();
        page + size_of::<Self>() + 2 * ALLOCATION_BYTES
    }

    /// Visits slots up to the limit. Returns the page if it is complete.
    pub fn advance(&mut self, limit: Limit, store: &Store, budget: &mut Budget) -> Option<JobPage> {
        loop {
            while self.at < store.jobs.slab.keys_end() {
                if budget.is_reached(limit) {
                    return None;
                }
                budget.charge(Cost::STEP);
                self.visit_slots(&store.jobs);
            }
            let query = self.query;
            let found = std::mem::take(&mut self.found).into_sorted_vec();
            let last = found.last().map(|&(id, _)| id);
            let still = found.into_iter().filter(|&(id, job)| {
                let record = store.jobs.slab.get(job.0);
                record.is_some_and(|record| record.id == id && is_match(record, self.tube, query.state))
            });
            let page = JobPage { state: query.state, jobs: still.map(|(_, job)| job).collect() };
            match last {
                // All of them have changed since they were found: others may follow them.
                Some(last) if page.jobs.is_empty() => {
                    (self.query.after, self.at) = (last, 0);
                    self.found.reserve(query.limit as usize);
                }
                _ => return Some(page),
            }
        }
    }

    /// Visits the slots of one step.
    fn visit_slots(&mut self, jobs: &Jobs) {
        let Self { tube, query, at, found, .. } = self;
        // Bounded by SLOTS_PER_STEP: the slots of one step.
        for slot in *at..*at + SLOTS_PER_STEP {
            let Some(job) = jobs.slab.get(slot).filter(|job| is_match(job, *tube, query.state)) else {
                continue;
            };
            if job.id <= query.after {
                continue;
            }
            if found.len() < query.limit as usize {
                found.push((job.id, JobKey(slot)));
            } else if let Some(mut largest) = found.peek_mut().filter(|largest| job.id < largest.0) {
                *largest = (job.id, JobKey(slot));
            }
        }
        *at += SLOTS_PER_STEP;
    }
}

fn is_match(job: &Job, tube: TubeKey, state: JobState) -> bool {
    job.state == state && job.tube == tube.slot
}
