//! Idempotency keys of deleted jobs, and which segment each is logged in.

use super::Wal;
use super::placed::{Place, Placed};
use super::record::Record;
use super::segment::SegmentNumber;
use super::segment_index::SegmentIndex;
use crate::queue::{Engine, KEPT_KEY_LOG_BYTES};
use crate::values::ids::IdpSlot;

/// All logged keys, by their slots in the queue.
#[derive(Default)]
pub struct KeptKeys {
    placed: Placed<IdpSlot, ()>,
}

/// Memory of one key, at most: its share of two trees.
const KEY_BYTES: usize = 4 * size_of::<Place<IdpSlot>>();

// The share of memory that keys get covers it.
const _: () = assert!(KEY_BYTES <= KEPT_KEY_LOG_BYTES);

impl KeptKeys {
    /// Notes a record of this size in this segment, and accounts for it in the index.
    pub fn insert(&mut self, key: IdpSlot, segment: SegmentNumber, bytes: usize, index: &mut SegmentIndex) {
        self.placed.insert(key, (), (segment, bytes), index);
    }

    /// Removes a key whose record is not needed any more, if it is logged. Returns the size of the record in bytes.
    pub fn remove(&mut self, key: IdpSlot, index: &mut SegmentIndex) -> Option<usize> {
        self.placed.remove(&key, index).map(|place| place.bytes)
    }

    /// Removes the keys that the queue does not keep.
    pub fn retain_kept(&mut self, engine: &Engine, index: &mut SegmentIndex) {
        self.placed.retain(index, |&key| engine.kept_key(key).is_some());
    }

    /// Returns a key whose record is in this segment, which must be the oldest.
    pub fn first_in(&self, segment: SegmentNumber) -> Option<IdpSlot> {
        self.placed.first_in(segment)
    }

    /// An upper bound of the memory that keys take.
    pub fn memory_bytes(&self) -> usize {
        self.placed.len() * KEY_BYTES
    }
}

impl Wal {
    /// Logs the deletion of a job and its key. Returns the size of the record in bytes.
    pub(super) fn append_kept_key(&mut self, key: IdpSlot, engine: &Engine) -> usize {
        let kept = engine.kept_key(key).expect("the queue keeps the key");
        let record = Record::KeptKey(kept);
        let bytes = record.bytes();
        self.append(&record, engine);
        self.kept_keys.insert(key, self.appender.segment(), bytes, &mut self.index);
        bytes
    }
}
