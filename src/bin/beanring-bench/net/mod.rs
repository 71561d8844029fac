//! The network, as far as a load needs it: connect, read into a buffer, write a buffer.
//!
//! [`uring`] and [`epoll`] implement it, and `tls` over either. All other code is generic over [`Transport`], so the same load runs on both.
//! Buffers are passed by value and returned, because io_uring owns them during a request.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;

/// Evaluates an expression for the stream of a [`Socket`], whichever it is.
macro_rules! with_stream {
    ($socket:expr, $stream:ident => $value:expr) => {
        match $socket {
            $crate::net::Socket::Tcp($stream) => $value,
            $crate::net::Socket::Unix($stream) => $value,
        }
    };
}

pub mod epoll;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "tokio-uring")]
pub mod uring;

/// Time limit of a connect.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Pause before a connect to a UNIX socket with a full backlog is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(2);

/// The result of an operation on a stream, and the buffer.
pub type Returned<T> = (io::Result<T>, Vec<u8>);

/// A connection. A read and a write may be in flight at the same time.
pub trait Stream: 'static {
    /// Reads into the spare capacity of `buf`, which must not be zero, and extends it. Returns 0 at the end.
    async fn read(&self, buf: Vec<u8>) -> Returned<usize>;

    async fn write_all(&self, buf: Vec<u8>) -> Returned<()>;

    /// Shuts down both directions. A read in flight returns 0.
    fn shutdown(&self);
}

/// A connection of a runtime with these two types.
pub enum Socket<T, U> {
    /// Over TCP.
    Tcp(T),
    /// Over a UNIX socket.
    Unix(U),
}

/// A way to make connections.
pub trait Transport: 'static {
    /// The type of its connections.
    type Stream: Stream;

    /// The name shown in reports.
    const NAME: &'static str;

    /// Connects, with TCP_NODELAY if it is TCP.
    async fn connect(target: &ServerAddress) -> io::Result<Self::Stream>;
}

/// The address of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a UNIX socket.
    Unix(PathBuf),
}

impl ServerAddress {
    /// Parses `--addr`: `unix:PATH` is one target. A host name may have several addresses, which are tried in turn.
    pub fn resolve(addr: &str) -> io::Result<Vec<ServerAddress>> {
        if let Some(path) = addr.strip_prefix("unix:") {
            return Ok(vec![ServerAddress::Unix(path.into())]);
        }
        Ok(addr.to_socket_addrs()?.map(ServerAddress::Tcp).collect())
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp(addr) => write!(f, "{addr}"),
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Connects to `target` within a time limit.
pub async fn connect<T: Transport>(target: &ServerAddress) -> Result<T::Stream, Failure> {
    let patient = async {
        loop {
            match T::connect(target).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(BACKLOG_PAUSE).await;
                }
                done => return done,
            }
        }
    };
    let connected = tokio::time::timeout(CONNECT_MAX, patient)
        .await
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to the connection")));
    connected.map_err(|error| Failure::Connect(target.to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(
            ServerAddress::resolve("unix:/run/b.sock").unwrap(),
            [ServerAddress::Unix("/run/b.sock".into())]
        );
        assert_eq!(
            ServerAddress::resolve("127.0.0.1:11300").unwrap(),
            [ServerAddress::Tcp("127.0.0.1:11300".parse().unwrap())]
        );
        assert_eq!(ServerAddress::resolve("[::1]:1").unwrap()[0].to_string(), "[::1]:1");
        assert!(ServerAddress::resolve("127.0.0.1").is_err(), "a port is needed");
    }
}
