//! The memory of job bodies.
//!
//! | body with its CR LF | place                                          | waste at most                      |
//! |---------------------|------------------------------------------------|------------------------------------|
//! | up to 8 KiB         | a slot of one of 64 sizes, in a span of slots  | up to 128 bytes: 7 bytes, else 12 % |
//! | up to 256 KiB       | a run of 4 KiB pages                           | less than a page                   |
//! | larger              | a mapping of its own                           | less than a page                   |
//!
//! Spans and runs lie in chunks of 2 MiB, which an io_uring can have as registered buffers. A chunk that has only spans of
//! one size leaves at most 2 % of itself unused.
//!
//! Memory grows with bytes written, not with bytes allocated: no page is touched before a body is written to it, with two
//! exceptions. When all spans of a size are full, the next one gets its memory in one call, at most 64 KiB. A larger body gets
//! what its next receive may fill in one call too, in proportion to what has arrived. Freed memory is kept for reuse up to a
//! bound. [`Bodies::reclaim`] returns the rest to the kernel in pieces. [`Bodies::free`] never does,
//! so freeing a gigabyte takes no time.
//!
//! A reader that outlives the job copies a small body and pins a large one. A pinned body stays in memory until the last
//! send or log write that reads it has ended.

mod chunk_table;
mod chunks;
mod mappings;
mod memory;
mod small;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::ptr::NonNull;

use crate::values::limits::JOB_BYTES_MAX;
use chunk_table::{CHUNK_BYTES, PAGE_BYTES, PageState, Readers, Spot};
use chunks::Chunks;
use mappings::Mappings;
use memory::Mapping;
use small::{Class, Small};

/// A body of up to this many bytes with its CR LF is small. It cannot be pinned, because a copy is cheap.
pub const SMALL_BYTES_MAX: usize = 8 * 1024;

/// A larger body has a mapping of its own. An eighth of a chunk, which bounds what runs leave unused at the end of a chunk.
const RUN_BYTES_MAX: usize = 256 * 1024;

/// The maximum size of a body with its CR LF.
const BODY_BYTES_MAX: u32 = JOB_BYTES_MAX + 2;

const _: () = assert!(SMALL_BYTES_MAX < RUN_BYTES_MAX && RUN_BYTES_MAX <= CHUNK_BYTES);
const _: () = assert!(size_of::<Slot>() == 12 && align_of::<Slot>() == 4);
const _: () = assert!(size_of::<Option<Slot>>() == 12);

/// The memory of one body. It belongs to the [`Bodies`] that allocated it and must be returned through [`Bodies::free`].
#[must_use = "a slot that is dropped is never freed"]
#[derive(PartialEq, Eq, Debug)]
pub struct Slot(ArenaPlace);

impl Slot {
    /// The size that was asked for, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a body has at least its CR LF")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// A reader of a large body besides its owner. It must be returned through [`Bodies::unpin`].
#[must_use = "a body stays in memory until its last pin is returned"]
#[derive(PartialEq, Eq, Debug)]
pub struct PinnedBody(ArenaPlace);

impl PinnedBody {
    /// The size of the body with its CR LF, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a body has at least its CR LF")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The number of a chunk. Numbers are dense from 0: the lowest number of an unmapped chunk is used again first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkId(pub u32);

/// The kernel has no memory or no address space for a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("out of memory for job bodies")]
pub struct OutOfMemory;

/// Totals of the arena. A freed body counts while it is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Number of bodies.
    pub slots: usize,
    /// The sizes that were asked for, in bytes.
    pub asked_bytes: usize,
    /// The sizes that were asked for, rounded up to what the bodies take.
    pub slot_bytes: usize,
    /// Address space mapped, with or without memory behind it.
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
    ended_bytes: usize,
}

impl Default for Bodies {
    fn default() -> Self {
        Self::new()
    }
}

impl Bodies {
    /// An arena without any mapping.
    pub fn new() -> Self {
        Self {
            chunks: Chunks::new(),
            small: Small::new(),
            mappings: Mappings::new(),
            slots: 0,
            asked_bytes: 0,
            slot_bytes: 0,
            ended_bytes: 0,
        }
    }

    /// Allocates a body of `bytes` bytes with its CR LF, from 1 to 2^30 + 2. It may contain the body of another client, so it
    /// must be written completely before it is read.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel refuses to map more.
    pub fn allocate(&mut self, bytes: u32) -> Result<Slot, OutOfMemory> {
        let slot = self.allocate_unwritten(bytes)?;
        self.wrote(&slot, slot.len());
        Ok(slot)
    }

    /// Allocates a body that is not received yet. A large one counts as memory only as far as [`Bodies::wrote`] says.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel refuses to map more.
    pub fn allocate_unwritten(&mut self, bytes: u32) -> Result<Slot, OutOfMemory> {
        assert!(bytes <= BODY_BYTES_MAX, "the protocol bounds a body");
        let len = NonZeroU32::new(bytes).expect("a body has at least its CR LF");
        let bytes = bytes as usize;
        let (home, offset) = match BodyKind::of(bytes) {
            BodyKind::Small => self.small.allocate(&mut self.chunks, bytes)?,
            BodyKind::Run => self.take_run(bytes)?,
            BodyKind::Mapping => (self.mappings.allocate(bytes)?, 0),
        };
        self.slots += 1;
        self.asked_bytes += bytes;
        self.slot_bytes += rounded_bytes(bytes);
        Ok(Slot(ArenaPlace { home: home as u32, offset: offset as u32, len }))
    }

    /// Allocates a body and copies it there.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the kernel refuses to map more.
    // Inlined: a small body is then copied without a second look at its chunk.
    #[inline(always)]
    pub fn store(&mut self, body: &[u8]) -> Result<Slot, OutOfMemory> {
        let bytes = body.len();
        if BodyKind::of(bytes) != BodyKind::Small {
            return self.store_large(body);
        }
        let len = NonZeroU32::new(bytes as u32).expect("a body has at least its CR LF");
        let (home, offset) = self.small.store(&mut self.chunks, body)?;
        self.slots += 1;
        self.asked_bytes += bytes;
        self.slot_bytes += rounded_bytes(bytes);
        Ok(Slot(ArenaPlace { home: home as u32, offset: offset as u32, len }))
    }

    #[inline(never)]
    fn store_large(&mut self, body: &[u8]) -> Result<Slot, OutOfMemory> {
        let mut slot = self.allocate_unwritten(body.len() as u32)?;
        self.expect(&slot, 0, body.len());
        self.bytes_mut(&mut slot).copy_from_slice(body);
        Ok(slot)
    }

    /// Notes that the first `bytes` bytes of the body are written. Returns by how much that raises
    /// [`Bodies::resident_bytes`].
    pub fn wrote(&mut self, slot: &Slot, bytes: usize) -> usize {
        let place = slot.0;
        debug_assert!(bytes <= place.len());
        match place.kind() {
            BodyKind::Small => 0,
            BodyKind::Run => self.chunks.warm(place.spot(), bytes.div_ceil(PAGE_BYTES)) * PAGE_BYTES,
            BodyKind::Mapping => self.mappings.warm(place.home as usize, bytes),
        }
    }

    /// Notes that the first `written` bytes of a large body are written, and that more, up to `expected`, are about to be. Gets
    /// memory for these in one call instead of a fault per page. Returns by how much all that raises
    /// [`Bodies::resident_bytes`].
    pub fn expect(&mut self, slot: &Slot, written: usize, expected: usize) -> usize {
        let grown = self.wrote(slot, expected);
        // A fault is cheaper than a call for one page.
        if grown > PAGE_BYTES {
            let offset = slot.0.offset as usize;
            let (start, end) = (written / PAGE_BYTES * PAGE_BYTES, expected.next_multiple_of(PAGE_BYTES));
            self.memory_mut(&slot.0).populate(offset + start..offset + end);
        }
        grown
    }

    /// Frees a body in O(1). If it is pinned, its last unpin frees it.
    pub fn free(&mut self, slot: Slot) {
        let place = slot.0;
        let last = match place.kind() {
            BodyKind::Small => {
                let (chunk, offset) = (place.home as usize, place.offset as usize);
                self.small.free(&mut self.chunks, chunk, offset, place.len());
                self.uncount(place.len());
                return;
            }
            BodyKind::Run | BodyKind::Mapping => self.readers_mut(&place).free(),
        };
        if last {
            self.release(place);
        } else {
            self.ended_bytes += rounded_bytes(place.len());
        }
    }

    /// Keeps a large body in memory at its address, even after its slot is freed. Returns `None` for a small body, which the
    /// caller must copy.
    pub fn pin(&mut self, slot: &Slot) -> Option<PinnedBody> {
        let place = slot.0;
        if place.kind() == BodyKind::Small {
            return None;
        }
        self.readers_mut(&place).pin();
        Some(PinnedBody(place))
    }

    /// Ends [`Bodies::pin`].
    pub fn unpin(&mut self, pin: PinnedBody) {
        if self.readers_mut(&pin.0).unpin() {
            self.ended_bytes -= rounded_bytes(pin.len());
            self.release(pin.0);
        }
    }

    /// Whether only pins keep this body: its slot is freed.
    pub fn is_ended(&self, pin: &PinnedBody) -> bool {
        let place = &pin.0;
        match place.kind() {
            BodyKind::Mapping => self.mappings.readers(place.home as usize).is_freed(),
            BodyKind::Small | BodyKind::Run => {
                matches!(self.chunks.page(place.spot()), PageState::Large { readers, .. } if readers.is_freed())
            }
        }
    }

    /// The memory of bodies that only pins keep.
    pub const fn ended_bytes(&self) -> usize {
        self.ended_bytes
    }

    /// Returns a bounded piece of freed memory beyond the bound to the kernel, in some 300 us at most. Returns true if there is
    /// more. The caller must then call it again, between other work.
    pub fn reclaim(&mut self) -> bool {
        let more_mappings = self.mappings.reclaim();
        if self.chunks.is_beyond_spare() {
            self.small.give_empty_spans(&mut self.chunks);
        }
        let more_chunks = self.chunks.sweep();
        more_mappings || more_chunks
    }

    /// Returns up to this much of the memory of freed large bodies to the kernel now, because others have taken its place.
    pub fn reclaim_now(&mut self, bytes: usize) {
        self.mappings.reclaim_bytes(bytes);
    }

    /// Makes the next [`Bodies::reclaim`] return this much of the memory that is kept for reuse, because something else
    /// needs it.
    pub fn want(&mut self, bytes: usize) {
        self.chunks.want(bytes);
    }

    /// Keeps no more than this much memory for reuse.
    pub fn keep_at_most(&mut self, bytes: usize) {
        self.chunks.keep_at_most(bytes);
    }

    /// The body, to be written. A pinned body must not be written.
    pub fn bytes_mut(&mut self, slot: &mut Slot) -> &mut [u8] {
        let place = slot.0;
        assert!(
            place.kind() == BodyKind::Small || !self.readers_mut(&place).is_pinned(),
            "a pinned body is not written"
        );
        self.memory_mut(&place).bytes_mut(place.offset as usize, place.len())
    }

    /// The body with its CR LF. Its address stays the same until the slot is freed.
    pub fn bytes(&self, slot: &Slot) -> &[u8] {
        self.read(&slot.0)
    }

    /// The body with its CR LF. Its address stays the same until the last unpin.
    pub fn pinned_bytes(&self, pin: &PinnedBody) -> &[u8] {
        self.read(&pin.0)
    }

    /// Returns the totals of the arena.
    pub fn usage(&self) -> Usage {
        Usage {
            slots: self.slots,
            asked_bytes: self.asked_bytes,
            slot_bytes: self.slot_bytes,
            mapped_bytes: self.chunks.mapped_bytes() + self.mappings.mapped_bytes(),
        }
    }

    /// Memory of bodies from the kernel, in use or kept for reuse, with the arena's own tables. Of a body that is being
    /// received, only the written part counts.
    pub fn resident_bytes(&self) -> usize {
        self.chunks.resident_bytes() + self.mappings.resident_bytes()
    }

    /// The part of [`Bodies::resident_bytes`] that is kept for reuse or is being returned to the kernel.
    pub fn idle_bytes(&self) -> usize {
        self.chunks.idle_bytes() + self.mappings.idle_bytes()
    }

    /// What a body of `bytes` bytes would add to [`Bodies::resident_bytes`]: nothing if it fits into memory that is kept for
    /// reuse.
    pub fn growth(&self, bytes: u32) -> usize {
        let bytes = bytes as usize;
        match BodyKind::of(bytes) {
            BodyKind::Small => self.small.growth(&self.chunks, bytes),
            BodyKind::Run => self.chunks.growth(bytes.div_ceil(PAGE_BYTES)),
            BodyKind::Mapping => mappings::mapped_bytes(bytes),
        }
    }

    /// The chunk that an address lies in. `None` for an address in the mapping of a single body, or elsewhere. Any
    /// [`Bodies::reclaim`] may unmap a chunk that is not held.
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

    /// Keeps a chunk and its pages mapped until [`Bodies::release_chunk`]. Must be called before the chunk is registered as
    /// a buffer: the kernel pins the pages that it finds, and would use them even after ours were returned and replaced.
    ///
    /// # Panics
    /// If the chunk is not mapped or already held.
    pub fn hold_chunk(&mut self, chunk: ChunkId) {
        self.chunks.hold(chunk.0 as usize);
    }

    /// Ends [`Bodies::hold_chunk`]. Must be called after the buffer is unregistered.
    ///
    /// # Panics
    /// If the chunk is not held.
    pub fn release_chunk(&mut self, chunk: ChunkId) {
        self.chunks.release(chunk.0 as usize);
    }

    /// Recomputes every count, list and mark. For tests, because it costs O(pages).
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self) {
        self.chunks.check();
        let (small_slots, small_bytes) = self.small.check(&self.chunks);
        let (mappings, mapping_bytes, ended_mappings) = self.mappings.check();
        let (runs, run_pages, ended_pages) = self.chunks.check_runs();
        assert_eq!(ended_mappings + ended_pages * PAGE_BYTES, self.ended_bytes);
        assert_eq!(small_slots + runs + mappings, self.slots);
        assert_eq!(small_bytes + run_pages * PAGE_BYTES + mapping_bytes, self.slot_bytes);
        assert!(self.slots <= self.asked_bytes && self.asked_bytes <= self.slot_bytes);
        assert!(self.slot_bytes <= self.usage().mapped_bytes);
    }

    fn take_run(&mut self, bytes: usize) -> Result<(usize, usize), OutOfMemory> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let first = self.chunks.take_run(pages)?;
        *self.chunks.page_mut(first) = PageState::Large { pages: pages as u16, readers: Readers::OWNER };
        Ok((first.chunk(), first.index() * PAGE_BYTES))
    }

    /// Frees the memory of a large body without readers.
    fn release(&mut self, place: ArenaPlace) {
        match place.kind() {
            BodyKind::Small => unreachable!("a small body has no readers"),
            BodyKind::Run => self.chunks.give_run(place.spot(), place.len().div_ceil(PAGE_BYTES)),
            BodyKind::Mapping => self.mappings.give(place.home as usize),
        }
        self.uncount(place.len());
    }

    fn uncount(&mut self, bytes: usize) {
        self.slots -= 1;
        self.asked_bytes -= bytes;
        self.slot_bytes -= rounded_bytes(bytes);
    }

    fn memory_mut(&mut self, place: &ArenaPlace) -> &mut Mapping {
        match place.kind() {
            BodyKind::Mapping => self.mappings.memory_mut(place.home as usize),
            BodyKind::Small | BodyKind::Run => self.chunks.memory_mut(place.home as usize),
        }
    }

    fn readers_mut(&mut self, place: &ArenaPlace) -> &mut Readers {
        if place.kind() == BodyKind::Mapping {
            return self.mappings.readers_mut(place.home as usize);
        }
        let PageState::Large { readers, .. } = self.chunks.page_mut(place.spot()) else {
            panic!("{place:?} is not a large body")
        };
        readers
    }

    fn read(&self, place: &ArenaPlace) -> &[u8] {
        let memory = match place.kind() {
            BodyKind::Mapping => self.mappings.memory(place.home as usize),
            BodyKind::Small | BodyKind::Run => self.chunks.memory(place.home as usize),
        };
        memory.bytes(place.offset as usize, place.len())
    }
}

/// The place of a body. Its length says what kind of place it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ArenaPlace {
    /// The number of a chunk, or the key of a mapping.
    home: u32,
    offset: u32,
    len: NonZeroU32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyKind {
    Small,
    Run,
    Mapping,
}

impl BodyKind {
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

impl ArenaPlace {
    fn len(&self) -> usize {
        self.len.get() as usize
    }

    fn kind(&self) -> BodyKind {
        BodyKind::of(self.len())
    }

    /// The first page.
    fn spot(&self) -> Spot {
        Spot::new(self.home as usize, self.offset as usize / PAGE_BYTES)
    }
}

/// The memory that a body of this size takes.
fn rounded_bytes(bytes: usize) -> usize {
    match BodyKind::of(bytes) {
        BodyKind::Small => Class::of(bytes).slot_bytes(),
        BodyKind::Run => bytes.next_multiple_of(PAGE_BYTES),
        BodyKind::Mapping => mappings::mapped_bytes(bytes),
    }
}
