//! A new job log that is written in one go, by an import or by salvage.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Access, Directory};
use crate::values::ids::JobId;
use crate::wal::batch::Batch;
use crate::wal::record::{Lsn, Record, Stamp};
use crate::wal::segment::{HEADER_BYTES, Header};
use crate::wal::{Arrangement, EndMark, SegmentNumber};

/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// Writes segments, from the first on. Each is on disk before the next one begins.
pub struct Fresh<'a> {
    directory: &'a Directory,
    segment_bytes: u64,
    header: Header,
    file: File,
    batch: Batch,
    batch_at: u64,
    end: Lsn,
}

impl<'a> Fresh<'a> {
    /// Begins a log in a directory without segments. No job may have the id `next_id` or a larger one.
    pub fn begin(
        directory: &'a Directory,
        segment_bytes: u64,
        format: u32,
        log_id: u64,
        next_id: JobId,
    ) -> io::Result<Self> {
        let number = SegmentNumber(1);
        let previous = SegmentNumber(0);
        let (first, oldest) = (Lsn::default(), number);
        let header = Header { format, log_id, number, first, next_id, oldest, previous };
        let file = create(directory, header.number, segment_bytes)?;
        let mut batch = Batch::default();
        header.encode(&mut batch);
        Ok(Self { directory, segment_bytes, header, file, batch, batch_at: 0, end: header.first })
    }

    /// Appends a record.
    ///
    /// # Panics
    /// If it does not fit into a segment.
    pub fn append(&mut self, record: &Record<'_>) -> io::Result<()> {
        let bytes = record.bytes() as u64;
        assert!(HEADER_BYTES + bytes <= self.segment_bytes, "a record fits into a segment");
        if self.header.offset(self.end) + bytes > self.segment_bytes {
            self.begin_next_segment()?;
        }
        // Everything before a closing record is on disk.
        let durable = if matches!(record, Record::Closed) { self.end } else { self.header.first };
        record.encode(&Stamp { seed: self.header.seed(), at: self.end, durable }, &mut self.batch);
        self.end.0 += bytes;
        if self.batch.len() >= WRITE_BYTES { self.write() } else { Ok(()) }
    }

    /// Syncs everything, and closes the job log with its closing record.
    pub fn finish(mut self) -> io::Result<()> {
        self.write()?;
        self.file.sync_all()?;
        self.append(&Record::Closed)?;
        self.write()?;
        self.file.sync_all()?;
        let Header { log_id, number: segment, .. } = self.header;
        self.directory.arrange(Arrangement::MarkEnd(EndMark { log_id, segment, end: self.end }))
    }

    fn begin_next_segment(&mut self) -> io::Result<()> {
        self.write()?;
        self.file.sync_all()?;
        let Header { number: previous, .. } = self.header;
        self.header = Header { number: previous.next(), first: self.end, previous, ..self.header };
        self.file = create(self.directory, self.header.number, self.segment_bytes)?;
        self.header.encode(&mut self.batch);
        self.batch_at = 0;
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        self.directory.refuse_cancelled()?;
        self.file.write_all_at(self.batch.bytes(), self.batch_at)?;
        self.batch_at += self.batch.len() as u64;
        self.batch.clear();
        Ok(())
    }
}

fn create(directory: &Directory, segment: SegmentNumber, bytes: u64) -> io::Result<File> {
    directory.arrange(Arrangement::Create { segment, bytes })?;
    directory.open_segment(segment, Access::Cached)
}
