//! How the server is doing, in histograms.

use crate::histogram::Histogram;
use crate::time::Time;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// In nanoseconds.
const REPLY_BOUNDS: [u64; 14] = [
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

/// What is counted.
pub(super) struct Metrics {
    /// From input, or from the job that a waiting client gets, until all replies are sent.
    pub replies: Histogram,
    /// Commands served between two waits for events.
    pub commands: Histogram,
    served: u64,
}

impl Metrics {
    pub fn new() -> Self {
        let (replies, commands) = (Histogram::new(&REPLY_BOUNDS), Histogram::new(&COMMAND_BOUNDS));
        Self { replies, commands, served: 0 }
    }

    /// A turn is over, and so many commands have been served since the start.
    #[inline]
    pub fn turned(&mut self, served: u64) {
        if served > self.served {
            self.commands.add(served - self.served);
            self.served = served;
        }
    }

    /// Everything that was asked at this time is answered now.
    #[inline]
    pub fn replied(&mut self, asked: Time, now: Time) {
        self.replies.add(now.since(asked).as_nanos());
    }
}
