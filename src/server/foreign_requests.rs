//! Connections that begin with a request of another protocol.

use tracing::warn;

use super::Core;
use crate::ids::ConnId;
use crate::log_limit::LogLimit;
use crate::protocol::foreign::{Foreign, Opening, Verdict};
use crate::time::{Span, Time};

/// How often, at most, such a request is logged. A scanner or a misdirected probe may send them all day.
const WARNING_INTERVAL: Span = Span::from_secs(60);

/// Counts requests of other protocols, and limits how often they are logged.
pub(super) struct ForeignRequests {
    count: u64,
    limit: LogLimit,
}

impl Default for ForeignRequests {
    fn default() -> Self {
        Self { count: 0, limit: LogLimit::every(WARNING_INTERVAL) }
    }
}

impl ForeignRequests {
    pub const fn count(&self) -> u64 {
        self.count
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
        self.foreign_requests.count += 1;
        if let Some(left_out) = self.foreign_requests.limit.admit(now) {
            let what = match protocol {
                Foreign::Http => "an HTTP request",
                Foreign::Tls => "a TLS handshake",
            };
            warn!(
                conn = conn.slot,
                "closed a connection that began with {what} on the port for beanstalk clients; --log-level debug logs \
                 the addresses of clients{left_out}"
            );
        }
        true
    }
}
