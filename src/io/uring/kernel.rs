//! The ring of the running kernel.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, SubmissionQueue, Submitter, opcode, squeue};
use nix::errno::Errno;
use nix::libc::{self, iovec};
use nix::sys::socket::{MsgFlags, getpeername, getsockname, recv};

use super::buffers::Buffers;
use super::requests::{Message, send_flags};
use super::ring::{Buffer, Completion, Flags, Group, Ring, Token};
use super::setup;
use super::tail_buffers::{self, TailBuffers};
use crate::io::socket::{AcceptError, Listener, ip, to_errno};
use crate::time::Span;
use crate::values::limits::{RECEIVE_BUFFERS, RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX, TAIL_BUFFERS_MAX};

/// The most that one request writes. It is a multiple of the block size, as direct I/O wants it.
const WRITE_BYTES_MAX: u32 = 1 << 30;

/// io_uring_enter(2): IORING_SEND_ZC_REPORT_USAGE.
const REPORT_USAGE: u16 = 1 << 3;

/// The memory of the receive and tail buffers.
const BUFFER_BYTES: usize = (RECEIVE_BUFFERS + TAIL_BUFFERS_MAX) as usize * RECEIVE_BYTES_MAX;

/// The ring of the event loop. Nothing of it is freed, since the kernel may use it until the process ends.
pub struct KernelRing {
    submitter: Submitter<'static>,
    pub(super) submissions: SubmissionQueue<'static>,
    completions: CompletionQueue<'static>,
    /// Requests that found no room in the submission queue.
    pub(super) backlog: VecDeque<squeue::Entry>,
    pub(super) buffers: Buffers,
    /// By slot: what a send of several slices that is in flight refers to.
    pub(super) messages: Vec<Option<Box<Message>>>,
    #[allow(clippy::vec_box)] // Moved to a slot instead of copied.
    pub(super) spare: Vec<Box<Message>>,
    pub(super) tail_buffers: TailBuffers,
    /// The kernel has a table for registered buffers.
    has_buffer_table: bool,
}

impl KernelRing {
    /// Sets up a ring with all that the driver needs.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the kernel does not know all operations; those of io_uring_setup(2) and io_uring_register(2).
    pub fn new() -> nix::Result<Self> {
        let ring = setup::build()?;
        let buffers = Buffers::register(&ring.submitter())?;
        setup::restrict(&ring.submitter())?;
        let (mut submitter, submissions, completions) = Box::leak(Box::new(ring)).split();
        setup::enable(&mut submitter)?;
        Ok(Self {
            submitter,
            submissions,
            completions,
            backlog: VecDeque::new(),
            buffers,
            messages: Vec::new(),
            spare: Vec::new(),
            tail_buffers: TailBuffers::default(),
            has_buffer_table: false,
        })
    }
}

impl Ring for KernelRing {
    fn group_of(&self, slot: u32) -> Group {
        Group { number: Buffers::group_of(slot), buffers: RECEIVE_BUFFERS_EACH }
    }

    fn memory_bytes(&self) -> usize {
        BUFFER_BYTES
    }

    fn watch(&mut self, token: Token, fd: RawFd) {
        // io_uring reports POLLHUP and POLLERR in any case.
        let events = if matches!(token, Token::Watch(_)) { libc::POLLRDHUP } else { libc::POLLIN };
        let entry = opcode::PollAdd::new(Fd(fd), events as u32).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(token, entry) };
    }

    fn accept(&mut self, listener: &Listener) -> Result<OwnedFd, AcceptError> {
        listener.accept_blocking()
    }

    fn receive(&mut self, slot: u32, fd: RawFd, is_multishot: bool) {
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

    unsafe fn receive_into(&mut self, slot: u32, fd: RawFd, place: *mut [u8]) {
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

    unsafe fn send(&mut self, slot: u32, fd: RawFd, slices: &[IoSlice<'_>], flags: Flags) {
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

    unsafe fn send_zero_copy(&mut self, slot: u32, fd: RawFd, piece: &[u8], buffer: Option<u16>, wait: bool) {
        let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let entry = opcode::SendZc::new(Fd(fd), piece.as_ptr(), length)
            .buf_index(buffer)
            .flags(send_flags(Flags { wait, more: false }))
            .zc_flags(REPORT_USAGE)
            .build();
        // SAFETY: the caller keeps the bytes.
        unsafe { self.push(Token::Send(slot), entry) };
    }

    unsafe fn register(&mut self, number: u16, memory: NonNull<[u8]>) -> nix::Result<()> {
        let memory = iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the caller promises the same.
        unsafe { setup::register_buffer(&self.submitter, &mut self.has_buffer_table, number, memory) }
    }

    fn is_remote(&self, fd: RawFd) -> bool {
        let ip = |address: nix::Result<_>| address.ok().as_ref().and_then(ip);
        match (ip(getsockname(fd)), ip(getpeername(fd))) {
            (Some(ours), Some(theirs)) => ours != theirs && !theirs.is_loopback(),
            _ => false,
        }
    }

    unsafe fn write(&mut self, fd: RawFd, offset: u64, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(WRITE_BYTES_MAX);
        let entry = opcode::Write::new(Fd(fd), bytes.as_ptr(), length).offset(offset).build();
        // SAFETY: the caller keeps the bytes.
        unsafe { self.push(Token::LogWrite, entry) };
    }

    fn cancel(&mut self, token: Token) {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::user_data(token.to_word())).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(Token::Cancel, entry) };
    }

    #[inline]
    fn enter(&mut self, timeout: Option<Span>) -> nix::Result<()> {
        let has_flushed = self.flush();
        self.completions.sync();
        // With requests left over, it would wait for completions that cannot come.
        let waits = timeout != Some(Span::ZERO) && has_flushed && self.completions.is_empty();
        let want = usize::from(waits);
        let result = match timeout {
            Some(timeout) if waits => {
                let nanos = timeout.as_nanos();
                let time = Timespec::new().sec(nanos / 1_000_000_000).nsec((nanos % 1_000_000_000) as u32);
                self.submitter.submit_with_args(want, &SubmitArgs::new().timespec(&time))
            }
            _ => self.submitter.submit_and_wait(want),
        };
        self.completions.sync();
        match result.map_err(|error| to_errno(&error)) {
            // The time-out passed, a debugger interrupted, or completions have to be taken before more requests.
            Ok(_) | Err(Errno::ETIME | Errno::EINTR | Errno::EBUSY | Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    #[inline]
    fn next(&mut self) -> Option<Completion> {
        let entry = self.completions.next()?;
        Some(self.read(&entry))
    }

    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        if tail_buffers::contain(buffer) {
            self.tail_buffers.bytes(buffer)
        } else {
            self.buffers.bytes(buffer)
        }
    }

    fn give_back(&mut self, buffer: Buffer) {
        if tail_buffers::contain(&buffer) {
            self.tail_buffers.give_back(&buffer);
        } else {
            self.buffers.give_back(buffer.id);
        }
    }

    fn peek(&mut self, fd: RawFd) -> nix::Result<usize> {
        recv(fd, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::values::limits::REQUESTS_QUEUED_MAX;

    /// Receives once, with the running kernel.
    fn receive(ring: &mut KernelRing, slot: u32, fd: RawFd) -> Completion {
        ring.receive(slot, fd, false);
        loop {
            ring.enter(None).expect("the ring works");
            if let Some(completion) = ring.next() {
                return completion;
            }
        }
    }

    /// Uses more than 2^16 buffers in one group, so that the tail of its ring wraps around.
    #[test]
    fn a_buffer_is_not_reused_until_it_is_given_back() {
        let mut ring = match KernelRing::new() {
            Ok(ring) => ring,
            Err(errno) => return println!("skipped: buffers of the real ring, because {}", errno.desc()),
        };
        let (mut peer, ours) = UnixStream::pair().expect("there are descriptors");
        let fd = ours.as_raw_fd();
        for round in 0..17_000_u32 {
            // Every 64th round uses another group.
            let slot = if round % 64 == 63 { round } else { 0 };
            let mut held = Vec::new();
            for number in 0..u32::from(RECEIVE_BUFFERS_EACH) {
                let message = (round << 8 | number).to_le_bytes();
                peer.write_all(&message).expect("there is room");
                let Completion { result, buffer, .. } = receive(&mut ring, slot, fd);
                assert_eq!(result, Ok(4), "round {round}");
                held.push((message, buffer.expect("it is in a buffer")));
            }
            peer.write_all(b"more").expect("there is room");
            let refused = receive(&mut ring, slot, fd).result;
            assert_eq!(refused, Err(Errno::ENOBUFS), "round {round}: all buffers of the group are in use");
            for (message, buffer) in held.into_iter().rev() {
                assert_eq!(ring.bytes(&buffer), message, "round {round}");
                ring.give_back(buffer);
            }
            let Completion { result, buffer, .. } = receive(&mut ring, slot, fd);
            assert_eq!(result, Ok(4), "round {round}: they are back");
            ring.give_back(buffer.expect("it is in a buffer"));
        }
    }

    #[test]
    fn requests_beyond_the_queue_are_made_before_the_ring_waits() {
        let mut ring = match KernelRing::new() {
            Ok(ring) => ring,
            Err(errno) => return println!("skipped: backlog of the real ring, because {}", errno.desc()),
        };
        let (_quiet_peer, quiet) = UnixStream::pair().expect("there are descriptors");
        let (mut peer, ours) = UnixStream::pair().expect("there are descriptors");
        peer.write_all(b"input").expect("there is room");
        for slot in 0..3 * REQUESTS_QUEUED_MAX {
            ring.watch(Token::Watch(slot), quiet.as_raw_fd());
        }
        ring.receive(0, ours.as_raw_fd(), true);
        let long = Span::from_secs(60);
        let completion = (0..10).find_map(|_| {
            ring.enter(Some(long)).expect("the ring works");
            ring.next()
        });
        assert_eq!(completion.expect("there is input").token, Token::Receive(0));
    }

    #[test]
    fn the_ring_refuses_requests_that_the_driver_never_makes() {
        let mut ring = match KernelRing::new() {
            Ok(ring) => ring,
            Err(errno) => {
                return println!("skipped: restrictions of the real ring, because {}", errno.desc());
            }
        };
        // SAFETY: it refers to no memory.
        unsafe { ring.push(Token::Cancel, opcode::Nop::new().build()) };
        ring.enter(None).expect("the ring works");
        assert_eq!(ring.next().expect("it has ended").result, Err(Errno::EACCES));
    }
}
