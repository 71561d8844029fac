//! The network, as little of it as a load needs: connect, read into a buffer, write a buffer.
//!
//! [`uring`] and [`epoll`] are the two implementations. Everything above is generic over [`Transport`], so
//! the same load runs on both. Buffers go in by value and come back, because io_uring owns them meanwhile.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

pub mod epoll;
#[cfg(feature = "tokio-uring")]
pub mod uring;

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long to wait before trying a UNIX socket again whose queue of connections is full.
const BACKLOG_PAUSE: Duration = Duration::from_millis(2);

/// What an operation on a stream gives: its result, and the buffer back.
pub type Returned<T> = (io::Result<T>, Vec<u8>);

/// A connection. Reading and writing may go on at the same time.
pub trait Stream: 'static {
    /// Reads into the spare capacity of `buf`, which must not be zero, and extends it. 0 is the end.
    async fn read(&self, buf: Vec<u8>) -> Returned<usize>;

    /// Writes all of `buf`.
    async fn write_all(&self, buf: Vec<u8>) -> Returned<()>;

    /// Ends both directions; a read under way ends with 0.
    fn shutdown(&self);
}

/// A way to make connections.
pub trait Transport: 'static {
    /// What it connects.
    type Stream: Stream;

    /// The name shown in reports.
    const NAME: &'static str;

    /// Connects, with TCP_NODELAY where that applies.
    async fn connect(target: &Target) -> io::Result<Self::Stream>;
}

/// Where the server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a UNIX socket.
    Unix(PathBuf),
}

impl Target {
    /// What `--addr` may mean: `unix:PATH` is one target; a host name may have several addresses, to be
    /// tried in turn.
    pub fn resolve(addr: &str) -> io::Result<Vec<Target>> {
        if let Some(path) = addr.strip_prefix("unix:") {
            return Ok(vec![Target::Unix(path.into())]);
        }
        Ok(addr.to_socket_addrs()?.map(Target::Tcp).collect())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(addr) => write!(f, "{addr}"),
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Connects to `target` within a bounded time.
pub async fn connect<T: Transport>(target: &Target) -> io::Result<T::Stream> {
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
    tokio::time::timeout(CONNECT_MAX, patient)
        .await
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to the connection")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(Target::resolve("unix:/run/b.sock").unwrap(), [Target::Unix("/run/b.sock".into())]);
        assert_eq!(
            Target::resolve("127.0.0.1:11300").unwrap(),
            [Target::Tcp("127.0.0.1:11300".parse().unwrap())]
        );
        assert_eq!(Target::resolve("[::1]:1").unwrap()[0].to_string(), "[::1]:1");
        assert!(Target::resolve("127.0.0.1").is_err(), "a port is needed");
    }
}
