//! The segments of a job log as recovery uses them. A test puts a simulated disk in their place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Access, Directory};
use crate::wal::batch::{BLOCK_BYTES, Batch};
use crate::wal::scan::Source;
use crate::wal::{Arrangement, SegmentNumber};

/// Bytes that are written again at once.
const REWRITE_BYTES: usize = 1 << 20;

/// Segments that can be read.
pub trait Segments {
    /// An open segment.
    type File: Source<Error = io::Error>;

    /// Opens a segment to read it.
    fn open(&self, segment: SegmentNumber) -> io::Result<Self::File>;
}

/// Segments that can be changed. Only what says so is on disk when it returns.
pub trait Storage: Segments {
    /// Returns all segments by number, with the bytes of their files.
    fn list(&self) -> io::Result<BTreeMap<SegmentNumber, u64>>;

    /// Writes what is read between two offsets again, and `then` behind it. It is on disk afterwards: the descriptor
    /// that wrote is the one that is synced.
    fn rewrite(&self, segment: SegmentNumber, from: u64, to: u64, then: &[u8]) -> io::Result<()>;

    /// Gives a segment another size, and all the space that it needs, on disk.
    fn resize(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()>;

    /// Renames a segment.
    fn rename(&self, from: SegmentNumber, to: SegmentNumber) -> io::Result<()>;

    /// Removes a segment.
    fn remove(&self, segment: SegmentNumber) -> io::Result<()>;

    /// Makes a segment without writing zeros to it, on disk.
    fn create_unwritten(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()>;

    /// Changes the files, on disk.
    fn arrange(&self, arrangement: Arrangement) -> io::Result<()>;

    /// Brings to disk which files there are.
    fn sync(&self) -> io::Result<()>;
}

impl Segments for Path {
    type File = File;

    fn open(&self, segment: SegmentNumber) -> io::Result<File> {
        File::open(self.join(segment.to_string()))
    }
}

impl Segments for Directory {
    type File = File;

    fn open(&self, segment: SegmentNumber) -> io::Result<File> {
        self.path().open(segment)
    }
}

impl Storage for Directory {
    fn list(&self) -> io::Result<BTreeMap<SegmentNumber, u64>> {
        self.segments()
    }

    /// Past the page cache, where the file system can do that. After a failed write ext4 takes the block behind a cached
    /// page for written: a page written again is still read as zeros once the cache is gone.
    fn rewrite(&self, segment: SegmentNumber, from: u64, to: u64, then: &[u8]) -> io::Result<()> {
        let cached = self.open_segment(segment, Access::Cached)?;
        let file = self.open_segment(segment, Access::Durable)?;
        let then_end = to + then.len() as u64;
        let end = then_end.next_multiple_of(BLOCK_BYTES as u64);
        let (mut piece, mut at) = (Batch::default(), from);
        while at < end {
            let count = (end - at).min(REWRITE_BYTES as u64);
            piece.clear();
            piece.pad_to(count as usize);
            let read = read_up_to(&cached, at, piece.bytes_mut())? as u64;
            if read < count.min(to.saturating_sub(at)) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
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
        self.resize_segment(segment, bytes)
    }

    fn rename(&self, from: SegmentNumber, to: SegmentNumber) -> io::Result<()> {
        fs::rename(self.file(&from.to_string()), self.file(&to.to_string()))
    }

    fn remove(&self, segment: SegmentNumber) -> io::Result<()> {
        fs::remove_file(self.file(&segment.to_string()))
    }

    fn create_unwritten(&self, segment: SegmentNumber, bytes: u64) -> io::Result<()> {
        Self::create_unwritten(self, segment, bytes)
    }

    fn arrange(&self, arrangement: Arrangement) -> io::Result<()> {
        Self::arrange(self, arrangement)
    }

    fn sync(&self) -> io::Result<()> {
        Self::sync(self)
    }
}

/// Reads until there is no more room, or no more of the file.
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

impl Source for File {
    type Error = io::Error;

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        read_up_to(self, offset, into)
    }
}
