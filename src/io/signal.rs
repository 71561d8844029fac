//! Signals as input: blocked, and read from a descriptor when the loop has time for them.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tracing::warn;

use super::successor::{Checks, Successor};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM or SIGINT: stop in good order.
    Stop,
    /// SIGUSR1: accept no new jobs.
    Drain,
    /// SIGUSR2, and the program has said that it could start: stop in good order, and let it take over.
    Replace,
}

/// The signals that the server understands.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    checks: Option<Checks>,
}

impl Signals {
    /// Blocks them for this thread and the threads that it starts, so that from now on they are only
    /// read here.
    ///
    /// Blocked is also what makes them work for PID 1, whose unhandled signals the kernel would drop.
    /// SIGPIPE needs nothing: Rust's runtime ignores it.
    pub fn block() -> nix::Result<Self> {
        let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGUSR1, SIGUSR2]);
        signals.thread_block()?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, checks: None })
    }

    /// From now on SIGUSR2 has this program take over, if it could start.
    pub fn let_take_over(&mut self, successor: Successor) -> nix::Result<()> {
        let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGCHLD]);
        signals.thread_block()?;
        self.fd.set_mask(&signals)?;
        self.checks = Some(Checks::new(successor));
        Ok(())
    }

    /// The next one that has come, if any.
    pub fn take(&mut self) -> nix::Result<Option<Signal>> {
        while let Some(info) = self.fd.read_signal()? {
            let number = info.ssi_signo;
            if number == SIGUSR1 as u32 {
                return Ok(Some(Signal::Drain));
            } else if number == SIGUSR2 as u32 {
                match &mut self.checks {
                    Some(checks) => checks.begin(),
                    None => warn!("no restart: without a log (-b) it would lose all jobs"),
                }
            } else if number == SIGCHLD as u32 {
                if self.checks.as_mut().is_some_and(Checks::has_agreed) {
                    return Ok(Some(Signal::Replace));
                }
            } else {
                return Ok(Some(Signal::Stop));
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
