//! The driver for every Linux: readiness by epoll(7), edge-triggered.
//!
//! An iteration takes a batch of events, gives each connection in it at most one receive and one send, gives the server its
//! turn, and waits. A connection is registered once, for all events. The kernel reports changes, and the driver remembers
//! what it has not used up. Level-triggered, the kernel would check each connection a second time only to find that nothing
//! is left.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, recv, send, sendmsg};
use nix::sys::uio::readv;

use super::clock::Clock;
use super::shell::{self, Backend, InputState, Shell};
use super::socket::AcceptError;
use super::{DriverError, Exit, Resources};
use crate::server::{Event, Service};
use crate::values::ids::ConnId;
use crate::values::limits::{EVENTS_MAX, OUTPUT_BYTES_PAUSE, RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MAX};

/// What `stats` calls this driver.
pub const NAME: &str = "epoll";

/// The most that one connection sends before the others have their turn. Reached only by replies far above
/// [`OUTPUT_BYTES_PAUSE`] to a peer that reads as fast as the server writes.
const SEND_BYTES_MAX: usize = 256 * 1024;

const _: () = assert!(OUTPUT_BYTES_PAUSE <= SEND_BYTES_MAX);

/// Runs the server until it stops or restarts in place.
///
/// # Errors
/// If the kernel refuses what the driver needs, or the server fails.
pub fn run<S: Service>(server: S, resources: Resources) -> Result<Exit, DriverError> {
    let mut driver = EpollDriver::new(server, resources).map_err(DriverError::Setup)?;
    let result = driver.run();
    driver.shell.exit(result)
}

struct EpollDriver<S: Service> {
    shell: Shell<S, Connection>,
    epoll: Epoll,
    clock: Clock,
    /// Connections that may have more to receive or to send than one turn allows.
    again: VecDeque<ConnId>,
    /// Every receive goes here first, so that a connection without input holds no buffer.
    receive_buffer: Box<[u8]>,
}

impl<S: Service> EpollDriver<S> {
    fn new(server: S, resources: Resources) -> nix::Result<Self> {
        let (shell, clock) = Shell::new(server, resources);
        let mut driver = Self {
            shell,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            clock,
            again: VecDeque::new(),
            receive_buffer: vec![0; RECEIVE_BYTES_MAX].into(),
        };
        driver.shell.now = clock.now();
        driver.shell.allocated(RECEIVE_BYTES_MAX + EVENTS_MAX * size_of::<EpollEvent>());
        driver.epoll.add(&driver.shell.signals, Token::Signals.event(EpollFlags::EPOLLIN))?;
        if let Some(fd) = driver.shell.outcome_fd() {
            driver.epoll.add(fd, Token::Disk.event(EpollFlags::EPOLLIN))?;
        }
        driver.watch_listeners()?;
        Ok(driver)
    }

    fn run(&mut self) -> Result<(), DriverError> {
        let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
        let mut timeout = EpollTimeout::ZERO;
        // Those that are not processed. The kernel does not repeat them.
        let mut left = 0..0;
        while !self.shell.is_done() {
            if left.is_empty() {
                left = 0..self.wait(&mut events, timeout).map_err(DriverError::Wait)?;
            }
            self.iterate(&events, &mut left)?;
            timeout = self.timeout();
        }
        Ok(())
    }

    fn wait(&mut self, events: &mut [EpollEvent], timeout: EpollTimeout) -> nix::Result<usize> {
        self.shell.counts.kept().waits += 1;
        match self.epoll.wait(events, timeout) {
            // No handler is installed, but a debugger or a SIGSTOP interrupts too.
            Err(Errno::EINTR) => Ok(0),
            result => result,
        }
    }

    /// Processes events and queued connections in turns, up to the budget of an iteration.
    fn iterate(&mut self, events: &[EpollEvent], left: &mut Range<usize>) -> Result<(), DriverError> {
        self.shell.now = self.clock.now();
        let mut again = self.again.len();
        while again > 0 || left.start < left.end {
            if again > 0 {
                again -= 1;
                let conn = self.again.pop_front().expect("the queue does not shrink otherwise");
                self.process_again(conn);
            }
            if let Some(at) = left.next() {
                self.process_event(&events[at])?;
            }
            if self.shell.is_full() {
                break;
            }
        }
        self.run_turn()
    }

    fn process_event(&mut self, event: &EpollEvent) -> Result<(), DriverError> {
        match Token::from_word(event.data()) {
            Token::Connection(conn) => self.process(conn, event.events()),
            Token::Listener(index) => {
                self.accept_batch(index)?;
                self.unwatch_paused_listeners().map_err(DriverError::Accept)?;
            }
            Token::Signals => self.read_signals()?,
            Token::Disk => self.complete_log_requests(),
        }
        Ok(())
    }

    /// The time until the next deadline, rounded up: a wait that ends early would cost an iteration for nothing.
    fn timeout(&self) -> EpollTimeout {
        if !self.again.is_empty() {
            return EpollTimeout::ZERO;
        }
        let Some(deadline) = self.shell.next_deadline() else { return EpollTimeout::NONE };
        let ms = deadline.since(self.shell.now).as_nanos().div_ceil(1_000_000);
        EpollTimeout::try_from(ms).unwrap_or(EpollTimeout::MAX)
    }

    /// Removes listeners where accept is paused from the epoll set, which would not wait while one of them is ready.
    fn unwatch_paused_listeners(&mut self) -> nix::Result<()> {
        for index in 0..self.shell.listeners.len() {
            if self.shell.listeners[index].is_watched && self.shell.is_accept_paused(index) {
                self.shell.listeners[index].is_watched = false;
                self.epoll.delete(&self.shell.listeners[index].listener)?;
            }
        }
        Ok(())
    }

    /// Processes an event of a connection, unless the connection was closed in this iteration.
    fn process(&mut self, conn: ConnId, events: EpollFlags) {
        let Some(connection) = self.shell.connections.get_mut(conn) else { return };
        let is_broken = events.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        connection.is_ending |= is_broken || events.contains(EpollFlags::EPOLLRDHUP);
        connection.stops_short |= events.contains(EpollFlags::EPOLLPRI);
        connection.is_unread |= connection.is_ending || events.contains(EpollFlags::EPOLLIN);
        if connection.is_blocked && events.contains(EpollFlags::EPOLLOUT) {
            connection.is_blocked = false;
            self.send(conn);
            self.carry_out();
        }
        match self.shell.connections.get_mut(conn).map(|connection| connection.input) {
            // Input from before a hang-up is still there. The receive reports the hang-up when all of it is read.
            Some(InputState::Receiving) => self.receive_if_unread(conn),
            Some(InputState::Paused | InputState::Ended) if is_broken => self.hang_up(conn),
            Some(InputState::Paused) => self.check_end(conn),
            _ => {}
        }
        self.carry_out();
    }

    /// Gives a queued connection its next turn, unless it was closed since.
    fn process_again(&mut self, conn: ConnId) {
        let Some(connection) = self.shell.connections.get_mut(conn) else { return };
        connection.is_queued = false;
        if std::mem::take(&mut connection.is_unsent) {
            self.send(conn);
            self.carry_out();
        }
        self.receive_if_unread(conn);
    }

    fn queue(&mut self, conn: ConnId) {
        let is_queued = std::mem::replace(&mut self.shell.connection(conn).is_queued, true);
        if !is_queued {
            self.again.push_back(conn);
        }
    }

    /// Gives a connection one receive, if there may be input and the server wants it.
    fn receive_if_unread(&mut self, conn: ConnId) {
        let is_due =
            |connection: &mut Connection| connection.is_unread && connection.input == InputState::Receiving;
        if self.shell.connections.get_mut(conn).is_some_and(is_due) {
            self.receive(conn);
            self.carry_out();
        }
    }

    /// Receives once: to the place of a large body and behind it to the common buffer, or to the common buffer alone.
    fn receive(&mut self, conn: ConnId) {
        let fd = self.shell.connection(conn).fd.as_raw_fd();
        let common = &mut self.receive_buffer[..];
        let common_bytes = common.len();
        let (direct, room, result) = match self.shell.server.direct(conn) {
            None => (0, common_bytes, recv(fd, common, MsgFlags::empty())),
            Some(place) if place.len() > RECEIVE_DIRECT_BYTES_MAX => {
                let place = &mut place[..RECEIVE_DIRECT_BYTES_MAX];
                (place.len(), place.len(), recv(fd, place, MsgFlags::empty()))
            }
            Some(place) => {
                let (direct, room) = (place.len(), place.len() + common_bytes);
                let fd = &self.shell.connections.get_mut(conn).expect("the connection is open").fd;
                (direct, room, readv(fd, &mut [IoSliceMut::new(place), IoSliceMut::new(common)]))
            }
        };
        match result {
            Ok(0) => self.end_input(conn),
            Ok(bytes) => {
                self.shell.connection(conn).untouched = None;
                self.note_unread(conn, bytes == room);
                self.deliver(conn, bytes, direct);
            }
            Err(Errno::EAGAIN) => self.shell.connection(conn).is_unread = false,
            Err(Errno::EINTR) => self.note_unread(conn, true),
            Err(errno) => self.fail(conn, errno),
        }
    }

    /// Notes after a receive whether there may be more. A receive that was filled may have left input, and an announced end
    /// is still to be read. One that was not filled has used up the input (epoll(7)), unless it stops short for other
    /// reasons.
    fn note_unread(&mut self, conn: ConnId, was_filled: bool) {
        let connection = self.shell.connection(conn);
        connection.is_unread = was_filled || connection.is_ending || connection.stops_short;
        if connection.is_unread {
            self.queue(conn);
        }
    }

    /// Passes received bytes to the server. The first of them, up to `direct`, are in their place.
    fn deliver(&mut self, conn: ConnId, bytes: usize, direct: usize) {
        let direct = bytes.min(direct);
        if direct > 0 {
            self.shell.handle(Event::ReceivedDirect { conn, bytes: direct });
        }
        if bytes > direct {
            let bytes = &self.receive_buffer[..bytes - direct];
            self.shell.handle(Event::Received { conn, bytes });
        }
    }

    /// Checks whether a paused connection's peer has ended its input. The input has ended only if nothing that the peer sent
    /// before lies unread.
    fn check_end(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if !connection.is_ending {
            return;
        }
        match recv(connection.fd.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK) {
            Ok(0) => self.end_input(conn),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => self.shell.handle(Event::InputEnding { conn }),
            Err(errno) => self.fail(conn, errno),
        }
    }

    /// Sends once. Returns the number of bytes, 0 if there are none.
    fn send_once(&mut self, fd: RawFd, conn: ConnId) -> nix::Result<usize> {
        let Shell { iovecs, server, .. } = &mut self.shell;
        let bytes = iovecs.with_outgoing(server, conn, |slices| match slices {
            [] => Ok(0),
            [slice] => send(fd, slice, MsgFlags::MSG_NOSIGNAL),
            slices => sendmsg::<()>(fd, slices, &[], MsgFlags::MSG_NOSIGNAL, None),
        })?;
        if bytes > 0 {
            self.shell.handle(Event::Sent { conn, bytes });
        }
        Ok(bytes)
    }
}

impl<S: Service> Backend for EpollDriver<S> {
    type Service = S;
    type Connection = Connection;

    fn shell(&mut self) -> &mut Shell<S, Connection> {
        &mut self.shell
    }

    /// Sends until nothing is left, the kernel takes no more, or the others have their turn.
    fn send(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.input == InputState::Broken || connection.is_blocked {
            return;
        }
        let fd = connection.fd.as_raw_fd();
        let mut sent = 0;
        while sent < SEND_BYTES_MAX {
            match self.send_once(fd, conn) {
                Ok(0) => return,
                Ok(bytes) => sent += bytes,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return self.shell.connection(conn).is_blocked = true,
                Err(errno) => return self.fail(conn, errno),
            }
        }
        self.shell.connection(conn).is_unsent = true;
        self.queue(conn);
    }

    fn pause(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.input == InputState::Receiving {
            connection.input = InputState::Paused;
            // The kernel may have announced the end before, and does not repeat it.
            self.check_end(conn);
        }
    }

    fn resume(&mut self, conn: ConnId) {
        let connection = self.shell.connection(conn);
        if connection.input == InputState::Paused {
            connection.input = InputState::Receiving;
            if connection.is_unread {
                self.queue(conn);
            }
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.shell.closed(conn);
    }

    fn accept_from(&mut self, listener: usize) -> Result<OwnedFd, AcceptError> {
        self.shell.listeners[listener].listener.accept()
    }

    fn admit(&mut self, listener: usize, fd: OwnedFd) {
        let conn = self.shell.register(listener, &fd);
        let stops_short = self.shell.listeners[listener].listener.is_unix();
        let input = EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI | EpollFlags::EPOLLRDHUP;
        let everything = input | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        let watched = self.epoll.add(&fd, Token::Connection(conn).event(everything));
        self.shell.insert(conn, Connection::new(fd, listener as u16, stops_short));
        if let Err(errno) = watched {
            // The kernel limits how many descriptors a user watches (epoll(7), max_user_watches).
            self.hang_up(conn);
            self.shell.admission.pause(self.shell.now, errno);
        }
        self.carry_out();
    }

    fn watch_listener(&mut self, listener: usize) -> nix::Result<()> {
        let watched = &self.shell.listeners[listener].listener;
        self.epoll.add(watched, Token::Listener(listener).event(EpollFlags::EPOLLIN))
    }
}

struct Connection {
    fd: OwnedFd,
    input: InputState,
    /// The number of its listener, until something has come.
    untouched: Option<u16>,
    /// The kernel may have more than was received.
    is_unread: bool,
    /// A receive may end before the input does: at urgent data, and on a UNIX socket at a message that carries descriptors.
    /// Only a receive that finds nothing shows that nothing is left.
    stops_short: bool,
    /// The kernel has announced the end of the input, or an error.
    is_ending: bool,
    /// The kernel took less than there is to send, and has not announced room since.
    is_blocked: bool,
    /// There is more to send than one turn allows.
    is_unsent: bool,
    /// In the queue for another turn.
    is_queued: bool,
}

impl Connection {
    const fn new(fd: OwnedFd, listener: u16, stops_short: bool) -> Self {
        Self {
            fd,
            input: InputState::Receiving,
            untouched: Some(listener),
            is_unread: false,
            stops_short,
            is_ending: false,
            is_blocked: false,
            is_unsent: false,
            is_queued: false,
        }
    }
}

impl shell::Connection for Connection {
    fn input(&mut self) -> &mut InputState {
        &mut self.input
    }

    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn untouched(&self) -> Option<u16> {
        self.untouched
    }

    fn into_fd(self) -> Option<OwnedFd> {
        Some(self.fd)
    }
}

/// What an event is about, packed into the word that epoll returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Connection(ConnId),
    Listener(usize),
    Signals,
    Disk,
}

impl Token {
    /// No connection has this slot: there are not that many descriptors.
    const NO_CONNECTION: u32 = u32::MAX;
    /// The generations under that slot that stand for no listener.
    const SIGNALS: u32 = u32::MAX;
    const DISK: u32 = u32::MAX - 1;

    const fn event(self, flags: EpollFlags) -> EpollEvent {
        EpollEvent::new(flags, self.to_word())
    }

    const fn to_word(self) -> u64 {
        let (slot, generation) = match self {
            Self::Connection(conn) => return conn.to_u64(),
            Self::Listener(index) => (Self::NO_CONNECTION, index as u32),
            Self::Signals => (Self::NO_CONNECTION, Self::SIGNALS),
            Self::Disk => (Self::NO_CONNECTION, Self::DISK),
        };
        ConnId { slot, generation }.to_u64()
    }

    const fn from_word(word: u64) -> Self {
        let conn = ConnId::from_u64(word);
        match (conn.slot, conn.generation) {
            (Self::NO_CONNECTION, Self::SIGNALS) => Self::Signals,
            (Self::NO_CONNECTION, Self::DISK) => Self::Disk,
            (Self::NO_CONNECTION, index) => Self::Listener(index as usize),
            _ => Self::Connection(conn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_round_trip() {
        let last = ConnId { slot: u32::MAX - 1, generation: u32::MAX };
        for token in [
            Token::Connection(ConnId { slot: 0, generation: 0 }),
            Token::Connection(last),
            Token::Listener(0),
            Token::Listener(7),
            Token::Signals,
            Token::Disk,
        ] {
            assert_eq!(Token::from_word(token.to_word()), token);
        }
    }
}
