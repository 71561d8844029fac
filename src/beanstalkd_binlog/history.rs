//! From the records of a binlog to the jobs at its end.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::{Entry, Job, State};
use crate::queue::{Counts, LoggedState, PersistedState};
use crate::values::ids::JobId;
use crate::values::tube_name::TubeName;

/// Applies records in the order of the binlog.
#[derive(Default)]
pub struct History {
    jobs: HashMap<JobId, Known>,
    /// For each job that was buried: the number of burials, of all jobs, before its last one.
    burials: HashMap<JobId, u64>,
    burials_seen: u64,
    tubes: BTreeSet<Rc<[u8]>>,
    last_id: u64,
}

/// Where a body is. Places have the order of the records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BodyPlace {
    /// The index of the file, from 0.
    pub file: usize,
    /// The offset in the file.
    pub offset: u64,
}

struct Known {
    job: Job,
    tube: Rc<[u8]>,
    body: BodyPlace,
}

/// A job at the end of a binlog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    /// The last record of the job.
    pub job: Job,
    /// The name of its tube.
    pub tube: Rc<[u8]>,
    /// The state that is logged with each change.
    pub state: PersistedState,
    /// The place of its body.
    pub body: BodyPlace,
}

/// The record contradicts an earlier one of the same id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch;

impl History {
    /// Applies a record. `body` is the place of the body, if the record has one.
    ///
    /// # Errors
    /// If the record contradicts what is known of the job.
    pub fn apply(&mut self, entry: &Entry<'_>, body: BodyPlace) -> Result<(), Mismatch> {
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
        if job.state == State::Deleted {
            self.jobs.remove(&job.id);
            self.burials.remove(&job.id);
            return Ok(());
        }
        if job.state == State::Buried {
            // Unknown jobs count too. When beanstalkd compacts, it writes the whole job again, and the place of that record
            // does not show when the job was buried.
            self.burials.insert(job.id, self.burials_seen);
            self.burials_seen += 1;
        }
        // The whole job was in a file that beanstalkd has removed. Its record follows later, or the job was deleted.
        if let Some(known) = self.jobs.get_mut(&job.id) {
            known.job = job;
        }
        Ok(())
    }

    /// Whether a change belongs to a known job.
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

    /// An id above those of all jobs.
    pub const fn next_id(&self) -> JobId {
        JobId(self.last_id + 1)
    }

    /// Returns the jobs in the order of their bodies.
    pub fn finish(self) -> Vec<Imported> {
        let Self { jobs, burials, .. } = self;
        // beanstalkd removes the oldest files first, so a burial without a record came before all others.
        let buried = jobs.values().filter(|known| known.job.state == State::Buried);
        let mut order: Vec<_> =
            buried.map(|known| (burials.get(&known.job.id), known.body, known.job.id)).collect();
        order.sort_unstable();
        let order: HashMap<JobId, u64> = order.into_iter().map(|(.., id)| id).zip(0..).collect();
        let mut jobs: Vec<Imported> = jobs
            .into_values()
            .map(|Known { job, tube, body }| {
                let state = match job.state {
                    State::Deleted | State::Ready => LoggedState::Ready,
                    State::Delayed => LoggedState::Delayed(job.deadline),
                    State::Buried => LoggedState::Buried(order[&job.id]),
                };
                let state = PersistedState { pri: job.pri, delay: job.delay, state, counts: job.counts };
                Imported { job, tube, state, body }
            })
            .collect();
        jobs.sort_unstable_by_key(|imported| imported.body);
        jobs
    }
}

/// The sum of a job's counters, which only grows.
fn events(job: &Job) -> u64 {
    let Counts { reserves, timeouts, releases, buries, kicks, losses } = job.counts;
    [reserves, timeouts, releases, buries, kicks, losses].into_iter().map(u64::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{Seconds, Time};

    fn job(id: u64, state: State, buries: u32) -> Job {
        Job {
            id: JobId(id),
            created: Time::from_nanos(id),
            ttr: Seconds::ONE,
            pri: 0,
            delay: Seconds::ZERO,
            body_bytes: 2,
            deadline: Time::ZERO,
            counts: Counts { buries, ..Counts::default() },
            state,
        }
    }

    fn whole(history: &mut History, at: u64, job: Job) {
        let tube = Some(TubeName::DEFAULT);
        history.apply(&Entry { tube, job, head_bytes: 91 }, BodyPlace { file: 0, offset: at }).unwrap();
    }

    fn change(history: &mut History, job: Job) -> Result<(), Mismatch> {
        history.apply(&Entry { tube: None, job, head_bytes: 84 }, BodyPlace { file: 0, offset: 0 })
    }

    fn burials(history: History) -> Vec<u64> {
        let mut found: Vec<_> = history
            .finish()
            .into_iter()
            .filter_map(|imported| match imported.state.state {
                LoggedState::Buried(before) => Some((before, imported.job.id.0)),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    #[test]
    fn a_compacted_job_keeps_its_place_among_the_buried() {
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
    fn burials_without_a_record_come_first() {
        let mut history = History::default();
        change(&mut history, job(5, State::Buried, 1)).unwrap();
        whole(&mut history, 1, job(9, State::Buried, 1));
        whole(&mut history, 2, job(5, State::Buried, 1));
        whole(&mut history, 3, job(7, State::Buried, 1));
        assert_eq!(burials(history), [9, 7, 5]);
    }

    #[test]
    fn changes_must_match_the_job() {
        let mut history = History::default();
        whole(&mut history, 1, job(1, State::Ready, 0));
        let other = Job { created: Time::from_nanos(77), ..job(1, State::Deleted, 0) };
        assert_eq!(change(&mut history, other), Err(Mismatch));
        assert_eq!(change(&mut history, job(8, State::Deleted, 0)), Ok(()));
        assert_eq!(history.next_id(), JobId(9));
        assert_eq!(change(&mut history, job(1, State::Deleted, 0)), Ok(()));
        assert_eq!(history.finish(), []);
    }
}
