//! Sends one command to a running server and checks the reply, within a time limit.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr, connect, recv,
    send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::socket::Address;

/// A command and the only reply that a healthy server gives.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The command, with its CR LF.
    pub command: &'static [u8],
    /// The reply, with its CR LF.
    pub reply: &'static [u8],
}

/// Why the health of a server is not known.
#[derive(Debug)]
pub struct ProbeError {
    address: Address,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    /// Port 0: the system has chosen the port, and only the server knows it.
    NoPort,
    UnknownHost,
    /// No connection could be established.
    Unreachable(Errno),
    /// The connection broke.
    Broken(Errno),
    /// The connection was closed before the reply was complete.
    Closed,
    Silent(Duration),
    /// The reply is a different one.
    Wrong(Vec<u8>),
}

/// Connects to `address`, or to the loopback address if that stands for all addresses, and sends the command. A host name is
/// resolved first, which `timeout` does not limit.
///
/// # Errors
/// If the reply does not come in time or is a different one.
pub fn run(address: &Address, probe: Probe, timeout: Duration) -> Result<(), ProbeError> {
    let address = reachable(address);
    let failed = |problem| ProbeError { address: address.clone(), problem };
    let until = Instant::now() + timeout;
    let mut refusal = Problem::UnknownHost;
    for place in places(&address).map_err(failed)? {
        match open(&*place, until) {
            Ok(connection) => {
                return exchange(&connection, probe, until).map_err(|problem| match problem {
                    Problem::Broken(Errno::EAGAIN) => failed(Problem::Silent(timeout)),
                    problem => failed(problem),
                });
            }
            // The errors of a connect that timed out: on a UNIX socket, over TCP.
            Err(Errno::EAGAIN | Errno::EINPROGRESS) => return Err(failed(Problem::Silent(timeout))),
            Err(errno) => refusal = Problem::Unreachable(errno),
        }
    }
    Err(failed(refusal))
}

fn places(address: &Address) -> Result<Vec<Box<dyn SockaddrLike>>, Problem> {
    let (host, port) = match address {
        Address::Tcp { port: 0, .. } => return Err(Problem::NoPort),
        Address::Tcp { host, port } => (host.as_str(), *port),
        Address::Unix(path) => {
            let place = UnixAddr::new(path).map_err(Problem::Unreachable)?;
            return Ok(vec![Box::new(place)]);
        }
    };
    let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(ip) => vec![(ip, port).into()],
        Err(_) => (host, port).to_socket_addrs().map_err(|_| Problem::UnknownHost)?.collect(),
    };
    Ok(found.into_iter().map(|place| Box::new(SockaddrStorage::from(place)) as Box<_>).collect())
}

/// Replaces the address that stands for all addresses by that of loopback.
pub fn reachable(address: &Address) -> Address {
    let Address::Tcp { host, port } = address else { return address.clone() };
    let host = match host.parse() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ipv4Addr::LOCALHOST.to_string(),
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ipv6Addr::LOCALHOST.to_string(),
        _ => host.clone(),
    };
    Address::Tcp { host, port: *port }
}

fn open(place: &dyn SockaddrLike, until: Instant) -> nix::Result<OwnedFd> {
    let family = place.family().unwrap_or(AddressFamily::Unix);
    let connection = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&connection, sockopt::SendTimeout, &left(until)?)?;
    connect(connection.as_raw_fd(), place)?;
    Ok(connection)
}

fn exchange(connection: &OwnedFd, probe: Probe, until: Instant) -> Result<(), Problem> {
    let fd = connection.as_raw_fd();
    // The socket buffer takes such a short command whole.
    send(fd, probe.command, MsgFlags::MSG_NOSIGNAL).map_err(Problem::Broken)?;
    let mut received = Vec::new();
    while received.len() < probe.reply.len() {
        let left = left(until).map_err(Problem::Broken)?;
        setsockopt(connection, sockopt::ReceiveTimeout, &left).map_err(Problem::Broken)?;
        let mut buffer = [0; 64];
        match recv(fd, &mut buffer, MsgFlags::empty()).map_err(Problem::Broken)? {
            0 => return Err(Problem::Closed),
            bytes => received.extend_from_slice(&buffer[..bytes]),
        }
        if !probe.reply.starts_with(&received) {
            return Err(Problem::Wrong(received));
        }
    }
    Ok(())
}

/// Returns the time until `until`. A time-out of zero would disable it, so that is an error.
fn left(until: Instant) -> nix::Result<TimeVal> {
    match until.saturating_duration_since(Instant::now()).as_micros() {
        0 => Err(Errno::EAGAIN),
        left => Ok(TimeVal::microseconds(left as i64)),
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, problem } = self;
        match problem {
            Problem::NoPort => {
                write!(
                    f,
                    "{address}: the system chooses port 0; set the port that the server has logged with -p"
                )
            }
            Problem::UnknownHost => write!(f, "{address}: no such host; correct the name, or check DNS"),
            Problem::Unreachable(errno) => {
                let flags = if let Address::Unix(_) = address { "-l" } else { "-l and -p" };
                write!(
                    f,
                    "cannot connect to {address}: {}; start the server, or correct {flags}",
                    errno.desc()
                )
            }
            Problem::Broken(errno) => write!(f, "{address}: the connection broke: {}", errno.desc()),
            Problem::Closed => write!(f, "{address}: the connection was closed without a reply"),
            Problem::Silent(timeout) => {
                write!(f, "{address}: no reply within {} s", timeout.as_secs())
            }
            Problem::Wrong(received) => {
                write!(
                    f,
                    "{address}: this is not a beanstalk server: it replied \"{}\"",
                    received.escape_ascii()
                )
            }
        }
    }
}

impl std::error::Error for ProbeError {}
