//! The record that closes the job log when the server stops or is idle: with it, damage to the records before it is
//! told from a torn write.

use super::record::Record;
use super::writer::Log;
use crate::limits::LOG_IDLE;
use crate::queue::Engine;
use crate::time::Time;

impl Log {
    /// Closes the log if everything is on disk and nothing has been written for a while, or the server stops. Once: the
    /// next record opens it again.
    pub fn close_when_idle(&mut self, engine: &Engine, now: Time) {
        if self.failure.is_some() || !self.can_close() {
            return;
        }
        let due = *self.close_due.get_or_insert(now + LOG_IDLE);
        if self.stopping || due <= now {
            self.append_change(&Record::Closed, engine);
            // With its padding: what follows is not closed.
            self.close_batch();
            self.closed_at = Some(self.end);
        }
    }

    /// Whether the record that would be written now says that everything before it is on disk, and is not there yet.
    /// On a full disk it does not take the space that a job needs to be deleted.
    pub(super) fn can_close(&self) -> bool {
        let is_quiet = self.full.is_empty() && self.writing.is_none() && self.missing.is_empty();
        let fits = Record::Closed.bytes() as u64 <= self.room();
        let has_room = fits || !self.prepared.is_empty() && !self.is_full();
        is_quiet && self.durable == self.end && self.closed_at != Some(self.end) && has_room
    }

    /// When to close the log if nothing else happens.
    pub(super) fn next_close(&self) -> Option<Time> {
        let due = if self.stopping { Some(Time::ZERO) } else { self.close_due };
        due.filter(|_| self.can_close())
    }
}
