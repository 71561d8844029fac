//! `wait-job`: the clients that wait until a job is deleted or buried.
//!
//! A job that clients wait for has a record in a side table, which the key of the job finds. A deletion or a burial costs
//! other jobs one comparison while the table is empty, and one probe of its index otherwise. When the job ends, its record
//! leaves the index of the table with the list of its clients, so the key of the job can be used again while many clients are answered in
//! background work.

use super::background::{ANSWER, FollowUp};
use super::client::Clients;
use super::engine::{Engine, Notice};
use super::job::JobState;
use super::work::Work;
use crate::intrusive::{Links, List, NIL, Pages, Table, intrusive};
use crate::time::{Span, Time};
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, ClientSlot, JobId, JobKey};

/// Up to this number of clients are answered at once, as long as the share of answers lasts. A `delete-batch` may delete some hundred jobs that clients wait for.
const ANSWERED_AT_ONCE_MAX: usize = 16;

/// How a job has ended that clients wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum JobEnd {
    /// It was deleted.
    Deleted,
    /// It was buried.
    Buried,
}

/// The answer to a `wait-job`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobAwaited {
    /// There is no such job.
    NotFound,
    /// The job is buried.
    Buried,
    /// The job is not buried, and the timeout is zero.
    TimedOut,
    /// The client waits. A [`Notice`] will follow.
    Waiting,
}

/// A job that clients wait for. Exists while it has clients, or while background work answers them.
struct Awaited {
    job: JobKey,
    /// Set once the job has ended. Then the record is hidden, and background work names it.
    end: Option<JobEnd>,
    /// The earliest wait first.
    waits: List,
    chain: u32,
}

/// The wait of one client.
struct JobWait {
    client: ClientSlot,
    awaited: AwaitedKey,
    until: Time,
    links: Links,
}

/// The slot of an [`Awaited`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AwaitedKey(u32);

/// The slot of a [`JobWait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct JobWaitKey(u32);

/// All waits for the end of a job.
pub(super) struct JobWaits {
    awaited: Table<Awaited>,
    waits: Pages<JobWait>,
}

impl JobWaits {
    /// No waits. `seed` keeps clients from choosing jobs that collide.
    pub(super) const fn new(seed: u64) -> Self {
        Self { awaited: Table::new(seed), waits: Pages::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.waits.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.awaited.bytes() + self.waits.bytes()
    }

    pub(super) fn until(&self, wait: JobWaitKey) -> Time {
        self.waits[wait.0].until
    }

    fn find(&self, job: JobKey) -> Option<AwaitedKey> {
        self.awaited.find_word(job.0.into()).map(AwaitedKey)
    }

    fn add(&mut self, job: JobKey, client: ClientSlot, until: Time) -> JobWaitKey {
        let awaited = self.find(job).unwrap_or_else(|| {
            AwaitedKey(self.awaited.insert(Awaited { job, end: None, waits: List::new(), chain: NIL }))
        });
        let wait = self.waits.insert(JobWait { client, awaited, until, links: Links::NONE });
        self.awaited[awaited.0].waits.push_back(&mut self.waits, wait);
        JobWaitKey(wait)
    }

    /// Removes a wait. Returns how its job has ended, if it has.
    fn remove(&mut self, wait: JobWaitKey) -> Option<JobEnd> {
        let key = self.waits[wait.0].awaited;
        let awaited = &mut self.awaited[key.0];
        awaited.waits.remove(&mut self.waits, wait.0);
        self.waits.remove(wait.0);
        let is_over = awaited.end.is_none() && awaited.waits.is_empty();
        let end = awaited.end;
        if is_over {
            self.awaited.remove(key.0);
        }
        end
    }

    /// Ends the waits for a job. The caller answers the clients.
    fn end(&mut self, job: JobKey, end: JobEnd) -> Option<AwaitedKey> {
        let key = self.find(job)?;
        self.awaited.hide(key.0);
        self.awaited[key.0].end = Some(end);
        Some(key)
    }

    /// Asserts that every record and every link is right. `answering` are the records that background work names.
    // Bounded by its caller: a test.
    pub(super) fn check(&self, clients: &Clients, answering: &[AwaitedKey]) {
        self.awaited.check(answering.len());
        self.waits.check();
        let mut waits = 0;
        for (key, awaited) in self.awaited.iter() {
            awaited.waits.check(&self.waits);
            let is_answering = answering.contains(&AwaitedKey(key));
            assert_eq!(
                awaited.end.is_some(),
                is_answering,
                "work answers the clients of a job that has ended"
            );
            let is_found = self.find(awaited.job) == Some(AwaitedKey(key));
            assert_eq!(is_found, !is_answering, "the index finds the jobs that have not ended");
            assert!(is_answering || !awaited.waits.is_empty(), "a client waits for the job");
            for wait in awaited.waits.iter(&self.waits) {
                let JobWait { client, awaited, .. } = self.waits[wait];
                assert_eq!((awaited, clients[client].job_wait), (AwaitedKey(key), Some(JobWaitKey(wait))));
                waits += 1;
            }
        }
        assert_eq!(waits, self.waits.len(), "every wait belongs to a job");
    }
}

impl Engine {
    /// Has the client wait until the job is deleted or buried, for up to `timeout`.
    pub fn wait_job(&mut self, client: ClientKey, id: JobId, timeout: Span, now: Time) -> JobAwaited {
        let client = self.store.clients.slot(client);
        let Some(job) = self.store.jobs.find(id) else { return JobAwaited::NotFound };
        if self.store.jobs.get(job).state == JobState::Buried {
            return JobAwaited::Buried;
        }
        if timeout == Span::ZERO {
            return JobAwaited::TimedOut;
        }
        let wait = self.job_waits.add(job, client, now + timeout);
        self.store.clients[client].job_wait = Some(wait);
        self.arm_client_timer(client);
        JobAwaited::Waiting
    }

    /// The number of clients that wait for the end of a job.
    pub fn job_waits(&self) -> usize {
        self.job_waits.len()
    }

    /// Ends the waits for a job that is deleted or buried.
    #[inline]
    pub(super) fn end_job_waits(&mut self, job: JobKey, end: JobEnd) {
        if self.job_waits.len() > 0 {
            self.answer_waits_for(job, end);
        }
    }

    #[cold]
    fn answer_waits_for(&mut self, job: JobKey, end: JobEnd) {
        let Some(awaited) = self.job_waits.end(job, end) else { return };
        let is_short = self.job_waits.awaited[awaited.0].waits.len() <= ANSWERED_AT_ONCE_MAX;
        self.with_quota(FollowUp::Answers, |engine, limit| {
            if !is_short || !engine.continue_answering(awaited, limit) {
                engine.effects.work.push_back(Work::Answer { awaited });
            }
        });
    }

    /// Answers clients that wait for a job that has ended, up to the limit. Returns true if all of them are answered.
    pub(super) fn continue_answering(&mut self, awaited: AwaitedKey, limit: Limit) -> bool {
        while let Some(wait) = self.job_waits.awaited[awaited.0].waits.front() {
            if !self.budget.spend(Cost::STEP, limit) {
                return false;
            }
            self.answer_job_wait(self.job_waits.waits[wait].client);
        }
        self.job_waits.awaited.remove_hidden(awaited.0);
        true
    }

    /// Ends the wait of the client for the end of a job, and tells it how the job has ended, or that it has not.
    pub(super) fn answer_job_wait(&mut self, client: ClientSlot) {
        self.budget.charge(ANSWER);
        let end = self.stop_waiting_for_job(client);
        let conn = self.store.clients[client].conn;
        self.effects.notices.push_back(end.map_or(Notice::TimedOut(conn), |end| Notice::JobEnded(conn, end)));
    }

    /// Ends the wait of the client for the end of a job, if it waits. Returns how the job has ended, if it has.
    pub(super) fn stop_waiting_for_job(&mut self, client: ClientSlot) -> Option<JobEnd> {
        let wait = self.store.clients[client].job_wait.take()?;
        self.job_waits.remove(wait)
    }
}

intrusive!(Awaited: in tables by |awaited| awaited.job.0.into());
intrusive!(JobWait: in lists);
