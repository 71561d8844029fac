//! What the forwarding thread counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::server::{ForwardedCounts, ForwardedStats};

/// A number that another thread may read at any time.
#[derive(Default, Debug)]
pub struct Count(pub(super) AtomicU64);

/// The counts of a [`Forwarder`](super::Forwarder).
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

impl ForwardedCounts for ForwardCounts {
    fn read(&self) -> ForwardedStats {
        ForwardedStats {
            open: self.open.get(),
            waiting: self.waiting.get(),
            total: self.total.get(),
            refused: self.refused.get(),
            lost: self.lost.get(),
            to_leader_bytes: self.to_leader.get(),
            to_clients_bytes: self.to_clients.get(),
            memory_bytes: self.memory.get(),
        }
    }
}

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }
}
