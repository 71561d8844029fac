//! What recovery needs of the place that segments are kept in. [`Directory`] implements it; so does the simulated disk of
//! the tests.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use super::{Access, Directory, EndMarks, plain_file};
use crate::io::signal::refuse_to_go_on;
use crate::wal::batch::{BLOCK_BYTES, Batch};
use crate::wal::scan::ScanSource;
use crate::wal::{Arrangement, SegmentNumber};

/// Bytes that are rewritten per request.
const REWRITE_BYTES: usize = 1 << 20;

/// A place that segments can be read from.
pub trait Segments {
    /// An open segment.
    type File: ScanSource<Error = io::Error>;

    /// Opens a segment for reading.
    fn open(&self, segment: SegmentNumber) -> io::Result<Self::File>;

    /// Returns the copies of the mark of the log's end.
    fn end_marks(&self) -> io::Result<EndMarks>;
}

/// A place where segments can be changed. A change is durable when the method returns only if its comment says so.
pub trait Storage: Segments {
    /// Returns all segments by number, with their sizes in bytes.
    fn list(&self) -> io::Result<BTreeMap<SegmentNumber, u64>>;

    /// Rewrites the bytes between two offsets, and writes `then` behind them. Bytes that the segment lacks are zeros.
    /// Durable: the descriptor that wrote is synced.
    fn rewrite(&self, segment: SegmentNumber, from: u64, to: u64, then: &[u8]) -> io::Result<()>;

    /// Changes the size of a segment and allocates its space. Durable.
    fn resize(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()>;

    /// Renames a segment.
    fn rename(&self, from: SegmentNumber, to: SegmentNumber) -> io::Result<()>;

    /// Removes a segment.
    fn remove(&self, segment: SegmentNumber) -> io::Result<()>;

    /// Creates a segment without writing zeros to it, which is faster. Durable.
    fn create_unwritten(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()>;

    /// Changes which segments there are. Durable.
    fn arrange(&self, arrangement: Arrangement) -> io::Result<()>;

    /// Makes all creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
}

impl Segments for Path {
    type File = File;

    fn open(&self, segment: SegmentNumber) -> io::Result<File> {
        plain_file::open_to_read(&self.join(segment.to_string()))
    }

    fn end_marks(&self) -> io::Result<EndMarks> {
        EndMarks::read(self)
    }
}

impl Segments for Directory {
    type File = File;

    fn open(&self, segment: SegmentNumber) -> io::Result<File> {
        self.path().open(segment)
    }

    fn end_marks(&self) -> io::Result<EndMarks> {
        self.path().end_marks()
    }
}

impl Storage for Directory {
    fn list(&self) -> io::Result<BTreeMap<SegmentNumber, u64>> {
        self.segments()
    }

    /// Bypasses the page cache where the file system can do that. After a failed write ext4 believes that the block behind
    /// a cached page is written: a page that is written again still reads as zeros once it is evicted.
    fn rewrite(&self, segment: SegmentNumber, from: u64, to: u64, then: &[u8]) -> io::Result<()> {
        let cached = self.open_segment(segment, Access::Cached)?;
        let file = self.open_segment(segment, Access::Durable)?;
        let then_end = to + then.len() as u64;
        let end = then_end.next_multiple_of(BLOCK_BYTES as u64);
        let (mut piece, mut at) = (Batch::default(), from);
        while at < end {
            self.refuse_cancelled()?;
            let count = (end - at).min(REWRITE_BYTES as u64);
            piece.clear();
            piece.pad_to(count as usize);
            read_up_to(&cached, at, piece.bytes_mut())?;
            let (begin, until) = (to.max(at), then_end.min(at + count));
            if begin < until {
                let new = &then[(begin - to) as usize..(until - to) as usize];
                piece.bytes_mut()[(begin - at) as usize..(until - at) as usize].copy_from_slice(new);
            }
            file.write_all_at(piece.bytes(), at)?;
            at += count;
        }
        file.sync_data()
    }

    fn resize(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = plain_file::open(&self.file(&segment.to_string()), options.append(true), 0)?;
        let before = file.metadata()?.len();
        if before > bytes {
            file.set_len(bytes)?;
        }
        match self.allocate(&file, bytes) {
            Ok(()) => {}
            Err(Errno::EOPNOTSUPP) => self.write_zeros(&mut file, bytes.saturating_sub(before))?,
            Err(errno) => return Err(errno.into()),
        }
        file.sync_all()
    }

    fn rename(&self, from: SegmentNumber, to: SegmentNumber) -> io::Result<()> {
        fs::rename(self.file(&from.to_string()), self.file(&to.to_string()))
    }

    fn remove(&self, segment: SegmentNumber) -> io::Result<()> {
        fs::remove_file(self.file(&segment.to_string()))
    }

    fn create_unwritten(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()> {
        self.create(segment, bytes, false)?;
        self.sync()
    }

    fn arrange(&self, arrangement: Arrangement) -> io::Result<()> {
        Self::arrange(self, arrangement)
    }

    fn sync(&self) -> io::Result<()> {
        Self::sync(self)
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
pub fn read_up_to(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < into.len() {
        match file.read_at(&mut into[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(bytes) => count += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Returns where the next bytes are that are no hole, from an offset on; none if only a hole follows. A file system that does not tell has
/// no holes.
pub fn next_data(file: &File, offset: u64) -> Option<u64> {
    match lseek(file, offset as i64, Whence::SeekData) {
        Ok(begin) => Some(begin as u64),
        Err(Errno::ENXIO) => None,
        Err(_) => Some(offset),
    }
}

impl ScanSource for File {
    type Error = io::Error;

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        refuse_to_go_on()?;
        read_up_to(self, offset, into)
    }

    fn skip_hole(&mut self, offset: u64) -> u64 {
        next_data(self, offset).unwrap_or(u64::MAX)
    }
}
