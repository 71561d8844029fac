//! Many non-blocking connections. What the kernel cannot take or give at once is left for later.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::linger;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};

use crate::failure::Failure;

/// Connections that are opened in one go. More would overflow the listen backlog.
const AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(2);

/// The segment size of an Ethernet. The kernel sizes each connection's memory by it: with loopback's 64 KiB, 10,000
/// connections that are never read would take 25 GB of kernel memory.
const SEGMENT_BYTES: u32 = 1400;

/// Receive buffer of a client that does not read, in bytes.
const RECEIVE_BYTES: usize = 4096;

/// How a connection is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// As over an Ethernet, by a client with little memory.
    Narrow,
    /// With the kernel's defaults.
    Wide,
}

/// One client of the crowd.
pub struct Rogue {
    stream: TcpStream,
    /// Bytes that it has sent.
    pub sent: u64,
    /// The server has closed the connection.
    pub is_closed: bool,
}

impl Rogue {
    /// Starts to connect.
    pub fn connect(addr: SocketAddr, link: Link) -> nix::Result<Rogue> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        if link == Link::Narrow {
            setsockopt(&fd, sockopt::TcpMaxSeg, &SEGMENT_BYTES)?;
            setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BYTES)?;
        }
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(addr)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Rogue { stream: fd.into(), sent: 0, is_closed: false })
    }

    /// Sends as many bytes as the kernel takes now. Returns how many.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() && !self.is_closed {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The connection is not established yet, or the server does not read.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    break;
                }
                Err(_) => self.is_closed = true,
            }
        }
        self.sent += sent as u64;
        sent
    }

    /// Appends the bytes that have arrived to `received`.
    pub fn receive(&mut self, received: &mut Vec<u8>) -> usize {
        let before = received.len();
        let mut buffer = [0; 16 * 1024];
        while !self.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    break;
                }
                Err(_) => self.is_closed = true,
            }
        }
        received.len() - before
    }

    /// Shuts down the sending side.
    pub fn half_close(&mut self) {
        // This fails only if the server has closed the connection first.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Resets the connection: the server gets a reset, and this side keeps no memory of the connection.
    pub fn reset(self) {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        // Without SO_LINGER the connection is closed in the usual way.
        let _ = setsockopt(&self.stream.as_fd(), sockopt::Linger, &at_once);
    }
}

/// The clients of a fault.
#[derive(Default)]
pub struct Crowd {
    pub rogues: Vec<Rogue>,
}

impl Crowd {
    /// Opens `count` connections.
    pub fn open(addr: SocketAddr, count: usize, link: Link) -> Result<Crowd, Failure> {
        let mut crowd = Crowd { rogues: Vec::with_capacity(count) };
        for number in 0..count {
            if number % AT_ONCE == AT_ONCE - 1 {
                sleep(PAUSE);
            }
            let rogue = Rogue::connect(addr, link);
            crowd.rogues.push(rogue.map_err(|errno| Failure::Client("connect", io::Error::from(errno)))?);
        }
        Ok(crowd)
    }

    pub fn len(&self) -> u64 {
        self.rogues.len() as u64
    }

    /// Drops all connections at once, alternately by a close and by a reset.
    pub fn leave(self) {
        for (number, rogue) in self.rogues.into_iter().enumerate() {
            if number % 2 == 0 {
                rogue.reset();
            }
        }
    }
}
