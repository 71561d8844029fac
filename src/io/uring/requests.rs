//! How requests get to the ring, what they refer to, and what their completions say.

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::ptr;

use io_uring::{cqueue, squeue};
use nix::errno::Errno;
use nix::libc::{self, iovec, msghdr};

use super::kernel::KernelRing;
use super::ring::{Buffer, Completion, Flags, Token};
use crate::values::limits::SEND_SLICES_MAX;

/// io_uring_enter(2): IORING_NOTIF_USAGE_ZC_COPIED.
const WAS_COPIED: u32 = 1 << 31;

/// The slices of a send, in the form that the kernel reads.
pub(super) struct Message {
    header: msghdr,
    slices: [iovec; SEND_SLICES_MAX],
}

impl KernelRing {
    /// Queues a request.
    ///
    /// # Safety
    /// What the request refers to must stay in place until its last completion.
    #[inline]
    pub(super) unsafe fn push(&mut self, token: Token, entry: squeue::Entry) {
        let entry = entry.user_data(token.to_word());
        // SAFETY: the caller promises what this function demands.
        if !self.backlog.is_empty() || unsafe { self.submissions.push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Shows the kernel the requests, as far as they find room, and then the buffers that were given back: a cancelled receive takes
    /// no more of them. Returns whether all requests found room.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        self.submissions.sync();
        if !self.backlog.is_empty() {
            self.flush_backlog();
        }
        self.buffers.show();
        self.backlog.is_empty()
    }

    #[cold]
    fn flush_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the caller of `push` has promised that what it refers to stays in place until its completion.
            if unsafe { self.submissions.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        self.submissions.sync();
    }

    /// Makes sense of an entry of the completion queue.
    #[inline]
    pub(super) fn read(&mut self, entry: &cqueue::Entry) -> Completion {
        let (token, result, flags) = (Token::from_word(entry.user_data()), entry.result(), entry.flags());
        if let Token::Send(slot) = token
            && cqueue::notif(flags)
        {
            let result = Ok(u32::from(result as u32 & WAS_COPIED != 0));
            let token = Token::Notification(slot);
            return Completion { token, result, buffer: None, is_last: true };
        }
        let result = match result {
            result if result < 0 => Err(Errno::from_raw(-result)),
            result => Ok(result as u32),
        };
        let is_last = !cqueue::more(flags);
        if let Token::Send(slot) = token
            && let Some(message) = self.messages.get_mut(slot as usize).and_then(Option::take)
        {
            self.spare.push(message);
        }
        let len = result.unwrap_or(0);
        let buffer = match token {
            Token::Receive(slot) => {
                let chosen = cqueue::buffer_select(flags).map(|id| Buffer { id, len });
                chosen.or_else(|| self.tail_buffers.complete(slot, len))
            }
            _ => None,
        };
        Completion { token, result, buffer, is_last }
    }

    /// Stores a message of these slices until the send of this slot completes.
    pub(super) fn keep_message(&mut self, slot: u32, slices: &[IoSlice<'_>]) -> *const msghdr {
        let mut message = self.spare.pop().unwrap_or_default();
        for (to, from) in message.slices.iter_mut().zip(slices) {
            *to = iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        }
        message.header.msg_iov = message.slices.as_mut_ptr();
        message.header.msg_iovlen = slices.len().min(SEND_SLICES_MAX);
        let slot = slot as usize;
        if slot >= self.messages.len() {
            self.messages.resize_with(slot + 1, || None);
        }
        &raw const self.messages[slot].insert(message).header
    }
}

/// Flags for send(2). A send to a socket whose peer has closed fails and raises no signal.
pub(super) const fn send_flags(flags: Flags) -> i32 {
    let Flags { wait, more } = flags;
    let wait = if wait { 0 } else { libc::MSG_DONTWAIT };
    let more = if more { libc::MSG_MORE } else { 0 };
    libc::MSG_NOSIGNAL | wait | more
}

impl Default for Message {
    fn default() -> Self {
        let nothing = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Self { header: empty_message(), slices: [nothing; SEND_SLICES_MAX] }
    }
}

/// The header of an empty message.
pub fn empty_message() -> msghdr {
    // SAFETY: a msghdr consists of numbers and pointers, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}
