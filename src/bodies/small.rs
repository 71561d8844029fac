//! Small bodies: their size is rounded up to that of a class, and a span has many slots of one class.
//!
//! A class fills its fullest spans first, so that spans with few bodies become empty and their pages are returned. A class
//! keeps one empty span if it has no other room. So a queue that becomes empty after each job does not create and remove a
//! span each time.

use super::chunk_table::{BITS, Bits, CHUNK_PAGES, Link, List, PAGE_BYTES, PageState, Spot};
use super::chunks::Chunks;
use super::{OutOfMemory, SMALL_BYTES_MAX};

/// The number of sizes.
pub const CLASSES: usize = FINE_CLASSES + 8 * 6;

/// Up to this size, sizes are 8 bytes apart. Above it each doubling has 8 sizes, so that the waste is below 12.5 %.
const FINE_BYTES_MAX: usize = 128;
const FINE_CLASSES: usize = FINE_BYTES_MAX / 8;

/// The longest span, in pages. A span of the largest class then has 8 slots.
const SPAN_PAGES_MAX: usize = 16;

/// The memory of a span outside its chunk.
const SPAN_META_BYTES: usize = 96;

const _: () = assert!(FINE_BYTES_MAX << 6 == SMALL_BYTES_MAX);
const _: () = assert!(Class(CLASSES as u8 - 1).slot_bytes() == SMALL_BYTES_MAX);
const _: () = assert!(size_of::<Span>() + 8 <= SPAN_META_BYTES);

/// One of the sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class(u8);

impl Class {
    /// The smallest class for a body of 1 to [`SMALL_BYTES_MAX`] bytes.
    pub fn of(bytes: usize) -> Self {
        debug_assert!((1..=SMALL_BYTES_MAX).contains(&bytes));
        let last = bytes - 1;
        if bytes <= FINE_BYTES_MAX {
            return Self((last / 8) as u8);
        }
        let log = last.ilog2() as usize;
        let eighth = (last >> (log - 3)) - 8;
        Self((FINE_CLASSES + (log - 7) * 8 + eighth) as u8)
    }

    /// The index, from 0 to [`CLASSES`] - 1.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The size of a slot in bytes, a multiple of 8.
    pub const fn slot_bytes(self) -> usize {
        let class = self.0 as usize;
        if class < FINE_CLASSES {
            return (class + 1) * 8;
        }
        let (doubling, eighth) = ((class - FINE_CLASSES) / 8, (class - FINE_CLASSES) % 8);
        (8 + eighth + 1) << (4 + doubling)
    }

    /// The number of pages of a span, 1 to 16.
    pub const fn span_pages(self) -> usize {
        SPAN_PAGES[self.0 as usize] as usize
    }

    /// The number of slots of a span, 8 to 512.
    pub const fn span_slots(self) -> usize {
        self.span_pages() * PAGE_BYTES / self.slot_bytes()
    }
}

const SPAN_PAGES: [u8; CLASSES] = {
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = best_span_pages(Class(class as u8).slot_bytes()) as u8;
        class += 1;
    }
    table
};

/// The length of a span that wastes the least of a chunk: at the ends of spans, at the end of the chunk, and for the
/// records of spans.
const fn best_span_pages(slot_bytes: usize) -> usize {
    let (mut best, mut least_waste) = (0, usize::MAX);
    let mut pages = 1;
    while pages <= SPAN_PAGES_MAX {
        let slots = pages * PAGE_BYTES / slot_bytes;
        if 8 <= slots && slots <= BITS {
            let spans = CHUNK_PAGES / pages;
            let waste = CHUNK_PAGES * PAGE_BYTES - spans * (slots * slot_bytes - SPAN_META_BYTES);
            if waste < least_waste {
                (best, least_waste) = (pages, waste);
            }
        }
        pages += 1;
    }
    best
}

/// The fill of a span, in quarters rounded down.
type Fill = usize;
const FULL: Fill = 4;

/// The smallest number of used slots with which a span of `slots` slots has this fill.
const fn fill_from(fill: Fill, slots: usize) -> usize {
    slots * fill / FULL
}

/// Pages that are divided into slots of one size. The lowest free slot is used first, so pages that no body has needed stay
/// untouched.
pub struct Span {
    pub link: Link,
    free: Bits,
    first_page: u16,
    used: u16,
    /// `used` is in this range while the fill is right.
    fill_low: u16,
    fill_high: u16,
    class: Class,
    fill: u8,
}

impl Span {
    fn new(class: Class, first_page: usize) -> Self {
        let mut free = Bits::EMPTY;
        free.insert_range(0..class.span_slots());
        let mut span = Self {
            link: Link::LOOSE,
            free,
            first_page: first_page as u16,
            used: 0,
            fill_low: 0,
            fill_high: 0,
            class,
            fill: 0,
        };
        span.set_fill();
        span
    }

    /// Uses the lowest free slot. Returns its offset in the chunk.
    #[inline]
    fn take_slot(&mut self) -> usize {
        let slot = self.free.first().expect("a listed span has room");
        self.free.remove(slot);
        self.used += 1;
        self.first_page as usize * PAGE_BYTES + slot * self.class.slot_bytes()
    }

    fn set_fill(&mut self) {
        let (slots, used) = (self.class.span_slots(), self.used as usize);
        let fill =
            (0..=FULL).rev().find(|&fill| fill_from(fill, slots) <= used).expect("a fill begins at zero");
        self.fill = fill as u8;
        self.fill_low = fill_from(fill, slots) as u16;
        self.fill_high = if fill == FULL { used + 1 } else { fill_from(fill + 1, slots) } as u16;
    }
}

/// The spans with room, by class.
pub struct Small {
    classes: Box<[Roomy; CLASSES]>,
}

#[derive(Clone, Copy)]
struct Roomy {
    by_fill: [List; FULL],
    /// One bit per list, set if the list is not empty.
    fills: u8,
    /// The span that was kept when it became empty. It may be in use again.
    kept: Option<Spot>,
    /// All spans, with room or full.
    spans: u32,
}

impl Roomy {
    const NONE: Self = Self { by_fill: [List::EMPTY; FULL], fills: 0, kept: None, spans: 0 };

    #[inline]
    fn fullest(&self) -> Option<Spot> {
        let fill = self.fills.checked_ilog2()?;
        self.by_fill[fill as usize].head().map(Spot)
    }

    /// Returns true if a span, which is in the list of fill 0, is the only one of the class with room.
    fn is_only(&self, span: &Span) -> bool {
        self.fills == 1 && span.link == Link::LOOSE
    }

    /// Returns the fullest span with room, or a new one.
    #[inline]
    fn fullest_or_new(&mut self, chunks: &mut Chunks, class: Class) -> Result<Spot, OutOfMemory> {
        match self.fullest() {
            Some(key) => Ok(key),
            None => new_span(self, chunks, class),
        }
    }

    /// Moves a span to the list of its fill, which has changed.
    #[inline(never)]
    fn relist(&mut self, chunks: &mut Chunks, key: Spot) {
        let span = chunks.span_mut(key);
        let before = span.fill as Fill;
        span.set_fill();
        let after = span.fill as Fill;
        self.remove(chunks, key, before);
        self.insert(chunks, key, after);
    }

    fn insert(&mut self, chunks: &mut Chunks, key: Spot, fill: Fill) {
        if fill != FULL {
            self.by_fill[fill].push(chunks.span_nodes(), key.0);
            self.fills |= 1 << fill;
        }
    }

    fn remove(&mut self, chunks: &mut Chunks, key: Spot, fill: Fill) {
        if fill != FULL {
            let list = &mut self.by_fill[fill];
            list.remove(chunks.span_nodes(), key.0);
            if list.is_empty() {
                self.fills &= !(1 << fill);
            }
        }
    }
}

impl Small {
    pub fn new() -> Self {
        Self { classes: Box::new([Roomy::NONE; CLASSES]) }
    }

    /// Allocates a slot for `bytes` bytes. Returns its chunk and its offset there.
    pub fn allocate(&mut self, chunks: &mut Chunks, bytes: usize) -> Result<(usize, usize), OutOfMemory> {
        self.allocate_and(chunks, bytes, |_| {})
    }

    /// Allocates a slot and copies a body there. Returns its chunk and its offset there.
    #[inline]
    pub fn store(&mut self, chunks: &mut Chunks, body: &[u8]) -> Result<(usize, usize), OutOfMemory> {
        self.allocate_and(chunks, body.len(), |slot| slot.copy_from_slice(body))
    }

    #[inline(always)]
    fn allocate_and(
        &mut self,
        chunks: &mut Chunks,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(usize, usize), OutOfMemory> {
        let class = Class::of(bytes);
        let roomy = &mut self.classes[class.index()];
        let key = roomy.fullest_or_new(chunks, class)?;
        let (span, memory) = chunks.span_and_memory(key);
        let offset = span.take_slot();
        fill(memory.bytes_mut(offset, bytes));
        if span.used == span.fill_high {
            roomy.relist(chunks, key);
        }
        Ok((key.chunk(), offset))
    }

    /// What a slot for `bytes` bytes would add to the memory in use.
    pub fn growth(&self, chunks: &Chunks, bytes: usize) -> usize {
        let class = Class::of(bytes);
        let has_room = self.classes[class.index()].fills != 0;
        if has_room { 0 } else { chunks.growth(class.span_pages()) }
    }

    /// Frees a slot.
    pub fn free(&mut self, chunks: &mut Chunks, chunk: usize, offset: usize, bytes: usize) {
        let class = Class::of(bytes);
        let &PageState::Span { index } = chunks.page(Spot::new(chunk, offset / PAGE_BYTES)) else {
            panic!("a small body lies in a span")
        };
        let key = Spot::new(chunk, index as usize);
        let span = chunks.span_mut(key);
        assert_eq!(span.class, class, "a slot keeps its class");
        let slot = (offset - span.first_page as usize * PAGE_BYTES) as u32 / class.slot_bytes() as u32;
        let slot = slot as usize;
        assert!(!span.free.contains(slot), "a slot is freed once");
        span.free.insert(slot);
        span.used -= 1;
        let roomy = &mut self.classes[class.index()];
        if span.used < span.fill_low {
            roomy.relist(chunks, key);
        }
        if chunks.span(key).used == 0 {
            if roomy.is_only(chunks.span(key)) {
                roomy.kept = Some(key);
            } else {
                give_span(roomy, chunks, key);
            }
        }
    }

    /// Removes the empty span that each class may keep.
    pub fn give_empty_spans(&mut self, chunks: &mut Chunks) {
        for roomy in self.classes.iter_mut() {
            if let Some(key) = roomy.kept.take()
                && chunks.span(key).used == 0
            {
                give_span(roomy, chunks, key);
            }
        }
    }

    /// Recomputes everything. Returns the number of used slots and their bytes.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self, chunks: &Chunks) -> (usize, usize) {
        let (mut slots, mut bytes) = (0, 0);
        let mut by_class = [[0; FULL + 1]; CLASSES];
        let mut empty = [0; CLASSES];
        for (key, span) in chunks.numbers().flat_map(|chunk| chunks.spans(chunk)) {
            let class = span.class;
            let used = class.span_slots() - span.free.len();
            assert_eq!(span.free.count(class.span_slots()..BITS), 0);
            assert_eq!(used, span.used as usize);
            assert!((span.fill_low..span.fill_high).contains(&span.used));
            assert_eq!(span.fill_low as usize, fill_from(span.fill as Fill, class.span_slots()));
            for page in span.first_page as usize..span.first_page as usize + class.span_pages() {
                let page = Spot::new(key.chunk(), page);
                assert_eq!(*chunks.page(page), PageState::Span { index: key.index() as u16 });
            }
            by_class[class.index()][span.fill as Fill] += 1;
            if used == 0 {
                assert_eq!(self.classes[class.index()].kept, Some(key));
                empty[class.index()] += 1;
            }
            slots += used;
            bytes += used * class.slot_bytes();
        }
        for (roomy, by_fill) in self.classes.iter().zip(by_class) {
            assert_eq!(roomy.spans, by_fill.iter().sum::<u32>());
            for (fill, list) in roomy.by_fill.iter().enumerate() {
                let listed = list.keys(|key| chunks.span(Spot(key)).link).count();
                assert_eq!(listed as u32, by_fill[fill]);
                assert_eq!(roomy.fills >> fill & 1 == 1, listed > 0);
            }
        }
        assert!(empty.iter().all(|&spans| spans <= 1), "a class keeps one empty span");
        (slots, bytes)
    }
}

#[cold]
fn new_span(roomy: &mut Roomy, chunks: &mut Chunks, class: Class) -> Result<Spot, OutOfMemory> {
    let first = chunks.take_run(class.span_pages())?;
    let cold_pages = chunks.warm(first, class.span_pages());
    // A class whose spans are all full is about to fill another. The first span may be for a single body.
    if cold_pages > 0 && roomy.spans > 0 {
        chunks.populate(first, class.span_pages());
    }
    roomy.spans += 1;
    let key = chunks.add_span(first, class.span_pages(), Span::new(class, first.index()));
    roomy.insert(chunks, key, 0);
    Ok(key)
}

/// Removes an empty span and returns its pages.
fn give_span(roomy: &mut Roomy, chunks: &mut Chunks, key: Spot) {
    roomy.remove(chunks, key, 0);
    if roomy.kept == Some(key) {
        roomy.kept = None;
    }
    roomy.spans -= 1;
    let span = chunks.remove_span(key);
    debug_assert_eq!(span.used, 0);
    chunks.give_run(Spot::new(key.chunk(), span.first_page as usize), span.class.span_pages());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Class> {
        (0..CLASSES as u8).map(Class)
    }

    #[test]
    fn each_size_at_its_boundaries() {
        let mut below = 0;
        for (index, class) in all().enumerate() {
            assert_eq!(class.index(), index);
            assert_eq!(Class::of(below + 1), class);
            assert_eq!(Class::of(class.slot_bytes()), class);
            assert!((class.slot_bytes() - (below + 1)) * 8 <= class.slot_bytes().max(64), "{class:?}");
            assert_eq!(class.slot_bytes() % 8, 0);
            below = class.slot_bytes();
        }
        assert_eq!(below, SMALL_BYTES_MAX);
        assert_eq!(Class::of(66).slot_bytes(), 72);
    }

    #[test]
    fn a_chunk_of_one_class_wastes_little() {
        for class in all() {
            let (pages, slots) = (class.span_pages(), class.span_slots());
            assert!((8..=BITS).contains(&slots), "{class:?}");
            let used = CHUNK_PAGES / pages * slots * class.slot_bytes();
            let waste = CHUNK_PAGES * PAGE_BYTES - used;
            println!(
                "{:5} bytes: {slots:3} slots in {pages:2} pages, {:.2} % waste",
                class.slot_bytes(),
                waste as f64 / (CHUNK_PAGES * PAGE_BYTES) as f64 * 100.0
            );
            assert!(waste * 50 <= CHUNK_PAGES * PAGE_BYTES, "{class:?} wastes more than 2 %");
        }
    }
}
