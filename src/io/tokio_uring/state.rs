//! What the tasks of the driver share.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, Waker};

use nix::errno::Errno;
use tokio_uring::spawn;
use tracing::debug;

use super::buffers::{Buffer, FixedBuffers, Outgoing, Place};
use super::log_files::LogFiles;
use super::readiness::End;
use super::{Shared, connection};
use crate::ids::ConnId;
use crate::io::breaks::Breaks;
use crate::io::clock::Clock;
use crate::io::descriptors::Admission;
use crate::io::host::cpu_usage;
use crate::io::iovecs::recycle;
use crate::io::signal::{Signal, Signals};
use crate::io::socket::{AcceptError, Listener, peer_name, to_errno};
use crate::io::table::Table;
use crate::io::wal_files::Disk;
use crate::io::{DriverError, Sources};
use crate::limits::{
    FIXED_BUFFER_BYTES, FIXED_BUFFERS, RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MAX, RING_RECEIVE_BYTES,
};
use crate::server::{DriverStats, Effect, Event, Protocol, Service};
use crate::time::Time;
use crate::wal::Outcome;

/// The server and all that is known of its connections.
pub struct State<S> {
    server: S,
    clock: Clock,
    stats: DriverStats,
    memory_bytes: u64,
    /// Read once a batch.
    now: Time,
    is_in_batch: bool,
    connections: Table<Record>,
    /// The connection whose task runs. It looks for what has changed before it waits, so it need not be
    /// woken.
    served: Option<ConnId>,
    admission: Admission,
    breaks: Breaks,
    /// Tasks that wait for the end of a rest, by the index of their listener.
    resting: Vec<Option<Waker>>,
    /// Empty between sends; kept for its allocation.
    slices: Vec<IoSlice<'static>>,
    pub fixed: FixedBuffers,
    pub listeners: Vec<Listener>,
    pub signals: Signals,
    pub log: Option<LogFiles>,
    stopping: bool,
    /// Another program takes over then.
    pub is_replaced: bool,
    /// Something has happened: the server's turn comes.
    pub batch: Awaited<()>,
    /// The process has been told to stop, or cannot go on.
    pub end: Awaited<Result<(), DriverError>>,
}

/// Something that one task waits for.
pub struct Awaited<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// What is known of a connection besides what its task has in flight.
struct Record {
    protocol: Protocol,
    phase: Phase,
    waker: Option<Waker>,
    /// The server has shown output, or may have.
    is_unsent: bool,
    /// The server knows that the end of the input is near.
    is_ending: bool,
    /// The last receive would have filled a small buffer.
    is_busy: bool,
    /// It filled the buffer that it had: more has come already.
    was_filled: bool,
}

/// How far the input of a connection is.
///
/// ```text
///                Pause
///    Reading ------------> Paused
///     |   ^  <------------   |        from each of them, on an error or a hang-up: Broken;
///     |   |     Resume       |        and from all, when the server says so: Closing
///     |                      |
///     | end       end, all   |
///     +------> Ended <-------+
///                   received
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Phase {
    /// Received as it comes.
    Reading,
    /// Left in the kernel; only its end is looked for.
    Paused,
    /// All received.
    Ended,
    /// Nothing can be sent or received.
    Broken,
    /// To be closed as soon as nothing is in flight.
    Closing,
}

impl Record {
    const fn new(protocol: Protocol) -> Self {
        let (phase, waker) = (Phase::Reading, None);
        Self { protocol, phase, waker, is_unsent: false, is_ending: false, is_busy: false, was_filled: false }
    }
}

impl<S: Service> State<S> {
    pub fn new(server: S, sources: Sources) -> Self {
        let Sources { listeners, signals, clock, disk, connections_max, .. } = sources;
        let mut state = Self {
            server,
            clock,
            admission: Admission::new(connections_max, disk.as_ref().map(Disk::reserve)),
            breaks: Breaks::default(),
            stats: DriverStats::default(),
            memory_bytes: 0,
            now: clock.now(),
            is_in_batch: false,
            connections: Table::new(),
            served: None,
            resting: listeners.iter().map(|_| None).collect(),
            slices: Vec::new(),
            fixed: FixedBuffers::default(),
            listeners,
            signals,
            log: disk.map(LogFiles::new),
            stopping: false,
            is_replaced: false,
            batch: Awaited::default(),
            end: Awaited::default(),
        };
        state.grow_memory(FIXED_BUFFERS * FIXED_BUFFER_BYTES);
        state
    }

    /// Gives the server its turn. When it was, and when the next one must be.
    pub fn turn(&mut self) -> (Time, Option<Time>) {
        self.stats.enters += 1;
        if !self.is_in_batch {
            self.now = self.clock.now();
        }
        // What the effects lead to belongs to this batch.
        self.is_in_batch = true;
        self.server.turn(self.now);
        self.carry_out();
        if self.admission.resume(self.now) {
            self.resting.iter_mut().filter_map(Option::take).for_each(Waker::wake);
        }
        if self.stopping && self.server.is_settled() {
            self.end.set(Ok(()));
        }
        self.is_in_batch = false;
        self.batch.value = None;
        let deadlines = [self.server.next_deadline(), self.admission.deadline()];
        (self.now, deadlines.into_iter().flatten().min())
    }

    pub fn read_signals(&mut self) -> Result<(), DriverError> {
        while let Some(signal) = self.signals.take().map_err(DriverError::Signals)? {
            match signal {
                Signal::Stop => self.stop(false),
                Signal::Replace if self.stopping => {}
                Signal::Replace => self.stop(true),
                Signal::Drain => self.tell(Event::Drain),
            }
        }
        Ok(())
    }

    fn stop(&mut self, is_replaced: bool) {
        (self.stopping, self.is_replaced) = (true, is_replaced);
        self.tell(Event::Stop);
    }

    /// What there is in a server with a log.
    pub fn log(&mut self) -> &mut LogFiles {
        self.log.as_mut().expect("a server with a log has a disk")
    }

    /// Begins what the server has for the disk. What is done at once is told at once.
    fn use_disk(&mut self) {
        while let Some(operation) = self.server.disk(self.now) {
            if let Some(outcome) = self.log().begin(operation) {
                self.server.handle(self.now, Event::Disk(outcome));
            }
        }
    }

    /// The thread of the disk has done something.
    pub fn hear_disk(&mut self) {
        let disk = &mut self.log().disk;
        disk.clear_outcome_fd();
        let outcomes: Vec<Outcome> = std::iter::from_fn(|| disk.finished()).collect();
        outcomes.into_iter().for_each(|outcome| self.disk_has_done(outcome));
    }

    pub fn disk_has_done(&mut self, outcome: Outcome) {
        self.tell(Event::Disk(outcome));
    }

    /// Ready unless connections have to wait for descriptors.
    pub fn poll_admission(&mut self, listener: usize, cx: &Context<'_>) -> Poll<()> {
        if self.is_resting(listener) {
            self.resting[listener] = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    pub fn is_resting(&self, listener: usize) -> bool {
        self.admission.turns_away(self.listeners[listener].protocol())
    }

    fn rest(&mut self, errno: Errno) {
        let now = self.now();
        self.admission.rest(now, errno);
    }

    fn admit(&mut self, protocol: Protocol, fd: &OwnedFd) -> ConnId {
        self.now();
        let conn = self.server.accept(protocol);
        debug!(conn = conn.slot, peer = peer_name(fd), "connected");
        let before = self.connections.bytes();
        self.connections.insert(conn, Record::new(protocol));
        self.grow_memory(self.connections.bytes() - before);
        self.admission.opened(protocol, self.now);
        self.carry_out();
        conn
    }

    /// The task of a connection begins to look at what has changed for it.
    pub fn enter(&mut self, conn: ConnId, waker: &Waker) {
        self.served = Some(conn);
        let record = self.record(conn);
        if !record.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            record.waker = Some(waker.clone());
        }
    }

    /// The task has seen everything and waits.
    pub fn leave(&mut self) {
        self.served = None;
    }

    /// A send is over.
    pub fn sent(&mut self, conn: ConnId, result: io::Result<usize>) {
        match result.map_err(|error| to_errno(&error)) {
            Ok(0) | Err(Errno::EINTR | Errno::EAGAIN) => {}
            Ok(bytes) => self.tell(Event::Sent { conn, bytes }),
            Err(errno) => self.break_off(conn, errno),
        }
    }

    /// A receive is over. Gives the buffer back if it is the small one.
    pub fn received(&mut self, conn: ConnId, result: io::Result<usize>, buffer: Buffer) -> Option<Buffer> {
        match result.map_err(|error| to_errno(&error)) {
            Ok(0) => self.end_input(conn),
            Ok(bytes) => self.take_in(conn, bytes, &buffer),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => self.break_off(conn, errno),
        }
        match buffer {
            Buffer::Own(bytes) if bytes.capacity() == RING_RECEIVE_BYTES => Some(Buffer::Own(bytes)),
            Buffer::Fixed(fixed, _) => {
                self.fixed.give(fixed);
                None
            }
            Buffer::Own(_) | Buffer::Place(_) => None,
        }
    }

    fn take_in(&mut self, conn: ConnId, bytes: usize, buffer: &Buffer) {
        let (room, event) = match buffer {
            Buffer::Own(own) => (own.capacity(), Event::Received { conn, bytes: &own[..bytes] }),
            Buffer::Fixed(fixed, room) => (*room, Event::Received { conn, bytes: &fixed[..bytes] }),
            Buffer::Place(_) => (bytes, Event::ReceivedDirect { conn, bytes }),
        };
        let record = self.record(conn);
        record.is_busy = bytes >= RING_RECEIVE_BYTES;
        record.was_filled = bytes == room;
        self.tell(event);
    }

    /// What has been found out about a connection that is not received from.
    pub fn ended(&mut self, conn: ConnId, end: End) {
        match end {
            End::Coming => {
                self.record(conn).is_ending = true;
                self.tell(Event::InputEnding { conn });
            }
            End::Reached => self.end_input(conn),
            End::Broken => self.hang_up(conn),
        }
    }

    fn end_input(&mut self, conn: ConnId) {
        if matches!(self.record(conn).phase, Phase::Reading | Phase::Paused) {
            self.record(conn).phase = Phase::Ended;
            self.tell(Event::InputEnded { conn });
        }
    }

    fn hang_up(&mut self, conn: ConnId) {
        if self.record(conn).phase < Phase::Broken {
            self.record(conn).phase = Phase::Broken;
            self.tell(Event::HungUp { conn });
        }
    }

    /// The kernel does nothing more for a connection.
    fn break_off(&mut self, conn: ConnId, errno: Errno) {
        self.breaks.note(self.now, conn, errno);
        self.hang_up(conn);
    }

    pub fn is_reading(&mut self, conn: ConnId) -> bool {
        self.record(conn).phase == Phase::Reading
    }

    pub fn is_looking_for_end(&mut self, conn: ConnId) -> bool {
        let record = self.record(conn);
        record.phase == Phase::Paused && !record.is_ending
    }

    pub fn is_closing(&mut self, conn: ConnId) -> bool {
        self.record(conn).phase == Phase::Closing
    }

    /// Whether something is unsent.
    pub fn is_sending(&self) -> bool {
        self.connections.values().any(|record| record.is_unsent && record.phase < Phase::Broken)
    }

    /// What to send now, if there is anything.
    pub fn outgoing(&mut self, conn: ConnId) -> Option<Outgoing> {
        let record = self.record(conn);
        if !record.is_unsent || record.phase >= Phase::Broken {
            return None;
        }
        let mut slices = recycle(std::mem::take(&mut self.slices));
        self.server.outgoing(conn, &mut slices);
        // SAFETY: the server keeps what it shows in place until it is told that it was sent or that the
        // connection is closed; neither is told before the send is over.
        #[allow(unsafe_code)]
        let outgoing = unsafe { Outgoing::new(&slices) };
        self.slices = recycle(slices);
        self.record(conn).is_unsent = outgoing.is_some();
        outgoing
    }

    /// Where the next receive goes: a body, and the input of a connection that sends much at a time, into
    /// a registered buffer while there is one.
    pub fn buffer(&mut self, conn: ConnId, small: &mut Option<Buffer>) -> Buffer {
        if let Some(place) = self.server.direct(conn) {
            let fixed = self.fixed.take(place.len() + RECEIVE_BYTES_MAX);
            // SAFETY: the server keeps the place until the connection is told to be closed, which is not told
            // before the receive is over; a connection has one receive in flight.
            #[allow(unsafe_code)]
            let direct = unsafe { Place::new(place, RECEIVE_DIRECT_BYTES_MAX) };
            return fixed.unwrap_or(Buffer::Place(direct));
        }
        let &mut Record { is_busy, was_filled, .. } = self.record(conn);
        let large = if is_busy { self.fixed.take(RECEIVE_BYTES_MAX) } else { None };
        match large {
            Some(large) => large,
            // It will not lie idle in there, since there is something to receive.
            None if was_filled => Buffer::Own(Vec::with_capacity(RECEIVE_BYTES_MAX)),
            None => small.take().unwrap_or_else(Buffer::small),
        }
    }

    /// The connection is closed, whose task took so much memory.
    pub fn closed(&mut self, conn: ConnId, task_bytes: usize) {
        self.memory_bytes -= task_bytes as u64;
        let now = self.now();
        self.server.handle(now, Event::DriverMemory(self.memory_bytes));
        let protocol = self.record(conn).protocol;
        self.connections.remove(conn);
        debug!(conn = conn.slot, "closed");
        let now = self.now();
        self.admission.closed(protocol, now);
        self.tell(Event::Closed { conn });
    }

    /// Reports the memory that the driver has allocated for itself.
    pub fn grow_memory(&mut self, bytes: usize) {
        if bytes > 0 {
            self.memory_bytes += bytes as u64;
            let now = self.now();
            self.server.handle(now, Event::DriverMemory(self.memory_bytes));
        }
    }

    fn report_stats(&mut self) {
        let stats = DriverStats { accept_pauses: self.admission.pauses(), cpu: cpu_usage(), ..self.stats };
        self.server.handle(self.now, Event::StatsSampled(stats));
    }

    fn tell(&mut self, event: Event<'_>) {
        let now = self.now();
        self.server.handle(now, event);
        self.carry_out();
    }

    /// The time of this batch, which begins now unless it has begun.
    fn now(&mut self) -> Time {
        if !self.is_in_batch {
            self.is_in_batch = true;
            self.now = self.clock.now();
            self.batch.set(());
        }
        self.now
    }

    /// Notes what the server asks of connections, and wakes their tasks.
    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            let (conn, next) = match effect {
                Effect::SampleStats => {
                    self.report_stats();
                    continue;
                }
                Effect::Disk => {
                    self.use_disk();
                    continue;
                }
                Effect::Fail => {
                    let why = self.server.failure().unwrap_or_default();
                    self.end.set(Err(DriverError::Server(why)));
                    continue;
                }
                Effect::Send(conn) => {
                    self.record(conn).is_unsent = true;
                    (conn, None)
                }
                Effect::Pause(conn) => (conn, Some((Phase::Reading, Phase::Paused))),
                Effect::Resume(conn) => (conn, Some((Phase::Paused, Phase::Reading))),
                Effect::Close(conn) => (conn, Some((self.record(conn).phase, Phase::Closing))),
            };
            let is_served = self.served == Some(conn);
            let record = self.record(conn);
            if let Some((from, to)) = next
                && record.phase == from
            {
                record.phase = to;
            }
            if let Some(waker) = record.waker.as_ref().filter(|_| !is_served) {
                waker.wake_by_ref();
            }
        }
    }

    /// The record of a connection that is open, as every one is that the server or a task names.
    fn record(&mut self, conn: ConnId) -> &mut Record {
        self.connections.get_mut(conn).expect("a connection is closed by its own task, at its end")
    }
}

/// Accepts one connection and starts its task. False if there is none to accept now.
pub fn accept<S: Service + 'static>(shared: &Shared<S>, index: usize) -> Result<bool, DriverError> {
    let mut state = shared.borrow_mut();
    if state.is_resting(index) {
        return Ok(false);
    }
    match state.listeners[index].accept_blocking() {
        Ok(fd) => {
            let protocol = state.listeners[index].protocol();
            let conn = state.admit(protocol, &fd);
            drop(state);
            spawn(connection::serve(shared.clone(), conn, fd));
            Ok(true)
        }
        Err(AcceptError::Peer) => Ok(true),
        Err(AcceptError::Empty) => Ok(false),
        Err(AcceptError::Exhausted(errno)) => {
            state.rest(errno);
            Ok(false)
        }
        Err(AcceptError::Listener(errno)) => Err(DriverError::Accept(errno)),
    }
}

impl<T> Awaited<T> {
    /// It has come. What came first stays until it is taken.
    pub fn set(&mut self, value: T) {
        self.value.get_or_insert(value);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<T> {
        match self.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Default for Awaited<T> {
    fn default() -> Self {
        Self { value: None, waker: None }
    }
}
