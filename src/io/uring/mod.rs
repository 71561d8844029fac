//! The driver for kernels with io_uring: requests gather during a turn, and one system call hands them over
//! and waits for completions.
//!
//! A connection's input is one request that completes whenever something has come, into a buffer that the
//! kernel takes from a common pool at that moment; its output is one send at a time, of what the server
//! shows. Whatever a request refers to stays until it has completed: a connection is closed only when none
//! is under way.

mod accepting;
mod buffers;
mod connection;
#[cfg(test)]
mod fake;
mod kernel;
mod log_files;
#[cfg(test)]
mod multishot;
mod registered;
mod ring;
mod self_check;
mod sending;
mod tail_buffers;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use tracing::debug;

use self::accepting::Listening;
use self::connection::{Connection, Phase, Receive, Watch};
pub use self::kernel::KernelRing;
use self::log_files::LogFiles;
use self::registered::Registered;
use self::ring::{Buffer, Completion, Ring, Token};
use self::self_check::SelfCheck;
use super::breaks::Breaks;
use super::clock::Clock;
use super::descriptors::Admission;
use super::host::cpu_usage;
use super::iovecs::recycle;
use super::refusal::Refusal;
use super::signal::{Signal, Signals};
use super::socket::peer_name;
use super::table::Table;
use super::wal_files::Disk;
use super::{DriverError, Ending, Sources, patiently};
use crate::ids::ConnId;
use crate::limits::{
    COMPLETIONS_MAX, RECEIVE_BUFFERS, RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MAX, TAIL_BUFFERS_MAX,
};
use crate::server::{DriverStats, Effect, Event, Service};
use crate::time::{Span, Time};

/// What `stats` calls this driver.
pub const NAME: &str = "uring";

/// The memory of all receive and tail buffers.
const BUFFER_BYTES: usize = (RECEIVE_BUFFERS + TAIL_BUFFERS_MAX) as usize * RECEIVE_BYTES_MAX;

/// Sets up a ring with all that the driver needs.
pub fn ring() -> Result<KernelRing, DriverError> {
    patiently(KernelRing::new, |&errno| errno == Errno::ENOMEM).map_err(refused)
}

const fn refused(errno: Errno) -> DriverError {
    DriverError::Ring(Refusal { driver: NAME, oldest: "6.0", errno })
}

/// Serves until SIGTERM or SIGINT.
pub fn run<S: Service>(server: S, ring: KernelRing, sources: Sources) -> Result<Ending, DriverError> {
    let clock = sources.clock;
    let mut driver = Driver::new(server, ring, sources, clock.now());
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
    signals: Signals,
    connections: Table<Connection>,
    /// Empty between sends; kept for its allocation.
    slices: Vec<IoSlice<'static>>,
    /// When to try again, and for which connections, whose sends found no room.
    stalled: BinaryHeap<Reverse<(Time, u64)>>,
    registered: Registered,
    self_check: SelfCheck,
    /// The kernel knows no zero-copy send of the kind that is asked for.
    refuses_zero_copy: bool,
    breaks: Breaks,
    log: LogFiles,
    stats: DriverStats,
    memory_bytes: u64,
    stopping: bool,
    /// Another program takes over then.
    is_replaced: bool,
    has_failed: bool,
}

impl<S: Service, R: Ring> Driver<S, R> {
    fn new(server: S, ring: R, sources: Sources, now: Time) -> Self {
        let Sources { listeners, signals, disk, registered_bytes_max, connections_max, .. } = sources;
        let mut driver = Self {
            server,
            ring,
            now,
            listeners: listeners.into_iter().map(Listening::new).collect(),
            admission: Admission::new(connections_max, disk.as_ref().map(Disk::reserve)),
            self_check: SelfCheck::default(),
            signals,
            connections: Table::new(),
            slices: Vec::new(),
            stalled: BinaryHeap::new(),
            registered: Registered::new(registered_bytes_max),
            refuses_zero_copy: false,
            breaks: Breaks::default(),
            log: LogFiles::new(disk),
            stats: DriverStats::default(),
            memory_bytes: 0,
            stopping: false,
            is_replaced: false,
            has_failed: false,
        };
        driver.grow_memory(BUFFER_BYTES);
        driver.ring.watch_signals(driver.signals.as_fd().as_raw_fd());
        driver.log.watch(&mut driver.ring);
        driver.watch_listeners();
        driver
    }

    fn serve(&mut self, clock: Clock) -> Result<(), DriverError> {
        let mut patience = Some(Span::ZERO);
        while !(self.has_failed || self.stopping && self.server.is_settled()) {
            self.stats.enters += 1;
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
            self.watch_listeners();
        }
        self.check_itself();
        let deadlines = [
            self.server.next_deadline(),
            self.admission.deadline(),
            self.stalled_until(),
            self.self_check.deadline(),
        ];
        Ok(deadlines.into_iter().flatten().min().map(|first| first.since(self.now)))
    }

    fn complete(&mut self, completion: Completion) -> Result<(), DriverError> {
        let Completion { token, result, buffer, is_last } = completion;
        match token {
            Token::Listener(number) => self.accept(number, result)?,
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
        } else {
            self.self_check.note_input(conn, connection, self.now);
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
            Err(errno) => self.break_off(conn, errno),
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
            Err(errno) => self.break_off(conn, errno),
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

    /// The kernel does nothing more for a connection.
    fn break_off(&mut self, conn: ConnId, errno: Errno) {
        self.breaks.note(self.now, conn, errno);
        self.hang_up(conn);
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
