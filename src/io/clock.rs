//! The only clock.

use std::time::{Instant, SystemTime};

use crate::time::{Span, Time};

/// A monotonic clock that starts at the time of the system clock. Its times have a meaning for another process, and changes of
/// the system clock do not affect it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    epoch: Time,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Self {
        // A system clock before 1970 counts as 1970.
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), epoch: Time::from_nanos(since_1970.as_nanos() as u64) }
    }

    /// Reads the clock.
    pub fn now(&self) -> Time {
        // 64 bits of nanoseconds last 584 years.
        self.epoch + Span::from_nanos(self.started.elapsed().as_nanos() as u64)
    }
}
