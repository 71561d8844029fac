//! Segments: the files of the log, each with a header that says where it belongs.

use std::fmt;

use super::batch::{BLOCK_BYTES, Batch};
use super::record::Lsn;
use crate::ids::JobId;

/// The header takes a block of its own, so that no record shares it.
pub const HEADER_BYTES: u64 = BLOCK_BYTES as u64;

const MAGIC: [u8; 16] = *b"beanring log\r\n\x1a\0";

/// The format that this version writes. A change of the records that an older version would take for damage, or for a
/// torn write, makes a new one.
pub const VERSION: u32 = 2;

/// The oldest format that it reads: it has no record that closes the log.
pub const VERSION_MIN: u32 = 1;

/// What the header's checksum covers.
const CHECKED_BYTES: usize = 72;

/// The number of a segment; later ones are larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentNumber(pub u64);

impl SegmentNumber {
    /// A log is not expected to come so far: 40 PiB in segments of the default size.
    pub const LAST: Self = Self(0xffff_0000);

    /// The number of the file of this name, if it is one of the log's.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("log.")?;
        let is_canonical =
            digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_canonical.then(|| u64::from_str_radix(digits, 16).ok().map(Self)).flatten()
    }

    /// The next one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The name of its file.
impl fmt::Display for SegmentNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log.{:016x}", self.0)
    }
}

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The same for all segments of one log, and random: files of another log are told apart.
    pub log_id: u64,
    /// Its own number. A file that was given a new name and no new header is known by it.
    pub number: SegmentNumber,
    /// Where its first record is.
    pub first: Lsn,
    /// No job had this id or a larger one when it was begun.
    pub next_id: JobId,
    /// The oldest segment when it was begun, itself or one before it.
    pub oldest: SegmentNumber,
    /// The segment that it goes on from; 0 for the first of a log.
    pub previous: SegmentNumber,
}

/// Why a header is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderFault {
    /// It is not one of a segment, or not whole.
    Invalid,
    /// It was written by a version that this one does not know.
    Version(u32),
}

impl Header {
    /// Where the checksums of its records begin.
    pub fn seed(&self) -> u32 {
        let words = [self.log_id.to_le_bytes(), self.number.0.to_le_bytes()].concat();
        crc32c::crc32c(&words)
    }

    /// The place of the byte at this offset of the file.
    pub const fn lsn(&self, offset: u64) -> Lsn {
        Lsn(self.first.0 + (offset - HEADER_BYTES))
    }

    /// The offset in the file of this place.
    pub const fn offset(&self, at: Lsn) -> u64 {
        at.0 - self.first.0 + HEADER_BYTES
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Batch) {
        let begin = out.len();
        out.push(&MAGIC);
        out.push(&VERSION.to_le_bytes());
        out.push(&[0; 4]);
        let Self { log_id, number, first, next_id, oldest, previous } = self;
        for word in [number.0, *log_id, first.0, next_id.0, oldest.0, previous.0] {
            out.push(&word.to_le_bytes());
        }
        out.pad_to(begin + CHECKED_BYTES);
        let crc = crc32c::crc32c(&out.bytes()[begin..]);
        out.push(&crc.to_le_bytes());
        out.pad_to(begin + HEADER_BYTES as usize);
    }

    /// Whether these bytes begin with a header of the format that this version writes.
    pub fn is_current(bytes: &[u8]) -> bool {
        bytes.get(16..20) == Some(&VERSION.to_le_bytes()) && Self::decode(bytes).is_ok()
    }

    /// The header at the beginning of a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let (checked, rest) = bytes.split_at_checked(CHECKED_BYTES).ok_or(HeaderFault::Invalid)?;
        let crc = rest.first_chunk::<4>().ok_or(HeaderFault::Invalid)?;
        if checked[..MAGIC.len()] != MAGIC || crc32c::crc32c(checked).to_le_bytes() != *crc {
            return Err(HeaderFault::Invalid);
        }
        let version = u32::from_le_bytes(checked[16..20].try_into().expect("four bytes"));
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(HeaderFault::Version(version));
        }
        let word = |at: usize| u64::from_le_bytes(checked[at..at + 8].try_into().expect("eight bytes"));
        let header = Self {
            number: SegmentNumber(word(24)),
            log_id: word(32),
            first: Lsn(word(40)),
            next_id: JobId(word(48)),
            oldest: SegmentNumber(word(56)),
            previous: SegmentNumber(word(64)),
        };
        // What is counted on from is not left to a checksum.
        let is_possible = header.number <= SegmentNumber::LAST
            && header.first <= Lsn::LAST
            && header.next_id.0 <= JobId::LAST.0 + 1;
        if is_possible { Ok(header) } else { Err(HeaderFault::Invalid) }
    }
}
