//! Segments that records can continue in: which are prepared, which are missing, and which number comes next.

use std::collections::VecDeque;

use super::SegmentNumber;

/// Allocates segments ahead of the records that will need them.
pub struct SegmentAllocator {
    /// Segments that are ready to be written to, in the order of use.
    pub prepared: VecDeque<SegmentNumber>,
    /// Segments that records gather or wait for and that do not exist yet. They are created first.
    pub missing: VecDeque<SegmentNumber>,
    /// The largest number given to a segment.
    pub last_number: SegmentNumber,
    /// Segments up to this one may have another size than `-s` says.
    pub other_size_up_to: SegmentNumber,
    /// The largest record of a job so far, in bytes.
    pub largest_record: u64,
    /// The record of the job that last found no space, in bytes. It may have been put since.
    pub requested_bytes: u64,
    /// Whether an [`Arrangement`](super::Arrangement) is in flight.
    pub is_arranging: bool,
}

impl SegmentAllocator {
    /// Returns the segment to continue in. If none is prepared, records gather for one that has to be created.
    pub fn take_next(&mut self) -> SegmentNumber {
        self.prepared.pop_front().unwrap_or_else(|| {
            self.last_number = self.last_number.next();
            self.missing.push_back(self.last_number);
            self.last_number
        })
    }

    /// Notes the size of a job's record.
    #[inline]
    pub fn note_record(&mut self, bytes: usize) {
        self.largest_record = self.largest_record.max(bytes as u64);
    }

    /// Adds a segment that was created or recycled.
    pub fn add(&mut self, segment: SegmentNumber) {
        if self.missing.front() == Some(&segment) {
            self.missing.pop_front();
        } else {
            self.prepared.push_back(segment);
            self.last_number = self.last_number.max(segment);
        }
    }

    /// The number of the segment that is created next.
    pub fn next_number(&self) -> SegmentNumber {
        self.missing.front().copied().unwrap_or_else(|| self.last_number.next())
    }

    pub fn has_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    pub fn is_missing(&self, segment: SegmentNumber) -> bool {
        self.missing.contains(&segment)
    }

    /// Whether a segment may have another size than new ones, so that it cannot be recycled.
    pub fn may_have_other_size(&self, segment: SegmentNumber) -> bool {
        segment <= self.other_size_up_to
    }
}
