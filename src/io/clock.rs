//! The only clock.

use std::time::{Instant, SystemTime};

use crate::time::{Span, Time};

/// A monotonic clock that began with what the system's clock showed then: what it says has a meaning for another
/// process, and no step of the system's clock moves it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    epoch: Time,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        // Before 1970 is as good as then.
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), epoch: Time::from_nanos(since_1970.as_nanos() as u64) }
    }

    /// The time.
    pub fn now(&self) -> Time {
        // 64 bits of nanoseconds last 584 years.
        self.epoch + Span::from_nanos(self.started.elapsed().as_nanos() as u64)
    }
}
