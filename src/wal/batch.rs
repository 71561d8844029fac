//! Bytes on their way to a file, in memory that direct I/O accepts.

/// Where direct I/O wants memory, offsets and lengths to begin and end (open(2), O_DIRECT); and what a disk
/// writes whole or not at all.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes that begin at a multiple of [`BLOCK_BYTES`] in memory, and stay there until more are reserved.
#[derive(Default)]
pub struct Batch {
    memory: Vec<u8>,
    start: usize,
}

impl Batch {
    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        self.memory.len() - self.start
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    /// What is in it, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }

    /// How many bytes it can take before it moves.
    pub fn capacity(&self) -> usize {
        self.memory.capacity().saturating_sub(self.start)
    }

    /// The memory that it takes.
    pub const fn memory_bytes(&self) -> usize {
        self.memory.capacity()
    }

    /// Makes room for so many bytes more.
    pub fn reserve(&mut self, bytes: usize) {
        let needed = self.len() + bytes;
        if needed <= self.capacity() && self.memory.capacity() > 0 {
            return;
        }
        let wanted = needed.next_multiple_of(BLOCK_BYTES).max(2 * self.len());
        let mut memory: Vec<u8> = Vec::with_capacity(wanted + BLOCK_BYTES);
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        assert!(start <= BLOCK_BYTES, "bytes can be aligned");
        memory.resize(start, 0);
        memory.extend_from_slice(self.bytes());
        *self = Self { memory, start };
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.memory.extend_from_slice(bytes);
    }

    /// Appends zeros up to this length, if it is shorter.
    pub fn pad_to(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.len());
        self.reserve(more);
        self.memory.resize(self.memory.len() + more, 0);
    }

    /// Empties it, and keeps its memory for the next.
    pub fn clear(&mut self) {
        self.memory.truncate(self.start);
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} bytes)", self.len())
    }
}
