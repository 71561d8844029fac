//! The table of chunks: the state of each page, and the lists that run through the pages.

use slab::Slab;

use super::bits::{BITS, Bits};
use super::list::{Link, Nodes};
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
