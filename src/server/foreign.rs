//! Connections that begin with a request of another protocol.

use tracing::warn;

use super::Core;
use crate::ids::ConnId;
use crate::limits::FOREIGN_COMPLAINT_EVERY;
use crate::protocol::foreign::{Foreign, Opening, Verdict};
use crate::time::Time;

/// Counts them, and limits how often a log line says so.
#[derive(Default)]
pub(super) struct Foreigners {
    count: u64,
    complained: Option<Time>,
}

impl Foreigners {
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Takes note of one more. Returns whether it is time for a log line.
    fn add(&mut self, now: Time) -> bool {
        self.count += 1;
        let is_early = self.complained.is_some_and(|at| now.since(at) < FOREIGN_COMPLAINT_EVERY);
        if !is_early {
            self.complained = Some(now);
        }
        !is_early
    }
}

impl Core {
    /// Whether the connection turns out to begin with such a request. Takes `opening` away once its first line is known
    /// to be none.
    #[cold]
    pub(super) fn is_foreign(
        &mut self,
        conn: ConnId,
        opening: &mut Option<Opening>,
        input: &[u8],
        now: Time,
    ) -> bool {
        let Some(verdict) = opening.as_mut().and_then(|line| line.feed(input)) else { return false };
        *opening = None;
        let Verdict::Foreign(protocol) = verdict else { return false };
        if self.foreign.add(now) {
            let what = match protocol {
                Foreign::Http => "an HTTP request",
                Foreign::Tls => "a TLS handshake",
            };
            warn!(
                conn = conn.slot,
                "closed a connection that began with {what}; {} in all (foreign-requests in stats, peers with -V, \
                 --allow-foreign-requests to serve them)",
                self.foreign.count
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn all_are_counted_and_a_few_are_logged() {
        let mut foreign = Foreigners::default();
        let begin = Time::from_nanos(7);
        let logged = [0, 1, 59, 60, 61, 119, 120].map(|second| foreign.add(begin + Span::from_secs(second)));
        assert_eq!(logged, [true, false, false, true, false, false, true]);
        assert_eq!(foreign.count(), 7);
    }
}
