//! Buffers that the kernel takes when there is something to receive, so that a connection without input
//! holds none.

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
use crate::limits::{RECEIVE_BUFFERS, RECEIVE_BYTES_MAX};

/// The only group of buffers.
pub const GROUP: u16 = 0;

const MASK: u16 = RECEIVE_BUFFERS - 1;

const _: () = assert!(RECEIVE_BUFFERS.is_power_of_two());

/// [`RECEIVE_BUFFERS`] buffers of [`RECEIVE_BYTES_MAX`], and the ring in which they are offered to the kernel.
/// Mapped for the life of the process, since the kernel may use them as long as the ring exists.
pub struct Buffers {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    /// Buffers offered so far; the kernel reads it as a number modulo 2^16.
    tail: u16,
}

impl Buffers {
    /// Offers all of them to a ring.
    pub fn register(submitter: &Submitter<'_>) -> nix::Result<Self> {
        let entries: NonNull<BufRingEntry> =
            map(RECEIVE_BUFFERS as usize * size_of::<BufRingEntry>())?.cast();
        let bytes = map(RECEIVE_BUFFERS as usize * RECEIVE_BYTES_MAX)?;
        let address = entries.as_ptr().addr() as u64;
        // SAFETY: the mapping has room for as many entries, and is never unmapped.
        unsafe { submitter.register_buf_ring_with_flags(address, RECEIVE_BUFFERS, GROUP, 0) }
            .map_err(|error| to_errno(&error))?;
        let mut buffers = Self { entries, bytes, tail: 0 };
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
        // SAFETY: the index is below the number of entries. The kernel reads an entry only once the tail
        // has passed it, and no more after it has handed the buffer over: so it does not read this one.
        let entry = unsafe { self.entries.add((self.tail & MASK) as usize).as_mut() };
        entry.set_addr(self.place(buffer.id).as_ptr().addr() as u64);
        entry.set_len(RECEIVE_BYTES_MAX as u32);
        entry.set_bid(buffer.id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, in a field that nothing else uses; the kernel only
        // reads it.
        let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
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
