//! Connections on tokio's single-threaded runtime, for machines that refuse io_uring.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket;
use tokio::net::{TcpStream, UnixStream};

use super::{Returned, ServerAddress, Socket, Stream, Transport};

/// Creates non-blocking connections.
pub struct Epoll;

impl Transport for Epoll {
    type Stream = EpollStream;

    const NAME: &'static str = "epoll";

    async fn connect(target: &ServerAddress) -> io::Result<EpollStream> {
        match target {
            ServerAddress::Tcp(addr) => {
                let stream = TcpStream::connect(*addr).await?;
                stream.set_nodelay(true)?;
                Ok(EpollStream::Tcp(stream))
            }
            ServerAddress::Unix(path) => Ok(EpollStream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

/// A non-blocking connection.
pub type EpollStream = Socket<TcpStream, UnixStream>;

impl Stream for EpollStream {
    async fn read(&self, mut buf: Vec<u8>) -> Returned<usize> {
        let read = async {
            loop {
                with_stream!(self, stream => stream.readable().await)?;
                match with_stream!(self, stream => stream.try_read_buf(&mut buf)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
        };
        (read.await, buf)
    }

    async fn write_all(&self, buf: Vec<u8>) -> Returned<()> {
        let write = async {
            let mut left = &buf[..];
            while !left.is_empty() {
                match with_stream!(self, stream => stream.try_write(left)) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => left = &left[count..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        with_stream!(self, stream => stream.writable().await)?;
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        (write.await, buf)
    }

    fn shutdown(&self) {
        let fd = with_stream!(self, stream => stream.as_fd());
        // This fails only if the server has closed the connection first.
        let _ = socket::shutdown(fd.as_raw_fd(), socket::Shutdown::Both);
    }
}
