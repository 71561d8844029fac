//! Containers whose links lie in the elements: a list, a pairing heap and a hash index over the keys of a [`Pages`] slab.
//! They allocate nothing per element and need no unsafe code, because a link is a key.
//!
//! An element can be in one list or heap per [`Links`] that it has. Its own state says in which, and the owner asserts it.

pub mod heap;
pub mod index;
pub mod list;
pub mod pages;

pub use heap::Heap;
pub use index::Index;
pub use list::List;
pub use pages::Pages;

/// No element.
pub const NIL: u32 = u32::MAX;

/// The place of an element in the list or heap that holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Links {
    pub(super) next: u32,
    pub(super) prev: u32,
    pub(super) child: u32,
}

impl Links {
    /// In no container.
    pub const NONE: Self = Self { next: NIL, prev: NIL, child: NIL };
}

impl Default for Links {
    fn default() -> Self {
        Self::NONE
    }
}

/// An element that can be in a [`List`] or a [`Heap`].
pub trait Linked {
    /// The links.
    fn links(&self) -> &Links;
    /// The links. Only the container changes them.
    fn links_mut(&mut self) -> &mut Links;
}

/// An element that can be in a [`Heap`].
pub trait Ranked: Linked {
    /// The sort key of the heap, smallest first. No two elements of a heap have the same.
    type Key: Ord;

    /// The element's key. It must not change while the element is in a heap.
    fn key(&self) -> Self::Key;
    /// The rank that the heap stored last.
    fn rank(&self) -> u8;
    /// Stores a rank for the heap.
    fn set_rank(&mut self, rank: u8);
}

/// An element that can be found through an [`Index`].
pub trait Chained {
    /// The hash of its identity under the index's seed. It must not change while the element is in an index.
    fn hash(&self, seed: u64) -> u64;
    /// The chain link that the index stored last.
    fn chain(&self) -> u32;
    /// Stores a chain link for the index.
    fn set_chain(&mut self, next: u32);
}

/// Hashes a word that clients can choose, for [`Chained::hash`]. A client that does not know the seed cannot choose words
/// that collide.
pub const fn mix_seeded(word: u64, seed: u64) -> u64 {
    // The second round hides what one round leaves of the difference of two words.
    mix(mix(word ^ seed).wrapping_add(seed))
}

/// Spreads the bits of `word` (the finaliser of SplitMix64).
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
