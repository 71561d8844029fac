//! Reading a segment: its records in order, up to where they end.

use super::record::{ALIGN_BYTES, Absent, FRAME_BYTES, Framed, Lsn, Record};
use super::segment::{HEADER_BYTES, Header};

/// Where the bytes of a segment come from.
pub trait Source {
    /// Why they cannot be read.
    type Error;

    /// Reads at an offset. Fewer bytes than there is room for only at the end of the file.
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Self::Error>;
}

/// What is read at once.
const WINDOW_BYTES: usize = 1 << 20;

/// Reads the records of a segment one after the other.
pub struct Scanner<S> {
    source: S,
    /// Of the file.
    bytes: u64,
    header: Header,
    /// See [`Header::seed`].
    seed: u32,
    window: Vec<u8>,
    /// What of the window is used up, and where in the file its end is.
    used: usize,
    read_to: u64,
    /// Behind the last record.
    end: Lsn,
}

impl<S: Source> Scanner<S> {
    /// For the segment with this header and a file of so many bytes. `window` is what an earlier one gave back.
    pub fn new(source: S, bytes: u64, header: Header, mut window: Vec<u8>) -> Self {
        window.clear();
        let (seed, end) = (header.seed(), header.first);
        Self { source, bytes, header, seed, window, used: 0, read_to: HEADER_BYTES, end }
    }

    /// The next record and its offset in the file; none at the end of the valid ones.
    pub fn next_record(&mut self) -> Result<Option<(u64, Framed<'_>)>, S::Error> {
        loop {
            let offset = self.offset();
            let at = self.header.lsn(offset);
            match Record::find(&self.window[self.used..], self.seed, at) {
                Ok(bytes) => {
                    let begin = self.used;
                    self.used += bytes;
                    self.end = Lsn(at.0 + bytes as u64);
                    return Ok(Some((offset, Record::decode(&self.window[begin..]))));
                }
                Err(Absent::Short(needed)) if self.read(needed)? => {}
                Err(_) => return Ok(None),
            }
        }
    }

    /// Where the valid records end.
    pub const fn end(&self) -> Lsn {
        self.end
    }

    /// After the end: the next record that is valid by itself, and its offset in the file.
    pub fn next_beyond(&mut self) -> Result<Option<(u64, Framed<'_>)>, S::Error> {
        loop {
            let offset = self.offset();
            let at = self.header.lsn(offset);
            match Record::find(&self.window[self.used..], self.seed, at) {
                Ok(bytes) => {
                    let begin = self.used;
                    self.used += bytes;
                    return Ok(Some((offset, Record::decode(&self.window[begin..]))));
                }
                Err(Absent::Short(needed)) if self.read(needed)? => {}
                Err(Absent::Short(FRAME_BYTES)) => return Ok(None),
                Err(_) => self.used += ALIGN_BYTES,
            }
        }
    }

    /// The offset in the file of the next byte to be looked at.
    pub fn offset(&self) -> u64 {
        self.read_to - (self.window.len() - self.used) as u64
    }

    /// The buffer, for the next segment.
    pub fn into_window(self) -> Vec<u8> {
        self.window
    }

    /// Gets at least so many bytes into the window. False if the file has no more.
    fn read(&mut self, needed: usize) -> Result<bool, S::Error> {
        if self.offset() + needed as u64 > self.bytes {
            return Ok(false);
        }
        self.window.drain(..self.used);
        self.used = 0;
        let before = self.window.len();
        self.window.resize(needed.max(WINDOW_BYTES), 0);
        let count = self.source.read_at(self.read_to, &mut self.window[before..])?;
        self.window.truncate(before + count);
        self.read_to += count as u64;
        Ok(self.window.len() >= needed)
    }
}
