//! Waits for what must occur.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::process::REPLY_PATIENCE;

/// The longest time between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Sets a flag when it is dropped, even by a panic: so threads that a test waits for end.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until something is so.
///
/// # Panics
/// With `what` if it never is.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_ok(|| if is_so() { Ok(()) } else { Err(format!("it does not occur that {what}")) });
}

/// Waits until nothing is wrong.
///
/// # Panics
/// With what is wrong, if something always is.
pub fn until_ok(mut look: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    let mut pause = Duration::from_micros(50);
    while let Err(wrong) = look() {
        assert!(started.elapsed() < REPLY_PATIENCE, "{wrong}");
        thread::sleep(pause);
        pause = PAUSE_MAX.min(2 * pause);
    }
}
