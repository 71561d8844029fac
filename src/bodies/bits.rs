//! A set of numbers below 512: the pages of a chunk, the slots of a span, the lengths of runs.

use std::ops::Range;

const WORDS: usize = 8;

/// The number of possible members.
pub const BITS: usize = WORDS * 64;

/// A set of numbers below [`BITS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bits([u64; WORDS]);

impl Bits {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Adds a number.
    pub fn insert(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    pub fn remove(&mut self, bit: usize) {
        self.0[bit / 64] &= !(1 << (bit % 64));
    }

    /// Adds a range.
    pub fn insert_range(&mut self, range: Range<usize>) {
        for (word, mask) in masks(range) {
            self.0[word] |= mask;
        }
    }

    pub fn remove_range(&mut self, range: Range<usize>) {
        for (word, mask) in masks(range) {
            self.0[word] &= !mask;
        }
    }

    /// Returns true if the number is in the set.
    pub fn contains(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// The number of members in a range.
    pub fn count(&self, range: Range<usize>) -> usize {
        masks(range).map(|(word, mask)| (self.0[word] & mask).count_ones() as usize).sum()
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The members of this set that are not in the other.
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The smallest member.
    pub fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }

    /// The smallest member from `from` on.
    pub fn first_from(&self, from: usize) -> Option<usize> {
        masks(from..BITS).find_map(|(word, mask)| match self.0[word] & mask {
            0 => None,
            bits => Some(word * 64 + bits.trailing_zeros() as usize),
        })
    }

    /// The first range of adjacent members from `from` on.
    pub fn range_from(&self, from: usize) -> Option<Range<usize>> {
        let start = self.first_from(from)?;
        let absent = Self(self.0.map(|word| !word));
        Some(start..absent.first_from(start).unwrap_or(BITS))
    }
}

/// The words that a range touches, each with the bits of the range.
fn masks(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    debug_assert!(range.end <= BITS);
    (range.start / 64..range.end.div_ceil(64)).map(move |word| {
        let low = range.start.saturating_sub(word * 64);
        let high = (range.end - word * 64).min(64);
        (word, !0 << low & !0 >> (64 - high))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_at_word_boundaries() {
        for range in [0..1, 0..64, 63..65, 64..128, 1..511, 511..512, 0..512, 100..100] {
            let mut bits = Bits::EMPTY;
            bits.insert_range(range.clone());
            for bit in 0..BITS {
                assert_eq!(bits.contains(bit), range.contains(&bit), "{bit} of {range:?}");
            }
            assert_eq!(bits.count(0..BITS), range.len());
            assert_eq!(bits.len(), range.len());
            assert_eq!(bits.range_from(0), Some(range.clone()).filter(|range| !range.is_empty()));
            assert_eq!(bits.first(), range.clone().next());
            assert_eq!(bits.first_from(range.end.min(BITS - 1)), (range.end == BITS).then_some(BITS - 1));
            bits.remove_range(range);
            assert_eq!(bits, Bits::EMPTY);
        }
    }
}
