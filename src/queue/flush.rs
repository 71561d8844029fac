//! `flush-tube`: deletes the jobs of a tube.

use super::store::Store;
use crate::values::ids::{ConnId, JobId, JobKey, TubeKey};

/// A `flush-tube` that is not finished.
pub(super) struct Flush {
    pub(super) conn: ConnId,
    pub(super) tube: TubeKey,
    /// Jobs from this id on were announced after the command, and stay.
    end: JobId,
    pub(super) flushed: u32,
}

impl Flush {
    pub(super) const fn new(conn: ConnId, tube: TubeKey, end: JobId) -> Self {
        Self { conn, tube, end, flushed: 0 }
    }

    /// The next job to delete.
    ///
    /// Each list has the jobs that came last at its end, so the jobs of the flush precede those that were put later. Held
    /// jobs come first, so that the end of a member of their group does not release them, and then delayed ones: one that
    /// becomes ready meets the flush again at the end of the ready order.
    pub(super) fn next(&self, store: &Store) -> Option<JobKey> {
        let tube = store.tubes.get(self.tube);
        let [fresh, active] = tube.ready_order.fronts(&store.jobs);
        let fronts = [tube.held.front(), tube.delayed_order.front(), tube.buried.front(), fresh, active];
        fronts.into_iter().flatten().map(JobKey).find(|&job| store.jobs.get(job).id < self.end)
    }
}
