//! Connections on tokio's single-threaded runtime, for machines that refuse io_uring.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket;
use tokio::net::{TcpStream, UnixStream};

use super::{Returned, Stream, Target, Transport};

/// Creates non-blocking connections.
pub struct Epoll;

impl Transport for Epoll {
    type Stream = EpollStream;

    const NAME: &'static str = "epoll";

    async fn connect(target: &Target) -> io::Result<EpollStream> {
        match target {
            Target::Tcp(addr) => {
                let stream = TcpStream::connect(*addr).await?;
                stream.set_nodelay(true)?;
                Ok(EpollStream::Tcp(stream))
            }
            Target::Unix(path) => Ok(EpollStream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

/// A non-blocking connection.
pub enum EpollStream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a UNIX socket.
    Unix(UnixStream),
}

impl EpollStream {
    async fn readable(&self) -> io::Result<()> {
        match self {
            EpollStream::Tcp(stream) => stream.readable().await,
            EpollStream::Unix(stream) => stream.readable().await,
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            EpollStream::Tcp(stream) => stream.writable().await,
            EpollStream::Unix(stream) => stream.writable().await,
        }
    }

    fn try_read(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            EpollStream::Tcp(stream) => stream.try_read_buf(buf),
            EpollStream::Unix(stream) => stream.try_read_buf(buf),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            EpollStream::Tcp(stream) => stream.try_write(bytes),
            EpollStream::Unix(stream) => stream.try_write(bytes),
        }
    }
}

impl Stream for EpollStream {
    async fn read(&self, mut buf: Vec<u8>) -> Returned<usize> {
        loop {
            if let Err(error) = self.readable().await {
                return (Err(error), buf);
            }
            match self.try_read(&mut buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return (done, buf),
            }
        }
    }

    async fn write_all(&self, buf: Vec<u8>) -> Returned<()> {
        let mut written = 0;
        while written < buf.len() {
            match self.try_write(&buf[written..]) {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = self.writable().await {
                        return (Err(error), buf);
                    }
                }
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    fn shutdown(&self) {
        let fd = match self {
            EpollStream::Tcp(stream) => stream.as_fd(),
            EpollStream::Unix(stream) => stream.as_fd(),
        };
        // This fails only if the server has closed the connection first.
        let _ = socket::shutdown(fd.as_raw_fd(), socket::Shutdown::Both);
    }
}
