//! How the oldest segment leaves the WAL.
//!
//! ```text
//!   all records dead ──▶ retiring ──▶ durable ──▶ recycled or removed
//!                        │            the record, and the copies of its jobs, are on disk
//!                        └ a record, or the header of a later segment, declares that it is not needed
//! ```
//! On a full disk there may be no space for that record. Then the file of the segment is renamed and keeps its old
//! header, and recovery takes it for the declaration: it is a *marker*.

use super::SegmentNumber;
use super::record::Lsn;

/// Follows the oldest segment from its last live record to the change of its file.
pub struct Retirement {
    /// The oldest segment has no live records. It may go once everything before this position is durable.
    pub retiring: Option<Lsn>,
    /// The oldest segment that is needed, as the last record or header declares it.
    declared: SegmentNumber,
    /// Where that record or header ends.
    declared_end: Lsn,
    /// Whether a prepared segment may be a marker that recovery needs.
    pub has_marker: bool,
}

impl Retirement {
    /// For a WAL that continues at `end`, whose last header declares the segment `oldest`.
    pub const fn new(oldest: SegmentNumber, end: Lsn) -> Self {
        // A start keeps markers and does not report them.
        Self { retiring: None, declared: oldest, declared_end: end, has_marker: true }
    }

    /// A record or header that ends at `end` declares the oldest segment that is needed.
    pub fn declare(&mut self, oldest: SegmentNumber, end: Lsn) {
        if oldest > self.declared {
            (self.declared, self.declared_end) = (oldest, end);
        }
    }

    /// Begins to retire the oldest segment. `end` is the end of all records.
    pub fn start(&mut self, oldest: SegmentNumber, end: Lsn) {
        self.retiring = Some(if self.is_declared(oldest) { self.declared_end } else { end });
    }

    /// The file of the oldest segment was recycled.
    pub fn recycled(&mut self, segment: SegmentNumber) {
        self.has_marker |= !self.is_declared(segment);
        self.retiring = None;
    }

    /// More records are durable. Once one of them declares the oldest segment, markers are not needed.
    pub fn advance_durable(&mut self, oldest: SegmentNumber, durable: Lsn) {
        self.has_marker &= !self.is_oldest_durable(oldest, durable);
    }

    #[inline]
    pub const fn is_active(&self) -> bool {
        self.retiring.is_some()
    }

    /// Whether the file may go now.
    pub fn is_durable(&self, durable: Lsn) -> bool {
        // mutant replica-segment-goes-too-early: at <= durable => durable > Lsn(0)
        self.retiring.is_some_and(|at| at <= durable)
    }

    /// Whether a record or header declares that this segment is not needed.
    pub fn is_declared(&self, segment: SegmentNumber) -> bool {
        segment < self.declared
    }

    /// Whether a record or header on disk declares that this is the oldest segment that is needed.
    pub fn is_oldest_durable(&self, oldest: SegmentNumber, durable: Lsn) -> bool {
        oldest <= self.declared && self.declared_end <= durable
    }
}
