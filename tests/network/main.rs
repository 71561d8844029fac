//! Connections to server processes: many at once, hostile ones, ones that vanish, and large bodies.

mod churn;
mod crowd;
mod hostile;
#[cfg(feature = "uring")]
mod lost;
#[cfg(feature = "uring")]
mod sockets;
mod stress;
#[cfg(feature = "uring")]
mod unread;
mod wakeups;
