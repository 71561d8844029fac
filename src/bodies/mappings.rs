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
    /// What may have memory behind it: of all of them, and of those to be given back.
    warm_bytes: usize,
    idle_bytes: usize,
}

struct Body {
    memory: Mapping,
    readers: Readers,
    /// From here on nothing has been written.
    warm_bytes: usize,
}

struct Freed {
    memory: Mapping,
    /// From here on the memory has been given back.
    warm_bytes: usize,
}

impl Mappings {
    pub fn new() -> Self {
        Self { used: Slab::new(), freed: VecDeque::new(), bytes: 0, warm_bytes: 0, idle_bytes: 0 }
    }

    /// A mapping for `bytes` bytes. It counts as memory from [`Mappings::warm`] on.
    pub fn allocate(&mut self, bytes: usize) -> Result<usize, OutOfMemory> {
        let memory = Mapping::new(mapped_bytes(bytes))?;
        memory.refuse_huge_pages();
        self.bytes += memory.len();
        Ok(self.used.insert(Body { memory, readers: Readers::OWNER, warm_bytes: 0 }))
    }

    /// The first `bytes` bytes of a mapping have memory behind them. Returns how much that is more than before.
    pub fn warm(&mut self, key: usize, bytes: usize) -> usize {
        let body = &mut self.used[key];
        let warm_bytes = mapped_bytes(bytes).max(body.warm_bytes);
        let more = warm_bytes - std::mem::replace(&mut body.warm_bytes, warm_bytes);
        self.warm_bytes += more;
        more
    }

    /// Memory that is to be given back.
    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Memory behind the mappings, and what is known of them.
    pub fn resident_bytes(&self) -> usize {
        let table_bytes = self.used.capacity() * (size_of::<Body>() + size_of::<usize>());
        self.warm_bytes + table_bytes + self.freed.capacity() * size_of::<Freed>()
    }

    /// Queues a mapping that nobody reads any more.
    pub fn give(&mut self, key: usize) {
        let Body { memory, warm_bytes, .. } = self.used.remove(key);
        self.idle_bytes += warm_bytes;
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
                self.warm_bytes -= budget_bytes;
                self.idle_bytes -= budget_bytes;
                return true;
            }
            budget_bytes = budget_bytes.saturating_sub((*warm_bytes).max(CALL_BYTES));
            let Freed { memory, warm_bytes } = self.freed.pop_front().expect("there is a first");
            let bytes = memory.len();
            self.warm_bytes -= warm_bytes;
            self.idle_bytes -= warm_bytes;
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
        let used_warm: usize = self.used.iter().map(|(_, body)| body.warm_bytes).sum();
        let freed_warm: usize = self.freed.iter().map(|freed| freed.warm_bytes).sum();
        assert_eq!((used_warm + freed_warm, freed_warm), (self.warm_bytes, self.idle_bytes));
        assert!(self.freed.iter().all(|freed| freed.warm_bytes <= freed.memory.len()));
        self.used.iter().for_each(|(_, body)| body.readers.check());
        (self.used.len(), used_bytes)
    }
}

/// What the mapping of a body takes of the address space.
pub fn mapped_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}
