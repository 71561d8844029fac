//! What is left for a later turn or event-loop iteration.

use std::collections::VecDeque;

use crate::values::ids::ConnId;

/// The reason for the next turn of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Input that a session could not serve in its last turn, or a call over HTTP.
    Command,
    /// Rendering a page over HTTP.
    Page,
    /// Input over HTTP that could not be answered when it came.
    Request,
}

/// Connections that have their turn without another event, and memory that is returned in pieces.
#[derive(Default)]
pub(super) struct Ready {
    queues: [VecDeque<ConnId>; Turn::Request as usize + 1],
    /// A `put-batch` that is to be stored has left its turn to the next iteration.
    has_deferred: bool,
    /// Freed memory is being given back to the kernel in pieces.
    is_reclaiming: bool,
}

impl Ready {
    pub fn add(&mut self, turn: Turn, conn: ConnId) {
        self.queues[turn as usize].push_back(conn);
    }

    pub fn next(&self, turn: Turn) -> Option<ConnId> {
        self.queues[turn as usize].front().copied()
    }

    pub fn take(&mut self, turn: Turn) -> Option<ConnId> {
        self.queues[turn as usize].pop_front()
    }

    /// Whether a whole `put-batch` leaves its turn to the next iteration. It is the work of an iteration: the first of its turns, and if
    /// that one had many events, of the next.
    pub const fn defers_batch(&mut self, is_first: bool, had_many_events: bool) -> bool {
        let was_deferred = std::mem::replace(&mut self.has_deferred, is_first);
        let defers = !is_first || had_many_events && !was_deferred;
        self.has_deferred &= defers;
        defers
    }

    pub const fn set_reclaiming(&mut self, is_reclaiming: bool) {
        self.is_reclaiming = is_reclaiming;
    }

    /// Whether there is work that does not wait for the job log.
    pub fn has_more(&self) -> bool {
        self.is_reclaiming || self.next(Turn::Page).or_else(|| self.next(Turn::Request)).is_some()
    }

    pub fn memory_bytes(&self) -> usize {
        // Bounded by Turn: three queues.
        self.queues.iter().map(VecDeque::capacity).sum::<usize>() * size_of::<ConnId>()
    }
}
