//! Connects to a server, for the client and the health check: they block.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::socket::Address;

/// Why there is no connection.
#[derive(Debug)]
pub enum DialError {
    /// The address of the host is not known.
    Lookup(io::Error),
    /// The host has no address.
    NoAddress,
    /// Nothing accepts the connection.
    Refused(io::Error),
}

/// Connects to one of the addresses of a host, or to a UNIX socket, which a `TcpStream` serves as well: only its options are of
/// TCP. `patience` returns how long an attempt may take, and its first error is that of the attempt.
///
/// # Errors
/// That of the last attempt.
pub fn dial(address: &Address, patience: impl Fn() -> io::Result<Duration>) -> Result<TcpStream, DialError> {
    let (host, port) = match address {
        Address::Tcp { host, port } => (host.as_str(), *port),
        Address::Unix(path) => {
            return patience().and_then(|patience| unix(path, patience)).map_err(DialError::Refused);
        }
    };
    let mut refusal = DialError::NoAddress;
    for place in (host, port).to_socket_addrs().map_err(DialError::Lookup)? {
        match patience().and_then(|patience| TcpStream::connect_timeout(&place, patience)) {
            Ok(stream) => return Ok(stream),
            Err(error) => refusal = DialError::Refused(error),
        }
    }
    Err(refusal)
}

fn unix(path: &Path, patience: Duration) -> io::Result<TcpStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // With a full backlog, connect(2) waits as long as a send may.
    setsockopt(&socket, sockopt::SendTimeout, &TimeVal::microseconds(patience.as_micros() as i64))?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(TcpStream::from(socket))
}
