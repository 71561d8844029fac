//! From the records of a binlog to the jobs that it leaves.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::{Entry, Job, State};
use crate::ids::JobId;
use crate::queue::{Counts, PersistedState, Standing};
use crate::tube_name::TubeName;

/// What a binlog has said so far. Records go in in their order.
#[derive(Default)]
pub struct History {
    jobs: HashMap<JobId, Known>,
    /// For each job that has been buried, how many burials there had been before the last.
    burials: HashMap<JobId, u64>,
    burials_seen: u64,
    tubes: BTreeSet<Rc<[u8]>>,
    last_id: u64,
}

/// Where a body is: orders as the records do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Which file, counted from the first.
    pub file: usize,
    /// Where in it.
    pub offset: u64,
}

struct Known {
    job: Job,
    tube: Rc<[u8]>,
    body: Place,
}

/// A job as a binlog leaves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// What does not change, and the size of the body.
    pub job: Job,
    /// Where it is.
    pub tube: Rc<[u8]>,
    /// What changes.
    pub kept: PersistedState,
    /// Where the body is.
    pub body: Place,
}

/// The record is about a job that is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch;

impl History {
    /// Takes a record, and where the body is, if it has one.
    pub fn apply(&mut self, entry: &Entry<'_>, body: Place) -> Result<(), Mismatch> {
        let job = entry.job;
        self.last_id = self.last_id.max(job.id.0);
        if let Some(tube) = entry.tube {
            let tube = self.tube(tube);
            self.jobs.insert(job.id, Known { job, tube, body });
            return Ok(());
        }
        if self.contradicts(&job) {
            return Err(Mismatch);
        }
        if job.state == State::Gone {
            self.jobs.remove(&job.id);
            self.burials.remove(&job.id);
            return Ok(());
        }
        if job.state == State::Buried {
            // Of jobs that are not known too: where all of one is moved to says nothing of the order.
            self.burials.insert(job.id, self.burials_seen);
            self.burials_seen += 1;
        }
        // Of a job that is not known, the record was in a file that the reference has removed: it comes again
        // later, or the job is gone.
        if let Some(known) = self.jobs.get_mut(&job.id) {
            known.job = job;
        }
        Ok(())
    }

    /// Whether a change is one of a job that is known.
    pub fn is_about_known(&self, job: &Job) -> bool {
        self.jobs.contains_key(&job.id) && !self.contradicts(job)
    }

    fn contradicts(&self, job: &Job) -> bool {
        let contradicts = |Known { job: known, .. }: &Known| {
            (known.created, known.body_bytes, known.ttr) != (job.created, job.body_bytes, job.ttr)
                || events(known) > events(job)
        };
        self.jobs.get(&job.id).is_some_and(contradicts)
    }

    fn tube(&mut self, name: TubeName<'_>) -> Rc<[u8]> {
        if let Some(known) = self.tubes.get(name.as_bytes()) {
            return known.clone();
        }
        let tube: Rc<[u8]> = name.as_bytes().into();
        self.tubes.insert(tube.clone());
        tube
    }

    /// No job had this id or a larger one.
    pub const fn next_id(&self) -> JobId {
        JobId(self.last_id + 1)
    }

    /// The jobs in the order of their bodies.
    pub fn finish(self) -> Vec<Imported> {
        let Self { jobs, burials, .. } = self;
        // Files go from the oldest on: a burial whose record is gone was before all others.
        let buried = jobs.values().filter(|known| known.job.state == State::Buried);
        let mut order: Vec<_> =
            buried.map(|known| (burials.get(&known.job.id), known.body, known.job.id)).collect();
        order.sort_unstable();
        let order: HashMap<JobId, u64> = order.into_iter().map(|(.., id)| id).zip(0..).collect();
        let mut jobs: Vec<Imported> = jobs
            .into_values()
            .map(|Known { job, tube, body }| {
                let standing = match job.state {
                    State::Gone | State::Ready => Standing::Ready,
                    State::Delayed => Standing::Delayed(job.deadline),
                    State::Buried => Standing::Buried(order[&job.id]),
                };
                let kept = PersistedState { pri: job.pri, delay: job.delay, standing, counts: job.counts };
                Imported { job, tube, kept, body }
            })
            .collect();
        jobs.sort_unstable_by_key(|imported| imported.body);
        jobs
    }
}

/// How much has happened to a job.
fn events(job: &Job) -> u64 {
    let Counts { reserves, timeouts, releases, buries, kicks } = job.counts;
    [reserves, timeouts, releases, buries, kicks].into_iter().map(u64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    fn job(id: u64, state: State, buries: u32) -> Job {
        Job {
            id: JobId(id),
            created: Time::from_nanos(id),
            ttr: 1,
            pri: 0,
            delay: 0,
            body_bytes: 2,
            deadline: Time::ZERO,
            counts: Counts { buries, ..Counts::default() },
            state,
        }
    }

    fn whole(history: &mut History, at: u64, job: Job) {
        let tube = Some(TubeName::DEFAULT);
        history.apply(&Entry { tube, job, head_bytes: 91 }, Place { file: 0, offset: at }).unwrap();
    }

    fn change(history: &mut History, job: Job) -> Result<(), Mismatch> {
        history.apply(&Entry { tube: None, job, head_bytes: 84 }, Place { file: 0, offset: 0 })
    }

    fn burials(history: History) -> Vec<u64> {
        let mut found: Vec<_> = history
            .finish()
            .into_iter()
            .filter_map(|imported| match imported.kept.standing {
                Standing::Buried(before) => Some((before, imported.job.id.0)),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    #[test]
    fn a_job_that_is_moved_keeps_its_place_among_the_buried() {
        let mut history = History::default();
        for id in 1..=4 {
            whole(&mut history, id, job(id, State::Ready, 0));
        }
        for (id, buries) in [(3, 1), (1, 1), (4, 1), (2, 1)] {
            change(&mut history, job(id, State::Buried, buries)).unwrap();
        }
        whole(&mut history, 10, job(3, State::Buried, 1));
        change(&mut history, job(1, State::Ready, 1)).unwrap();
        change(&mut history, job(1, State::Buried, 2)).unwrap();
        assert_eq!(burials(history), [3, 4, 2, 1]);
    }

    #[test]
    fn burials_whose_records_are_gone_come_first() {
        let mut history = History::default();
        change(&mut history, job(5, State::Buried, 1)).unwrap();
        whole(&mut history, 1, job(9, State::Buried, 1));
        whole(&mut history, 2, job(5, State::Buried, 1));
        whole(&mut history, 3, job(7, State::Buried, 1));
        assert_eq!(burials(history), [9, 7, 5]);
    }

    #[test]
    fn changes_are_of_the_same_job() {
        let mut history = History::default();
        whole(&mut history, 1, job(1, State::Ready, 0));
        let other = Job { created: Time::from_nanos(77), ..job(1, State::Gone, 0) };
        assert_eq!(change(&mut history, other), Err(Mismatch));
        assert_eq!(change(&mut history, job(8, State::Gone, 0)), Ok(()));
        assert_eq!(history.next_id(), JobId(9));
        assert_eq!(change(&mut history, job(1, State::Gone, 0)), Ok(()));
        assert_eq!(history.finish(), []);
    }
}
