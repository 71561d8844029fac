//! The record that closes the job log when the server stops or is idle. With it, recovery distinguishes damage to the
//! records before it from a torn write. Its position is kept outside the log too, so that the last segments cannot be lost unnoticed.

use super::record::{Lsn, Record};
use super::segment::{Header, SegmentNumber};
use super::{Destination, Wal};
use crate::queue::Engine;
use crate::time::{Span, Time};

/// How long nothing is written before the log is closed: a client that sends one put at a time, unpipelined, does not
/// pay for it.
const IDLE: Span = Span::from_secs(1);

/// When the log is closed, and where it was.
pub struct CloseSchedule {
    /// When to close the log if nothing else happens.
    due: Option<Time>,
    /// Where the log was closed last: behind the record and its padding.
    closed_at: Option<Lsn>,
    /// Behind the last closing record, or the beginning of the log.
    ends: EndMark,
    /// The mark that is kept, or for which there was no space.
    marked: Option<EndMark>,
}

impl CloseSchedule {
    /// Continues a log that was closed at this position, or was not. `ends` and `marked` are what recovery has found.
    pub const fn new(closed_at: Option<Lsn>, ends: EndMark, marked: Option<EndMark>) -> Self {
        Self { due: None, closed_at, ends, marked }
    }

    /// Restarts the wait: the log is not idle.
    pub fn postpone(&mut self) {
        self.due = None;
    }

    /// Notes that a mark is kept, or that there was no space for it: the next closing record has it written again.
    pub fn note_marked(&mut self, mark: EndMark) {
        self.marked = Some(mark);
    }
}

impl Wal {
    /// Closes the log if everything is on disk and nothing has been written for a second, or the server stops. It is
    /// closed once: the next record opens it again.
    pub fn close_when_idle(&mut self, engine: &Engine, now: Time) {
        if self.failure.is_some() || !self.can_close() {
            return;
        }
        let due = *self.closing.due.get_or_insert(now + IDLE);
        if self.is_stopping || due <= now {
            self.append_change(&Record::Closed, engine);
            let Header { log_id, number: segment, .. } = *self.appender.active();
            self.closing.ends = EndMark { log_id, segment, end: self.commits.end() };
            // The batch is closed here, so that its padding belongs to the closed log.
            self.close_batch();
            self.closing.closed_at = Some(self.commits.end());
        }
    }

    /// Whether a closing record would be true and new: everything before it is on disk, and the log is not closed yet. On
    /// a full disk it must not take the space that a deletion needs.
    pub(super) fn can_close(&self) -> bool {
        let is_quiet = self.appender.is_idle() && !self.segments.has_missing();
        if !is_quiet || !self.commits.is_all_durable() || self.closing.closed_at == Some(self.commits.end()) {
            return false;
        }
        let fits = Record::Closed.bytes() as u64 <= self.bytes_left();
        fits || !self.segments.prepared.is_empty() && !self.space.is_full()
    }

    /// The mark to keep: that of the last closing record once it is on disk, or that the active segment has begun.
    pub(super) fn wanted_mark(&self) -> Option<EndMark> {
        if self.config.destination != Destination::Directory {
            return None;
        }
        let (durable, marked) = (self.commits.durable(), self.closing.marked);
        let Header { log_id, number: segment, first, .. } = *self.appender.active();
        let is_begun = durable > first && marked.is_none_or(|marked| marked.segment < segment);
        let begun = is_begun.then_some(EndMark { log_id, segment, end: durable });
        let ends = self.closing.ends;
        let is_due = ends.end <= durable && marked.is_none_or(|marked| marked.end < ends.end);
        if is_due { Some(ends) } else { begun }
    }

    /// When to close the log if nothing else happens.
    pub(super) fn next_close(&self) -> Option<Time> {
        let due = if self.is_stopping { Some(Time::ZERO) } else { self.closing.due };
        due.filter(|_| self.can_close())
    }
}

/// The size of an encoded mark.
pub const MARK_BYTES: usize = 44;

const MAGIC: [u8; 16] = *b"beanring end\r\n\x1a\0";

/// The mark of the log's end, which is kept outside the log. It says that the log was on disk up to a position: recovery notices with
/// it that the last segments of a closed log are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndMark {
    /// See [`Header::log_id`](super::segment::Header::log_id).
    pub log_id: u64,
    /// The segment that the position is in.
    pub segment: SegmentNumber,
    /// Everything before it was on disk.
    pub end: Lsn,
}

impl EndMark {
    /// Returns the bytes of the mark. The last four are the CRC-32C of the others.
    pub fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..16].copy_from_slice(&MAGIC);
        bytes[16..24].copy_from_slice(&self.log_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.segment.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.end.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a mark. Returns none if it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<MARK_BYTES>()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let is_sound = bytes[..16] == MAGIC && crc32c::crc32c(&bytes[..40]).to_le_bytes() == bytes[40..];
        let mark = Self { log_id: word(16), segment: SegmentNumber(word(24)), end: Lsn(word(32)) };
        is_sound.then_some(mark)
    }
}
