//! Logs connections that break for a reason other than the peer or the network.

use nix::errno::Errno;
use tracing::{debug, warn};

use crate::ids::ConnId;
use crate::log_limit::LogLimit;
use crate::time::{Span, Time};

/// A kernel that refuses one send may refuse all of them, so warnings are limited to one in this time.
const WARNING_INTERVAL: Span = Span::from_secs(10);

/// Logs why connections break.
#[derive(Debug)]
pub struct ConnectionErrors {
    limit: LogLimit,
    #[cfg(all(test, feature = "uring"))]
    pub has_warned: bool,
}

impl Default for ConnectionErrors {
    fn default() -> Self {
        Self {
            limit: LogLimit::every(WARNING_INTERVAL),
            #[cfg(all(test, feature = "uring"))]
            has_warned: false,
        }
    }
}

impl ConnectionErrors {
    /// Logs why a connection breaks: as a warning if the server's own kernel or requests caused it.
    pub fn log(&mut self, now: Time, conn: ConnId, errno: Errno) {
        if is_of_the_network(errno) {
            debug!(conn = conn.slot, "connection broke: {}", errno.desc());
        } else if let Some(left_out) = self.limit.admit(now) {
            #[cfg(all(test, feature = "uring"))]
            {
                self.has_warned = true;
            }
            warn!(
                conn = conn.slot,
                "the kernel refuses to send or receive, and the connection is closed: {}{left_out}",
                errno.desc()
            );
        }
    }
}

/// Whether a peer, or the network in between, can make a send or a receive fail like this.
const fn is_of_the_network(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EPIPE
            | Errno::ECONNRESET
            | Errno::ECONNABORTED
            | Errno::ECONNREFUSED
            | Errno::ENOTCONN
            | Errno::ETIMEDOUT
            | Errno::EHOSTUNREACH
            | Errno::EHOSTDOWN
            | Errno::ENETUNREACH
            | Errno::ENETDOWN
            | Errno::ENETRESET
            | Errno::ENONET
            | Errno::ENOPROTOOPT
            | Errno::EPROTO
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_no_peer_causes_are_warnings() {
        for (errno, expected) in [
            (Errno::ECONNRESET, true),
            (Errno::EPIPE, true),
            (Errno::ETIMEDOUT, true),
            (Errno::EHOSTUNREACH, true),
            (Errno::EINVAL, false),
            (Errno::EBADF, false),
            (Errno::EOPNOTSUPP, false),
            (Errno::ENOMEM, false),
        ] {
            assert_eq!(is_of_the_network(errno), expected, "{errno}");
        }
    }
}
