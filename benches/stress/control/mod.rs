//! The control client: several connections at a steady, modest rate. Every job carries its number and a hash of itself,
//! and every reply is known in advance. So it detects jobs that are lost, altered, delivered twice or out of order.

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

/// All connections: those, the two ends of a tube, and two that check time-outs.
pub const CONNECTIONS: u64 = CYCLERS + 4;

/// The largest body in bytes.
pub const BODY_BYTES_MAX: u64 = 60_000;

/// The largest number of jobs in the queue at once.
pub const JOBS_MAX: u64 = CYCLERS * cycler::JOBS_MAX + pair::JOBS_MAX + 2;

const HELD_PAUSE: Duration = Duration::from_millis(10);

/// A server reads its clock once per event-loop iteration. A command that it handles late in one has a deadline that is
/// early by as much.
const TURN_MAX: Duration = Duration::from_millis(20);

/// A reply or job that must not occur.
#[derive(Debug)]
pub enum Violation {
    /// The connection failed.
    Link(io::Error),
    /// A wrong reply.
    Answer { to: String, got: String },
    /// The hash of a body does not match.
    Altered { id: u64 },
    /// A job arrived out of order.
    OutOfTurn { expected: u64, got: u64 },
    /// A job arrived twice, or was never put.
    Unknown { number: u64 },
    /// Something was due this many microseconds later.
    Early { what: &'static str, us: u64 },
}

impl From<io::Error> for Violation {
    fn from(error: io::Error) -> Violation {
        Violation::Link(error)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Link(error) => write!(f, "the connection failed: {error}"),
            Violation::Answer { to, got } => write!(f, "{to:?} was answered {got:?}"),
            Violation::Altered { id } => write!(f, "the body of job {id} was altered"),
            Violation::OutOfTurn { expected, got } => write!(f, "job {got} arrived instead of {expected}"),
            Violation::Unknown { number } => write!(f, "number {number} arrived twice, or was never put"),
            Violation::Early { what, us } => write!(f, "{what} was {us} us early"),
        }
    }
}

/// State that its threads share.
struct Shared {
    addr: SocketAddr,
    is_over: AtomicBool,
    /// The fault makes the server refuse puts.
    may_refuse: AtomicBool,
    /// The control client is paused.
    is_paused: AtomicBool,
    stops: Stops,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Time between two actions.
    fn pause_if_held(&self) {
        while self.is_paused.load(Ordering::Acquire) && !self.is_over() {
            sleep(HELD_PAUSE);
        }
    }
}

/// Starts a thread that runs before the clients of the fault, if the kernel permits it.
fn spawn(work: impl FnOnce() -> Tally + Send + 'static) -> JoinHandle<Tally> {
    thread::spawn(move || {
        prefer(&gettid().to_string());
        work()
    })
}

/// The running control client.
pub struct Control {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Tally>>,
}

impl Control {
    /// Connects and starts the threads.
    pub fn start(addr: SocketAddr, seed: u64) -> io::Result<Control> {
        let [is_over, may_refuse, is_paused] = [(); 3].map(|()| AtomicBool::new(false));
        let shared = Arc::new(Shared { addr, is_over, may_refuse, is_paused, stops: Stops::default() });
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

    /// Accepts refused puts from now on. The control client continues with the jobs that it has.
    pub fn allow_refusals(&self) {
        self.shared.may_refuse.store(true, Ordering::Release);
    }

    /// Pauses or resumes the control client.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Release);
    }

    /// Returns the periods in which the server was stopped.
    pub fn stops(&self) -> &Stops {
        &self.shared.stops
    }

    /// Returns whether a thread has ended early, which means that something is wrong.
    pub fn has_given_up(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Stops the control client after all its jobs have come back.
    pub fn finish(mut self) -> Tally {
        self.shared.is_over.store(true, Ordering::Release);
        let mut all = Tally::default();
        for thread in self.threads.drain(..) {
            all.add(thread.join().expect("no thread of the control client panics"));
        }
        all
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
    }
}
