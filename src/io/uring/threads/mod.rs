//! I/O threads and their rings. The event loop makes requests on these rings, as on its own. A thread per ring does nothing but call
//! `io_uring_enter`, so that the kernel's part of a receive or a send runs there (docs/internals/IO.md).

#![allow(unsafe_code)]

mod channel;
mod io_thread;
mod mailbox;
mod sleep_flag;
mod sleeper;
mod sync;

use std::cell::Cell;
use std::convert::Infallible;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use io_uring::IoUring;
use nix::errno::Errno;
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, gettid};
use tracing::warn;

use self::channel::Receiver;
use self::io_thread::{IoThread, Shared};
pub use self::sleeper::Sleeper;
use super::buffers::{Buffers, Shape};
use super::requests::Requests;
use super::ring::{Buffer, Completion, Registration, RingNumber, Token};
use super::setup::{self, COMPLETIONS_QUEUED_MAX};
use crate::io::counts::ReadThreads;
use crate::io::socket::to_errno;
use crate::server::{IoThreadStats, Protocol, ThreadStats};
use crate::values::limits::{RECEIVE_BYTES_MAX, TAIL_BUFFERS_MAX, THREAD_BUFFERS};

/// How long a thread looks for something to do before it sleeps. A wake-up takes longer on most machines. The thread yields all the
/// time, so that others run if the machine has no core to spare.
pub const SPIN: Duration = Duration::from_micros(20);

/// Completions taken from one thread before the next has its turn, and before this one sees the requests that they have led to.
const BURST_MAX: u32 = 64;

/// Attempts to show a thread the last requests, which wait for room in its submission queue.
const LAST_ATTEMPTS_MAX: usize = 1000;

/// The memory of the buffers of a thread.
const BUFFER_BYTES: usize = (THREAD_BUFFERS + TAIL_BUFFERS_MAX) as usize * RECEIVE_BYTES_MAX;

/// The rings of I/O threads, which the kernel has granted. No thread runs yet.
pub struct PreparedThreads {
    rings: Vec<(&'static IoUring, Buffers)>,
    /// Why there are fewer than wanted.
    pub refusal: Option<Errno>,
}

/// The event loop's end of all I/O threads.
#[derive(Default)]
pub struct Threads {
    rings: Vec<ThreadRing>,
    /// By slot.
    ring_of: Vec<RingNumber>,
    /// Connections so far.
    opened: u32,
    /// The ring whose completions are taken, and how many were taken in a row.
    current: usize,
    burst: u32,
}

/// The event loop's end of one I/O thread and its ring.
struct ThreadRing {
    requests: Requests,
    receiver: Receiver,
    shared: Arc<Shared>,
    /// Requests that the thread knows of.
    shown: u32,
    connections: Rc<Cell<u32>>,
    cpu_clock: ClockId,
    /// Is closed when the thread has ended.
    ended: mpsc::Receiver<Infallible>,
}

impl PreparedThreads {
    /// Sets up `count` rings, or as many as the kernel grants.
    pub fn new(count: usize) -> Self {
        let mut prepared = Self { rings: Vec::new(), refusal: None };
        while prepared.rings.len() < count && prepared.refusal.is_none() {
            match Self::ring() {
                Ok(ring) => prepared.rings.push(ring),
                Err(errno) => prepared.refusal = Some(errno),
            }
        }
        prepared
    }

    pub const fn len(&self) -> usize {
        self.rings.len()
    }

    fn ring() -> nix::Result<(&'static IoUring, Buffers)> {
        let ring = setup::build()?;
        let buffers = Buffers::register(&ring.submitter(), Shape::THREAD)?;
        setup::restrict(&ring.submitter())?;
        // The kernel may use it until the process ends.
        Ok((Box::leak(Box::new(ring)), buffers))
    }
}

impl Threads {
    /// Starts the threads, each on its CPU if there are `cpus`. Logs which ones cannot be started, and continues with the others.
    pub fn start(prepared: PreparedThreads, cpus: &[usize], event_loop: &Arc<Sleeper>) -> Self {
        let mut threads = Self::default();
        for (at, (ring, buffers)) in prepared.rings.into_iter().enumerate() {
            let number = threads.rings.len() as RingNumber + 1;
            match ThreadRing::start(number, ring, buffers, cpus.get(at).copied(), event_loop) {
                Ok(started) => threads.rings.push(started),
                Err(errno) => warn!(
                    "cannot start I/O thread {}: {}; the server continues without it",
                    at + 1,
                    errno.desc()
                ),
            }
        }
        threads
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// The memory that they need.
    pub const fn memory_bytes(&self) -> usize {
        self.rings.len() * BUFFER_BYTES
    }

    /// Chooses a ring for a connection: the one with the fewest. HTTP stays on the ring of the event loop, 0, so that probes and
    /// metrics do not depend on a thread.
    pub fn open(&mut self, slot: u32, protocol: Protocol) {
        let slot = slot as usize;
        if slot >= self.ring_of.len() {
            self.ring_of.resize(slot + 1, 0);
        }
        if protocol == Protocol::Http {
            self.ring_of[slot] = 0;
            return;
        }
        // Rings with equally many in an order that mixes: programs open connections in patterns, such as a producer and a worker in
        // turn.
        self.opened = self.opened.wrapping_add(1);
        let first = (self.opened.wrapping_mul(0x9E37_79B9) >> 16) as usize;
        let count = self.rings.len();
        let order = (0..count).map(|offset| (first + offset) % count);
        let at = order.min_by_key(|&at| self.rings[at].connections.get()).expect("there are threads");
        self.rings[at].add_connections(1);
        self.ring_of[slot] = at as RingNumber + 1;
    }

    pub fn close(&mut self, slot: u32) {
        if let Some(at) = self.ring_of(slot).checked_sub(1) {
            self.rings[at as usize].add_connections(-1);
        }
    }

    pub fn ring_of(&self, slot: u32) -> RingNumber {
        self.ring_of[slot as usize]
    }

    /// The requests of a ring, which is not that of the event loop.
    pub fn requests(&mut self, ring: RingNumber) -> &mut Requests {
        &mut self.rings[ring as usize - 1].requests
    }

    /// The bytes in a buffer.
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        self.rings[buffer.ring as usize - 1].requests.bytes(buffer)
    }

    /// Takes the next completion. A thread whose turn is over sees the requests that were made.
    pub fn next(&mut self) -> Option<Completion> {
        for _ in 0..=self.rings.len() {
            let ring = &mut self.rings[self.current];
            if self.burst < BURST_MAX
                && let Some(completion) = ring.next()
            {
                self.burst += 1;
                return Some(completion);
            }
            ring.show();
            self.burst = 0;
            self.current = (self.current + 1) % self.rings.len();
        }
        None
    }

    /// Whether a thread has passed completions on, or has failed.
    pub fn have_news(&mut self) -> bool {
        self.rings.iter_mut().any(|ring| !ring.receiver.is_empty() || ring.shared.failure().is_some())
    }

    /// Shows the threads all requests, as far as they find room. Returns whether all did.
    ///
    /// # Errors
    /// If a thread has failed.
    pub fn show(&mut self) -> nix::Result<bool> {
        let mut have_all = true;
        for ring in &mut self.rings {
            have_all &= ring.show();
            if let Some(errno) = ring.shared.failure() {
                return Err(errno);
            }
        }
        Ok(have_all)
    }

    /// Registers memory with a ring.
    ///
    /// # Safety
    /// The memory must stay mapped, with its present pages, for the life of the process.
    pub unsafe fn register(&self, ring: RingNumber, number: u16, memory: NonNull<[u8]>) -> Registration {
        let shared = &self.rings[ring as usize - 1].shared;
        if shared.registration.is_full() {
            return Registration::Busy;
        }
        // SAFETY: the caller promises the same.
        unsafe { shared.registration.put(number, memory) };
        shared.sleeper.wake();
        Registration::Pending
    }

    /// How to read what the threads use, if there are any.
    pub fn read_stats(&self) -> Option<ReadThreads> {
        let threads: Vec<_> =
            self.rings.iter().map(|ring| (ring.connections.clone(), ring.cpu_clock)).collect();
        if threads.is_empty() {
            return None;
        }
        Some(Box::new(move || {
            let stats = |(connections, clock): &(Rc<Cell<u32>>, ClockId)| IoThreadStats {
                connections: connections.get(),
                cpu_us: cpu_us(*clock),
            };
            let event_loop_cpu_us = cpu_us(ClockId::CLOCK_THREAD_CPUTIME_ID);
            ThreadStats { event_loop_cpu_us, io_threads: threads.iter().map(stats).collect() }
        }))
    }

    /// Ends the threads, which submit all requests first.
    pub fn end(&mut self) {
        for ring in &mut self.rings {
            for _ in 0..LAST_ATTEMPTS_MAX {
                if ring.show() {
                    break;
                }
                thread::yield_now();
            }
            ring.shared.stops.store(true, Ordering::Release);
            ring.shared.sleeper.wake();
        }
        for ring in &self.rings {
            let Err(mpsc::RecvError) = ring.ended.recv();
        }
    }
}

impl ThreadRing {
    fn start(
        number: RingNumber,
        ring: &'static IoUring,
        buffers: Buffers,
        cpu: Option<usize>,
        event_loop: &Arc<Sleeper>,
    ) -> nix::Result<Self> {
        let shared = Arc::new(Shared::new()?);
        let (sender, receiver) = channel::channel(COMPLETIONS_QUEUED_MAX);
        let (started, start) = mpsc::channel();
        let (ending, ended) = mpsc::channel();
        let (its_shared, its_event_loop) = (shared.clone(), event_loop.clone());
        let body = move || {
            if let Some(cpu) = cpu {
                pin(cpu);
            }
            let begun = IoThread::begin(number, ring, sender, its_shared, its_event_loop);
            let (thread, outcome) = match begun {
                Ok(thread) => (Some(thread), Ok(cpu_clock(gettid()))),
                Err(errno) => (None, Err(errno)),
            };
            // If the other end is closed, the process ends.
            let _ = started.send(outcome);
            if let Some(thread) = thread {
                thread.run();
            }
            drop(ending);
        };
        let spawned = thread::Builder::new().name(format!("io {number}")).spawn(body);
        spawned.map_err(|error| to_errno(&error))?;
        let cpu_clock = start.recv().map_err(|_| Errno::ENOTRECOVERABLE)??;
        // SAFETY: this is the only submission queue of the ring.
        let submissions = unsafe { ring.submission_shared() };
        let mut requests = Requests::new(number, submissions, buffers);
        requests.poll_always(Token::Wake, shared.sleeper.fd(), libc::POLLIN);
        Ok(Self { requests, receiver, shared, shown: 0, connections: Rc::default(), cpu_clock, ended })
    }

    fn add_connections(&self, change: i32) {
        self.connections.update(|count| count.checked_add_signed(change).expect("connections are counted"));
    }

    fn next(&mut self) -> Option<Completion> {
        loop {
            let completion = self.requests.read(self.receiver.next()?);
            if completion.token != Token::Wake {
                return Some(completion);
            }
            self.requests.poll_always(Token::Wake, self.shared.sleeper.fd(), libc::POLLIN);
        }
    }

    /// Shows the thread the requests that were made. Returns whether all found room.
    fn show(&mut self) -> bool {
        self.receiver.release();
        let has_all = self.requests.flush();
        let made = self.requests.made();
        if made != self.shown {
            self.shown = made;
            self.shared.made.store(made, Ordering::Release);
            self.shared.sleeper.wake();
        }
        has_all
    }
}

/// Restricts this thread to a CPU. Logs if the kernel refuses that.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if let Err(errno) = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
        warn!("--io-cpus: cannot run a thread on CPU {cpu}: {}; it runs on any", errno.desc());
    }
}

/// The clock of a thread's CPU time, as clock_getcpuclockid(3) has it for a process: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED.
const fn cpu_clock(thread: Pid) -> ClockId {
    ClockId::from_raw((!thread.as_raw() << 3) | 6)
}

/// CPU time in microseconds. 0 if the thread has ended.
fn cpu_us(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| time.tv_sec() as u64 * 1_000_000 + time.tv_nsec() as u64 / 1000)
}
