//! The names of `src/io/uring/threads/sync.rs`.

use loom::cell::Cell;
pub use loom::sync::Arc;
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// Loom knows no order between a swap and a store that replaces the same value. It would let a third thread read what was swapped in
/// after the store, which no processor does. So a store swaps too.
#[derive(Default, Debug)]
pub struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    pub fn store(&self, value: bool, order: Ordering) {
        self.0.swap(value, order);
    }

    pub fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, order)
    }
}

/// A word that one thread writes and another reads, never at the same time. Loom fails if nothing orders the two.
#[derive(Default, Debug)]
pub struct Word(Cell<u64>);

// SAFETY: loom runs one thread at a time, and `Cell` of loom panics if accesses are not ordered.
unsafe impl Sync for Word {}

impl Word {
    pub fn load(&self, _: Ordering) -> u64 {
        self.0.get()
    }

    pub fn store(&self, value: u64, _: Ordering) {
        self.0.set(value);
    }
}
