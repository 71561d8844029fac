//! What is left for a later turn or event-loop iteration.

use std::collections::VecDeque;

use crate::values::ids::ConnId;

/// Connections that have their turn without another event, and memory that is returned in pieces.
#[derive(Default)]
pub(super) struct Ready {
    /// Sessions with input that could not be served in their last turn, and HTTP connections with a call.
    sessions: VecDeque<ConnId>,
    /// HTTP connections with a page to render.
    pages: VecDeque<ConnId>,
    /// HTTP connections with input that could not be answered when it came.
    requests: VecDeque<ConnId>,
    /// A `put-batch` that is to be stored has left its turn to the next iteration.
    has_deferred: bool,
    /// Freed memory is being given back to the kernel in pieces.
    is_reclaiming: bool,
}

impl Ready {
    pub fn add_session(&mut self, conn: ConnId) {
        self.sessions.push_back(conn);
    }

    pub fn add_page(&mut self, conn: ConnId) {
        self.pages.push_back(conn);
    }

    pub fn add_request(&mut self, conn: ConnId) {
        self.requests.push_back(conn);
    }

    /// The session whose turn is next.
    pub fn next_session(&self) -> Option<ConnId> {
        self.sessions.front().copied()
    }

    /// Begins the turn of the next session.
    pub fn take_session(&mut self) {
        self.sessions.pop_front();
    }

    pub fn take_page(&mut self) -> Option<ConnId> {
        self.pages.pop_front()
    }

    pub fn take_request(&mut self) -> Option<ConnId> {
        self.requests.pop_front()
    }

    /// Whether a whole `put-batch` leaves its turn to the next iteration. It is the work of an iteration: the first of its turns, and if
    /// that one had many events, of the next.
    pub const fn defers_batch(&mut self, is_first: bool, had_many_events: bool) -> bool {
        let was_deferred = std::mem::replace(&mut self.has_deferred, is_first);
        let defers = !is_first || had_many_events && !was_deferred;
        if !defers {
            self.has_deferred = false;
        }
        defers
    }

    pub const fn set_reclaiming(&mut self, is_reclaiming: bool) {
        self.is_reclaiming = is_reclaiming;
    }

    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Whether there is work that does not wait for the job log.
    pub fn has_more(&self) -> bool {
        self.is_reclaiming || !self.pages.is_empty() || self.has_requests()
    }

    pub fn memory_bytes(&self) -> usize {
        let queued = self.sessions.capacity() + self.pages.capacity() + self.requests.capacity();
        queued * size_of::<ConnId>()
    }
}
