//! What all drivers do alike.
//!
//! A driver implements [`Backend`]: how it sends, pauses, resumes, closes, accepts and watches. The provided methods of
//! that trait, and the [`Shell`] that the driver keeps its state in, do the rest: they carry out effects, read signals,
//! admit connections, pass completions of the disk to the server, and end the run. The calls are static.

mod connection;
mod handover;
mod role;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::errno::Errno;
use tracing::{debug, info, warn};

pub use self::connection::{Connection, InputState};
#[cfg(feature = "replicate")]
use super::Forwarding;
use super::bell::Bell;
use super::clock::{self, Clock};
use super::conn_table::ConnTable;
use super::connection_log::ConnectionLog;
use super::descriptors::Admission;
use super::host::Counts;
use super::lost_peers::{self, LostPeers};
use super::signal::{Signal, Signals};
use super::socket::{AcceptError, Listener, ListenerKind, peer, peer_name, text_without_number};
use super::wal_files::Disk;
use super::watched_files::{self, FileWatch, WatchedFiles};
use super::{Database, DriverError, Exit, Resources};
use crate::server::{
    ClientAct, Effect, Entry, Event, IoVecs, Protocol, ServerRole, Service, Status, Update, handle,
};
use crate::time::{Span, Time};
#[cfg(any(feature = "replicate", feature = "uring"))]
use crate::values::account::Account;
use crate::values::budget::Cost;
use crate::values::ids::ConnId;
#[cfg(feature = "uring")]
use crate::values::limits::{RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX};
use crate::wal::{DiskOperation, DiskOutcome, LogReply, LogRequest};

/// Connections accepted from one listener before the established ones have their turn.
pub const ACCEPTS_MAX: usize = 64;

/// The state that every driver has. `C` is what a driver keeps for a connection.
pub struct Shell<S: Service, C> {
    pub server: S,
    /// The time of this event-loop iteration.
    pub now: Time,
    pub connections: ConnTable<C>,
    pub listeners: Vec<WatchedListener>,
    pub admission: Admission,
    lost_peers: Option<LostPeers>,
    pub signals: Signals,
    pub disk: Option<Disk>,
    database: Option<Box<dyn Database>>,
    /// The last known role of the server.
    role: ServerRole,
    #[cfg(feature = "replicate")]
    forwarding: Option<Forwarding>,
    /// The memory that is kept for peers.
    #[cfg(any(feature = "replicate", feature = "uring"))]
    account: Rc<Account>,
    pub iovecs: IoVecs,
    /// The thread that looks at files, if there are any, and the bell that it rings if no other thread has one.
    file_watch: Option<FileWatch<S::Identity>>,
    file_bell: Option<Bell>,
    pub counts: Rc<Counts>,
    log: ConnectionLog,
    /// Memory that the driver has allocated for itself.
    memory_bytes: u64,
    run_state: RunState,
    /// Connections that are [held](Backend::hold_untouched) for the next program.
    held: Vec<ConnId>,
    /// Listeners have connections that the program before has handed over.
    has_handed_over: bool,
    /// A signal to stop has come. It ends a restart in place that has begun.
    stops: bool,
    /// The next time to read the system clock for the server.
    next_clock_look: Time,
}

/// The system clock is read for the server at most this often.
const CLOCK_LOOK: Span = Span::from_secs(5);

/// A listener, and whether the driver waits for connections at it.
pub struct WatchedListener {
    pub listener: Listener,
    pub is_watched: bool,
}

/// ```text
///            SIGUSR2 and a check that passed
///   Running ---------------------------------> Holding
///      |                                          | the receives of connections that are held have ended, or SIGTERM
///      |                SIGTERM                   v
///      +--------------------------------------> Stopping
///
///   From each of them, if the server cannot continue (Effect::Fail): Failed.
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RunState {
    Running,
    /// The server serves on until nothing more can come on the connections that it [holds](Backend::hold_untouched).
    Holding,
    /// The run ends when the server has settled. It serves no more commands.
    Stopping {
        /// The process restarts in place afterwards.
        restarts: bool,
    },
    /// The run ends with this iteration.
    Failed,
}

impl<S: Service, C: Connection> Shell<S, C> {
    pub fn new(mut server: S, resources: Resources) -> (Self, Clock) {
        #[cfg(feature = "replicate")]
        let forwarding = resources.forwarding;
        let Resources { listeners, signals, clock, disk, database, .. } = resources;
        let Resources { connections_max, keepalive, process, watched_files, .. } = resources;
        let watched = |listener| WatchedListener { listener, is_watched: false };
        let counts = Rc::new(Counts::new(process));
        #[cfg(any(feature = "replicate", feature = "uring"))]
        let account = server.account();
        server.update(Time::ZERO, Update::Counts(counts.clone()));
        let spares = disk.as_ref().map(Disk::reserve);
        let mut shell = Self {
            server,
            now: Time::ZERO,
            connections: ConnTable::new(),
            listeners: listeners.into_iter().map(watched).collect(),
            admission: Admission::new(connections_max, spares, counts.clone()),
            lost_peers: keepalive.map(LostPeers::new),
            signals,
            disk,
            role: if database.is_none() { ServerRole::Serving } else { ServerRole::Standby(None) },
            database,
            #[cfg(feature = "replicate")]
            forwarding,
            #[cfg(any(feature = "replicate", feature = "uring"))]
            account,
            iovecs: IoVecs::default(),
            file_watch: None,
            file_bell: None,
            counts,
            log: ConnectionLog::default(),
            memory_bytes: 0,
            run_state: RunState::Running,
            held: Vec::new(),
            has_handed_over: false,
            stops: false,
            next_clock_look: Time::ZERO,
        };
        shell.note_handed_over();
        let has_http = shell.listeners.iter().any(|watched| watched.listener.protocol() == Protocol::Http);
        shell.admission.reserve(has_http, shell.database.is_some());
        shell.watch_files(watched_files);
        (shell, clock)
    }

    #[inline]
    pub fn handle(&mut self, event: Event<'_>) {
        handle(&mut self.server, self.now, event);
    }

    /// Whether further events are for the next iteration.
    #[inline]
    pub fn is_full(&mut self) -> bool {
        self.server.budget().is_full()
    }

    /// Reports the end of an operation of the job log.
    pub fn disk_ended(&mut self, outcome: DiskOutcome) {
        #[cfg(any(feature = "tokio-uring", feature = "uring"))]
        if let (Some(disk), DiskOutcome::Written(_, written)) = (&mut self.disk, &outcome) {
            disk.note_written(self.now, written.is_ok());
        }
        self.handle(Event::Log(LogReply::Files(outcome)));
    }

    /// The record of an open connection.
    ///
    /// # Panics
    /// If it is closed: the server and the kernel name only open connections.
    #[inline]
    pub fn connection(&mut self, conn: ConnId) -> &mut C {
        self.connections.get_mut(conn).expect("the connection is open")
    }

    /// The state of the input of an open connection.
    #[inline]
    pub fn input(&mut self, conn: ConnId) -> &mut InputState {
        self.connection(conn).input()
    }

    /// Registers a connection that was accepted at a listener with the server, and counts it. The caller
    /// [inserts](Self::insert) its record next.
    pub fn register(&mut self, listener: usize, fd: &OwnedFd) -> ConnId {
        let ListenerKind { protocol, has_tls, is_proxied, is_forwarded } =
            self.listeners[listener].listener.kind();
        let peer = || peer(fd.as_raw_fd());
        let entry = if is_forwarded {
            Entry::Forwarded(peer().origin)
        } else if is_proxied {
            Entry::Proxied { has_tls, balancer: peer() }
        } else if has_tls {
            Entry::Tls(peer())
        } else {
            Entry::Plain((protocol == Protocol::Http).then(peer))
        };
        let conn = self.server.accept(self.now, protocol, entry);
        self.log.opened(self.server.names(conn).number, fd.as_raw_fd(), protocol);
        self.admission.opened(protocol, fd.as_raw_fd(), self.now);
        conn
    }

    pub fn insert(&mut self, conn: ConnId, connection: C) {
        let bytes_before = self.connections.bytes();
        self.connections.insert(conn, connection);
        self.allocated(self.connections.bytes() - bytes_before);
    }

    /// Ends the record of a connection, and with it its descriptor if that is open. No request on it is in flight.
    pub fn closed(&mut self, conn: ConnId) {
        drop(self.connections.remove(conn));
        let protocol = if conn.is_http() { Protocol::Http } else { Protocol::Beanstalk };
        self.admission.closed(protocol, self.now);
        self.handle(Event::Closed { conn });
    }

    /// Whether the multishot receives of all connections could fill a quarter of the memory limit before the server pauses them.
    #[cfg(feature = "uring")]
    pub fn is_crowded(&self) -> bool {
        const MULTISHOT_BYTES: u64 = RECEIVE_BUFFERS_EACH as u64 * RECEIVE_BYTES_MAX as u64;
        let bytes = u64::from(self.admission.open()) * MULTISHOT_BYTES;
        self.account.limit().is_some_and(|limit| bytes > limit / 4)
    }

    /// Reads the system clock for the server: it may have been set.
    fn look_at_clock(&mut self) {
        if self.now >= self.next_clock_look {
            self.next_clock_look = self.now + CLOCK_LOOK;
            self.handle(Event::SystemClock(clock::system_time()));
        }
    }

    fn log_close(&mut self, conn: ConnId) {
        let (number, input) = (self.server.names(conn).number, *self.input(conn));
        self.log.closed(number, input);
    }

    fn log_client(&mut self, conn: ConnId, act: ClientAct) {
        self.server.budget().charge_arrival(Cost::LOG_LINE);
        let fd = self.connection(conn).fd();
        let names = self.server.names(conn);
        let peer = || {
            let peer = names.peer.map_or_else(|| peer_name(fd), str::to_owned);
            match names.user {
                Some(user) => format!("{peer} (user {user})"),
                None => peer,
            }
        };
        self.log.acted(self.now, names.number, peer, act);
    }

    /// Reports memory that the driver has allocated for itself.
    pub fn allocated(&mut self, bytes: usize) {
        if bytes > 0 {
            self.set_memory(self.memory_bytes + bytes as u64);
        }
    }

    /// Reports memory that the driver has freed.
    #[cfg(feature = "tokio-uring")]
    pub fn freed(&mut self, bytes: usize) {
        self.set_memory(self.memory_bytes - bytes as u64);
    }

    /// Reports how much memory the driver has allocated for itself.
    pub fn set_memory(&mut self, bytes: u64) {
        self.memory_bytes = bytes;
        self.handle(Event::OuterMemory(bytes));
    }

    /// Leaves the system clock alone: the time of the server is all there is.
    #[cfg(all(test, feature = "uring"))]
    pub const fn ignore_system_clock(&mut self) {
        self.next_clock_look = Time::from_nanos(u64::MAX);
    }

    fn read_signal(&mut self) -> nix::Result<Option<Signal>> {
        self.signals.read(self.server.status().is_draining, self.role != ServerRole::Serving)
    }

    pub fn is_accept_paused(&self, listener: usize) -> bool {
        let kind = self.listeners[listener].listener.kind();
        let is_served = kind.protocol == Protocol::Http || self.role == ServerRole::Serving;
        let restarts = matches!(self.run_state, RunState::Holding | RunState::Stopping { restarts: true });
        restarts || self.admission.is_paused(kind.protocol) || !is_served && !self.can_forward(kind)
    }

    /// A descriptor that is readable when an operation of the job log has ended, or a file has changed. None if there are neither.
    pub fn outcome_fd(&self) -> Option<BorrowedFd<'_>> {
        let database = self.database.as_ref().map(|database| database.reply_fd());
        database.or(self.disk.as_ref().map(Disk::outcome_fd)).or(self.file_bell.as_ref().map(Bell::as_fd))
    }

    fn clear_outcome_fd(&mut self) {
        self.disk.iter_mut().for_each(Disk::clear_outcome_fd);
        self.database.iter_mut().for_each(|database| database.clear_reply_fd());
        self.file_bell.iter().for_each(Bell::clear);
    }

    /// Starts the thread that looks at files. It wakes the event loop as others do.
    fn watch_files(&mut self, files: WatchedFiles) {
        if files.is_empty() {
            return;
        }
        let bell = match self.outcome_fd() {
            Some(shared) => Bell::share(shared),
            None => Bell::new().and_then(|own| Bell::share(self.file_bell.insert(own).as_fd())),
        };
        let watch = bell.and_then(|bell| FileWatch::start(files, bell));
        self.file_watch = watch.inspect_err(watched_files::log_no_thread).ok();
    }

    /// The listeners that are not watched though connections are accepted at them.
    pub fn unwatched(&self) -> impl Iterator<Item = usize> {
        let is_unwatched =
            |&index: &usize| !self.listeners[index].is_watched && !self.is_accept_paused(index);
        (0..self.listeners.len()).filter(is_unwatched)
    }

    /// The next moment at which an iteration must run even if nothing happens.
    pub fn next_deadline(&self) -> Option<Time> {
        let lost_peers = self.lost_peers.as_ref().filter(|_| !self.connections.is_empty());
        let deadlines = [
            self.server.next_deadline(),
            self.admission.deadline(),
            self.handed_over_due(),
            lost_peers.map(LostPeers::deadline),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the run ends: the server stops and has settled, or it has failed.
    pub fn is_done(&self) -> bool {
        match self.run_state {
            RunState::Running | RunState::Holding => false,
            RunState::Stopping { .. } => self.server.status().is_settled,
            RunState::Failed => true,
        }
    }

    /// Looks at the next connections of a round, and resets those whose peers are lost. The driver learns of the resets as of others.
    fn reset_lost_peers(&mut self) {
        let Some(lost_peers) = &mut self.lost_peers else { return };
        for slot in lost_peers.slots(self.now, self.connections.slots()) {
            let Some((conn, connection, since)) = self.connections.peer_at_slot(slot as u32) else {
                continue;
            };
            let Some(fd) = connection.open_fd() else { continue };
            self.server.budget().charge_arrival(Cost::SOCKET_LOOK);
            if lost_peers.is_lost(fd, since) && lost_peers::reset(fd).is_ok() {
                debug!(
                    conn = self.server.names(conn).number,
                    "reset: the machine of the peer does not answer"
                );
                self.counts.kept().lost_peers += 1;
            }
        }
    }

    /// Has the server stop. The run ends when it has settled.
    fn stop(&mut self, restarts: bool) {
        let was_stopping = matches!(self.run_state, RunState::Stopping { .. } | RunState::Failed);
        if self.run_state != RunState::Failed {
            self.run_state = RunState::Stopping { restarts };
        }
        self.handle(Event::Stop);
        if !was_stopping && !self.server.status().is_settled {
            let place = if self.database.is_some() { "in the database" } else { "on disk" };
            info!("waiting until the job log is {place}");
        }
    }

    /// Ends the run with `result`, or with the failure of the server. Closes the listeners and unlocks the job log, unless the
    /// process restarts in place. The threads of the disk and of files end before, so that none of them uses the job log or opens
    /// descriptors after that.
    pub fn exit(&mut self, result: Result<(), DriverError>) -> Result<Exit, DriverError> {
        self.signals.end_preflight();
        self.log.end();
        self.admission.end();
        let (listeners, disk) = (std::mem::take(&mut self.listeners), self.disk.take());
        if let Some(database) = self.database.take() {
            database.end();
        }
        if let Some(watch) = self.file_watch.take() {
            watch.end();
        }
        result?;
        let Status { role, failure, .. } = self.server.status();
        if let Some(why) = failure {
            return Err(DriverError::Server(text_without_number(&why)));
        }
        let lock = disk.map(Disk::end);
        if self.stops {
            return Ok(Exit::Stopped);
        }
        let listeners: Vec<Listener> = listeners.into_iter().map(|watched| watched.listener).collect();
        if let ServerRole::Ended(end) = role {
            warn!("{end}: all connections are closed, and this server becomes a standby");
            return Ok(Exit::Fenced(listeners));
        }
        match self.run_state {
            RunState::Stopping { restarts: true } => {
                self.hand_over(&listeners);
                Ok(Exit::Restart(listeners, lock))
            }
            _ => Ok(Exit::Stopped),
        }
    }
}

/// What a driver does in its own way, and, provided, what all do alike.
pub trait Backend {
    type Service: Service;
    type Connection: Connection;

    fn shell(&mut self) -> &mut Shell<Self::Service, Self::Connection>;

    /// Carries out [`Effect::Send`].
    fn send(&mut self, conn: ConnId);

    /// Carries out [`Effect::Pause`].
    fn pause(&mut self, conn: ConnId);

    /// Carries out [`Effect::Resume`].
    fn resume(&mut self, conn: ConnId);

    /// Carries out [`Effect::Close`].
    fn close(&mut self, conn: ConnId);

    /// Accepts the next connection that waits at a listener, without blocking.
    fn accept_from(&mut self, listener: usize) -> Result<OwnedFd, AcceptError>;

    /// Makes an accepted connection known to the server, and begins to receive from it.
    fn admit(&mut self, listener: usize, fd: OwnedFd);

    /// Waits for connections at a listener again.
    fn watch_listener(&mut self, listener: usize) -> nix::Result<()>;

    /// Begins an operation of the job log. Returns its outcome if it is complete.
    fn begin_disk(&mut self, operation: DiskOperation) -> Option<DiskOutcome> {
        self.shell().disk.as_mut().expect("a server with a log has a disk").begin(operation)
    }

    /// Runs before an event is handled, for a driver whose iterations begin with the first event.
    fn begin_iteration(&mut self) {}

    /// Carries out the effects of the server, and the effects of what that leads to.
    fn carry_out(&mut self) {
        while let Some(effect) = self.shell().server.poll_effect() {
            match effect {
                Effect::Send(conn) => self.send(conn),
                Effect::Pause(conn) => self.pause(conn),
                Effect::Resume(conn) if self.shell().held.contains(&conn) => {}
                Effect::Resume(conn) => self.resume(conn),
                Effect::Close(conn) => {
                    self.shell().log_close(conn);
                    self.close(conn);
                }
                Effect::LogClient(conn, act) => self.shell().log_client(conn, act),
                Effect::Log => self.begin_log_requests(),
                Effect::Fail => self.shell().run_state = RunState::Failed,
            }
        }
    }

    fn begin_log_requests(&mut self) {
        loop {
            let shell = self.shell();
            match shell.server.poll_log_request(shell.now) {
                None => return,
                Some(LogRequest::Database(request)) => {
                    shell.database.as_mut().expect("the job log is in a database").begin(*request);
                }
                Some(LogRequest::Files(operation)) => {
                    if let Some(outcome) = self.begin_disk(operation) {
                        self.shell().disk_ended(outcome);
                    }
                }
            }
        }
    }

    /// Passes what other threads have completed to the server: those of the job log, and the one that looks at files.
    fn complete_log_requests(&mut self) {
        self.begin_iteration();
        let shell = self.shell();
        shell.clear_outcome_fd();
        while let Some(outcome) = shell.disk.as_mut().and_then(Disk::finished) {
            shell.disk_ended(outcome);
        }
        while let Some(reply) = shell.database.as_mut().and_then(|database| database.reply()) {
            shell.handle(Event::Log(LogReply::Database(Box::new(reply))));
        }
        if let Some(watch) = &shell.file_watch {
            watch.apply(shell.now, &mut shell.server);
        }
        self.carry_out();
    }

    /// Gives the server its turn after the events of an iteration, and resumes accepting when its time has come.
    fn run_turn(&mut self) -> Result<(), DriverError> {
        let shell = self.shell();
        shell.reset_lost_peers();
        shell.look_at_clock();
        shell.server.turn(shell.now);
        self.carry_out();
        if self.shell().stop_if_held() {
            let shell = self.shell();
            shell.server.turn(shell.now);
            self.carry_out();
        }
        if self.shell().has_handed_over {
            self.accept_handed_over()?;
        }
        let shell = self.shell();
        let has_role = shell.note_role();
        #[cfg(feature = "replicate")]
        shell.note_forwarded();
        // Nothing tells when a client that was forwarded has left.
        let has_room = shell.database.is_some() && shell.unwatched().next().is_some();
        if shell.admission.resume(shell.now) || has_role || has_room {
            self.watch_listeners().map_err(DriverError::Accept)?;
        }
        Ok(())
    }

    fn read_signals(&mut self) -> Result<(), DriverError> {
        while let Some(signal) = self.shell().read_signal().map_err(DriverError::Signals)? {
            self.begin_iteration();
            let shell = self.shell();
            match signal {
                Signal::CheckFiles => shell.file_watch.iter().for_each(FileWatch::look),
                Signal::Drain => shell.handle(Event::Drain),
                Signal::Restart if shell.run_state != RunState::Running => {}
                Signal::Restart => self.hold_untouched(),
                Signal::Stop => {
                    shell.stops = true;
                    shell.stop(false);
                }
            }
        }
        self.carry_out();
        Ok(())
    }

    /// Has connections on which nothing has come wait for the next program. The server stops when their receives have ended: what these
    /// bring is served.
    fn hold_untouched(&mut self) {
        for conn in self.shell().begin_to_hold() {
            self.pause(conn);
        }
        self.shell().stop_if_held();
    }

    /// Accepts connections that the program before has handed over.
    fn accept_handed_over(&mut self) -> Result<(), DriverError> {
        for index in 0..self.shell().listeners.len() {
            if self.shell().listeners[index].listener.has_handed_over() {
                self.accept_batch(index)?;
            }
        }
        self.shell().note_handed_over();
        Ok(())
    }

    /// Waits for connections at each listener where they are accepted.
    fn watch_listeners(&mut self) -> nix::Result<()> {
        loop {
            let next = self.shell().unwatched().next();
            let Some(index) = next else { return Ok(()) };
            self.shell().listeners[index].is_watched = true;
            self.watch_listener(index)?;
        }
    }

    /// Accepts up to [`ACCEPTS_MAX`] connections that wait at a listener. While accept is paused, and beyond the budget of an iteration,
    /// they stay in its backlog. Returns whether more may wait.
    fn accept_batch(&mut self, listener: usize) -> Result<bool, DriverError> {
        for _ in 0..ACCEPTS_MAX {
            if self.shell().is_accept_paused(listener) {
                return Ok(false);
            }
            if self.shell().is_full() {
                return Ok(true);
            }
            match self.accept_from(listener) {
                Ok(fd) => {
                    self.begin_iteration();
                    if let Some(fd) = self.shell().forward(listener, fd) {
                        self.admit(listener, fd);
                    }
                }
                Err(AcceptError::Peer) => {}
                Err(AcceptError::Empty) => return Ok(false),
                Err(AcceptError::Exhausted(errno)) => {
                    self.begin_iteration();
                    let shell = self.shell();
                    shell.admission.pause(shell.now, errno);
                }
                Err(AcceptError::Listener(errno)) => return Err(DriverError::Accept(errno)),
            }
        }
        Ok(true)
    }

    /// Reports that all input of a connection is received.
    fn end_input(&mut self, conn: ConnId) {
        let shell = self.shell();
        let input = shell.input(conn);
        if matches!(input, InputState::Receiving | InputState::Paused) {
            *input = InputState::Ended;
            shell.handle(Event::InputEnded { conn });
        }
    }

    /// Reports that nothing can be sent or received on a connection any more.
    fn hang_up(&mut self, conn: ConnId) {
        let shell = self.shell();
        let input = shell.input(conn);
        if *input < InputState::Broken {
            *input = InputState::Broken;
            shell.handle(Event::HungUp { conn });
        }
    }

    /// Logs an error of a connection, and hangs up.
    fn fail(&mut self, conn: ConnId, errno: Errno) {
        let shell = self.shell();
        shell.counts.kept().lost_peers += u64::from(lost_peers::is_loss(errno));
        shell.log.broke(shell.now, shell.server.names(conn).number, errno);
        self.hang_up(conn);
    }
}
