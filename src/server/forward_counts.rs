//! What a standby counts of the connections that it forwards to the leader.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that another thread may read at any time.
#[derive(Default, Debug)]
pub struct Count(AtomicU64);

/// The counts of the thread that forwards. Those of events are since the start.
#[derive(Default, Debug)]
pub struct ForwardCounts {
    /// Clients that are connected, including those that wait.
    pub open: Count,
    /// Clients that wait for a leader.
    pub waiting: Count,
    /// Connections to the leader so far.
    pub total: Count,
    /// Bytes from clients to the leader.
    pub to_leader: Count,
    /// Bytes from the leader to clients.
    pub to_clients: Count,
    /// Attempts that reached the leader at none of its addresses.
    pub failed_connects: Count,
    /// Clients closed because too many were connected or waited, or because they waited too long.
    pub refused: Count,
    /// Clients closed because their machines are silent.
    pub lost: Count,
    /// Forwarded connections closed because another server leads, or none.
    pub closed_by_change: Count,
    /// Forwarded connections closed because the machine of the leader is silent.
    pub closed_by_silence: Count,
    /// Memory of connections to the leader and of bytes that the other side does not take, in bytes.
    pub memory: Count,
}

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts from the number.
    pub fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Replaces the number.
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }
}
