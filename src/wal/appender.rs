//! Batches of records on their way to the disk: one gathers records, closed ones wait in a queue, and the first of these
//! are being written: one, or several where the destination is across a network. A diagram is in docs/internals/LOG.md.

use std::collections::VecDeque;

use super::batch::{BLOCK_BYTES, Batch};
use super::record::{Lsn, Record, Stamp, first_position, job_ids};
use super::segment::{HEADER_BYTES, Header};
use super::{Destination, DiskOperation, SegmentNumber, WalConfig};
use crate::time::Time;
use crate::values::ids::JobId;

/// Empty batches that are kept for later records, unless their memory is larger than [`BATCH_BYTES_KEPT`]. Each further
/// write that may be in flight adds one.
pub const BATCHES_SPARE: usize = 2;

/// The largest memory of a batch that is kept.
pub const BATCH_BYTES_KEPT: usize = 4 * 1024 * 1024;

/// The size at which a batch for a network is closed, in bytes. A store that has a limit for one message then needs few
/// messages for a write. Only a larger record makes a larger batch.
pub const NETWORK_BATCH_BYTES: u64 = 512 * 1024;

/// A batch of this size is written beside any others in flight. From about here on, a write costs by its bytes: waiting
/// for more of them saves little.
const AMPLE_BYTES: usize = 64 * 1024;

/// Appends records to the active segment.
///
/// `Wal` asks for a write with [`start_write`](Self::start_write). It reports the end with
/// [`finish_write`](Self::finish_write), or with [`return_write`](Self::return_write) if the destination had no space.
pub struct Appender {
    /// How many writes may be in flight.
    writes_max: usize,
    segment_bytes: u64,
    /// See [`NETWORK_BATCH_BYTES`]. In a directory only the segment limits a batch.
    batch_bytes_max: u64,
    /// The header of the active segment: the one that records gather for.
    active: Header,
    /// See [`Header::seed`].
    seed: u32,
    gathering: Batch,
    /// Where in the file of the active segment the gathering batch begins.
    offset: u64,
    /// The position of the first record of the gathering batch.
    first: Lsn,
    /// Where in the file of the active segment the gathering batch has to end.
    limit: u64,
    /// Bytes of the gathering batch that compaction appended.
    compacted_bytes: usize,
    /// Whether the gathering batch has records that compaction did not append.
    has_changes: bool,
    /// Closed batches that are not written, in order: those that [came back](Self::return_write), those in flight, and
    /// those that wait.
    queue: VecDeque<ClosedBatch>,
    /// Batches that came back from their writes while later ones are still in flight.
    returned: usize,
    in_flight: usize,
    /// Empty batches, kept for their memory.
    spare: Vec<Batch>,
}

/// A closed batch that is not written yet.
pub struct ClosedBatch {
    pub segment: SegmentNumber,
    /// The position behind its last record.
    pub end: Lsn,
    /// When its write began.
    pub begun: Time,
    /// The position of its first record.
    first: Lsn,
    offset: u64,
    /// Empty while the driver has its bytes.
    batch: Batch,
    bytes: usize,
    memory_bytes: usize,
}

impl ClosedBatch {
    /// Whether these are its bytes.
    fn has_bytes(&self, batch: &Batch) -> bool {
        let first = first_position(records_of(batch, self.offset));
        batch.len() == self.bytes && first.is_none_or(|first| first == self.first)
    }
}

/// Returns the records of a batch at this offset in its segment.
fn records_of(batch: &Batch, offset: u64) -> &[u8] {
    let header_bytes = if offset == 0 { HEADER_BYTES as usize } else { 0 };
    batch.bytes().get(header_bytes..).unwrap_or_default()
}

impl Appender {
    /// Continues in the segment of this header, at the position `end`.
    pub fn new(config: &WalConfig, active: Header, end: Lsn) -> Self {
        let (writes_max, batch_bytes_max) = match config.destination {
            Destination::Directory => (1, u64::MAX),
            Destination::Network { writes_in_flight_max } => (writes_in_flight_max, NETWORK_BATCH_BYTES),
        };
        let mut appender = Self {
            writes_max,
            segment_bytes: config.segment_bytes,
            batch_bytes_max,
            active,
            seed: active.seed(),
            gathering: Batch::default(),
            offset: active.offset(end),
            first: end,
            limit: 0,
            compacted_bytes: 0,
            has_changes: false,
            queue: VecDeque::new(),
            returned: 0,
            in_flight: 0,
            spare: Vec::new(),
        };
        appender.limit_batch();
        appender
    }

    /// Makes a new segment the active one and appends its header.
    ///
    /// # Panics
    /// If the batch of the segment before it is not closed.
    pub fn begin_segment(&mut self, header: Header) {
        assert!(self.gathering.is_empty(), "a batch belongs to one segment");
        (self.active, self.seed, self.offset) = (header, header.seed(), 0);
        self.limit_batch();
        header.encode(&mut self.gathering);
    }

    /// Appends a record at the position `at`.
    #[inline]
    pub fn append(&mut self, record: &Record<'_>, at: Lsn, durable: Lsn) {
        record.encode(&Stamp { seed: self.seed, at, durable }, &mut self.gathering);
    }

    /// Notes that the gathering batch has records that compaction did not append.
    #[inline]
    pub fn note_changes(&mut self) {
        self.has_changes = true;
    }

    /// Notes that compaction has appended records of this size to the gathering batch.
    pub fn note_compacted(&mut self, bytes: usize) {
        self.compacted_bytes += bytes;
    }

    /// Fills the gathering batch with zeros up to a whole block.
    pub fn pad_to_block(&mut self) {
        self.gathering.pad_to(self.gathering.len().next_multiple_of(BLOCK_BYTES));
    }

    /// Moves the gathering batch, whose records end at `end`, to the queue.
    pub fn close_batch(&mut self, end: Lsn) {
        (self.compacted_bytes, self.has_changes) = (0, false);
        let batch = std::mem::replace(&mut self.gathering, self.spare.pop().unwrap_or_default());
        let (segment, offset, begun) = (self.active.number, self.offset, Time::ZERO);
        let (bytes, memory_bytes) = (batch.len(), batch.memory_bytes());
        let first = std::mem::replace(&mut self.first, end);
        self.offset += bytes as u64;
        self.limit_batch();
        self.queue.push_back(ClosedBatch { segment, end, begun, first, offset, batch, bytes, memory_bytes });
    }

    /// Determines where the gathering batch has to end.
    fn limit_batch(&mut self) {
        self.limit = self.segment_bytes.min(self.offset.saturating_add(self.batch_bytes_max));
    }

    /// Begins to write the first batch that waits, if one does.
    ///
    /// # Panics
    /// If no write [can start](Self::can_start_write).
    pub fn start_write(&mut self, sync: bool, now: Time) -> Option<DiskOperation> {
        assert!(self.can_start_write(), "the writes in flight are limited");
        let closed = self.queue.get_mut(self.in_flight)?;
        let (segment, offset, first) = (closed.segment, closed.offset, closed.first);
        closed.begun = now;
        self.in_flight += 1;
        Some(DiskOperation::Write { segment, offset, first, batch: std::mem::take(&mut closed.batch), sync })
    }

    /// Ends the write in flight that began first. It has succeeded.
    ///
    /// # Panics
    /// If the batch is not the one of that write, or if a write before it found no space.
    pub fn finish_write(&mut self, batch: Batch) -> ClosedBatch {
        assert_eq!(self.returned, 0, "a write fails if one before it has found no space");
        self.end_write(&batch);
        self.recycle(batch);
        self.queue.pop_front().expect("a write is in flight")
    }

    /// Takes the batch back from the write in flight that began first. It has found no space. Returns whether no write is in
    /// flight any more: until then none can start, so that batches are written in their order.
    ///
    /// # Panics
    /// If the batch is not the one of that write.
    pub fn return_write(&mut self, batch: Batch) -> bool {
        self.end_write(&batch);
        self.queue[self.returned].batch = batch;
        self.returned = if self.in_flight == 0 { 0 } else { self.returned + 1 };
        self.in_flight == 0
    }

    /// Counts the first write in flight as ended.
    fn end_write(&mut self, batch: &Batch) {
        let is_only = self.in_flight == 1;
        assert!(is_only || self.queue[self.returned].has_bytes(batch), "writes end in their order");
        self.in_flight = self.in_flight.checked_sub(1).expect("a write is in flight");
    }

    /// Keeps the memory of a batch for a later one, within limits.
    fn recycle(&mut self, mut batch: Batch) {
        if self.spare.len() + 1 < BATCHES_SPARE + self.writes_max && batch.capacity() <= BATCH_BYTES_KEPT {
            batch.clear();
            self.spare.push(batch);
        }
    }

    /// The header of the active segment.
    #[inline]
    pub const fn active(&self) -> &Header {
        &self.active
    }

    /// Bytes of the gathering batch that compaction appended.
    pub const fn compacted_bytes(&self) -> usize {
        self.compacted_bytes
    }

    /// Whether the gathering batch has records that compaction did not append.
    pub const fn has_changes(&self) -> bool {
        self.has_changes
    }

    /// Bytes left in the active segment behind the position `end`.
    pub const fn bytes_left(&self, end: Lsn) -> u64 {
        self.segment_bytes.saturating_sub(self.active.offset(end))
    }

    /// Bytes left for the gathering batch, which ends at the position `end`.
    pub const fn batch_bytes_left(&self, end: Lsn) -> u64 {
        self.limit.saturating_sub(self.active.offset(end))
    }

    #[inline]
    pub fn is_gathering(&self) -> bool {
        !self.gathering.is_empty()
    }

    /// Whether a write is in flight.
    pub const fn is_writing(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether one more write may be in flight.
    pub const fn can_start_write(&self) -> bool {
        // mutant wal-write-overtakes-one-without-space: self.returned == 0 => true
        self.in_flight < self.writes_max && self.returned == 0
    }

    /// Whether no closed batch waits or is being written.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a closed batch waits.
    pub fn has_waiting(&self) -> bool {
        self.queue.len() > self.in_flight
    }

    /// Whether the gathering batch is worth a write now. Beside other writes it gathers until it is as large as all of them
    /// together, or ample: each write has a cost, so under load a few large ones are faster than many small ones.
    pub fn is_worth_writing(&self) -> bool {
        let in_flight = || self.queue.iter().take(self.in_flight).map(|closed| closed.bytes).sum::<usize>();
        self.in_flight == 0 || self.gathering.len() >= in_flight().min(AMPLE_BYTES)
    }

    /// The segment of the batch that is written next.
    pub fn next_segment(&self) -> Option<SegmentNumber> {
        self.queue.get(self.in_flight).map(|closed| closed.segment)
    }

    /// Closed batches that are not written yet.
    pub fn unwritten_batches(&self) -> u64 {
        self.queue.len() as u64
    }

    /// Where in the file of the active segment the gathering batch ends.
    pub fn gathering_end(&self) -> u64 {
        self.offset + self.gathering.len() as u64
    }

    /// Ids of the jobs in all records that gather or wait. No write is in flight.
    pub fn unwritten_jobs(&self) -> impl Iterator<Item = JobId> {
        let closed = self.queue.iter().map(|closed| records_of(&closed.batch, closed.offset));
        closed.chain([records_of(&self.gathering, self.offset)]).flat_map(job_ids)
    }

    /// Bytes that are not written yet.
    #[inline]
    pub fn backlog_bytes(&self) -> usize {
        let closed: usize = self.queue.iter().map(|closed| closed.bytes).sum();
        self.gathering.len() + closed
    }

    pub fn memory_bytes(&self) -> usize {
        let closed: usize = self.queue.iter().map(|closed| closed.memory_bytes).sum();
        let spare: usize = self.spare.iter().map(Batch::memory_bytes).sum();
        self.gathering.memory_bytes() + closed + spare
    }
}
