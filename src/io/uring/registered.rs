//! Chunks of body memory that are registered with the kernel as buffers: their pages are locked once instead of for each
//! send.

use nix::errno::Errno;
use tracing::{debug, warn};

use super::ring::Ring;
use crate::bodies::Bodies;

/// Entries in the kernel's table of registered buffers. A chunk is 2 MiB, so at most 2 GiB are registered.
pub const REGISTERED_CHUNKS_MAX: u16 = 1024;

/// The registered chunks. A chunk stays registered until the process ends, so the first ones are taken up to the limit.
pub struct Registered {
    /// Sorted by address.
    chunks: Vec<Chunk>,
    bytes: u64,
    bytes_max: u64,
    /// There is no room, or the kernel registers no more.
    is_full: bool,
}

struct Chunk {
    address: usize,
    bytes: usize,
    number: u16,
}

impl Registered {
    pub const fn new(bytes_max: u64) -> Self {
        Self { chunks: Vec::new(), bytes: 0, bytes_max, is_full: false }
    }

    /// The size of all registered memory.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The buffer that contains a piece of memory, if it is registered.
    pub fn find(&self, piece: &[u8]) -> Option<u16> {
        let address = piece.as_ptr().addr();
        let after = self.chunks.partition_point(|chunk| chunk.address <= address);
        let chunk = &self.chunks[after.checked_sub(1)?];
        (address + piece.len() <= chunk.address + chunk.bytes).then_some(chunk.number)
    }

    /// Registers the chunk that contains the byte at `address`, if there is room.
    pub fn add(&mut self, address: usize, bodies: &mut Bodies, kernel: &mut impl Ring) {
        if self.is_full {
            return;
        }
        let Some(id) = bodies.chunk_at(address) else { return };
        let memory = bodies.chunk(id);
        let (address, bytes) = (memory.addr().get(), memory.len());
        let Err(at) = self.chunks.binary_search_by_key(&address, |chunk| chunk.address) else { return };
        let number = self.chunks.len() as u16;
        if number == REGISTERED_CHUNKS_MAX || self.bytes + bytes as u64 > self.bytes_max {
            self.is_full = true;
            return;
        }
        bodies.hold_chunk(id);
        // SAFETY: a held chunk stays mapped, with its pages, until it is released.
        #[allow(unsafe_code)]
        let result = unsafe { kernel.register(number, memory) };
        match result {
            Ok(()) => {
                self.chunks.insert(at, Chunk { address, bytes, number });
                self.bytes += bytes as u64;
                debug!("{} bytes of job bodies are registered for zero-copy sends", self.bytes);
            }
            Err(errno) => {
                bodies.release_chunk(id);
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
