//! Connections on tokio-uring's runtime: reads and writes are requests on a ring.

use std::io;

use tokio_uring::buf::BoundedBuf;
use tokio_uring::net::{TcpStream, UnixStream};

use super::{Returned, ServerAddress, Socket, Stream, Transport};

/// Every connection has at most a read and a write in flight. The completion queue has room for both.
const REQUESTS_PER_CONNECTION: u32 = 2;

/// The largest completion queue that the kernel creates.
const COMPLETIONS_MAX: u32 = 65_536;

/// Requests that are gathered before they are submitted.
const SUBMISSIONS: u32 = 1024;

/// Creates a runtime for `connections` connections, or returns the kernel's error.
///
/// COOP_TASKRUN and SINGLE_ISSUER avoid interruptions of the one thread that uses the ring. Kernels before 6.0 do not
/// support them and get a plain ring.
pub fn runtime(connections: u32) -> io::Result<tokio_uring::Runtime> {
    let completions = connections
        .saturating_mul(REQUESTS_PER_CONNECTION)
        .clamp(2 * SUBMISSIONS, COMPLETIONS_MAX)
        .next_power_of_two();
    let mut ring = tokio_uring::uring_builder();
    ring.setup_cqsize(completions).setup_coop_taskrun().setup_single_issuer();
    let mut builder = tokio_uring::builder();
    builder.entries(SUBMISSIONS).uring_builder(&ring);
    tokio_uring::Runtime::new(&builder).or_else(|error| {
        if error.kind() != io::ErrorKind::InvalidInput {
            return Err(error);
        }
        builder.uring_builder(tokio_uring::uring_builder().setup_cqsize(completions));
        tokio_uring::Runtime::new(&builder)
    })
}

/// Creates connections on the ring.
pub struct Uring;

impl Transport for Uring {
    type Stream = UringStream;

    const NAME: &'static str = "tokio-uring";

    async fn connect(target: &ServerAddress) -> io::Result<UringStream> {
        match target {
            ServerAddress::Tcp(addr) => {
                let stream = TcpStream::connect(*addr).await?;
                stream.set_nodelay(true)?;
                Ok(UringStream::Tcp(stream))
            }
            ServerAddress::Unix(path) => Ok(UringStream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

/// A connection on the ring.
pub type UringStream = Socket<TcpStream, UnixStream>;

impl Stream for UringStream {
    async fn read(&self, buf: Vec<u8>) -> Returned<usize> {
        let len = buf.len();
        let spare = buf.slice(len..);
        let (result, spare) = with_stream!(self, stream => stream.read(spare).await);
        (result, spare.into_inner())
    }

    async fn write_all(&self, mut buf: Vec<u8>) -> Returned<()> {
        let mut written = 0;
        while written < buf.len() {
            let end = buf.len();
            let rest = buf.slice(written..end);
            let (result, rest) = with_stream!(self, stream => stream.write(rest).submit().await);
            buf = rest.into_inner();
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(count) => written += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    fn shutdown(&self) {
        // This fails only if the server has closed the connection first.
        let _ = with_stream!(self, stream => stream.shutdown(std::net::Shutdown::Both));
    }
}
