//! A slab whose elements are found by hash, through an index that grows and shrinks one bucket at a time.
//!
//! It is linear hashing (Litwin, 1980). With `2^level <= buckets < 2^(level+1)`, an element whose hash ends in a bucket that
//! does not exist yet is in the bucket with the top bit cleared. Adding a bucket splits only one other. Chains run through
//! the elements, one element per bucket on average. So an element costs four bytes here and four in itself, and no insertion
//! rehashes the rest.

use std::ops::{Deref, DerefMut};

use super::{Chained, Keyed, NIL, Pages, mix_seeded};

/// Buckets that are allocated at once: 128 KiB, which the allocator maps separately and unmaps when they are freed.
const SEGMENT_BUCKETS: usize = 32 * 1024;
const SHIFT: u32 = SEGMENT_BUCKETS.trailing_zeros();

/// A slab of `T` with an index by hash. An element may be *hidden*: it keeps its key, and no hash finds it.
pub struct Table<T> {
    slab: Pages<T>,
    /// Heads of chains. A head is a key plus one, so that a zeroed segment is empty.
    segments: Vec<Box<[u32]>>,
    buckets: usize,
    /// The number of elements that are not hidden.
    found: usize,
    seed: u64,
}

impl<T> Table<T> {
    /// An empty table, which allocates nothing. `seed` is for [`Chained::hash`].
    pub const fn new(seed: u64) -> Self {
        Self { slab: Pages::new(), segments: Vec::new(), buckets: 0, found: 0, seed }
    }

    /// The seed for [`Chained::hash`].
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of elements, hidden ones too.
    pub const fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns true if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// The memory of the table.
    pub const fn bytes(&self) -> usize {
        self.slab.bytes()
            + self.segments.capacity() * size_of::<Box<[u32]>>()
            + self.segments.len() * SEGMENT_BUCKETS * size_of::<u32>()
    }

    /// What the next insertion adds to [`bytes`](Self::bytes).
    pub fn growth(&mut self) -> usize {
        self.slab.growth(1) + self.index_growth()
    }

    /// What the index adds to that.
    pub const fn index_growth(&self) -> usize {
        let is_whole = self.found == self.buckets && self.buckets >> SHIFT == self.segments.len();
        if is_whole { SEGMENT_BUCKETS * size_of::<u32>() } else { 0 }
    }
}

impl<T: Chained> Table<T> {
    /// The element with this hash that `is_it` accepts.
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(&T) -> bool) -> Option<u32> {
        if self.buckets == 0 {
            return None;
        }
        let mut at = self.head(self.bucket(hash));
        while at != NIL {
            let element = &self.slab[at];
            if is_it(element) {
                return Some(at);
            }
            at = element.chain();
        }
        None
    }

    /// Adds an element. Returns its key.
    pub fn insert(&mut self, element: T) -> u32 {
        let key = self.slab.insert(element);
        if self.found == self.buckets {
            self.split();
        }
        self.chain(key);
        self.found += 1;
        key
    }

    /// Adds an element that is hidden. Returns its key.
    pub fn insert_hidden(&mut self, element: T) -> u32 {
        self.slab.insert(element)
    }

    /// Removes an element that is not hidden.
    pub fn remove(&mut self, key: u32) -> T {
        self.hide(key);
        self.slab.remove(key)
    }

    /// Removes a hidden element.
    pub fn remove_hidden(&mut self, key: u32) -> T {
        self.slab.remove(key)
    }

    /// Hides an element.
    pub fn hide(&mut self, key: u32) {
        let bucket = self.bucket(self.slab[key].hash(self.seed));
        let next = self.slab[key].chain();
        let mut at = self.head(bucket);
        if at == key {
            self.set_head(bucket, next);
        } else {
            while self.slab[at].chain() != key {
                at = self.slab[at].chain();
            }
            self.slab[at].set_chain(next);
        }
        self.slab[key].set_chain(NIL);
        self.found -= 1;
        // Each removal removes up to two buckets, so that at most half are empty however many elements are removed.
        for _ in 0..2 {
            if self.found < self.buckets / 2 {
                self.merge();
            }
        }
    }

    /// Asserts that every element but `hidden` ones is in the chain of its hash.
    pub fn check(&self, hidden: usize) {
        self.slab.check();
        let mut count = 0;
        for bucket in 0..self.buckets {
            let mut at = self.head(bucket);
            while at != NIL {
                let hash = self.slab[at].hash(self.seed);
                assert_eq!(self.bucket(hash), bucket, "an element is in its bucket");
                count += 1;
                at = self.slab[at].chain();
            }
        }
        assert_eq!(self.found, count, "the index knows its length");
        assert_eq!(self.found + hidden, self.slab.len(), "the index finds every element that is not hidden");
    }

    /// The length of the longest chain.
    #[cfg(test)]
    pub fn longest_chain(&self) -> usize {
        let next = |&at: &u32| Some(self.slab[at].chain()).filter(|&next| next != NIL);
        let chain = |bucket| Some(self.head(bucket)).filter(|&head| head != NIL);
        (0..self.buckets).map(|bucket| std::iter::successors(chain(bucket), next).count()).max().unwrap_or(0)
    }

    fn bucket(&self, hash: u64) -> usize {
        let top = usize::BITS - 1 - self.buckets.leading_zeros();
        let low = hash as usize & ((2 << top) - 1);
        if low < self.buckets { low } else { low & !(1 << top) }
    }

    fn head(&self, bucket: usize) -> u32 {
        self.segments[bucket >> SHIFT][bucket & (SEGMENT_BUCKETS - 1)].wrapping_sub(1)
    }

    fn set_head(&mut self, bucket: usize, key: u32) {
        self.segments[bucket >> SHIFT][bucket & (SEGMENT_BUCKETS - 1)] = key.wrapping_add(1);
    }

    /// Puts an element in front of the chain of its hash.
    fn chain(&mut self, key: u32) {
        let bucket = self.bucket(self.slab[key].hash(self.seed));
        let head = self.head(bucket);
        self.slab[key].set_chain(head);
        self.set_head(bucket, key);
    }

    /// Adds one bucket and moves to it what belongs there.
    fn split(&mut self) {
        let added = self.buckets;
        if added >> SHIFT == self.segments.len() {
            self.segments.push(vec![0; SEGMENT_BUCKETS].into_boxed_slice());
        }
        let from = (added > 0).then(|| self.bucket(added as u64));
        self.buckets += 1;
        if let Some(from) = from {
            self.distribute(from);
        }
    }

    /// Takes the last bucket away and moves what is in it to where it belongs then.
    fn merge(&mut self) {
        let last = self.buckets - 1;
        self.buckets = last;
        self.distribute(last);
        // One whole segment stays in reserve, so that a load that swings about a boundary allocates once.
        if self.segments.len() > (last >> SHIFT) + 2 {
            self.segments.pop();
        }
    }

    /// Empties a bucket into those where its elements belong now.
    fn distribute(&mut self, from: usize) {
        let mut at = self.head(from);
        self.set_head(from, NIL);
        while at != NIL {
            let next = self.slab[at].chain();
            self.chain(at);
            at = next;
        }
    }
}

impl<T: Keyed> Table<T> {
    /// The element of this word.
    pub fn find_word(&self, word: u64) -> Option<u32> {
        self.find(mix_seeded(word, self.seed), |element| element.word() == word)
    }
}

/// The elements by key. Lists and heaps link them.
impl<T> Deref for Table<T> {
    type Target = Pages<T>;

    #[inline]
    fn deref(&self) -> &Pages<T> {
        &self.slab
    }
}

impl<T> DerefMut for Table<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Pages<T> {
        &mut self.slab
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intrusive::intrusive;

    struct Item {
        id: u64,
        chain: u32,
    }

    intrusive!(Item: in tables by |item| item.id);

    #[test]
    fn finds_just_what_is_in_it_while_it_grows_and_shrinks() {
        let mut table = Table::new(7);
        assert_eq!(table.find_word(1), None);
        for round in 0..2 {
            for id in 0..100_000 {
                table.insert(Item { id, chain: NIL });
            }
            table.check(0);
            for id in 0..100_000 {
                let key = table.find_word(id).expect("it was inserted");
                assert_eq!(table[key].id, id, "round {round}");
                if id % 1000 != 0 {
                    table.remove(key);
                    assert_eq!(table.find_word(id), None);
                }
            }
            table.check(0);
            assert_eq!(table.len(), 100);
            assert!(table.segments.len() <= 2, "memory is given back");
            for id in (0..100_000).step_by(1000) {
                let key = table.find_word(id).expect("it was left");
                table.hide(key);
                assert_eq!(table.find_word(id), None);
                table.check(1);
                table.remove_hidden(key);
            }
            assert!(table.is_empty());
        }
    }

    #[test]
    fn words_that_collide_under_one_seed_do_not_under_another() {
        const KNOWN: u64 = 1;
        let colliding: Vec<u64> = (0..).filter(|&id| mix_seeded(id, KNOWN) & 0xfff == 0).take(256).collect();
        let chain = |seed| {
            let mut table = Table::new(seed);
            colliding.iter().for_each(|&id| _ = table.insert(Item { id, chain: NIL }));
            table.longest_chain()
        };
        assert_eq!(chain(KNOWN), colliding.len());
        for seed in 2..12 {
            assert!(chain(seed) < 20, "{} of {} words in one chain", chain(seed), colliding.len());
        }
    }
}
