//! Replies to `stats` and pages of metrics wait here for the driver's statistics ([`Effect::SampleStats`]).
//!
//! CPU time costs a system call, so the driver samples it only for such a reply. The driver reports at once, so the wait ends
//! within the iteration in which it began.

use super::session::{Session, SessionState};
use super::{Core, DriverStats, Effect, Server};
use crate::time::Time;
use crate::values::ids::ConnId;

impl Server {
    /// Answers every request that has waited for the sample.
    pub(super) fn stats_sampled(&mut self, stats: DriverStats, now: Time) {
        (self.core.driver, self.core.sampled_at) = (stats, Some(now));
        self.count_tables();
        while let Some(conn) = self.core.sample_waiters.pop_front() {
            if conn.is_http() {
                self.step_page(conn, now);
            } else if let Some(session) = self.connections.find(conn) {
                self.core.reply_stats(session, now);
            }
        }
    }
}

impl Core {
    /// Whether the driver's statistics were sampled in this iteration.
    pub(super) fn has_sample(&self, now: Time) -> bool {
        self.sampled_at == Some(now)
    }

    /// Makes a connection wait for a sample, which the first one requests.
    pub(super) fn await_sample(&mut self, conn: ConnId) {
        if self.sample_waiters.is_empty() {
            self.effects.push_back(Effect::SampleStats);
        }
        self.sample_waiters.push_back(conn);
    }

    /// Replies to the `stats` of a session, unless it has been closed since.
    fn reply_stats(&mut self, session: &mut Session, now: Time) {
        let Session { protocol, output, .. } = session;
        if protocol.state != SessionState::Sampling {
            return;
        }
        protocol.state = SessionState::Serving;
        self.with_replies(output, |core, replies| {
            replies.set_harmless(true);
            core.stats(protocol, replies, now);
            protocol.is_choked = replies.unsent_bytes() >= core.output_bytes_pause;
        });
        // They were counted with the command.
        self.take_extra_steps();
        self.after_serving(session, now);
    }
}
