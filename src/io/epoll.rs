//! The driver for every Linux: readiness by epoll(7), edge-triggered.
//!
//! A turn takes a batch of events, serves each connection in it with at most one receive and one send,
//! gives the server its own time, and waits. A connection is registered once, for everything: the kernel
//! tells when something changes, and the driver remembers what it has not used up. Level-triggered, the
//! kernel would look at each connection a second time, to find that nothing is left.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{MsgFlags, recv, send, sendmsg};
use nix::sys::uio::readv;
use tracing::debug;

use super::breaks::Breaks;
use super::clock::Clock;
use super::descriptors::Admission;
use super::host::cpu_usage;
use super::iovecs::recycle;
use super::signal::{Signal, Signals};
use super::socket::{AcceptError, Listener, peer_name};
use super::table::Table;
use super::wal_files::Disk;
use super::{DriverError, Ending, Sources};
use crate::ids::ConnId;
use crate::limits::{ACCEPTS_MAX, EVENTS_MAX, RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MAX, SEND_BYTES_MAX};
use crate::server::{DriverStats, Effect, Event, Protocol, Service};
use crate::time::Time;

/// What `stats` calls this driver.
pub const NAME: &str = "epoll";

/// Serves until the process is told to stop, or to let another program take over.
pub fn run<S: Service>(server: S, sources: Sources) -> Result<Ending, DriverError> {
    let mut driver = Driver::new(server, sources).map_err(DriverError::Setup)?;
    let mut events = vec![EpollEvent::empty(); EVENTS_MAX];
    let mut timeout = EpollTimeout::ZERO;
    while !driver.is_done() {
        let count = driver.wait(&mut events, timeout).map_err(DriverError::Wait)?;
        timeout = driver.turn(&events[..count])?;
    }
    if let Some(why) = driver.server.failure() {
        return Err(DriverError::Server(why));
    }
    let listeners = driver.listeners.into_iter().map(|listening| listening.listener);
    Ok(Ending::of(driver.is_replaced, listeners, driver.disk))
}

struct Driver<S> {
    server: S,
    epoll: Epoll,
    clock: Clock,
    stats: DriverStats,
    memory_bytes: u64,
    /// Read once a turn.
    now: Time,
    listeners: Vec<Listening>,
    admission: Admission,
    breaks: Breaks,
    signals: Signals,
    disk: Option<Disk>,
    connections: Table<Connection>,
    /// Connections that may have more to receive or to send than they were given a turn for.
    again: VecDeque<ConnId>,
    /// Every receive goes here first, so that a connection without input holds no buffer.
    received: Box<[u8]>,
    /// Empty between sends; kept for its allocation.
    slices: Vec<IoSlice<'static>>,
    stopping: bool,
    /// Another program takes over then.
    is_replaced: bool,
    has_failed: bool,
}

struct Listening {
    listener: Listener,
    /// It is in the loop.
    is_watched: bool,
}

impl<S: Service> Driver<S> {
    fn new(server: S, sources: Sources) -> nix::Result<Self> {
        let Sources { listeners, signals, clock, disk, connections_max, .. } = sources;
        let mut driver = Self {
            server,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            clock,
            admission: Admission::new(connections_max, disk.as_ref().map(Disk::reserve)),
            stats: DriverStats::default(),
            memory_bytes: 0,
            now: clock.now(),
            listeners: listeners
                .into_iter()
                .map(|listener| Listening { listener, is_watched: false })
                .collect(),
            breaks: Breaks::default(),
            signals,
            disk,
            connections: Table::new(),
            again: VecDeque::new(),
            received: vec![0; RECEIVE_BYTES_MAX].into(),
            slices: Vec::new(),
            stopping: false,
            is_replaced: false,
            has_failed: false,
        };
        driver.grow_memory(RECEIVE_BYTES_MAX + EVENTS_MAX * size_of::<EpollEvent>());
        driver.epoll.add(&driver.signals, Token::Signals.event(EpollFlags::EPOLLIN))?;
        if let Some(disk) = &driver.disk {
            driver.epoll.add(disk.outcome_fd(), Token::Disk.event(EpollFlags::EPOLLIN))?;
        }
        driver.watch_listeners()?;
        Ok(driver)
    }

    /// Told to stop, with everything on disk that is to be there; or unable to go on.
    fn is_done(&self) -> bool {
        self.has_failed || self.stopping && self.server.is_settled()
    }

    fn wait(&mut self, events: &mut [EpollEvent], timeout: EpollTimeout) -> nix::Result<usize> {
        self.stats.enters += 1;
        match self.epoll.wait(events, timeout) {
            // No handler is installed, but a debugger or a SIGSTOP interrupts too.
            Err(Errno::EINTR) => Ok(0),
            result => result,
        }
    }

    /// Serves a batch of events, and tells how long the next one may be waited for.
    fn turn(&mut self, events: &[EpollEvent]) -> Result<EpollTimeout, DriverError> {
        self.now = self.clock.now();
        for _ in 0..self.again.len() {
            let conn = self.again.pop_front().expect("it has as many");
            self.serve_again(conn);
        }
        for event in events {
            match Token::from_word(event.data()) {
                Token::Connection(conn) => self.serve(conn, event.events()),
                Token::Listener(index) => self.accept(index)?,
                Token::Signals => self.read_signals()?,
                Token::Disk => self.hear_disk(),
            }
        }
        self.server.turn(self.now);
        self.carry_out();
        if self.admission.resume(self.now) {
            self.watch_listeners().map_err(DriverError::Accept)?;
        }
        Ok(self.patience())
    }

    /// The time until the next deadline, rounded up: a wait that ends early would be a turn for nothing.
    fn patience(&self) -> EpollTimeout {
        if !self.again.is_empty() {
            return EpollTimeout::ZERO;
        }
        let deadlines = [self.server.next_deadline(), self.admission.deadline()];
        let Some(first) = deadlines.into_iter().flatten().min() else { return EpollTimeout::NONE };
        let ms = first.since(self.now).as_nanos().div_ceil(1_000_000);
        EpollTimeout::try_from(ms).unwrap_or(EpollTimeout::MAX)
    }

    fn read_signals(&mut self) -> Result<(), DriverError> {
        while let Some(signal) = self.signals.take().map_err(DriverError::Signals)? {
            match signal {
                Signal::Stop => self.stop(false),
                Signal::Replace if self.stopping => {}
                Signal::Replace => self.stop(true),
                Signal::Drain => self.tell(Event::Drain),
            }
        }
        self.carry_out();
        Ok(())
    }

    fn stop(&mut self, is_replaced: bool) {
        (self.stopping, self.is_replaced) = (true, is_replaced);
        self.tell(Event::Stop);
    }

    fn use_disk(&mut self) {
        self.disk.as_mut().expect("a server with a log has a disk").serve(&mut self.server, self.now);
    }

    /// The disk has done something.
    fn hear_disk(&mut self) {
        let disk = self.disk.as_mut().expect("it has rung");
        disk.clear_outcome_fd();
        while let Some(outcome) = disk.finished() {
            self.server.handle(self.now, Event::Disk(outcome));
        }
        self.carry_out();
    }

    fn accept(&mut self, index: usize) -> Result<(), DriverError> {
        for _ in 0..ACCEPTS_MAX {
            let listener = &self.listeners[index].listener;
            if self.admission.turns_away(listener.protocol()) {
                break;
            }
            match listener.accept().and_then(|fd| self.admit(index, fd)) {
                Ok(()) | Err(AcceptError::Peer) => {}
                Err(AcceptError::Empty) => break,
                Err(AcceptError::Exhausted(errno)) => self.admission.rest(self.now, errno),
                Err(AcceptError::Listener(errno)) => return Err(DriverError::Accept(errno)),
            }
        }
        self.ignore_listeners_at_rest().map_err(DriverError::Accept)
    }

    fn admit(&mut self, index: usize, fd: OwnedFd) -> Result<(), AcceptError> {
        let listener = &self.listeners[index].listener;
        let (protocol, stops_short) = (listener.protocol(), listener.is_unix());
        let conn = self.server.accept(protocol);
        debug!(conn = conn.slot, peer = peer_name(&fd), "connected");
        let input = EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI | EpollFlags::EPOLLRDHUP;
        let everything = input | EpollFlags::EPOLLOUT;
        let watched = self.epoll.add(&fd, Token::Connection(conn).event(everything | EpollFlags::EPOLLET));
        let before = self.connections.bytes();
        self.connections.insert(conn, Connection::new(fd, protocol, stops_short));
        self.grow_memory(self.connections.bytes() - before);
        self.admission.opened(protocol, self.now);
        if watched.is_err() {
            self.hang_up(conn);
        }
        self.carry_out();
        // There is a limit to what one user may watch (epoll(7), max_user_watches).
        watched.map_err(AcceptError::Exhausted)
    }

    /// While new connections are left in the kernel's queue, their listener is out of the loop, which would
    /// not wait while it is ready.
    fn ignore_listeners_at_rest(&mut self) -> nix::Result<()> {
        for Listening { listener, is_watched } in &mut self.listeners {
            if *is_watched && self.admission.turns_away(listener.protocol()) {
                *is_watched = false;
                self.epoll.delete(&*listener)?;
            }
        }
        Ok(())
    }

    fn watch_listeners(&mut self) -> nix::Result<()> {
        for (index, Listening { listener, is_watched }) in self.listeners.iter_mut().enumerate() {
            if !*is_watched && !self.admission.turns_away(listener.protocol()) {
                *is_watched = true;
                self.epoll.add(&*listener, Token::Listener(index).event(EpollFlags::EPOLLIN))?;
            }
        }
        Ok(())
    }

    /// What has changed for one connection. Nothing is done for one that has been closed since.
    fn serve(&mut self, conn: ConnId, change: EpollFlags) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        let is_broken = change.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        connection.is_ending |= is_broken || change.contains(EpollFlags::EPOLLRDHUP);
        connection.stops_short |= change.contains(EpollFlags::EPOLLPRI);
        connection.is_unread |= connection.is_ending || change.contains(EpollFlags::EPOLLIN);
        if connection.is_blocked && change.contains(EpollFlags::EPOLLOUT) {
            connection.is_blocked = false;
            self.send(conn);
            self.carry_out();
        }
        match self.connections.get_mut(conn).map(|connection| connection.phase) {
            // What came before a hang-up is still there; the receive tells when all has been read.
            Some(Phase::Reading) => self.receive_if_unread(conn),
            Some(Phase::Paused | Phase::Ended) if is_broken => self.hang_up(conn),
            Some(Phase::Paused) => self.notice_end(conn),
            _ => {}
        }
        self.carry_out();
    }

    /// Gives a connection its next turn, unless it has been closed since it was queued for one.
    fn serve_again(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        connection.is_queued = false;
        if std::mem::take(&mut connection.is_unsent) {
            self.send(conn);
            self.carry_out();
        }
        self.receive_if_unread(conn);
    }

    fn queue(&mut self, conn: ConnId) {
        let is_queued = std::mem::replace(&mut self.connection(conn).is_queued, true);
        if !is_queued {
            self.again.push_back(conn);
        }
    }

    /// Gives a connection one receive, if there may be something to receive and the server wants it.
    fn receive_if_unread(&mut self, conn: ConnId) {
        let wanted =
            |connection: &&mut Connection| connection.is_unread && connection.phase == Phase::Reading;
        if self.connections.get_mut(conn).as_ref().is_some_and(wanted) {
            self.receive(conn);
            self.carry_out();
        }
    }

    fn receive(&mut self, conn: ConnId) {
        let fd = self.connection(conn).raw_fd();
        let shared = &mut self.received[..];
        let shared_bytes = shared.len();
        let (direct, room, result) = match self.server.direct(conn) {
            None => (0, shared_bytes, recv(fd, shared, MsgFlags::empty())),
            Some(place) if place.len() > RECEIVE_DIRECT_BYTES_MAX => {
                let place = &mut place[..RECEIVE_DIRECT_BYTES_MAX];
                (place.len(), place.len(), recv(fd, place, MsgFlags::empty()))
            }
            Some(place) => {
                let (direct, room) = (place.len(), place.len() + shared_bytes);
                let fd = &self.connections.get_mut(conn).expect("it is being served").fd;
                (direct, room, readv(fd, &mut [IoSliceMut::new(place), IoSliceMut::new(shared)]))
            }
        };
        match result {
            Ok(0) => self.end_input(conn),
            Ok(bytes) => {
                self.leave_unread(conn, bytes == room);
                self.take_in(conn, bytes, direct);
            }
            Err(Errno::EAGAIN) => self.connection(conn).is_unread = false,
            Err(Errno::EINTR) => self.leave_unread(conn, true),
            Err(errno) => self.break_off(conn, errno),
        }
    }

    /// After a receive: one that was filled may have left something, and an end that was announced is
    /// still to be read. One that was not filled has used up the input (epoll(7)), unless it stops short
    /// for other reasons.
    fn leave_unread(&mut self, conn: ConnId, was_filled: bool) {
        let connection = self.connection(conn);
        connection.is_unread = was_filled || connection.is_ending || connection.stops_short;
        if connection.is_unread {
            self.queue(conn);
        }
    }

    /// Hands over `bytes` received bytes, of which the first, up to `room`, went to their place directly.
    fn take_in(&mut self, conn: ConnId, bytes: usize, room: usize) {
        let direct = bytes.min(room);
        if direct > 0 {
            self.tell(Event::ReceivedDirect { conn, bytes: direct });
        }
        if bytes > direct {
            let bytes = &self.received[..bytes - direct];
            self.server.handle(self.now, Event::Received { conn, bytes });
        }
    }

    /// A paused connection's peer will send no more. Its input has ended only if nothing that it sent
    /// before lies unread.
    fn notice_end(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if !connection.is_ending {
            return;
        }
        match recv(connection.raw_fd(), &mut [0], MsgFlags::MSG_PEEK) {
            Ok(0) => self.end_input(conn),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => self.tell(Event::InputEnding { conn }),
            Err(errno) => self.break_off(conn, errno),
        }
    }

    fn end_input(&mut self, conn: ConnId) {
        self.connection(conn).phase = Phase::Ended;
        self.tell(Event::InputEnded { conn });
    }

    fn hang_up(&mut self, conn: ConnId) {
        self.connection(conn).phase = Phase::Broken;
        self.tell(Event::HungUp { conn });
    }

    /// The kernel does nothing more for a connection.
    fn break_off(&mut self, conn: ConnId, errno: Errno) {
        self.breaks.note(self.now, conn, errno);
        self.hang_up(conn);
    }

    /// Sends until there is nothing left, the kernel takes no more (it tells when it does again), or it
    /// is the others' turn.
    fn send(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if connection.phase == Phase::Broken || connection.is_blocked {
            return;
        }
        let fd = connection.raw_fd();
        let mut sent = 0;
        while sent < SEND_BYTES_MAX {
            match self.send_once(fd, conn) {
                Ok(0) => return,
                Ok(bytes) => sent += bytes,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return self.connection(conn).is_blocked = true,
                Err(errno) => return self.break_off(conn, errno),
            }
        }
        self.connection(conn).is_unsent = true;
        self.queue(conn);
    }

    /// Sends once; how many bytes, 0 if there are none.
    fn send_once(&mut self, fd: RawFd, conn: ConnId) -> nix::Result<usize> {
        let mut slices = recycle(std::mem::take(&mut self.slices));
        self.server.outgoing(conn, &mut slices);
        let result = match &slices[..] {
            [] => Ok(0),
            [slice] => send(fd, slice, MsgFlags::MSG_NOSIGNAL),
            slices => sendmsg::<()>(fd, slices, &[], MsgFlags::MSG_NOSIGNAL, None),
        };
        self.slices = recycle(slices);
        let bytes = result?;
        if bytes > 0 {
            self.tell(Event::Sent { conn, bytes });
        }
        Ok(bytes)
    }

    /// Does what the server asks; what that leads to may make it ask for more.
    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Send(conn) => self.send(conn),
                Effect::Pause(conn) => self.pause(conn),
                Effect::Resume(conn) => self.resume(conn),
                Effect::Close(conn) => self.close(conn),
                Effect::SampleStats => self.report_stats(),
                Effect::Disk => self.use_disk(),
                Effect::Fail => self.has_failed = true,
            }
        }
    }

    /// Reports the memory that the driver has allocated for itself.
    fn grow_memory(&mut self, bytes: usize) {
        if bytes > 0 {
            self.memory_bytes += bytes as u64;
            self.server.handle(self.now, Event::DriverMemory(self.memory_bytes));
        }
    }

    fn report_stats(&mut self) {
        let stats = DriverStats { accept_pauses: self.admission.pauses(), cpu: cpu_usage(), ..self.stats };
        self.server.handle(self.now, Event::StatsSampled(stats));
    }

    fn pause(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if connection.phase == Phase::Reading {
            connection.phase = Phase::Paused;
            // The kernel has said so already, and does not say it again.
            self.notice_end(conn);
        }
    }

    fn resume(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if connection.phase == Phase::Paused {
            connection.phase = Phase::Reading;
            if connection.is_unread {
                self.queue(conn);
            }
        }
    }

    fn close(&mut self, conn: ConnId) {
        let protocol = self.connections.remove(conn).protocol;
        debug!(conn = conn.slot, "closed");
        self.admission.closed(protocol, self.now);
        self.tell(Event::Closed { conn });
    }

    fn tell(&mut self, event: Event<'_>) {
        self.server.handle(self.now, event);
    }

    /// The record of a connection that the server names: it does not name one that it has closed.
    fn connection(&mut self, conn: ConnId) -> &mut Connection {
        self.connections.get_mut(conn).expect("the server names only connections that are open")
    }
}

struct Connection {
    fd: OwnedFd,
    protocol: Protocol,
    phase: Phase,
    /// The kernel may have more than was received.
    is_unread: bool,
    /// A receive may end before the input does: at urgent data, and on a UNIX socket at a message that
    /// carries descriptors. Only a receive that finds nothing tells that there is nothing.
    stops_short: bool,
    /// The kernel has announced the end of the input, or an error.
    is_ending: bool,
    /// The kernel took less than there is to send, and has not told yet that it takes more.
    is_blocked: bool,
    /// There is more to send than one turn allows.
    is_unsent: bool,
    /// In the queue for another turn.
    is_queued: bool,
}

/// How far a connection's input is.
///
/// ```text
///            Pause
///  Reading <-------> Paused
///   |       Resume      | end, all read
///   | end, all read     v
///   +---------------> Ended        from each of them, on an error or a hang-up: Broken
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Received as it comes.
    Reading,
    /// Left in the kernel; only its end is looked for.
    Paused,
    /// All read.
    Ended,
    /// Nothing can be sent or received.
    Broken,
}

impl Connection {
    fn new(fd: OwnedFd, protocol: Protocol, stops_short: bool) -> Self {
        Self {
            fd,
            protocol,
            phase: Phase::Reading,
            is_unread: false,
            stops_short,
            is_ending: false,
            is_blocked: false,
            is_unsent: false,
            is_queued: false,
        }
    }

    fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// What an event is about, packed into the word that epoll hands back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Connection(ConnId),
    Listener(usize),
    Signals,
    Disk,
}

impl Token {
    /// No connection has this slot: there are not as many descriptors.
    const RESERVED_SLOT: u32 = u32::MAX;
    /// The generations under the reserved slot that stand for no listener.
    const SIGNALS: u32 = u32::MAX;
    const DISK: u32 = u32::MAX - 1;

    const fn event(self, flags: EpollFlags) -> EpollEvent {
        EpollEvent::new(flags, self.to_word())
    }

    const fn to_word(self) -> u64 {
        let (slot, generation) = match self {
            Self::Connection(conn) => return conn.to_u64(),
            Self::Listener(index) => (Self::RESERVED_SLOT, index as u32),
            Self::Signals => (Self::RESERVED_SLOT, Self::SIGNALS),
            Self::Disk => (Self::RESERVED_SLOT, Self::DISK),
        };
        ConnId { slot, generation }.to_u64()
    }

    const fn from_word(word: u64) -> Self {
        let conn = ConnId::from_u64(word);
        match (conn.slot, conn.generation) {
            (Self::RESERVED_SLOT, Self::SIGNALS) => Self::Signals,
            (Self::RESERVED_SLOT, Self::DISK) => Self::Disk,
            (Self::RESERVED_SLOT, index) => Self::Listener(index as usize),
            _ => Self::Connection(conn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_went() {
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
