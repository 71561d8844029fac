//! What `stats` and `/metrics` report about the WAL.

use crate::time::{Span, Time};

/// A snapshot for `stats`.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs)]
pub struct WalStats {
    /// The number of the oldest segment.
    pub oldest: u64,
    /// The number of the active segment.
    pub current: u64,
    pub records_moved: u64,
    pub records_written: u64,
    pub segments: u64,
    pub segment_bytes: u64,
    /// Bytes that the records of all jobs and pauses take.
    pub live_bytes: u64,
    /// Bytes that all segments take, with the prepared ones. In a database, which has no files, those of all records.
    pub disk_bytes: u64,
    pub syncs: u64,
    /// Records per sync, of all records that were synced.
    pub records_per_sync: u64,
    pub last_sync: Span,
}

/// Counters since the start. No decision depends on them.
#[derive(Default)]
pub struct WalCounters {
    pub records: u64,
    /// Records of jobs that compaction has appended.
    pub compacted: u64,
    pub syncs: u64,
    /// Of all records, how many there were at the end of the last sync.
    pub synced_records: u64,
    pub last_sync: Span,
}

/// Bounds of the histograms of times until a change is durable: from 50 us to 10 s, in nanoseconds.
pub const SYNC_BOUNDS: [u64; 16] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

impl WalCounters {
    /// Counts a sync, or a write that is synced.
    pub fn count_sync(&mut self, begun: Time, ended: Time) {
        self.syncs += 1;
        self.synced_records = self.records;
        self.last_sync = ended.since(begun);
    }
}
