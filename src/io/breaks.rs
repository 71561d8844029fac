//! Connections that break though neither their peer nor the network caused it. A warning tells the operator.

use nix::errno::Errno;
use tracing::{debug, warn};

use crate::ids::ConnId;
use crate::limits::BREAK_COMPLAINT_EVERY;
use crate::time::Time;

/// When such a warning was logged. A kernel that refuses one send may refuse all, so warnings are limited in rate.
#[derive(Default, Debug)]
pub struct Breaks {
    complained: Option<Time>,
    /// Breaks since then that were not logged as a warning.
    unsaid: u64,
}

impl Breaks {
    /// Logs why a connection is given up.
    pub fn note(&mut self, now: Time, conn: ConnId, errno: Errno) {
        match self.complaint(now, errno) {
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
    #[cfg(test)]
    pub const fn has_complained(&self) -> bool {
        self.complained.is_some()
    }

    /// How many breaks no warning was logged for, if there is to be one now.
    fn complaint(&mut self, now: Time, errno: Errno) -> Option<u64> {
        if is_of_the_network(errno) {
            return None;
        }
        if self.complained.is_some_and(|at| now.since(at) < BREAK_COMPLAINT_EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.complained = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// Whether a peer, or the network between, can make a send or a receive fail so.
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
    fn a_break_that_no_peer_causes_is_complained_of_now_and_then() {
        let start = Time::from_nanos(1);
        let later = start + BREAK_COMPLAINT_EVERY;
        let mut breaks = Breaks::default();
        for (now, errno, complaint) in [
            (start, Errno::ECONNRESET, None),
            (start, Errno::EPIPE, None),
            (start, Errno::ETIMEDOUT, None),
            (start, Errno::EINVAL, Some(0)),
            (start, Errno::EINVAL, None),
            (start, Errno::EBADF, None),
            (later, Errno::EHOSTUNREACH, None),
            (later, Errno::EOPNOTSUPP, Some(2)),
            (later, Errno::ENOMEM, None),
            (later + BREAK_COMPLAINT_EVERY, Errno::EFAULT, Some(1)),
        ] {
            assert_eq!(breaks.complaint(now, errno), complaint, "{errno} at {now:?}");
        }
    }
}
