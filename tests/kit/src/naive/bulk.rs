//! Commands that name many jobs at once.

use beanring::queue::{JobEnd, JobState};

use super::{Conn, Job, Model, Name};

impl Model {
    /// Returns the number of jobs deleted, or none if there is no such tube.
    pub fn flush(&mut self, name: Name) -> Option<u32> {
        let tube = self.tubes.iter_mut().find(|tube| tube.name == name)?;
        let is_flushed = |job: &mut Job| job.tube == name && job.state() != JobState::Reserved;
        let flushed: Vec<Job> = self.jobs.extract_if(.., is_flushed).collect();
        let count = flushed.len() as u64;
        tube.deletes += count;
        self.deletes += count;
        for job in flushed {
            self.keep_key(&job);
            self.end_job(job.id, JobEnd::Deleted);
        }
        self.drop_tubes();
        Some(count as u32)
    }

    /// Reserves up to `most` further jobs, the most urgent first, while their bodies fit.
    pub fn reserve_more(&mut self, conn: Conn, most: usize, mut fits: impl FnMut(u64) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(at) = self.best_ready(conn).filter(|&at| fits(self.jobs[at].id)) else { break };
            taken.push(self.hold(at, conn));
        }
        taken
    }

    /// Returns the numbers of jobs deleted and of ids without a job that the client may delete.
    pub fn delete_batch(&mut self, conn: Conn, ids: &[u64]) -> (u32, u32) {
        let deleted = ids.iter().filter(|&&id| self.delete(conn, id)).count() as u32;
        (deleted, ids.len() as u32 - deleted)
    }
}
