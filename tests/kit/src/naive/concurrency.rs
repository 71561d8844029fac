//! Concurrency keys.

use beanring::queue::JobState;

use super::{Client, Job, Model, Name};

impl Model {
    /// Whether as many jobs of the job's key are reserved as the newest job of the key allows.
    pub fn is_at_limit(&self, job: &Job) -> bool {
        job.tags.con.is_some_and(|(key, _)| self.is_full(key))
    }

    fn is_full(&self, key: u8) -> bool {
        let of_key = || self.jobs.iter().filter(|job| job.tags.con.is_some_and(|(own, _)| own == key));
        let held = of_key().filter(|job| job.state() == JobState::Reserved).count();
        let newest = of_key().max_by_key(|job| job.id).and_then(|job| job.tags.con);
        newest.is_some_and(|(_, limit)| held >= limit as usize)
    }

    /// Assigns jobs of a tube to the clients that wait for it, the longest wait first.
    pub(super) fn serve_tube(&mut self, tube: Name) {
        let turn =
            |client: &Client| client.wait.filter(|_| client.watched.contains(&tube)).map(|wait| wait.turn);
        for conn in self.in_order(turn) {
            let best = self.best_ready_in(&[tube]);
            self.end_wait_with(conn, best);
        }
    }

    /// Assigns jobs after a job has been put, or has left its place. Its own tube comes first if the job is ready.
    pub(super) fn serve_after(&mut self, at: usize) {
        let job = &self.jobs[at];
        let (tube, con) = (job.tube, job.tags.con);
        if job.state() == JobState::Ready {
            self.serve_tube(tube);
        }
        self.serve_key(con);
    }

    /// Assigns jobs of a key that may not be at its limit any more. The tube with the most urgent job of the key comes first.
    pub(super) fn serve_key(&mut self, con: Option<(u8, u32)>) {
        let Some((key, _)) = con else { return };
        let is_of_key =
            |job: &&Job| job.state() == JobState::Ready && job.tags.con.is_some_and(|(own, _)| own == key);
        let mut jobs: Vec<_> =
            self.jobs.iter().filter(is_of_key).map(|job| (job.pri, job.id, job.tube)).collect();
        jobs.sort();
        for (_, _, tube) in jobs {
            self.serve_tube(tube);
        }
    }
}
