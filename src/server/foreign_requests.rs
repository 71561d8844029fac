//! Connections that begin with a request of another protocol.

use tracing::warn;

use super::Core;
use crate::ids::ConnId;
use crate::protocol::foreign::{Foreign, Opening, Verdict};
use crate::time::{Span, Time};

/// How often, at most, such a request is logged. A scanner or a misdirected probe may send them all day.
const WARNING_INTERVAL: Span = Span::from_secs(60);

/// Counts requests of other protocols, and limits how often they are logged.
#[derive(Default)]
pub(super) struct ForeignRequests {
    count: u64,
    last_warning: Option<Time>,
}

impl ForeignRequests {
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Counts one more. Returns whether to log it.
    fn add(&mut self, now: Time) -> bool {
        self.count += 1;
        let is_due = self.last_warning.is_none_or(|at| now.since(at) >= WARNING_INTERVAL);
        if is_due {
            self.last_warning = Some(now);
        }
        is_due
    }
}

impl Core {
    /// Whether the connection begins with a request of another protocol. Empties `opening` once the first line decides it.
    #[cold]
    pub(super) fn is_foreign_request(
        &mut self,
        conn: ConnId,
        opening: &mut Option<Opening>,
        input: &[u8],
        now: Time,
    ) -> bool {
        let Some(verdict) = opening.as_mut().and_then(|line| line.feed(input)) else { return false };
        *opening = None;
        let Verdict::Foreign(protocol) = verdict else { return false };
        if self.foreign_requests.add(now) {
            let what = match protocol {
                Foreign::Http => "an HTTP request",
                Foreign::Tls => "a TLS handshake",
            };
            warn!(
                conn = conn.slot,
                "closed a connection that began with {what}; {} in all (foreign-requests in stats, peers with -V, \
                 --allow-foreign-requests to serve them)",
                self.foreign_requests.count
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_counted_and_one_per_minute_is_logged() {
        let mut requests = ForeignRequests::default();
        let begin = Time::from_nanos(7);
        let logged = [0, 1, 59, 60, 61, 119, 120].map(|second| requests.add(begin + Span::from_secs(second)));
        assert_eq!(logged, [true, false, false, true, false, false, true]);
        assert_eq!(requests.count(), 7);
    }
}
