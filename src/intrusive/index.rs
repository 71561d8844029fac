//! A hash index over the keys of a slab that grows and shrinks one bucket at a time.
//!
//! It is linear hashing (Litwin, 1980). With `2^level <= buckets < 2^(level+1)`, an element whose hash ends in a bucket that
//! does not exist yet is in the bucket with the top bit cleared. Adding a bucket splits only one other. Chains run through
//! the elements, one element per bucket on average. So an element costs four bytes here and four in itself, and no insertion
//! rehashes the rest.

use super::{Chained, NIL, Pages};

/// Buckets that are allocated at once: 128 KiB, which the allocator maps separately and unmaps when they are freed.
const SEGMENT_BUCKETS: usize = 32 * 1024;
const SHIFT: u32 = SEGMENT_BUCKETS.trailing_zeros();

/// An index of elements by hash.
pub struct Index {
    /// Heads of chains. A head is a key plus one, so that a zeroed segment is empty.
    segments: Vec<Box<[u32]>>,
    buckets: usize,
    len: usize,
    seed: u64,
}

impl Index {
    /// An empty index, which allocates nothing. `seed` is for [`Chained::hash`].
    pub const fn new(seed: u64) -> Self {
        Self { segments: Vec::new(), buckets: 0, len: 0, seed }
    }

    /// The seed for [`Chained::hash`].
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory of the index without the elements.
    pub const fn bytes(&self) -> usize {
        self.segments.capacity() * size_of::<Box<[u32]>>()
            + self.segments.len() * SEGMENT_BUCKETS * size_of::<u32>()
    }

    /// What the next insertion adds to [`bytes`](Self::bytes).
    pub const fn growth(&self) -> usize {
        let is_whole = self.len == self.buckets && self.buckets >> SHIFT == self.segments.len();
        if is_whole { SEGMENT_BUCKETS * size_of::<u32>() } else { 0 }
    }

    /// The element with this hash that `is_it` accepts.
    pub fn find<T: Chained>(
        &self,
        slab: &Pages<T>,
        hash: u64,
        mut is_it: impl FnMut(&T) -> bool,
    ) -> Option<u32> {
        if self.buckets == 0 {
            return None;
        }
        let mut at = self.head(self.bucket(hash));
        while at != NIL {
            let element = &slab[at];
            if is_it(element) {
                return Some(at);
            }
            at = element.chain();
        }
        None
    }

    /// Adds an element that is not in the index.
    pub fn insert<T: Chained>(&mut self, slab: &mut Pages<T>, key: u32) {
        if self.len == self.buckets {
            self.split(slab);
        }
        let bucket = self.bucket(slab[key].hash(self.seed));
        slab[key].set_chain(self.head(bucket));
        self.set_head(bucket, key);
        self.len += 1;
    }

    /// Removes an element of this index.
    pub fn remove<T: Chained>(&mut self, slab: &mut Pages<T>, key: u32) {
        let bucket = self.bucket(slab[key].hash(self.seed));
        let next = slab[key].chain();
        let mut at = self.head(bucket);
        if at == key {
            self.set_head(bucket, next);
        } else {
            while slab[at].chain() != key {
                at = slab[at].chain();
            }
            slab[at].set_chain(next);
        }
        slab[key].set_chain(NIL);
        self.len -= 1;
        // Each removal removes up to two buckets, so that at most half are empty however many elements are removed.
        for _ in 0..2 {
            if self.len < self.buckets / 2 {
                self.merge(slab);
            }
        }
    }

    /// Asserts that every element is in the chain of its hash, and that the length is right.
    pub fn check<T: Chained>(&self, slab: &Pages<T>) {
        let mut count = 0;
        for bucket in 0..self.buckets {
            let mut at = self.head(bucket);
            while at != NIL {
                assert_eq!(self.bucket(slab[at].hash(self.seed)), bucket, "an element is in its bucket");
                count += 1;
                at = slab[at].chain();
            }
        }
        assert_eq!(self.len, count, "the index knows its length");
    }

    /// The length of the longest chain.
    #[cfg(test)]
    pub fn longest_chain<T: Chained>(&self, slab: &Pages<T>) -> usize {
        let next = |&at: &u32| Some(slab[at].chain()).filter(|&next| next != NIL);
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

    /// Adds one bucket and moves to it what belongs there.
    fn split<T: Chained>(&mut self, slab: &mut Pages<T>) {
        let added = self.buckets;
        if added >> SHIFT == self.segments.len() {
            self.segments.push(vec![0; SEGMENT_BUCKETS].into_boxed_slice());
        }
        let from = (added > 0).then(|| self.bucket(added as u64));
        self.buckets += 1;
        if let Some(from) = from {
            self.distribute(slab, from);
        }
    }

    /// Takes the last bucket away and moves what is in it to where it belongs then.
    fn merge<T: Chained>(&mut self, slab: &mut Pages<T>) {
        let last = self.buckets - 1;
        self.buckets = last;
        self.distribute(slab, last);
        // One whole segment stays in reserve, so that a load that swings about a boundary allocates once.
        if self.segments.len() > (last >> SHIFT) + 2 {
            self.segments.pop();
        }
    }

    /// Empties a bucket into those where its elements belong now.
    fn distribute<T: Chained>(&mut self, slab: &mut Pages<T>, from: usize) {
        let mut at = self.head(from);
        self.set_head(from, NIL);
        while at != NIL {
            let next = slab[at].chain();
            let bucket = self.bucket(slab[at].hash(self.seed));
            slab[at].set_chain(self.head(bucket));
            self.set_head(bucket, at);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intrusive::mix_seeded;

    const SEED: u64 = 7;

    struct Item {
        id: u64,
        chain: u32,
    }

    impl Chained for Item {
        fn hash(&self, seed: u64) -> u64 {
            mix_seeded(self.id, seed)
        }
        fn chain(&self) -> u32 {
            self.chain
        }
        fn set_chain(&mut self, next: u32) {
            self.chain = next;
        }
    }

    #[test]
    fn finds_just_what_is_in_it_while_it_grows_and_shrinks() {
        let mut slab = Pages::new();
        let mut index = Index::new(SEED);
        let mix = |id| mix_seeded(id, SEED);
        assert_eq!(index.find(&slab, mix(1), |item: &Item| item.id == 1), None);
        for round in 0..2 {
            for id in 0..100_000 {
                let key = slab.insert(Item { id, chain: NIL });
                index.insert(&mut slab, key);
            }
            index.check(&slab);
            for id in 0..100_000 {
                let key = index.find(&slab, mix(id), |item| item.id == id).expect("it was inserted");
                assert_eq!(slab[key].id, id, "round {round}");
                if id % 1000 != 0 {
                    index.remove(&mut slab, key);
                    slab.remove(key);
                    assert_eq!(index.find(&slab, mix(id), |item| item.id == id), None);
                }
            }
            index.check(&slab);
            assert_eq!(index.len(), 100);
            assert!(index.segments.len() <= 2, "memory is given back");
            for id in (0..100_000).step_by(1000) {
                let key = index.find(&slab, mix(id), |item| item.id == id).expect("it was left");
                index.remove(&mut slab, key);
                slab.remove(key);
            }
            assert!(index.is_empty());
        }
    }
}
