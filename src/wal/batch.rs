//! A buffer of records in memory that direct I/O accepts.

/// The alignment of memory, offsets and lengths for direct I/O (open(2), O_DIRECT); and the unit that a disk writes whole
/// or not at all.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes that begin at a multiple of [`BLOCK_BYTES`] in memory, and stay there until the buffer grows.
#[derive(Default)]
pub struct Batch {
    memory: Vec<u8>,
    start: usize,
}

impl Batch {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.memory.len() - self.start
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    /// The bytes, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }

    /// The number of bytes it can hold before it moves.
    pub fn capacity(&self) -> usize {
        self.memory.capacity().saturating_sub(self.start)
    }

    /// The memory that it takes, in bytes.
    pub const fn memory_bytes(&self) -> usize {
        self.memory.capacity()
    }

    /// Makes space for this number of further bytes. They may move in memory.
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

    /// Appends zeros up to this length.
    pub fn pad_to(&mut self, bytes: usize) {
        let more = bytes.saturating_sub(self.len());
        self.reserve(more);
        self.memory.resize(self.memory.len() + more, 0);
    }

    /// Removes all bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.memory.truncate(self.start);
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} bytes)", self.len())
    }
}
