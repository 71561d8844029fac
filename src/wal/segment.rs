//! Segments: the pieces of the log, each with a header that says where it belongs.

use std::collections::BTreeMap;
use std::fmt;

use super::batch::{BLOCK_BYTES, Batch};
use super::checksum::seed_of;
use super::record::Lsn;
use crate::values::ids::JobId;

/// The header has a block of its own, which no record shares.
pub const HEADER_BYTES: u64 = BLOCK_BYTES as u64;

/// The largest segment that `-s` accepts.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// The smallest segment: it holds a few of the largest small records.
pub const SEGMENT_BYTES_MIN: u64 = 64 * 1024;

const MAGIC: [u8; 16] = *b"beanring log\r\n\x1a\0";

/// The format without records of reservations. A new format is needed if an older version would mistake new records for damage
/// or a torn write.
pub const FORMAT: u32 = 7;

/// The format with records of reservations, which is written only if they are kept.
pub const FORMAT_WITH_RESERVATIONS: u32 = 8;

/// The format of segments with or without records of reservations.
pub const fn format_of(keeps_reservations: bool) -> u32 {
    if keeps_reservations { FORMAT_WITH_RESERVATIONS } else { FORMAT }
}

/// The oldest format that this version reads. Those before it have no checks of heads.
pub const FORMAT_MIN: u32 = 5;

/// Which version has a format that this one does not read.
pub const fn version_of(format: u32) -> &'static str {
    if format < FORMAT_MIN { "an older version of beanring" } else { "a newer version of beanring" }
}

/// Bytes that the checksum of the header covers.
const CHECKED_BYTES: usize = 72;

/// The number of a segment. Later segments have larger numbers; 0 stands for none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct SegmentNumber(pub u64);

impl SegmentNumber {
    /// The largest valid number. No log is expected to reach it: 40 PiB in segments of the default size.
    pub const LAST: Self = Self(0xffff_0000);

    /// The largest number in a name. Prepared files may have larger ones than [`LAST`](Self::LAST).
    pub const LAST_NAME: Self = Self(u32::MAX as u64);

    /// Returns the number for the name of a segment's file.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("log.")?;
        let is_canonical =
            digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_canonical.then(|| u64::from_str_radix(digits, 16).ok().map(Self)).flatten()
    }

    /// Returns the next number.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Whether a file of the log may have held records under another number, given the oldest segment that is needed. If the
/// first one still is, none has been recycled.
pub fn may_be_recycled(oldest: SegmentNumber) -> bool {
    oldest > SegmentNumber(1)
}

/// Writes the name of the segment, which is that of its file.
impl fmt::Display for SegmentNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log.{:016x}", self.0)
    }
}

/// The header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The format of the segment.
    pub format: u32,
    /// A random number that all segments of a log share. It distinguishes files of another log.
    pub log_id: u64,
    /// The number of the segment. In a recycled file that was not written to, it differs from the name of the file.
    pub number: SegmentNumber,
    /// The position of the first record.
    pub first: Lsn,
    /// The next id when the segment began: no job had it, or a larger one.
    pub next_id: JobId,
    /// The oldest segment when this one began: itself or one before it.
    pub oldest: SegmentNumber,
    /// The segment before it; 0 for the first of a log.
    pub previous: SegmentNumber,
}

/// Why bytes are not a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderFault {
    /// They were not written as a header, or are damaged.
    Invalid,
    /// They have this format version, which is unknown.
    Version(u32),
}

/// The headers of files, by the numbers in their names. A file of zeros has none.
pub type Headers = BTreeMap<SegmentNumber, Option<Header>>;

/// Returns the id of the log that most files belong to: that of the largest position, if there are several. Files that do not have the
/// number of their name count only if no file has.
pub fn log_of_most(headers: &Headers) -> Option<u64> {
    let mut logs: BTreeMap<u64, (u32, u32, Lsn)> = BTreeMap::new();
    for (&number, header) in headers {
        let Some(header) = header else { continue };
        let (own, all, first) = logs.entry(header.log_id).or_default();
        (*own, *all) = (*own + u32::from(header.number == number), *all + 1);
        *first = header.first.max(*first);
    }
    logs.into_iter().max_by_key(|&(_, weight)| weight).map(|(log_id, _)| log_id)
}

/// Whether a file with the header of another number has a name that no server has given it. A server gives a recycled file a larger number,
/// and then no file has the old one.
pub fn is_misnamed(number: SegmentNumber, header: &Header, headers: &Headers) -> bool {
    let is_taken = |other: &Option<Header>| other.is_none_or(|other| other.number != header.number);
    header.number > number || headers.get(&header.number).is_some_and(is_taken)
}

impl Header {
    /// Returns the seed that the checksums of the segment's records begin with.
    pub fn seed(&self) -> u32 {
        let words = [self.log_id.to_le_bytes(), self.number.0.to_le_bytes()].concat();
        crc32c::crc32c(&words)
    }

    /// Returns a log id that gives the segment of this number this [seed](Self::seed), and every other segment of the log the
    /// seed that it has. The log may have another id with the same checksum.
    pub fn log_id_of(seed: u32, number: SegmentNumber) -> u64 {
        let checksum = seed_of(seed, &number.0.to_le_bytes());
        // The first four bytes are combined with the seed by exclusive or: an id below 2^32 has the checksum that eight zeros
        // have with the id as their seed.
        seed_of(checksum, &[0; 8]).into()
    }

    /// A header for a segment without one, whose first record has this position.
    pub const fn reconstructed(number: SegmentNumber, log_id: u64, first: Lsn) -> Self {
        let (oldest, previous) = (SegmentNumber(0), SegmentNumber(0));
        Self { format: FORMAT, log_id, number, first, next_id: JobId(0), oldest, previous }
    }

    /// Returns the position of the byte at this offset in the file.
    pub const fn lsn(&self, offset: u64) -> Lsn {
        Lsn(self.first.0 + (offset - HEADER_BYTES))
    }

    /// Returns the offset in the file of this position.
    pub const fn offset(&self, at: Lsn) -> u64 {
        at.0 - self.first.0 + HEADER_BYTES
    }

    /// Appends the header to a batch.
    pub fn encode(&self, out: &mut Batch) {
        let begin = out.len();
        out.push(&MAGIC);
        out.push(&self.format.to_le_bytes());
        out.push(&[0; 4]);
        let Self { format: _, log_id, number, first, next_id, oldest, previous } = self;
        for word in [number.0, *log_id, first.0, next_id.0, oldest.0, previous.0] {
            out.push(&word.to_le_bytes());
        }
        out.pad_to(begin + CHECKED_BYTES);
        let crc = crc32c::crc32c(&out.bytes()[begin..]);
        out.push(&crc.to_le_bytes());
        out.pad_to(begin + HEADER_BYTES as usize);
    }

    /// Decodes the header at the beginning of a file.
    ///
    /// # Errors
    /// If there is none, or its format is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let (checked, rest) = bytes.split_at_checked(CHECKED_BYTES).ok_or(HeaderFault::Invalid)?;
        let crc = rest.first_chunk::<4>().ok_or(HeaderFault::Invalid)?;
        if checked[..MAGIC.len()] != MAGIC || crc32c::crc32c(checked).to_le_bytes() != *crc {
            return Err(HeaderFault::Invalid);
        }
        let format = u32::from_le_bytes(checked[16..20].try_into().expect("four bytes"));
        if !(FORMAT_MIN..=FORMAT_WITH_RESERVATIONS).contains(&format) {
            return Err(HeaderFault::Version(format));
        }
        let word = |at: usize| u64::from_le_bytes(checked[at..at + 8].try_into().expect("eight bytes"));
        let header = Self {
            format,
            number: SegmentNumber(word(24)),
            log_id: word(32),
            first: Lsn(word(40)),
            next_id: JobId(word(48)),
            oldest: SegmentNumber(word(56)),
            previous: SegmentNumber(word(64)),
        };
        // Positions and ids continue from these values, and a checksum alone does not guarantee that there is space.
        let is_possible = header.number <= SegmentNumber::LAST
            && header.first <= Lsn::LAST
            && header.next_id.0 <= JobId::LAST.0 + 1;
        if is_possible { Ok(header) } else { Err(HeaderFault::Invalid) }
    }
}
