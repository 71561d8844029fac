//! Batches of records on their way to the disk: one gathers records, closed ones wait in a queue, and at most one is
//! being written. A diagram is in docs/internals/LOG.md.

use std::collections::VecDeque;

use super::SegmentNumber;
use super::batch::{BLOCK_BYTES, Batch};
use super::record::{Lsn, Record, Stamp, job_ids};
use super::segment::{HEADER_BYTES, Header};
use crate::values::ids::JobId;

/// Empty batches that are kept for later records, unless their memory is larger than [`BATCH_BYTES_KEPT`].
pub const BATCHES_SPARE: usize = 2;

/// The largest memory of a batch that is kept.
pub const BATCH_BYTES_KEPT: usize = 4 * 1024 * 1024;

/// Appends records to the active segment.
///
/// `Wal` asks for a write with [`start_write`](Self::start_write). It reports the end with
/// [`finish_write`](Self::finish_write), or with [`requeue_write`](Self::requeue_write) if the disk had no space.
pub struct Appender {
    /// The header of the active segment: the one that records gather for.
    active: Header,
    /// See [`Header::seed`].
    seed: u32,
    gathering: Batch,
    /// Where in the file of the active segment the gathering batch begins.
    offset: u64,
    /// Bytes of the gathering batch that compaction appended.
    compacted_bytes: usize,
    /// Whether the gathering batch has records that compaction did not append.
    has_changes: bool,
    queue: VecDeque<QueuedBatch>,
    in_flight: Option<WriteInFlight>,
    /// Empty batches, kept for their memory.
    spare: Vec<Batch>,
}

/// A closed batch that waits to be written.
struct QueuedBatch {
    segment: SegmentNumber,
    offset: u64,
    batch: Batch,
    end: Lsn,
}

/// The batch that is being written. Its bytes are with the driver.
#[derive(Clone, Copy)]
pub struct WriteInFlight {
    pub segment: SegmentNumber,
    /// The position behind its last record.
    pub end: Lsn,
    offset: u64,
    bytes: usize,
    memory_bytes: usize,
}

impl Appender {
    /// Continues in the segment of this header, at the position `end`.
    pub fn new(active: Header, end: Lsn) -> Self {
        Self {
            active,
            seed: active.seed(),
            gathering: Batch::default(),
            offset: active.offset(end),
            compacted_bytes: 0,
            has_changes: false,
            queue: VecDeque::new(),
            in_flight: None,
            spare: Vec::new(),
        }
    }

    /// Makes a new segment the active one and appends its header.
    ///
    /// # Panics
    /// If the batch of the segment before it is not closed.
    pub fn begin_segment(&mut self, header: Header) {
        assert!(self.gathering.is_empty(), "a batch belongs to one segment");
        (self.active, self.seed, self.offset) = (header, header.seed(), 0);
        header.encode(&mut self.gathering);
    }

    /// Appends a record at the position `at`.
    #[inline]
    pub fn append(&mut self, record: &Record<'_>, at: Lsn, durable: Lsn) {
        record.encode(&Stamp { seed: self.seed, at, durable }, &mut self.gathering);
    }

    /// Counts bytes of the gathering batch as appended by compaction.
    pub fn note_compacted(&mut self, bytes: usize) {
        self.compacted_bytes += bytes;
    }

    /// Notes that the gathering batch has records that compaction did not append.
    pub fn note_changes(&mut self) {
        self.has_changes = true;
    }

    /// Fills the gathering batch with zeros up to a whole block.
    pub fn pad_to_block(&mut self) {
        self.gathering.pad_to(self.gathering.len().next_multiple_of(BLOCK_BYTES));
    }

    /// Moves the gathering batch, whose records end at `end`, to the queue.
    pub fn close_batch(&mut self, end: Lsn) {
        (self.compacted_bytes, self.has_changes) = (0, false);
        let batch = std::mem::replace(&mut self.gathering, self.spare.pop().unwrap_or_default());
        let (segment, offset) = (self.active.number, self.offset);
        self.offset += batch.len() as u64;
        self.queue.push_back(QueuedBatch { segment, offset, batch, end });
    }

    /// Takes the first batch of the queue to be written. Returns its segment, its offset in the file, and its bytes.
    ///
    /// # Panics
    /// If a write is in flight.
    pub fn start_write(&mut self) -> Option<(SegmentNumber, u64, Batch)> {
        assert!(self.in_flight.is_none(), "one batch is written at a time");
        let QueuedBatch { segment, offset, batch, end } = self.queue.pop_front()?;
        let (bytes, memory_bytes) = (batch.len(), batch.memory_bytes());
        self.in_flight = Some(WriteInFlight { segment, end, offset, bytes, memory_bytes });
        Some((segment, offset, batch))
    }

    /// Ends the write in flight, and returns which one it was.
    ///
    /// # Panics
    /// If no write is in flight.
    pub fn finish_write(&mut self) -> WriteInFlight {
        self.in_flight.take().expect("a write is in flight")
    }

    /// Puts the batch in flight back at the front of the queue.
    ///
    /// # Panics
    /// If no write is in flight.
    pub fn requeue_write(&mut self, batch: Batch) {
        let WriteInFlight { segment, offset, end, .. } = self.finish_write();
        self.queue.push_front(QueuedBatch { segment, offset, batch, end });
    }

    /// Keeps the memory of a batch for a later one, within limits.
    pub fn recycle(&mut self, mut batch: Batch) {
        if self.spare.len() < BATCHES_SPARE && batch.capacity() <= BATCH_BYTES_KEPT {
            batch.clear();
            self.spare.push(batch);
        }
    }

    pub const fn active(&self) -> &Header {
        &self.active
    }

    pub const fn segment(&self) -> SegmentNumber {
        self.active.number
    }

    /// Bytes left in the active segment behind the position `end`.
    pub const fn bytes_left(&self, end: Lsn, segment_bytes: u64) -> u64 {
        segment_bytes.saturating_sub(self.active.offset(end))
    }

    #[inline]
    pub fn is_gathering(&self) -> bool {
        !self.gathering.is_empty()
    }

    pub const fn is_writing(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether no closed batch waits or is being written.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none()
    }

    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The segment of the batch that is written next.
    pub fn next_segment(&self) -> Option<SegmentNumber> {
        self.queue.front().map(|queued| queued.segment)
    }

    /// Closed batches that are not written yet.
    pub fn unwritten_batches(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.in_flight.is_some())
    }

    /// Where in the file of the active segment the gathering batch ends.
    pub fn gathering_end(&self) -> u64 {
        self.offset + self.gathering.len() as u64
    }

    /// See [`note_compacted`](Self::note_compacted).
    pub const fn compacted_bytes(&self) -> usize {
        self.compacted_bytes
    }

    /// See [`note_changes`](Self::note_changes).
    pub const fn has_changes(&self) -> bool {
        self.has_changes
    }

    /// Ids of the jobs in all records that gather or wait.
    pub fn unwritten_jobs(&self) -> impl Iterator<Item = JobId> {
        let queued = self.queue.iter().map(|queued| (queued.offset, &queued.batch));
        queued.chain([(self.offset, &self.gathering)]).flat_map(|(offset, batch)| {
            let header_bytes = if offset == 0 { HEADER_BYTES as usize } else { 0 };
            job_ids(batch.bytes().get(header_bytes..).unwrap_or_default())
        })
    }

    /// Bytes that are not written yet.
    #[inline]
    pub fn backlog_bytes(&self) -> usize {
        let queued: usize = self.queue.iter().map(|queued| queued.batch.len()).sum();
        self.gathering.len() + queued + self.in_flight.map_or(0, |write| write.bytes)
    }

    pub fn memory_bytes(&self) -> usize {
        let queued: usize = self.queue.iter().map(|queued| queued.batch.memory_bytes()).sum();
        let spare: usize = self.spare.iter().map(Batch::memory_bytes).sum();
        let in_flight = self.in_flight.map_or(0, |write| write.memory_bytes);
        self.gathering.memory_bytes() + queued + in_flight + spare
    }
}
