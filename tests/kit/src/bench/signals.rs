//! Ends the run in order, so that no server outlives it.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getppid};

use super::Error;

/// The signals that end the run, kept until they are asked for.
pub struct Signals {
    descriptor: SignalFd,
    /// cargo; where it is killed alone, nobody would stop what it has started.
    parent: Pid,
}

impl Signals {
    /// Keeps them from now on. Children inherit that: what has no use for a signal of its own is killed.
    pub fn block() -> Result<Signals, Error> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        set.thread_block().map_err(Error::Signals)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let descriptor = SignalFd::with_flags(&set, flags).map_err(Error::Signals)?;
        Ok(Signals { descriptor, parent: getppid() })
    }

    /// Fails if the run is to end.
    pub fn check(&self) -> Result<(), Error> {
        let came = self.descriptor.read_signal().map_err(Error::Signals)?.is_some();
        if came || getppid() != self.parent { Err(Error::Interrupted) } else { Ok(()) }
    }
}
