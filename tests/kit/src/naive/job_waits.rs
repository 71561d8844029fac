//! `wait-job`.

use beanring::queue::{JobAwaited, JobEnd, JobState};
use beanring::time::Span;

use super::{Client, Conn, JobWait, Model, Told};

impl Client {
    /// Whether its commands wait.
    pub const fn is_blocked(&self) -> bool {
        self.wait.is_some() || self.job_wait.is_some()
    }
}

impl Model {
    pub fn wait_job(&mut self, conn: Conn, id: u64, patience: Span) -> JobAwaited {
        let Some(job) = self.jobs.iter().find(|job| job.id == id) else { return JobAwaited::NotFound };
        if job.state() == JobState::Buried {
            return JobAwaited::Buried;
        }
        if patience == Span::ZERO {
            return JobAwaited::TimedOut;
        }
        let (until, turn) = (self.now + patience, self.next_turn());
        self.client(conn).job_wait = Some(JobWait { id, until, turn });
        JobAwaited::Waiting
    }

    /// Tells the clients that wait for the job, the longest wait first.
    pub(super) fn end_job(&mut self, id: u64, end: JobEnd) {
        let turn = |client: &Client| client.job_wait.filter(|wait| wait.id == id).map(|wait| wait.turn);
        for conn in self.in_order(turn) {
            self.client(conn).job_wait = None;
            self.told.push((conn, Told::JobEnded(end)));
        }
    }

    pub(super) fn job_wait_due(&mut self, conn: Conn) {
        let now = self.now;
        if self.client(conn).job_wait.take_if(|wait| wait.until <= now).is_some() {
            self.told.push((conn, Told::TimedOut));
        }
    }
}
