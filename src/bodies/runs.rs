//! Free runs of pages, by their length.

use super::bits::Bits;
use super::chunk_table::{CHUNK_PAGES, Spot};
use super::list::{Link, List, Nodes};

/// The free runs of some chunks. The index of a list is the length in pages, less one.
pub struct Runs {
    lists: Box<[List; CHUNK_PAGES]>,
    lengths: Bits,
}

impl Runs {
    pub fn new() -> Self {
        Self { lists: Box::new([List::EMPTY; CHUNK_PAGES]), lengths: Bits::EMPTY }
    }

    /// The shortest run of at least `pages` pages.
    pub fn shortest(&self, pages: usize) -> Option<Spot> {
        let length = self.lengths.first_from(pages - 1)?;
        Some(Spot(self.lists[length].head().expect("a length in the set has a run")))
    }

    pub fn add(&mut self, nodes: &mut impl Nodes, first: Spot, pages: usize) {
        self.lists[pages - 1].push(nodes, first.0);
        self.lengths.insert(pages - 1);
    }

    pub fn remove(&mut self, nodes: &mut impl Nodes, first: Spot, pages: usize) {
        let list = &mut self.lists[pages - 1];
        list.remove(nodes, first.0);
        if list.is_empty() {
            self.lengths.remove(pages - 1);
        }
    }

    /// Asserts that each list has as many runs as `counts` says. `link` returns the links of a run by its first page.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self, counts: &[usize], link: impl Fn(Spot, usize) -> Link) {
        for (pages, &count) in counts.iter().enumerate().skip(1) {
            let listed = self.lists[pages - 1].keys(|key| link(Spot(key), pages));
            assert_eq!(listed.count(), count, "runs of {pages} free pages");
            assert_eq!(self.lengths.contains(pages - 1), count > 0);
        }
    }
}
