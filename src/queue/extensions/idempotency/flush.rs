//! `flush-keys`: forgets the kept idempotency keys of a tube, which need not exist.

use super::{IdpKey, IdpKeys, Owner, names};
use crate::bodies::Bodies;
use crate::queue::effects::{Change, Effects};
use crate::queue::store::Store;
use crate::queue::store::names::text_bytes;
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{ClientKey, ConnId, IdpSlot, JobId};
use crate::values::limits::ALLOCATION_BYTES;
use crate::values::tube_name::TubeName;

/// A key that is forgotten, in addition to the look at it: it leaves the index and the heap, and the job log gets a record.
const FORGET: Cost = Cost::visits(3);

/// A `flush-keys` that is not finished. It looks at each slot once, so it ends although keys come and go. It ends with its client
/// too, so there are no more of them than connections.
pub struct KeyFlush {
    pub client: ClientKey,
    pub conn: ConnId,
    tube: Box<[u8]>,
    /// Jobs from this id on were announced after the command, and their keys stay.
    end: JobId,
    next: u32,
    slots_end: u32,
    pub flushed: u32,
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
    /// A flush for a client of the keys of a tube. Those of jobs from `end` on stay.
    pub fn new(client: ClientKey, conn: ConnId, tube: TubeName<'_>, end: JobId, keys: &IdpKeys) -> Self {
        let slots_end = if keys.kept.is_empty() { 0 } else { keys.table.keys_end() };
        Self { client, conn, tube: tube.as_bytes().into(), end, next: 0, slots_end, flushed: 0 }
    }

    /// Its memory.
    pub const fn bytes(&self) -> usize {
        size_of::<Self>() + ALLOCATION_BYTES + text_bytes(&self.tube)
    }
}

impl FlushedKey {
    /// The names of the tube and the key.
    pub fn names(&self) -> (TubeName<'_>, TubeName<'_>) {
        names(&self.name)
    }
}

impl IdpKeys {
    pub fn continue_flush(
        &mut self,
        flush: &mut KeyFlush,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) -> bool {
        while flush.next < flush.slots_end {
            if budget.is_reached(limit) {
                return false;
            }
            budget.charge(Cost::STEP);
            if self.is_flushed_by(flush, IdpSlot(flush.next), &store.bodies) {
                budget.charge(FORGET);
                self.forget_flushed(IdpSlot(flush.next), store, effects);
                flush.flushed += 1;
            }
            flush.next += 1;
        }
        true
    }

    fn is_flushed_by(&self, flush: &KeyFlush, slot: IdpSlot, bodies: &Bodies) -> bool {
        let is_it = |key: &IdpKey| match key.owner {
            Owner::Job { .. } => false,
            Owner::Deleted(deleted) => deleted.id < flush.end && key.is_of(&flush.tube, bodies),
        };
        self.table.get(slot.0).is_some_and(is_it)
    }

    fn forget_flushed(&mut self, slot: IdpSlot, store: &mut Store, effects: &mut Effects) {
        let (id, kept) = self.remove_kept(slot);
        let name = kept.text(&store.bodies).into();
        kept.free(&mut store.bodies);
        effects.changes.push(Change::KeyFlushed(slot, Box::new(FlushedKey { id, name })));
    }
}
