//! Logs connections that break for a reason other than the peer or the network.

use nix::errno::Errno;
use tracing::{debug, warn};

use crate::ids::ConnId;
use crate::time::{Span, Time};

/// A kernel that refuses one send may refuse all of them, so warnings are limited to one in this time.
const WARNING_INTERVAL: Span = Span::from_secs(10);

/// Logs why connections break.
#[derive(Default, Debug)]
pub struct ConnectionErrors {
    last_warning: Option<Time>,
    /// Errors since then that no warning was logged for.
    suppressed: u64,
}

impl ConnectionErrors {
    /// Logs why a connection breaks: as a warning if the server's own kernel or requests caused it.
    pub fn log(&mut self, now: Time, conn: ConnId, errno: Errno) {
        match self.due_warning(now, errno) {
            Some(0) => warn!(conn = conn.slot, "the kernel refuses to send or receive: {}", errno.desc()),
            Some(unsaid) => warn!(
                conn = conn.slot,
                unsaid,
                "the kernel refuses to send or receive: {}; {unsaid} more connections broke since the last such line",
                errno.desc()
            ),
            None => debug!(conn = conn.slot, "the connection broke: {}", errno.desc()),
        }
    }

    /// Whether a warning was logged.
    #[cfg(all(test, feature = "uring"))]
    pub const fn has_warned(&self) -> bool {
        self.last_warning.is_some()
    }

    /// Returns the number of suppressed warnings if one is to be logged now.
    fn due_warning(&mut self, now: Time, errno: Errno) -> Option<u64> {
        if is_of_the_network(errno) {
            return None;
        }
        if self.last_warning.is_some_and(|at| now.since(at) < WARNING_INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last_warning = Some(now);
        Some(std::mem::take(&mut self.suppressed))
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
    fn warnings_about_errors_that_no_peer_causes_are_limited() {
        let start = Time::from_nanos(1);
        let later = start + WARNING_INTERVAL;
        let mut errors = ConnectionErrors::default();
        for (now, errno, suppressed) in [
            (start, Errno::ECONNRESET, None),
            (start, Errno::EPIPE, None),
            (start, Errno::ETIMEDOUT, None),
            (start, Errno::EINVAL, Some(0)),
            (start, Errno::EINVAL, None),
            (start, Errno::EBADF, None),
            (later, Errno::EHOSTUNREACH, None),
            (later, Errno::EOPNOTSUPP, Some(2)),
            (later, Errno::ENOMEM, None),
            (later + WARNING_INTERVAL, Errno::EFAULT, Some(1)),
        ] {
            assert_eq!(errors.due_warning(now, errno), suppressed, "{errno} at {now:?}");
        }
    }
}
