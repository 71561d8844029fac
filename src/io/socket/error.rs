//! Why a connection is not accepted, and why the server cannot listen.

use std::fmt;
use std::os::fd::RawFd;

use nix::errno::Errno;

use super::Address;
use crate::io::privileges::current_user;

/// Why a connection was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AcceptError {
    /// No connection waits.
    Empty,
    /// The connection failed before it was accepted. The next one may not.
    Peer,
    /// There is no descriptor or no memory for a connection now.
    Exhausted(Errno),
    /// The listener is broken.
    Listener(Errno),
}

/// Why the server cannot listen.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum ListenError {
    /// The host has no address.
    UnknownHost { address: Address },
    /// The file at the path is not a socket.
    NotASocket { address: Address },
    /// Another server listens at the path.
    Answered { address: Address },
    /// There is no such group.
    UnknownGroup { address: Address, group: String },
    /// The system did not let the socket file have its owner and group.
    Owner { address: Address, errno: Errno },
    /// The machine does not have the address that it advertises.
    ForeignAdvertised { address: Address },
    /// The system refused to bind the address.
    System { address: Address, errno: Errno },
    /// The system refused to listen on a bound address.
    Refused { name: String, errno: Errno },
    /// A descriptor of LISTEN_FDS is not a listening socket.
    Inherited { fd: RawFd },
}

impl ListenError {
    /// The same error about an address that other servers are told.
    #[must_use]
    pub fn of_advertised(self) -> Self {
        match self {
            Self::System { address, errno: Errno::EADDRNOTAVAIL } => Self::ForeignAdvertised { address },
            error => error,
        }
    }

    /// Whether another process has the address.
    pub(super) const fn is_in_use(&self) -> bool {
        matches!(self, Self::Answered { .. } | Self::System { errno: Errno::EADDRINUSE, .. })
    }
}

impl From<Errno> for AcceptError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::EAGAIN => Self::Empty,
            Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM => Self::Exhausted(errno),
            Errno::EBADF | Errno::EINVAL | Errno::ENOTSOCK | Errno::EOPNOTSUPP | Errno::EFAULT => {
                Self::Listener(errno)
            }
            // accept(2): Linux reports network errors of the new connection, and EPERM from a firewall.
            _ => Self::Peer,
        }
    }
}

// docs/RUNBOOK.md lists these messages.
impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownHost { address } => {
                write!(f, "cannot listen on {address}: no such host; correct the name, or check DNS")
            }
            Self::NotASocket { address } => {
                write!(
                    f,
                    "cannot listen on {address}: the path is a file and not a socket; remove the file, or choose another path"
                )
            }
            Self::Answered { address } => {
                write!(
                    f,
                    "cannot listen on {address}: another server listens there; stop it, or choose another path"
                )
            }
            Self::UnknownGroup { address, group } => {
                write!(
                    f,
                    "cannot listen on {address}: there is no group {group}; create it, or correct group="
                )
            }
            Self::Owner { address, errno } => {
                write!(
                    f,
                    "cannot listen on {address}: cannot change the owner or group of the socket: {}; this needs CAP_CHOWN, except \
                     for a group of user {}",
                    errno.desc(),
                    current_user()
                )
            }
            Self::ForeignAdvertised { address } => {
                write!(
                    f,
                    "cannot listen on {address}: this machine does not have the address; advertise a name instead, with which the \
                     server listens on every address"
                )
            }
            Self::System { address, errno: Errno::EADDRINUSE } => {
                write!(
                    f,
                    "cannot listen on {address}: the address is in use; stop the other server, or choose another port"
                )
            }
            Self::System { address, errno: Errno::EADDRNOTAVAIL } => {
                write!(
                    f,
                    "cannot listen on {address}: this machine does not have the address; use one of its own (ip addr), or \
                     0.0.0.0 for all of IPv4"
                )
            }
            Self::System { address: address @ Address::Tcp { .. }, errno: Errno::EACCES } => {
                write!(
                    f,
                    "cannot listen on {address}: permission denied; ports below 1024 need root or CAP_NET_BIND_SERVICE: choose \
                     another port, or start as root with -u"
                )
            }
            Self::System { address, errno: Errno::EACCES } => {
                write!(
                    f,
                    "cannot listen on {address}: permission denied; user {} must be able to write to the directory of the \
                     socket: correct its owner or mode, or choose another path",
                    current_user()
                )
            }
            Self::System { address: address @ Address::Unix(_), errno: Errno::ENOENT } => {
                write!(
                    f,
                    "cannot listen on {address}: the directory of the socket is missing; create it first"
                )
            }
            Self::System { address, errno: errno @ (Errno::EMFILE | Errno::ENFILE) } => write!(
                f,
                "cannot listen on {address}: {}; raise the limit of open files (ulimit -n, LimitNOFILE=)",
                errno.desc()
            ),
            Self::System { address, errno } => write!(f, "cannot listen on {address}: {}", errno.desc()),
            Self::Refused { name, errno } => write!(f, "cannot listen on {name}: {}", errno.desc()),
            Self::Inherited { fd } => {
                write!(f, "LISTEN_FDS: descriptor {fd} is not a listening stream socket")
            }
        }
    }
}

impl std::error::Error for ListenError {}
