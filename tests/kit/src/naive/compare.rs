//! Whether an engine is in the state of the model.

use beanring::queue::{Engine, JobState};
use beanring::time::Span;
use beanring::values::histogram::Histogram;
use beanring::values::ids::JobId;

use super::{Job, Kept, Model, Name, Place, RECOVERED};

impl Model {
    /// Asserts that tubes, jobs, kept keys and totals are the same.
    pub fn compare(&self, engine: &Engine, name_of: impl Fn(Name) -> String) {
        let names = engine.tubes().iter().map(|(_, tube)| tube.name().as_str().to_owned());
        assert!(names.eq(self.tubes.iter().map(|tube| name_of(tube.name))), "the order of list-tubes");
        assert_eq!(engine.jobs().len(), self.jobs.len());
        for job in &self.jobs {
            self.compare_job(engine, job, &name_of);
        }
        let job_waits = self.clients.iter().filter(|client| client.job_wait.is_some()).count();
        assert_eq!(engine.job_waits(), job_waits);
        let mut kept = Kept::all_of(engine);
        kept.retain(|kept| kept.until > self.now);
        assert_eq!(kept, self.kept_keys(), "keys of deleted jobs");
        assert_eq!(engine.totals(), self.job_totals());
        compare_histograms(engine.queue_times(), &self.lapses.queue);
        compare_histograms(engine.reserved_times(), &self.lapses.reserved);
    }

    fn compare_job(&self, engine: &Engine, job: &Job, name_of: impl Fn(Name) -> String) {
        let key = engine.jobs().find(JobId(job.id)).expect("the engine has the jobs of the model");
        let stats = engine.job_stats(key, self.now);
        let id = job.id;
        assert_eq!((stats.id, stats.tube.as_str()), (JobId(id), &*name_of(job.tube)));
        assert_eq!((stats.state, stats.pri), (job.state(), job.pri), "job {id}");
        assert_eq!((stats.delay, stats.ttr, stats.counts), (job.delay, job.ttr, job.counts), "job {id}");
        assert_eq!(stats.tags.as_str(), job.tags.text(), "job {id}");
        let notes: Vec<_> = stats.notes.iter().map(|note| (note.at, note.text.to_vec())).collect();
        assert_eq!(notes, job.notes, "job {id}");
        let is_passed_over = job.state() == JobState::Ready && self.is_at_limit(job);
        assert_eq!(stats.is_passed_over, job.tags.con.map(|_| is_passed_over), "job {id}");
        let ahead = stats.waits_for.map(|(group, members)| (group.as_str().to_owned(), members));
        let expected = self.group_ahead_of(job).map(|(group, members)| (format!("g{group}"), members));
        assert_eq!(ahead, expected, "job {id}");
        assert_eq!(stats.age, self.now.since(job.created), "job {id}");
        let left = job.deadline().map_or(Span::ZERO, |at| at.since(self.now));
        assert_eq!(stats.time_left, left, "job {id}");
        let holder = match job.place {
            Place::Reserved { by, .. } if by != RECOVERED => Some(self.get(by).key),
            Place::Reserved { .. } => return,
            _ => None,
        };
        assert_eq!(engine.holder(key), holder, "job {id}");
    }
}

/// The histograms of the whole queue are exact.
fn compare_histograms(histogram: &Histogram, samples: &[u64]) {
    assert_eq!(histogram.count(), samples.len() as u64);
    assert_eq!(histogram.sum(), samples.iter().map(|&sample| u128::from(sample)).sum());
    for (bound, count) in histogram.cumulative() {
        let below = samples.iter().filter(|&&sample| sample <= bound).count();
        assert_eq!(count, below as u64, "samples up to {bound} ns");
    }
}
