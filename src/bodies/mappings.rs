//! Very large bodies, each in a mapping of its own. The kernel takes tens of milliseconds to unmap a gigabyte, so freed
//! mappings are queued and returned in pieces.

use std::collections::VecDeque;

use slab::Slab;

use super::OutOfMemory;
use super::chunk_table::{PAGE_BYTES, Readers};
use super::chunks::CALL_PAGES;
use super::memory::Mapping;

/// The size of one piece: 1024 pages of 4 KiB, at 100 to 150 ns each.
const PIECE_BYTES: usize = 4 * 1024 * 1024;

/// The least cost of a system call, in bytes returned.
const CALL_BYTES: usize = CALL_PAGES * PAGE_BYTES;

/// The mappings in use and those to be returned. The kernel limits the number of mappings that are not adjacent
/// (`max_map_count`, 65,530). A table of that many is 2.6 MB.
pub struct Mappings {
    used: Slab<Body>,
    freed: VecDeque<Freed>,
    bytes: usize,
    /// Bytes that may have memory behind them: of all mappings, and of those to be returned.
    warm_bytes: usize,
    idle_bytes: usize,
}

struct Body {
    memory: Mapping,
    readers: Readers,
    /// Nothing is written from here on.
    warm_bytes: usize,
}

struct Freed {
    memory: Mapping,
    /// The memory from here on is returned.
    warm_bytes: usize,
}

impl Mappings {
    pub fn new() -> Self {
        Self { used: Slab::new(), freed: VecDeque::new(), bytes: 0, warm_bytes: 0, idle_bytes: 0 }
    }

    /// Maps `bytes` bytes. They count as memory after [`Mappings::warm`].
    pub fn allocate(&mut self, bytes: usize) -> Result<usize, OutOfMemory> {
        let mut memory = Mapping::new(mapped_bytes(bytes))?;
        memory.refuse_huge_pages();
        self.bytes += memory.len();
        Ok(self.used.insert(Body { memory, readers: Readers::OWNER, warm_bytes: 0 }))
    }

    /// Counts the first `bytes` bytes of a mapping as memory. Returns by how much the memory grew.
    pub fn warm(&mut self, key: usize, bytes: usize) -> usize {
        let body = &mut self.used[key];
        let warm_bytes = mapped_bytes(bytes).max(body.warm_bytes);
        let more = warm_bytes - std::mem::replace(&mut body.warm_bytes, warm_bytes);
        self.warm_bytes += more;
        more
    }

    /// Memory to be returned.
    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// The memory of the mappings, with their tables.
    pub fn resident_bytes(&self) -> usize {
        let table_bytes = self.used.capacity() * (size_of::<Body>() + size_of::<usize>());
        self.warm_bytes + table_bytes + self.freed.capacity() * size_of::<Freed>()
    }

    /// Queues a mapping without readers.
    pub fn give(&mut self, key: usize) {
        let Body { memory, warm_bytes, .. } = self.used.remove(key);
        self.idle_bytes += warm_bytes;
        self.freed.push_back(Freed { memory, warm_bytes });
    }

    /// Returns one piece to the kernel. Returns true if there is more.
    pub fn reclaim(&mut self) -> bool {
        // Most event-loop iterations end here, without a call.
        !self.freed.is_empty() && self.reclaim_bytes(PIECE_BYTES)
    }

    /// Returns up to this much, and no more than a piece, to the kernel. Returns true if there is more.
    pub fn reclaim_bytes(&mut self, bytes: usize) -> bool {
        let mut budget_bytes = bytes.next_multiple_of(PAGE_BYTES).min(PIECE_BYTES);
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
            let Freed { memory, warm_bytes } = self.freed.pop_front().expect("the queue is not empty");
            let bytes = memory.len();
            self.warm_bytes -= warm_bytes;
            self.idle_bytes -= warm_bytes;
            if let Err(mut memory) = memory.unmap() {
                // Its memory is returned, its addresses are not yet. Another try at once would not help.
                memory.discard(0..warm_bytes);
                self.freed.push_back(Freed { memory, warm_bytes: 0 });
                return false;
            }
            self.bytes -= bytes;
        }
        !self.freed.is_empty()
    }

    pub fn readers(&self, key: usize) -> &Readers {
        &self.used[key].readers
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

    /// The address space of all mappings, in use or to be returned.
    pub fn mapped_bytes(&self) -> usize {
        self.bytes
    }

    /// Recomputes everything. Returns the number of mappings in use and their bytes.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) -> (usize, usize, usize) {
        let used_bytes = self.used.iter().map(|(_, body)| body.memory.len()).sum();
        let freed_bytes: usize = self.freed.iter().map(|freed| freed.memory.len()).sum();
        assert_eq!(used_bytes + freed_bytes, self.bytes);
        let used_warm: usize = self.used.iter().map(|(_, body)| body.warm_bytes).sum();
        let freed_warm: usize = self.freed.iter().map(|freed| freed.warm_bytes).sum();
        assert_eq!((used_warm + freed_warm, freed_warm), (self.warm_bytes, self.idle_bytes));
        assert!(self.freed.iter().all(|freed| freed.warm_bytes <= freed.memory.len()));
        self.used.iter().for_each(|(_, body)| body.readers.check());
        let ended = self.used.iter().filter(|(_, body)| body.readers.is_freed());
        let ended_bytes = ended.map(|(_, body)| body.memory.len()).sum();
        (self.used.len(), used_bytes, ended_bytes)
    }
}

/// The address space of a body of this size.
pub fn mapped_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}
