//! The mark of the log's end, which is kept outside the log: recovery notices with it that the last segments of a closed log are gone.

use super::record::Lsn;
use super::segment::SegmentNumber;

/// The size of an encoded mark.
pub const MARK_BYTES: usize = 44;

const MAGIC: [u8; 16] = *b"beanring end\r\n\x1a\0";

/// Says that the log was on disk up to a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndMark {
    /// See [`Header::log_id`](super::segment::Header::log_id).
    pub log_id: u64,
    /// The segment that the position is in.
    pub segment: SegmentNumber,
    /// Everything before it was on disk.
    pub end: Lsn,
}

impl EndMark {
    /// Returns the bytes of the mark. The last four are the CRC-32C of the others.
    pub fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..16].copy_from_slice(&MAGIC);
        bytes[16..24].copy_from_slice(&self.log_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.segment.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.end.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a mark. Returns none if it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<MARK_BYTES>()?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let is_sound = bytes[..16] == MAGIC && crc32c::crc32c(&bytes[..40]).to_le_bytes() == bytes[40..];
        let mark = Self { log_id: word(16), segment: SegmentNumber(word(24)), end: Lsn(word(32)) };
        is_sound.then_some(mark)
    }
}
