//! The leader: its addresses, connections to it, and the one that watches its machine.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getpeername, getsockopt, setsockopt, socket,
    sockopt,
};
use rustls::ClientConfig;

use super::LeaderTarget;
use super::hop::Hop;
use super::worker::Order;
use crate::time::{Span, Time};
use crate::transport::link::standby_config;

/// The pause after an attempt that has reached the leader at none of its addresses, or that has found no descriptor.
const RETRY_PAUSE: Span = Span::from_millis(200);

/// The shortest time between two look-ups of a name.
const LOOK_UP_PAUSE: Span = Span::from_secs(1);

/// The number of connections that are being made at a time. The next one begins when one of them is made. While the leader does not
/// answer, one tries for all.
const CONNECTING_MAX: usize = 64;

/// Keepalive of forwarded connections, in seconds: a path that is broken for one connection only closes it in the end.
const KEEP_IDLE_S: u32 = 30;
const KEEP_INTERVAL_S: u32 = 10;
const KEEP_PROBES: u32 = 3;

/// A leader and what is known of the way to it.
pub struct Leader {
    pub target: LeaderTarget,
    /// How to speak TLS with it, and with no one else.
    pub tls: Arc<ClientConfig>,
    /// None yet for a name that is being looked up.
    pub addresses: Vec<SocketAddr>,
    /// The index of the address that accepted the last connection.
    pub preferred: usize,
    /// When the next attempt may be made.
    pub retry_at: Time,
    /// The last attempt has failed.
    pub is_failing: bool,
    /// Its address is a name, which may be looked up at this time.
    look_up_at: Option<Time>,
}

/// The connection that watches the machine of the leader.
pub enum Watch {
    /// There is none before this time.
    Pause(Time),
    Connecting(Box<Hop>),
    Open(TcpStream),
}

impl Leader {
    pub fn new(target: LeaderTarget) -> Self {
        let numeric: Option<SocketAddr> = target.address.parse().ok();
        Self {
            tls: standby_config(target.secret),
            target,
            addresses: numeric.into_iter().collect(),
            preferred: 0,
            retry_at: Time::ZERO,
            is_failing: false,
            look_up_at: numeric.is_none().then_some(Time::ZERO),
        }
    }

    /// When its name is to be looked up: at first, and again while it does not answer.
    pub fn next_look_up(&self) -> Option<Time> {
        self.look_up_at.filter(|_| self.addresses.is_empty() || self.is_failing)
    }

    /// Its name is being looked up.
    pub fn begin_look_up(&mut self, now: Time) {
        self.look_up_at = Some(now + LOOK_UP_PAUSE);
    }

    /// Whether another connection may begin, with this many being made.
    pub fn can_connect(&self, now: Time, connecting: usize) -> bool {
        let max = if self.is_failing { 1 } else { CONNECTING_MAX };
        !self.addresses.is_empty() && self.retry_at <= now && connecting < max
    }

    /// The address with this index, beginning again after the last one.
    pub fn address(&self, index: usize) -> Option<SocketAddr> {
        self.addresses.get(index % self.addresses.len().max(1)).copied()
    }

    /// No address has accepted a connection.
    pub fn note_failure(&mut self, now: Time) {
        self.is_failing = true;
        self.pause(now);
    }

    pub fn pause(&mut self, now: Time) {
        self.retry_at = now + RETRY_PAUSE;
    }

    pub fn note_accept(&mut self, index: usize) {
        self.preferred = index % self.addresses.len().max(1);
        self.is_failing = false;
    }
}

/// Looks up a name on a thread for that: the resolver of the system blocks, and takes as long as it wants.
pub fn look_up(address: String, found: Sender<Order>, wake: Arc<EventFd>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("forward-lookup".to_owned()).spawn(move || {
        let addresses = address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        if found.send(Order::Found(address, addresses)).is_ok() {
            let _ = wake.write(1);
        }
    })
}

/// Begins to connect. The socket is writable when the connection is made or has failed.
pub fn begin_connect(address: SocketAddr) -> nix::Result<TcpStream> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = TcpStream::from(socket(family, SockType::Stream, flags, None)?);
    setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    keep_alive(&fd, [KEEP_IDLE_S, KEEP_INTERVAL_S, KEEP_PROBES])?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// Has the kernel end a connection when the machine of its peer is silent for so long.
pub fn watch_machine(fd: &TcpStream, gone_after: Span) -> nix::Result<()> {
    keep_alive(fd, [1, 1, KEEP_PROBES])?;
    let ms = u32::try_from(gone_after.as_nanos() / 1_000_000).unwrap_or(u32::MAX);
    setsockopt(fd, sockopt::TcpUserTimeout, &ms)
}

fn keep_alive(fd: &TcpStream, [idle_s, interval_s, probes]: [u32; 3]) -> nix::Result<()> {
    setsockopt(fd, sockopt::KeepAlive, &true)?;
    setsockopt(fd, sockopt::TcpKeepIdle, &idle_s)?;
    setsockopt(fd, sockopt::TcpKeepInterval, &interval_s)?;
    setsockopt(fd, sockopt::TcpKeepCount, &probes)
}

/// The outcome of [`begin_connect`]: whether the connection is made yet.
///
/// # Errors
/// If it cannot be made.
pub fn is_connected(fd: &TcpStream) -> nix::Result<bool> {
    match getsockopt(fd, sockopt::SocketError)? {
        0 => Ok(getpeername::<SockaddrStorage>(fd.as_raw_fd()).is_ok()),
        errno => Err(Errno::from_raw(errno)),
    }
}

/// Whether the process or the system lacks descriptors or memory for another socket.
pub const fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::ENOSPC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::link_secret::LinkSecret;

    fn leader(address: &str) -> Leader {
        Leader::new(LeaderTarget { address: address.to_owned(), secret: LinkSecret { token: 1, shown: 2 } })
    }

    #[test]
    fn only_names_are_looked_up() {
        for (address, is_name) in
            [("127.0.0.1:1", false), ("[::1]:1", false), ("localhost:1", true), ("::1:1", true)]
        {
            assert_eq!(leader(address).next_look_up().is_some(), is_name, "{address}");
        }
        let mut numeric = leader("127.0.0.1:1");
        numeric.note_failure(Time::ZERO);
        assert_eq!(numeric.next_look_up(), None);
        let mut named = leader("localhost:1");
        named.begin_look_up(Time::ZERO);
        assert_eq!(named.next_look_up(), Some(Time::ZERO + LOOK_UP_PAUSE));
        named.addresses = vec!["127.0.0.1:1".parse().unwrap()];
        assert_eq!(named.next_look_up(), None);
        named.note_failure(Time::ZERO);
        assert!(named.next_look_up().is_some(), "its address may be another one now");
    }

    #[test]
    fn one_attempt_at_a_time_while_the_leader_does_not_answer() {
        let mut leader = leader("127.0.0.1:1");
        let now = Time::from_nanos(5);
        assert!(leader.can_connect(now, CONNECTING_MAX - 1));
        assert!(!leader.can_connect(now, CONNECTING_MAX));
        leader.note_failure(now);
        assert!(!leader.can_connect(now, 0));
        assert!(leader.can_connect(now + RETRY_PAUSE, 0));
        assert!(!leader.can_connect(now + RETRY_PAUSE, 1));
        leader.note_accept(0);
        assert!(leader.can_connect(now + RETRY_PAUSE, 1));
    }
}
