//! The seam to the place that the WAL is written to: the WAL asks with an [`DiskOperation`], and a driver answers each with an
//! [`DiskOutcome`]. Nothing here says what a segment is kept in (docs/internals/LOG.md, "Another place for the log").

use std::io::{self, ErrorKind};

use super::record::Lsn;
use super::replica::{DatabaseReply, Request};
use super::{Batch, EndMark, SegmentNumber};

/// What a server asks of the place of its job log.
#[derive(Debug)]
pub enum LogRequest {
    /// Of files on a disk.
    Files(DiskOperation),
    /// Of a database.
    Database(Box<Request>),
}

/// How what a server has asked ended.
#[derive(Debug)]
pub enum LogReply {
    /// An operation on files.
    Files(DiskOutcome),
    /// A request to a database.
    Database(Box<DatabaseReply>),
}

/// What the WAL asks for. At most one `Sync` and one `Arrange` are in flight, and one `Write`, or
/// [several](super::Destination::Network) across a network.
///
/// # Several writes in flight
/// Each begins where the one before it ends: [`Lsn`]s are dense. The destination keeps this order:
/// - Outcomes of writes come in the order in which the writes began. The WAL asserts it.
/// - A write that fails takes all writes after it along, even if their bytes have arrived: each of them fails too. If
///   the first had [no space](is_full), so have the others; the WAL starts no write until it has all of their batches
///   back, and then begins them again in their order.
/// - After a crash, recovery finds the writes before one that is missing, and none after it. Part of a batch counts as
///   missing.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum DiskOperation {
    /// Write a batch into a segment that was created or recycled before.
    Write {
        segment: SegmentNumber,
        /// The offset in the segment, in bytes.
        offset: u64,
        /// The position of the first record in the batch. At offset 0, the header of the segment precedes it.
        first: Lsn,
        batch: Batch,
        /// Whether the bytes have to be durable before the outcome is reported.
        sync: bool,
    },
    /// Make all bytes durable that were written to these segments.
    Sync(Vec<SegmentNumber>),
    /// Change which segments there are, durably.
    Arrange(Arrangement),
}

/// A change of which segments there are, or of what is kept beside them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Arrangement {
    /// Create a segment of zeros and allocate all its space.
    Create { segment: SegmentNumber, bytes: u64 },
    /// Turn a segment that is not needed any more into a new one. Its content does not matter, but it must not read as
    /// records of the new number.
    Recycle { from: SegmentNumber, to: SegmentNumber },
    /// Remove a segment that is not needed any more.
    Remove(SegmentNumber),
    /// Keep the mark of the log's end, outside the segments. Only [files](super::Destination::Directory) are asked for it.
    MarkEnd(EndMark),
}

/// How an operation ended.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum DiskOutcome {
    /// Returns the batch of the write in flight that began first. [`is_full`] errors are retried; any other error ends the
    /// server.
    Written(Batch, io::Result<()>),
    Synced(io::Result<()>),
    Arranged(Arrangement, io::Result<()>),
}

/// Whether an error means that there is no space left for now.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
