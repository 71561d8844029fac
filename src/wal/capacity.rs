//! Capacity: how many segments the WAL may take, and whether there is space for the next job.
//!
//! The rule of size: four segments, or twice the live bytes and two segments, whichever is more; and further segments as
//! long as compaction would gain little. docs/JOB-LOG.md explains it to operators.

use super::batch::BLOCK_BYTES;
use super::compaction::STEP_BYTES;
use super::record::FRAME_BYTES;
use super::segment::HEADER_BYTES;

/// Segments kept ready: one to continue in, and one to compact into when the disk is full.
pub const PREPARED_MIN: usize = 2;

/// Segments that a WAL may always have: the oldest, the active one, and those kept ready.
const SEGMENTS_MIN: u64 = 2 + PREPARED_MIN as u64;

/// With less left in the last segment that is ready, commands wait until there is another: more than the changes of one
/// event-loop iteration take.
const HEADROOM_BYTES: u64 = 256 * 1024;

/// Whether there is space for a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutSpace {
    /// There is space.
    Available,
    /// Space is being made. Until then the WAL [has commands wait](super::Wal::must_wait).
    Pending,
    /// There is no space, and none is being made.
    Unavailable,
    /// No segment is large enough.
    TooLarge,
}

/// The numbers that all capacity decisions follow from, at one moment. It only computes.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Whether each batch is padded to a block.
    pub pads: bool,
    pub segment_bytes: u64,
    /// Segments with records.
    pub used: u64,
    /// Segments that are ready to be written to.
    pub prepared: usize,
    /// Whether records wait for a segment that does not exist yet.
    pub has_missing: bool,
    /// Bytes left in the active segment.
    pub left: u64,
    pub live_bytes: u64,
    /// What compaction of everything would gain, in bytes.
    pub garbage_bytes: u64,
    pub largest_record: u64,
    /// The record that last found no space, in bytes; 0 for none.
    pub requested_bytes: u64,
    /// Whether the disk is full.
    pub is_full: bool,
}

impl Capacity {
    /// Whether a segment could hold a record of this size.
    pub const fn fits_segment(&self, bytes: u64) -> bool {
        HEADER_BYTES + bytes <= self.segment_bytes
    }

    /// Whether enough is left behind a job of this size for the changes and the compaction that free a segment again:
    /// one segment to compact the oldest into, and before that garbage for half of one.
    pub fn has_space_for_job(&self, bytes: u64) -> bool {
        let (prepared, left) = match self.left.checked_sub(bytes) {
            Some(left) => (self.prepared, left),
            None => (self.prepared.saturating_sub(1), self.segment_bytes - HEADER_BYTES - bytes),
        };
        let has_segment = bytes <= self.left || self.prepared > 0;
        let is_ample = left >= self.segment_bytes / 4 * 3 - HEADER_BYTES;
        let min = self.prepared_min();
        prepared >= min || has_segment && is_ample && prepared + 1 >= min
    }

    /// How many segments should be ready. What compaction of all jobs may lose comes on top of [`PREPARED_MIN`].
    ///
    /// It loses most where live records fill the oldest segments. Segments that they do not fill give back what they lost before,
    /// so they do not count: else a log of large jobs, one in each segment, would keep a free segment for each of them.
    pub fn prepared_min(&self) -> usize {
        let record_bytes = self.segment_bytes - HEADER_BYTES;
        // Lost per segment: an end that the largest record does not fit into, and padding. Two records of half a
        // segment may need one segment each, but no more than that.
        let lost = (self.largest_record + self.compaction_padding()).min(record_bytes / 2);
        let full = self.live_bytes.div_ceil(record_bytes).min(self.used);
        PREPARED_MIN + (full * lost / (record_bytes - lost)) as usize
    }

    /// The most padding that compaction of one full segment may write: one record of padding per step.
    pub const fn compaction_padding(&self) -> u64 {
        if self.pads { (self.segment_bytes / STEP_BYTES + 1) * (BLOCK_BYTES + FRAME_BYTES) as u64 } else { 0 }
    }

    /// Whether commands have to wait until there is space.
    pub fn is_short(&self, is_retiring: bool) -> bool {
        let is_low = self.prepared < PREPARED_MIN && (self.prepared == 0 || self.left < self.headroom());
        let is_space_coming = !self.is_full || is_retiring || self.is_worth_compacting();
        let is_requested = self.requested_bytes > 0 && !self.has_space_for_job(self.requested_bytes);
        self.has_missing || is_low && is_space_coming || is_requested && !self.is_full
    }

    fn headroom(&self) -> u64 {
        HEADROOM_BYTES.min(self.segment_bytes / 4)
    }

    /// Whether more segments should be ready.
    pub fn wants_prepared(&self) -> bool {
        self.prepared < self.prepared_wanted()
    }

    /// Whether a prepared segment can be removed because the WAL is larger than it may be.
    pub fn has_excess_prepared(&self) -> bool {
        self.prepared > self.prepared_wanted() && self.segments() > self.segments_max()
    }

    /// A job that takes much of a segment needs one more.
    fn prepared_wanted(&self) -> usize {
        self.prepared_min() + (self.requested_bytes > self.segment_bytes / 8) as usize
    }

    /// Whether compaction gains enough. Ends of segments that no job fits into are not counted: they would be lost again.
    /// A sixteenth of the WAL is too little, unless the disk is full.
    pub const fn is_worth_compacting(&self) -> bool {
        let little = if self.is_full { 0 } else { self.used * self.segment_bytes / 16 };
        self.garbage_bytes > self.segment_bytes / 2 + little
    }

    /// Segments that exist, with the prepared ones.
    pub const fn segments(&self) -> u64 {
        self.used + self.prepared as u64
    }

    /// How many segments there may be, as long as compaction gains something.
    pub fn segments_max(&self) -> u64 {
        let wanted = 2 * self.live_bytes / self.segment_bytes + 2;
        wanted.max(SEGMENTS_MIN) + (self.prepared_min() - PREPARED_MIN) as u64
    }

    /// Whether a segment may be added.
    pub fn may_grow(&self) -> bool {
        self.segments() < self.segments_max() || !self.is_worth_compacting()
    }

    /// Bytes that can be written before commands have to wait, if the WAL does not grow beyond its limit.
    pub fn bytes_to_limit(&self) -> u64 {
        let segments = (self.segments_max() + 1).saturating_sub(self.used + self.prepared_min() as u64);
        (segments * self.segment_bytes + self.left).saturating_sub(self.headroom())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty jobs of nearly half a segment. Two fit into a segment, but padding between them leaves space for one.
    fn large_jobs(used: u64, prepared: usize) -> Capacity {
        Capacity {
            pads: true,
            segment_bytes: 65_536,
            used,
            prepared,
            has_missing: false,
            left: 8192,
            live_bytes: 20 * 30_104,
            garbage_bytes: 0,
            largest_record: 30_104,
            requested_bytes: 0,
            is_full: true,
        }
    }

    #[test]
    fn segments_that_jobs_do_not_fill_need_fewer_free_ones() {
        assert_eq!(
            large_jobs(10, 0).prepared_min(),
            12,
            "compaction of pairs may put each job into its own segment"
        );
        for used in [16, 20] {
            assert_eq!(large_jobs(used, 0).prepared_min(), 12, "it cannot lose that space twice");
        }
        assert!(!large_jobs(16, 5).has_space_for_job(30_104));
        assert!(large_jobs(16, 16).has_space_for_job(30_104), "a disk of 32 segments, half of them free");
    }
}
