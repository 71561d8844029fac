//! Chunks of mapped memory, and the runs of pages in them.
//!
//! Runs tile every chunk: used ones and free ones. Two free runs are never adjacent. A free run is in the list of its
//! length. Taking a run searches the set of lengths, and returning one checks its two neighbours. The list is a stack, so
//! that memory that was used last is used again first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use slab::Slab;

use super::OutOfMemory;
use super::chunk_table::{
    Bits, CHUNK_BYTES, CHUNK_PAGES, Chunk, FreeRuns, Link, List, Meta, Nodes, PAGE_BYTES, PageState,
    SPOT_CHUNKS_MAX, Spot, Table,
};
use super::memory::Mapping;
use super::small::Span;

/// Number of empty chunks that stay mapped.
const SPARE_CHUNKS_MAX: usize = 4;
/// Memory in free runs that is kept for reuse: this and an eighth of the memory in use.
const WARM_PAGES_MIN: usize = 16 * 1024 * 1024 / PAGE_BYTES;
const WARM_PAGES_SHARE: usize = 8;

/// The cost of one sweep, in pages returned at 100 ns each. A system call costs as much as [`CALL_PAGES`]. A sweep also
/// checks at most [`SWEEP_CHUNKS`] chunks.
const SWEEP_PAGES: usize = 1024;
pub const CALL_PAGES: usize = 16;
const SWEEP_CHUNKS: usize = 256;

const _: () = assert!(SPARE_CHUNKS_MAX * CHUNK_PAGES <= WARM_PAGES_MIN);

/// All chunks. The number and the address of a chunk stay the same while it is mapped. The lowest free number is used first.
pub struct Chunks {
    table: Table,
    vacant: BinaryHeap<Reverse<u32>>,
    /// The mapped chunks by address.
    addresses: BTreeMap<usize, u32>,
    /// The free runs of held chunks. They are taken first, because their memory cannot be returned.
    held_runs: Runs,
    /// The free runs of other chunks.
    runs: Runs,
    mapped: usize,
    used_pages: usize,
    warm_pages: usize,
    /// The memory of the [`Meta`] of all chunks.
    meta_bytes: usize,
    /// Idle pages that the next sweep returns although they could be kept.
    wanted_pages: usize,
    kept_pages_max: usize,
    /// Empty chunks that are not held.
    empty: usize,
    /// Warm free pages of chunks that are not held.
    idle_pages: usize,
    sweep_at: usize,
}

impl Chunks {
    pub fn new() -> Self {
        Self {
            table: Table(Vec::new()),
            vacant: BinaryHeap::new(),
            addresses: BTreeMap::new(),
            held_runs: Runs::new(),
            runs: Runs::new(),
            mapped: 0,
            used_pages: 0,
            warm_pages: 0,
            meta_bytes: 0,
            wanted_pages: 0,
            kept_pages_max: usize::MAX,
            empty: 0,
            idle_pages: 0,
            sweep_at: 0,
        }
    }

    /// Takes a run of 1 to 512 pages from the shortest free run that is long enough, in a held chunk if possible. The pages
    /// keep their contents, and their [`PageState`] is `Inner`. They count as memory after [`Chunks::warm`].
    pub fn take_run(&mut self, pages: usize) -> Result<Spot, OutOfMemory> {
        let first = match self.find_run(pages) {
            Some(first) => first,
            None => self.map_chunk()?,
        };
        let found = self.unlink_run(first);
        let (chunk, start) = (first.chunk(), first.index());
        if found > pages {
            self.link_run(Spot::new(chunk, start + pages), found - pages);
        }
        let meta = self.table.meta_mut(chunk);
        if !meta.held {
            self.idle_pages -= meta.warm.count(start..start + pages);
            self.empty -= usize::from(meta.used.is_empty());
        }
        meta.used.insert_range(start..start + pages);
        self.used_pages += pages;
        Ok(first)
    }

    /// Counts the first `pages` pages of a run as memory. Returns the number of pages that did not count before.
    pub fn warm(&mut self, first: Spot, pages: usize) -> usize {
        let meta = self.table.meta_mut(first.chunk());
        let range = first.index()..first.index() + pages;
        let cold = pages - meta.warm.count(range.clone());
        if cold > 0 {
            meta.warm.insert_range(range);
            self.warm_pages += cold;
        }
        cold
    }

    /// Gets memory for a whole run at once.
    pub fn populate(&mut self, first: Spot, pages: usize) {
        let start = first.index() * PAGE_BYTES;
        self.memory_mut(first.chunk()).populate(start..start + pages * PAGE_BYTES);
    }

    /// What a run of `pages` pages would add to [`Chunks::resident_bytes`] when all of it is used.
    pub fn growth(&self, pages: usize) -> usize {
        let Some(first) = self.find_run(pages) else {
            return pages * PAGE_BYTES + size_of::<Meta>();
        };
        let warm = &self.table.meta(first.chunk()).warm;
        (pages - warm.count(first.index()..first.index() + pages)) * PAGE_BYTES
    }

    /// Makes the next sweep return this much unused memory, even if it could be kept.
    pub fn want(&mut self, bytes: usize) {
        self.wanted_pages = self.wanted_pages.max(bytes.div_ceil(PAGE_BYTES));
    }

    /// Limits the unused memory that is kept.
    pub fn keep_at_most(&mut self, bytes: usize) {
        self.kept_pages_max = bytes / PAGE_BYTES;
    }

    /// Unused memory that can be returned.
    pub fn idle_bytes(&self) -> usize {
        self.idle_pages * PAGE_BYTES
    }

    /// Returns a whole run. All of it counts as warm, because bytes beyond those passed to [`Chunks::warm`] may be written.
    pub fn give_run(&mut self, first: Spot, pages: usize) {
        self.warm(first, pages);
        let (chunk, mut start, mut end) = (first.chunk(), first.index(), first.index() + pages);
        let meta = self.table.meta_mut(chunk);
        meta.pages[start..end].fill(PageState::Inner);
        debug_assert_eq!(meta.used.count(start..end), pages);
        meta.used.remove_range(start..end);
        if !meta.held {
            self.idle_pages += pages;
            self.empty += usize::from(meta.used.is_empty());
        }
        self.used_pages -= pages;

        let before = match start.checked_sub(1).map(|last| meta.pages[last]) {
            Some(PageState::FreeEnd { pages } | PageState::Free { pages, .. }) => pages as usize,
            _ => 0,
        };
        let after = match meta.pages.get(end) {
            Some(&PageState::Free { pages, .. }) => pages as usize,
            _ => 0,
        };
        if before > 0 {
            start -= before;
            self.unlink_run(Spot::new(chunk, start));
        }
        if after > 0 {
            self.unlink_run(Spot::new(chunk, end));
            end += after;
        }
        self.link_run(Spot::new(chunk, start), end - start);
    }

    /// Returns up to 4 MiB of memory to the kernel that is beyond the bound or wanted. Returns true if there is more beyond the
    /// bound.
    pub fn sweep(&mut self) -> bool {
        let mut budget = SWEEP_PAGES;
        let enough = self.idle_pages.saturating_sub(std::mem::take(&mut self.wanted_pages));
        for _ in 0..self.table.0.len().min(SWEEP_CHUNKS) {
            if budget == 0 || !self.is_excessive() && self.idle_pages <= enough {
                break;
            }
            self.sweep_at %= self.table.0.len();
            let chunk = self.sweep_at;
            if let Some(Chunk { meta, .. }) = &self.table.0[chunk]
                && !meta.held
            {
                if meta.used.is_empty() && self.empty > SPARE_CHUNKS_MAX {
                    budget = budget.saturating_sub(meta.warm.len() + CALL_PAGES);
                    if !self.unmap_chunk(chunk) {
                        // The kernel cannot do it now, so another try at once would not help.
                        return false;
                    }
                } else {
                    budget = self.discard_idle(chunk, budget);
                }
            }
            // A chunk that used up the budget may have more to return, so the next sweep resumes with it.
            if budget > 0 {
                self.sweep_at += 1;
            }
        }
        self.is_excessive()
    }

    /// Returns true if more chunks are mapped than stay mapped without bodies.
    pub fn is_beyond_spare(&self) -> bool {
        self.mapped > SPARE_CHUNKS_MAX
    }

    /// Keeps a chunk and all of its memory until [`Chunks::release`].
    pub fn hold(&mut self, chunk: usize) {
        let meta = self.table.meta_mut(chunk);
        assert!(!meta.held, "chunk {chunk} is held once");
        self.set_held(chunk, true);
        let meta = self.table.meta_mut(chunk);
        self.idle_pages -= meta.idle_pages();
        self.empty -= usize::from(meta.used.is_empty());
        // The kernel pins every page, so every page has memory.
        self.warm_pages += CHUNK_PAGES - meta.warm.len();
        meta.warm.insert_range(0..CHUNK_PAGES);
    }

    /// Ends [`Chunks::hold`].
    pub fn release(&mut self, chunk: usize) {
        let meta = self.table.meta_mut(chunk);
        assert!(meta.held, "chunk {chunk} is held");
        self.set_held(chunk, false);
        let meta = self.table.meta_mut(chunk);
        self.idle_pages += meta.idle_pages();
        self.empty += usize::from(meta.used.is_empty());
    }

    pub fn page(&self, at: Spot) -> &PageState {
        &self.table.meta(at.chunk()).pages[at.index()]
    }

    pub fn page_mut(&mut self, at: Spot) -> &mut PageState {
        &mut self.table.meta_mut(at.chunk()).pages[at.index()]
    }

    /// Stores a span in its chunk and marks its pages.
    pub fn add_span(&mut self, first: Spot, pages: usize, span: Span) -> Spot {
        let meta = self.table.meta_mut(first.chunk());
        let before = meta.memory_bytes();
        let index = meta.spans.insert(span);
        self.meta_bytes += meta.memory_bytes() - before;
        meta.pages[first.index()..first.index() + pages].fill(PageState::Span { index: index as u16 });
        Spot::new(first.chunk(), index)
    }

    /// Removes a span. Its pages must then be returned.
    pub fn remove_span(&mut self, key: Spot) -> Span {
        self.table.meta_mut(key.chunk()).spans.remove(key.index())
    }

    pub fn span(&self, key: Spot) -> &Span {
        &self.table.meta(key.chunk()).spans[key.index()]
    }

    pub fn span_mut(&mut self, key: Spot) -> &mut Span {
        &mut self.table.meta_mut(key.chunk()).spans[key.index()]
    }

    /// A span and the memory of its chunk.
    #[inline]
    pub fn span_and_memory(&mut self, key: Spot) -> (&mut Span, &mut Mapping) {
        let Chunk { memory, meta } = self.table.get_mut(key.chunk());
        (&mut meta.spans[key.index()], memory)
    }

    /// The spans as nodes of lists.
    pub fn span_nodes(&mut self) -> &mut impl Nodes {
        &mut self.table
    }

    pub fn memory(&self, chunk: usize) -> &Mapping {
        &self.table.get(chunk).memory
    }

    pub fn memory_mut(&mut self, chunk: usize) -> &mut Mapping {
        &mut self.table.get_mut(chunk).memory
    }

    /// The mapped chunk that an address lies in.
    pub fn at(&self, address: usize) -> Option<u32> {
        let (&start, &chunk) = self.addresses.range(..=address).next_back()?;
        (address - start < CHUNK_BYTES).then_some(chunk)
    }

    /// The numbers of the mapped chunks.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.table.0.iter().zip(0..).filter_map(|(chunk, number)| chunk.as_ref().map(|_| number))
    }

    pub fn spans(&self, chunk: u32) -> impl Iterator<Item = (Spot, &Span)> {
        let chunk = chunk as usize;
        self.table.meta(chunk).spans.iter().map(move |(index, span)| (Spot::new(chunk, index), span))
    }

    pub fn mapped_bytes(&self) -> usize {
        self.mapped * CHUNK_BYTES
    }

    /// The memory of the chunks, in use or kept, with their tables.
    pub fn resident_bytes(&self) -> usize {
        self.warm_pages * PAGE_BYTES + self.meta_bytes
    }

    /// Pages that may have memory behind them.
    #[cfg(test)]
    pub fn warm_pages(&self) -> usize {
        self.warm_pages
    }

    /// Recomputes everything, in O(pages).
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) {
        let (mut mapped, mut used_pages, mut empty, mut idle_pages) = (0, 0, 0, 0);
        let (mut warm_pages, mut meta_bytes) = (0, 0);
        let mut free_runs = [vec![0; CHUNK_PAGES + 1], vec![0; CHUNK_PAGES + 1]];
        for (number, chunk) in self.table.0.iter().enumerate() {
            let Some(Chunk { memory, meta }) = chunk else {
                assert!(self.vacant.iter().any(|vacant| vacant.0 as usize == number));
                continue;
            };
            assert_eq!(memory.len(), CHUNK_BYTES);
            assert_eq!(self.addresses.get(&memory.as_ptr().addr().get()), Some(&(number as u32)));
            let used = meta.check_tiling(&mut free_runs[usize::from(meta.held)]);
            mapped += 1;
            used_pages += used;
            warm_pages += meta.warm.len();
            meta_bytes += meta.memory_bytes();
            if !meta.held {
                empty += usize::from(used == 0);
                idle_pages += meta.idle_pages();
            }
        }
        assert_eq!(mapped + self.vacant.len(), self.table.0.len());
        assert_eq!(self.addresses.len(), mapped);
        assert_eq!(
            (mapped, used_pages, empty, idle_pages),
            (self.mapped, self.used_pages, self.empty, self.idle_pages)
        );
        assert_eq!((warm_pages, meta_bytes), (self.warm_pages, self.meta_bytes));
        for (runs, free_runs) in [&self.runs, &self.held_runs].into_iter().zip(&free_runs) {
            runs.check(free_runs, |first, pages| match self.page(first) {
                &PageState::Free { pages: length, link } if length as usize == pages => link,
                page => panic!("{page:?} is listed as the first of {pages} free"),
            });
        }
    }

    /// Checks the runs of large bodies. Returns their number and their pages.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check_runs(&self) -> (usize, usize, usize) {
        let (mut runs, mut run_pages, mut ended_pages) = (0, 0, 0);
        for Chunk { meta, .. } in self.table.0.iter().flatten() {
            for (start, page) in meta.pages.iter().enumerate() {
                let &PageState::Large { pages, readers } = page else { continue };
                readers.check();
                let end = start + pages as usize;
                assert!(meta.pages[start + 1..end].iter().all(|&page| page == PageState::Inner));
                runs += 1;
                run_pages += pages as usize;
                ended_pages += if readers.is_freed() { pages as usize } else { 0 };
            }
        }
        (runs, run_pages, ended_pages)
    }

    fn is_excessive(&self) -> bool {
        let kept_pages = (WARM_PAGES_MIN + self.used_pages / WARM_PAGES_SHARE).min(self.kept_pages_max);
        self.empty > SPARE_CHUNKS_MAX || self.idle_pages > kept_pages
    }

    fn find_run(&self, pages: usize) -> Option<Spot> {
        self.held_runs.shortest(pages).or_else(|| self.runs.shortest(pages))
    }

    /// Moves the free runs of a chunk to the lists of held chunks, or back.
    fn set_held(&mut self, chunk: usize, held: bool) {
        let free: Vec<usize> = self.table.meta(chunk).free_runs().collect();
        let taken: Vec<(Spot, usize)> = free
            .into_iter()
            .map(|start| Spot::new(chunk, start))
            .map(|first| (first, self.unlink_run(first)))
            .collect();
        self.table.meta_mut(chunk).held = held;
        taken.into_iter().for_each(|(first, pages)| self.link_run(first, pages));
    }

    /// Maps a chunk. Returns its one free run, which is in its list.
    fn map_chunk(&mut self) -> Result<Spot, OutOfMemory> {
        let chunk = self.vacant.peek().map_or(self.table.0.len(), |vacant| vacant.0 as usize);
        if chunk >= SPOT_CHUNKS_MAX {
            return Err(OutOfMemory);
        }
        let mut memory = Mapping::new(CHUNK_BYTES)?;
        memory.refuse_huge_pages();
        let meta = Box::new(Meta {
            pages: [PageState::Inner; CHUNK_PAGES],
            spans: Slab::new(),
            used: Bits::EMPTY,
            warm: Bits::EMPTY,
            held: false,
        });
        if self.vacant.pop().is_none() {
            self.table.0.push(None);
        }
        self.addresses.insert(memory.as_ptr().addr().get(), chunk as u32);
        self.table.0[chunk] = Some(Chunk { memory, meta });
        self.mapped += 1;
        self.meta_bytes += size_of::<Meta>();
        self.empty += 1;
        let first = Spot::new(chunk, 0);
        self.link_run(first, CHUNK_PAGES);
        Ok(first)
    }

    /// Unmaps an empty chunk. Returns false if the kernel cannot.
    fn unmap_chunk(&mut self, chunk: usize) -> bool {
        let first = Spot::new(chunk, 0);
        self.unlink_run(first);
        let Chunk { memory, meta } = self.table.0[chunk].take().expect("the chunk is mapped");
        let address = memory.as_ptr().addr().get();
        match memory.unmap() {
            Ok(()) => {
                self.addresses.remove(&address);
                debug_assert!(meta.used.is_empty() && meta.spans.is_empty() && !meta.held);
                self.idle_pages -= meta.idle_pages();
                self.warm_pages -= meta.warm.len();
                self.meta_bytes -= meta.memory_bytes();
                self.empty -= 1;
                self.mapped -= 1;
                self.vacant.push(Reverse(chunk as u32));
                true
            }
            Err(memory) => {
                self.table.0[chunk] = Some(Chunk { memory, meta });
                self.link_run(first, CHUNK_PAGES);
                false
            }
        }
    }

    /// Returns the memory of a chunk's free runs to the kernel, as far as the budget goes. Returns the rest of the budget.
    fn discard_idle(&mut self, chunk: usize, mut budget: usize) -> usize {
        let Chunk { memory, meta } = self.table.get_mut(chunk);
        let idle = meta.idle();
        let mut from = 0;
        while budget > 0
            && let Some(range) = idle.range_from(from)
        {
            from = range.end;
            budget = budget.saturating_sub(range.len() + CALL_PAGES);
            self.idle_pages -= range.len();
            self.warm_pages -= range.len();
            memory.discard(range.start * PAGE_BYTES..range.end * PAGE_BYTES);
            meta.warm.remove_range(range);
        }
        budget
    }

    /// Adds a free run to its list.
    fn link_run(&mut self, first: Spot, pages: usize) {
        let meta = self.table.meta_mut(first.chunk());
        let start = first.index();
        meta.pages[start + pages - 1] = PageState::FreeEnd { pages: pages as u16 };
        meta.pages[start] = PageState::Free { pages: pages as u16, link: Link::LOOSE };
        let runs = if meta.held { &mut self.held_runs } else { &mut self.runs };
        runs.add(&mut FreeRuns(&mut self.table), first, pages);
    }

    /// Removes a free run from its list. Returns its length in pages.
    fn unlink_run(&mut self, first: Spot) -> usize {
        let &PageState::Free { pages, .. } = self.page(first) else { panic!("{first:?} begins a free run") };
        let pages = pages as usize;
        let runs = if self.table.meta(first.chunk()).held { &mut self.held_runs } else { &mut self.runs };
        runs.remove(&mut FreeRuns(&mut self.table), first, pages);
        let meta = self.table.meta_mut(first.chunk());
        meta.pages[first.index()] = PageState::Inner;
        meta.pages[first.index() + pages - 1] = PageState::Inner;
        pages
    }
}

/// The free runs of some chunks. The index of a list is the length in pages, less one.
struct Runs {
    lists: Box<[List; CHUNK_PAGES]>,
    lengths: Bits,
}

impl Runs {
    fn new() -> Self {
        Self { lists: Box::new([List::EMPTY; CHUNK_PAGES]), lengths: Bits::EMPTY }
    }

    /// The shortest run of at least `pages` pages.
    fn shortest(&self, pages: usize) -> Option<Spot> {
        let length = self.lengths.first_from(pages - 1)?;
        Some(Spot(self.lists[length].head().expect("a length in the set has a run")))
    }

    fn add(&mut self, nodes: &mut impl Nodes, first: Spot, pages: usize) {
        self.lists[pages - 1].push(nodes, first.0);
        self.lengths.insert(pages - 1);
    }

    fn remove(&mut self, nodes: &mut impl Nodes, first: Spot, pages: usize) {
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
    fn check(&self, counts: &[usize], link: impl Fn(Spot, usize) -> Link) {
        for (pages, &count) in counts.iter().enumerate().skip(1) {
            let listed = self.lists[pages - 1].keys(|key| link(Spot(key), pages));
            assert_eq!(listed.count(), count, "runs of {pages} free pages");
            assert_eq!(self.lengths.contains(pages - 1), count > 0);
        }
    }
}
