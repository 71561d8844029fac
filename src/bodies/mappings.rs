//! Very large bodies: a mapping each. Unmapping a gigabyte takes the kernel tens of milliseconds, so what
//! is freed is queued and goes back in pieces.

use std::collections::VecDeque;

use slab::Slab;

use super::OutOfMemory;
use super::chunks::{CALL_PAGES, PAGE_BYTES};
use super::memory::Mapping;
use super::readers::Readers;

/// One piece: 1024 pages of 4 KiB, at 100 to 150 ns each.
const PIECE_BYTES: usize = 4 * 1024 * 1024;

/// What a call into the kernel costs at least, in bytes given back.
const CALL_BYTES: usize = CALL_PAGES * PAGE_BYTES;

/// The mappings in use, and those to be given back. Where they do not lie side by side the kernel bounds
/// their number (`max_map_count`, 65,530); a table of so many is 2.6 MB.
pub struct Mappings {
    used: Slab<Body>,
    freed: VecDeque<Freed>,
    bytes: usize,
}

struct Body {
    memory: Mapping,
    readers: Readers,
}

struct Freed {
    memory: Mapping,
    /// From here on the memory has been given back.
    warm_bytes: usize,
}

impl Mappings {
    pub fn new() -> Self {
        Self { used: Slab::new(), freed: VecDeque::new(), bytes: 0 }
    }

    /// A mapping for `bytes` bytes.
    pub fn allocate(&mut self, bytes: usize) -> Result<usize, OutOfMemory> {
        let memory = Mapping::new(mapped_bytes(bytes))?;
        memory.refuse_huge_pages();
        self.bytes += memory.len();
        Ok(self.used.insert(Body { memory, readers: Readers::OWNER }))
    }

    /// Queues a mapping that nobody reads any more.
    pub fn give(&mut self, key: usize) {
        let Body { memory, .. } = self.used.remove(key);
        let warm_bytes = memory.len();
        self.freed.push_back(Freed { memory, warm_bytes });
    }

    /// Gives one piece back, and says whether there is more.
    pub fn reclaim(&mut self) -> bool {
        let mut budget_bytes = PIECE_BYTES;
        while budget_bytes > 0
            && let Some(Freed { memory, warm_bytes }) = self.freed.front_mut()
        {
            if *warm_bytes > budget_bytes {
                let start = *warm_bytes - budget_bytes;
                memory.discard(start..*warm_bytes);
                *warm_bytes = start;
                return true;
            }
            budget_bytes = budget_bytes.saturating_sub((*warm_bytes).max(CALL_BYTES));
            let Freed { memory, warm_bytes } = self.freed.pop_front().expect("there is a first");
            let bytes = memory.len();
            if let Err(mut memory) = memory.unmap() {
                // It keeps its addresses for now, not its memory. Asking again at once would not help.
                memory.discard(0..warm_bytes);
                self.freed.push_back(Freed { memory, warm_bytes: 0 });
                return false;
            }
            self.bytes -= bytes;
        }
        !self.freed.is_empty()
    }

    pub fn readers_mut(&mut self, key: usize) -> &mut Readers {
        &mut self.used[key].readers
    }

    pub fn memory(&self, key: usize) -> &Mapping {
        &self.used[key].memory
    }

    pub fn memory_mut(&mut self, key: usize) -> &mut Mapping {
        &mut self.used[key].memory
    }

    /// Of mappings in use and of those to be given back.
    pub fn mapped_bytes(&self) -> usize {
        self.bytes
    }

    /// Recomputes everything, and returns the mappings in use and their bytes.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) -> (usize, usize) {
        let used_bytes = self.used.iter().map(|(_, body)| body.memory.len()).sum();
        let freed_bytes: usize = self.freed.iter().map(|freed| freed.memory.len()).sum();
        assert_eq!(used_bytes + freed_bytes, self.bytes);
        assert!(self.freed.iter().all(|freed| freed.warm_bytes <= freed.memory.len()));
        self.used.iter().for_each(|(_, body)| body.readers.check());
        (self.used.len(), used_bytes)
    }
}

/// What the mapping of a body takes of the address space.
pub fn mapped_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}
