//! `flush-tube`: deletes the jobs of a tube. `flush-keys`: forgets the kept idempotency keys of a tube, which need not exist.

use super::background::BACKGROUND_STEPS;
use super::change::Change;
use super::engine::Engine;
use super::idempotency::{IdpKey, Owner, names};
use super::key_share::KeyStats;
use super::names::text_bytes;
use super::work::{Begun, Work};
use crate::time::Time;
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, ConnId, IdpSlot, JobId, JobKey, TubeKey};
use crate::values::limits::ALLOCATION_BYTES;
use crate::values::tube_name::TubeName;

/// A key that is forgotten, in addition to the look at it: it leaves the index and the heap, and the job log gets a record.
const FORGET: Cost = Cost::visits(3);

/// A `flush-tube` that is not finished.
pub(super) struct Flush {
    pub(super) conn: ConnId,
    pub(super) tube: TubeKey,
    /// Jobs from this id on were announced after the command, and stay.
    end: JobId,
    pub(super) flushed: u32,
}

/// A `flush-keys` that is not finished. It looks at each slot once, so it ends although keys come and go. It ends with its client
/// too, so there are no more of them than connections.
pub(super) struct KeyFlush {
    pub(super) client: ClientKey,
    pub(super) conn: ConnId,
    tube: Box<[u8]>,
    /// Jobs from this id on were announced after the command, and their keys stay.
    end: JobId,
    next: u32,
    slots_end: u32,
    pub(super) flushed: u32,
}

/// A key that a client has flushed, for the job log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlushedKey {
    /// The id of the deleted job.
    pub id: JobId,
    /// The name of the tube, a space, and the key.
    name: Box<[u8]>,
}

impl KeyFlush {
    /// Its memory.
    pub(super) const fn bytes(&self) -> usize {
        size_of::<Self>() + ALLOCATION_BYTES + text_bytes(&self.tube)
    }
}

impl FlushedKey {
    /// The names of the tube and the key.
    pub fn names(&self) -> (TubeName<'_>, TubeName<'_>) {
        names(&self.name)
    }
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

    /// Forgets the kept keys of the tube of this name. Keys of jobs stay, and so do those of jobs that are put later.
    pub fn flush_keys(&mut self, client: ClientKey, tube: TubeName<'_>) -> Begun<u32> {
        let KeyStats { kept, .. } = self.key_stats();
        let mut flush = KeyFlush {
            client,
            conn: self.store.clients.get(client).conn,
            tube: tube.as_bytes().into(),
            end: self.upcoming_id(),
            next: 0,
            slots_end: if kept == 0 { 0 } else { self.idps.slots_end() },
            flushed: 0,
        };
        if self.continue_key_flush(&mut flush, self.budget.within(BACKGROUND_STEPS)) {
            return Begun::Done(flush.flushed);
        }
        self.search_bytes += flush.bytes();
        self.effects.work.push_back(Work::FlushKeys(Box::new(flush)));
        Begun::Working
    }

    pub(super) fn end_key_flush(&mut self, flush: &KeyFlush) {
        self.search_bytes -= flush.bytes();
    }

    /// Forgets keys up to the limit. Returns true if the flush is finished.
    pub(super) fn continue_key_flush(&mut self, flush: &mut KeyFlush, limit: Limit) -> bool {
        while flush.next < flush.slots_end {
            if self.budget.is_reached(limit) {
                return false;
            }
            self.budget.charge(Cost::STEP);
            if self.is_flushed_by(flush, IdpSlot(flush.next)) {
                self.budget.charge(FORGET);
                self.forget_flushed(IdpSlot(flush.next));
                flush.flushed += 1;
            }
            flush.next += 1;
        }
        true
    }

    fn is_flushed_by(&self, flush: &KeyFlush, slot: IdpSlot) -> bool {
        let is_it = |key: &IdpKey| match key.owner() {
            Owner::Job { .. } => false,
            Owner::Deleted(deleted) => deleted.id < flush.end && key.is_of(&flush.tube, &self.store.bodies),
        };
        self.idps.find_slot(slot).is_some_and(is_it)
    }

    fn forget_flushed(&mut self, slot: IdpSlot) {
        let (id, kept) = self.idps.remove_kept(slot);
        let name = kept.text(&self.store.bodies).into();
        kept.free(&mut self.store.bodies);
        self.effects.changes.push(Change::KeyFlushed(slot, Box::new(FlushedKey { id, name })));
    }
}
