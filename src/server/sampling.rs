//! Replies to `stats` and pages of metrics wait here for the driver's statistics ([`Effect::SampleStats`]).
//!
//! CPU time costs a system call, so the driver samples it only for such a reply. The driver reports at once, so the wait ends
//! within the iteration in which it began.

use std::collections::VecDeque;

use super::session::Phase;
use super::{Core, Effect, Server};
use crate::ids::ConnId;
use crate::limits::OUTPUT_BYTES_PAUSE;
use crate::time::Time;

/// Connections whose reply or page waits for a sample, in the order of their requests.
pub(super) type SampleWaiters = VecDeque<ConnId>;

impl Server {
    /// Makes a connection wait for a sample, which the first one requests.
    pub(super) fn await_sample(waiters: &mut SampleWaiters, effects: &mut VecDeque<Effect>, conn: ConnId) {
        if waiters.is_empty() {
            effects.push_back(Effect::SampleStats);
        }
        waiters.push_back(conn);
    }

    /// Answers every request that has waited for the sample.
    pub(super) fn stats_sampled(&mut self, now: Time) {
        while let Some(conn) = self.sample_waiters.pop_front() {
            if self.sessions.is_http(conn) {
                self.step_page(conn, now);
            } else {
                self.reply_stats(conn, now);
            }
        }
    }

    /// Replies to the `stats` of a session, unless it was closed while it waited.
    fn reply_stats(&mut self, conn: ConnId, now: Time) {
        let Self { core, sessions, spent, .. } = self;
        let Some(session) = sessions.get_mut(conn) else { return };
        let talk = &mut session.talk;
        if talk.phase != Phase::Sampling {
            return;
        }
        talk.phase = Phase::Serving;
        core.begin_replies(talk);
        core.stats(talk, now);
        talk.is_choked = talk.output.pending() >= OUTPUT_BYTES_PAUSE;
        *spent += core.take_extra_steps();
        if core.is_stalled() {
            talk.output.stamp(core.safe_ticket());
        }
        self.after_serving(conn, now);
    }
}

impl Core {
    /// Whether the driver's statistics were sampled in this iteration.
    pub(super) fn has_sample(&self, now: Time) -> bool {
        self.sampled_at == Some(now)
    }
}
