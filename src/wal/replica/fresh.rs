//! A log that is written in one go: its first epoch has a whole queue, and then the farewell of its leader, so that the next
//! server leads at once.

use bytes::Bytes;

use super::chunk::{ChunkHeader, Kind, PAYLOAD_BYTES_MAX};
use super::request::{Epoch, Position};
use crate::values::ids::JobId;
use crate::wal::batch::Batch;
use crate::wal::record::{Lsn, Record, Stamp};
use crate::wal::segment::{HEADER_BYTES, Header};
use crate::wal::{NETWORK_BATCH_BYTES, SegmentNumber};

/// Makes chunks of records. Like a log that was trimmed, the log begins with a segment.
pub struct FreshLog {
    epoch: Epoch,
    segment_bytes: u64,
    header: Header,
    batch: Batch,
    /// The position of the first record of the batch.
    first: Lsn,
    end: Lsn,
    next: Position,
    chunks: Vec<(Position, Bytes)>,
}

impl FreshLog {
    /// Begins a log with this id at a position, in an epoch that is not led. No job may have the id `next_id` or a larger one.
    pub fn begin(
        (epoch, log_id): (Epoch, u64),
        begin: Position,
        (format, segment_bytes): (u32, u64),
        next_id: JobId,
    ) -> Self {
        let (number, first) = (SegmentNumber(1), Lsn::default());
        let header =
            Header { format, log_id, number, first, next_id, oldest: number, previous: SegmentNumber(0) };
        let mut batch = Batch::default();
        header.encode(&mut batch);
        Self { epoch, segment_bytes, header, batch, first, end: first, next: begin, chunks: Vec::new() }
    }

    /// Appends a record.
    ///
    /// # Panics
    /// If it does not fit into a segment.
    pub fn append(&mut self, record: &Record<'_>) {
        let bytes = record.bytes();
        assert!(HEADER_BYTES + bytes as u64 <= self.segment_bytes, "a record fits into a segment");
        if self.header.offset(self.end) + bytes as u64 > self.segment_bytes {
            self.end_batch();
            let Header { number: previous, .. } = self.header;
            self.header = Header { number: previous.next(), first: self.end, previous, ..self.header };
            self.header.encode(&mut self.batch);
        } else if (self.batch.len() + bytes) as u64 > NETWORK_BATCH_BYTES {
            self.end_batch();
        }
        let stamp = Stamp { seed: self.header.seed(), at: self.end, durable: self.header.first };
        record.encode(&stamp, &mut self.batch);
        self.end.0 += bytes as u64;
    }

    /// Returns the chunks that are complete, in order.
    pub fn take(&mut self) -> Vec<(Position, Bytes)> {
        std::mem::take(&mut self.chunks)
    }

    /// Ends the log, and returns the last chunks.
    pub fn finish(mut self) -> Vec<(Position, Bytes)> {
        self.end_batch();
        self.push(Kind::Farewell, (self.end, SegmentNumber(0)), (0, 0), &[]);
        self.chunks
    }

    fn end_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let parts = batch.bytes().chunks(PAYLOAD_BYTES_MAX);
        let of = (self.first, self.header.number);
        for (part, payload) in parts.clone().enumerate() {
            self.push(Kind::Data, of, (part as u32, parts.len() as u32), payload);
        }
        self.first = self.end;
    }

    fn push(
        &mut self,
        kind: Kind,
        (lsn, segment): (Lsn, SegmentNumber),
        (part, parts): (u32, u32),
        payload: &[u8],
    ) {
        let (epoch, log_id, position) = (self.epoch, self.header.log_id, self.next);
        let header = ChunkHeader { kind, epoch, log_id, position, lsn, segment, part, parts };
        self.chunks.push((position, header.encode(payload)));
        self.next = position.next();
    }
}
