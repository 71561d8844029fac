//! The driver for kernels with io_uring: requests gather during a turn, and one system call hands them over
//! and waits for completions.
//!
//! A connection's input is one request that completes whenever something has come, into a buffer that the
//! kernel takes from a common pool at that moment; its output is one send at a time, of what the server
//! shows. Whatever a request refers to stays until it has completed: a connection is closed only when none
//! is under way.

mod buffers;
mod connection;
#[cfg(test)]
mod fake;
mod kernel;
mod landings;
mod log_files;
mod registered;
mod ring;
mod sending;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use nix::errno::Errno;
use tracing::debug;

use self::connection::{Connection, Phase, Receive, Watch};
pub use self::kernel::KernelRing;
use self::log_files::LogFiles;
use self::registered::Registered;
use self::ring::{Buffer, Completion, Ring, Token};
use super::clock::Clock;
use super::descriptors::Admission;
use super::disk::Disk;
use super::signal::{Signal, Signals};
use super::slices::recycle;
use super::socket::{AcceptError, Listener, peer_name};
use super::table::Table;
use super::{DriverError, Ending, Sources};
use crate::ids::ConnId;
use crate::limits::{
    COMPLETIONS_MAX, LANDINGS_MAX, RECEIVE_BUFFERS, RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MAX,
};
use crate::server::{Effect, Event, IoCounters, Protocol, Service};
use crate::time::{Span, Time};

/// What `stats` calls this driver.
pub const NAME: &str = "uring";

/// Whether the kernel grants a ring with all that the driver needs.
pub fn probe() -> Result<(), DriverError> {
    kernel::probe().map_err(DriverError::Ring)
}

/// Serves until SIGTERM or SIGINT.
pub fn run<S: Service>(server: S, ring: KernelRing, sources: Sources) -> Result<Ending, DriverError> {
    let clock = sources.clock;
    let mut driver = Driver::new(server, ring, sources);
    let result = driver.serve(clock);
    // However it ended, the kernel may read and write what requests under way refer to, until the process
    // ends.
    let Driver { server, ring, connections, log, listeners, is_replaced, .. } = driver;
    let disk = log.forget_write();
    std::mem::forget((server, ring, connections));
    let listeners = listeners.into_iter().map(|listening| listening.listener);
    result.map(|()| Ending::of(is_replaced, listeners, disk))
}

struct Driver<S, R> {
    server: S,
    ring: R,
    /// The time of this turn.
    now: Time,
    listeners: Vec<Listening>,
    admission: Admission,
    /// Accepted by the kernel before it heard that no more are wanted; they wait too.
    early: VecDeque<(Protocol, OwnedFd)>,
    signals: Signals,
    connections: Table<Connection>,
    /// Empty between sends; kept for its allocation.
    slices: Vec<IoSlice<'static>>,
    /// When to try again, and for which connections, whose sends found no room.
    stalled: BinaryHeap<Reverse<(Time, u64)>>,
    registered: Registered,
    log: LogFiles,
    counters: Rc<IoCounters>,
    stopping: bool,
    /// Another program takes over then.
    is_replaced: bool,
    has_failed: bool,
}

/// Waits for the end of requests on listeners, of 1 ms and less each.
const LETTING_GO_ENTERS_MAX: usize = 1000;

struct Listening {
    listener: Listener,
    is_armed: bool,
    /// The request on it is being cancelled.
    is_ending: bool,
}

impl Listening {
    fn end_accepting(&mut self, number: u32, ring: &mut impl Ring) {
        if self.is_armed && !std::mem::replace(&mut self.is_ending, true) {
            ring.cancel(Token::Accept(number));
        }
    }
}

impl<S: Service, R: Ring> Driver<S, R> {
    fn new(server: S, ring: R, sources: Sources) -> Self {
        let Sources { listeners, signals, disk, registered_bytes_max, counters, connections_max, .. } =
            sources;
        counters.take_memory((RECEIVE_BUFFERS + LANDINGS_MAX) as usize * RECEIVE_BYTES_MAX);
        let listeners =
            listeners.into_iter().map(|listener| Listening { listener, is_armed: false, is_ending: false });
        let mut driver = Self {
            server,
            ring,
            now: Time::ZERO,
            listeners: listeners.collect(),
            admission: Admission::new(connections_max, disk.as_ref().map(Disk::reserve), counters.clone()),
            early: VecDeque::new(),
            signals,
            connections: Table::new(),
            slices: Vec::new(),
            stalled: BinaryHeap::new(),
            registered: Registered::new(registered_bytes_max),
            log: LogFiles::new(disk),
            counters,
            stopping: false,
            is_replaced: false,
            has_failed: false,
        };
        driver.ring.watch_signals(driver.signals.as_fd().as_raw_fd());
        driver.log.watch(&mut driver.ring);
        driver.accept_from_all();
        driver
    }

    fn serve(&mut self, clock: Clock) -> Result<(), DriverError> {
        let mut patience = Some(Span::ZERO);
        while !(self.has_failed || self.stopping && self.server.is_settled()) {
            self.counters.enters.update(|count| count + 1);
            self.ring.enter(patience).map_err(DriverError::Wait)?;
            patience = self.turn(clock.now())?;
        }
        // With what is to be sent at last.
        self.let_listeners_go().map_err(DriverError::Wait)?;
        self.server.failure().map_or(Ok(()), |why| Err(DriverError::Server(why)))
    }

    /// Takes completions, a bounded number of them, and tells how long the next may be waited for.
    fn turn(&mut self, now: Time) -> Result<Option<Span>, DriverError> {
        self.now = now;
        for _ in 0..COMPLETIONS_MAX {
            let Some(completion) = self.ring.next() else { break };
            self.complete(completion)?;
        }
        self.retry_stalled();
        self.server.turn(self.now);
        self.carry_out();
        if self.admission.resume(self.now) {
            self.go_on_accepting();
        }
        let deadlines = [self.server.next_deadline(), self.admission.deadline(), self.stalled_until()];
        Ok(deadlines.into_iter().flatten().min().map(|first| first.since(self.now)))
    }

    fn complete(&mut self, completion: Completion) -> Result<(), DriverError> {
        let Completion { token, result, buffer, is_last } = completion;
        match token {
            Token::Accept(listener) => self.accepted(listener, result, is_last)?,
            Token::Receive(slot) => self.received(slot, result, buffer, is_last),
            Token::Send(slot) => self.sent(slot, result, is_last),
            Token::Notification(slot) => self.notified(slot, result != Ok(0)),
            Token::Watch(slot) => self.watched(slot, result.is_ok()),
            Token::Signals => self.read_signals()?,
            Token::Bell => self.hear_disk(),
            Token::Write => self.has_written(result),
            Token::Cancel => {}
        }
        self.carry_out();
        Ok(())
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
        self.ring.watch_signals(self.signals.as_fd().as_raw_fd());
        Ok(())
    }

    fn stop(&mut self, is_replaced: bool) {
        (self.stopping, self.is_replaced) = (true, is_replaced);
        self.tell(Event::Stop);
    }

    fn accept_from_all(&mut self) {
        for (number, listening) in self.listeners.iter_mut().enumerate() {
            let is_wanted = !self.admission.turns_away(listening.listener.protocol());
            if is_wanted && !std::mem::replace(&mut listening.is_armed, true) {
                self.ring.accept(number as u32, listening.listener.as_fd().as_raw_fd());
            }
        }
    }

    fn accepted(
        &mut self,
        number: u32,
        result: Result<u32, Errno>,
        is_last: bool,
    ) -> Result<(), DriverError> {
        let listening = &mut self.listeners[number as usize];
        let protocol = listening.listener.protocol();
        if is_last {
            (listening.is_armed, listening.is_ending) = (false, false);
        }
        match result.map_err(AcceptError::from) {
            Ok(fd) => self.early.push_back((protocol, own(fd as RawFd))),
            Err(AcceptError::Peer | AcceptError::Empty) => {}
            Err(AcceptError::Exhausted(errno)) => self.admission.rest(self.now, errno),
            Err(AcceptError::Listener(errno)) => return Err(DriverError::Accept(errno)),
        }
        self.go_on_accepting();
        Ok(())
    }

    /// Admits who waits, as far as there is room, and has the kernel accept more if there is room left.
    fn go_on_accepting(&mut self) {
        while let Some(at) = self.early.iter().position(|(protocol, _)| !self.admission.turns_away(*protocol))
        {
            let (protocol, fd) = self.early.remove(at).expect("it was found there");
            self.admit(protocol, fd);
            self.carry_out();
        }
        let Self { admission, listeners, ring, .. } = self;
        for (number, listening) in listeners.iter_mut().enumerate() {
            if admission.turns_away(listening.listener.protocol()) {
                listening.end_accepting(number as u32, ring);
            }
        }
        self.accept_from_all();
    }

    /// Ends the requests on listeners, so that another server can have their addresses as soon as this one is
    /// gone: what is left to the ring, the kernel lets go some time later.
    fn let_listeners_go(&mut self) -> nix::Result<()> {
        for (number, listening) in self.listeners.iter_mut().enumerate() {
            listening.end_accepting(number as u32, &mut self.ring);
        }
        for _ in 0..LETTING_GO_ENTERS_MAX {
            let is_armed = self.listeners.iter().any(|listening| listening.is_armed);
            self.ring.enter(Some(if is_armed { Span::from_millis(1) } else { Span::ZERO }))?;
            if !is_armed {
                break;
            }
            while let Some(Completion { token, result, is_last, .. }) = self.ring.next() {
                if let Token::Accept(number) = token {
                    // One that came last is closed at once.
                    drop(result.map(|fd| own(fd as RawFd)));
                    self.listeners[number as usize].is_armed &= !is_last;
                }
            }
        }
        Ok(())
    }

    fn admit(&mut self, protocol: Protocol, fd: OwnedFd) {
        let conn = self.server.connect_over(protocol);
        debug!(conn = conn.slot, peer = peer_name(&fd), "connected");
        let before = self.connections.bytes();
        self.connections.insert(conn, Connection::new(fd, protocol));
        self.counters.take_memory(self.connections.bytes() - before);
        self.admission.opened(protocol, self.now);
        self.receive_if_wanted(conn);
    }

    /// Asks for input, if the server wants it and nothing is being received.
    fn receive_if_wanted(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        if connection.phase != Phase::Reading || connection.receive != Receive::Idle {
            return;
        }
        let fd = connection.fd();
        if let Some(place) = self.server.direct(conn) {
            let length = place.len().min(RECEIVE_DIRECT_BYTES_MAX);
            connection.receive = Receive::Direct;
            connection.expect_large_bodies();
            let place: *mut [u8] = &mut place[..length];
            // SAFETY: the service keeps the place, and does nothing with it, until it is told of bytes
            // received there or of the connection's close; both come after the completion.
            #[allow(unsafe_code)]
            unsafe {
                self.ring.receive_into(conn.slot, fd, place);
            }
        } else {
            connection.receive = Receive::Any;
            self.ring.receive(conn.slot, fd, connection.receives_repeatedly());
        }
    }

    fn received(&mut self, slot: u32, result: Result<u32, Errno>, buffer: Option<Buffer>, is_last: bool) {
        let (conn, connection) = self.connections.at_slot(slot).expect("a receive keeps its connection");
        let is_direct = matches!(connection.receive, Receive::Direct | Receive::Ending { is_direct: true });
        if is_last {
            connection.receive = Receive::Idle;
        }
        if !matches!(connection.phase, Phase::Broken | Phase::Closing) {
            self.take_in(conn, result, buffer.as_ref(), is_direct);
        }
        if let Some(buffer) = buffer {
            self.ring.give_back(buffer);
        }
        self.carry_out();
        self.go_on_receiving(conn);
        self.close_if_quiet(conn);
    }

    /// Hands over what a receive has brought.
    fn take_in(&mut self, conn: ConnId, result: Result<u32, Errno>, buffer: Option<&Buffer>, direct: bool) {
        match result {
            Ok(0) => self.end_input(conn),
            Ok(bytes) => {
                let beyond = buffer.map_or(0, Buffer::len);
                if direct {
                    self.tell(Event::ReceivedDirect { conn, bytes: bytes as usize - beyond });
                }
                if let Some(buffer) = buffer {
                    let bytes = self.ring.bytes(buffer);
                    self.server.handle(self.now, Event::Received { conn, bytes });
                }
            }
            // All buffers are back before the kernel hears of the next receive.
            Err(Errno::ENOBUFS | Errno::ECANCELED | Errno::EINTR | Errno::EAGAIN) => {}
            Err(_) => self.hang_up(conn),
        }
    }

    /// After input was handed over: the next receive, or the end of one that would take a large body into
    /// buffers.
    fn go_on_receiving(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        match connection.receive {
            Receive::Idle => self.receive_if_wanted(conn),
            Receive::Any if self.server.direct(conn).is_some() => {
                connection.expect_large_bodies();
                self.end_receive(conn);
            }
            _ => {}
        }
    }

    fn end_receive(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        let is_direct = match connection.receive {
            Receive::Idle | Receive::Ending { .. } => return,
            Receive::Any => false,
            Receive::Direct => true,
        };
        connection.receive = Receive::Ending { is_direct };
        self.ring.cancel(Token::Receive(conn.slot));
    }

    fn end_watch(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if connection.watch == Watch::Armed {
            connection.watch = Watch::Ending;
            self.ring.cancel(Token::Watch(conn.slot));
        }
    }

    /// Looks out for the end of a paused connection's input, unless that is done already.
    fn watch_if_paused(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if connection.watch == Watch::Idle && connection.phase == Phase::Paused {
            connection.watch = Watch::Armed;
            let fd = connection.fd();
            self.ring.watch(conn.slot, fd);
        }
    }

    fn watched(&mut self, slot: u32, has_seen: bool) {
        let (conn, connection) = self.connections.at_slot(slot).expect("a watch keeps its connection");
        connection.watch = Watch::Idle;
        if connection.phase == Phase::Paused && has_seen {
            self.notice_end(conn);
        }
        self.carry_out();
        if self.connections.get_mut(conn).is_some() {
            self.watch_if_paused(conn);
            self.close_if_quiet(conn);
        }
    }

    /// A paused connection's peer will send no more. Its input has ended only if nothing that it sent
    /// before lies unread.
    fn notice_end(&mut self, conn: ConnId) {
        let connection = self.connections.get_mut(conn).expect("it is watched");
        match self.ring.peek(connection.fd()) {
            Ok(0) if connection.receive == Receive::Idle => self.end_input(conn),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {
                connection.phase = Phase::PausedEnding;
                self.stop_waiting_to_send(conn);
                self.tell(Event::InputEnding { conn });
            }
            Err(_) => self.hang_up(conn),
        }
    }

    fn end_input(&mut self, conn: ConnId) {
        self.connection(conn).phase = Phase::Ended;
        self.stop_waiting_to_send(conn);
        self.tell(Event::InputEnded { conn });
    }

    fn hang_up(&mut self, conn: ConnId) {
        self.connection(conn).phase = Phase::Broken;
        self.tell(Event::HungUp { conn });
    }

    /// Does what the server asks; what that leads to may make it ask for more.
    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Send(conn) => self.send(conn),
                Effect::Pause(conn) => self.pause(conn),
                Effect::Resume(conn) => self.resume(conn),
                Effect::Close(conn) => self.close(conn),
                Effect::Disk => self.use_disk(),
                Effect::Fail => self.has_failed = true,
            }
        }
    }

    fn pause(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if connection.phase == Phase::Reading {
            connection.phase = Phase::Paused;
            self.end_receive(conn);
            self.watch_if_paused(conn);
        }
    }

    fn resume(&mut self, conn: ConnId) {
        let connection = self.connection(conn);
        if matches!(connection.phase, Phase::Paused | Phase::PausedEnding) {
            connection.phase = Phase::Reading;
            self.end_watch(conn);
            self.receive_if_wanted(conn);
        }
    }

    /// Ends all requests on a connection, which is closed when they have completed.
    fn close(&mut self, conn: ConnId) {
        self.connection(conn).phase = Phase::Closing;
        self.cancel_send(conn);
        self.end_receive(conn);
        self.end_watch(conn);
        self.close_if_quiet(conn);
    }

    fn close_if_quiet(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        if connection.phase != Phase::Closing || !connection.is_quiet() {
            return;
        }
        if connection.close() {
            debug!(conn = conn.slot, "closed");
            self.admission.closed(connection.protocol, self.now);
        }
        // The network may go on reading what was handed to it after the socket is closed.
        if connection.notifications == 0 {
            self.connections.remove(conn);
            self.tell(Event::Closed { conn });
        }
    }

    fn tell(&mut self, event: Event<'_>) {
        self.server.handle(self.now, event);
    }

    /// The record of a connection that the server names: it does not name one that it has closed.
    fn connection(&mut self, conn: ConnId) -> &mut Connection {
        self.connections.get_mut(conn).expect("the server names only connections that are open")
    }
}

/// Takes over the descriptor of a connection that the kernel has accepted.
fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it for this process, and named it to nobody else.
    #[allow(unsafe_code)]
    unsafe {
        OwnedFd::from_raw_fd(fd)
    }
}
