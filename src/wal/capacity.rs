//! Whether there is space for what comes, and how much of the disk a log may take.

use super::Durability;
use super::batch::{BLOCK_BYTES, Batch};
use super::record::{FRAME_BYTES, job_ids, job_record_bytes};
use super::segment::HEADER_BYTES;
use super::writer::{Log, Waiting, Writing};
use crate::ids::JobId;
use crate::limits::{LOG_MOVE_BYTES, LOG_ROOM_BYTES, LOG_SEGMENTS_MIN, LOG_SPACE_RETRY};
use crate::time::Time;

/// Segments that are ready to be written to: one to go on in, and one to move old jobs into when the disk
/// is full.
const PREPARED: usize = 2;

/// Whether a job can be logged now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is space for it.
    Now,
    /// Space for it is being made. Until then the log is [behind](Log::is_behind).
    Later,
    /// Not now, or not at all.
    Never,
}

impl Log {
    /// Whether there is room for a job of this size with its CR LF.
    pub fn room_for(&mut self, tube_bytes: usize, body_bytes: usize) -> Room {
        let bytes = job_record_bytes(tube_bytes, body_bytes) as u64;
        if HEADER_BYTES + bytes > self.config.segment_bytes || self.is_stalled {
            Room::Never
        } else if self.has_room_for_job(bytes) {
            Room::Now
        } else {
            self.asked = bytes;
            if self.is_full() { Room::Never } else { Room::Later }
        }
    }

    /// Whether what is left behind a job of this size is enough for the changes and the moves that make a segment
    /// free again: one segment to move the oldest into, and before that garbage for half of one.
    fn has_room_for_job(&self, bytes: u64) -> bool {
        let left = self.room().checked_sub(bytes);
        let fresh = self.config.segment_bytes - HEADER_BYTES - bytes;
        let (prepared, room) = match left {
            Some(left) => (self.prepared.len(), left),
            None => (self.prepared.len().saturating_sub(1), fresh),
        };
        let is_ample = room >= self.config.segment_bytes / 4 * 3 - HEADER_BYTES;
        let has_segment = left.is_some() || !self.prepared.is_empty();
        prepared >= self.reserve() || has_segment && is_ample && prepared + 1 >= self.reserve()
    }

    /// How many segments should be ready: what moving all jobs may lose comes on top.
    pub(super) fn reserve(&self) -> usize {
        let space = self.config.segment_bytes - HEADER_BYTES;
        // What the largest record does not fit into, and padding. Two records of half a segment may come to be in
        // one each, but no more than that.
        let lost = (self.largest + self.padding_of_moves()).min(space / 2);
        PREPARED + (self.ledger.segments() as u64 * lost / (space - lost)) as usize
    }

    /// How much padding there may be behind the jobs of a full segment that are moved.
    pub(super) fn padding_of_moves(&self) -> u64 {
        match self.config.durability {
            Durability::Always => {
                (self.config.segment_bytes / LOG_MOVE_BYTES + 1) * (BLOCK_BYTES + FRAME_BYTES) as u64
            }
            Durability::Within(_) | Durability::Never => 0,
        }
    }

    /// Whether something that makes room should come first.
    pub(super) fn is_short_of_room(&self) -> bool {
        let reserve = LOG_ROOM_BYTES.min(self.config.segment_bytes / 4);
        let is_low = self.prepared.len() < PREPARED && (self.prepared.is_empty() || self.room() < reserve);
        let is_awaited = self.asked > 0 && !self.has_room_for_job(self.asked);
        let is_being_made = !self.is_full() || self.retiring.is_some() || self.is_worth_it();
        !self.missing.is_empty() || is_low && is_being_made || is_awaited && !self.is_full()
    }

    /// A write has found no space. It is tried again: soon, if a file can be spared for it.
    pub(super) fn stall(&mut self, batch: Batch, now: Time) {
        let Writing { segment, offset, end, .. } = self.writing.take().expect("a write was under way");
        self.full.push_front(Waiting { segment, offset, batch, end });
        let waiting = self.full.iter().map(|waiting| (waiting.offset, &waiting.batch));
        for (offset, batch) in waiting.chain([(self.gathering_at, &self.gathering)]) {
            let header_bytes = if offset == 0 { HEADER_BYTES as usize } else { 0 };
            self.pending.extend(job_ids(batch.bytes().get(header_bytes..).unwrap_or_default()));
        }
        (self.is_stalled, self.writes_take_space) = (true, true);
        self.retry_at = Some(now + LOG_SPACE_RETRY);
        self.short_until = self.retry_at;
    }

    /// Whether a write has found no space and is to be tried again.
    pub const fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Whether a change of the job waits for space on the disk.
    pub fn is_pending(&self, job: JobId) -> bool {
        self.pending.contains(&job)
    }

    /// Whether a write that finds no space is tried again. A server that stops does not wait for others to make some.
    pub(super) fn can_stall(&self) -> bool {
        !self.stopping || self.has_spare()
    }

    /// Whether a segment that is ready can be removed for its space. One remains to move old jobs into.
    pub(super) fn has_spare(&self) -> bool {
        self.prepared.len() > 1 && !self.has_telling_name
    }

    /// What is left of the active segment.
    pub(super) fn room(&self) -> u64 {
        self.config.segment_bytes.saturating_sub(self.active.offset(self.end))
    }

    /// Whether there was no space on the disk when it was last looked for.
    pub(super) const fn is_full(&self) -> bool {
        self.short_until.is_some() || self.is_stalled
    }

    /// Whether more segments should be ready.
    pub(super) fn wants_prepared(&self) -> bool {
        self.prepared.len() < self.prepared_wanted()
    }

    /// Whether one that is ready is too many.
    pub(super) fn has_surplus(&self) -> bool {
        self.prepared.len() > self.prepared_wanted() && self.segments() > self.segments_max()
    }

    /// A job that takes much of a segment wants one more.
    fn prepared_wanted(&self) -> usize {
        let is_large = self.asked > self.config.segment_bytes / 8;
        self.reserve() + usize::from(is_large)
    }

    /// Whether moving jobs gains something. Counted by what is of no use: ends of segments that no job fits into
    /// remain. Where there is space, a sixteenth of the log is not worth it.
    pub(super) fn is_worth_it(&self) -> bool {
        let bytes = self.config.segment_bytes;
        let little = if self.is_full() { 0 } else { self.ledger.segments() as u64 * bytes / 16 };
        self.ledger.garbage() > bytes / 2 + little
    }

    /// How many segments there are, with those that are only prepared.
    pub(super) fn segments(&self) -> u64 {
        (self.ledger.segments() + self.prepared.len()) as u64
    }

    /// How many there may be, as long as there is something to be gained.
    pub(super) fn segments_max(&self) -> u64 {
        let wanted = 2 * self.ledger.live_bytes() / self.config.segment_bytes + 2;
        wanted.max(LOG_SEGMENTS_MIN) + (self.reserve() - PREPARED) as u64
    }

    pub(super) fn may_grow(&self) -> bool {
        self.segments() < self.segments_max() || !self.is_worth_it()
    }

    /// What can be written before commands have to wait for space, if the log does not become larger than it may.
    pub(super) fn room_to_limit(&self) -> u64 {
        let segments =
            (self.segments_max() + 1).saturating_sub((self.ledger.segments() + self.reserve()) as u64);
        let bytes = self.config.segment_bytes;
        (segments * bytes + self.room()).saturating_sub(LOG_ROOM_BYTES.min(bytes / 4))
    }
}
