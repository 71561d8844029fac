//! The log: what of the queue outlives the process. It decides what is written where and when, and what has to
//! wait for that; a driver does the writing (docs/LOG.md).

pub mod batch;
mod capacity;
mod closing;
mod compaction;
mod disk;
pub mod losses;
mod pauses;
pub mod record;
pub mod replay;
pub mod scan;
pub mod segment;
mod segment_index;
mod writer;

use std::io;

pub use self::batch::Batch;
pub use self::capacity::Room;
pub use self::disk::is_full;
pub use self::replay::{Recovered, Replay};
pub use self::segment::SegmentNumber;
pub use self::writer::{Log, LogStats};
use crate::time::Span;

/// When a change is safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Nobody is told of it before it is on disk (`-f 0`).
    Always,
    /// It is written before anybody is told, and on disk so much later, or one sync after that (`-f MS`).
    Within(Span),
    /// It is written before anybody is told; the system brings it to disk when it likes (`-F`).
    Never,
}

/// What a log is told at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// When a change is safe.
    pub durability: Durability,
    /// The size of a segment: a multiple of [`batch::BLOCK_BYTES`].
    pub segment_bytes: u64,
}

/// What the log asks of a disk. At most one of each kind is under way.
#[derive(Debug)]
pub enum Operation {
    /// Write a batch into a segment that is prepared; with `sync`, it is on disk when this is done.
    Write {
        /// Which.
        segment: SegmentNumber,
        /// Where in the file.
        offset: u64,
        /// What.
        batch: Batch,
        /// Whether to wait for the disk.
        sync: bool,
    },
    /// Bring to disk what was written to these segments.
    Sync(Vec<SegmentNumber>),
    /// Change the files of the directory, and bring that to disk.
    Arrange(Arrangement),
}

/// A change of the files of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrangement {
    /// Make a segment of zeros, with all the space that it will need.
    Create {
        /// Which.
        segment: SegmentNumber,
        /// How much.
        bytes: u64,
    },
    /// A segment that is not needed any more becomes a new one, whatever is in it.
    Recycle {
        /// Which.
        from: SegmentNumber,
        /// Its new name.
        to: SegmentNumber,
    },
    /// Take a segment away that is not needed any more.
    Remove(SegmentNumber),
}

/// An operation is done, or has failed.
#[derive(Debug)]
pub enum Outcome {
    /// The write, with its batch.
    Written(Batch, io::Result<()>),
    /// The sync.
    Synced(io::Result<()>),
    /// The change of the directory.
    Arranged(Arrangement, io::Result<()>),
}
