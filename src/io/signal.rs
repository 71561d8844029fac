//! Signals as input: blocked, and read from a descriptor when the loop has time for them.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SIGINT, SIGTERM, SIGUSR1, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM or SIGINT: stop in good order.
    Stop,
    /// SIGUSR1: accept no new jobs.
    Drain,
}

/// The signals that the server understands.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks them for this thread and the threads that it starts, so that from now on they are only
    /// read here.
    ///
    /// Blocked is also what makes them work for PID 1, whose unhandled signals the kernel would drop.
    /// SIGPIPE needs nothing: Rust's runtime ignores it.
    pub fn block() -> nix::Result<Self> {
        let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGUSR1]);
        signals.thread_block()?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self(fd))
    }

    /// The next one that has come, if any.
    pub fn next(&self) -> nix::Result<Option<Signal>> {
        let Some(info) = self.0.read_signal()? else { return Ok(None) };
        let is_drain = info.ssi_signo == SIGUSR1 as u32;
        Ok(Some(if is_drain { Signal::Drain } else { Signal::Stop }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
