//! An I/O thread: it enters its ring, so that the kernel receives and sends there, and passes completions on. It owns no state.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, Submitter, cqueue};
use nix::errno::Errno;
use nix::libc::iovec;

use super::SPIN;
use super::channel::Sender;
use super::mailbox::Mailbox;
use super::sleeper::Sleeper;
use crate::io::socket::to_errno;
use crate::io::uring::requests::RawCompletion;
use crate::io::uring::ring::{RingNumber, Token};
use crate::io::uring::setup;

/// The longest sleep of a thread that cannot be woken: the poll of its eventfd has ended and is to be requested again.
const UNWAKEABLE_SLEEP_NS: u32 = 1_000_000;

/// The pause of a thread whose channel is full: the event loop has some thousand completions to process.
const FULL_PAUSE: Duration = Duration::from_micros(50);

/// What the event loop and an I/O thread share besides the ring and the channel.
#[derive(Debug)]
pub struct Shared {
    /// The I/O thread.
    pub sleeper: Sleeper,
    /// Requests that the event loop has shown the kernel so far, modulo 2^32.
    pub made: AtomicU32,
    /// The thread is to submit these and end.
    pub stops: AtomicBool,
    /// The error that has ended the thread, or 0.
    failure: AtomicI32,
    /// A buffer that the thread is to register.
    pub registration: Mailbox,
}

impl Shared {
    /// # Errors
    /// Those of eventfd(2).
    pub fn new() -> nix::Result<Self> {
        Ok(Self {
            sleeper: Sleeper::new()?,
            made: AtomicU32::new(0),
            stops: AtomicBool::new(false),
            failure: AtomicI32::new(0),
            registration: Mailbox::default(),
        })
    }

    /// The error that has ended the thread.
    pub fn failure(&self) -> Option<Errno> {
        let failure = self.failure.load(Ordering::Relaxed);
        (failure != 0).then(|| Errno::from_raw(failure))
    }
}

/// The thread's end of its ring.
pub struct IoThread {
    number: RingNumber,
    submitter: Submitter<'static>,
    completions: CompletionQueue<'static>,
    sender: Sender,
    shared: Arc<Shared>,
    event_loop: Arc<Sleeper>,
    /// Requests that the kernel has taken so far, modulo 2^32.
    submitted: u32,
    /// The poll of the eventfd is armed.
    is_wakeable: bool,
    has_buffer_table: bool,
}

impl IoThread {
    /// Enables a ring. From now on the kernel accepts calls for it from this thread alone.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub fn begin(
        number: RingNumber,
        ring: &'static IoUring,
        sender: Sender,
        shared: Arc<Shared>,
        event_loop: Arc<Sleeper>,
    ) -> nix::Result<Self> {
        let mut submitter = ring.submitter();
        setup::enable(&mut submitter)?;
        // SAFETY: this is the only completion queue of the ring.
        let completions = unsafe { ring.completion_shared() };
        Ok(Self {
            number,
            submitter,
            completions,
            sender,
            shared,
            event_loop,
            submitted: 0,
            is_wakeable: false,
            has_buffer_table: false,
        })
    }

    /// Runs until the event loop ends the thread or the ring fails.
    pub fn run(mut self) {
        if let Err(errno) = self.serve() {
            self.fail(errno);
        }
    }

    fn serve(&mut self) -> nix::Result<()> {
        let mut idle_since = None;
        loop {
            // Every request that was made before it is shown before it.
            let is_stopping = self.shared.stops.load(Ordering::Acquire);
            let is_busy = self.has_requests() || is_stopping;
            match idle_since {
                _ if is_busy => self.enter(0)?,
                None => {
                    idle_since = Some(Instant::now());
                    self.enter(0)?;
                }
                Some(since) if Instant::now().duration_since(since) < SPIN => {
                    thread::yield_now();
                    self.enter(0)?;
                }
                Some(_) => {
                    self.sleep()?;
                    idle_since = None;
                }
            }
            self.register();
            if self.pass_on() || is_busy {
                idle_since = None;
            }
            if is_stopping {
                return Ok(());
            }
        }
    }

    /// Whether the event loop has made requests that are not submitted.
    fn has_requests(&self) -> bool {
        self.shared.made.load(Ordering::Acquire) != self.submitted
    }

    /// Submits requests and processes what has happened on the ring. Waits for `want` completions.
    fn enter(&mut self, want: usize) -> nix::Result<()> {
        let result = if want > 0 && !self.is_wakeable {
            let time = Timespec::new().nsec(UNWAKEABLE_SLEEP_NS);
            self.submitter.submit_with_args(want, &SubmitArgs::new().timespec(&time))
        } else {
            self.submitter.submit_and_wait(want)
        };
        match result.map_err(|error| to_errno(&error)) {
            Ok(count) => {
                self.submitted = self.submitted.wrapping_add(count as u32);
                Ok(())
            }
            Err(Errno::ETIME | Errno::EINTR | Errno::EBUSY | Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Waits for a completion, or until the event loop wakes this thread.
    fn sleep(&mut self) -> nix::Result<()> {
        self.shared.sleeper.prepare();
        let has_work = self.has_requests()
            || self.shared.stops.load(Ordering::Relaxed)
            || self.shared.registration.is_full();
        let result = self.enter(usize::from(!has_work));
        self.shared.sleeper.rise();
        result
    }

    /// Passes completions to the event loop. Returns whether there were any.
    fn pass_on(&mut self) -> bool {
        self.completions.sync();
        let is_full = loop {
            if !self.sender.has_room() {
                break true;
            }
            let Some(entry) = self.completions.next() else { break false };
            let completion = RawCompletion::from(entry);
            if completion.word == Token::Wake.to_word() {
                self.is_wakeable = cqueue::more(completion.flags);
                // Otherwise the event loop requests the poll again.
                if self.is_wakeable {
                    continue;
                }
            }
            self.sender.push(completion);
        };
        self.completions.sync();
        let is_new = self.sender.publish();
        if is_new {
            self.event_loop.wake();
        }
        if is_full {
            thread::sleep(FULL_PAUSE);
        }
        is_new
    }

    /// Registers the buffer in the mailbox, if there is one. Its completion is passed on like that of a request.
    fn register(&mut self) {
        let Some((number, memory)) = self.shared.registration.get().filter(|_| self.sender.has_room()) else {
            return;
        };
        let memory = iovec { iov_base: memory.cast(), iov_len: memory.len() };
        // SAFETY: the caller of `Mailbox::put` keeps the memory mapped.
        let registered =
            unsafe { setup::register_buffer(&self.submitter, &mut self.has_buffer_table, number, memory) };
        let word = Token::Registered { ring: self.number, number }.to_word();
        let result = registered.map_or_else(|errno| -(errno as i32), |()| 0);
        self.sender.push(RawCompletion { word, result, flags: 0 });
        self.shared.registration.clear();
    }

    fn fail(&self, errno: Errno) {
        self.shared.failure.store(errno as i32, Ordering::Relaxed);
        self.event_loop.wake();
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        if thread::panicking() {
            self.fail(Errno::ENOTRECOVERABLE);
        }
    }
}
