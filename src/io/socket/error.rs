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
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ListenError {
    #[error("cannot listen on {address}: no such host; correct the name, or check DNS")]
    UnknownHost { address: Address },
    #[error(
        "cannot listen on {address}: the path is a file and not a socket; remove the file, or choose another path"
    )]
    NotASocket { address: Address },
    #[error("cannot listen on {address}: another server listens there; stop it, or choose another path")]
    Answered { address: Address },
    #[error("cannot listen on {address}: there is no group {group}; create it, or correct group=")]
    UnknownGroup { address: Address, group: String },
    #[error("cannot listen on {address}: cannot change the owner or group of the socket: {}; this needs CAP_CHOWN, except for \
        a group of user {}", .errno.desc(), current_user())]
    Owner { address: Address, errno: Errno },
    #[error(
        "cannot listen on {address}: this machine does not have the address; advertise a name instead, with which the \
        server listens on every address"
    )]
    ForeignAdvertised { address: Address },
    #[error(fmt = write_refused)]
    System { address: Address, errno: Errno },
    #[error("cannot listen on {name}: {}", .errno.desc())]
    Refused { name: String, errno: Errno },
    #[error("LISTEN_FDS: descriptor {fd} is not a listening stream socket")]
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
fn write_refused(address: &Address, errno: &Errno, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (address, errno) {
        (_, Errno::EADDRINUSE) => write!(
            f,
            "cannot listen on {address}: the address is in use; stop the other server, or choose another port"
        ),
        (_, Errno::EADDRNOTAVAIL) => write!(
            f,
            "cannot listen on {address}: this machine does not have the address; use one of its own (ip addr), or 0.0.0.0 for \
             all of IPv4"
        ),
        (Address::Tcp { .. }, Errno::EACCES) => write!(
            f,
            "cannot listen on {address}: permission denied; ports below 1024 need root or CAP_NET_BIND_SERVICE: choose another \
             port, or start as root with -u"
        ),
        (_, Errno::EACCES) => write!(
            f,
            "cannot listen on {address}: permission denied; user {} must be able to write to the directory of the socket: \
             correct its owner or mode, or choose another path",
            current_user()
        ),
        (Address::Unix(_), Errno::ENOENT) => {
            write!(f, "cannot listen on {address}: the directory of the socket is missing; create it first")
        }
        (_, Errno::EMFILE | Errno::ENFILE) => write!(
            f,
            "cannot listen on {address}: {}; raise the limit of open files (ulimit -n, LimitNOFILE=)",
            errno.desc()
        ),
        _ => write!(f, "cannot listen on {address}: {}", errno.desc()),
    }
}
