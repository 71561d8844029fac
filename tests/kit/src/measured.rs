//! A server on a thread of this process whose event-loop iterations are measured from outside.
//!
//! The drivers are generic over [`Service`]. [`Measured`] stands between a driver and the server, and reads the CPU time of its
//! thread at the end of each turn. So the time of an iteration has everything that the thread does for it: system calls, the
//! code of the driver, and the server, whatever the server's own counters say. What those say is recorded too.

use std::cell::Cell;
use std::io::{IoSlice, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use beanring::bodies::Bodies;
use beanring::io::Resources;
use beanring::io::clock::Clock;
use beanring::io::descriptors;
use beanring::io::driver::{Choice, Driver, PreparedDriver};
use beanring::io::host::{self, ProcessFiles};
use beanring::io::signal::Signals;
use beanring::io::socket::{Listener, ListenerKind};
use beanring::io::watched_files::WatchedFiles;
use beanring::server::{
    Config, ConnNames, Effect, Entry, Event, Priced, Protocol, Server, Service, Status, Update, Users,
};
use beanring::time::Time;
use beanring::values::account::Account;
use beanring::values::budget::Budget;
use beanring::values::ids::ConnId;
use beanring::wal::LogRequest;
use clap::ValueEnum;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, raise};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use perf_event::{Builder, Counter};

use super::process::{Address, REPLY_PATIENCE, Transport};

/// How long a server must have had nothing to do before it counts as idle: longer than the pause after which a search in
/// steps looks again.
const IDLE: Duration = Duration::from_micros(1500);

/// How long the end of a server waits for clients to leave. A test may keep some.
const CLOSING: Duration = Duration::from_secs(1);

/// The connection of the measured server to itself.
const WAKERS: usize = 1;

/// What the thread of the server shares with those that measure.
#[derive(Default)]
struct Shared {
    longest_ns: AtomicU64,
    total_ns: AtomicU64,
    /// What the server itself has counted.
    steps: AtomicU64,
    instructions: AtomicU64,
    iterations: AtomicU64,
    /// The connections that the driver has not closed.
    connections: AtomicUsize,
    /// The server has work that no event brings.
    has_work: AtomicBool,
    stops: AtomicBool,
}

/// The iterations since a [`reset`](MeasuredServer::reset).
#[derive(Clone, Copy, Default, Debug)]
pub struct Iterations {
    /// CPU time of the longest one.
    pub longest: Duration,
    /// CPU time of all.
    pub total: Duration,
    /// What the server has charged for all, in elementary steps.
    pub steps: u64,
    /// Instructions of all, those of the kernel included. 0 if the kernel does not count them.
    pub instructions: u64,
    pub count: u64,
}

/// A [`Service`] that measures the iterations of its driver.
struct Measured<S> {
    /// Dropped when it has stopped: the driver uring never drops its service.
    server: Option<S>,
    shared: Arc<Shared>,
    /// CPU time of the thread at the end of the last turn.
    turn_ended: Duration,
    is_stopping: bool,
    /// The time of the last event or turn.
    now: Cell<Time>,
    /// Counts once the server is dropped.
    budget_after: Budget,
    instructions: Option<Counter>,
}

/// A server on a thread of its own. Dropping it stops the server.
pub struct MeasuredServer {
    shared: Arc<Shared>,
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
    listeners: Vec<(ListenerKind, SocketAddr)>,
    thread: Option<JoinHandle<()>>,
    /// Wakes the thread for its stop, with input that has no reply: nothing of the server may be in flight then.
    waker: TcpStream,
}

/// Runs a service on this thread under a driver.
///
/// # Panics
/// If the kernel does not allow it.
pub fn run(io: Driver, listeners: Vec<Listener>, service: impl Service + 'static) {
    run_beside(io, listeners, WatchedFiles::default(), service);
}

fn run_beside(
    io: Driver,
    listeners: Vec<Listener>,
    watched_files: WatchedFiles,
    service: impl Service + 'static,
) {
    // On this thread, so that no other one has the signals blocked.
    let signals = Signals::block().expect("signals can be read");
    let resources = Resources {
        listeners,
        signals,
        clock: Clock::start(),
        disk: None,
        connections_max: None,
        keepalive: None,
        registered_bytes_max: 0,
        process: ProcessFiles::default(),
        watched_files,
        database: None,
        forwarding: None,
    };
    let choice = Choice::from_str(io.name(), false).expect("a driver is a choice");
    let chosen = PreparedDriver::choose(choice);
    let (driver, _) = chosen.unwrap_or_else(|error| panic!("{error}"));
    driver.run(service, resources).unwrap_or_else(|error| panic!("{error}"));
}

impl MeasuredServer {
    /// Starts a server under this driver, with listeners on loopback for clients and for HTTP.
    ///
    /// # Panics
    /// If the kernel does not allow it.
    pub fn start(io: Driver, config: Config) -> Self {
        Self::watching(io, config, WatchedFiles::default())
    }

    /// Starts a server as [`Self::start`] does, which reads these files when they change.
    ///
    /// # Panics
    /// If the kernel does not allow it.
    pub fn watching(io: Driver, config: Config, files: WatchedFiles) -> Self {
        Self::serving(io, &[], files, move || Server::new(config))
    }

    /// Starts a service that is made on its thread, with a further listener of each of these kinds.
    ///
    /// # Panics
    /// If the kernel does not allow it.
    pub fn serving<S: Service + 'static>(
        io: Driver,
        kinds: &[ListenerKind],
        files: WatchedFiles,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Self {
        host::tune_allocator();
        descriptors::raise_limit().expect("a soft limit can be raised");
        let kinds = [ListenerKind::CLEAR, ListenerKind::HTTP].into_iter().chain(kinds.iter().copied());
        let open: Vec<Listener> = kinds.map(listener).collect();
        let address = |listener: &Listener| listener.local_name().parse().expect("a TCP address");
        let listeners: Vec<_> = open.iter().map(|listener| (listener.kind(), address(listener))).collect();
        let shared = Arc::new(Shared::default());
        let service_shared = Arc::clone(&shared);
        let run = move || run_beside(io, open, files, Measured::new(make(), service_shared));
        let thread = thread::Builder::new().name("server".to_owned()).spawn(run);
        let thread = Some(thread.expect("a thread can be started"));
        let (address, http) = (listeners[0].1, listeners[1].1);
        let waker = TcpStream::connect(address).expect("the server listens");
        Self { shared, address, http, listeners, thread, waker }
    }

    /// Returns the address of the listener of this kind.
    ///
    /// # Panics
    /// If there is none.
    pub fn address_of(&self, kind: ListenerKind) -> SocketAddr {
        let found = self.listeners.iter().find(|(each, _)| *each == kind);
        found.unwrap_or_else(|| panic!("no listener is {kind:?}")).1
    }

    /// Begins a measurement. The server should be [idle](Self::await_idle).
    pub fn reset(&self) -> Start {
        self.shared.longest_ns.store(0, Ordering::SeqCst);
        Start {
            total_ns: self.shared.total_ns.load(Ordering::SeqCst),
            steps: self.shared.steps.load(Ordering::SeqCst),
            instructions: self.shared.instructions.load(Ordering::SeqCst),
            count: self.shared.iterations.load(Ordering::SeqCst),
        }
    }

    /// Returns the iterations that have ended since `start`.
    pub fn since(&self, start: &Start) -> Iterations {
        Iterations {
            longest: Duration::from_nanos(self.shared.longest_ns.load(Ordering::SeqCst)),
            total: Duration::from_nanos(self.shared.total_ns.load(Ordering::SeqCst) - start.total_ns),
            steps: self.shared.steps.load(Ordering::SeqCst) - start.steps,
            instructions: self.shared.instructions.load(Ordering::SeqCst) - start.instructions,
            count: self.shared.iterations.load(Ordering::SeqCst) - start.count,
        }
    }

    /// Waits until the server has no work left, and gets no events.
    ///
    /// # Panics
    /// If it always has work.
    pub fn await_idle(&self) {
        let started = Instant::now();
        let mut last = (u64::MAX, Instant::now());
        loop {
            let iterations = self.shared.iterations.load(Ordering::SeqCst);
            if iterations != last.0 || self.shared.has_work.load(Ordering::SeqCst) {
                last = (iterations, Instant::now());
            } else if last.1.elapsed() > IDLE {
                return;
            }
            assert!(started.elapsed() < REPLY_PATIENCE, "the server does not become idle");
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Keeps the calling thread, and those that it starts, on one CPU until this is dropped.
pub struct OnOneCpu(CpuSet);

impl OnOneCpu {
    /// Begins with the first CPU that the thread may use.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn begin() -> Self {
        let allowed = sched_getaffinity(Pid::from_raw(0)).expect("a thread knows its CPUs");
        let is_allowed = |&cpu: &usize| allowed.is_set(cpu).is_ok_and(|is_set| is_set);
        let first = (0..CpuSet::count()).find(is_allowed).expect("it has one");
        let mut one = CpuSet::new();
        one.set(first).expect("it is in range");
        sched_setaffinity(Pid::from_raw(0), &one).expect("a thread may choose among its CPUs");
        Self(allowed)
    }
}

impl Drop for OnOneCpu {
    fn drop(&mut self) {
        let restored = sched_setaffinity(Pid::from_raw(0), &self.0);
        assert!(restored.is_ok() || thread::panicking(), "the thread had these CPUs before");
    }
}

/// The beginning of a measurement.
#[derive(Debug)]
pub struct Start {
    total_ns: u64,
    steps: u64,
    instructions: u64,
    count: u64,
}

impl Drop for MeasuredServer {
    fn drop(&mut self) {
        if !thread::panicking() {
            // The server closes the connections of clients that have left: the drivers on io_uring leave their sockets open when they
            // end. One iteration may close thousands, and take longer than an idle server needs.
            let started = Instant::now();
            while self.shared.connections.load(Ordering::SeqCst) > WAKERS && started.elapsed() < CLOSING {
                self.await_idle();
            }
        }
        self.shared.stops.store(true, Ordering::SeqCst);
        // This fails if the server has ended.
        let _ = self.waker.write_all(b"a line without an end");
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.expect("it is joined once").expect("the server does not panic");
        }
    }
}

/// A listener at an address of its own.
fn listener(kind: ListenerKind) -> Listener {
    let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { unreachable!("it is one for TCP") };
    let address = beanring::io::socket::Address::Tcp { host: address.ip().to_string(), port: address.port() };
    let mut listener = Listener::open(&address).unwrap_or_else(|error| panic!("{error}"));
    listener.set_kind(kind);
    listener
}

/// Returns the CPU time of this thread.
///
/// # Panics
/// If the kernel has no clock for it.
pub fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

/// Counts the instructions of this thread from now on, if the kernel permits it and the CPU can: many virtual machines cannot.
fn instructions() -> Option<Counter> {
    let mut builder = Builder::new();
    builder.include_kernel();
    let mut counter = builder.build().ok()?;
    counter.enable().ok()?;
    Some(counter)
}

impl<S: Service> Measured<S> {
    fn new(server: S, shared: Arc<Shared>) -> Self {
        let (turn_ended, now) = (thread_cpu_time(), Cell::new(Time::ZERO));
        let budget_after = Budget::default();
        let instructions = instructions();
        Self { server: Some(server), shared, turn_ended, is_stopping: false, now, budget_after, instructions }
    }

    fn server(&mut self) -> &mut S {
        self.server.as_mut().expect("no client connects after the stop")
    }

    fn end_iteration(&mut self) {
        let now = thread_cpu_time();
        let spent = u64::try_from((now - self.turn_ended).as_nanos()).expect("less than centuries");
        self.turn_ended = now;
        if let Some(server) = &mut self.server {
            self.shared.steps.store(server.budget().charged(), Ordering::SeqCst);
        }
        if let Some(counter) = &mut self.instructions {
            let count = counter.read().expect("the kernel counts");
            self.shared.instructions.store(count, Ordering::SeqCst);
        }
        self.shared.longest_ns.fetch_max(spent, Ordering::SeqCst);
        self.shared.total_ns.fetch_add(spent, Ordering::SeqCst);
        self.shared.iterations.fetch_add(1, Ordering::SeqCst);
    }
}

impl<S: Service> Service for Measured<S> {
    type Identity = S::Identity;

    fn accept(&mut self, now: Time, protocol: Protocol, entry: Entry) -> ConnId {
        self.shared.connections.fetch_add(1, Ordering::SeqCst);
        self.server().accept(now, protocol, entry)
    }

    fn handle_event(&mut self, now: Time, event: Priced<'_>) {
        self.is_stopping |= matches!(event.event(), Event::Stop);
        if let Event::Closed { .. } = event.event() {
            self.shared.connections.fetch_sub(1, Ordering::SeqCst);
        }
        self.now.set(now);
        if let Some(server) = &mut self.server {
            server.handle_event(now, event);
        }
    }

    fn update(&mut self, now: Time, update: Update<S::Identity>) -> Option<Users> {
        self.server().update(now, update)
    }

    fn turn(&mut self, now: Time) {
        self.now.set(now);
        if self.is_stopping {
            // All clients have left, so the kernel uses no memory of the server.
            self.server = None;
            self.budget_after.begin_iteration();
        }
        if let Some(server) = &mut self.server {
            server.turn(now);
        }
        self.end_iteration();
        if self.shared.stops.swap(false, Ordering::SeqCst) {
            raise(Signal::SIGTERM).expect("a thread may signal itself");
        }
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.server.as_mut()?.poll_effect()
    }

    fn next_deadline(&self) -> Option<Time> {
        let deadline = self.server.as_ref()?.next_deadline();
        self.shared.has_work.store(deadline.is_some_and(|at| at <= self.now.get()), Ordering::SeqCst);
        deadline
    }

    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]> {
        self.server.as_mut()?.direct(conn)
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        if let Some(server) = &mut self.server {
            server.outgoing(conn, slices);
        }
    }

    fn poll_log_request(&mut self, now: Time) -> Option<LogRequest> {
        self.server.as_mut()?.poll_log_request(now)
    }

    fn names(&self, conn: ConnId) -> ConnNames<'_> {
        self.server.as_ref().map_or_else(ConnNames::default, |server| server.names(conn))
    }

    fn status(&self) -> Status {
        self.server.as_ref().map_or_else(Status::default, Service::status)
    }

    fn budget(&mut self) -> &mut Budget {
        match &mut self.server {
            Some(server) => server.budget(),
            None => &mut self.budget_after,
        }
    }

    fn account(&self) -> Rc<Account> {
        self.server.as_ref().map_or_else(Rc::default, Service::account)
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        self.server.as_mut()?.body_memory()
    }
}
