//! The memory of job bodies.
//!
//! | body with its CR LF | where it lies                                  | waste                              |
//! |---------------------|------------------------------------------------|------------------------------------|
//! | to 8 KiB            | a slot of one of 64 sizes, in a span of slots  | to 128 bytes: 7 bytes; above: 12 % |
//! | to 256 KiB          | a run of 4 KiB pages                           | under a page                       |
//! | above               | a mapping of its own                           | under a page                       |
//!
//! Spans and runs lie in chunks of 2 MiB, which are what an io_uring can have as registered buffers. A
//! chunk of nothing but spans of one size leaves at most 2 % of itself unused.
//!
//! Memory grows with bytes written, not with bytes allocated: no page is touched before a body is written
//! to it. What is freed is kept for reuse within bounds, and beyond them goes back to the kernel in
//! [`Bodies::reclaim`], never in [`Bodies::free`], which is why freeing a gigabyte takes no time.
//!
//! A small body is copied by whoever needs it for longer. A large one is pinned: it then outlives its job
//! until the last send or log write that reads it has ended.

mod bits;
mod chunks;
mod classes;
mod list;
mod mappings;
mod memory;
mod readers;
mod runs;
mod small;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroU32;
use std::ptr::NonNull;

use crate::limits::JOB_BYTES_MAX;
use chunks::{CHUNK_BYTES, Chunks, PAGE_BYTES, Page, Spot};
use classes::Class;
use mappings::Mappings;
use readers::Readers;
use small::Small;

/// A body with its CR LF up to this many bytes is small: it cannot be pinned, copying it is cheap.
pub const SMALL_BYTES_MAX: usize = 8 * 1024;

/// Above this many bytes a body has a mapping of its own. An eighth of a chunk: what runs leave unused at
/// the end of a chunk stays below that.
const RUN_BYTES_MAX: usize = 256 * 1024;

/// The largest body with its CR LF.
const BODY_BYTES_MAX: u32 = JOB_BYTES_MAX + 2;

const _: () = assert!(SMALL_BYTES_MAX < RUN_BYTES_MAX && RUN_BYTES_MAX <= CHUNK_BYTES);
const _: () = assert!(size_of::<Slot>() == 12 && align_of::<Slot>() == 4);
const _: () = assert!(size_of::<Option<Slot>>() == 12);

/// The memory of one body. Belongs to the [`Bodies`] that allocated it, and is lost to it unless it comes
/// back through [`Bodies::free`].
#[must_use = "a slot that is dropped is never freed"]
#[derive(PartialEq, Eq, Debug)]
pub struct Slot(Place);

impl Slot {
    /// The bytes asked for.
    #[expect(clippy::len_without_is_empty, reason = "a body has at least its CR LF")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// A large body that someone reads who does not own it. Must come back through [`Bodies::unpin`].
#[must_use = "a body stays in memory until its last pin is given back"]
#[derive(PartialEq, Eq, Debug)]
pub struct PinnedBody(Place);

impl PinnedBody {
    /// The bytes of the body with its CR LF.
    #[expect(clippy::len_without_is_empty, reason = "a body has at least its CR LF")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Number of a chunk, from 0 and dense: used again, the lowest first, when the chunk is unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkId(pub u32);

/// The kernel has no memory, or no address space, for a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory for job bodies")
    }
}

impl std::error::Error for OutOfMemory {}

/// How much there is. A body that has been freed but is still pinned counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bodies.
    pub slots: usize,
    /// Their bytes as they were asked for.
    pub asked_bytes: usize,
    /// Their bytes rounded up to what they take.
    pub slot_bytes: usize,
    /// Address space held from the kernel, with or without memory behind it.
    pub mapped_bytes: usize,
}

/// The arena of job bodies. See the [module](self).
pub struct Bodies {
    chunks: Chunks,
    small: Small,
    mappings: Mappings,
    slots: usize,
    asked_bytes: usize,
    slot_bytes: usize,
}

impl Default for Bodies {
    fn default() -> Self {
        Self::new()
    }
}

impl Bodies {
    /// An arena that has mapped nothing yet.
    pub fn new() -> Self {
        Self {
            chunks: Chunks::new(),
            small: Small::new(),
            mappings: Mappings::new(),
            slots: 0,
            asked_bytes: 0,
            slot_bytes: 0,
        }
    }

    /// Memory for a body of `bytes` bytes with its CR LF, 1 to 2^30 + 2. Its contents are whatever they
    /// were, another client's body perhaps: write all of it before anyone may read it.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel refuses to map more.
    pub fn allocate(&mut self, bytes: u32) -> Result<Slot, OutOfMemory> {
        let slot = self.announce(bytes)?;
        self.wrote(&slot, slot.len());
        Ok(slot)
    }

    /// The same for a body that is still to come: a large one counts as memory only as far as
    /// [`Bodies::wrote`] says.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel refuses to map more.
    pub fn announce(&mut self, bytes: u32) -> Result<Slot, OutOfMemory> {
        assert!(bytes <= BODY_BYTES_MAX, "the protocol bounds a body");
        let len = NonZeroU32::new(bytes).expect("a body has at least its CR LF");
        let bytes = bytes as usize;
        let (home, offset) = match Kind::of(bytes) {
            Kind::Small => self.small.allocate(&mut self.chunks, bytes)?,
            Kind::Run => self.take_run(bytes)?,
            Kind::Mapping => (self.mappings.allocate(bytes)?, 0),
        };
        self.slots += 1;
        self.asked_bytes += bytes;
        self.slot_bytes += rounded_bytes(bytes);
        Ok(Slot(Place { home: home as u32, offset: offset as u32, len }))
    }

    /// The first `bytes` bytes of the body, all of it at most, have been written. Returns by how much that has
    /// raised [`Bodies::resident_bytes`].
    pub fn wrote(&mut self, slot: &Slot, bytes: usize) -> usize {
        let place = slot.0;
        debug_assert!(bytes <= place.len());
        match place.kind() {
            Kind::Small => 0,
            Kind::Run => self.chunks.warm(place.spot(), bytes.div_ceil(PAGE_BYTES)) * PAGE_BYTES,
            Kind::Mapping => self.mappings.warm(place.home as usize, bytes),
        }
    }

    /// Gives the memory of a body back, in O(1); if the body is pinned, its last unpin does.
    pub fn free(&mut self, slot: Slot) {
        let place = slot.0;
        let last = match place.kind() {
            Kind::Small => {
                let (chunk, offset) = (place.home as usize, place.offset as usize);
                self.small.free(&mut self.chunks, chunk, offset, place.len());
                self.uncount(place.len());
                return;
            }
            Kind::Run | Kind::Mapping => self.readers_mut(&place).free(),
        };
        if last {
            self.give(place);
        }
    }

    /// Keeps a large body in memory, at its address, also after its slot is freed. None for a small one:
    /// copy that.
    pub fn pin(&mut self, slot: &Slot) -> Option<PinnedBody> {
        let place = slot.0;
        if place.kind() == Kind::Small {
            return None;
        }
        self.readers_mut(&place).pin();
        Some(PinnedBody(place))
    }

    /// Ends what [`Bodies::pin`] began.
    pub fn unpin(&mut self, pin: PinnedBody) {
        if self.readers_mut(&pin.0).unpin() {
            self.give(pin.0);
        }
    }

    /// Gives a bounded piece of the freed memory that is not worth keeping back to the kernel, in some
    /// 300 us at most, and returns whether there is more. To be called while it says so, between other
    /// work.
    pub fn reclaim(&mut self) -> bool {
        let more_mappings = self.mappings.reclaim();
        if self.chunks.is_beyond_spare() {
            self.small.give_empty_spans(&mut self.chunks);
        }
        let more_chunks = self.chunks.sweep();
        more_mappings || more_chunks
    }

    /// Has the next [`Bodies::reclaim`] give back this much of what is kept for reuse, for what cannot reuse it.
    pub fn want(&mut self, bytes: usize) {
        self.chunks.want(bytes);
    }

    /// Keeps no more than this much memory for reuse.
    pub fn keep_at_most(&mut self, bytes: usize) {
        self.chunks.keep_at_most(bytes);
    }

    /// The body, to be written. Must not be called while it is pinned.
    pub fn bytes_mut(&mut self, slot: &mut Slot) -> &mut [u8] {
        let place = slot.0;
        let kind = place.kind();
        assert!(kind == Kind::Small || !self.readers_mut(&place).is_pinned(), "a pinned body stays as it is");
        let memory = match kind {
            Kind::Mapping => self.mappings.memory_mut(place.home as usize),
            Kind::Small | Kind::Run => self.chunks.memory_mut(place.home as usize),
        };
        memory.bytes_mut(place.offset as usize, place.len())
    }

    /// The body with its CR LF. Its address stays the same until the slot is freed.
    pub fn bytes(&self, slot: &Slot) -> &[u8] {
        self.read(&slot.0)
    }

    /// The body with its CR LF. Its address stays the same until the last unpin.
    pub fn pinned_bytes(&self, pin: &PinnedBody) -> &[u8] {
        self.read(&pin.0)
    }

    /// How much there is.
    pub fn usage(&self) -> Usage {
        Usage {
            slots: self.slots,
            asked_bytes: self.asked_bytes,
            slot_bytes: self.slot_bytes,
            mapped_bytes: self.chunks.mapped_bytes() + self.mappings.mapped_bytes(),
        }
    }

    /// Memory that the kernel has given for bodies, in use or kept for reuse, and what the arena needs to find
    /// it. Of an announced body, what has been written.
    pub fn resident_bytes(&self) -> usize {
        self.chunks.resident_bytes() + self.mappings.resident_bytes()
    }

    /// The part of that which is kept for reuse, or on its way back to the kernel.
    pub fn idle_bytes(&self) -> usize {
        self.chunks.idle_bytes() + self.mappings.idle_bytes()
    }

    /// What allocating a body of `bytes` bytes would add to [`Bodies::resident_bytes`]: nothing, where there is
    /// room for it in memory that is kept.
    pub fn growth(&self, bytes: u32) -> usize {
        let bytes = bytes as usize;
        match Kind::of(bytes) {
            Kind::Small => self.small.growth(&self.chunks, bytes),
            Kind::Run => self.chunks.growth(bytes.div_ceil(PAGE_BYTES)),
            Kind::Mapping => mappings::mapped_bytes(bytes),
        }
    }

    /// The chunk, of 2 MiB, that an address lies in; None for one in a mapping of its own, or elsewhere. It
    /// may be unmapped by any [`Bodies::reclaim`] unless it is held.
    pub fn chunk_at(&self, address: usize) -> Option<ChunkId> {
        self.chunks.at(address).map(ChunkId)
    }

    /// The memory of a chunk.
    ///
    /// # Panics
    /// If it is not mapped.
    pub fn chunk(&self, chunk: ChunkId) -> NonNull<[u8]> {
        self.chunks.memory(chunk.0 as usize).as_ptr()
    }

    /// Keeps a chunk mapped, with the pages that it has, until [`Bodies::release_chunk`]. To be called
    /// before the kernel is given its address for good (a registered buffer): it pins the pages that it
    /// finds there, and would go on using them when ours have been given back and replaced.
    ///
    /// # Panics
    /// If the chunk is not mapped or already held.
    pub fn hold_chunk(&mut self, chunk: ChunkId) {
        self.chunks.hold(chunk.0 as usize);
    }

    /// Ends what [`Bodies::hold_chunk`] began. To be called after the kernel has let go of the chunk.
    ///
    /// # Panics
    /// If the chunk is not held.
    pub fn release_chunk(&mut self, chunk: ChunkId) {
        self.chunks.release(chunk.0 as usize);
    }

    /// Recomputes every count, list and mark. For tests: costs O(chunks) and more.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        self.chunks.check();
        let (small_slots, small_bytes) = self.small.check(&self.chunks);
        let (mappings, mapping_bytes) = self.mappings.check();
        let (runs, run_pages) = self.chunks.check_runs();
        assert_eq!(small_slots + runs + mappings, self.slots);
        assert_eq!(small_bytes + run_pages * PAGE_BYTES + mapping_bytes, self.slot_bytes);
        assert!(self.slots <= self.asked_bytes && self.asked_bytes <= self.slot_bytes);
        assert!(self.slot_bytes <= self.usage().mapped_bytes);
    }

    fn take_run(&mut self, bytes: usize) -> Result<(usize, usize), OutOfMemory> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let first = self.chunks.take_run(pages)?;
        *self.chunks.page_mut(first) = Page::Large { pages: pages as u16, readers: Readers::OWNER };
        Ok((first.chunk(), first.index() * PAGE_BYTES))
    }

    /// Gives the memory of a large body back that has no readers any more.
    fn give(&mut self, place: Place) {
        match place.kind() {
            Kind::Small => unreachable!("a small body has no readers"),
            Kind::Run => self.chunks.give_run(place.spot(), place.len().div_ceil(PAGE_BYTES)),
            Kind::Mapping => self.mappings.give(place.home as usize),
        }
        self.uncount(place.len());
    }

    fn uncount(&mut self, bytes: usize) {
        self.slots -= 1;
        self.asked_bytes -= bytes;
        self.slot_bytes -= rounded_bytes(bytes);
    }

    fn readers_mut(&mut self, place: &Place) -> &mut Readers {
        if place.kind() == Kind::Mapping {
            return self.mappings.readers_mut(place.home as usize);
        }
        let Page::Large { readers, .. } = self.chunks.page_mut(place.spot()) else {
            panic!("{place:?} is no large body")
        };
        readers
    }

    fn read(&self, place: &Place) -> &[u8] {
        let memory = match place.kind() {
            Kind::Mapping => self.mappings.memory(place.home as usize),
            Kind::Small | Kind::Run => self.chunks.memory(place.home as usize),
        };
        memory.bytes(place.offset as usize, place.len())
    }
}

/// Where a body lies: its length says in which kind of home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// A chunk's number, or the key of a mapping.
    home: u32,
    offset: u32,
    len: NonZeroU32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Small,
    Run,
    Mapping,
}

impl Kind {
    fn of(bytes: usize) -> Self {
        if bytes <= SMALL_BYTES_MAX {
            Self::Small
        } else if bytes <= RUN_BYTES_MAX {
            Self::Run
        } else {
            Self::Mapping
        }
    }
}

impl Place {
    fn len(&self) -> usize {
        self.len.get() as usize
    }

    fn kind(&self) -> Kind {
        Kind::of(self.len())
    }

    /// The page in a chunk that it begins in.
    fn spot(&self) -> Spot {
        Spot::new(self.home as usize, self.offset as usize / PAGE_BYTES)
    }
}

/// What a body takes.
fn rounded_bytes(bytes: usize) -> usize {
    match Kind::of(bytes) {
        Kind::Small => Class::of(bytes).slot_bytes(),
        Kind::Run => bytes.next_multiple_of(PAGE_BYTES),
        Kind::Mapping => mappings::mapped_bytes(bytes),
    }
}
