//! How far the job log is written and synced, and which replies may leave because of that.
//!
//! ```text
//! positions:  durable <= written <= end        tickets:  committed <= closed <= closed + 1 (the gathering batch)
//! ```

use super::record::Lsn;
use super::{Durability, SegmentNumber};
use crate::time::Time;

/// Segments that may wait for a sync under `-f MS`: each stays open until then. As many again may be in the sync in flight.
const UNSYNCED_SEGMENTS_MAX: usize = 2;

/// Positions, tickets, and the schedule of syncs.
///
/// A ticket is the number of a batch, counted from 1. A reply may leave once the batch of its ticket is committed:
/// written, and with `-f 0` synced.
pub struct CommitState {
    durability: Durability,
    /// The position behind the last record.
    end: Lsn,
    /// Everything before this position is written.
    written: Lsn,
    /// Everything before this position is on disk.
    durable: Lsn,
    /// Batches that were closed.
    closed: u64,
    /// Batches that are committed: the last ticket whose replies may leave.
    committed: u64,
    /// Segments that were written to since they were last synced, in order.
    unsynced: Vec<SegmentNumber>,
    /// The position that will be durable when the sync in flight ends, and when that began.
    syncing: Option<(Lsn, Time)>,
    /// When to sync under `-f MS`.
    sync_due: Option<Time>,
}

impl CommitState {
    /// Continues at the position `end`, which is on disk.
    pub const fn new(durability: Durability, end: Lsn) -> Self {
        Self {
            durability,
            end,
            written: end,
            durable: end,
            // What was recovered is batch 1, because ticket 0 is before every change.
            closed: 1,
            committed: 1,
            unsynced: Vec::new(),
            syncing: None,
            sync_due: None,
        }
    }

    /// Moves the end behind a record of this size.
    #[inline]
    pub fn record_appended(&mut self, bytes: usize) {
        self.end.0 += bytes as u64;
    }

    /// Gives the gathering batch, which was closed, its ticket.
    #[inline]
    pub fn batch_closed(&mut self) {
        self.closed += 1;
    }

    /// The oldest closed batch was written to this segment and ends at this position.
    pub fn batch_written(&mut self, segment: SegmentNumber, end: Lsn, now: Time) {
        // With `Always` the write itself was synced: see `DiskOperation::Write`.
        self.committed += 1;
        self.written = end;
        match self.durability {
            Durability::Always => {
                self.durable = end;
                return;
            }
            Durability::Within(span) => {
                self.sync_due.get_or_insert(now + span);
            }
            Durability::Never => {}
        }
        if self.unsynced.last() != Some(&segment) {
            self.unsynced.push(segment);
        }
    }

    /// Starts a sync, if none is in flight and a segment needs one. Returns the segments to sync.
    pub fn start_sync(&mut self, now: Time) -> Option<Vec<SegmentNumber>> {
        if self.syncing.is_some() || self.unsynced.is_empty() {
            return None;
        }
        self.sync_due = None;
        self.syncing = Some((self.written, now));
        Some(std::mem::take(&mut self.unsynced))
    }

    /// Ends the sync in flight, and returns when it began.
    ///
    /// # Panics
    /// If none is in flight.
    pub fn finish_sync(&mut self) -> Time {
        let begun;
        (self.durable, begun) = self.syncing.take().expect("a sync is in flight");
        begun
    }

    /// Drops a segment that was removed or recycled.
    pub fn forget_segment(&mut self, segment: SegmentNumber) {
        self.unsynced.retain(|&unsynced| unsynced != segment);
    }

    /// The position behind the last record.
    #[inline]
    pub const fn end(&self) -> Lsn {
        self.end
    }

    /// The position before which everything is on disk.
    #[inline]
    pub const fn durable(&self) -> Lsn {
        self.durable
    }

    /// The number of batches that were closed.
    #[inline]
    pub const fn closed(&self) -> u64 {
        self.closed
    }

    /// The last ticket whose replies may leave.
    #[inline]
    pub const fn committed(&self) -> u64 {
        self.committed
    }

    /// Whether a sync is in flight.
    pub const fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }

    /// Whether all records are on disk.
    pub fn is_all_durable(&self) -> bool {
        self.durable == self.end
    }

    /// Whether the records before this position are written and not on disk: a sync would help.
    pub fn needs_sync(&self, at: Lsn) -> bool {
        self.durable < at && at <= self.written
    }

    /// Whether the interval of `-f MS` has passed.
    pub fn is_sync_due(&self, now: Time) -> bool {
        self.sync_due.is_some_and(|due| due <= now)
    }

    /// When a sync is due, if one can start.
    pub fn next_sync(&self) -> Option<Time> {
        self.sync_due.filter(|_| self.syncing.is_none() && !self.unsynced.is_empty())
    }

    /// Whether as many segments wait for a sync as may. A sync uses the descriptors that wrote, so each of these
    /// segments stays open. Under `-F`, where the next sync may be hours away, the driver closes the oldest instead.
    pub fn has_many_unsynced(&self) -> bool {
        let is_within = matches!(self.durability, Durability::Within(_));
        is_within && self.unsynced.len() >= UNSYNCED_SEGMENTS_MAX
    }

    /// Whether a sync has to start before a batch is written to this segment.
    pub fn must_sync_before(&self, segment: SegmentNumber) -> bool {
        self.has_many_unsynced() && self.unsynced.last() != Some(&segment)
    }

    /// Checks the invariants, given how many closed batches are not written.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self, unwritten_batches: u64) {
        assert!(self.durable <= self.written && self.written <= self.end);
        assert_eq!(self.closed - self.committed, unwritten_batches, "every batch has its ticket");
    }
}
