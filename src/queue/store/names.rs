//! Names that clients choose, of idempotency keys, concurrency keys and groups: in the arena of bodies, and found by hash.

use std::hash::{DefaultHasher, Hasher};

use crate::bodies::{Bodies, Slot};
use crate::intrusive::{Chained, NIL, Table};
use crate::values::limits::ALLOCATION_BYTES;

/// The name of a record, with what finds the record by it.
pub struct Name {
    text: Slot,
    pub hash: u64,
    pub chain: u32,
}

/// A record with a name.
pub trait Named: Chained {
    fn name(&self) -> &Name;
}

impl Name {
    /// Stores the name of a record of a table with this seed. [`free`](Self::free) must follow once the record is gone.
    pub fn store(text: &[u8], seed: u64, bodies: &mut Bodies) -> Self {
        Self { text: store_text(bodies, text), hash: hash_names(seed, &[text]), chain: NIL }
    }

    pub fn free(self, bodies: &mut Bodies) {
        bodies.free(self.text);
    }

    pub fn text<'a>(&self, bodies: &'a Bodies) -> &'a [u8] {
        bodies.bytes(&self.text)
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }
}

impl<T: Named> Table<T> {
    /// The record whose name is these parts one after the other.
    pub fn find_name(&self, parts: &[&[u8]], bodies: &Bodies) -> Option<u32> {
        let hash = hash_names(self.seed(), parts);
        let is_text = |text| {
            // Bounded by TUBE_NAME_BYTES_MAX: the parts of one name.
            let rest = parts.iter().try_fold(text, |rest: &[u8], part| rest.strip_prefix(*part));
            rest.is_some_and(<[u8]>::is_empty)
        };
        // The texts of others are in no cache.
        self.find(hash, |record| record.name().hash == hash && is_text(record.name().text(bodies)))
    }

    /// What one more record with a name of this length adds to the memory of the table and of the arena.
    pub fn growth_with_name(&mut self, length: usize, bodies: &Bodies) -> usize {
        self.growth() + bodies.growth(length as u32)
    }
}

/// Lets the records of a type, which have their name in the field `name`, be found by it.
macro_rules! named {
    ($record:ty) => {
        impl $crate::queue::store::names::Named for $record {
            fn name(&self) -> &$crate::queue::store::names::Name {
                &self.name
            }
        }

        impl $crate::intrusive::Chained for $record {
            fn hash(&self, _seed: u64) -> u64 {
                self.name.hash
            }

            fn chain(&self) -> u32 {
                self.name.chain
            }

            fn set_chain(&mut self, next: u32) {
                self.name.chain = next;
            }
        }
    };
}
pub(in crate::queue) use named;

/// Stores a text that a client has chosen: tags, or a name.
///
/// The allocator keeps the pages of small blocks that are freed in an order of their own. The arena of bodies returns them.
pub fn store_text(bodies: &mut Bodies, text: &[u8]) -> Slot {
    bodies.store(text).expect("there is address space for a text")
}

/// The memory of a text with the overhead of its allocation.
pub const fn text_bytes(text: &[u8]) -> usize {
    allocated_bytes(text.len())
}

/// The memory of an allocation of this size with its overhead.
pub const fn allocated_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(ALLOCATION_BYTES) + ALLOCATION_BYTES
}

/// Hashes a name that a client has chosen: SipHash, which reads the parts of the name as one, with a seed before them.
pub fn hash_names(seed: u64, parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    // Bounded by TUBE_NAME_BYTES_MAX: the parts of one name.
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}
