//! Containers whose links lie in the elements: a list and a pairing heap over the keys of a [`Pages`] slab, and a [`Table`],
//! which is such a slab with a hash index. They allocate nothing per element and need no unsafe code, because a link is a key.
//!
//! An element can be in one list or heap per [`Links`] that it has. Its own state says in which, and the owner asserts it.

pub mod heap;
pub mod pages;
pub mod table;

pub use heap::Heap;
pub use pages::Pages;
pub use table::Table;

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

/// An element of a [`Table`].
pub trait Chained {
    /// The hash of its identity under the table's seed. It must not change while the element is not hidden.
    fn hash(&self, seed: u64) -> u64;
    /// The chain link that the table stored last.
    fn chain(&self) -> u32;
    /// Stores a chain link for the table.
    fn set_chain(&mut self, next: u32);
}

/// An element of a [`Table`] that is found by a word: an id, or two slots.
pub trait Keyed: Chained {
    /// The word. It must not change while the element is not hidden.
    fn word(&self) -> u64;
}

/// Two slots as the word of a [`Keyed`] element.
pub const fn pair(first: u32, second: u32) -> u64 {
    (first as u64) << 32 | second as u64
}

/// Lets the elements of a type be in containers. Their links are in the field `links`, their rank is in `rank`, and the link of
/// their chain in `chain`.
///
/// ```text
///   intrusive!(T: in lists);
///   intrusive!(T: in heaps by Key, |element| its sort key);
///   intrusive!(T: in tables by |element| its word);
///   intrusive!(T: in tables by |element, seed| its hash);
/// ```
/// An element that can be in a heap can also be in a list.
macro_rules! intrusive {
    ($element:ty: in lists) => {
        impl $crate::intrusive::Linked for $element {
            #[inline]
            fn links(&self) -> &$crate::intrusive::Links {
                &self.links
            }

            #[inline]
            fn links_mut(&mut self) -> &mut $crate::intrusive::Links {
                &mut self.links
            }
        }
    };
    ($element:ty: in heaps by $key:ty, |$it:ident| $value:expr) => {
        $crate::intrusive::intrusive!($element: in lists);

        impl $crate::intrusive::Ranked for $element {
            type Key = $key;

            #[inline]
            fn key(&self) -> $key {
                let $it = self;
                $value
            }

            #[inline]
            fn rank(&self) -> u8 {
                self.rank
            }

            #[inline]
            fn set_rank(&mut self, rank: u8) {
                self.rank = rank;
            }
        }
    };
    ($element:ty: in tables by |$it:ident| $word:expr) => {
        $crate::intrusive::intrusive!(
            $element: in tables by |it, seed| $crate::intrusive::mix_seeded($crate::intrusive::Keyed::word(it), seed)
        );

        impl $crate::intrusive::Keyed for $element {
            #[inline]
            fn word(&self) -> u64 {
                let $it = self;
                $word
            }
        }
    };
    ($element:ty: in tables by |$it:ident, $seed:ident| $hash:expr) => {
        impl $crate::intrusive::Chained for $element {
            #[inline]
            fn hash(&self, $seed: u64) -> u64 {
                let $it = self;
                $hash
            }

            #[inline]
            fn chain(&self) -> u32 {
                self.chain
            }

            #[inline]
            fn set_chain(&mut self, next: u32) {
                self.chain = next;
            }
        }
    };
}
pub(crate) use intrusive;

/// A list. Every operation is O(1).
#[derive(Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    /// An empty list.
    pub const fn new() -> Self {
        Self { head: NIL, tail: NIL, len: 0 }
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element.
    pub fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// Appends an element that is in no container.
    pub fn push_back<T: Linked>(&mut self, slab: &mut Pages<T>, key: u32) {
        let links = slab[key].links_mut();
        links.prev = self.tail;
        links.next = NIL;
        if self.tail == NIL {
            self.head = key;
        } else {
            slab[self.tail].links_mut().next = key;
        }
        self.tail = key;
        self.len += 1;
    }

    /// Removes an element of this list.
    pub fn remove<T: Linked>(&mut self, slab: &mut Pages<T>, key: u32) {
        let links = slab[key].links_mut();
        let (prev, next) = (links.prev, links.next);
        links.prev = NIL;
        links.next = NIL;
        if prev == NIL {
            assert_eq!(self.head, key, "an element without predecessor is the first of its list");
            self.head = next;
        } else {
            slab[prev].links_mut().next = next;
        }
        if next == NIL {
            assert_eq!(self.tail, key, "an element without successor is the last of its list");
            self.tail = prev;
        } else {
            slab[next].links_mut().prev = prev;
        }
        self.len -= 1;
    }

    /// The elements, first to last.
    pub fn iter<'a, T: Linked>(&self, slab: &'a Pages<T>) -> impl Iterator<Item = u32> + use<'a, T> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let key = (at != NIL).then_some(at)?;
            at = slab[key].links().next;
            Some(key)
        })
    }

    /// Asserts that the links agree in both directions, and that the length is right.
    pub fn check<T: Linked>(&self, slab: &Pages<T>) {
        let mut prev = NIL;
        let mut count = 0;
        for key in self.iter(slab) {
            assert_eq!(slab[key].links().prev, prev, "the list reads the same backwards");
            prev = key;
            count += 1;
            assert!(count <= self.len, "the list ends after its length");
        }
        assert_eq!((self.tail, self.len), (prev, count), "the list ends at its tail");
    }
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
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
