//! The format of chunks, the rows of the log in the database (docs/internals/REPLICATION.md). All numbers are little-endian.
//!
//! ```text
//!  0      4        6      8       16       24         32          40        48     52      56      60       64
//!  | BRL1 | format | kind | epoch | log id | position | first LSN | segment | part | parts | bytes | crc32c | payload ...
//! ```
//! A batch of the WAL is one chunk, or several if it is large. The checksum covers the chunk without itself.

use bytes::{BufMut, Bytes, BytesMut};

use super::request::{Epoch, Position};
use crate::wal::record::Lsn;
use crate::wal::segment::{HeaderFault, SegmentNumber};

/// Bytes of a batch in a chunk. The database stores a larger value no faster, and a smaller one is repeated sooner.
pub const PAYLOAD_BYTES_MAX: usize = 512 * 1024;

const MAGIC: [u8; 4] = *b"BRL1";

/// The format that this version writes, and the only one that it reads.
const FORMAT: u16 = 1;

const HEADER_BYTES: usize = 64;

/// Where the checksum is.
const CRC_AT: usize = 60;

/// The meaning of a chunk, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A batch of the WAL, or a part of one.
    Data = 1,
    /// A new epoch begins: the first chunk of a leader.
    Epoch = 2,
    /// The leader leaves.
    Farewell = 3,
}

/// The fields of a chunk before its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct ChunkHeader {
    pub kind: Kind,
    pub epoch: Epoch,
    pub log_id: u64,
    pub position: Position,
    /// The position in the WAL of the first record of the batch; of an epoch, where the WAL continues.
    pub lsn: Lsn,
    /// The segment of the batch; 0 without one.
    pub segment: SegmentNumber,
    /// Which part of the batch this is, from 0 on.
    pub part: u32,
    /// How many parts the batch has; 0 without one.
    pub parts: u32,
}

impl ChunkHeader {
    /// Returns the header of a chunk without a batch.
    pub(super) const fn alone(kind: Kind, epoch: Epoch, log_id: u64, position: Position) -> Self {
        let (lsn, segment) = (Lsn(0), SegmentNumber(0));
        Self { kind, epoch, log_id, position, lsn, segment, part: 0, parts: 0 }
    }

    /// Returns the chunk with this payload.
    ///
    /// # Panics
    /// If the payload is larger than [`PAYLOAD_BYTES_MAX`].
    pub fn encode(&self, payload: &[u8]) -> Bytes {
        assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a large batch is split");
        let mut out = BytesMut::with_capacity(HEADER_BYTES + payload.len());
        out.put_slice(&MAGIC);
        out.put_u16_le(FORMAT);
        out.put_u16_le(self.kind as u16);
        for word in [self.epoch.0, self.log_id, self.position.0, self.lsn.0, self.segment.0] {
            out.put_u64_le(word);
        }
        out.put_u32_le(self.part);
        out.put_u32_le(self.parts);
        out.put_u32_le(payload.len() as u32);
        out.put_u32_le(0);
        out.put_slice(payload);
        let crc = checksum(&out);
        out[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        out.freeze()
    }

    /// Returns the header and the payload of a chunk.
    ///
    /// # Errors
    /// If the bytes are no chunk or a damaged one, or the format is unknown.
    pub fn decode(chunk: &[u8]) -> Result<(Self, &[u8]), HeaderFault> {
        let (header, payload) = chunk.split_first_chunk::<HEADER_BYTES>().ok_or(HeaderFault::Invalid)?;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        if header[..4] != MAGIC || word(56) as usize != payload.len() || word(CRC_AT) != checksum(chunk) {
            return Err(HeaderFault::Invalid);
        }
        if half(4) != FORMAT {
            return Err(HeaderFault::Version(half(4).into()));
        }
        let kind = match half(6) {
            1 => Kind::Data,
            2 => Kind::Epoch,
            3 => Kind::Farewell,
            _ => return Err(HeaderFault::Invalid),
        };
        let header = Self {
            kind,
            epoch: Epoch(long(8)),
            log_id: long(16),
            position: Position(long(24)),
            lsn: Lsn(long(32)),
            segment: SegmentNumber(long(40)),
            part: word(48),
            parts: word(52),
        };
        Ok((header, payload))
    }
}

/// The number that stands for a chunk when two are compared: its checksum, the four bytes at offset 60.
pub fn identity(chunk: &[u8]) -> Option<u32> {
    let crc = chunk.get(CRC_AT..HEADER_BYTES)?;
    Some(u32::from_le_bytes(crc.try_into().expect("four bytes")))
}

fn checksum(chunk: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&chunk[..CRC_AT]), &chunk[HEADER_BYTES..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ChunkHeader {
        ChunkHeader {
            kind: Kind::Data,
            epoch: Epoch(7),
            log_id: 0x0123_4567_89ab_cdef,
            position: Position(42),
            lsn: Lsn(4096),
            segment: SegmentNumber(3),
            part: 1,
            parts: 2,
        }
    }

    #[test]
    fn a_chunk_is_read_as_it_was_written() {
        for kind in [Kind::Data, Kind::Epoch, Kind::Farewell] {
            let header = ChunkHeader { kind, ..header() };
            let chunk = header.encode(b"records");
            assert_eq!(ChunkHeader::decode(&chunk), Ok((header, &b"records"[..])));
        }
    }

    #[test]
    fn every_changed_bit_and_every_missing_byte_is_noticed() {
        let chunk = header().encode(b"records");
        for bit in 0..chunk.len() * 8 {
            let mut changed = chunk.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ChunkHeader::decode(&changed), Err(HeaderFault::Invalid), "bit {bit}");
        }
        for len in 0..chunk.len() {
            assert_eq!(ChunkHeader::decode(&chunk[..len]), Err(HeaderFault::Invalid), "{len} bytes");
        }
    }

    #[test]
    fn a_later_format_is_named() {
        let mut chunk = header().encode(b"").to_vec();
        chunk[4] = 2;
        let crc = checksum(&chunk);
        chunk[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(ChunkHeader::decode(&chunk), Err(HeaderFault::Version(2)));
    }
}
