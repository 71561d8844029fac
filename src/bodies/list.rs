//! A doubly linked stack whose links lie in its nodes, so that a node is removed without a search.

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
