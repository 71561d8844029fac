//! The memory of the queue. It is counted as it changes, so that a query costs a few additions.

use super::engine::{Engine, Notice};

impl Engine {
    /// The memory of jobs with their bodies, tubes and clients, including what is kept for reuse.
    pub fn memory_bytes(&self) -> usize {
        self.bodies().resident_bytes()
            + self.jobs.bytes()
            + self.tubes.bytes()
            + self.clients.bytes()
            + self.clients.watch_bytes()
            + self.idps.bytes()
            + self.cons.bytes()
            + self.groups.bytes()
            + self.rules.bytes()
            + self.timers.bytes()
            + self.job_waits.bytes()
            + self.changes.bytes()
            + self.work.bytes()
            + self.notices.capacity() * size_of::<Notice>()
            + self.search_bytes
    }

    /// Memory reserved for the lifecycles and lanes of jobs that have none yet. Commands that create one are never refused for
    /// lack of memory, so a put must leave room for it.
    pub fn reserved_memory_bytes(&self) -> usize {
        self.jobs.reserved_memory_bytes() + self.cons.reserved_memory_bytes()
    }

    /// What the next `count` jobs add to both, without their bodies: nothing if they fit into memory that is kept for reuse.
    pub fn job_growth(&mut self, count: usize) -> usize {
        self.jobs.growth(count)
    }
}
