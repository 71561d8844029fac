//! The ring of the running kernel.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use io_uring::register::Restriction;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, Probe, SubmissionQueue, Submitter, cqueue, opcode, squeue};
use nix::errno::Errno;
use nix::libc::{self, iovec, msghdr};
use nix::sys::socket::{MsgFlags, SockaddrStorage, getpeername, getsockname, recv};

use super::buffers::{Buffers, group_of};
use super::registered::REGISTERED_CHUNKS_MAX;
use super::ring::{Buffer, Completion, Flags, Ring, Token};
use super::tail_buffers::TailBuffers;
use crate::io::socket::{AcceptError, Listener, to_errno};
use crate::limits::{RECEIVE_BUFFERS, REQUESTS_QUEUED_MAX, SEND_SLICES_MAX};
use crate::time::Span;

/// Entries of the completion queue. Further completions wait in the kernel.
const COMPLETIONS_QUEUED_MAX: u32 = 4096;

/// A ring and what its requests refer to. Nothing of it is freed, since the kernel may use it until the process ends.
pub struct KernelRing {
    submitter: Submitter<'static>,
    submissions: SubmissionQueue<'static>,
    completions: CompletionQueue<'static>,
    /// Requests that found no room in the submission queue.
    backlog: VecDeque<squeue::Entry>,
    buffers: Buffers,
    /// The kernel has a table for registered buffers.
    has_buffer_table: bool,
    /// By slot: what a send of several slices that is in flight refers to.
    messages: Vec<Option<Box<Message>>>,
    #[allow(clippy::vec_box)] // Moved to a slot instead of copied.
    spare: Vec<Box<Message>>,
    tail_buffers: TailBuffers,
}

/// The most that one request writes. It is a multiple of the block size, as direct I/O wants it.
const WRITE_BYTES_MAX: u32 = 1 << 30;

/// io_uring_register(2).
const REGISTER_BUFFERS2: u8 = 15;
const REGISTER_BUFFERS_UPDATE: u8 = 16;
const REGISTER_RING_FDS: u8 = 20;

/// io_uring_enter(2): IORING_SEND_ZC_REPORT_USAGE, and in its notification IORING_NOTIF_USAGE_ZC_COPIED.
const REPORT_USAGE: u16 = 1 << 3;
const WAS_COPIED: u32 = 1 << 31;

/// The slices of a send, in the form that the kernel reads.
struct Message {
    header: msghdr,
    slices: [iovec; SEND_SLICES_MAX],
}

impl KernelRing {
    /// Sets up a ring with all that the driver needs.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the kernel does not know all operations; those of io_uring_setup(2) and io_uring_register(2).
    pub fn new() -> nix::Result<Self> {
        let ring = build()?;
        let buffers = Buffers::register(&ring.submitter())?;
        restrict(&ring.submitter())?;
        let (mut submitter, submissions, completions) = Box::leak(Box::new(ring)).split();
        // Saves a look-up of the descriptor in each call.
        submitter.register_ring_fd().map_err(|error| to_errno(&error))?;
        Ok(Self {
            submitter,
            submissions,
            completions,
            backlog: VecDeque::new(),
            buffers,
            has_buffer_table: false,
            messages: Vec::new(),
            spare: Vec::new(),
            tail_buffers: TailBuffers::default(),
        })
    }

    /// Queues a request.
    ///
    /// # Safety
    /// What the request refers to must stay in place until its last completion.
    unsafe fn push(&mut self, token: Token, entry: squeue::Entry) {
        let entry = entry.user_data(token.to_word());
        // SAFETY: the caller promises what this function demands.
        if !self.backlog.is_empty() || unsafe { self.submissions.push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    /// Moves requests from the backlog to the submission queue.
    fn flush_backlog(&mut self) {
        self.submissions.sync();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the caller of `push` has promised that what it refers to stays in place until its completion.
            if unsafe { self.submissions.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        self.submissions.sync();
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

/// Sets up a ring, if the kernel knows all operations.
fn build() -> nix::Result<IoUring> {
    let ring = set_up().map_err(|error| to_errno(&error))?;
    let mut known = Probe::new();
    ring.submitter().register_probe(&mut known).map_err(|error| to_errno(&error))?;
    let needed = [
        opcode::RecvMulti::CODE,
        opcode::Send::CODE,
        opcode::SendMsg::CODE,
        opcode::PollAdd::CODE,
        opcode::AsyncCancel2::CODE,
        // As old as multishot receives (Linux 6.0), which cannot be probed for.
        opcode::SendZc::CODE,
    ];
    let knows_all = needed.into_iter().all(|code| known.is_supported(code));
    if knows_all { Ok(ring) } else { Err(Errno::EOPNOTSUPP) }
}

/// Restricts the ring to the requests that this driver makes, and enables it.
fn restrict(submitter: &Submitter<'_>) -> nix::Result<()> {
    let operations = [
        opcode::AsyncCancel2::CODE,
        opcode::PollAdd::CODE,
        opcode::Recv::CODE,
        opcode::RecvMsg::CODE,
        opcode::Send::CODE,
        opcode::SendMsg::CODE,
        opcode::SendZc::CODE,
        opcode::Write::CODE,
    ];
    let mut allowed: Vec<Restriction> = operations.map(Restriction::sqe_op).into();
    allowed.extend(
        [REGISTER_BUFFERS2, REGISTER_BUFFERS_UPDATE, REGISTER_RING_FDS].map(Restriction::register_op),
    );
    allowed.push(Restriction::sqe_flags_allowed(squeue::Flags::BUFFER_SELECT.bits()));
    let restricted = submitter.register_restrictions(&mut allowed);
    restricted.and_then(|()| submitter.register_enable_rings()).map_err(|error| to_errno(&error))
}

/// Sets up a ring that only this thread uses. The kernel processes completions when the thread asks for them and never
/// interrupts it. Linux 6.0 does not know `DEFER_TASKRUN`; with `COOP_TASKRUN` it does not interrupt the thread either.
fn set_up() -> io::Result<IoUring> {
    let build = |defers: bool| {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_submit_all().setup_cqsize(COMPLETIONS_QUEUED_MAX);
        // Disabled until it is restricted.
        builder.setup_r_disabled();
        builder.setup_single_issuer().setup_taskrun_flag();
        if defers {
            builder.setup_defer_taskrun()
        } else {
            builder.setup_coop_taskrun()
        };
        builder.build(REQUESTS_QUEUED_MAX)
    };
    build(true).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => build(false),
        _ => Err(error),
    })
}

impl Ring for KernelRing {
    fn watch_listener(&mut self, number: u32, fd: RawFd) {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(Token::Listener(number), entry) };
    }

    fn accept(&mut self, listener: &Listener) -> Result<OwnedFd, AcceptError> {
        listener.accept_blocking()
    }

    fn receive(&mut self, slot: u32, fd: RawFd, is_multishot: bool) {
        let group = group_of(slot);
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
        if !self.has_buffer_table {
            let count = u32::from(REGISTERED_CHUNKS_MAX);
            self.submitter.register_buffers_sparse(count).map_err(|error| to_errno(&error))?;
            self.has_buffer_table = true;
        }
        let buffer = iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the caller keeps the memory mapped.
        unsafe { self.submitter.register_buffers_update(number.into(), &[buffer], None) }
            .map_err(|error| to_errno(&error))
    }

    fn is_remote(&self, fd: RawFd) -> bool {
        let ip = |address: nix::Result<SockaddrStorage>| {
            let address = address.ok()?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()).to_canonical()))
        };
        match (ip(getsockname(fd)), ip(getpeername(fd))) {
            (Some(ours), Some(theirs)) => ours != theirs && !theirs.is_loopback(),
            _ => false,
        }
    }

    fn watch(&mut self, slot: u32, fd: RawFd) {
        // io_uring reports POLLHUP and POLLERR in any case.
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLRDHUP as u32).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(Token::Watch(slot), entry) };
    }

    fn watch_signals(&mut self, fd: RawFd) {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(Token::Signals, entry) };
    }

    fn watch_disk(&mut self, fd: RawFd) {
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build();
        // SAFETY: it refers to no memory.
        unsafe { self.push(Token::Disk, entry) };
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

    fn enter(&mut self, timeout: Option<Span>) -> nix::Result<()> {
        self.flush_backlog();
        self.completions.sync();
        // With requests left over, it would wait for completions that cannot come.
        let waits = timeout != Some(Span::ZERO) && self.backlog.is_empty() && self.completions.is_empty();
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

    fn next(&mut self) -> Option<Completion> {
        let entry = self.completions.next()?;
        let token = Token::from_word(entry.user_data());
        let flags = entry.flags();
        if let Token::Send(slot) = token
            && cqueue::notif(flags)
        {
            let result = Ok(u32::from(entry.result() as u32 & WAS_COPIED != 0));
            let token = Token::Notification(slot);
            return Some(Completion { token, result, buffer: None, is_last: true });
        }
        let result = match entry.result() {
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
        Some(Completion { token, result, buffer, is_last })
    }

    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        if buffer.id < RECEIVE_BUFFERS { self.buffers.bytes(buffer) } else { self.tail_buffers.bytes(buffer) }
    }

    fn give_back(&mut self, buffer: Buffer) {
        if buffer.id < RECEIVE_BUFFERS {
            self.buffers.give_back(buffer);
        } else {
            self.tail_buffers.give_back(&buffer);
        }
    }

    fn peek(&mut self, fd: RawFd) -> nix::Result<usize> {
        recv(fd, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::limits::RECEIVE_BUFFERS_EACH;

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
            ring.watch(slot, quiet.as_raw_fd());
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
