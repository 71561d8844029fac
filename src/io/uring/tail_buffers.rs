//! Room for what comes behind a body that is received straight to its place: the end of one command, and the
//! next.

#![allow(unsafe_code)]

use nix::libc::{iovec, msghdr};

use super::kernel::no_message;
use super::ring::Buffer;
use crate::limits::{RECEIVE_BUFFERS, RECEIVE_BYTES_MAX, TAIL_BUFFERS_MAX};

/// Never freed: the kernel may write to them as long as the ring exists.
#[derive(Default)]
pub struct TailBuffers {
    all: Vec<&'static mut Landing>,
    /// Which of them nobody uses.
    spare: Vec<u16>,
    /// By slot: the one of a receive under way.
    open: Vec<Option<u16>>,
}

/// One receive of two pieces, in the form that the kernel reads.
struct Landing {
    header: msghdr,
    pieces: [iovec; 2],
    beyond: Box<[u8; RECEIVE_BYTES_MAX]>,
}

impl TailBuffers {
    /// A message of the place and some room beyond it, for the receive of this slot; none if there are too
    /// many of them.
    pub fn open(&mut self, slot: u32, place: *mut [u8]) -> Option<*mut msghdr> {
        let number = self.spare.pop().or_else(|| self.add())?;
        let slot = slot as usize;
        if slot >= self.open.len() {
            self.open.resize(slot + 1, None);
        }
        let before = self.open[slot].replace(number);
        assert!(before.is_none(), "a connection has one receive");
        let landing = &mut *self.all[number as usize];
        landing.pieces = [
            iovec { iov_base: place.cast(), iov_len: place.len() },
            iovec { iov_base: landing.beyond.as_mut_ptr().cast(), iov_len: RECEIVE_BYTES_MAX },
        ];
        landing.header.msg_iov = landing.pieces.as_mut_ptr();
        landing.header.msg_iovlen = landing.pieces.len();
        Some(&raw mut landing.header)
    }

    /// The receive of this slot, if it had a landing, is over with so many bytes. Returns what came beyond the
    /// place.
    pub fn close(&mut self, slot: u32, bytes: u32) -> Option<Buffer> {
        let number = self.open.get_mut(slot as usize)?.take()?;
        let len = bytes.saturating_sub(self.all[number as usize].pieces[0].iov_len as u32);
        let buffer = Buffer { id: RECEIVE_BUFFERS + number, len };
        if len == 0 {
            self.give_back(&buffer);
            return None;
        }
        Some(buffer)
    }

    /// What came beyond the place.
    pub fn bytes(&self, buffer: &Buffer) -> &[u8] {
        &self.all[(buffer.id - RECEIVE_BUFFERS) as usize].beyond[..buffer.len()]
    }

    /// It is used up.
    pub fn give_back(&mut self, buffer: &Buffer) {
        self.spare.push(buffer.id - RECEIVE_BUFFERS);
    }

    fn add(&mut self) -> Option<u16> {
        let number = self.all.len() as u16;
        let pieces = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let landing = || Landing { header: no_message(), pieces, beyond: Box::new([0; RECEIVE_BYTES_MAX]) };
        (number < TAIL_BUFFERS_MAX).then(|| {
            self.all.push(Box::leak(Box::new(landing())));
            number
        })
    }
}
