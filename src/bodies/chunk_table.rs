//! The table of chunks: the state of each page, and the sets and lists of pages.

use std::ops::Range;

use slab::Slab;

use super::memory::Mapping;
use super::small::Span;

/// The size of a chunk. A thousand chunks, which an io_uring can have as registered buffers, are 2 GiB. A chunk is still
/// small enough to be returned whole.
pub const CHUNK_BYTES: usize = 2 * 1024 * 1024;
/// The unit of runs. Memory returns to the kernel in the kernel's own pages, which may be larger.
pub const PAGE_BYTES: usize = 4096;
pub const CHUNK_PAGES: usize = CHUNK_BYTES / PAGE_BYTES;

const _: () = assert!(CHUNK_PAGES == BITS);

/// The number of a chunk and the number of a page or a span in it. This bounds the arena to 16 TiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot(pub u32);

pub const SPOT_CHUNKS_MAX: usize = u32::MAX as usize / CHUNK_PAGES;

impl Spot {
    pub const fn new(chunk: usize, index: usize) -> Self {
        debug_assert!(chunk < SPOT_CHUNKS_MAX && index < CHUNK_PAGES);
        Self((chunk * CHUNK_PAGES + index) as u32)
    }

    pub const fn chunk(self) -> usize {
        self.0 as usize / CHUNK_PAGES
    }

    pub const fn index(self) -> usize {
        self.0 as usize % CHUNK_PAGES
    }
}

/// The state of a page. The module that takes a run sets the states of its pages. [`Chunks::give_run`] clears them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// In a run whose other pages say more.
    Inner,
    /// The first page of a free run.
    Free { pages: u16, link: Link },
    /// The last page of a free run of two pages or more.
    FreeEnd { pages: u16 },
    /// In a span of small bodies.
    Span { index: u16 },
    /// The first page of a large body.
    Large { pages: u16, readers: Readers },
}

/// A mapped chunk. The table has what reading a body needs, and a pointer to the rest. So the table stays small enough
/// (1.2 MB at 100 GB of bodies) to be moved when it grows.
pub struct Chunk {
    pub memory: Mapping,
    pub meta: Box<Meta>,
}

pub struct Meta {
    pub pages: [PageState; CHUNK_PAGES],
    pub spans: Slab<Span>,
    /// Pages in use.
    pub used: Bits,
    /// Pages that may have memory behind them, because they were used since the last discard.
    pub warm: Bits,
    /// The chunk is a registered buffer and keeps its memory, used or not.
    pub held: bool,
}

impl Meta {
    /// Unused pages with memory.
    pub fn idle(&self) -> Bits {
        self.warm.without(&self.used)
    }

    pub fn idle_pages(&self) -> usize {
        self.idle().len()
    }

    /// The first pages of the free runs.
    pub fn free_runs(&self) -> impl Iterator<Item = usize> {
        self.pages
            .iter()
            .enumerate()
            .filter(|(_, page)| matches!(page, PageState::Free { .. }))
            .map(|(start, _)| start)
    }

    /// The memory of this value and of its table of spans.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.spans.capacity() * (size_of::<Span>() + size_of::<usize>())
    }

    /// Checks the tiling and counts the free runs by length. Returns its used pages.
    pub fn check_tiling(&self, free_runs: &mut [usize]) -> usize {
        let mut used = 0;
        let mut start = 0;
        let mut after_free = false;
        while start < CHUNK_PAGES {
            if let PageState::Free { pages, .. } = self.pages[start] {
                let pages = pages as usize;
                assert!(!after_free, "free runs side by side at page {start}");
                assert_eq!(self.used.count(start..start + pages), 0);
                if pages > 1 {
                    assert_eq!(self.pages[start + pages - 1], PageState::FreeEnd { pages: pages as u16 });
                    assert!(
                        self.pages[start + 1..start + pages - 1].iter().all(|&page| page == PageState::Inner)
                    );
                }
                free_runs[pages] += 1;
                start += pages;
                after_free = true;
            } else {
                assert!(!matches!(self.pages[start], PageState::FreeEnd { .. }));
                assert!(self.used.contains(start));
                let is_small = matches!(self.pages[start], PageState::Span { .. });
                assert!(!is_small || self.warm.contains(start), "spans count whole");
                used += 1;
                start += 1;
                after_free = false;
            }
        }
        used
    }
}

/// The chunks by number. A type of its own, so that the lists can be borrowed beside it.
pub struct Table(pub Vec<Option<Chunk>>);

impl Table {
    pub fn get(&self, chunk: usize) -> &Chunk {
        self.0[chunk].as_ref().expect("the chunk is mapped")
    }

    pub fn get_mut(&mut self, chunk: usize) -> &mut Chunk {
        self.0[chunk].as_mut().expect("the chunk is mapped")
    }

    pub fn meta(&self, chunk: usize) -> &Meta {
        &self.get(chunk).meta
    }

    pub fn meta_mut(&mut self, chunk: usize) -> &mut Meta {
        &mut self.get_mut(chunk).meta
    }
}

/// The spans as nodes.
impl Nodes for Table {
    fn link(&mut self, key: u32) -> &mut Link {
        let key = Spot(key);
        &mut self.meta_mut(key.chunk()).spans[key.index()].link
    }
}

/// The free runs as nodes, by first page.
pub struct FreeRuns<'a>(pub &'a mut Table);

impl Nodes for FreeRuns<'_> {
    fn link(&mut self, key: u32) -> &mut Link {
        let key = Spot(key);
        match &mut self.0.meta_mut(key.chunk()).pages[key.index()] {
            PageState::Free { link, .. } => link,
            page => panic!("{key:?} is {page:?}, not the first of a free run"),
        }
    }
}

/// The owner of the slot, and the pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readers {
    pins: u32,
    freed: bool,
}

impl Readers {
    /// The owner and no pins.
    pub const OWNER: Self = Self { pins: 0, freed: false };

    pub fn pin(&mut self) {
        assert!(!self.freed, "the owner pins a slot before it frees it");
        self.pins = self.pins.checked_add(1).expect("fewer pins than 2^32");
    }

    /// Removes a pin. Returns true if it was the last reader.
    pub fn unpin(&mut self) -> bool {
        self.pins = self.pins.checked_sub(1).expect("a pin is removed once");
        self.freed && self.pins == 0
    }

    /// Removes the owner. Returns true if it was the last reader.
    pub fn free(&mut self) -> bool {
        assert!(!self.freed, "a slot is freed once");
        self.freed = true;
        self.pins == 0
    }

    pub fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Whether the owner is gone.
    pub const fn is_freed(&self) -> bool {
        self.freed
    }

    /// # Panics
    /// If there are no readers.
    pub fn check(&self) {
        assert!(self.pins > 0 || !self.freed, "a body without readers is freed at once");
    }
}

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

/// No node.
pub const NONE: u32 = u32::MAX;

/// The links of one node. Keys are below [`NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The node pushed before this one.
    pub next: u32,
    /// The node pushed after this one.
    pub previous: u32,
}

impl Link {
    /// The links of a node that is in no list.
    pub const LOOSE: Self = Self { next: NONE, previous: NONE };
}

/// Finds the links of nodes.
pub trait Nodes {
    /// The links of the node with this key.
    fn link(&mut self, key: u32) -> &mut Link;
}

/// The head of a list: the node pushed last, or [`NONE`].
#[derive(Clone, Copy, Debug)]
pub struct List {
    head: u32,
}

impl List {
    /// The empty list.
    pub const EMPTY: Self = Self { head: NONE };

    /// The node pushed last.
    pub fn head(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Returns true if the list is empty.
    pub fn is_empty(self) -> bool {
        self.head == NONE
    }

    /// All nodes, the head first. `link` returns the links of a node.
    pub fn keys(self, link: impl Fn(u32) -> Link) -> impl Iterator<Item = u32> {
        std::iter::successors(self.head(), move |&key| {
            let Link { next, .. } = link(key);
            (next != NONE).then_some(next)
        })
    }

    /// Adds a node at the head.
    pub fn push(&mut self, nodes: &mut impl Nodes, key: u32) {
        if self.head != NONE {
            nodes.link(self.head).previous = key;
        }
        *nodes.link(key) = Link { next: self.head, previous: NONE };
        self.head = key;
    }

    /// Removes a node of this list.
    pub fn remove(&mut self, nodes: &mut impl Nodes, key: u32) {
        let Link { next, previous } = std::mem::replace(nodes.link(key), Link::LOOSE);
        if next != NONE {
            nodes.link(next).previous = previous;
        }
        if previous != NONE {
            nodes.link(previous).next = next;
        } else {
            assert_eq!(self.head, key, "a node without a predecessor is the head of its list");
            self.head = next;
        }
    }
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
