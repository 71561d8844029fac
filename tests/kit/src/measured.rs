//! A server on a thread of this process whose event-loop iterations are measured from outside.
//!
//! The drivers are generic over [`Service`]. [`Measured`] stands between a driver and the server, and reads the CPU time of its
//! thread at the end of each turn. So the time of an iteration has everything that the thread does for it: system calls, the
//! code of the driver, and the server, whatever the server's own counters say.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{IoSlice, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use beanring::bodies::Bodies;
use beanring::io::clock::Clock;
use beanring::io::descriptors;
use beanring::io::driver::{Choice, Driver, PreparedDriver};
use beanring::io::host::{self, ProcessFiles};
use beanring::io::signal::Signals;
use beanring::io::socket::{Listener, ListenerKind};
use beanring::io::watched_files::WatchedFiles;
use beanring::io::{IoThreads, Resources};
use beanring::server::{Config, Effect, Event, Peer, Priced, Protocol, Server, Service, Users};
use beanring::time::Time;
use beanring::values::budget::Budget;
use beanring::values::ids::ConnId;
use clap::ValueEnum;
use nix::sys::signal::{Signal, raise};
use nix::time::{ClockId, clock_gettime};

use super::process::{Address, REPLY_PATIENCE, Transport};

/// How long a server must have had nothing to do before it counts as idle: longer than the pause after which a search in
/// steps looks again.
const IDLE: Duration = Duration::from_micros(1500);

/// What the thread of the server shares with those that measure.
#[derive(Default)]
struct Shared {
    longest_ns: AtomicU64,
    total_ns: AtomicU64,
    iterations: AtomicU64,
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
    pub count: u64,
}

/// A [`Service`] that measures the iterations of its driver.
struct Measured {
    /// Dropped when it has stopped: the driver uring never drops its service.
    server: Option<Server>,
    shared: Arc<Shared>,
    /// CPU time of the thread at the end of the last turn.
    turn_ended: Duration,
    is_stopping: bool,
    /// The time of the last event or turn.
    now: Cell<Time>,
    /// Counts once the server is dropped.
    budget_after: Budget,
}

/// A server on a thread of its own. Dropping it stops the server.
pub struct MeasuredServer {
    shared: Arc<Shared>,
    /// Where clients connect.
    pub address: SocketAddr,
    /// Where HTTP is served.
    pub http: SocketAddr,
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
        registered_bytes_max: 0,
        process: ProcessFiles::default(),
        watched_files,
        database: None,
        forwarding: None,
    };
    let choice = Choice::from_str(io.name(), false).expect("a driver is a choice");
    let chosen = PreparedDriver::choose(choice, &IoThreads::default());
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
        host::tune_allocator();
        descriptors::raise_limit().expect("a soft limit can be raised");
        let [clients, mut http] = [(); 2].map(|()| listener());
        http.set_kind(ListenerKind::HTTP);
        let [address, http_address] =
            [&clients, &http].map(|listener| listener.local_name().parse().expect("a TCP address"));
        let shared = Arc::new(Shared::default());
        let service_shared = Arc::clone(&shared);
        let run = move || {
            let service = Measured::new(Server::new(config), service_shared);
            run_beside(io, vec![clients, http], files, service);
        };
        let thread = thread::Builder::new().name("server".to_owned()).spawn(run);
        let thread = Some(thread.expect("a thread can be started"));
        let waker = TcpStream::connect(address).expect("the server listens");
        Self { shared, address, http: http_address, thread, waker }
    }

    /// Begins a measurement. The server should be [idle](Self::await_idle).
    pub fn reset(&self) -> Start {
        self.shared.longest_ns.store(0, Ordering::SeqCst);
        Start {
            total_ns: self.shared.total_ns.load(Ordering::SeqCst),
            count: self.shared.iterations.load(Ordering::SeqCst),
        }
    }

    /// Returns the iterations that have ended since `start`.
    pub fn since(&self, start: &Start) -> Iterations {
        Iterations {
            longest: Duration::from_nanos(self.shared.longest_ns.load(Ordering::SeqCst)),
            total: Duration::from_nanos(self.shared.total_ns.load(Ordering::SeqCst) - start.total_ns),
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

/// The beginning of a measurement.
#[derive(Debug)]
pub struct Start {
    total_ns: u64,
    count: u64,
}

impl Drop for MeasuredServer {
    fn drop(&mut self) {
        if !thread::panicking() {
            // The server closes the connections of clients that have left. The driver uring would leave them open.
            self.await_idle();
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
fn listener() -> Listener {
    let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { unreachable!("it is one for TCP") };
    let address = beanring::io::socket::Address::Tcp { host: address.ip().to_string(), port: address.port() };
    Listener::open(&address).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the CPU time of this thread.
///
/// # Panics
/// If the kernel has no clock for it.
pub fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
}

impl Measured {
    fn new(server: Server, shared: Arc<Shared>) -> Self {
        let (turn_ended, now) = (thread_cpu_time(), Cell::new(Time::ZERO));
        let budget_after = Budget::default();
        Self { server: Some(server), shared, turn_ended, is_stopping: false, now, budget_after }
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("no client connects after the stop")
    }

    fn end_iteration(&mut self) {
        let now = thread_cpu_time();
        let spent = u64::try_from((now - self.turn_ended).as_nanos()).expect("less than centuries");
        self.turn_ended = now;
        self.shared.longest_ns.fetch_max(spent, Ordering::SeqCst);
        self.shared.total_ns.fetch_add(spent, Ordering::SeqCst);
        self.shared.iterations.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service for Measured {
    type Identity = Infallible;

    fn replace_users(&mut self, users: Users) -> Option<Users> {
        self.server().replace_users(users)
    }

    fn accept(&mut self, protocol: Protocol) -> ConnId {
        self.server().accept(protocol)
    }

    fn set_peer(&mut self, conn: ConnId, peer: Peer) {
        self.server().set_peer(conn, peer);
    }

    fn number(&self, conn: ConnId) -> u64 {
        self.server.as_ref().map_or(0, |server| server.number(conn))
    }

    fn budget(&mut self) -> &mut Budget {
        match &mut self.server {
            Some(server) => server.budget(),
            None => &mut self.budget_after,
        }
    }

    fn take(&mut self, now: Time, event: Priced<'_>) {
        self.is_stopping |= matches!(event.event(), Event::Stop);
        self.now.set(now);
        if let Some(server) = &mut self.server {
            server.take(now, event);
        }
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

    fn next_effect(&mut self) -> Option<Effect> {
        self.server.as_mut()?.next_effect()
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

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        self.server.as_mut()?.body_memory()
    }
}
