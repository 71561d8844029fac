//! Signals as input: blocked, and read from a descriptor when the loop has time for them.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{self, SIGALRM, SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tracing::warn;

use super::reexec::{Checks, Present, Successor};
use super::systemd::Manager;

/// Comes from a timer of this process: time to tell the service manager that the loop goes round.
pub const ALIVE: signal::Signal = SIGALRM;

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

/// The signals that the server understands. Its service manager hears of them by the way, so no driver has to
/// know that there is one.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    checks: Option<Checks>,
    manager: Manager,
}

impl Signals {
    /// Blocks them for this thread and the threads that it starts, so that from now on they are only
    /// read here.
    ///
    /// Blocked is also what makes them work for PID 1, whose unhandled signals the kernel would drop.
    /// SIGPIPE needs nothing: Rust's runtime ignores it.
    pub fn block() -> nix::Result<Self> {
        let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, ALIVE]);
        signals.thread_block()?;
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, checks: None, manager: Manager::default() })
    }

    /// From now on SIGUSR2 has this program take over, if it could start.
    pub fn let_take_over(&mut self, successor: Successor, present: Present) -> nix::Result<()> {
        let signals = SigSet::from_iter([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, ALIVE, SIGCHLD]);
        signals.thread_block()?;
        // Where a parent has left it ignored, no child would be heard of.
        // SAFETY: nothing is installed that could run at a bad moment.
        #[allow(unsafe_code)]
        unsafe {
            signal::signal(SIGCHLD, signal::SigHandler::SigDfl)?;
        }
        self.fd.set_mask(&signals)?;
        self.checks = Some(Checks::new(successor, present));
        Ok(())
    }

    /// Nobody takes over any more. As when this is dropped.
    pub fn end_checks(&mut self) {
        self.checks = None;
    }

    /// From now on `manager` is told when the process is told to stop, and until then that the loop goes round.
    pub fn report_to(&mut self, manager: Manager) {
        self.manager = manager;
    }

    /// The next one that has come, if any.
    pub fn take(&mut self) -> nix::Result<Option<Signal>> {
        while let Some(info) = self.fd.read_signal()? {
            match info.ssi_signo as i32 {
                signo if signo == ALIVE as i32 => self.manager.alive(),
                signo if signo == SIGUSR1 as i32 => return Ok(Some(Signal::Drain)),
                signo if signo == SIGUSR2 as i32 => match &mut self.checks {
                    Some(checks) => checks.begin(),
                    None => warn!("no restart: without a log (-b) it would lose all jobs"),
                },
                signo if signo == SIGCHLD as i32 => {
                    if self.checks.as_mut().is_some_and(Checks::has_agreed) {
                        return Ok(Some(Signal::Replace));
                    }
                }
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
