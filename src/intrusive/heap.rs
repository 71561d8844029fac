//! A pairing heap over the keys of a slab. Ranks keep every single operation fast, and a sorted run beside the trees makes
//! insertions in order almost free.
//!
//! In the textbook pairing heap, a million insertions leave a million children under one root, and the next removal pays
//! for all of them. Here trees are linked like the carries of a binary counter: two trees are linked only if they have the
//! same rank, as soon as the second one appears. The heap is a list of trees in ascending order of rank, without
//! duplicates.
//!
//! A node of rank `r` has children of distinct ranks below `r`, in descending order. When a node is removed from the middle,
//! its children are linked into one tree, which takes its place and its rank. That rank may be too high for the number of
//! nodes below it. This does no harm: the rank only bounds the number of children, and no operation raises the weight
//! (`2^rank`, summed over the trees) above the number of insertions. So after `m` insertions since the heap was last empty,
//! every operation takes at most `log2 m` links and checks as many trees. That is less than 64 however long the server
//! runs.
//!
//! Most of what a queue sorts arrives sorted: jobs of one priority by id, equal delays and equal times to run by deadline.
//! An element above the last one of the run is appended to the run. Appending and unlinking are O(1) and touch only the
//! neighbours. An element between the last two replaces the last, which moves to the trees. So a single element far in the
//! future does not end a run.

use super::{Linked, Links, NIL, Pages, Ranked};

/// The rank of an element that is in the run and in no tree.
const IN_RUN: u8 = u8::MAX;

/// A heap with the smallest key first.
#[derive(Debug)]
pub struct Heap {
    /// The first element of the run, which is ascending and linked in both directions.
    first: u32,
    /// The last element of the run.
    last: u32,
    /// The tree of the lowest rank. The others follow by `next`.
    trees: u32,
    /// The root with the smallest key.
    root: u32,
    /// The element with the smallest key: `first` or `root`.
    min: u32,
    len: u32,
}

impl Heap {
    /// An empty heap.
    pub const fn new() -> Self {
        Self { first: NIL, last: NIL, trees: NIL, root: NIL, min: NIL, len: 0 }
    }

    /// The number of elements.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element with the smallest key, in O(1).
    pub fn min(&self) -> Option<u32> {
        (self.min != NIL).then_some(self.min)
    }

    /// Inserts an element that is in no container, in amortised O(1).
    // Inlined: the usual element is above the last one.
    #[inline(always)]
    pub fn insert<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        self.len += 1;
        let last = self.last;
        if last == NIL {
            self.note_min(slab, key);
            self.first = key;
        } else {
            let inserted = slab[key].key();
            let node = &mut slab[last];
            if inserted < node.key() {
                return self.insert_below_last(slab, key);
            }
            // The smallest element stays the smallest: it is not above the last one.
            node.links_mut().next = key;
        }
        self.end_run_with(slab, key);
    }

    #[inline(never)]
    fn insert_below_last<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        self.note_min(slab, key);
        let before = slab[self.last].links().prev;
        if before != NIL && slab[key].key() < slab[before].key() {
            return self.plant(slab, key);
        }
        let last = self.last;
        self.leave_run(slab, last);
        self.plant(slab, last);
        if self.last == NIL {
            self.first = key;
        } else {
            slab[self.last].links_mut().next = key;
        }
        self.end_run_with(slab, key);
    }

    fn note_min<T: Ranked>(&mut self, slab: &Pages<T>, key: u32) {
        if self.min == NIL || slab[key].key() < slab[self.min].key() {
            self.min = key;
        }
    }

    /// Removes the element with the smallest key, in O(log n).
    pub fn pop<T: Ranked>(&mut self, slab: &mut Pages<T>) -> Option<u32> {
        let min = self.min()?;
        self.remove(slab, min);
        Some(min)
    }

    /// Removes any element of this heap, in O(log n).
    // Inlined: the usual element is in the run.
    #[inline(always)]
    pub fn remove<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        assert!(self.len > 0, "the element is in this heap");
        self.len -= 1;
        if slab[key].rank() == IN_RUN {
            self.leave_run(slab, key);
        } else {
            self.remove_from_tree(slab, key);
            *slab[key].links_mut() = Links::NONE;
        }
        if self.min == key {
            self.find_min(slab);
        }
    }

    #[inline(never)]
    fn remove_from_tree<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        if key == self.root || is_root(slab, key) {
            self.remove_root(slab, key);
        } else {
            remove_inner(slab, key);
        }
        if self.root == key {
            self.root = self.smallest_root(slab);
        }
    }

    /// Calls `visit` with every element, in no order.
    pub fn for_each<T: Linked>(&self, slab: &Pages<T>, mut visit: impl FnMut(u32)) {
        let mut pending = vec![self.first, self.trees];
        while let Some(key) = pending.pop() {
            if key != NIL {
                visit(key);
                pending.extend([slab[key].links().next, slab[key].links().child]);
            }
        }
    }

    /// Asserts that the order, the ranks, the links and the length are right.
    pub fn check<T: Ranked>(&self, slab: &Pages<T>) {
        let mut count = self.check_run(slab);
        let mut tree = self.trees;
        let mut previous = NIL;
        while tree != NIL {
            assert_eq!(slab[tree].links().prev, previous, "trees are linked both ways");
            assert!(previous == NIL || slab[previous].rank() < slab[tree].rank(), "trees ascend in rank");
            assert!(slab[self.root].key() <= slab[tree].key(), "the smallest root is known");
            count += check_tree(slab, tree);
            previous = tree;
            tree = slab[tree].links().next;
        }
        assert_eq!(self.len, count, "the heap knows its length");
        assert_eq!(self.root == NIL, self.trees == NIL, "only without trees there is no smallest root");
        for candidate in [self.first, self.root].into_iter().filter(|&candidate| candidate != NIL) {
            assert!(slab[self.min].key() <= slab[candidate].key(), "the smallest element is known");
        }
    }

    fn check_run<T: Ranked>(&self, slab: &Pages<T>) -> u32 {
        let mut count = 0;
        let mut previous = NIL;
        let mut at = self.first;
        while at != NIL {
            assert_eq!((slab[at].links().prev, slab[at].rank()), (previous, IN_RUN), "the run is linked");
            assert!(previous == NIL || slab[previous].key() < slab[at].key(), "the run ascends");
            count += 1;
            previous = at;
            at = slab[at].links().next;
        }
        assert_eq!(self.last, previous, "the run ends with its last element");
        count
    }

    /// Makes an element the last one of the run. The one before it is linked to it already.
    #[inline]
    fn end_run_with<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        let node = &mut slab[key];
        *node.links_mut() = Links { prev: self.last, ..Links::NONE };
        node.set_rank(IN_RUN);
        self.last = key;
    }

    /// Removes an element from the run and clears its links.
    #[inline]
    fn leave_run<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        let Links { next, prev, .. } = std::mem::replace(slab[key].links_mut(), Links::NONE);
        if prev == NIL {
            self.first = next;
        } else {
            slab[prev].links_mut().next = next;
        }
        if next == NIL {
            self.last = prev;
        } else {
            slab[next].links_mut().prev = prev;
        }
    }

    /// Makes a tree of one element.
    fn plant<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        let node = &mut slab[key];
        *node.links_mut() = Links::NONE;
        node.set_rank(0);
        if self.root == NIL || slab[key].key() < slab[self.root].key() {
            self.root = key;
        }
        self.add_tree(slab, NIL, key);
    }

    #[inline]
    fn find_min<T: Ranked>(&mut self, slab: &Pages<T>) {
        self.min = match (self.first, self.root) {
            (NIL, only) | (only, NIL) => only,
            (first, root) if slab[first].key() < slab[root].key() => first,
            (_, root) => root,
        };
    }

    /// Adds a tree behind the tree `before`, whose rank is lower, or in front if `before` is `NIL`. Links it with the trees of
    /// its own rank like the carries of a binary counter.
    fn add_tree<T: Ranked>(&mut self, slab: &mut Pages<T>, before: u32, mut tree: u32) {
        let mut after = self.tree_after(slab, before);
        while after != NIL && slab[after].rank() == slab[tree].rank() {
            let next = slab[after].links().next;
            tree = link(slab, after, tree);
            after = next;
        }
        let links = slab[tree].links_mut();
        links.prev = before;
        links.next = after;
        if before == NIL {
            self.trees = tree;
        } else {
            slab[before].links_mut().next = tree;
        }
        if after != NIL {
            slab[after].links_mut().prev = tree;
        }
    }

    fn tree_after<T: Linked>(&self, slab: &Pages<T>, before: u32) -> u32 {
        if before == NIL { self.trees } else { slab[before].links().next }
    }

    /// Replaces a tree by its children.
    fn remove_root<T: Ranked>(&mut self, slab: &mut Pages<T>, key: u32) {
        let Links { next, prev, child } = *slab[key].links();
        if prev == NIL {
            self.trees = next;
        } else {
            slab[prev].links_mut().next = next;
        }
        if next != NIL {
            slab[next].links_mut().prev = prev;
        }
        let mut before = NIL;
        let mut tree = ascending(slab, child);
        while tree != NIL {
            let following = slab[tree].links().next;
            let rank = slab[tree].rank();
            loop {
                let after = self.tree_after(slab, before);
                if after == NIL || slab[after].rank() >= rank {
                    break;
                }
                before = after;
            }
            self.add_tree(slab, before, tree);
            tree = following;
        }
    }

    fn smallest_root<T: Ranked>(&self, slab: &Pages<T>) -> u32 {
        let mut smallest = self.trees;
        let mut tree = self.trees;
        while tree != NIL {
            if slab[tree].key() < slab[smallest].key() {
                smallest = tree;
            }
            tree = slab[tree].links().next;
        }
        smallest
    }
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

/// A first child has its parent as predecessor. A tree has another tree or none.
fn is_root<T: Linked>(slab: &Pages<T>, key: u32) -> bool {
    let mut at = key;
    loop {
        let prev = slab[at].links().prev;
        if prev == NIL {
            return true;
        }
        if slab[prev].links().child == at {
            return false;
        }
        at = prev;
    }
}

/// Links two trees of the same rank into one. Returns its root, which the caller must link.
fn link<T: Ranked>(slab: &mut Pages<T>, a: u32, b: u32) -> u32 {
    let (winner, loser) = if slab[b].key() < slab[a].key() { (b, a) } else { (a, b) };
    let first = slab[winner].links().child;
    let links = slab[loser].links_mut();
    links.next = first;
    links.prev = winner;
    if first != NIL {
        slab[first].links_mut().prev = loser;
    }
    let rank = slab[winner].rank() + 1;
    assert!(rank < 64, "a rank is at most the logarithm of the insertions");
    let node = &mut slab[winner];
    node.links_mut().child = loser;
    node.set_rank(rank);
    winner
}

/// Reverses a list of children, which is descending in rank. Only the `next` links are valid afterwards.
fn ascending<T: Linked>(slab: &mut Pages<T>, first: u32) -> u32 {
    let mut reversed = NIL;
    let mut at = first;
    while at != NIL {
        let next = std::mem::replace(&mut slab[at].links_mut().next, reversed);
        reversed = at;
        at = next;
    }
    reversed
}

/// Removes a node that is not a root from its tree. Its children, as one tree, take its place.
fn remove_inner<T: Ranked>(slab: &mut Pages<T>, key: u32) {
    let Links { next, prev, child } = *slab[key].links();
    let rank = slab[key].rank();
    let heir = join(slab, child, rank);
    let follower = if heir == NIL { next } else { heir };
    if slab[prev].links().child == key {
        slab[prev].links_mut().child = follower;
    } else {
        slab[prev].links_mut().next = follower;
    }
    if heir != NIL {
        let links = slab[heir].links_mut();
        links.prev = prev;
        links.next = next;
    }
    if next != NIL {
        slab[next].links_mut().prev = if heir == NIL { prev } else { heir };
    }
}

/// Links the children of a node of rank `rank` into one tree of that rank.
fn join<T: Ranked>(slab: &mut Pages<T>, first: u32, rank: u8) -> u32 {
    let mut tree = ascending(slab, first);
    if tree == NIL {
        return NIL;
    }
    let mut following = slab[tree].links().next;
    while following != NIL {
        let next = slab[following].links().next;
        // The rank may be above the number of children: see the module.
        let equal = slab[following].rank();
        slab[tree].set_rank(equal);
        tree = link(slab, tree, following);
        following = next;
    }
    slab[tree].set_rank(rank);
    tree
}

fn check_tree<T: Ranked>(slab: &Pages<T>, root: u32) -> u32 {
    let mut count = 0;
    let mut pending = vec![root];
    while let Some(node) = pending.pop() {
        count += 1;
        let mut previous = node;
        let mut child = slab[node].links().child;
        let mut rank_below = slab[node].rank();
        while child != NIL {
            assert_eq!(slab[child].links().prev, previous, "children are linked both ways");
            assert!(slab[child].rank() < rank_below, "children descend in rank, below their parent's");
            assert!(slab[node].key() < slab[child].key(), "a parent goes before its children");
            rank_below = slab[child].rank();
            previous = child;
            pending.push(child);
            child = slab[child].links().next;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::intrusive::intrusive;

    struct Node {
        key: (u32, u32),
        links: Links,
        rank: u8,
    }

    intrusive!(Node: in heaps by (u32, u32), |node| node.key);

    fn random(seed: &mut u64) -> u32 {
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (super::super::mix(*seed) >> 32) as u32
    }

    /// Random insertions, pops and removals from the middle, against an ordered set.
    fn agree_with_a_set(seed: u64, steps: u32) {
        let mut state = seed;
        let mut slab = Pages::new();
        let mut heap = Heap::new();
        let mut set = BTreeSet::new();
        let mut members: Vec<u32> = Vec::new();
        let spread = 1 + random(&mut state) % 1000;
        for step in 0..steps {
            match random(&mut state) % 8 {
                0..4 => {
                    let key = (random(&mut state) % spread, step);
                    let node = slab.insert(Node { key, links: Links::NONE, rank: 0 });
                    heap.insert(&mut slab, node);
                    set.insert((key, node));
                    members.push(node);
                }
                4..6 => {
                    let popped = heap.pop(&mut slab);
                    assert_eq!(popped, set.pop_first().map(|(_, node)| node), "seed {seed} step {step}");
                    if let Some(node) = popped {
                        members.retain(|&member| member != node);
                        slab.remove(node);
                    }
                }
                _ if !members.is_empty() => {
                    let chosen = random(&mut state) as usize % members.len();
                    let node = members.swap_remove(chosen);
                    heap.remove(&mut slab, node);
                    set.remove(&(slab.remove(node).key, node));
                }
                _ => {}
            }
            assert_eq!(heap.min(), set.first().map(|&(_, node)| node), "seed {seed} step {step}");
            assert_eq!(heap.len(), set.len(), "seed {seed} step {step}");
            if step % 7 == 0 {
                heap.check(&slab);
            }
        }
        let mut seen = 0;
        heap.for_each(&slab, |_| seen += 1);
        assert_eq!(seen, set.len());
    }

    #[test]
    fn random_operations_agree_with_an_ordered_set() {
        for seed in 0..200 {
            agree_with_a_set(seed, 600);
        }
    }

    /// The bound of the module: the key comparisons of one operation are logarithmic in the insertions, whatever the order and
    /// whatever is removed from the middle.
    #[test]
    fn no_node_ever_has_many_children() {
        // The second element keeps the run at its end, so that sorted insertions go to the trees.
        let orders: [fn(u32) -> u32; 4] = [
            |n| n,
            |n| if n < 2 { u32::MAX - 1 + n } else { n },
            |n| u32::MAX - n,
            |n| n.wrapping_mul(2_654_435_761),
        ];
        for order in orders {
            let mut slab = Pages::new();
            let mut heap = Heap::new();
            for n in 0..100_000 {
                let node = slab.insert(Node { key: (order(n), n), links: Links::NONE, rank: 0 });
                heap.insert(&mut slab, node);
            }
            for n in (1..100_000).step_by(3) {
                heap.remove(&mut slab, n);
            }
            heap.check(&slab);
            while let Some(min) = heap.min() {
                let rank = slab[min].rank();
                assert!(rank == IN_RUN || rank <= 17, "100,000 insertions make ranks of at most 17");
                heap.pop(&mut slab);
            }
        }
    }
}
