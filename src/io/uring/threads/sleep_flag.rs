//! Whether a thread sleeps, as another one must know before it decides to wake it.

use super::sync::{AtomicBool, Ordering, fence};

/// ```text
///   the thread                            another thread
///   1. prepare:  is_asleep = true         1. publishes what the thread is to find
///   2. fence                              2. take: fence
///   3. looks for it once more, and        3. if is_asleep: wakes the thread
///      sleeps if there is nothing
/// ```
///
/// The fences order the two stores before the two loads. So the thread finds what was published, or is woken.
#[derive(Default, Debug)]
pub struct SleepFlag {
    is_asleep: AtomicBool,
}

impl SleepFlag {
    /// Says that this thread sleeps unless it finds something to do.
    pub fn prepare(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ends the sleep.
    pub fn rise(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// Returns whether the caller is to wake the thread: it sleeps, and no other caller wakes it. Called after something was published
    /// for it.
    pub fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed)
    }
}
