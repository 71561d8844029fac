//! A client's connection to a server process.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::libc::linger;
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, recv, setsockopt, sockopt,
};

use super::peer::Received;
#[cfg(server_has_tls)]
use super::tls_stream::TlsStream;

/// Connects from an address of this machine. All of 127.0.0.0/8 are.
///
/// # Errors
/// Those of socket(2), bind(2) and connect(2).
///
/// # Panics
/// If the server has an IPv6 address.
pub fn connect_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let SocketAddr::V4(to) = to else { panic!("it is an IPv4 address") };
    let fd = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let [a, b, c, d] = from.octets();
    socket::bind(fd.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0))?;
    socket::connect(fd.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(TcpStream::from(fd))
}

#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(server_has_tls)]
    Tls(TlsStream),
}

impl Stream {
    /// Sends all bytes. If the server has closed the connection, the next receive returns that.
    pub fn send(&mut self, bytes: &[u8]) {
        let sent = match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
            #[cfg(server_has_tls)]
            Self::Tls(stream) => stream.send(bytes),
        };
        if let Err(error) = sent {
            assert!(is_hang_up(&error), "cannot send: {error}");
        }
    }

    /// Sends what the server, or the kernel for it, receives at once. Returns the number of bytes.
    ///
    /// # Panics
    /// If the server has closed the connection.
    pub fn send_now(&mut self, bytes: &[u8]) -> usize {
        let sent = match self {
            #[cfg(server_has_tls)]
            Self::Tls(stream) => stream.send_now(bytes),
            _ => {
                socket::send(self.as_fd().as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from)
            }
        };
        match sent {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("the server ends a connection: {error}"),
        }
    }

    /// Returns what has arrived, or arrives within `patience`.
    pub fn receive(&mut self, patience: Duration) -> Received {
        #[cfg(server_has_tls)]
        if let Self::Tls(stream) = self {
            return Self::outcome(stream.receive(patience));
        }
        let mut buffer = vec![0; 64 * 1024];
        let timeout = Some(patience.max(Duration::from_micros(1)));
        let mut read = || match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.read(&mut buffer)),
            Self::Unix(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.read(&mut buffer)),
            #[cfg(server_has_tls)]
            Self::Tls(_) => unreachable!("it is handled above"),
        };
        let result = loop {
            match read() {
                // A signal interrupts a wait with a time limit, even if another thread handles it.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        Self::received(result, buffer)
    }

    /// Returns what has arrived by now.
    pub fn receive_now(&mut self) -> Received {
        #[cfg(server_has_tls)]
        if let Self::Tls(stream) = self {
            return Self::outcome(stream.receive_now());
        }
        let mut buffer = vec![0; 64 * 1024];
        let result =
            recv(self.as_fd().as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from);
        Self::received(result, buffer)
    }

    /// Returns the client's address of a TCP connection.
    ///
    /// # Panics
    /// If it is over a UNIX socket.
    pub fn local_addr(&self) -> SocketAddr {
        let tcp = match self {
            Self::Tcp(stream) => stream,
            #[cfg(server_has_tls)]
            Self::Tls(stream) => &stream.tcp,
            Self::Unix(_) => panic!("a UNIX socket has a path"),
        };
        tcp.local_addr().expect("the connection has an address")
    }

    /// Has the kernel close the connection with a RST, so that its port is free at once.
    pub fn reset(self) {
        if !matches!(self, Self::Unix(_)) {
            let at_once = linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&self, sockopt::Linger, &at_once).expect("the socket option is set");
        }
    }

    /// Shuts down the sending side.
    pub fn half_close(&mut self) {
        self.shut_down(Shutdown::Write);
    }

    /// Closes the connection, even if a child that another test starts has inherited the descriptor for a moment.
    pub fn close(mut self) {
        self.shut_down(Shutdown::Both);
    }

    fn shut_down(&mut self, how: Shutdown) {
        // This fails only if the server has closed the connection first.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
            #[cfg(server_has_tls)]
            Self::Tls(stream) => stream.shut_down(how),
        };
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            #[cfg(server_has_tls)]
            Self::Tls(stream) => stream.tcp.as_fd(),
        }
    }
}

impl Stream {
    fn received(result: io::Result<usize>, mut buffer: Vec<u8>) -> Received {
        Self::outcome(result.map(|length| {
            buffer.truncate(length);
            if length == 0 { Received::Closed } else { Received::Bytes(buffer) }
        }))
    }

    fn outcome(result: io::Result<Received>) -> Received {
        match result {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Silence,
            Err(error) if is_hang_up(&error) => Received::Closed,
            Err(error) => panic!("cannot receive: {error}"),
        }
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected)
}
