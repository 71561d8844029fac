//! A doubly linked list over the keys of a slab.

use super::{Linked, NIL, Pages};

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
