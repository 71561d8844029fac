//! Waits for what must occur.

use std::thread;
use std::time::{Duration, Instant};

use super::process::REPLY_PATIENCE;

/// Waits until something is so.
///
/// # Panics
/// With `what` if it never is.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < REPLY_PATIENCE, "it does not occur that {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
