//! Signals that end a verb between two jobs: `beanring put` and `move` finish what is in progress, and say how far they came.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

use super::failure::JsonFailure;
use super::{ClientError, Output, say};

const SIGNALS: [(i32, &str); 3] = [(SIGHUP, "SIGHUP"), (SIGINT, "SIGINT"), (SIGTERM, "SIGTERM")];

/// What shells add to the number of a signal for the exit code.
const SIGNALED: u8 = 128;

/// The first signal that asks the process to end. The second one ends it at once.
#[derive(Clone, Debug)]
pub(super) struct Interrupt {
    /// The number of the signal; 0 before it.
    signal: Arc<AtomicUsize>,
    /// Readable after the signal.
    wake: Arc<UnixStream>,
}

/// Input that ends at the signal, also while it is waited for.
#[derive(Debug)]
pub(super) struct Interruptible<R> {
    inner: R,
    interrupt: Interrupt,
}

impl Interrupt {
    /// Catches signals from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn catch() -> Result<Self, ClientError> {
        let (wake, notify) = UnixStream::pair().map_err(refused)?;
        let signal = Arc::new(AtomicUsize::new(0));
        let is_caught = Arc::new(AtomicBool::new(false));
        let register = |number: i32| {
            // Actions happen in the order of their registration: the default one only after an earlier signal.
            flag::register_conditional_default(number, Arc::clone(&is_caught))?;
            flag::register(number, Arc::clone(&is_caught))?;
            flag::register_usize(number, Arc::clone(&signal), number as usize)?;
            low_level::pipe::register(number, notify.try_clone()?)?;
            io::Result::Ok(())
        };
        SIGNALS.iter().try_for_each(|(number, _)| register(*number)).map_err(refused)?;
        Ok(Self { signal, wake: Arc::new(wake) })
    }

    /// Whether a signal has come.
    pub(super) fn is_caught(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// Says what has been done before the signal, and returns the exit code: 128 and the number of the signal, as of a process
    /// that it has killed.
    pub(super) fn report(&self, done: &str, output: &mut Output) -> Result<ExitCode, ClientError> {
        let number = self.signal.load(Ordering::Relaxed);
        let signal = SIGNALS.iter().find(|(known, _)| *known as usize == number);
        let name = signal.map_or("a signal", |(_, name)| name);
        let text = format!("{done}; stopped by {name}");
        say(format_args!("beanring: {text}"));
        if output.is_json() {
            output.json(&JsonFailure::new("interrupted", text))?;
            output.flush()?;
        }
        Ok(ExitCode::from(SIGNALED.saturating_add(number as u8)))
    }

    /// Makes input end at the signal.
    pub(super) fn input<R: Read + AsFd>(&self, inner: R) -> Interruptible<R> {
        Interruptible { inner, interrupt: self.clone() }
    }

    /// Waits until a descriptor can be read, or for the signal.
    fn wait(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN), PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }
}

/// Catches the signals that ask a verb to end.
///
/// # Errors
/// If the system refuses.
pub(super) fn signals() -> Result<Signals, ClientError> {
    Signals::new(SIGNALS.map(|(number, _)| number)).map_err(refused)
}

fn refused(error: io::Error) -> ClientError {
    ClientError::System { what: "wait for signals", error }
}

impl<R: Read + AsFd> Read for Interruptible<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.interrupt.wait(self.inner.as_fd())?;
        if self.interrupt.is_caught() { Ok(0) } else { self.inner.read(buffer) }
    }
}
