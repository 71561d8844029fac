//! Live records that are not of jobs, and which segment each is in.

use std::collections::{BTreeMap, BTreeSet};

use super::segment::SegmentNumber;
use super::segment_index::SegmentIndex;
use crate::queue::KEPT_KEY_LOG_BYTES;
use crate::values::ids::IdpSlot;

/// All live records of one kind, by what they are about.
pub struct Placed<K, V> {
    places: BTreeMap<K, PlacedRecord<V>>,
    /// The records in the order of their segments.
    by_segment: BTreeSet<(SegmentNumber, K)>,
}

/// A record, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct PlacedRecord<V> {
    pub content: V,
    segment: SegmentNumber,
    /// The size of the record, in bytes.
    pub bytes: usize,
}

impl<K, V> Default for Placed<K, V> {
    fn default() -> Self {
        Self { places: BTreeMap::new(), by_segment: BTreeSet::new() }
    }
}

impl<K: Ord + Clone, V> Placed<K, V> {
    /// Notes a record of this size in this segment, and accounts for it in the index. It replaces an earlier one.
    pub fn insert(
        &mut self,
        key: K,
        content: V,
        (segment, bytes): (SegmentNumber, usize),
        index: &mut SegmentIndex,
    ) {
        index.add_live(segment, bytes);
        self.remove(&key, index);
        self.by_segment.insert((segment, key.clone()));
        self.places.insert(key, PlacedRecord { content, segment, bytes });
    }

    /// Removes a record that is not needed any more, if there is one.
    pub fn remove<Q>(&mut self, key: &Q, index: &mut SegmentIndex) -> Option<PlacedRecord<V>>
    where
        K: std::borrow::Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let (key, place) = self.places.remove_entry(key)?;
        index.remove_live(place.segment, place.bytes);
        self.by_segment.remove(&(place.segment, key));
        Some(place)
    }

    /// Removes all records but those that `is_needed` accepts.
    pub fn retain(&mut self, index: &mut SegmentIndex, is_needed: impl Fn(&K) -> bool) {
        let unneeded: Vec<K> = self.places.keys().filter(|key| !is_needed(key)).cloned().collect();
        for key in unneeded {
            self.remove(&key, index);
        }
    }

    /// Returns what a record in this segment is about. The segment must be the oldest.
    pub fn first_in(&self, segment: SegmentNumber) -> Option<K> {
        let (first, key) = self.by_segment.first()?;
        (*first == segment).then(|| key.clone())
    }

    /// The content of a record.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.places.get(key).map(|place| &place.content)
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.places.iter().map(|(key, place)| (key, &place.content))
    }
}

/// All logged idempotency keys of deleted jobs, by their slots in the queue.
pub type KeptKeys = Placed<IdpSlot, ()>;

/// Memory of one key, at most: its share of two trees.
const KEY_BYTES: usize = 4 * size_of::<PlacedRecord<IdpSlot>>();

// The share of memory that keys get covers it.
const _: () = assert!(KEY_BYTES <= KEPT_KEY_LOG_BYTES);

impl KeptKeys {
    /// An upper bound of the memory that keys take.
    pub fn memory_bytes(&self) -> usize {
        self.len() * KEY_BYTES
    }
}
