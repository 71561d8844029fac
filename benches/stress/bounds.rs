//! The limits that must hold, and the memory that a server may use: as much as its own limits let clients claim.

use std::time::Duration;

use beanring::values::limits::{
    FIXED_BUFFER_BYTES, FIXED_BUFFERS, INBOX_BYTES_PAUSE, OUTPUT_BYTES_PAUSE, RECEIVE_BUFFERS,
    RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX, SPARE_BUFFER_BYTES_MAX, SPARE_BUFFERS_MAX, TAIL_BUFFERS_MAX,
};
use beanring::wal;
use serde::Serialize;

/// The 99th percentile of the control client's latency must not exceed this.
pub const LATENCY_P99: Duration = Duration::from_millis(100);

/// Share of a core that an idle server may use.
pub const IDLE_CPU: f64 = 0.02;

/// An idle connection: session, client, the driver's record, and under tokio-uring its task and a buffer.
const CONNECTION_BYTES: u64 = 4 * 1024;

/// A buffer grows by doubling.
const GROWTH: u64 = 2;

/// Free body memory that is kept for reuse, in addition to an eighth of what is in use.
const WARM_BODY_BYTES: u64 = 16 * 1024 * 1024;

/// A job without its body: the job, its side record, its slot in the index.
const JOB_BYTES: u64 = 256;

const PAGE_BYTES: u64 = 4096;

/// One item of the memory that a server may use.
#[derive(Serialize, Clone)]
pub struct MemoryItem {
    pub what: String,
    pub count: u64,
    pub bytes_each: u64,
}

impl MemoryItem {
    pub fn new(what: &str, count: u64, bytes_each: u64) -> MemoryItem {
        MemoryItem { what: what.to_owned(), count, bytes_each }
    }

    /// Idle connections.
    pub fn connections(count: u64) -> MemoryItem {
        MemoryItem::new("connections", count, CONNECTION_BYTES)
    }

    /// Input that is kept for connections that cannot be served: up to the limit, and the receives beyond it.
    pub fn inboxes(count: u64) -> MemoryItem {
        let beyond = usize::from(RECEIVE_BUFFERS_EACH) * RECEIVE_BYTES_MAX;
        MemoryItem::new("inboxes", count, GROWTH * (INBOX_BYTES_PAUSE + beyond) as u64)
    }

    /// Replies that the client does not read: up to the limit, and one reply beyond it.
    pub fn outputs(count: u64, reply_bytes: u64) -> MemoryItem {
        MemoryItem::new("outputs", count, GROWTH * (OUTPUT_BYTES_PAUSE as u64 + reply_bytes))
    }

    /// Incomplete bodies, of which `received_bytes` have arrived.
    pub fn bodies(count: u64, received_bytes: u64) -> MemoryItem {
        let pages = received_bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        MemoryItem::new("incomplete bodies", count, pages)
    }

    /// Jobs with bodies up to this size. A slot wastes at most an eighth, or a part of a page. Another eighth is kept
    /// for reuse.
    pub fn jobs(count: u64, body_bytes: u64) -> MemoryItem {
        MemoryItem::new("jobs", count, JOB_BYTES + (body_bytes + 2) * 5 / 4 + PAGE_BYTES.min(body_bytes))
    }

    fn bytes(&self) -> u64 {
        self.count * self.bytes_each
    }
}

/// Memory that does not grow with the number of clients.
pub fn fixed(has_log: bool) -> Vec<MemoryItem> {
    let mut memory_items = vec![
        MemoryItem::new("spare output buffers", SPARE_BUFFERS_MAX as u64, SPARE_BUFFER_BYTES_MAX as u64),
        MemoryItem::new(
            "receive buffers",
            u64::from(RECEIVE_BUFFERS) + u64::from(TAIL_BUFFERS_MAX),
            RECEIVE_BYTES_MAX as u64,
        ),
        MemoryItem::new("registered buffers", FIXED_BUFFERS as u64, FIXED_BUFFER_BYTES as u64),
        MemoryItem::new("body memory kept for reuse", 1, WARM_BODY_BYTES),
    ];
    if has_log {
        memory_items.push(MemoryItem::new(
            "backlog of the job log",
            1,
            GROWTH * wal::BACKLOG_BYTES_MAX as u64,
        ));
        memory_items.push(MemoryItem::new(
            "spare batches",
            wal::BATCHES_SPARE as u64,
            wal::BATCH_BYTES_KEPT as u64,
        ));
    }
    memory_items
}

/// The control client's share.
pub fn control() -> Vec<MemoryItem> {
    use crate::control::{BODY_BYTES_MAX, CONNECTIONS, JOBS_MAX};
    vec![
        MemoryItem::connections(CONNECTIONS + 2),
        MemoryItem::inboxes(CONNECTIONS),
        MemoryItem::outputs(CONNECTIONS, BODY_BYTES_MAX),
        MemoryItem::jobs(JOBS_MAX, BODY_BYTES_MAX),
    ]
}

/// Returns the sum, which comes on top of what the server uses at its start.
pub fn sum(memory_items: &[MemoryItem]) -> u64 {
    memory_items.iter().map(MemoryItem::bytes).sum()
}
