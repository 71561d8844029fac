//! Buffers that the kernel takes when there is something to receive, so that a connection without input holds none.
//!
//! They form groups, and the receives of a connection use one group. A multishot receive continues while its group has
//! buffers, also after the server has paused the connection and until the cancellation takes effect. With a single group one
//! connection could fill all buffers in that time.

#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use super::ring::Buffer;
use crate::io::socket::to_errno;
use crate::values::limits::{RECEIVE_BUFFERS, RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX};

/// The ring of each group begins at a page. Pages have at most 64 KiB.
const GROUP_ENTRIES: usize = 65_536 / size_of::<BufRingEntry>();

const GROUPS: u16 = RECEIVE_BUFFERS / RECEIVE_BUFFERS_EACH;

const _: () = assert!(GROUPS.is_power_of_two() && GROUPS <= u32::BITS as u16);
const _: () =
    assert!(RECEIVE_BUFFERS_EACH.is_power_of_two() && RECEIVE_BUFFERS_EACH as usize <= GROUP_ENTRIES);

/// Buffers of [`RECEIVE_BYTES_MAX`], and the rings that offer them to the kernel. They are mapped for the life of the process,
/// since the kernel may use them as long as the ring exists.
pub struct Buffers {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    /// By group: buffers given back so far; the kernel reads it as a number modulo 2^16.
    tails: [u16; GROUPS as usize],
    /// A bit for each group with buffers that the kernel does not see yet.
    unseen: u32,
}

impl Buffers {
    /// Registers all buffers with a ring.
    pub fn register(submitter: &Submitter<'_>) -> nix::Result<Self> {
        let entries_bytes = GROUPS as usize * GROUP_ENTRIES * size_of::<BufRingEntry>();
        let entries: NonNull<BufRingEntry> = map(entries_bytes)?.cast();
        let bytes = map(RECEIVE_BUFFERS as usize * RECEIVE_BYTES_MAX)?;
        let mut buffers = Self { entries, bytes, tails: [0; GROUPS as usize], unseen: 0 };
        for group in 0..GROUPS {
            let address = buffers.ring(group).as_ptr().addr() as u64;
            // SAFETY: the mapping has room for that many entries, and is never unmapped.
            unsafe { submitter.register_buf_ring_with_flags(address, RECEIVE_BUFFERS_EACH, group, 0) }
                .map_err(|error| to_errno(&error))?;
        }
        for id in 0..RECEIVE_BUFFERS {
            buffers.give_back(id);
        }
        buffers.show();
        Ok(buffers)
    }

    /// The group that the receives of the connection in this slot use.
    #[inline]
    pub const fn group_of(slot: u32) -> u16 {
        slot as u16 & (GROUPS - 1)
    }

    /// The bytes that were received into a buffer.
    pub fn bytes(&self, buffer: &Buffer) -> &[u8] {
        let Buffer { id, len } = *buffer;
        assert!(id < RECEIVE_BUFFERS && len as usize <= RECEIVE_BYTES_MAX, "the buffer is one of these");
        // SAFETY: in bounds, as asserted. The kernel does not write to this buffer before `give_back`, which ends the life of the
        // only `Buffer` of it.
        unsafe { slice::from_raw_parts(self.place(id).as_ptr(), len as usize) }
    }

    /// Returns a buffer. The kernel sees it after [`show`](Self::show).
    pub fn give_back(&mut self, id: u16) {
        let group = id / RECEIVE_BUFFERS_EACH;
        let (ring, place, mask) = (self.ring(group), self.place(id), RECEIVE_BUFFERS_EACH - 1);
        let tail = &mut self.tails[group as usize];
        // SAFETY: the index is below the number of entries. The kernel reads an entry only after the tail has passed it,
        // and not after it has returned the buffer: so it does not read this one now.
        let entry = unsafe { ring.add((*tail & mask) as usize).as_mut() };
        entry.set_addr(place.as_ptr().addr() as u64);
        entry.set_len(RECEIVE_BYTES_MAX as u32);
        entry.set_bid(id);
        *tail = tail.wrapping_add(1);
        self.unseen |= 1 << group;
    }

    /// Offers the buffers that were given back to the kernel.
    #[inline]
    pub fn show(&mut self) {
        while self.unseen != 0 {
            let group = self.unseen.trailing_zeros() as u16;
            self.unseen &= self.unseen - 1;
            // SAFETY: the tail lies in the first entry, in a field that nothing else uses. The kernel only reads it.
            let shown = unsafe { &*BufRingEntry::tail(self.ring(group).as_ptr()).cast::<AtomicU16>() };
            shown.store(self.tails[group as usize], Ordering::Release);
        }
    }

    /// The first entry of a group.
    fn ring(&self, group: u16) -> NonNull<BufRingEntry> {
        // SAFETY: groups are below the number of mapped groups.
        unsafe { self.entries.add(group as usize * GROUP_ENTRIES) }
    }

    fn place(&self, id: u16) -> NonNull<u8> {
        // SAFETY: ids are below the number of mapped buffers.
        unsafe { self.bytes.add(id as usize * RECEIVE_BYTES_MAX) }
    }
}

/// Maps zeroed memory, which begins at a page.
fn map(bytes: usize) -> nix::Result<NonNull<u8>> {
    let length = NonZeroUsize::new(bytes).expect("there are buffers");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses replaces no other memory.
    unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }.map(NonNull::cast)
}
