//! Sends one command to a running server and checks the reply, within a time limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::time::{Duration, Instant};

use crate::io::dial::{DialError, dial};
use crate::io::socket::{Address, text_of};

/// A command and the only reply that a healthy server gives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// The command, with its CR LF.
    pub command: &'static [u8],
    /// The reply, with its CR LF.
    pub reply: &'static [u8],
}

/// Why the health of a server is not known.
#[derive(Debug, thiserror::Error)]
#[error("{}", .problem.text(.address))]
pub struct ProbeError {
    pub(super) address: Address,
    pub(super) problem: Problem,
}

#[derive(Debug)]
pub(super) enum Problem {
    /// Port 0: the system has chosen the port, and only the server knows it.
    NoPort,
    UnknownHost,
    /// No connection could be established. What may be corrected.
    Unreachable(io::Error, &'static str),
    /// The connection broke.
    Broken(io::Error),
    /// The connection was closed before the reply was complete.
    Closed,
    /// Nothing came in this time, over this.
    Silent(Duration, &'static str),
    /// The reply is a different one.
    Wrong(Vec<u8>),
    /// The file of the CA, or the name to look for in the certificate.
    #[cfg(feature = "tls")]
    Ca(String),
    #[cfg(feature = "tls")]
    Tls(rustls::Error),
}

/// A connection that is given up at a moment.
pub(super) struct Limited {
    socket: TcpStream,
    until: Instant,
}

/// Connects to `address`, or to the loopback address if that stands for all addresses, and sends the command. A host name is
/// resolved first, which `timeout` does not limit.
///
/// # Errors
/// If the reply does not come in time or is a different one.
pub(super) fn run(address: &Address, probe: Probe, timeout: Duration) -> Result<(), ProbeError> {
    let address = reachable(address);
    let flags = if let Address::Unix(_) = address { "-l" } else { "-l and -p" };
    let exchanged = match address {
        Address::Tcp { port: 0, .. } => Err(Problem::NoPort),
        _ => match Limited::dial(&address, Instant::now() + timeout) {
            Ok(mut connection) => exchange(&mut connection, probe),
            Err(DialError::Refused(error)) => Err(Problem::Unreachable(error, flags)),
            Err(_) => Err(Problem::UnknownHost),
        },
    };
    exchanged.map_err(|problem| match problem {
        Problem::Unreachable(error, _) | Problem::Broken(error) if is_late(&error) => {
            ProbeError { address, problem: Problem::Silent(timeout, "") }
        }
        problem => ProbeError { address, problem },
    })
}

/// Sends the command and reads the reply.
pub(super) fn exchange(stream: &mut (impl Read + Write), probe: Probe) -> Result<(), Problem> {
    stream.write_all(probe.command).map_err(Problem::Broken)?;
    let mut received = Vec::new();
    while received.len() < probe.reply.len() {
        let mut buffer = [0; 64];
        match stream.read(&mut buffer).map_err(Problem::Broken)? {
            0 => return Err(Problem::Closed),
            bytes => received.extend_from_slice(&buffer[..bytes]),
        }
        if !probe.reply.starts_with(&received) {
            return Err(Problem::Wrong(received));
        }
    }
    Ok(())
}

/// Replaces the address that stands for all addresses by that of loopback.
pub(super) fn reachable(address: &Address) -> Address {
    let Address::Tcp { host, port } = address else { return address.clone() };
    let host = match host.parse() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ipv4Addr::LOCALHOST.to_string(),
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ipv6Addr::LOCALHOST.to_string(),
        _ => host.clone(),
    };
    Address::Tcp { host, port: *port }
}

/// Whether this is the end of a time limit, and not one of the system's own.
pub(super) fn is_late(error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::WouldBlock => true,
        kind => kind == ErrorKind::TimedOut && error.raw_os_error().is_none(),
    }
}

impl Limited {
    pub(super) fn dial(address: &Address, until: Instant) -> Result<Self, DialError> {
        Ok(Self { socket: dial(address, || left(until))?, until })
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.until)?))?;
        self.socket.read(buffer)
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.until)?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Problem {
    /// The problem with the server at this address.
    fn text(&self, address: &Address) -> String {
        match self {
            Self::NoPort => {
                format!(
                    "{address}: the system chooses port 0; set the port that the server has logged with -p"
                )
            }
            Self::UnknownHost => format!("{address}: no such host; correct the name, or check DNS"),
            Self::Unreachable(error, flags) => {
                let reason = text_of(error);
                format!("cannot connect to {address}: {reason}; start the server, or correct {flags}")
            }
            Self::Broken(error) => format!("{address}: the connection broke: {}", text_of(error)),
            Self::Closed => format!("{address}: the connection was closed without a reply"),
            Self::Silent(timeout, over) => {
                format!("{address}: no reply{over} within {} s", timeout.as_secs())
            }
            Self::Wrong(received) => {
                let received = received.escape_ascii();
                format!("{address}: this is not a beanstalk server: it replied \"{received}\"")
            }
            #[cfg(feature = "tls")]
            Self::Ca(text) => text.clone(),
            #[cfg(feature = "tls")]
            Self::Tls(error) => format!("{address}: no TLS with the server: {error}"),
        }
    }
}
