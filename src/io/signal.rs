//! Signals as input: blocked, and read from a descriptor when the event loop gets to them.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{self, SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use tracing::{info, warn};

use super::reexec::{Preflight, Program, RunningServer};
use super::systemd::NotifySocket;

/// A timer of this process sends it when the watchdog of systemd is due. The event loop reads it like all others, so a loop
/// that is stuck does not notify.
pub const WATCHDOG: signal::Signal = SIGALRM;

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM, SIGINT or SIGHUP: stop gracefully.
    Stop,
    /// SIGUSR1: accept no new jobs.
    Drain,
    /// SIGWINCH: look at the watched files now. The kernel drops it where no process reads it, so it is safe to send. A terminal
    /// sends it too, when its window changes.
    CheckFiles,
    /// SIGUSR2, and the program has passed the preflight check: stop gracefully, and restart in place.
    Restart,
}

/// The signals that the server understands. It also notifies systemd, so that no driver has to.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    read: SigSet,
    /// `None` if the process does not restart in place.
    preflight: Option<Preflight>,
    systemd: NotifySocket,
}

impl Signals {
    /// Blocks the signals for this thread and the threads that it starts, so that they are only read here.
    ///
    /// Blocked signals also reach PID 1, for which the kernel drops unhandled ones. SIGPIPE needs nothing: Rust's runtime
    /// ignores it.
    ///
    /// # Errors
    /// Those of sigaction(2), pthread_sigmask(3) and signalfd(2).
    pub fn block() -> nix::Result<Self> {
        let mut read = SigSet::from_iter([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGWINCH, WATCHDOG]);
        if !is_hangup_ignored()? {
            read.add(SIGHUP);
        }
        read.thread_block()?;
        let fd = SignalFd::with_flags(&read, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { fd, read, preflight: None, systemd: NotifySocket::default() })
    }

    /// From now on SIGUSR2 makes the process restart in place as `program`, if that passes the preflight check.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3), sigaction(2) and signalfd(2).
    pub fn enable_restart(&mut self, program: Program, running: RunningServer) -> nix::Result<()> {
        self.read.add(SIGCHLD);
        self.read.thread_block()?;
        // A parent may have left SIGCHLD ignored; the end of a child would then raise none.
        // SAFETY: this installs no handler.
        #[allow(unsafe_code)]
        unsafe {
            signal::signal(SIGCHLD, signal::SigHandler::SigDfl)?;
        }
        self.fd.set_mask(&self.read)?;
        self.preflight = Some(Preflight::new(program, running));
        Ok(())
    }

    /// Whether the next program takes over connections. Not known before its preflight check has passed.
    pub fn takes_connections(&self) -> bool {
        self.preflight.as_ref().is_some_and(Preflight::takes_connections)
    }

    /// Ends a preflight check that is running, and begins no more. Dropping this does the same.
    pub fn end_preflight(&mut self) {
        self.preflight = None;
    }

    /// From now on systemd is notified when a signal to stop comes, and until then whenever its watchdog is due.
    pub fn notify_systemd(&mut self, socket: NotifySocket) {
        self.systemd = socket;
    }

    /// The next signal that has come, if any, of those that lead to something: a standby does not drain, nor a server that drains already.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn read(&mut self, is_draining: bool, is_standby: bool) -> nix::Result<Option<Signal>> {
        while let Some(info) = self.fd.read_signal()? {
            let sender = Sender(&info);
            match info.ssi_signo as i32 {
                signo if signo == WATCHDOG as i32 => self.systemd.alive(),
                signo if signo == SIGWINCH as i32 => return Ok(Some(Signal::CheckFiles)),
                signo if signo == SIGUSR1 as i32 && is_standby => {
                    info!(
                        "SIGUSR1{sender}: not draining: this server is a standby; send the signal to the leader"
                    );
                }
                signo if signo == SIGUSR1 as i32 && is_draining => {
                    info!("SIGUSR1{sender}: the server is draining already; a client ends that with undrain");
                }
                signo if signo == SIGUSR1 as i32 => {
                    info!(
                        "SIGUSR1{sender}: draining; put is refused with DRAINING until a client sends undrain"
                    );
                    return Ok(Some(Signal::Drain));
                }
                signo if signo == SIGUSR2 as i32 => match &mut self.preflight {
                    Some(preflight) => {
                        info!("SIGUSR2{sender}: restart requested");
                        preflight.start();
                    }
                    None => warn!(
                        "no restart: without a job log (-b) all jobs would be lost; the server keeps running"
                    ),
                },
                signo if signo == SIGCHLD as i32 => {
                    if self.preflight.as_mut().is_some_and(Preflight::poll) {
                        return Ok(Some(Signal::Restart));
                    }
                }
                signo => {
                    let name = signal::Signal::try_from(signo).map_or("a signal", signal::Signal::as_str);
                    info!("{name}{sender}: stopping");
                    self.systemd.stopping();
                    return Ok(Some(Signal::Stop));
                }
            }
        }
        Ok(None)
    }
}

/// A signal to stop is pending while nothing reads signals: during a start.
#[derive(Debug, thiserror::Error)]
#[error("a signal stops the process")]
pub struct StopRequested;

impl StopRequested {
    /// Whether an error comes from [`refuse_to_go_on`].
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// Ends a long operation of a start if a signal to stop has come, which stays pending.
///
/// # Errors
/// [`StopRequested`].
pub fn refuse_to_go_on() -> io::Result<()> {
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call writes a whole set if it succeeds, and the set is read only then.
    #[allow(unsafe_code)]
    let pending = unsafe {
        // A seccomp filter may refuse the call; the start then ends as late as it would without it.
        if libc::sigpending(pending.as_mut_ptr()) != 0 {
            return Ok(());
        }
        SigSet::from_sigset_t_unchecked(pending.assume_init())
    };
    let stops = [SIGTERM, SIGINT, SIGHUP].into_iter().any(|signal| pending.contains(signal));
    if stops { Err(io::Error::other(StopRequested)) } else { Ok(()) }
}

/// Whether the parent has SIGHUP ignored, as nohup(1) does. A blocked signal is delivered even if it is ignored.
fn is_hangup_ignored() -> nix::Result<bool> {
    let mut present = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the present one, which it does if it succeeds.
    #[allow(unsafe_code)]
    let present = unsafe {
        Errno::result(libc::sigaction(libc::SIGHUP, ptr::null(), present.as_mut_ptr()))?;
        present.assume_init()
    };
    Ok(present.sa_sigaction == libc::SIG_IGN)
}

/// The process that has sent a signal. Displays as nothing if that is not known, as for Ctrl-C and a process of another PID
/// namespace.
struct Sender<'a>(&'a siginfo);

impl fmt::Display for Sender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            info if info.ssi_code <= 0 && info.ssi_pid > 0 => {
                write!(f, " from process {} of user {}", info.ssi_pid, info.ssi_uid)
            }
            _ => Ok(()),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
