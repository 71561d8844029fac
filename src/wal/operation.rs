//! The seam to the place that the WAL is written to: the WAL asks with an [`Operation`], and a driver answers each with an
//! [`Outcome`]. Nothing here says what a segment is kept in (docs/internals/LOG.md, "Another place for the log").

use std::io::{self, ErrorKind};

use super::replica::{Reply, Request};
use super::{Batch, SegmentNumber};

/// What the WAL asks for.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Operation {
    /// Write a batch into a segment that was created or recycled before.
    Write {
        segment: SegmentNumber,
        /// The offset in the segment, in bytes.
        offset: u64,
        batch: Batch,
        /// Whether the bytes have to be durable before the outcome is reported.
        sync: bool,
    },
    /// Make all bytes durable that were written to these segments.
    Sync(Vec<SegmentNumber>),
    /// Change which segments there are, durably.
    Arrange(Arrangement),
    /// Ask the database, if the job log is in one.
    Replicate(Request),
}

/// A change of which segments there are.
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
}

/// How an operation ended.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Outcome {
    /// Returns the batch of the write. [`is_full`] errors are retried; any other error ends the server.
    Written(Batch, io::Result<()>),
    Synced(io::Result<()>),
    Arranged(Arrangement, io::Result<()>),
    Replicated(Reply),
}

/// Whether an error means that there is no space left for now.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
