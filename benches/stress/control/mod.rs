//! The control client: several connections at a steady, modest rate. Every job carries its number and a hash of
//! itself; every answer is known beforehand, so what is lost, altered, or delivered twice or out of turn shows.

mod body;
mod cycler;
mod keeper;
mod pair;
mod worker;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use nix::unistd::gettid;

use crate::record::{Stops, Tally};
use crate::server::prefer;

/// Connections that put, reserve and delete in tubes of their own.
const CYCLERS: u64 = 3;

/// Connections that it has: those, the two ends of a tube, and two that watch the time.
pub const CONNECTIONS: u64 = CYCLERS + 4;

/// The largest of its bodies.
pub const BODY_BYTES_MAX: u64 = 60_000;

/// Jobs that it has in the queue at most.
pub const JOBS_MAX: u64 = CYCLERS * cycler::JOBS_MAX + pair::JOBS_MAX + 2;

const HELD_PAUSE: Duration = Duration::from_millis(10);

/// A server reads its clock once a turn: what it is asked for late in one is due by as much too early.
const TURN_MAX: Duration = Duration::from_millis(20);

/// What came that should not have.
#[derive(Debug)]
pub enum Fault {
    /// The connection broke.
    Link(io::Error),
    /// An answer that cannot be right.
    Answer { to: String, got: String },
    /// A body whose hash is not its own.
    Altered { id: u64 },
    /// A job that was not the next one.
    OutOfTurn { expected: u64, got: u64 },
    /// A job that had been taken already, or was never put.
    Unknown { number: u64 },
    /// Something came so many microseconds before it was due.
    Early { what: &'static str, us: u64 },
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Link(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Link(error) => write!(f, "its connection broke: {error}"),
            Fault::Answer { to, got } => write!(f, "{to:?} was answered {got:?}"),
            Fault::Altered { id } => write!(f, "the body of job {id} was altered"),
            Fault::OutOfTurn { expected, got } => write!(f, "job {got} came where {expected} was next"),
            Fault::Unknown { number } => write!(f, "number {number} came twice, or was never put"),
            Fault::Early { what, us } => write!(f, "{what} came {us} us early"),
        }
    }
}

/// What its threads share.
struct Shared {
    addr: SocketAddr,
    is_over: AtomicBool,
    /// The fault makes the server refuse puts.
    may_refuse: AtomicBool,
    /// It does nothing for a while.
    is_held: AtomicBool,
    stops: Stops,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Between two things that it does.
    fn pause_if_held(&self) {
        while self.is_held.load(Ordering::Acquire) && !self.is_over() {
            sleep(HELD_PAUSE);
        }
    }
}

/// A thread whose time is not taken by the fault's clients.
fn spawn(work: impl FnOnce() -> Tally + Send + 'static) -> JoinHandle<Tally> {
    thread::spawn(move || {
        prefer(&gettid().to_string());
        work()
    })
}

/// The control client at work.
pub struct Control {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Tally>>,
}

impl Control {
    /// Connects, and begins.
    pub fn start(addr: SocketAddr, seed: u64) -> io::Result<Control> {
        let [is_over, may_refuse, is_held] = [(); 3].map(|()| AtomicBool::new(false));
        let shared = Arc::new(Shared { addr, is_over, may_refuse, is_held, stops: Stops::default() });
        let mut threads = Vec::new();
        for number in 0..CYCLERS {
            let cycler = cycler::Cycler::connect(&shared, seed, number)?;
            threads.push(spawn(move || cycler.run()));
        }
        let (putter, waiter) = pair::connect(&shared, seed)?;
        threads.push(spawn(move || putter.run()));
        threads.push(spawn(move || waiter.run()));
        let keeper = keeper::Keeper::connect(&shared, seed)?;
        threads.push(spawn(move || keeper.run()));
        Ok(Control { shared, threads })
    }

    /// From now on puts may be refused: it goes on with what it has.
    pub fn allow_refusals(&self) {
        self.shared.may_refuse.store(true, Ordering::Release);
    }

    /// It does nothing, or goes on.
    pub fn hold(&self, is_held: bool) {
        self.shared.is_held.store(is_held, Ordering::Release);
    }

    /// When the server stood still.
    pub fn stops(&self) -> &Stops {
        &self.shared.stops
    }

    /// Whether one of its threads has come to an end already, which it does only where something is wrong.
    pub fn has_given_up(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends it, when all that it has put has come back.
    pub fn finish(mut self) -> Tally {
        self.shared.is_over.store(true, Ordering::Release);
        let mut all = Tally::default();
        for thread in self.threads.drain(..) {
            all.add(thread.join().expect("a thread of the control client ends in order"));
        }
        all
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
    }
}
