//! What the queue takes of the memory. Counted as it changes, so that asking costs a few additions.

use super::background::Work;
use super::engine::{Engine, Notice};

impl Engine {
    /// The memory that jobs with their bodies, tubes and clients take, with what is kept for the next of them.
    pub fn memory_bytes(&self) -> usize {
        self.bodies().resident_bytes()
            + self.jobs.bytes()
            + self.tubes.bytes()
            + self.clients.bytes()
            + self.clients.watch_bytes()
            + self.timers.bytes()
            + self.changes.bytes()
            + self.work.capacity() * size_of::<Work>()
            + self.notices.capacity() * size_of::<Notice>()
    }

    /// What the jobs that there are will take on top when each has been reserved, buried or delayed: commands
    /// that are not refused for want of memory.
    pub fn set_aside_bytes(&self) -> usize {
        self.jobs.set_aside_bytes()
    }

    /// What one more job adds to both, without its body: nothing, where it finds room in memory that is kept.
    pub fn job_growth(&mut self) -> usize {
        self.jobs.growth()
    }
}
