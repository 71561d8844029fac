//! Room behind the place of a large body, for the end of its command and the beginning of the next.

#![allow(unsafe_code)]

use nix::libc::{iovec, msghdr};

use super::requests::empty_message;
use super::ring::Buffer;
use crate::values::limits::{RECEIVE_BUFFERS, RECEIVE_BYTES_MAX, TAIL_BUFFERS_MAX};

/// The id of the first tail buffer. Those of receive buffers are lower.
const FIRST: u16 = 1 << 15;

const _: () = assert!(RECEIVE_BUFFERS <= FIRST);

/// The tail buffers. They are never freed: the kernel may write to them as long as the ring exists.
#[derive(Default)]
pub struct TailBuffers {
    all: Vec<&'static mut TailBuffer>,
    /// Those that no receive uses.
    spare: Vec<u16>,
    /// By slot: the one that the receive in flight uses.
    in_flight: Vec<Option<u16>>,
}

/// One receive of two pieces, in the form that the kernel reads.
struct TailBuffer {
    header: msghdr,
    pieces: [iovec; 2],
    tail: Box<[u8; RECEIVE_BYTES_MAX]>,
}

/// Whether a buffer is a tail buffer.
pub const fn contain(buffer: &Buffer) -> bool {
    buffer.id >= FIRST
}

impl TailBuffers {
    /// Returns a message of the place and a tail buffer for the receive of this slot. `None` if all are in use.
    pub fn begin(&mut self, slot: u32, place: *mut [u8]) -> Option<*mut msghdr> {
        let number = self.spare.pop().or_else(|| self.add())?;
        let slot = slot as usize;
        if slot >= self.in_flight.len() {
            self.in_flight.resize(slot + 1, None);
        }
        let before = self.in_flight[slot].replace(number);
        assert!(before.is_none(), "a connection has one receive in flight");
        let buffer = &mut *self.all[number as usize];
        buffer.pieces = [
            iovec { iov_base: place.cast(), iov_len: place.len() },
            iovec { iov_base: buffer.tail.as_mut_ptr().cast(), iov_len: RECEIVE_BYTES_MAX },
        ];
        buffer.header.msg_iov = buffer.pieces.as_mut_ptr();
        buffer.header.msg_iovlen = buffer.pieces.len();
        Some(&raw mut buffer.header)
    }

    /// Processes the completion of the receive of this slot. Returns what was received beyond the place.
    pub fn complete(&mut self, slot: u32, bytes: u32) -> Option<Buffer> {
        let number = self.in_flight.get_mut(slot as usize)?.take()?;
        let len = bytes.saturating_sub(self.all[number as usize].pieces[0].iov_len as u32);
        let buffer = Buffer { id: FIRST + number, len };
        if len == 0 {
            self.give_back(&buffer);
            return None;
        }
        Some(buffer)
    }

    /// The bytes that were received beyond the place.
    pub fn bytes(&self, buffer: &Buffer) -> &[u8] {
        &self.all[(buffer.id - FIRST) as usize].tail[..buffer.len()]
    }

    pub fn give_back(&mut self, buffer: &Buffer) {
        self.spare.push(buffer.id - FIRST);
    }

    fn add(&mut self) -> Option<u16> {
        let number = self.all.len() as u16;
        let pieces = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let buffer =
            || TailBuffer { header: empty_message(), pieces, tail: Box::new([0; RECEIVE_BYTES_MAX]) };
        (number < TAIL_BUFFERS_MAX).then(|| {
            self.all.push(Box::leak(Box::new(buffer())));
            number
        })
    }
}
