//! `flush-tube`: deletes the jobs of a tube.

use crate::queue::store::Store;
use crate::values::ids::{ConnId, JobId, JobKey, TubeKey};

/// A `flush-tube` that is not finished.
pub struct Flush {
    pub conn: ConnId,
    pub tube: TubeKey,
    /// Jobs from this id on were announced after the command, and stay.
    end: JobId,
    pub flushed: u32,
}

impl Flush {
    pub const fn new(conn: ConnId, tube: TubeKey, end: JobId) -> Self {
        Self { conn, tube, end, flushed: 0 }
    }

    /// The next job to delete.
    ///
    /// Each list has the jobs that came last at its end, so the jobs of the flush precede those that were put later. Held
    /// jobs come first, so that the end of a member of their group does not release them, and then delayed ones: one that
    /// becomes ready meets the flush again at the end of the ready order.
    pub fn next(&self, store: &Store) -> Option<JobKey> {
        let tube = store.tubes.get(self.tube);
        let [fresh, active] = tube.ready_order.fronts(&store.jobs);
        let fronts = [tube.held.front(), tube.delayed_order.front(), tube.buried.front(), fresh, active];
        fronts.into_iter().flatten().map(JobKey).find(|&job| store.jobs.get(job).id < self.end)
    }
}
