//! Listening sockets: bound here or handed over by a service manager.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, UnixAddr, accept4, bind, connect,
    getpeername, getsockname, listen, setsockopt, socket, sockopt,
};

use super::patiently;
use super::sandbox::directory_of;
use crate::server::Protocol;

/// The number of the first socket that a service manager hands over (sd_listen_fds(3), SD_LISTEN_FDS_START).
pub const FIRST_INHERITED: RawFd = 3;

const FLAGS: SockFlag = SockFlag::SOCK_NONBLOCK.union(SockFlag::SOCK_CLOEXEC);

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A TCP port.
    Tcp {
        /// An address of this machine, or a name of one.
        host: String,
        /// The port; 0 lets the system choose one.
        port: u16,
    },
    /// A UNIX socket at a path.
    Unix(PathBuf),
}

/// A listening socket. If it made a socket file, the file goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    // Dropped first: while the socket is open, no other file can have the inode of its own.
    file: Option<SocketFile>,
    fd: OwnedFd,
    is_unix: bool,
    protocol: Protocol,
    is_kept: bool,
}

/// Why a connection was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcceptError {
    /// None is waiting.
    Empty,
    /// This one failed; the next may not.
    Peer,
    /// There are no descriptors, or no memory, for one more at the moment.
    Exhausted(Errno),
    /// The listener itself is broken.
    Listener(Errno),
}

/// Why the server cannot listen.
#[derive(Debug)]
pub enum ListenError {
    /// The host has no address.
    UnknownHost {
        /// What was asked for.
        address: Address,
    },
    /// Something that is not a socket stands at the path.
    NotASocket {
        /// What was asked for.
        address: Address,
    },
    /// A server answers at the path.
    Answered {
        /// What was asked for.
        address: Address,
    },
    /// The system refused.
    System {
        /// What was asked for.
        address: Address,
        /// What it said.
        errno: Errno,
    },
    /// The system refused after all.
    Refused {
        /// The address.
        name: String,
        /// What it said.
        errno: Errno,
    },
    /// What LISTEN_FDS announced is not a listening socket.
    Inherited {
        /// Which descriptor.
        fd: RawFd,
    },
}

impl Address {
    /// The host, if it is one of TCP.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp { host, .. } => Some(host),
            Self::Unix(_) => None,
        }
    }
}

impl Listener {
    /// Listens at `address`.
    pub fn bind(address: &Address) -> Result<Self, ListenError> {
        let listener = Self::reserve(address)?;
        listener.listen()?;
        Ok(listener)
    }

    /// Takes `address`. Over TCP nobody can connect before [`listen`](Self::listen); on a UNIX socket who comes
    /// before waits. One that is taken is tried again for a moment: what a server that has just been killed left to an
    /// io_uring, the kernel lets go only after the process is gone.
    pub fn reserve(address: &Address) -> Result<Self, ListenError> {
        patiently(|| Self::reserve_now(address), ListenError::is_taken)
    }

    /// Whether [`reserve`](Self::reserve) could be asked for `address`, as far as that can be told without taking it.
    pub fn check(address: &Address) -> Result<(), ListenError> {
        match address {
            Address::Tcp { host, port } => candidates(address, host, *port).map(drop),
            Address::Unix(path) => {
                let system = |errno| ListenError::System { address: address.clone(), errno };
                UnixAddr::new(path).map_err(system)?;
                match fs::metadata(directory_of(path)) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(system(to_errno(&error))),
                }
            }
        }
    }

    fn reserve_now(address: &Address) -> Result<Self, ListenError> {
        match address {
            Address::Tcp { host, port } => bind_host(address, host, *port),
            Address::Unix(path) => bind_path(address, path),
        }
    }

    /// The sockets that a service manager handed over (LISTEN_PID, LISTEN_FDS): none if it did not.
    /// One that is called `http` (LISTEN_FDNAMES) is for monitors. To be called once, before anything else in the
    /// process opens descriptors.
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

    /// What [`inherit`](Self::inherit) in the next program is to know of it: what is spoken, and which socket file is the
    /// server's own.
    pub fn name_to_hand_over(&self) -> String {
        let word = match self.protocol {
            Protocol::Beanstalk => KEPT,
            Protocol::Http => MONITORS,
        };
        match &self.file {
            Some(SocketFile { identity: (device, inode), .. }) => format!("{word}+{device}+{inode}"),
            None => word.to_owned(),
        }
    }

    /// The next connection that waits: nonblocking, closed on exec, and with the options of the
    /// listener, which Linux passes on.
    pub fn accept(&self) -> Result<OwnedFd, AcceptError> {
        self.accept_with(FLAGS)
    }

    /// The same, but what is done with the connection waits: for a driver whose requests the kernel
    /// completes when they can be.
    pub fn accept_blocking(&self) -> Result<OwnedFd, AcceptError> {
        self.accept_with(SockFlag::SOCK_CLOEXEC)
    }

    /// What is spoken over the connections: to clients of the queue unless [something else](Self::speak) was said.
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Has something else spoken over them.
    pub const fn speak(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Whether the program that ran in this process before has listened at it, as its name says
    /// ([`name_to_hand_over`](Self::name_to_hand_over)).
    pub const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Whether connections come over a UNIX socket.
    pub const fn is_unix(&self) -> bool {
        self.is_unix
    }

    /// The file of a UNIX socket that is this server's own.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// The address it listens at, for people.
    pub fn local_name(&self) -> String {
        name(getsockname(self.fd.as_raw_fd()))
    }

    fn accept_with(&self, flags: SockFlag) -> Result<OwnedFd, AcceptError> {
        let fd = accept4(self.fd.as_raw_fd(), flags).map_err(AcceptError::from)?;
        // SAFETY: accept4 has just made this descriptor, and nothing else knows it.
        #[allow(unsafe_code)]
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// From now on clients can connect.
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

/// The address of a connection's other end, for people.
pub fn peer_name(connection: impl AsFd) -> String {
    name(getpeername(connection.as_fd().as_raw_fd()))
}

/// Names of sockets that are handed over: one for monitors, and one for clients that the program before has had.
const MONITORS: &str = "http";
const KEPT: &str = "beanstalk";

/// A socket file that this process has made.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn made_at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have put its own in the place.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // After -u the directory may not be ours to change; the next start replaces the file.
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
        Some(unix) => unix.path().map_or("unix".to_owned(), |path| format!("unix:{}", path.display())),
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

/// What a host may stand for: at least one.
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
    set_connection_options(&fd)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(Listener { is_unix: false, file: None, fd, protocol: Protocol::Beanstalk, is_kept: false })
}

/// Options of every connection, set on the listener from which they inherit them.
fn set_connection_options(fd: &OwnedFd) -> nix::Result<()> {
    setsockopt(fd, sockopt::KeepAlive, &true)?;
    setsockopt(fd, sockopt::TcpNoDelay, &true)
}

fn bind_path(address: &Address, path: &Path) -> Result<Listener, ListenError> {
    let system = |errno| ListenError::System { address: address.clone(), errno };
    let unix = UnixAddr::new(path).map_err(system)?;
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(ListenError::NotASocket { address: address.clone() });
        }
        if is_answered(&unix).map_err(system)? {
            return Err(ListenError::Answered { address: address.clone() });
        }
        fs::remove_file(path).map_err(|error| system(to_errno(&error)))?;
    }
    let fd = socket(AddressFamily::Unix, SockType::Stream, FLAGS, None).map_err(system)?;
    bind(fd.as_raw_fd(), &unix).map_err(system)?;
    let file = SocketFile::made_at(path).map_err(|error| system(to_errno(&error)))?;
    // Another server takes a file over that nobody answers at.
    listen(&fd, Backlog::MAXALLOWABLE).map_err(system)?;
    Ok(Listener { is_unix: true, file: Some(file), fd, protocol: Protocol::Beanstalk, is_kept: false })
}

/// Whether anybody listens at a socket file. Only a clear refusal says no; a queue that is full or a
/// socket of another type says yes.
fn is_answered(address: &UnixAddr) -> nix::Result<bool> {
    let probe = socket(AddressFamily::Unix, SockType::Stream, FLAGS, None)?;
    match connect(probe.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(Errno::EACCES) => Err(Errno::EACCES),
        Ok(()) | Err(_) => Ok(true),
    }
}

/// The number in an error of the standard library.
pub fn to_errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// Takes over a descriptor that the process was started with.
fn adopt(raw: RawFd, name: &str) -> Result<Listener, ListenError> {
    let refused = |_| ListenError::Inherited { fd: raw };
    // SAFETY: the call reads a flag of whatever has this number; it fails if nothing has.
    #[allow(unsafe_code)]
    Errno::result(unsafe { nix::libc::fcntl(raw, nix::libc::F_GETFD) }).map_err(refused)?;
    // SAFETY: it is open, and LISTEN_PID said that it was passed to this process to own; `inherit`
    // runs before anything else could have opened it.
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
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    let address: SockaddrStorage = getsockname(fd.as_raw_fd())?;
    let path = address.as_unix_addr().and_then(UnixAddr::path).map(Path::to_owned);
    let is_unix = address.as_unix_addr().is_some();
    if !is_unix {
        set_connection_options(&fd)?;
    }
    let mut words = name.split('+');
    let word = words.next();
    let protocol = if word == Some(MONITORS) { Protocol::Http } else { Protocol::Beanstalk };
    let mut numbers = words.map_while(|word| word.parse().ok());
    let identity = numbers.next().zip(numbers.next());
    let file = path.zip(identity).map(|(path, identity)| SocketFile { path, identity });
    Ok(Listener { file, fd, is_unix, protocol, is_kept: word == Some(KEPT) })
}

impl From<Errno> for AcceptError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::EAGAIN => Self::Empty,
            Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM => Self::Exhausted(errno),
            Errno::EBADF | Errno::EINVAL | Errno::ENOTSOCK | Errno::EOPNOTSUPP | Errno::EFAULT => {
                Self::Listener(errno)
            }
            // accept(2): Linux passes on the errors of the new connection's network, and a firewall's EPERM.
            _ => Self::Peer,
        }
    }
}

impl ListenError {
    /// Whether somebody else has the address.
    const fn is_taken(&self) -> bool {
        matches!(self, Self::Answered { .. } | Self::System { errno: Errno::EADDRINUSE, .. })
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::Tcp { host: "0.0.0.0".to_owned(), port: 11300 }
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

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, reason) = match self {
            Self::UnknownHost { address } => (address, "no such host"),
            Self::NotASocket { address } => (address, "a file that is not a socket stands there"),
            Self::Answered { address } => (address, "another server answers there"),
            Self::System { address, errno: Errno::EADDRINUSE } => (address, "it is in use"),
            Self::System { address, errno: Errno::EADDRNOTAVAIL } => {
                (address, "it is not an address of this machine")
            }
            Self::System { address, errno } => (address, errno.desc()),
            Self::Refused { name, errno } => {
                return write!(f, "cannot listen on {name}: {}", errno.desc());
            }
            Self::Inherited { fd } => {
                return write!(f, "LISTEN_FDS: descriptor {fd} is not a listening stream socket");
            }
        };
        write!(f, "cannot listen on {address}: {reason}")
    }
}

impl std::error::Error for ListenError {}

#[cfg(test)]
mod tests;
