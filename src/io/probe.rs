//! Asking a server one thing from outside, within a time that does not depend on it.

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

/// A question with the only right answer.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// What is sent.
    pub command: &'static [u8],
    /// What has to come back.
    pub answer: &'static [u8],
}

/// Why a server is not known to be well.
#[derive(Debug)]
pub struct ProbeError {
    address: Address,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    /// The system chose the port, and told only the server.
    NoPort,
    UnknownHost,
    /// Nobody could be reached.
    Unreachable(Errno),
    /// The connection broke.
    Broken(Errno),
    /// The connection ended before the answer did.
    Closed,
    Silent(Duration),
    /// What came is not the answer.
    Wrong(Vec<u8>),
}

/// Asks whoever listens where a server with `address` would. A name is looked up first, in the system's own time.
pub fn ask(address: &Address, question: Question, timeout: Duration) -> Result<(), ProbeError> {
    let failed = |problem| ProbeError { address: address.clone(), problem };
    let until = Instant::now() + timeout;
    let mut refusal = Problem::UnknownHost;
    for place in places(address).map_err(failed)? {
        match open(&*place, until) {
            Ok(connection) => {
                return converse(&connection, question, until).map_err(|problem| match problem {
                    Problem::Broken(Errno::EAGAIN) => failed(Problem::Silent(timeout)),
                    problem => failed(problem),
                });
            }
            // How the end of the time to send shows: on a UNIX socket, over TCP.
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
        Ok(ip) => vec![(reachable(ip), port).into()],
        Err(_) => (host, port).to_socket_addrs().map_err(|_| Problem::UnknownHost)?.collect(),
    };
    Ok(found.into_iter().map(|place| Box::new(SockaddrStorage::from(place)) as Box<_>).collect())
}

/// A server that listens on every address is reached at the loopback's.
const fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    }
}

fn open(place: &dyn SockaddrLike, until: Instant) -> nix::Result<OwnedFd> {
    let family = place.family().unwrap_or(AddressFamily::Unix);
    let connection = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&connection, sockopt::SendTimeout, &left(until)?)?;
    connect(connection.as_raw_fd(), place)?;
    Ok(connection)
}

fn converse(connection: &OwnedFd, question: Question, until: Instant) -> Result<(), Problem> {
    let fd = connection.as_raw_fd();
    // So short a command goes whole or not at all.
    send(fd, question.command, MsgFlags::MSG_NOSIGNAL).map_err(Problem::Broken)?;
    let mut received = Vec::new();
    while received.len() < question.answer.len() {
        let left = left(until).map_err(Problem::Broken)?;
        setsockopt(connection, sockopt::ReceiveTimeout, &left).map_err(Problem::Broken)?;
        let mut buffer = [0; 64];
        match recv(fd, &mut buffer, MsgFlags::empty()).map_err(Problem::Broken)? {
            0 => return Err(Problem::Closed),
            bytes => received.extend_from_slice(&buffer[..bytes]),
        }
        if !question.answer.starts_with(&received) {
            return Err(Problem::Wrong(received));
        }
    }
    Ok(())
}

/// The time that is left. A time-out of nothing would mean to wait for ever, so that is the end already.
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
                    "{address}: port 0 is one of the system's choice; give the server a port of its own"
                )
            }
            Problem::UnknownHost => write!(f, "{address}: no such host"),
            Problem::Unreachable(errno) => write!(f, "nobody can be reached at {address}: {}", errno.desc()),
            Problem::Broken(errno) => write!(f, "{address}: the connection broke: {}", errno.desc()),
            Problem::Closed => write!(f, "{address}: the connection was closed without an answer"),
            Problem::Silent(timeout) => {
                write!(f, "{address}: no answer within {} s", timeout.as_secs())
            }
            Problem::Wrong(received) => {
                write!(f, "{address}: this is no beanring: it answered \"{}\"", received.escape_ascii())
            }
        }
    }
}

impl std::error::Error for ProbeError {}
