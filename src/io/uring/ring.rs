//! Requests to the kernel and their completions.

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;

use nix::errno::Errno;

use crate::io::socket::{AcceptError, Listener};
use crate::time::Span;

/// What a request is about. The kernel passes it through as one word.
///
/// The slot alone names a connection: no other connection has it before every request of this one has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token {
    /// Connections wait at the listener with this number.
    Listener(u32),
    /// Input of the connection in this slot.
    Receive(u32),
    /// Output to it.
    Send(u32),
    /// The network is done with output that was sent without a copy. The result is 0, or 1 if the kernel has made a copy.
    Notification(u32),
    /// The end of its input, while it is paused.
    Watch(u32),
    Signals,
    /// The cancellation of another request.
    Cancel,
    /// A thread of the disk has completed an operation.
    Disk,
    /// A write to the job log.
    LogWrite,
}

impl Token {
    pub const fn to_word(self) -> u64 {
        let (kind, number) = match self {
            Self::Listener(number) => (0, number),
            Self::Receive(slot) => (1, slot),
            Self::Send(slot) => (2, slot),
            Self::Watch(slot) => (3, slot),
            Self::Signals => (4, 0),
            Self::Cancel => (5, 0),
            Self::Notification(slot) => (6, slot),
            Self::Disk => (7, 0),
            Self::LogWrite => (8, 0),
        };
        (kind << 32) | number as u64
    }

    /// Returns the token of a word that [`to_word`](Self::to_word) made.
    ///
    /// # Panics
    /// On any other word.
    pub fn from_word(word: u64) -> Self {
        let number = word as u32;
        match word >> 32 {
            0 => Self::Listener(number),
            1 => Self::Receive(number),
            2 => Self::Send(number),
            3 => Self::Watch(number),
            4 => Self::Signals,
            5 => Self::Cancel,
            6 => Self::Notification(number),
            7 => Self::Disk,
            8 => Self::LogWrite,
            kind => panic!("a completion of the unknown kind {kind}"),
        }
    }
}

/// A completion of a request. A multishot request has several.
#[derive(Debug)]
pub struct Completion {
    pub token: Token,
    /// A number of bytes, or events.
    pub result: Result<u32, Errno>,
    /// The buffer with received bytes, if they are not at their place.
    pub buffer: Option<Buffer>,
    /// No more completions of this request follow.
    pub is_last: bool,
}

/// A filled receive buffer. It is returned to the kernel by [`Ring::give_back`].
#[derive(Debug)]
pub struct Buffer {
    pub(super) id: u16,
    pub(super) len: u32,
}

impl Buffer {
    /// The number of bytes in it.
    pub const fn len(&self) -> usize {
        self.len as usize
    }
}

/// The receive buffers that some connections share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    pub number: u16,
    /// How many there are.
    pub buffers: u16,
}

/// How to send.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// Wait for room. Otherwise a send that finds none completes with `EAGAIN`.
    pub wait: bool,
    /// More follows at once, so the kernel may keep back a packet that is not full.
    pub more: bool,
}

/// The kernel's side of the driver. A request that the kernel refuses completes with an error.
///
/// A connection has at most one request of each kind in flight. Requests gather until [`enter`](Self::enter).
pub trait Ring {
    /// The receive buffers that a connection shares with others.
    fn group_of(&self, slot: u32) -> Group;

    /// The memory of all buffers.
    fn memory_bytes(&self) -> usize;

    /// Completes once. For [`Token::Watch`]: when the peer has ended its input or the connection is broken; io_uring cannot wait for the
    /// latter alone. Else when there is something to read, or a connection to accept.
    ///
    /// A multishot accept would save system calls, but kernels lose wake-ups of such requests (docs/internals/IO.md): the last
    /// connection of a burst would wait until another one comes.
    fn watch(&mut self, token: Token, fd: RawFd);

    /// Accepts a connection that waits, without a request.
    fn accept(&mut self, listener: &Listener) -> Result<OwnedFd, AcceptError>;

    /// Receives into a buffer that the kernel chooses when there is input: once, or until the last completion. Kernels may
    /// fail to report input while a multishot receive is armed ([`self_check`](super::self_check)).
    fn receive(&mut self, slot: u32, fd: RawFd, is_multishot: bool);

    /// Receives once, straight to a place. Bytes beyond that place may be in a buffer of the same completion, whose result
    /// counts both.
    ///
    /// # Safety
    /// The place must stay in place and unused until the completion.
    unsafe fn receive_into(&mut self, slot: u32, fd: RawFd, place: *mut [u8]);

    /// Sends as much of the slices as the kernel takes.
    ///
    /// # Safety
    /// The bytes must stay in place and unchanged until the completion.
    unsafe fn send(&mut self, slot: u32, fd: RawFd, slices: &[IoSlice<'_>], flags: Flags);

    /// Sends as much of a piece as the kernel takes without a copy. The piece lies in a registered buffer, if one is named. A
    /// [`Token::Notification`] follows a completion that is not the last.
    ///
    /// # Safety
    /// The bytes must lie in that buffer. They must stay in place and unchanged until the notification, or until the
    /// completion if it is the last.
    unsafe fn send_zero_copy(&mut self, slot: u32, fd: RawFd, piece: &[u8], buffer: Option<u16>, wait: bool);

    /// Registers memory as the buffer with this number.
    ///
    /// # Safety
    /// The memory must stay mapped, with its present pages, for the life of the process.
    unsafe fn register(&mut self, number: u16, memory: NonNull<[u8]>) -> nix::Result<()>;

    /// Whether the peer is on another machine. What stays on this one is copied in any case.
    fn is_remote(&self, fd: RawFd) -> bool;

    /// Writes as much to a file as the kernel takes at once.
    ///
    /// # Safety
    /// The bytes must stay in place and unchanged until the completion.
    unsafe fn write(&mut self, fd: RawFd, offset: u64, bytes: &[u8]);

    /// Cancels a request. Its last completion still follows.
    fn cancel(&mut self, token: Token);

    /// Submits all requests and waits for a completion, at most for `timeout`.
    fn enter(&mut self, timeout: Option<Span>) -> nix::Result<()>;

    /// Takes the next completion, if there is one.
    fn next(&mut self) -> Option<Completion>;

    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8];

    /// Returns a buffer to the kernel.
    fn give_back(&mut self, buffer: Buffer);

    /// Returns 0 at the end of the input, 1 if input lies unread, and `EAGAIN` if neither.
    fn peek(&mut self, fd: RawFd) -> nix::Result<usize>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_round_trip() {
        let last = u32::MAX;
        for token in [
            Token::Listener(0),
            Token::Listener(last),
            Token::Receive(last),
            Token::Send(7),
            Token::Notification(7),
            Token::Watch(last),
            Token::Signals,
            Token::Cancel,
            Token::Disk,
            Token::LogWrite,
        ] {
            assert_eq!(Token::from_word(token.to_word()), token);
        }
    }
}
