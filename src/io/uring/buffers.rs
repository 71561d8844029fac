//! Buffers that the kernel takes when there is something to receive, so that a connection without input
//! holds none.
//!
//! They lie in groups, and a connection's receives choose from one of them. A receive that is made again and again by
//! the kernel goes on while there are buffers: a connection whose input is not wanted any more is ended only after
//! that, and could otherwise have filled all of them.

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
use crate::limits::{RECEIVE_BUFFERS, RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX};

const GROUPS: u16 = RECEIVE_BUFFERS / RECEIVE_BUFFERS_EACH;

const MASK: u16 = RECEIVE_BUFFERS_EACH - 1;

/// Each group's ring begins at a page, the largest that there are.
const GROUP_ENTRIES: usize = 65_536 / size_of::<BufRingEntry>();

const _: () = assert!(RECEIVE_BUFFERS_EACH.is_power_of_two() && RECEIVE_BUFFERS.is_multiple_of(GROUPS));
const _: () = assert!(RECEIVE_BUFFERS_EACH as usize <= GROUP_ENTRIES);

/// [`RECEIVE_BUFFERS`] buffers of [`RECEIVE_BYTES_MAX`], and the rings in which they are offered to the kernel.
/// Mapped for the life of the process, since the kernel may use them as long as the ring exists.
pub struct Buffers {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    /// By group: buffers offered so far; the kernel reads it as a number modulo 2^16.
    tails: [u16; GROUPS as usize],
}

/// The group that receives of the connection in this slot choose from.
pub const fn group_of(slot: u32) -> u16 {
    (slot % GROUPS as u32) as u16
}

impl Buffers {
    /// Offers all of them to a ring.
    pub fn register(submitter: &Submitter<'_>) -> nix::Result<Self> {
        let entries_bytes = GROUPS as usize * GROUP_ENTRIES * size_of::<BufRingEntry>();
        let entries: NonNull<BufRingEntry> = map(entries_bytes)?.cast();
        let bytes = map(RECEIVE_BUFFERS as usize * RECEIVE_BYTES_MAX)?;
        let mut buffers = Self { entries, bytes, tails: [0; GROUPS as usize] };
        for group in 0..GROUPS {
            let address = buffers.ring(group).as_ptr().addr() as u64;
            // SAFETY: the mapping has room for as many entries, and is never unmapped.
            unsafe { submitter.register_buf_ring_with_flags(address, RECEIVE_BUFFERS_EACH, group, 0) }
                .map_err(|error| to_errno(&error))?;
        }
        for id in 0..RECEIVE_BUFFERS {
            buffers.give_back(Buffer { id, len: 0 });
        }
        Ok(buffers)
    }

    /// What was received.
    pub fn bytes(&self, buffer: &Buffer) -> &[u8] {
        let Buffer { id, len } = *buffer;
        assert!(id < RECEIVE_BUFFERS && len as usize <= RECEIVE_BYTES_MAX, "it came from here");
        // SAFETY: in bounds, as asserted. The kernel has handed this buffer over and does not write to it
        // until `give_back`, which takes the one `Buffer` there is for it.
        unsafe { slice::from_raw_parts(self.place(id).as_ptr(), len as usize) }
    }

    /// Offers a buffer to the kernel.
    pub fn give_back(&mut self, buffer: Buffer) {
        let group = buffer.id / RECEIVE_BUFFERS_EACH;
        let (ring, place) = (self.ring(group), self.place(buffer.id));
        let tail = &mut self.tails[group as usize];
        // SAFETY: the index is below the number of entries. The kernel reads an entry only once the tail
        // has passed it, and no more after it has handed the buffer over: so it does not read this one.
        let entry = unsafe { ring.add((*tail & MASK) as usize).as_mut() };
        entry.set_addr(place.as_ptr().addr() as u64);
        entry.set_len(RECEIVE_BYTES_MAX as u32);
        entry.set_bid(buffer.id);
        *tail = tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, in a field that nothing else uses; the kernel only
        // reads it.
        let shown = unsafe { &*BufRingEntry::tail(ring.as_ptr()).cast::<AtomicU16>() };
        shown.store(*tail, Ordering::Release);
    }

    /// The entries of a group.
    fn ring(&self, group: u16) -> NonNull<BufRingEntry> {
        // SAFETY: groups are below the number of those that were mapped.
        unsafe { self.entries.add(group as usize * GROUP_ENTRIES) }
    }

    fn place(&self, id: u16) -> NonNull<u8> {
        // SAFETY: ids are below the number of buffers that were mapped.
        unsafe { self.bytes.add(id as usize * RECEIVE_BYTES_MAX) }
    }
}

/// Zeroed memory at the start of a page.
fn map(bytes: usize) -> nix::Result<NonNull<u8>> {
    let length = NonZeroUsize::new(bytes).expect("there are buffers");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice replaces no memory that anyone has.
    unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }.map(NonNull::cast)
}
