//! `flush-tube`: deletes the jobs of a tube.

use super::background::BACKGROUND_STEPS;
use super::engine::Engine;
use super::work::{Begun, Work};
use crate::time::Time;
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, ConnId, JobId, JobKey, TubeKey};
use crate::values::tube_name::TubeName;

/// A `flush-tube` that is not finished.
pub(super) struct Flush {
    pub(super) conn: ConnId,
    pub(super) tube: TubeKey,
    /// Jobs from this id on were announced after the command, and stay.
    end: JobId,
    pub(super) flushed: u32,
}

impl Engine {
    /// Deletes the jobs of a tube that no client has reserved. A job that is put later stays.
    pub fn flush(&mut self, client: ClientKey, name: TubeName<'_>, now: Time) -> Begun<u32> {
        let Some(tube) = self.store.tubes.find(name) else { return Begun::NoTube };
        self.store.tubes[tube.slot].pins += 1;
        let conn = self.store.clients.get(client).conn;
        let mut flush = Flush { conn, tube, end: self.upcoming_id(), flushed: 0 };
        if self.continue_flush(&mut flush, now, self.budget.within(BACKGROUND_STEPS)) {
            return Begun::Done(flush.flushed);
        }
        self.effects.work.push_back(Work::Flush(flush));
        Begun::Working
    }

    /// Deletes jobs up to the limit. Returns true if the flush is finished.
    pub(super) fn continue_flush(&mut self, flush: &mut Flush, now: Time, limit: Limit) -> bool {
        while let Some(job) = self.next_to_flush(flush) {
            if self.budget.is_reached(limit) {
                // mutant flush-ends-with-its-first-step: return false => break
                return false;
            }
            self.budget.charge(Cost::STEP);
            self.delete_job(job, now);
            flush.flushed += 1;
        }
        self.unpin(flush.tube.slot);
        true
    }

    /// Each list has the jobs that came last at its end, so the jobs of the flush precede those that were put later. Held
    /// jobs come first, so that the end of a member of their group does not release them, and then delayed ones: one that
    /// becomes ready meets the flush again at the end of the ready order.
    fn next_to_flush(&self, flush: &Flush) -> Option<JobKey> {
        let tube = self.store.tubes.get(flush.tube);
        let [fresh, active] = tube.ready_order.fronts(&self.store.jobs);
        let fronts = [tube.held.front(), tube.delayed_order.front(), tube.buried.front(), fresh, active];
        fronts.into_iter().flatten().map(JobKey).find(|&job| self.store.jobs.get(job).id < flush.end)
    }
}
