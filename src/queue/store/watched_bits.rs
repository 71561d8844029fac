//! Which tubes a client of very many tubes watches, one bit for each slot of a tube.
//!
//! The watches of many such clients are in no cache, and finding one takes three reads of memory that depend on each other.
//! The bits of 10,000 tubes take 1,250 bytes. So a search for a job or for a client looks at these. Tubes in high slots have no bit: the
//! index of watches knows whether the client watches them.

use crate::values::ids::TubeSlot;

/// A client has bits from this many watches on. Fewer watches take less memory than the most bits.
pub const BITS_FROM: usize = 256;

/// With fewer watches than this, a client has no bits any more. A client that watches and ignores tubes in turn seldom crosses both
/// bounds.
pub const BITS_KEPT: usize = BITS_FROM / 2;

/// Slots from here on have no bit. The bits below take up to 16 KiB.
const SLOTS_MAX: u32 = 128 * 1024;

#[derive(Default)]
pub struct WatchedBits {
    /// Empty without bits. Tubes behind the last word are not watched.
    words: Vec<u64>,
}

impl WatchedBits {
    /// Returns whether the client has bits.
    pub const fn is_on(&self) -> bool {
        !self.words.is_empty()
    }

    /// Gives a client without bits the first of them. Each of its watches must be [set](Self::set) then.
    pub fn turn_on(&mut self) {
        self.words = vec![0];
    }

    /// Returns whether the client watches the tube, if a bit shows it.
    #[inline]
    pub fn get(&self, tube: TubeSlot) -> Option<bool> {
        if !self.is_on() || tube.0 >= SLOTS_MAX {
            return None;
        }
        let word = self.words.get(tube.0 as usize / 64);
        Some(word.is_some_and(|word| word >> (tube.0 % 64) & 1 == 1))
    }

    pub fn set(&mut self, tube: TubeSlot) {
        if tube.0 < SLOTS_MAX {
            let words = words_for(tube.0 + 1);
            if words > self.words.len() {
                self.words.reserve_exact(words - self.words.len());
                self.words.resize(words, 0);
            }
            self.words[tube.0 as usize / 64] |= 1 << (tube.0 % 64);
        }
    }

    pub fn clear(&mut self, tube: TubeSlot) {
        if let Some(word) = self.words.get_mut(tube.0 as usize / 64) {
            *word &= !(1 << (tube.0 % 64));
        }
    }

    /// The number of watches that the bits show.
    pub fn shown(&self) -> usize {
        // Bounded by its caller: a test.
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub const fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// What a watch of a tube in a slot below `slots_end` adds to [`bytes`](Self::bytes) at most.
    pub fn growth(&self, slots_end: u32) -> usize {
        words_for(slots_end).saturating_sub(self.words.len()) * size_of::<u64>()
    }
}

/// The number of words with the bits of the slots below `slots_end`. It doubles, so that growth copies each word a few times.
fn words_for(slots_end: u32) -> usize {
    slots_end.min(SLOTS_MAX).div_ceil(64).next_power_of_two() as usize
}
