//! Signals as input: blocked, and read from a descriptor when the loop has time for them.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{self, SIGALRM, SIGINT, SIGTERM, SIGUSR1, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::manager::Manager;

/// Comes from a timer of this process: time to tell the service manager that the loop goes round.
pub const ALIVE: signal::Signal = SIGALRM;

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM or SIGINT: stop in good order.
    Stop,
    /// SIGUSR1: accept no new jobs.
    Drain,
}

/// The signals that the server understands. Its service manager hears of them by the way, so no driver has to
/// know that there is one.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    manager: Manager,
}

impl Signals {
    /// Blocks them for this thread and the threads that it starts, so that from now on they are only
    /// read here.
    ///
    /// Blocked is also what makes them work for PID 1, whose unhandled signals the kernel would drop.
    /// SIGPIPE needs nothing: Rust's runtime ignores it.
    pub fn block() -> nix::Result<Self> {
        let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGUSR1, ALIVE]);
        signals.thread_block()?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, manager: Manager::default() })
    }

    /// From now on `manager` is told when the process is told to stop, and until then that the loop goes round.
    pub fn report_to(&mut self, manager: Manager) {
        self.manager = manager;
    }

    /// The next one that has come, if any.
    pub fn next(&self) -> nix::Result<Option<Signal>> {
        while let Some(info) = self.fd.read_signal()? {
            match info.ssi_signo as i32 {
                signo if signo == ALIVE as i32 => self.manager.alive(),
                signo if signo == SIGUSR1 as i32 => return Ok(Some(Signal::Drain)),
                _ => {
                    self.manager.stopping();
                    return Ok(Some(Signal::Stop));
                }
            }
        }
        Ok(None)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
