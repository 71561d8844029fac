//! Notifies systemd (sd_notify(3)) that the server is ready, alive, or about to stop.
//!
//! The socket is opened once at the start: a server whose connections have taken all descriptors must still be able to notify.

use std::cell::Cell;
use std::env;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify};
use nix::sys::stat::fstat;
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use sd_notify::NotifyState;
use tracing::warn;

use super::signal::WATCHDOG;
use super::socket::text_of;

/// The notification socket of systemd. Without one the methods do nothing.
#[derive(Debug, Default)]
pub struct NotifySocket {
    socket: Option<UnixDatagram>,
    /// Sends [`WATCHDOG`] to this process twice per watchdog period.
    watchdog: Option<Timer>,
    /// The last message was not sent, and a line said so.
    has_failed: Cell<bool>,
}

impl NotifySocket {
    /// Connects to the socket that the environment names (`NOTIFY_SOCKET`), and starts the timer of the watchdog
    /// (`WATCHDOG_USEC`). [`WATCHDOG`] must be blocked before. A failure is logged as a warning: the server runs without.
    pub fn from_environment() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let socket = match connect(&name) {
            Ok(socket) => socket,
            Err(error) => {
                warn!(
                    "NOTIFY_SOCKET {}: cannot connect to systemd, which will not learn that the server is ready: {}",
                    name.display(),
                    text_of(&error)
                );
                return Self::default();
            }
        };
        let period = sd_notify::watchdog_enabled().filter(|period| !period.is_zero());
        let watchdog = period.map(|period| start_timer(period / 2)).transpose();
        let watchdog = watchdog.unwrap_or_else(|errno| {
            warn!(
                "WATCHDOG_USEC: cannot start the watchdog timer, so systemd may end the server: {}",
                errno.desc()
            );
            None
        });
        Self { socket: Some(socket), watchdog, has_failed: Cell::new(false) }
    }

    /// Notifies that clients are served from now on. `systemctl status` shows `status`.
    ///
    /// # Panics
    /// If the socket cannot be made nonblocking.
    pub fn ready(&self, status: &str) {
        self.send(&[NotifyState::Ready, NotifyState::Status(status)]);
        // Systemd waits for this message, so it is sent blocking. Later ones are repeated, and must not block the loop.
        if let Some(socket) = &self.socket {
            socket.set_nonblocking(true).expect("a socket can be made nonblocking");
        }
    }

    /// Notifies that the event loop is alive, if systemd has a watchdog for it.
    pub fn alive(&self) {
        if self.watchdog.is_some() {
            self.send(&[NotifyState::Watchdog]);
        }
    }

    /// Notifies that the server has begun to stop.
    pub fn stopping(&self) {
        self.send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut message = String::new();
        for state in states {
            writeln!(message, "{state}").expect("a write to a string does not fail");
        }
        let sent = socket.send(message.as_bytes());
        // Keep-alives may fail twice per watchdog period for hours: the first failure of a series is logged.
        let had_failed = self.has_failed.replace(sent.is_err());
        if let Err(error) = sent
            && !had_failed
        {
            warn!("NOTIFY_SOCKET: cannot notify systemd: {}", text_of(&error));
        }
    }
}

/// Whether stderr is a stream of the systemd journal, as `JOURNAL_STREAM` says (systemd.exec(5)). A redirected stderr is
/// another file than the one that the variable names.
pub fn is_stderr_the_journal() -> bool {
    let Ok(file) = fstat(io::stderr()) else { return false };
    env::var("JOURNAL_STREAM").is_ok_and(|stream| stream == format!("{}:{}", file.st_dev, file.st_ino))
}

/// Connects to a socket. A name that begins with `@` is in the abstract namespace (sd_notify(3)).
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// Starts a timer that sends [`WATCHDOG`].
fn start_timer(every: Duration) -> nix::Result<Timer> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: WATCHDOG, si_value: 0 });
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, event)?;
    // A period of zero would disarm the timer.
    let every = TimeSpec::from_duration(every.max(Duration::from_millis(1)));
    timer.set(Expiration::IntervalDelayed(every, every), TimerSetTimeFlags::empty())?;
    Ok(timer)
}
