//! `beanring healthcheck`: checks that a server with the same flags and environment replies.

#[cfg(feature = "tls")]
mod tls;

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::time::{Duration, Instant};

use beanring::config::settings::Settings;
use beanring::config::{ConfigError, address};
use beanring::io::dial::{DialError, dial};
use beanring::io::socket::{Address, text_of};

use crate::cli::Healthcheck;

/// A command and the only reply that a healthy server gives.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The command, with its CR LF.
    command: &'static [u8],
    /// The reply, with its CR LF.
    reply: &'static [u8],
}

/// A cheap command that changes no job or tube. Every new connection gets this reply.
const PROBE: Probe = Probe { command: b"list-tube-used\r\n", reply: b"USING default\r\n" };

/// The same after a PROXY header with the command LOCAL, for a listener that expects one.
const PROXIED: Probe =
    Probe { command: b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00list-tube-used\r\n", reply: PROBE.reply };

/// Checks the server that these settings describe. The flags of the tool itself are among them.
///
/// # Errors
/// If the address is invalid, or the server does not reply as expected.
pub fn run(tool: &Healthcheck, mut settings: Settings) -> Result<(), Box<dyn Error>> {
    let timeout = Duration::from_secs(tool.timeout.into());
    if let Some(address) = with_tls(&mut settings)? {
        #[cfg(feature = "tls")]
        return Ok(tls::run(&address, tool.tls_ca.as_deref(), PROBE, timeout)?);
        #[cfg(not(feature = "tls"))]
        return Err(format!("{address}: this beanring was built without TLS").into());
    }
    if tool.tls_ca.is_some() {
        return Err("--tls-ca has no effect at an address without TLS; use -l beanstalks://HOST".into());
    }
    let (address, _) = address::listen(settings.take("listen"), settings.take("port"))?.unwrap_or_default();
    let listeners = settings.all("proxy-protocol").iter().map(|setting| setting.value.to_string_lossy());
    let is_proxied = listeners.into_iter().any(|names| names.split(',').any(|name| name == "listen"));
    Ok(check(&address, if is_proxied { PROXIED } else { PROBE }, timeout)?)
}

/// Returns the address for TLS: that of `-l beanstalks://HOST`, or, if the server listens nowhere else, that of `--tls-listen`.
fn with_tls(settings: &mut Settings) -> Result<Option<Address>, ConfigError> {
    let Some(listen) = settings.get("listen").cloned() else { return Ok(None) };
    let text = listen.value.to_string_lossy();
    if text.contains("://") {
        let remote = address::remote(&listen)?;
        if remote.is_tls {
            return Ok(Some(remote.address));
        }
    }
    if text != "none" {
        return Ok(None);
    }
    let endpoint = settings.take("tls-listen").map(|listen| address::tls_endpoint(&listen)).transpose()?;
    Ok(endpoint.map(|(address, _)| address))
}

/// Why the health of a server is not known.
#[derive(Debug, thiserror::Error)]
#[error("{}", .problem.text(.address))]
pub struct ProbeError {
    address: Address,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
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
struct Limited {
    socket: TcpStream,
    until: Instant,
}

/// Connects to `address`, or to the loopback address if that stands for all addresses, and sends the command. A host name is
/// resolved first, which `timeout` does not limit.
///
/// # Errors
/// If the reply does not come in time or is a different one.
fn check(address: &Address, probe: Probe, timeout: Duration) -> Result<(), ProbeError> {
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
fn exchange(stream: &mut (impl Read + Write), probe: Probe) -> Result<(), Problem> {
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
fn reachable(address: &Address) -> Address {
    let Address::Tcp { host, port } = address else { return address.clone() };
    let host = match host.parse() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ipv4Addr::LOCALHOST.to_string(),
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ipv6Addr::LOCALHOST.to_string(),
        _ => host.clone(),
    };
    Address::Tcp { host, port: *port }
}

/// Whether this is the end of a time limit, and not one of the system's own.
fn is_late(error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::WouldBlock => true,
        kind => kind == ErrorKind::TimedOut && error.raw_os_error().is_none(),
    }
}

impl Limited {
    fn dial(address: &Address, until: Instant) -> Result<Self, DialError> {
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
