//! Requests to the kernel and their completions, as the driver sees them.

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;

use nix::errno::Errno;

use crate::io::socket::{AcceptError, Listener};
use crate::time::Span;

/// What a request is about. It travels through the kernel as one word.
///
/// A connection is named by its slot alone: the slot is not used again before every request on it has
/// completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token {
    /// Connections that wait at the listener with this number.
    Listener(u32),
    /// Input of the connection in this slot.
    Receive(u32),
    /// Output to it.
    Send(u32),
    /// The network is done with output that was sent without a copy; the result is 0, or 1 if the kernel
    /// has made a copy.
    Notification(u32),
    /// The end of its input, while nothing is received.
    Watch(u32),
    /// Signals.
    Signals,
    /// A request to end another one.
    Cancel,
    /// The disk has done something.
    Bell,
    /// A write to the log.
    Write,
}

impl Token {
    /// The word.
    pub const fn to_word(self) -> u64 {
        let (kind, number) = match self {
            Self::Listener(number) => (0, number),
            Self::Receive(slot) => (1, slot),
            Self::Send(slot) => (2, slot),
            Self::Watch(slot) => (3, slot),
            Self::Signals => (4, 0),
            Self::Cancel => (5, 0),
            Self::Notification(slot) => (6, slot),
            Self::Bell => (7, 0),
            Self::Write => (8, 0),
        };
        (kind << 32) | number as u64
    }

    /// What a word from [`to_word`](Self::to_word) says.
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
            7 => Self::Bell,
            8 => Self::Write,
            kind => panic!("a completion of kind {kind}, which was never asked for"),
        }
    }
}

/// Something came of a request.
#[derive(Debug)]
pub struct Completion {
    /// Which.
    pub token: Token,
    /// A number of bytes, a descriptor, or events; or what went wrong.
    pub result: Result<u32, Errno>,
    /// What was received, if that is not at a place of the driver's.
    pub buffer: Option<Buffer>,
    /// The request is done; of others more completions will come.
    pub is_last: bool,
}

/// A receive buffer with something in it; it goes back by [`Ring::give_back`].
#[derive(Debug)]
pub struct Buffer {
    pub(super) id: u16,
    pub(super) len: u32,
}

impl Buffer {
    /// How much is in it.
    pub const fn len(&self) -> usize {
        self.len as usize
    }
}

/// How to send.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// Wait for room; else a send that finds none completes with `EAGAIN`.
    pub wait: bool,
    /// More follows at once, so that a packet may be left unfilled.
    pub more: bool,
}

/// The kernel's side of the driver. Requests gather until [`enter`](Self::enter), and none of them fails at
/// once: what is wrong with one is told by its completion.
///
/// A connection has at most one request of each kind under way.
pub trait Ring {
    /// Completes once, when connections wait at a listener.
    ///
    /// A request that accepts again and again would save system calls, but kernels lose wake-ups of such requests
    /// (docs/IO.md): the last connection of a burst could wait for as long as no other one comes.
    fn watch_listener(&mut self, number: u32, fd: RawFd);

    /// Accepts a connection that waits, at once.
    fn accept(&mut self, listener: &Listener) -> Result<OwnedFd, AcceptError>;

    /// Receives into a buffer that is chosen when there is input: once, or until the last completion. Kernels may leave
    /// input unreported to a repeated receive that is still armed ([`self_check`](super::self_check)).
    fn receive(&mut self, slot: u32, fd: RawFd, is_repeated: bool);

    /// Receives once, straight to a place, what there is. What comes beyond it may go to a buffer with the
    /// same completion, whose result counts both.
    ///
    /// # Safety
    /// The place must stay, and be left alone, until the completion.
    unsafe fn receive_into(&mut self, slot: u32, fd: RawFd, place: *mut [u8]);

    /// Sends as much of the slices as the kernel takes.
    ///
    /// # Safety
    /// The bytes must stay as they are until the completion.
    unsafe fn send(&mut self, slot: u32, fd: RawFd, slices: &[IoSlice<'_>], flags: Flags);

    /// Sends as much of a piece as the kernel takes, from where it lies, in a registered buffer or
    /// elsewhere. Where the completion is not the last, a [`Token::Notification`] follows.
    ///
    /// # Safety
    /// The bytes must stay as they are until the notification, or the completion if it is the last; and they
    /// must lie in that buffer.
    unsafe fn send_zero_copy(&mut self, slot: u32, fd: RawFd, piece: &[u8], buffer: Option<u16>, wait: bool);

    /// Registers memory as the buffer with this number.
    ///
    /// # Safety
    /// It must stay mapped, with the pages that it has, for the life of the process.
    unsafe fn register(&mut self, number: u16, memory: NonNull<[u8]>) -> nix::Result<()>;

    /// Whether the peer is on another machine: what stays on this one is copied in any case.
    fn is_remote(&self, fd: RawFd) -> bool;

    /// Completes when the peer has ended its input or the connection is broken. There is no way to wait for the
    /// latter alone.
    fn watch(&mut self, slot: u32, fd: RawFd);

    /// Completes when there are signals to read.
    fn watch_signals(&mut self, fd: RawFd);

    /// Completes when there is something to read, once.
    fn watch_bell(&mut self, fd: RawFd);

    /// Writes to a file, as much as the kernel takes at once.
    ///
    /// # Safety
    /// The bytes must stay as they are until the completion.
    unsafe fn write(&mut self, fd: RawFd, offset: u64, bytes: &[u8]);

    /// Ends a request, whose last completion still comes.
    fn cancel(&mut self, token: Token);

    /// Hands over all requests, and waits until there is a completion or for `patience`; forever without
    /// one.
    fn enter(&mut self, patience: Option<Span>) -> nix::Result<()>;

    /// The next completion, if one has come.
    fn next(&mut self) -> Option<Completion>;

    /// What is in a buffer.
    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8];

    /// Lets the kernel use a buffer again.
    fn give_back(&mut self, buffer: Buffer);

    /// At least how much input lies unread, at once: 0 at its end, `EAGAIN` if it may go on.
    fn peek(&mut self, fd: RawFd) -> nix::Result<usize>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_went() {
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
            Token::Bell,
            Token::Write,
        ] {
            assert_eq!(Token::from_word(token.to_word()), token);
        }
    }
}
