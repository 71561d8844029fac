//! Reading a segment: its records in order, and valid records behind a gap.

use super::batch::BLOCK_BYTES;
use super::record::{ALIGN_BYTES, Absent, FRAME_BYTES, Framed, Lsn, Record};
use super::segment::{HEADER_BYTES, Header};

/// A source of the bytes of a segment.
pub trait ScanSource {
    /// Why a read fails.
    type Error;

    /// Reads at an offset. Fills the buffer unless the file ends. Returns the number of bytes.
    ///
    /// # Errors
    /// If the read fails.
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Self::Error>;

    /// Returns an offset, this one or a later one, before which there are only zeros from this one on: that of the end of a hole.
    fn skip_hole(&mut self, offset: u64) -> u64 {
        offset
    }
}

/// Bytes per read, unless a record is larger.
const WINDOW_BYTES: usize = 1 << 20;

/// For each byte that is searched: bytes whose checksums may be computed in vain, since a record turns out not to be whole.
pub const SUMS_PER_BYTE: u64 = 4;

/// As many may be in any case.
const SUMS_MIN: u64 = 64 << 20;

/// Zeros that count as if they followed the last block of a file.
const ZEROS_BYTES: u64 = 1 << 20;

/// Reads the records of a segment one after another. A file that is too short counts as if zeros followed: its records must
/// not become valid only when recovery rewrites its last block, because the log goes on in another file by then.
pub struct Scanner<S> {
    source: S,
    /// The size of the file.
    pub bytes: u64,
    /// The header of the segment.
    pub header: Header,
    /// See [`Header::seed`].
    seed: u32,
    window: Vec<u8>,
    /// Bytes of the window that are consumed.
    used: usize,
    /// The offset in the file of the end of the window.
    read_to: u64,
    /// The position behind the last record.
    end: Lsn,
    /// Bytes of records behind it that turned out not to be whole.
    summed: u64,
    /// The offset behind the last bytes that [`next_beyond`](Self::next_beyond) has seen and that were written as records of
    /// this segment, whole or not. All other bytes may come from an earlier use of the file.
    pub traces_end: u64,
    /// Where the last bytes end that [`next_beyond`](Self::next_beyond) has passed and that are not all zeros. In a file
    /// without an earlier use they were written as records of this segment.
    pub nonzero_end: u64,
}

impl<S: ScanSource> Scanner<S> {
    /// Begins behind the header of a segment in a file of this size. `window` is a buffer to use again.
    pub fn new(source: S, bytes: u64, header: Header, mut window: Vec<u8>) -> Self {
        window.clear();
        let (seed, end) = (header.seed(), header.first);
        Self {
            source,
            bytes,
            header,
            seed,
            window,
            used: 0,
            read_to: HEADER_BYTES,
            end,
            summed: 0,
            traces_end: 0,
            nonzero_end: 0,
        }
    }

    /// Begins at the end of a record instead.
    pub fn starting_at(mut self, end: Lsn) -> Self {
        assert_eq!(self.read_to, HEADER_BYTES, "nothing was read");
        (self.read_to, self.end) = (self.header.offset(end), end);
        self
    }

    /// Returns the next record and its offset in the file; none at the end of the valid records.
    ///
    /// # Errors
    /// If a read fails.
    pub fn next_record(&mut self) -> Result<Option<(u64, Framed<'_>)>, S::Error> {
        loop {
            let offset = self.offset();
            let at = self.header.lsn(offset);
            match Record::find(&self.window[self.used..], self.seed, at) {
                Ok(bytes) => {
                    self.end = Lsn(at.0 + bytes as u64);
                    return Ok(Some(self.take(offset, bytes)));
                }
                Err(Absent::Short(needed)) if self.read(needed)? => {}
                Err(_) => return Ok(None),
            }
        }
    }

    /// The position behind the last record that [`next_record`](Self::next_record) has returned.
    pub const fn end(&self) -> Lsn {
        self.end
    }

    /// Returns the next valid record behind the end, past any gap, and its offset in the file. Takes a time in proportion to the bytes
    /// that it passes, whatever they are.
    ///
    /// # Errors
    /// If a read fails.
    pub fn next_beyond(&mut self) -> Result<Option<(u64, Framed<'_>)>, S::Error> {
        loop {
            let offset = self.offset();
            let at = self.header.lsn(offset);
            let trace = match Record::head(&self.window[self.used..], self.seed, at) {
                Ok(whole) => {
                    if self.is_sound(offset, whole)? {
                        self.traces_end = offset + whole as u64;
                        self.nonzero_end = self.traces_end;
                        return Ok(Some(self.take(offset, whole)));
                    }
                    Some(whole)
                }
                Err(Absent::Short(needed)) if self.pass_hole() || self.read(needed)? => continue,
                Err(Absent::Short(_)) => return Ok(None),
                // Behind a gap it may be the body of a job.
                Err(Absent::Head) if at == self.end => Some(FRAME_BYTES),
                Err(Absent::Other) if at == self.end => self.misplaced()?,
                Err(_) => None,
            };
            if let Some(whole) = trace {
                self.traces_end = self.traces_end.max((offset + whole as u64).min(self.bytes));
            }
            if self.window[self.used..self.used + ALIGN_BYTES] != [0; ALIGN_BYTES] {
                self.nonzero_end = offset + ALIGN_BYTES as u64;
            }
            self.used += ALIGN_BYTES;
        }
    }

    /// Passes a hole in the file, if it begins here and is worth it: nothing of it is read.
    fn pass_hole(&mut self) -> bool {
        let offset = self.offset();
        if offset >= self.bytes || self.window[self.used..].iter().any(|&byte| byte != 0) {
            return false;
        }
        let end = self.source.skip_hole(offset).min(self.bytes) / ALIGN_BYTES as u64 * ALIGN_BYTES as u64;
        let is_worth_it = end >= offset + WINDOW_BYTES as u64;
        if is_worth_it {
            self.window.clear();
            (self.used, self.read_to) = (0, end);
        }
        is_worth_it
    }

    /// Whether the record here, whose head is valid, is whole. A server writes no record within another. So a file with many heads that
    /// overlap is forged, and after some of them none is believed.
    fn is_sound(&mut self, offset: u64, whole: usize) -> Result<bool, S::Error> {
        let passed = offset - HEADER_BYTES;
        if self.summed > SUMS_PER_BYTE * passed + SUMS_MIN {
            return Ok(false);
        }
        let is_there = self.window.len() - self.used >= whole || self.read(whole)?;
        let is_sound = is_there && Record::is_sound(&self.window[self.used..self.used + whole], self.seed);
        self.summed += if is_there && !is_sound { whole as u64 } else { 0 };
        Ok(is_sound)
    }

    /// Consumes the record here.
    fn take(&mut self, offset: u64, bytes: usize) -> (u64, Framed<'_>) {
        let begin = self.used;
        self.used += bytes;
        (offset, Record::decode(&self.window[begin..]))
    }

    /// Returns the size of the record here if it is whole and only its position is wrong.
    fn misplaced(&mut self) -> Result<Option<usize>, S::Error> {
        let at = self.header.lsn(self.offset());
        let patched = |rest: &[u8]| {
            let mut bytes = rest.to_vec();
            bytes[8..16].copy_from_slice(&at.0.to_le_bytes());
            bytes
        };
        let frame = patched(&self.window[self.used..self.used + FRAME_BYTES]);
        let whole = match Record::find(&frame, self.seed, at) {
            Ok(whole) => return Ok(Some(whole)),
            Err(Absent::Short(whole)) if self.read(whole)? => whole,
            Err(_) => return Ok(None),
        };
        let record = patched(&self.window[self.used..self.used + whole]);
        Ok(Record::find(&record, self.seed, at).ok())
    }

    /// The offset in the file of the next byte to examine.
    pub fn offset(&self) -> u64 {
        self.read_to - (self.window.len() - self.used) as u64
    }

    /// Returns the buffer, for the next segment.
    pub fn into_window(self) -> Vec<u8> {
        self.window
    }

    /// Reads until the window has at least this number of bytes. Returns false at the end of the file, or if more zeros would
    /// have to follow it than count.
    fn read(&mut self, needed: usize) -> Result<bool, S::Error> {
        let offset = self.offset();
        // mutant wal-missing-zeros-tear-a-record: self.bytes.next_multiple_of(BLOCK_BYTES as u64) + ZEROS_BYTES => self.bytes
        let zeros_end = self.bytes.next_multiple_of(BLOCK_BYTES as u64) + ZEROS_BYTES;
        if offset >= self.bytes || offset + needed as u64 > zeros_end {
            return Ok(false);
        }
        self.window.drain(..self.used);
        self.used = 0;
        let before = self.window.len();
        self.window.resize(needed.max(WINDOW_BYTES), 0);
        let count = self.source.read_at(self.read_to, &mut self.window[before..])?;
        self.window.truncate(needed.max(before + count));
        self.read_to = offset + self.window.len() as u64;
        Ok(true)
    }
}
