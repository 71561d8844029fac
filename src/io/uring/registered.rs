//! Chunks of body memory that are registered with the kernel as buffers: their pages are locked once instead of for each
//! send.

use nix::errno::Errno;
use tracing::{debug, warn};

use super::ring::Ring;
use crate::server::BodyMemory;

/// Entries in the kernel's table of registered buffers. A chunk is 2 MiB, so at most 2 GiB are registered.
pub const REGISTERED_CHUNKS_MAX: u16 = 1024;

/// The registered chunks. A chunk stays registered until the process ends, so the first ones are taken up to the limit.
pub struct Registered {
    /// Sorted by address.
    chunks: Vec<Chunk>,
    bytes: u64,
    bytes_max: u64,
    /// There is no room for another chunk, or the kernel takes no more.
    is_full: bool,
}

struct Chunk {
    address: usize,
    bytes: usize,
    index: u16,
}

impl Registered {
    pub const fn new(bytes_max: u64) -> Self {
        Self { chunks: Vec::new(), bytes: 0, bytes_max, is_full: false }
    }

    /// The size of all registered memory.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The registered buffer that contains a piece of memory.
    pub fn find(&self, piece: &[u8]) -> Option<u16> {
        let address = piece.as_ptr().addr();
        let after = self.chunks.partition_point(|chunk| chunk.address <= address);
        let chunk = &self.chunks[after.checked_sub(1)?];
        let is_inside = address + piece.len() <= chunk.address + chunk.bytes;
        is_inside.then_some(chunk.index)
    }

    /// Registers the chunk that contains the byte at `address`, if there is room.
    pub fn add(&mut self, address: usize, bodies: &mut dyn BodyMemory, ring: &mut impl Ring) {
        if self.is_full {
            return;
        }
        let Some((chunk, memory)) = bodies.chunk_at(address) else { return };
        let bytes = memory.len();
        let has_room = self.chunks.len() < REGISTERED_CHUNKS_MAX as usize;
        if !has_room || self.bytes + bytes as u64 > self.bytes_max {
            self.is_full = true;
            return;
        }
        bodies.pin(chunk);
        let index = self.chunks.len() as u16;
        // SAFETY: a pinned chunk stays mapped, with its pages, until it is unpinned.
        #[allow(unsafe_code)]
        let result = unsafe { ring.register(index, memory) };
        match result {
            Ok(()) => {
                let address = memory.addr().get();
                let at = self.chunks.partition_point(|chunk| chunk.address < address);
                self.chunks.insert(at, Chunk { address, bytes, index });
                self.bytes += bytes as u64;
                debug!("{} bytes of job bodies are registered for zero-copy sends", self.bytes);
            }
            Err(errno) => {
                bodies.unpin(chunk);
                self.is_full = true;
                self.warn(errno);
            }
        }
    }

    fn warn(&self, errno: Errno) {
        let hint = if errno == Errno::ENOMEM {
            "; raise the limit of locked memory (ulimit -l), or lower --zero-copy-memory"
        } else {
            ""
        };
        warn!(
            "the kernel registers no more than {} bytes of job bodies for zero-copy sends: {}{hint}",
            self.bytes,
            errno.desc()
        );
    }
}
