//! Signals that end a run in order, so that no server outlives it.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getppid};

use super::Error;

/// The signals that end the run, blocked until they are read.
pub struct Signals {
    descriptor: SignalFd,
    /// The parent, which is cargo. If only cargo is killed, nothing else would stop the servers.
    parent: Pid,
}

impl Signals {
    /// Blocks the signals. Children inherit that, so a child that does not handle signals must be killed.
    pub fn block() -> Result<Signals, Error> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        set.thread_block().map_err(Error::Signals)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&set, flags).map_err(Error::Signals)?;
        Ok(Signals { descriptor, parent: getppid() })
    }

    /// Fails if the run should end.
    pub fn check(&self) -> Result<(), Error> {
        let came = self.descriptor.read_signal().map_err(Error::Signals)?.is_some();
        if came || getppid() != self.parent { Err(Error::Interrupted) } else { Ok(()) }
    }
}
