//! The histograms of the server itself.

use std::mem;

use super::Core;
use crate::time::Time;
use crate::values::histogram::Histogram;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

const REPLY_BOUNDS_NS: [u64; 14] = [
    10 * US,
    50 * US,
    100 * US,
    250 * US,
    500 * US,
    MS,
    MS * 5 / 2,
    5 * MS,
    10 * MS,
    50 * MS,
    100 * MS,
    500 * MS,
    1000 * MS,
    10_000 * MS,
];

const COMMAND_BOUNDS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

pub(super) struct Metrics {
    /// Nanoseconds from the input, or from the event that ends a client's wait, until all replies are sent.
    pub replies: Histogram,
    /// Commands served per event-loop iteration that served any.
    pub commands: Histogram,
    /// Commands served in this iteration.
    served: u64,
}

impl Metrics {
    pub fn new() -> Self {
        let (replies, commands) = (Histogram::new(&REPLY_BOUNDS_NS), Histogram::new(&COMMAND_BOUNDS));
        Self { replies, commands, served: 0 }
    }

    /// Counts a command of this event-loop iteration.
    #[inline]
    pub fn add_command(&mut self) {
        self.served += 1;
    }

    /// Ends an event-loop iteration.
    #[inline]
    pub fn end_iteration(&mut self) {
        if self.served > 0 {
            self.commands.add(mem::take(&mut self.served));
        }
    }

    /// Counts the time of replies whose sending ends now, from the first input that they answer.
    #[inline]
    pub fn add_reply(&mut self, unanswered_since: Time, now: Time) {
        self.replies.add(now.since(unanswered_since).as_nanos());
    }
}

impl Core {
    /// Reads what the driver counts, once in an iteration: CPU time costs a system call.
    pub(super) fn read_driver(&mut self, now: Time) {
        if self.driver_read_at != Some(now) {
            self.driver_read_at = Some(now);
            self.driver = self.driver_counts.as_ref().map(|counts| counts.read()).unwrap_or_default();
        }
    }
}
