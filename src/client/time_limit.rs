//! How long the client waits: a time for each reply or command, and more for each byte.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Each byte that arrives or leaves adds to the time. At this rate, of a slow line, a body of 1 GiB has 4.5 hours, and statistics of
/// 10 KB 0.2 s: a server that sends a byte per second gains nothing.
const BYTES_PER_SECOND_MIN: u32 = 64 * 1024;

/// Returns the time until then.
///
/// # Errors
/// If it is over.
pub(super) fn time_left(until: Instant) -> io::Result<Option<Duration>> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(Some(left)),
    }
}

/// The time that a slow line needs for some bytes.
pub(super) fn time_of(bytes: usize) -> Duration {
    Duration::from_secs(bytes as u64) / BYTES_PER_SECOND_MIN
}
