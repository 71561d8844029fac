//! Counts that `stats` shows.

use beanring::queue::{JobState, JobTotals};
use beanring::time::Span;

use super::{Client, Job, Model, Name};

const URGENT_BELOW: u32 = 1024;

impl Model {
    pub fn job_totals(&self) -> JobTotals {
        let clients =
            |is: fn(&Client) -> bool| self.clients.iter().filter(|client| is(client)).count() as u32;
        let jobs = |is: &dyn Fn(&Job) -> bool| self.jobs.iter().filter(|job| is(job)).count() as u32;
        JobTotals {
            jobs: JobState::ALL.map(|state| jobs(&|job| job.state() == state)),
            urgent: jobs(&is_urgent),
            waiting: clients(|client| client.wait.is_some()),
            producers: clients(|client| client.producer),
            workers: clients(|client| client.worker),
            ..self.totals
        }
    }

    /// Counts of jobs by [`JobState`], of urgent jobs, and of clients that use, watch, or watch and wait.
    pub fn tube_figures(&self, name: Name) -> ([usize; JobState::COUNT], usize, [usize; 3]) {
        let mut jobs = [0; JobState::COUNT];
        let mut urgent = 0;
        for job in self.jobs.iter().filter(|job| job.tube == name) {
            jobs[job.state() as usize] += 1;
            urgent += usize::from(is_urgent(job));
        }
        let using = self.clients.iter().filter(|client| client.used == name).count();
        let watching = || self.clients.iter().filter(|client| client.watched.contains(&name));
        let waiting = watching().filter(|client| client.wait.is_some()).count();
        (jobs, urgent, [using, watching().count(), waiting])
    }

    /// The age of the job of the tube that has been ready longest.
    pub fn oldest_ready(&self, name: Name) -> Span {
        let ready = self.jobs.iter().filter(|job| job.tube == name && job.state() == JobState::Ready);
        ready.map(|job| self.now.since(job.since)).max().unwrap_or(Span::ZERO)
    }
}

fn is_urgent(job: &Job) -> bool {
    job.state() == JobState::Ready && job.pri < URGENT_BELOW
}
