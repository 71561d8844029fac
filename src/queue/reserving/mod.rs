//! Which client gets which job: the search of a reserve, and the clients that wait.

pub mod batch;
pub mod draw;
pub mod search;
pub mod waits;
pub mod wide_waiters;
