//! `wait-job`: the clients that wait until a job is deleted or buried.
//!
//! A job that clients wait for has a record in a side table, which the key of the job finds. A deletion or a burial costs
//! other jobs one comparison while the table is empty, and one probe of its index otherwise. When the job ends, its record
//! leaves the index of the table with the list of its clients, so the key of the job can be used again while many clients are answered in
//! background work.

use crate::intrusive::{Links, List, NIL, Pages, Table, intrusive};
use crate::queue::effects::{Effects, Notice};
use crate::queue::long_work::{ANSWER, Work};
use crate::queue::store::Store;
use crate::time::Time;
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{ClientSlot, JobKey};

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
pub struct AwaitedKey(u32);

/// The slot of a [`JobWait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobWaitKey(u32);

/// A job that has ended, and whose clients are to be answered.
#[must_use]
pub struct Ended {
    pub awaited: AwaitedKey,
    /// They may be answered at once.
    pub is_short: bool,
}

/// All waits for the end of a job.
pub struct JobWaits {
    awaited: Table<Awaited>,
    waits: Pages<JobWait>,
}

impl JobWaits {
    /// No waits. `seed` keeps clients from choosing jobs that collide.
    pub const fn new(seed: u64) -> Self {
        Self { awaited: Table::new(seed), waits: Pages::new() }
    }

    pub const fn len(&self) -> usize {
        self.waits.len()
    }

    pub const fn bytes(&self) -> usize {
        self.awaited.bytes() + self.waits.bytes()
    }

    pub fn until(&self, wait: JobWaitKey) -> Time {
        self.waits[wait.0].until
    }

    fn find(&self, job: JobKey) -> Option<AwaitedKey> {
        self.awaited.find_word(job.0.into()).map(AwaitedKey)
    }

    /// Has a client wait for the end of a job. Its timer is to be armed then.
    pub fn start(&mut self, client: ClientSlot, job: JobKey, until: Time, store: &mut Store) {
        let awaited = self.find(job).unwrap_or_else(|| {
            AwaitedKey(self.awaited.insert(Awaited { job, end: None, waits: List::new(), chain: NIL }))
        });
        let wait = self.waits.insert(JobWait { client, awaited, until, links: Links::NONE });
        self.awaited[awaited.0].waits.push_back(&mut self.waits, wait);
        store.clients[client].job_wait = Some(JobWaitKey(wait));
    }

    /// Ends the wait of the client for the end of a job, if it waits. Returns how the job has ended, if it has.
    pub fn stop(&mut self, client: ClientSlot, store: &mut Store) -> Option<JobEnd> {
        let JobWaitKey(wait) = store.clients[client].job_wait.take()?;
        let AwaitedKey(key) = self.waits[wait].awaited;
        let awaited = &mut self.awaited[key];
        awaited.waits.remove(&mut self.waits, wait);
        self.waits.remove(wait);
        let end = awaited.end;
        if end.is_none() && awaited.waits.is_empty() {
            self.awaited.remove(key);
        }
        end
    }

    /// Ends the waits for a job that is deleted or buried. Its clients are to be answered, if it has any.
    pub fn end(&mut self, job: JobKey, end: JobEnd) -> Option<Ended> {
        let awaited = self.find(job)?;
        self.awaited.hide(awaited.0);
        let record = &mut self.awaited[awaited.0];
        record.end = Some(end);
        Some(Ended { awaited, is_short: record.waits.len() <= ANSWERED_AT_ONCE_MAX })
    }

    /// Ends the wait of the client for the end of a job, and tells it how the job has ended, or that it has not.
    pub fn answer(
        &mut self,
        client: ClientSlot,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) {
        budget.charge(ANSWER);
        let end = self.stop(client, store);
        let conn = store.clients[client].conn;
        effects.notices.push_back(end.map_or(Notice::TimedOut(conn), |end| Notice::JobEnded(conn, end)));
    }

    pub fn continue_answering(
        &mut self,
        awaited: AwaitedKey,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) -> bool {
        while let Some(wait) = self.awaited[awaited.0].waits.front() {
            if !budget.spend(Cost::STEP, limit) {
                return false;
            }
            self.answer(self.waits[wait].client, store, effects, budget);
        }
        self.awaited.remove_hidden(awaited.0);
        true
    }

    /// Asserts that every record and every link is right.
    // Bounded by its caller: a test.
    pub fn check(&self, store: &Store, effects: &Effects) {
        let answering = effects.work.iter().filter_map(|work| match work {
            Work::Answer { awaited } => Some(*awaited),
            _ => None,
        });
        let answering: Vec<AwaitedKey> = answering.collect();
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
                assert_eq!(
                    (awaited, store.clients[client].job_wait),
                    (AwaitedKey(key), Some(JobWaitKey(wait)))
                );
                waits += 1;
            }
        }
        assert_eq!(waits, self.waits.len(), "every wait belongs to a job");
    }
}

intrusive!(Awaited: in tables by |awaited| awaited.job.0.into());
intrusive!(JobWait: in lists);
