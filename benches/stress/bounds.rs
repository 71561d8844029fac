//! What must hold, and the memory that a server may take: what the limits of the server let its clients claim.

use std::time::Duration;

use beanring::limits::{
    FIXED_BUFFER_BYTES, FIXED_BUFFERS, INBOX_BYTES_PAUSE, OUTPUT_BYTES_PAUSE, RECEIVE_BUFFERS,
    RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX, SPARE_BUFFER_BYTES_MAX, SPARE_BUFFERS_MAX, TAIL_BUFFERS_MAX,
};
use beanring::wal;
use serde::Serialize;

/// The control client waits at most so long, 99 times of 100.
pub const LATENCY_P99: Duration = Duration::from_millis(100);

/// What the server may use of a core when nobody wants anything.
pub const IDLE_CPU: f64 = 0.02;

/// A connection without anything to say: session, client, the driver's record, and under tokio-uring its task and a
/// buffer.
const CONNECTION_BYTES: u64 = 4 * 1024;

/// A buffer that grows doubles.
const GROWTH: u64 = 2;

/// Free memory of bodies that is kept for reuse, beside an eighth of what is in use.
const WARM_BODY_BYTES: u64 = 16 * 1024 * 1024;

/// A job beside its body: itself, a side record, its place in the index.
const JOB_BYTES: u64 = 256;

const PAGE_BYTES: u64 = 4096;

/// A part of what a server may take.
#[derive(Serialize, Clone)]
pub struct Term {
    pub what: String,
    pub count: u64,
    pub bytes_each: u64,
}

impl Term {
    /// So many of something.
    pub fn new(what: &str, count: u64, bytes_each: u64) -> Term {
        Term { what: what.to_owned(), count, bytes_each }
    }

    /// Connections with nothing in them.
    pub fn connections(count: u64) -> Term {
        Term::new("connections", count, CONNECTION_BYTES)
    }

    /// Input that is kept for connections that cannot be served: to the mark and the receives beyond it.
    pub fn inboxes(count: u64) -> Term {
        let beyond = usize::from(RECEIVE_BUFFERS_EACH) * RECEIVE_BYTES_MAX;
        Term::new("inboxes", count, GROWTH * (INBOX_BYTES_PAUSE + beyond) as u64)
    }

    /// Replies that are not read: to the mark and one reply beyond it.
    pub fn outputs(count: u64, reply_bytes: u64) -> Term {
        Term::new("outputs", count, GROWTH * (OUTPUT_BYTES_PAUSE as u64 + reply_bytes))
    }

    /// Bodies on their way, of which so much has come.
    pub fn bodies(count: u64, received_bytes: u64) -> Term {
        let pages = received_bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        Term::new("bodies on their way", count, pages)
    }

    /// Jobs with bodies up to this size: a slot wastes an eighth at most, or a part of a page; another eighth is
    /// kept for reuse.
    pub fn jobs(count: u64, body_bytes: u64) -> Term {
        Term::new("jobs", count, JOB_BYTES + (body_bytes + 2) * 5 / 4 + PAGE_BYTES.min(body_bytes))
    }

    fn bytes(&self) -> u64 {
        self.count * self.bytes_each
    }
}

/// What a server has that does not grow with its clients.
pub fn fixed(has_log: bool) -> Vec<Term> {
    let mut terms = vec![
        Term::new("spare output buffers", SPARE_BUFFERS_MAX as u64, SPARE_BUFFER_BYTES_MAX as u64),
        Term::new(
            "receive buffers",
            u64::from(RECEIVE_BUFFERS) + u64::from(TAIL_BUFFERS_MAX),
            RECEIVE_BYTES_MAX as u64,
        ),
        Term::new("registered buffers", FIXED_BUFFERS as u64, FIXED_BUFFER_BYTES as u64),
        Term::new("memory of bodies kept for reuse", 1, WARM_BODY_BYTES),
    ];
    if has_log {
        terms.push(Term::new("what waits for the log", 1, GROWTH * wal::BACKLOG_BYTES_MAX as u64));
        terms.push(Term::new("spare batches", wal::BATCHES_SPARE as u64, wal::BATCH_BYTES_KEPT as u64));
    }
    terms
}

/// The control client's part.
pub fn control() -> Vec<Term> {
    use crate::control::{BODY_BYTES_MAX, CONNECTIONS, JOBS_MAX};
    vec![
        Term::connections(CONNECTIONS + 2),
        Term::inboxes(CONNECTIONS),
        Term::outputs(CONNECTIONS, BODY_BYTES_MAX),
        Term::jobs(JOBS_MAX, BODY_BYTES_MAX),
    ]
}

/// All of it, beside what the server took before anybody came.
pub fn sum(terms: &[Term]) -> u64 {
    terms.iter().map(Term::bytes).sum()
}
