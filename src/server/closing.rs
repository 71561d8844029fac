//! Connections that close once everything is sent, and whose clients do not read: a limit of time.

use std::ops::Range;

use super::Server;
use super::beanstalk::Session;
use super::client_state::SessionState;
use crate::time::{Span, Time};

/// How often connections that close are looked at. One that has sent nothing since the last time is closed, so its client has this
/// time to twice of it.
const INTERVAL: Span = Span::from_secs(30);

/// Slots of connections that one event-loop iteration looks at. Most need some ns.
const SLOTS: usize = 256;

/// When to look at the slots of connections, while some of them are closing.
#[derive(Default)]
pub struct ClosingWatch {
    /// Connections that are closing.
    count: usize,
    /// When to look at all slots again. None while no connection is closing.
    due: Option<Time>,
    /// The next slot.
    at: usize,
}

impl ClosingWatch {
    /// Another connection is closing.
    pub fn add(&mut self, now: Time) {
        self.count += 1;
        self.due.get_or_insert(now + INTERVAL);
    }

    /// One of them has closed.
    pub const fn remove(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            self.due = None;
            self.at = 0;
        }
    }

    /// The number of them.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// When an iteration must run because of them.
    pub const fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// The slots to look at in this iteration.
    pub fn next_slots(&mut self, capacity: usize, now: Time) -> Range<usize> {
        if self.due.is_none_or(|due| due > now) {
            return 0..0;
        }
        let slots = self.at..capacity.min(self.at + SLOTS);
        if slots.end < capacity {
            self.at = slots.end;
        } else {
            (self.at, self.due) = (0, Some(now + INTERVAL));
        }
        slots
    }
}

impl Session {
    /// Whether the connection is closing, and has sent nothing since the last call. Replies that wait for a commit do not count.
    fn is_stuck(&mut self) -> bool {
        let unsent = self.output.unsent_bytes();
        let is_waiting = self.protocol.state == SessionState::Closing && self.output.is_sending;
        is_waiting && std::mem::replace(&mut self.unsent_before, unsent) == unsent
    }
}

impl Server {
    /// Closes connections whose clients do not read their last replies.
    #[inline(never)]
    pub(super) fn end_stuck(&mut self, now: Time) {
        // Bounded by SLOTS: the connections of one event-loop iteration.
        for slot in self.core.closing.next_slots(self.connections.capacity(), now) {
            if let Some(session) = self.connections.client_at(slot)
                && session.is_stuck()
            {
                self.core.hung_up(session, now);
            }
        }
    }
}
