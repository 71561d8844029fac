//! What a service manager is told (sd_notify): that the server is ready, alive, about to stop.
//!
//! Messages go through a socket that is opened once: a server whose connections have taken all descriptors
//! must still be able to say that it is alive.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use sd_notify::NotifyState;
use tracing::warn;

use super::signal::ALIVE;

/// The service manager that started this process, if it wants to be told anything.
#[derive(Debug, Default)]
pub struct Manager {
    socket: Option<UnixDatagram>,
    /// Sends [`ALIVE`] to this process twice in the time that the manager is patient for.
    watchdog: Option<Timer>,
}

impl Manager {
    /// The one that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`). To be called with [`ALIVE`] blocked. One that
    /// cannot be reached is as good as none: the server does not depend on it.
    pub fn from_environment() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        let socket = match connect(&name) {
            Ok(socket) => socket,
            Err(error) => {
                warn!("NOTIFY_SOCKET {}: cannot tell the service manager anything: {error}", name.display());
                return Self::default();
            }
        };
        let patience = sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero());
        let watchdog = patience.map(|patience| beat(patience / 2)).transpose();
        let watchdog = watchdog.unwrap_or_else(|errno| {
            warn!("WATCHDOG_USEC: cannot tell the service manager regularly: {}", errno.desc());
            None
        });
        Self { socket: Some(socket), watchdog }
    }

    /// Clients are served from now on; `status` is for people.
    pub fn ready(&self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(status)]);
        // It waits for this word. Later ones must not hold up the loop while it is busy: it is told again.
        if let Some(socket) = &self.socket {
            socket.set_nonblocking(true).expect("a socket can be nonblocking");
        }
    }

    /// The loop goes round.
    pub fn alive(&self) {
        if self.watchdog.is_some() {
            self.tell(&[NotifyState::Watchdog]);
        }
    }

    /// The end has begun, in good order.
    pub fn stopping(&self) {
        self.tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut message = String::new();
        for state in states {
            writeln!(message, "{state}").expect("a string takes it");
        }
        if let Err(error) = socket.send(message.as_bytes()) {
            warn!("NOTIFY_SOCKET: cannot tell the service manager: {error}");
        }
    }
}

/// A name that begins with `@` stands in the abstract namespace (sd_notify(3)).
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// A timer whose signal is read by the event loop like all others: a loop that is stuck says nothing.
fn beat(every: Duration) -> nix::Result<Timer> {
    let event = SigEvent::new(SigevNotify::SigevSignal { signal: ALIVE, si_value: 0 });
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, event)?;
    // A period of nothing would stop the timer.
    let every = TimeSpec::from_duration(every.max(Duration::from_millis(1)));
    timer.set(Expiration::IntervalDelayed(every, every), TimerSetTimeFlags::empty())?;
    Ok(timer)
}
