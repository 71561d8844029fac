//! Chunks of body memory that are registered with the kernel as buffers: their pages are locked once instead of for each
//! send.

use std::mem;
use std::ptr::NonNull;

use nix::errno::Errno;
use tracing::{debug, warn};

use super::ring::{Registration, Ring, RingNumber};
use crate::bodies::{Bodies, ChunkId};
use crate::values::limits::IO_THREADS_MAX;

/// Entries in the kernel's table of registered buffers. A chunk is 2 MiB, so at most 2 GiB are registered.
pub const REGISTERED_CHUNKS_MAX: u16 = 1024;

/// The registered chunks. A chunk stays registered until the process ends, so the first ones are taken up to the limit. It may be
/// registered with several rings, under the same number, and counts for each.
pub struct Registered {
    /// Sorted by address.
    chunks: Vec<Chunk>,
    /// Chunks so far.
    count: u16,
    bytes: u64,
    bytes_max: u64,
    /// Rings for which there is no room, or with which the kernel registers no more.
    full: Rings,
    /// One ring's refusal is logged: those of the others say the same.
    has_warned: bool,
}

struct Chunk {
    id: ChunkId,
    address: usize,
    bytes: usize,
    number: u16,
    /// With which rings it is registered.
    rings: Rings,
    /// With which rings it is about to be.
    pending: Rings,
}

/// A set of rings.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Rings(u64);

const _: () = assert!(IO_THREADS_MAX < u64::BITS);

impl Rings {
    const fn has(self, ring: RingNumber) -> bool {
        self.0 >> ring & 1 == 1
    }

    const fn add(&mut self, ring: RingNumber) {
        self.0 |= 1 << ring;
    }

    const fn remove(&mut self, ring: RingNumber) {
        self.0 &= !(1 << ring);
    }
}

impl Chunk {
    fn new(id: ChunkId, memory: NonNull<[u8]>, number: u16) -> Self {
        let (address, bytes) = (memory.addr().get(), memory.len());
        Self { id, address, bytes, number, rings: Rings::default(), pending: Rings::default() }
    }
}

impl Registered {
    pub fn new(bytes_max: u64) -> Self {
        Self { chunks: Vec::new(), count: 0, bytes: 0, bytes_max, full: Rings::default(), has_warned: false }
    }

    /// The size of all registered memory, with what is about to be.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The buffer that contains a piece of memory, if it is registered with this ring.
    pub fn find(&self, ring: RingNumber, piece: &[u8]) -> Option<u16> {
        let address = piece.as_ptr().addr();
        let after = self.chunks.partition_point(|chunk| chunk.address <= address);
        let chunk = &self.chunks[after.checked_sub(1)?];
        let is_inside = address + piece.len() <= chunk.address + chunk.bytes;
        (is_inside && chunk.rings.has(ring)).then_some(chunk.number)
    }

    /// Registers the chunk that contains the byte at `address` with a ring, if there is room.
    pub fn add(&mut self, address: usize, ring: RingNumber, bodies: &mut Bodies, kernel: &mut impl Ring) {
        if self.full.has(ring) {
            return;
        }
        let Some(id) = bodies.chunk_at(address) else { return };
        let memory = bodies.chunk(id);
        let begin = memory.addr().get();
        let at = self.chunks.partition_point(|chunk| chunk.address < begin);
        let known = self.chunks.get(at).filter(|chunk| chunk.address == begin);
        if known.is_some_and(|chunk| chunk.rings.has(ring) || chunk.pending.has(ring)) {
            return;
        }
        let number = known.map_or(self.count, |chunk| chunk.number);
        let (is_new, bytes) = (known.is_none(), memory.len() as u64);
        if number == REGISTERED_CHUNKS_MAX || self.bytes + bytes > self.bytes_max {
            return self.full.add(ring);
        }
        if is_new {
            bodies.hold_chunk(id);
        }
        // SAFETY: a held chunk stays mapped, with its pages, until it is released.
        #[allow(unsafe_code)]
        let result = unsafe { kernel.register(ring, number, memory) };
        if is_new && result == Ok(Registration::Busy) {
            bodies.release_chunk(id);
        }
        if result == Ok(Registration::Busy) {
            return;
        }
        if is_new {
            self.chunks.insert(at, Chunk::new(id, memory, number));
            self.count += 1;
        }
        self.chunks[at].pending.add(ring);
        self.bytes += bytes;
        match result {
            Ok(Registration::Done) => self.complete(ring, number, Ok(()), bodies),
            Err(errno) => self.complete(ring, number, Err(errno), bodies),
            Ok(_) => {}
        }
    }

    /// Processes the result of a registration with a ring.
    pub fn complete(
        &mut self,
        ring: RingNumber,
        number: u16,
        result: Result<(), Errno>,
        bodies: &mut Bodies,
    ) {
        let at = self.chunks.iter().position(|chunk| chunk.number == number);
        let at = at.expect("a chunk that is about to be registered is known");
        let chunk = &mut self.chunks[at];
        chunk.pending.remove(ring);
        match result {
            Ok(()) => {
                chunk.rings.add(ring);
                debug!("{} bytes of job bodies are registered for zero-copy sends", self.bytes);
            }
            Err(errno) => {
                self.bytes -= chunk.bytes as u64;
                self.full.add(ring);
                self.remove_unused(at, bodies);
                self.warn(errno);
            }
        }
    }

    /// Unpins a chunk that is registered with no ring.
    fn remove_unused(&mut self, at: usize, bodies: &mut Bodies) {
        let chunk = &self.chunks[at];
        if chunk.rings == Rings::default() && chunk.pending == Rings::default() {
            bodies.release_chunk(chunk.id);
            self.chunks.remove(at);
        }
    }

    fn warn(&mut self, errno: Errno) {
        if mem::replace(&mut self.has_warned, true) {
            return;
        }
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
