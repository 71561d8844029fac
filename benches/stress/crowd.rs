//! Many connections that never wait for anything: what the kernel does not take or give at once is left for later.

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

/// Connections that are begun before others have their turn: the kernel's queue of new ones must not run over.
const AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(2);

/// What a segment holds on an Ethernet. The kernel gives each connection memory by it: with loopback's 64 KiB,
/// ten thousand connections that are not read would take 25 GB of it, which is not the server's to give.
const SEGMENT_BYTES: u32 = 1400;

/// The kernel's memory for what a client does not read.
const RECEIVE_BYTES: usize = 4096;

/// How a connection is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// As over an Ethernet, by a client with little memory.
    Narrow,
    /// As the machine has it.
    Wide,
}

/// One of the crowd.
pub struct Rogue {
    stream: TcpStream,
    /// What it has sent.
    pub sent: u64,
    /// The server has closed it.
    pub is_closed: bool,
}

impl Rogue {
    /// Begins to connect.
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

    /// Sends what the kernel takes of it now, and tells how much that was.
    pub fn say(&mut self, bytes: &[u8]) -> usize {
        let mut said = 0;
        while said < bytes.len() && !self.is_closed {
            match self.stream.write(&bytes[said..]) {
                Ok(count) => said += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It is not connected yet, or the server does not read.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    break;
                }
                Err(_) => self.is_closed = true,
            }
        }
        self.sent += said as u64;
        said
    }

    /// What has come by now.
    pub fn hear(&mut self, heard: &mut Vec<u8>) -> usize {
        let before = heard.len();
        let mut buffer = [0; 16 * 1024];
        while !self.is_closed {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(count) => heard.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    break;
                }
                Err(_) => self.is_closed = true,
            }
        }
        heard.len() - before
    }

    /// Sends no more.
    pub fn half_close(&mut self) {
        // Fails only where the server was first.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Leaves without a word: the server gets a reset, and this side keeps no memory of the connection.
    pub fn reset(self) {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        // Without it the connection is closed in the usual way.
        let _ = setsockopt(&self.stream.as_fd(), sockopt::Linger, &at_once);
    }
}

/// The crowd.
#[derive(Default)]
pub struct Crowd {
    pub rogues: Vec<Rogue>,
}

impl Crowd {
    /// So many connections.
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

    /// All go at the same moment, by turns in order and without a word.
    pub fn leave(self) {
        for (number, rogue) in self.rogues.into_iter().enumerate() {
            if number % 2 == 0 {
                rogue.reset();
            }
        }
    }
}
