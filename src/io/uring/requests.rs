//! The driver's end of a ring: it makes requests, keeps what they refer to, and reads their completions.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::ptr;

use io_uring::types::{CancelBuilder, Fd};
use io_uring::{SubmissionQueue, cqueue, opcode, squeue};
use nix::errno::Errno;
use nix::libc::{self, iovec, msghdr};

use super::buffers::Buffers;
use super::ring::{Buffer, Completion, Flags, Token};
use super::tail_buffers::{self, TailBuffers};
use crate::values::limits::SEND_SLICES_MAX;

/// The most that one request writes. It is a multiple of the block size, as direct I/O wants it.
const WRITE_BYTES_MAX: u32 = 1 << 30;

/// io_uring_enter(2): IORING_SEND_ZC_REPORT_USAGE, and in its notification IORING_NOTIF_USAGE_ZC_COPIED.
const REPORT_USAGE: u16 = 1 << 3;
const WAS_COPIED: u32 = 1 << 31;

/// The requests on a ring. Nothing of it is freed, since the kernel may use it until the process ends.
pub struct Requests {
    submissions: SubmissionQueue<'static>,
    /// Requests that found no room in the submission queue.
    backlog: VecDeque<squeue::Entry>,
    buffers: Buffers,
    /// By slot: what a send of several slices that is in flight refers to.
    messages: Vec<Option<Box<Message>>>,
    #[allow(clippy::vec_box)] // Moved to a slot instead of copied.
    spare: Vec<Box<Message>>,
    tail_buffers: TailBuffers,
}

/// The slices of a send, in the form that the kernel reads.
struct Message {
    header: msghdr,
    slices: [iovec; SEND_SLICES_MAX],
}

impl Requests {
    pub fn new(submissions: SubmissionQueue<'static>, buffers: Buffers) -> Self {
        Self {
            submissions,
            backlog: VecDeque::new(),
            buffers,
            messages: Vec::new(),
            spare: Vec::new(),
            tail_buffers: TailBuffers::default(),
        }
    }

    /// Queues a request.
    ///
    /// # Safety
    /// What the request refers to must stay in place until its last completion.
    #[inline]
    pub unsafe fn push(&mut self, token: Token, entry: squeue::Entry) {
        let entry = entry.user_data(token.to_word());
        // SAFETY: the caller promises what this function demands.
        if !self.backlog.is_empty() || unsafe { self.submissions.push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Shows the kernel the requests, as far as they find room, and then the buffers that were given back: a cancelled receive takes
    /// no more of them. Returns whether all requests found room.
    #[inline]
    pub fn flush(&mut self) -> bool {
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

    /// Completes once, when one of these events of poll(2) occurs.
    pub fn poll(&mut self, token: Token, fd: RawFd, events: libc::c_short) {
        let entry = opcode::PollAdd::new(Fd(fd), events as u32).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(token, entry) };
    }

    /// See [`Ring::receive`](super::ring::Ring::receive).
    pub fn receive(&mut self, slot: u32, fd: RawFd, is_multishot: bool) {
        let group = Buffers::group_of(slot);
        let entry = if is_multishot {
            opcode::RecvMulti::new(Fd(fd), group).build()
        } else {
            opcode::Recv::new(Fd(fd), ptr::null_mut(), 0)
                .buf_group(group)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        // SAFETY: it refers only to the registered buffers, which stay for the life of the process.
        unsafe { self.push(Token::Receive(slot), entry) };
    }

    /// See [`Ring::receive_into`](super::ring::Ring::receive_into).
    ///
    /// # Safety
    /// The place must stay in place and unused until the completion.
    pub unsafe fn receive_into(&mut self, slot: u32, fd: RawFd, place: *mut [u8]) {
        // Without MSG_WAITALL, here and in sends: the kernel gives a request that it has resumed 128 times a thread of its
        // own, which waits for the peer, however slow.
        let entry = match self.tail_buffers.begin(slot, place) {
            Some(message) => opcode::RecvMsg::new(Fd(fd), message).build(),
            None => {
                let length = u32::try_from(place.len()).unwrap_or(u32::MAX);
                opcode::Recv::new(Fd(fd), place.cast(), length).build()
            }
        };
        // SAFETY: the caller keeps the place; the tail buffer stays for the life of the process.
        unsafe { self.push(Token::Receive(slot), entry) };
    }

    /// See [`Ring::send`](super::ring::Ring::send).
    ///
    /// # Safety
    /// The bytes must stay in place and unchanged until the completion.
    pub unsafe fn send(&mut self, slot: u32, fd: RawFd, slices: &[IoSlice<'_>], flags: Flags) {
        let flags = send_flags(flags);
        let entry = match slices {
            [slice] => {
                let length = u32::try_from(slice.len()).unwrap_or(u32::MAX);
                opcode::Send::new(Fd(fd), slice.as_ptr(), length).flags(flags).build()
            }
            slices => {
                let message = self.keep_message(slot, slices);
                opcode::SendMsg::new(Fd(fd), message).flags(flags as u32).build()
            }
        };
        // SAFETY: the caller keeps the bytes; the message stays in its box until the completion.
        unsafe { self.push(Token::Send(slot), entry) };
    }

    /// See [`Ring::send_zero_copy`](super::ring::Ring::send_zero_copy).
    ///
    /// # Safety
    /// The bytes must lie in that buffer. They must stay in place and unchanged until the notification, or until the completion
    /// if it is the last.
    pub unsafe fn send_zero_copy(
        &mut self,
        slot: u32,
        fd: RawFd,
        piece: &[u8],
        buffer: Option<u16>,
        wait: bool,
    ) {
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let entry = opcode::SendZc::new(Fd(fd), piece.as_ptr(), length)
            .buf_index(buffer)
            .flags(send_flags(Flags { wait, more: false }))
            .zc_flags(REPORT_USAGE)
            .build();
        // SAFETY: the caller keeps the bytes.
        unsafe { self.push(Token::Send(slot), entry) };
    }

    /// See [`Ring::write`](super::ring::Ring::write).
    ///
    /// # Safety
    /// The bytes must stay in place and unchanged until the completion.
    pub unsafe fn write(&mut self, fd: RawFd, offset: u64, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(WRITE_BYTES_MAX);
        let entry = opcode::Write::new(Fd(fd), bytes.as_ptr(), length).offset(offset).build();
        // SAFETY: the caller keeps the bytes.
        unsafe { self.push(Token::LogWrite, entry) };
    }

    /// Cancels a request. Its last completion still follows.
    pub fn cancel(&mut self, token: Token) {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::user_data(token.to_word())).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(Token::Cancel, entry) };
    }

    #[inline]
    pub fn read(&mut self, entry: &cqueue::Entry) -> Completion {
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

    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        if tail_buffers::contain(buffer) {
            self.tail_buffers.bytes(buffer)
        } else {
            self.buffers.bytes(buffer)
        }
    }

    /// Returns a buffer to the kernel.
    pub fn give_back(&mut self, buffer: Buffer) {
        if tail_buffers::contain(&buffer) {
            self.tail_buffers.give_back(&buffer);
        } else {
            self.buffers.give_back(buffer.id);
        }
    }

    /// Stores a message of these slices until the send of this slot completes.
    fn keep_message(&mut self, slot: u32, slices: &[IoSlice<'_>]) -> *const msghdr {
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
const fn send_flags(flags: Flags) -> i32 {
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
