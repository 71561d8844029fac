//! How a thread that waits for the completions of its own ring is woken by another thread.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::sleep_flag::SleepFlag;

/// A thread that sleeps in its ring, which polls the eventfd of this value. [`SleepFlag`] says why no wake-up is lost.
#[repr(align(128))]
#[derive(Debug)]
pub struct Sleeper {
    flag: SleepFlag,
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
        Ok(Self { flag: SleepFlag::default(), event })
    }

    /// The descriptor that the ring of the thread polls.
    pub fn fd(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }

    /// Says that this thread sleeps unless it finds something to do.
    pub fn prepare(&self) {
        self.flag.prepare();
    }

    /// Ends the sleep.
    pub fn rise(&self) {
        self.flag.rise();
    }

    /// Wakes the thread if it sleeps. Called after something was published for it.
    pub fn wake(&self) {
        if self.flag.take() {
            self.event.write(1).expect("the counter has room for 2^64 wake-ups");
        }
    }
}
