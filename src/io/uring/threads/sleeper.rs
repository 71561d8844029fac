//! How a thread that waits for the completions of its own ring is woken by another thread.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// A thread that sleeps in its ring, which polls the eventfd of this value.
///
/// ```text
///   the thread                            another thread
///   1. announce: is_asleep = true         1. publishes what the thread is to find
///   2. fence                              2. wake: fence
///   3. looks for it once more, and        3. if is_asleep: writes to the eventfd
///      sleeps if there is nothing
/// ```
///
/// The fences order the two stores before the two loads. So the thread finds what was published, or is woken.
#[repr(align(128))]
#[derive(Debug)]
pub struct Sleeper {
    is_asleep: AtomicBool,
    event: EventFd,
}

impl Sleeper {
    /// The eventfd is readable from the beginning and is never read: a multishot poll reports it when it is requested, and then
    /// each write.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn new() -> nix::Result<Self> {
        let event = EventFd::from_value_and_flags(1, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { is_asleep: AtomicBool::new(false), event })
    }

    /// The descriptor that the ring of the thread polls.
    pub fn fd(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }

    /// Announces that this thread sleeps unless it finds something to do.
    pub fn announce(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends the sleep.
    pub fn rise(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// Wakes the thread if it sleeps. Called after something was published for it.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            self.event.write(1).expect("the counter has room for 2^64 wake-ups");
        }
    }
}
