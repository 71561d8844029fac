//! The only clock.

use std::time::Instant;

use crate::time::Time;

/// A monotonic clock that started at [`Time::ZERO`].
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The time.
    pub fn now(&self) -> Time {
        // 64 bits of nanoseconds last 584 years.
        Time::from_nanos(self.started.elapsed().as_nanos() as u64)
    }
}
