//! A fake kernel for tests: sockets in memory, and requests that complete late, in pieces, in any order, and in every other way that
//! a real one may.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use nix::errno::Errno;

use super::ring::{Buffer, Completion, Flags, Group, Ring, Token};
use crate::io::socket::{AcceptError, Listener};
use crate::time::Span;
use crate::values::limits::RECEIVE_BYTES_MAX;
use beanring_testkit::random::Random;

/// Few, so that they run out.
const BUFFERS: u16 = 3;

/// The ring of the fake kernel.
pub struct FakeRing {
    pub random: Random,
    pub sockets: HashMap<RawFd, Socket>,
    pub requests: Vec<Request>,
    pub completions: VecDeque<Completion>,
    /// The results of accept(2) at the first listener.
    pub backlog: VecDeque<Result<RawFd, Errno>>,
    /// The contents of each receive buffer, `None` while the kernel has it. Then those of tail buffers.
    pub buffers: Vec<Option<Vec<u8>>>,
    /// The memory of registered buffers, by number.
    pub registered: HashMap<u16, Range<usize>>,
    /// A cancellation is processed once in this number of steps.
    pub cancel_delay: usize,
    /// Receives take all input, and multishot ones end only for a reason.
    pub is_steady: bool,
    /// Refuses zero-copy sends that report a copy, as Linux 6.0 does.
    pub refuses_zero_copy: bool,
}

#[derive(Default)]
pub struct Socket {
    pub input: VecDeque<u8>,
    pub output: Vec<u8>,
    /// The most output that the peer has not read.
    pub window: usize,
    /// The number of bytes that were received straight to their place.
    pub direct: usize,
    pub input_ended: bool,
    /// Sends fail.
    pub is_deaf: bool,
    /// Receives fail too.
    pub is_broken: bool,
    /// The error of receives, though the connection is not broken.
    pub receives_fail: Option<Errno>,
    /// The peer is on another machine.
    pub is_remote: bool,
    /// An armed multishot receive does not report input until more comes.
    pub loses_wakeup: bool,
}

pub struct Request {
    pub token: Token,
    pub fd: RawFd,
    pub work: Work,
}

pub enum Work {
    /// Does not complete by itself.
    Wait,
    /// Connections wait at the listener.
    WatchListener,
    Receive {
        is_multishot: bool,
    },
    ReceiveInto {
        place: *mut [u8],
        filled: usize,
    },
    Send {
        output: Output,
        is_zero_copy: bool,
        waits: bool,
        sent: usize,
    },
    /// The network still reads a zero-copy send.
    Notify {
        output: Output,
    },
    Watch,
    Cancel(Token),
}

/// The output of a send: its bytes at the time of the request, and the places where they must stay.
#[derive(Default)]
pub struct Output {
    pub bytes: Vec<u8>,
    pub places: Vec<(*const u8, usize)>,
}

impl FakeRing {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            cancel_delay: [1, 4, 100][random.below(3)],
            random,
            sockets: HashMap::new(),
            requests: Vec::new(),
            completions: VecDeque::new(),
            backlog: VecDeque::new(),
            buffers: vec![None; BUFFERS as usize],
            registered: HashMap::new(),
            is_steady: false,
            refuses_zero_copy: false,
        }
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.random.below(count) == 0
    }

    /// Adds a connection to the backlog of the first listener.
    pub fn connect(&mut self, fd: RawFd) {
        assert!(self.requests.iter().all(|request| request.fd != fd), "a closed descriptor is in use");
        let window = [1000, 20_000, 1_000_000][self.random.below(3)];
        let is_remote = self.one_in(2);
        let before = self.sockets.insert(fd, Socket { window, is_remote, ..Socket::default() });
        assert!(before.is_none(), "an open descriptor is not reused");
        self.backlog.push_back(Ok(fd));
    }

    /// Whether the driver watches the listener.
    pub fn accepts(&self) -> bool {
        self.requests.iter().any(|request| request.token == Token::Listener(0))
    }

    pub fn request(&mut self, token: Token, fd: RawFd, work: Work) {
        let is_twice = self.requests.iter().any(|request| request.token == token && token != Token::Cancel);
        assert!(!is_twice, "{token:?} is in flight twice");
        self.requests.push(Request { token, fd, work });
    }

    pub fn complete(
        &mut self,
        token: Token,
        result: Result<u32, Errno>,
        buffer: Option<Buffer>,
        is_last: bool,
    ) {
        self.completions.push_back(Completion { token, result, buffer, is_last });
    }

    /// Completes a request without a buffer, and for the last time. Returns that it is done.
    fn end(&mut self, token: Token, result: Result<u32, Errno>) -> bool {
        self.complete(token, result, None, true);
        true
    }

    /// Whether no request can make progress.
    pub fn is_at_rest(&self) -> bool {
        self.completions.is_empty() && !self.requests.iter().any(|request| self.can_progress(request))
    }

    pub fn can_progress(&self, request: &Request) -> bool {
        let ends = |socket: &Socket| socket.input_ended || socket.is_broken;
        match request.work {
            Work::Wait => false,
            Work::WatchListener => !self.backlog.is_empty(),
            Work::Cancel(_) | Work::Notify { .. } => true,
            Work::Send { waits: false, .. } => true,
            Work::Send { .. } => self.can_send(request.fd),
            Work::Watch => ends(&self.sockets[&request.fd]),
            Work::Receive { is_multishot: true } if self.sockets[&request.fd].loses_wakeup => false,
            Work::Receive { .. } | Work::ReceiveInto { .. } => {
                let socket = &self.sockets[&request.fd];
                ends(socket) || socket.receives_fail.is_some() || !socket.input.is_empty()
            }
        }
    }

    /// Checks that no send waits on a socket whose peer has ended its input: a kernel would try again and again, and then leave the
    /// send to a thread.
    pub fn check_waits(&self) {
        for request in &self.requests {
            let waits = matches!(request.work, Work::Send { waits: true, .. });
            assert!(
                !waits || !self.sockets[&request.fd].input_ended,
                "a thread of the kernel waits for a peer"
            );
        }
    }

    pub fn can_send(&self, fd: RawFd) -> bool {
        let socket = &self.sockets[&fd];
        // If another request reports the break, the send need not.
        let is_reported = || self.requests.iter().any(|other| other.fd == fd && !other.is_send());
        match socket.output.len() < socket.window {
            true => true,
            false if socket.is_broken => !is_reported(),
            false => socket.is_deaf,
        }
    }

    /// Makes progress with one of the requests.
    pub fn step(&mut self) {
        let is_able = |&at: &usize| self.can_progress(&self.requests[at]);
        let able: Vec<usize> = (0..self.requests.len()).filter(is_able).collect();
        if able.is_empty() {
            return;
        }
        let at = able[self.random.below(able.len())];
        // So late that the request to be cancelled, and others, often complete first.
        if matches!(self.requests[at].work, Work::Cancel(_)) && !self.one_in(self.cancel_delay) {
            return;
        }
        let mut request = self.requests.swap_remove(at);
        let is_done = match &mut request.work {
            Work::Wait => unreachable!("it does not progress"),
            Work::WatchListener => self.end(request.token, Ok(1)),
            Work::Receive { is_multishot } => self.receive_some(request.token, request.fd, *is_multishot),
            Work::ReceiveInto { place, filled } => self.fill_some(request.token, request.fd, *place, filled),
            Work::Send { output, is_zero_copy, sent, .. } => {
                output.check_unmoved();
                self.send_some(request.token, request.fd, output, sent, *is_zero_copy)
            }
            Work::Notify { output } => {
                output.check_unmoved();
                let was_copied = u32::from(self.one_in(32));
                self.end(request.token, Ok(was_copied))
            }
            Work::Watch => {
                let fails = !self.is_steady && self.one_in(4);
                self.end(request.token, if fails { Err(Errno::ENOMEM) } else { Ok(1) })
            }
            Work::Cancel(token) => {
                self.cancel_now(*token);
                true
            }
        };
        if !is_done {
            self.requests.push(request);
        }
    }

    pub fn receive_some(&mut self, token: Token, fd: RawFd, is_multishot: bool) -> bool {
        let free = self.buffers[..BUFFERS as usize].iter().position(Option::is_none);
        let failure = [Errno::ENOBUFS, Errno::EINTR, Errno::EAGAIN, Errno::ECANCELED][self.random.below(4)];
        let fails = !self.is_steady && self.one_in(16);
        let is_steady = self.is_steady;
        let most = if self.one_in(2) { 1 + self.random.below(40) } else { RECEIVE_BYTES_MAX };
        let share = self.random.next() as usize;
        let socket = self.sockets.get_mut(&fd).expect("the socket exists");
        let (result, buffer) = match free {
            _ if socket.is_broken => (Err(Errno::ECONNRESET), None),
            _ if let Some(errno) = socket.receives_fail => (Err(errno), None),
            // Some kernels return a buffer with the end of the input.
            Some(id) if socket.input.is_empty() && share.is_multiple_of(2) => {
                self.buffers[id] = Some(Vec::new());
                (Ok(0), Some(Buffer { id: id as u16, len: 0 }))
            }
            _ if socket.input.is_empty() => (Ok(0), None),
            None => (Err(Errno::ENOBUFS), None),
            Some(_) if fails => (Err(failure), None),
            Some(id) => {
                let available = socket.input.len().min(if is_steady { RECEIVE_BYTES_MAX } else { most });
                let count = if is_steady { available } else { 1 + share % available };
                self.buffers[id] = Some(socket.input.drain(..count).collect());
                (Ok(count as u32), Some(Buffer { id: id as u16, len: count as u32 }))
            }
        };
        let goes_on = buffer.is_some() && result != Ok(0) && is_multishot;
        let is_last = !goes_on || !self.is_steady && self.one_in(8);
        self.complete(token, result, buffer, is_last);
        is_last
    }

    pub fn fill_some(&mut self, token: Token, fd: RawFd, place: *mut [u8], filled: &mut usize) -> bool {
        let ends_short = self.one_in(4);
        let goes_beyond = self.one_in(2);
        let share = self.random.next() as usize;
        let socket = self.sockets.get_mut(&fd).expect("the socket exists");
        let room = (place.len() - *filled).min(socket.input.len());
        if socket.is_broken && *filled == 0 {
            return self.end(token, Err(Errno::ECONNRESET));
        }
        if room > 0 && !socket.is_broken {
            let count = 1 + share % room;
            // SAFETY: the driver has promised that the place stays, unused, until this completes.
            let place = unsafe { &mut *place };
            for (to, from) in place[*filled..].iter_mut().zip(socket.input.drain(..count)) {
                *to = from;
            }
            *filled += count;
            socket.direct += count;
        }
        let is_over = socket.is_broken || socket.input_ended && socket.input.is_empty();
        let is_done = *filled == place.len() || is_over || ends_short;
        let beyond = if *filled == place.len() && goes_beyond { RECEIVE_BYTES_MAX } else { 0 };
        let beyond: Vec<u8> = socket.input.drain(..beyond.min(socket.input.len())).collect();
        if is_done {
            let result = Ok((*filled + beyond.len()) as u32);
            let buffer = (!beyond.is_empty()).then(|| self.fill_buffer(beyond));
            self.complete(token, result, buffer, true);
        }
        is_done
    }

    fn fill_buffer(&mut self, bytes: Vec<u8>) -> Buffer {
        let (id, len) = (self.buffers.len() as u16, bytes.len() as u32);
        self.buffers.push(Some(bytes));
        Buffer { id, len }
    }

    pub fn send_some(
        &mut self,
        token: Token,
        fd: RawFd,
        output: &mut Output,
        sent: &mut usize,
        is_zero_copy: bool,
    ) -> bool {
        if is_zero_copy && self.refuses_zero_copy {
            return self.end(token, Err(Errno::EINVAL));
        }
        let rest = &output.bytes[*sent..];
        let is_whole = self.one_in(2);
        let (is_over, fails) = (self.one_in(2), self.one_in(16));
        // Memory is short only for a send that locks some.
        let failures = if is_zero_copy { 3 } else { 2 };
        let failure = [Errno::EINTR, Errno::EAGAIN, Errno::ENOMEM][self.random.below(failures)];
        let share = self.random.next() as usize;
        let socket = self.sockets.get_mut(&fd).expect("the socket exists");
        let room = socket.window.saturating_sub(socket.output.len()).min(rest.len());
        let failure = match fails {
            _ if socket.is_broken || socket.is_deaf => Some(Errno::EPIPE),
            true => Some(failure),
            false if room == 0 => Some(Errno::EAGAIN),
            false => None,
        };
        if failure.is_none() {
            let count = if is_whole { room } else { 1 + share % room };
            socket.output.extend_from_slice(&rest[..count]);
            *sent += count;
        }
        let is_done = *sent == output.bytes.len() || is_over || failure.is_some();
        if is_done {
            // A failed send may have a notification too.
            let is_last = !is_zero_copy || self.one_in(8);
            let result = failure.filter(|_| *sent == 0).map_or(Ok(*sent as u32), Err);
            self.complete(token, result, None, is_last);
            if !is_last {
                let Token::Send(slot) = token else { unreachable!("only sends are sent") };
                let work = Work::Notify { output: std::mem::take(output) };
                self.requests.push(Request { token: Token::Notification(slot), fd: -1, work });
            }
        }
        is_done
    }

    pub fn cancel_now(&mut self, token: Token) {
        let found = self.requests.iter().position(|request| request.token == token);
        let reports_first = self.one_in(2);
        let answer = found.map(|_| 0).ok_or(Errno::ENOENT);
        if reports_first {
            self.end(Token::Cancel, answer);
        }
        if let Some(at) = found {
            let Request { fd, work, .. } = self.requests.swap_remove(at);
            if let Some(socket) = self.sockets.get_mut(&fd) {
                socket.loses_wakeup = false;
            }
            let result = match work {
                Work::ReceiveInto { filled: done, .. } | Work::Send { sent: done, .. } if done > 0 => {
                    Ok(done as u32)
                }
                _ => Err(Errno::ECANCELED),
            };
            self.end(token, result);
        }
        if !reports_first {
            self.end(Token::Cancel, answer);
        }
    }
}

impl Request {
    pub fn is_send(&self) -> bool {
        matches!(self.work, Work::Send { .. })
    }
}

impl Output {
    pub fn new(slices: &[&[u8]]) -> Self {
        Self {
            bytes: slices.concat(),
            places: slices.iter().map(|slice| (slice.as_ptr(), slice.len())).collect(),
        }
    }

    /// Checks that the output is in place and unchanged.
    pub fn check_unmoved(&self) {
        let mut rest = &self.bytes[..];
        for &(place, len) in &self.places {
            // SAFETY: the driver has promised that the bytes stay until this completes.
            let now = unsafe { std::slice::from_raw_parts(place, len) };
            let (then, after) = rest.split_at(len);
            assert!(now == then, "output in flight is unchanged");
            rest = after;
        }
    }
}

impl Ring for FakeRing {
    fn group_of(&self, _: u32) -> Group {
        Group { number: 0, buffers: BUFFERS }
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn watch(&mut self, token: Token, fd: RawFd) {
        let work = match token {
            Token::Listener(_) => Work::WatchListener,
            Token::Watch(_) => Work::Watch,
            _ => Work::Wait,
        };
        self.request(token, fd, work);
    }

    fn accept(&mut self, _: &Listener) -> Result<OwnedFd, AcceptError> {
        let fd = self.backlog.pop_front().unwrap_or(Err(Errno::EAGAIN))?;
        // SAFETY: the test has created it for the driver.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn receive(&mut self, slot: u32, fd: RawFd, is_multishot: bool) {
        self.request(Token::Receive(slot), fd, Work::Receive { is_multishot });
    }

    unsafe fn receive_into(&mut self, slot: u32, fd: RawFd, place: *mut [u8]) {
        self.request(Token::Receive(slot), fd, Work::ReceiveInto { place, filled: 0 });
    }

    unsafe fn send(&mut self, slot: u32, fd: RawFd, slices: &[IoSlice<'_>], flags: Flags) {
        let slices: Vec<&[u8]> = slices.iter().map(|slice| &slice[..]).collect();
        let work =
            Work::Send { output: Output::new(&slices), is_zero_copy: false, waits: flags.wait, sent: 0 };
        self.request(Token::Send(slot), fd, work);
    }

    unsafe fn send_zero_copy(&mut self, slot: u32, fd: RawFd, piece: &[u8], buffer: Option<u16>, wait: bool) {
        if let Some(number) = buffer {
            let memory = &self.registered[&number];
            assert!(memory.contains(&piece.as_ptr().addr()), "the piece lies in its buffer");
        }
        let work = Work::Send { output: Output::new(&[piece]), is_zero_copy: true, waits: wait, sent: 0 };
        self.request(Token::Send(slot), fd, work);
    }

    unsafe fn register(&mut self, number: u16, memory: NonNull<[u8]>) -> nix::Result<()> {
        if self.one_in(8) {
            return Err(Errno::ENOMEM);
        }
        let start = memory.addr().get();
        let before = self.registered.insert(number, start..start + memory.len());
        assert_eq!(before, None, "a number is used once");
        Ok(())
    }

    fn is_remote(&self, fd: RawFd) -> bool {
        self.sockets[&fd].is_remote
    }

    unsafe fn write(&mut self, _: RawFd, _: u64, _: &[u8]) {
        unreachable!("the server has no log");
    }

    fn cancel(&mut self, token: Token) {
        self.request(Token::Cancel, -1, Work::Cancel(token));
    }

    fn enter(&mut self, _: Option<Span>) -> nix::Result<()> {
        for _ in 0..self.random.below(8) {
            self.step();
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        self.buffers[buffer.id as usize].as_deref().expect("the buffer is filled")
    }

    fn give_back(&mut self, buffer: Buffer) {
        let before = self.buffers[buffer.id as usize].take();
        assert!(before.is_some(), "a buffer is given back once");
    }

    fn peek(&mut self, fd: RawFd) -> nix::Result<usize> {
        let socket = &self.sockets[&fd];
        match socket.input.len() {
            _ if socket.is_broken => Err(Errno::ECONNRESET),
            0 if socket.input_ended => Ok(0),
            0 => Err(Errno::EAGAIN),
            _ => Ok(1),
        }
    }
}
