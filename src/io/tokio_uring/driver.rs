//! The state that the tasks of the driver share.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll, Waker};

use nix::errno::Errno;

use super::RING_BYTES;
use super::buffers::{Buffer, DirectPlace, FixedBuffers, Outgoing};
use super::log_files::LogFiles;
use super::readiness::End;
use crate::io::clock::Clock;
use crate::io::shell::{Backend, Connection, InputState, Shell};
use crate::io::socket::{AcceptError, to_errno};
use crate::io::{DriverError, Resources};
use crate::server::{Event, Service};
use crate::time::Time;
use crate::values::ids::ConnId;
use crate::values::limits::{FIXED_BUFFER_BYTES, FIXED_BUFFERS, RECEIVE_BYTES_MAX, RECEIVE_DIRECT_BYTES_MAX};
use crate::wal::{DiskOperation, DiskOutcome};

/// The buffer of an idle connection: one or two requests of the usual size. A connection that fills it gets a larger one for
/// its next receive.
pub const IDLE_BUFFER_BYTES: usize = 1024;

/// Tasks that waited for their turn and are woken at once: more than spend the budget of a batch. To wake all each time would cost
/// more than their work.
const WOKEN_MAX: usize = 256;

/// The server and what the driver knows of its connections.
pub struct TokioDriver<S: Service> {
    shell: Shell<S, Record>,
    clock: Clock,
    is_in_batch: bool,
    /// The connection whose task runs. It checks for changes before it waits, so it need not be woken.
    running: Option<ConnId>,
    /// Tasks of connections that have their turn in the next batch: this one has spent its budget.
    waiting: VecDeque<Waker>,
    /// Tasks that wait until accept is resumed, by the index of their listener.
    paused_accepts: Vec<Option<Waker>>,
    /// Accepted connections whose tasks are not started yet.
    pub admitted: Vec<(ConnId, OwnedFd)>,
    pub fixed: FixedBuffers,
    pub log: LogFiles,
    /// An event was handled: the server is due for its turn.
    pub batch: Awaited<()>,
    /// The run ends, with this result.
    pub end: Awaited<Result<(), DriverError>>,
}

/// A value that one task waits for.
pub struct Awaited<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// What the driver knows of a connection, besides the requests that its task has in flight.
pub struct Record {
    /// Open until the record is removed: the task of the connection owns it.
    fd: RawFd,
    input: InputState,
    waker: Option<Waker>,
    /// The server shows output, or may show some.
    is_unsent: bool,
    /// The server knows that the peer sends no more.
    is_ending: bool,
    /// The last receive would have filled an idle buffer.
    is_busy: bool,
    /// The last receive filled its buffer: more input has come.
    was_filled: bool,
}

impl Record {
    const fn new(fd: RawFd) -> Self {
        Self {
            fd,
            input: InputState::Receiving,
            waker: None,
            is_unsent: false,
            is_ending: false,
            is_busy: false,
            was_filled: false,
        }
    }
}

/// A receive cannot be cancelled without a loss, so the next program gets no connection.
impl Connection for Record {
    fn input(&mut self) -> &mut InputState {
        &mut self.input
    }

    fn fd(&self) -> RawFd {
        self.fd
    }
}

impl<S: Service> TokioDriver<S> {
    pub fn new(server: S, resources: Resources) -> Self {
        let (shell, clock) = Shell::new(server, resources);
        let mut driver = Self {
            paused_accepts: shell.listeners.iter().map(|_| None).collect(),
            shell,
            clock,
            is_in_batch: false,
            waiting: VecDeque::new(),
            running: None,
            admitted: Vec::new(),
            fixed: FixedBuffers::default(),
            log: LogFiles::default(),
            batch: Awaited::default(),
            end: Awaited::default(),
        };
        driver.shell.now = clock.now();
        driver.shell.allocated(FIXED_BUFFERS * FIXED_BUFFER_BYTES + RING_BYTES as usize);
        driver
    }

    /// Gives the server its turn. Returns its time, and when the next one must be.
    pub fn turn(&mut self) -> (Time, Option<Time>) {
        self.shell.counts.kept().waits += 1;
        if !self.is_in_batch {
            self.shell.now = self.clock.now();
        }
        // Events that the effects lead to belong to this batch.
        self.is_in_batch = true;
        if let Err(error) = self.run_turn() {
            self.end.set(Err(error));
        } else if self.shell.is_done() {
            self.end.set(Ok(()));
        }
        self.is_in_batch = false;
        self.batch.value = None;
        let woken = self.waiting.len().min(WOKEN_MAX);
        self.waiting.drain(..woken).for_each(Waker::wake);
        let deadline =
            if self.waiting.is_empty() { self.shell.next_deadline() } else { Some(self.shell.now) };
        (self.shell.now, deadline)
    }

    pub fn disk_completed(&mut self, outcome: DiskOutcome) {
        self.begin_iteration();
        self.shell.disk_ended(outcome);
        self.carry_out();
    }

    /// Handles an event in the batch, which begins if it has not, and carries out the effects.
    fn handle(&mut self, event: Event<'_>) {
        self.begin_iteration();
        self.shell.handle(event);
        self.carry_out();
    }

    /// Ready unless accept is paused at a listener.
    pub fn poll_accept(&mut self, listener: usize, cx: &Context<'_>) -> Poll<()> {
        if self.shell.is_accept_paused(listener) {
            self.shell.listeners[listener].is_watched = false;
            self.paused_accepts[listener] = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.shell.listeners[listener].is_watched = true;
        Poll::Ready(())
    }

    /// Whether the task of a connection must wait for the next batch.
    pub fn must_wait(&mut self, waker: &Waker) -> bool {
        let is_full = self.is_in_batch && self.shell.is_full();
        if is_full {
            self.waiting.push_back(waker.clone());
        }
        is_full
    }

    /// The task of a connection begins to check for changes.
    pub fn enter(&mut self, conn: ConnId, waker: &Waker) {
        self.running = Some(conn);
        let record = self.shell.connection(conn);
        if !record.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            record.waker = Some(waker.clone());
        }
    }

    /// The task has seen all changes and waits.
    pub fn leave(&mut self) {
        self.running = None;
    }

    /// Processes a completed send.
    pub fn sent(&mut self, conn: ConnId, result: io::Result<usize>) {
        match result.map_err(|error| to_errno(&error)) {
            Ok(0) | Err(Errno::EINTR | Errno::EAGAIN) => {}
            Ok(bytes) => self.handle(Event::Sent { conn, bytes }),
            Err(errno) => self.break_connection(conn, errno),
        }
    }

    /// Processes a completed receive. Returns the buffer if it is an idle buffer.
    pub fn received(&mut self, conn: ConnId, result: io::Result<usize>, buffer: Buffer) -> Option<Buffer> {
        match result.map_err(|error| to_errno(&error)) {
            Ok(0) => self.all_received(conn),
            Ok(bytes) => self.deliver(conn, bytes, &buffer),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => self.break_connection(conn, errno),
        }
        match buffer {
            Buffer::Own(bytes) if bytes.capacity() == IDLE_BUFFER_BYTES => Some(Buffer::Own(bytes)),
            Buffer::Fixed(fixed, _) => {
                self.fixed.give_back(fixed);
                None
            }
            Buffer::Own(_) | Buffer::Direct(_) => None,
        }
    }

    fn deliver(&mut self, conn: ConnId, bytes: usize, buffer: &Buffer) {
        let (room, event) = match buffer {
            Buffer::Own(own) => (own.capacity(), Event::Received { conn, bytes: &own[..bytes] }),
            Buffer::Fixed(fixed, room) => (*room, Event::Received { conn, bytes: &fixed[..bytes] }),
            Buffer::Direct(_) => (bytes, Event::ReceivedDirect { conn, bytes }),
        };
        let record = self.shell.connection(conn);
        record.is_busy = bytes >= IDLE_BUFFER_BYTES;
        record.was_filled = bytes == room;
        self.handle(event);
    }

    /// Processes what was found out about the end of a paused connection.
    pub fn ended(&mut self, conn: ConnId, end: End) {
        match end {
            End::Coming => {
                self.shell.connection(conn).is_ending = true;
                self.handle(Event::InputEnding { conn });
            }
            End::Reached => self.all_received(conn),
            End::Broken => {
                self.begin_iteration();
                self.hang_up(conn);
                self.carry_out();
            }
        }
    }

    fn all_received(&mut self, conn: ConnId) {
        self.begin_iteration();
        self.end_input(conn);
        self.carry_out();
    }

    fn break_connection(&mut self, conn: ConnId, errno: Errno) {
        self.begin_iteration();
        self.fail(conn, errno);
        self.carry_out();
    }

    /// Whether the task of a connection is to watch for the end of its input.
    pub fn is_watching(&mut self, conn: ConnId) -> bool {
        let record = self.shell.connection(conn);
        record.input == InputState::Paused && !record.is_ending
    }

    /// How far the input of a connection is.
    pub fn input(&mut self, conn: ConnId) -> InputState {
        *self.shell.input(conn)
    }

    /// Whether any connection has output that is not sent.
    pub fn is_sending(&self) -> bool {
        let mut records = self.shell.connections.iter().map(|(_, record)| record);
        records.any(|record| record.is_unsent && record.input < InputState::Broken)
    }

    /// What to send now, if anything.
    pub fn outgoing(&mut self, conn: ConnId) -> Option<Outgoing> {
        let Shell { connections, iovecs, server, .. } = &mut self.shell;
        let record = connections.get_mut(conn).expect("the connection is open");
        if !record.is_unsent || record.input >= InputState::Broken {
            return None;
        }
        // SAFETY: the server keeps what it shows in place until it handles `Sent` or `Closed`. Both come after the send.
        #[allow(unsafe_code)]
        let outgoing = iovecs.with_outgoing(server, conn, |slices| unsafe { Outgoing::new(slices) });
        record.is_unsent = outgoing.is_some();
        outgoing
    }

    /// The buffer for the next receive. Bodies, and the input of a connection that sends much at a time, go to a registered
    /// buffer while one is free.
    pub fn buffer(&mut self, conn: ConnId, idle: &mut Option<Buffer>) -> Buffer {
        if let Some(place) = self.shell.server.direct(conn) {
            let fixed = self.fixed.take(place.len() + RECEIVE_BYTES_MAX);
            // SAFETY: the server keeps the place until it handles `Closed`, which comes after the receive. A connection has
            // one receive in flight.
            #[allow(unsafe_code)]
            let direct = unsafe { DirectPlace::new(place, RECEIVE_DIRECT_BYTES_MAX) };
            return fixed.unwrap_or(Buffer::Direct(direct));
        }
        let &mut Record { is_busy, was_filled, .. } = self.shell.connection(conn);
        let large = if is_busy { self.fixed.take(RECEIVE_BYTES_MAX) } else { None };
        match large {
            Some(large) => large,
            // There is something to receive, so this buffer will not lie idle.
            None if was_filled => Buffer::Own(Vec::with_capacity(RECEIVE_BYTES_MAX)),
            None => idle.take().unwrap_or_else(Buffer::idle),
        }
    }

    /// Counts the memory of a task that has started.
    pub fn task_started(&mut self, task_bytes: usize) {
        self.begin_iteration();
        self.shell.allocated(task_bytes);
    }

    /// Processes the end of the task of a connection, which has closed the descriptor.
    pub fn task_ended(&mut self, conn: ConnId, task_bytes: usize) {
        self.begin_iteration();
        self.shell.freed(task_bytes);
        self.shell.closed(conn);
        self.carry_out();
    }

    /// Wakes the task of a connection to look at a change, unless it runs.
    fn wake(&mut self, conn: ConnId) {
        let is_running = self.running == Some(conn);
        if let Some(waker) = self.shell.connection(conn).waker.as_ref().filter(|_| !is_running) {
            waker.wake_by_ref();
        }
    }
}

impl<S: Service> Backend for TokioDriver<S> {
    type Service = S;
    type Connection = Record;

    fn shell(&mut self) -> &mut Shell<S, Record> {
        &mut self.shell
    }

    fn send(&mut self, conn: ConnId) {
        self.shell.connection(conn).is_unsent = true;
        self.wake(conn);
    }

    fn pause(&mut self, conn: ConnId) {
        let input = self.shell.input(conn);
        if *input == InputState::Receiving {
            *input = InputState::Paused;
        }
        self.wake(conn);
    }

    fn resume(&mut self, conn: ConnId) {
        let input = self.shell.input(conn);
        if *input == InputState::Paused {
            *input = InputState::Receiving;
        }
        self.wake(conn);
    }

    fn close(&mut self, conn: ConnId) {
        *self.shell.input(conn) = InputState::Closing;
        self.wake(conn);
    }

    /// The connection is blocking: the kernel completes requests on it when it can.
    fn accept_from(&mut self, listener: usize) -> Result<OwnedFd, AcceptError> {
        self.shell.listeners[listener].listener.accept_blocking()
    }

    fn admit(&mut self, listener: usize, fd: OwnedFd) {
        let conn = self.shell.register(listener, &fd);
        self.shell.insert(conn, Record::new(fd.as_raw_fd()));
        self.admitted.push((conn, fd));
        self.carry_out();
    }

    fn watch_listener(&mut self, listener: usize) -> nix::Result<()> {
        if let Some(waker) = self.paused_accepts[listener].take() {
            waker.wake();
        }
        Ok(())
    }

    fn begin_disk(&mut self, operation: DiskOperation) -> Option<DiskOutcome> {
        let disk = self.shell.disk.as_mut().expect("a server with a log has a disk");
        self.log.begin(disk, operation, self.shell.now)
    }

    /// Begins a batch, and with it a turn of the server, unless one has begun.
    fn begin_iteration(&mut self) {
        if !self.is_in_batch {
            self.is_in_batch = true;
            self.shell.now = self.clock.now();
            self.batch.set(());
        }
    }
}

impl<T> Awaited<T> {
    /// Sets the value, unless one is set that was not taken yet.
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
