//! What threads share. The crate `tests/loom` includes `channel.rs`, `mailbox.rs` and `sleep_flag.rs`, and has types of the model
//! checker loom under these names.

pub use std::sync::Arc;
pub use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// A word that one thread writes and another reads. A position or a number beside it orders the two, so they never happen at the same
/// time: the model checks that too.
pub use std::sync::atomic::AtomicU64 as Word;
