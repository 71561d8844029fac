//! The clock of the server, and that of the system.

use std::time::SystemTime;

use nix::time::{ClockId, clock_gettime};

use crate::time::{Span, Time};

/// A monotonic clock that starts at the time of the system clock. Its times have a meaning for another process, and changes of
/// the system clock do not affect it. It goes on while the machine is suspended, as the lease of a leader does.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The time when the machine was started.
    boot: Time,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Self {
        Self { boot: system_time().back(since_boot()) }
    }

    /// Reads the clock.
    pub fn now(&self) -> Time {
        self.boot + since_boot()
    }
}

/// Reads the system clock, which may be set at any time. A time before 1970 counts as 1970.
pub fn system_time() -> Time {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::from_nanos(since_1970.as_nanos() as u64)
}

fn since_boot() -> Span {
    // Every Linux since 2.6.39 has it, and no filter of system calls sees it: it is read without one.
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the kernel has this clock");
    // 64 bits of nanoseconds last 584 years.
    Span::from_nanos(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
