//! Listeners: bound here, or inherited by socket activation or in-place restart.

mod access;
mod error;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, UnixAddr, accept4, bind, connect,
    getpeername, getsockname, listen, setsockopt, socket, sockopt,
};

pub use self::access::SocketAccess;
use self::access::{Owner, bind_with_mode};
pub use self::error::{AcceptError, ListenError};
use super::lost_peers::Keepalive;
use super::privileges::User;
use super::retry_briefly;
use super::sandbox::directory_of;
use crate::server::{Origin, Peer, PeerKind, Protocol};

/// The first descriptor of socket activation (sd_listen_fds(3), SD_LISTEN_FDS_START).
pub const FIRST_INHERITED: RawFd = 3;

/// The port that every client of the beanstalk protocol uses unless told otherwise.
pub const PORT_DEFAULT: u16 = 11300;

/// The port of the beanstalk protocol over TLS, as clients that know `beanstalks://` expect.
pub const PORT_TLS: u16 = 11400;

/// How long a server may take to listen on a UNIX socket that it has bound. Shorter than an address in use is tried again.
const LISTENS_WITHIN: Duration = Duration::from_millis(300);

const FLAGS: SockFlag = SockFlag::SOCK_NONBLOCK.union(SockFlag::SOCK_CLOEXEC);

/// An address to listen on or to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// An address of this machine, or a name of one.
        host: String,
        /// The port. 0 lets the system choose one.
        port: u16,
    },
    /// A UNIX socket at a path.
    Unix(PathBuf),
}

/// A listening socket. Dropping it removes the socket file that it has created.
#[derive(Debug)]
pub struct Listener {
    // Dropped first: while the socket is open, no other file can have the inode of its file.
    file: Option<SocketFile>,
    fd: OwnedFd,
    is_unix: bool,
    kind: ListenerKind,
    is_from_restart: bool,
    handed_over: RefCell<VecDeque<OwnedFd>>,
}

impl Address {
    /// Whether only one of two sockets can listen there: at the same address, or at the same port of all addresses.
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_any = |host: &str| matches!(host, "0.0.0.0" | "::");
        match (self, other) {
            (Self::Tcp { host, port }, Self::Tcp { host: other_host, port: other_port }) => {
                // The system chooses another port 0.
                *port != 0 && port == other_port && (host == other_host || is_any(host) || is_any(other_host))
            }
            _ => self == other,
        }
    }

    /// The host of a TCP address.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp { host, .. } => Some(host),
            Self::Unix(_) => None,
        }
    }
}

impl Listener {
    /// Binds `address` and listens on it.
    ///
    /// # Errors
    /// As those of [`bind`](Self::bind) and [`listen`](Self::listen).
    pub fn open(address: &Address) -> Result<Self, ListenError> {
        let listener = Self::bind(address, &SocketAccess::default(), None)?;
        listener.listen()?;
        Ok(listener)
    }

    /// Binds `address`, for a server that will run as `user`. Clients cannot connect over TCP before [`listen`](Self::listen);
    /// on a UNIX socket they wait. An address that is in use is tried again for 350 ms: the kernel frees the sockets that an
    /// io_uring refers to some time after the process has ended.
    ///
    /// # Errors
    /// If the host is unknown, or the address is in use or refused.
    pub fn bind(address: &Address, access: &SocketAccess, user: Option<&User>) -> Result<Self, ListenError> {
        let bind = || match address {
            Address::Tcp { host, port } => bind_host(address, host, *port),
            Address::Unix(path) => bind_path(address, path, access, user),
        };
        retry_briefly(bind, ListenError::is_in_use)
    }

    /// Checks what can be checked of `address` without binding it.
    ///
    /// # Errors
    /// If the host is unknown, the path is a file and not a socket, the directory of the socket file is missing, or there is no
    /// such group.
    pub fn check(address: &Address, access: &SocketAccess) -> Result<(), ListenError> {
        match address {
            Address::Tcp { host, port } => candidates(address, host, *port).map(drop),
            Address::Unix(path) => {
                let system = |errno| ListenError::System { address: address.clone(), errno };
                UnixAddr::new(path).map_err(system)?;
                if fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
                    return Err(ListenError::NotASocket { address: address.clone() });
                }
                match fs::metadata(directory_of(path)) {
                    Ok(_) => owner(address, access, None).map(drop),
                    Err(error) => Err(system(to_errno(&error))),
                }
            }
        }
    }

    /// The sockets from socket activation (LISTEN_PID, LISTEN_FDS). A socket with the name `http` (LISTEN_FDNAMES) is for
    /// metrics and probes, and one with the name `tls` for clients over TLS. Must be called once, before anything in the process opens descriptors.
    ///
    /// # Errors
    /// If a descriptor is not a listening stream socket.
    pub fn inherit() -> Result<Vec<Self>, ListenError> {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Ok(Vec::new());
        }
        let count = number("LISTEN_FDS").unwrap_or(0);
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names = names.split(':').chain(std::iter::repeat(""));
        (FIRST_INHERITED..).take(count as usize).zip(names).map(|(fd, name)| adopt(fd, name)).collect()
    }

    /// The name that passes on what [`inherit`](Self::inherit) in the next program must know: the protocol, and the socket file
    /// that the server has created.
    pub fn activation_name(&self) -> String {
        let word = match self.kind {
            ListenerKind { is_forwarded: true, .. } => NAME_FORWARDED,
            ListenerKind { protocol: Protocol::Beanstalk, has_tls: false, .. } => NAME_BEANSTALK,
            ListenerKind { protocol: Protocol::Beanstalk, has_tls: true, .. } => NAME_BEANSTALKS,
            ListenerKind { protocol: Protocol::Http, .. } => NAME_HTTP,
        };
        match &self.file {
            Some(SocketFile { identity: (device, inode), .. }) => format!("{word}+{device}+{inode}"),
            None => word.to_owned(),
        }
    }

    /// Adds a connection of this listener on which nothing has come. It waits as those in the backlog do, and before them: for
    /// [`accept`](Self::accept), or for the next program.
    pub fn hand_over(&self, connection: OwnedFd) {
        self.handed_over.borrow_mut().push_back(connection);
    }

    /// Whether connections wait that were handed over.
    pub fn has_handed_over(&self) -> bool {
        !self.handed_over.borrow().is_empty()
    }

    /// Takes the connections that were handed over.
    pub fn take_handed_over(&self) -> VecDeque<OwnedFd> {
        self.handed_over.take()
    }

    /// Accepts the next connection that waits. It is nonblocking, closed on exec, and has the options of the listener.
    ///
    /// # Errors
    /// [`AcceptError`] says whether to try again.
    pub fn accept(&self) -> Result<OwnedFd, AcceptError> {
        self.accept_with(FLAGS)
    }

    /// Accepts a connection on which operations block: for a driver that leaves them to the kernel.
    ///
    /// # Errors
    /// [`AcceptError`] says whether to try again.
    pub fn accept_blocking(&self) -> Result<OwnedFd, AcceptError> {
        self.accept_with(SockFlag::SOCK_CLOEXEC)
    }

    /// What its connections speak.
    pub const fn kind(&self) -> ListenerKind {
        self.kind
    }

    /// The protocol of its connections.
    pub const fn protocol(&self) -> Protocol {
        self.kind.protocol
    }

    /// Sets what its connections speak.
    pub const fn set_kind(&mut self, kind: ListenerKind) {
        self.kind = kind;
    }

    /// Whether it comes from an in-place restart, as its [name](Self::activation_name) says.
    pub const fn is_from_restart(&self) -> bool {
        self.is_from_restart
    }

    /// Whether it is a UNIX socket.
    pub const fn is_unix(&self) -> bool {
        self.is_unix
    }

    /// Whether only processes of this machine can connect: it is a UNIX socket, or has an address of the loopback.
    pub fn is_local(&self) -> bool {
        let address = getsockname(self.fd.as_raw_fd());
        self.is_unix || address.is_ok_and(|address| ip(&address).is_some_and(|ip| ip.is_loopback()))
    }

    /// The socket file that this server has created.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// Its address, for messages.
    pub fn local_name(&self) -> String {
        name(getsockname(self.fd.as_raw_fd()))
    }

    const fn new(fd: OwnedFd, file: Option<SocketFile>, is_unix: bool) -> Self {
        let handed_over = RefCell::new(VecDeque::new());
        Self { file, fd, is_unix, kind: ListenerKind::CLEAR, is_from_restart: false, handed_over }
    }

    fn accept_with(&self, flags: SockFlag) -> Result<OwnedFd, AcceptError> {
        if let Some(fd) = self.handed_over.borrow_mut().pop_front() {
            set_nonblocking(&fd, flags.contains(SockFlag::SOCK_NONBLOCK))?;
            return Ok(fd);
        }
        let fd = accept4(self.fd.as_raw_fd(), flags).map_err(AcceptError::from)?;
        // SAFETY: accept4 has just created this descriptor, and nothing else knows it.
        #[allow(unsafe_code)]
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Sets when the kernel probes the peers of its connections, if they are of TCP.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> Result<(), ListenError> {
        let refused = |errno| ListenError::Refused { name: self.local_name(), errno };
        if self.is_unix { Ok(()) } else { Keepalive::set(keepalive, &self.fd).map_err(refused) }
    }

    /// Lets clients connect.
    ///
    /// # Errors
    /// Those of listen(2).
    pub fn listen(&self) -> Result<(), ListenError> {
        let refused = |errno| ListenError::Refused { name: self.local_name(), errno };
        listen(&self.fd, Backlog::MAXALLOWABLE).map_err(refused)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The address of the peer of a connection, for messages.
pub fn peer_name(connection: RawFd) -> String {
    name(getpeername(connection))
}

/// The peer of a connection.
pub fn peer(connection: RawFd) -> Peer {
    let address = getpeername(connection);
    let ip = address.as_ref().ok().and_then(ip);
    let kind = match (&address, ip) {
        (_, Some(ip)) if ip.is_loopback() => PeerKind::Loopback,
        (Ok(address), None) if address.as_unix_addr().is_some() => PeerKind::Unix,
        _ => PeerKind::Network,
    };
    let mut peer = Peer::new(kind, name(address));
    if let Some(ip) = ip {
        let own = getsockname(connection).ok().as_ref().and_then(self::ip);
        peer.origin = Origin { network: network(ip), is_local: ip.is_loopback() || own == Some(ip) };
    }
    peer
}

/// The IP address of a TCP socket.
pub(super) fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(four), _) => Some(IpAddr::V4(four.ip())),
        // A dual-stack listener has IPv4 peers too.
        (None, Some(six)) => Some(IpAddr::V6(six.ip()).to_canonical()),
        (None, None) => None,
    }
}

/// The number of an address, or for IPv6 of the network that one machine usually has for itself.
fn network(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(four) => four.to_ipv6_mapped().to_bits(),
        IpAddr::V6(six) => six.to_bits() & !u128::from(u64::MAX),
    }
}

/// The names of inherited sockets: for HTTP, for clients over TLS, and for clients without and with TLS after an in-place restart.
const NAME_HTTP: &str = "http";
const NAME_TLS: &str = "tls";
const NAME_BEANSTALK: &str = "beanstalk";
const NAME_BEANSTALKS: &str = "beanstalks";
/// That of the socket for standbys.
const NAME_FORWARDED: &str = "forwarded";

/// A socket file that this process has created.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn created_at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have replaced the file.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // After -u the process may not write the directory. The next start replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn name(address: nix::Result<SockaddrStorage>) -> String {
    let Ok(address) = address else { return "unknown".to_owned() };
    match address.as_unix_addr() {
        // A client chooses its path, which must not forge a line of the log.
        Some(unix) => unix.path().map_or("unix".to_owned(), |path| {
            format!("unix:{}", path.display()).replace(char::is_control, "?")
        }),
        None => address.to_string(),
    }
}

fn bind_host(address: &Address, host: &str, port: u16) -> Result<Listener, ListenError> {
    let mut refusal = Errno::EADDRNOTAVAIL;
    for candidate in candidates(address, host, port)? {
        match bind_tcp(candidate) {
            Ok(listener) => return Ok(listener),
            Err(errno) => refusal = errno,
        }
    }
    Err(ListenError::System { address: address.clone(), errno: refusal })
}

/// The addresses of a host: at least one.
fn candidates(address: &Address, host: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
    let found = match host.parse::<IpAddr>() {
        Ok(ip) => vec![(ip, port).into()],
        Err(_) => (host, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default(),
    };
    if found.is_empty() { Err(ListenError::UnknownHost { address: address.clone() }) } else { Ok(found) }
}

fn bind_tcp(address: SocketAddr) -> nix::Result<Listener> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let fd = socket(family, SockType::Stream, FLAGS, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    // Connections inherit it.
    setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(Listener::new(fd, None, false))
}

/// Returns the owner that the socket file gets.
fn owner(address: &Address, access: &SocketAccess, user: Option<&User>) -> Result<Owner, ListenError> {
    access.owner(user).map_err(|errno| match (errno, &access.group) {
        (Errno::ENOENT, Some(group)) => {
            ListenError::UnknownGroup { address: address.clone(), group: group.clone() }
        }
        _ => ListenError::Owner { address: address.clone(), errno },
    })
}

fn bind_path(
    address: &Address,
    path: &Path,
    access: &SocketAccess,
    user: Option<&User>,
) -> Result<Listener, ListenError> {
    let system = |errno| ListenError::System { address: address.clone(), errno };
    let unix = UnixAddr::new(path).map_err(system)?;
    let owner = owner(address, access, user)?;
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(ListenError::NotASocket { address: address.clone() });
        }
        if has_listener(&unix).map_err(system)? || is_about_to_listen(&found) {
            return Err(ListenError::Answered { address: address.clone() });
        }
        fs::remove_file(path).map_err(|error| system(to_errno(&error)))?;
    }
    let fd = socket(AddressFamily::Unix, SockType::Stream, FLAGS, None).map_err(system)?;
    bind_with_mode(&fd, &unix, access.mode).map_err(system)?;
    let file = SocketFile::created_at(path).map_err(|error| system(to_errno(&error)))?;
    // Before a client can connect.
    let refused = |errno| ListenError::Owner { address: address.clone(), errno };
    owner.take(path, file.identity).map_err(refused)?;
    // Another server would replace a socket file without a listener.
    listen(&fd, Backlog::MAXALLOWABLE).map_err(system)?;
    Ok(Listener::new(fd, Some(file), true))
}

/// Whether a server listens at a socket file. Only a refused connection shows that none does. With a full backlog, or with a
/// socket of another type, connect(2) fails in other ways.
fn has_listener(address: &UnixAddr) -> nix::Result<bool> {
    let probe = socket(AddressFamily::Unix, SockType::Stream, FLAGS, None)?;
    match connect(probe.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(Errno::EACCES) => Err(Errno::EACCES),
        Ok(()) | Err(_) => Ok(true),
    }
}

/// Whether a socket file is so new that another server may be about to listen there: a connection is refused until it does.
fn is_about_to_listen(found: &fs::Metadata) -> bool {
    found.modified().ok().and_then(|made| made.elapsed().ok()).is_some_and(|age| age < LISTENS_WITHIN)
}

/// The errno of an error of the standard library.
pub fn to_errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// The text of an error without its number, which the standard library adds: `(os error 13)`.
pub fn text_of(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |raw| Errno::from_raw(raw).desc().to_owned())
}

/// The text of an error of a library, without the number of an error of the system in it.
pub fn text_without_number(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let Some((before, rest)) = text.split_once(" (os error ") else { return text };
    let after = rest.split_once(')').map_or("", |(_, after)| after);
    format!("{before}{after}")
}

/// Takes ownership of a descriptor that the process was started with.
fn adopt(raw: RawFd, name: &str) -> Result<Listener, ListenError> {
    let refused = |_| ListenError::Inherited { fd: raw };
    // SAFETY: the call reads a flag of the descriptor with this number, and fails if there is none.
    #[allow(unsafe_code)]
    Errno::result(unsafe { nix::libc::fcntl(raw, nix::libc::F_GETFD) }).map_err(refused)?;
    // SAFETY: the descriptor is open. LISTEN_PID says that it was passed to this process, and `inherit` runs before anything
    // else could have opened it.
    #[allow(unsafe_code)]
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    adopt_socket(fd, name).map_err(refused)
}

fn adopt_socket(fd: OwnedFd, name: &str) -> nix::Result<Listener> {
    use nix::sys::socket::getsockopt;

    if getsockopt(&fd, sockopt::SockType)? != SockType::Stream || !getsockopt(&fd, sockopt::AcceptConn)? {
        return Err(Errno::EINVAL);
    }
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    set_nonblocking(&fd, true)?;
    let address: SockaddrStorage = getsockname(fd.as_raw_fd())?;
    let path = address.as_unix_addr().and_then(UnixAddr::path).map(Path::to_owned);
    let is_unix = address.as_unix_addr().is_some();
    if !is_unix {
        setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    }
    let mut words = name.split('+');
    let word = words.next();
    let protocol = if word == Some(NAME_HTTP) { Protocol::Http } else { Protocol::Beanstalk };
    let has_tls = matches!(word, Some(NAME_TLS | NAME_BEANSTALKS));
    let is_forwarded = word == Some(NAME_FORWARDED);
    let is_from_restart = matches!(word, Some(NAME_BEANSTALK | NAME_BEANSTALKS | NAME_FORWARDED));
    let mut numbers = words.map_while(|word| word.parse().ok());
    let identity = numbers.next().zip(numbers.next());
    let file = path.zip(identity).map(|(path, identity)| SocketFile { path, identity });
    let kind = ListenerKind { protocol, has_tls, is_proxied: false, is_forwarded };
    Ok(Listener { kind, is_from_restart, ..Listener::new(fd, file, is_unix) })
}

fn set_nonblocking(fd: &OwnedFd, is_set: bool) -> nix::Result<()> {
    let mut flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    flags.set(OFlag::O_NONBLOCK, is_set);
    fcntl(fd, FcntlArg::F_SETFL(flags)).map(drop)
}

impl Default for Address {
    fn default() -> Self {
        Self::Tcp { host: "0.0.0.0".to_owned(), port: PORT_DEFAULT }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What the connections of a listener speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerKind {
    /// The protocol.
    pub protocol: Protocol,
    /// It is inside TLS.
    pub has_tls: bool,
    /// Connections begin with a header of the PROXY protocol.
    pub is_proxied: bool,
    /// Connections are from standbys, which forward clients.
    pub is_forwarded: bool,
}

impl ListenerKind {
    /// What clients speak by default.
    pub const CLEAR: Self =
        Self { protocol: Protocol::Beanstalk, has_tls: false, is_proxied: false, is_forwarded: false };
    /// Clients over TLS.
    pub const TLS: Self = Self { has_tls: true, ..Self::CLEAR };
    /// HTTP without TLS.
    pub const HTTP: Self = Self { protocol: Protocol::Http, ..Self::CLEAR };
    /// Standbys, which forward clients without TLS and over it.
    pub const FORWARDED: Self = Self { is_forwarded: true, ..Self::CLEAR };

    /// Whether it is for clients without TLS.
    pub fn is_clear(self) -> bool {
        self.protocol == Protocol::Beanstalk && !self.has_tls && !self.is_forwarded
    }

    /// Whether it is for clients over TLS.
    pub fn is_tls(self) -> bool {
        self.protocol == Protocol::Beanstalk && self.has_tls
    }

    /// Whether it is for HTTP, with TLS or without.
    pub fn is_http(self) -> bool {
        self.protocol == Protocol::Http
    }
}

#[cfg(test)]
mod tests;
