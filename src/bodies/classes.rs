//! The sizes that small bodies are rounded up to, and the spans that hold them.

use super::SMALL_BYTES_MAX;
use super::bits::BITS;
use super::chunk_table::{CHUNK_PAGES, PAGE_BYTES};

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
const _: () = assert!(size_of::<super::small::Span>() + 8 <= SPAN_META_BYTES);

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
