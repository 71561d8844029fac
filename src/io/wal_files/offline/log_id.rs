//! The id of a job log whose headers are all damaged, as its records show it: their checksums begin with a seed that follows
//! from the id and the number of the segment.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::survey::SEARCH_BYTES;
use crate::io::wal_files::plain_file;
use crate::io::wal_files::storage::read_up_to;
use crate::wal::SegmentNumber;
use crate::wal::record::{ALIGN_BYTES, Lsn, Record};
use crate::wal::scan::SUMS_PER_BYTE;
use crate::wal::segment::{HEADER_BYTES, Header};

/// Records that must agree on a seed.
const RECORDS_MIN: u32 = 2;

/// Returns the id that the records of a segment show, if there are enough of them, and the position of the last one.
pub fn shown_by(directory: &Path, number: SegmentNumber) -> io::Result<Option<(u64, Lsn)>> {
    let file = plain_file::open_to_read(&directory.join(number.to_string()))?;
    let mut bytes = vec![0; file.metadata()?.len().min(SEARCH_BYTES) as usize];
    let count = read_up_to(&file, HEADER_BYTES, &mut bytes)?;
    Ok(seed(&bytes[..count]).map(|(seed, last)| (Header::log_id_of(seed, number), last)))
}

/// Returns the id that most segments show. If the records of an earlier use of a file show another one, those at the end of
/// the log decide.
pub fn agreed(shown: impl Iterator<Item = (u64, Lsn)>) -> Option<u64> {
    let mut votes: BTreeMap<u64, (u32, Lsn)> = BTreeMap::new();
    for (log_id, last) in shown {
        let (segments, end) = votes.entry(log_id).or_default();
        (*segments, *end) = (*segments + 1, last.max(*end));
    }
    votes.into_iter().max_by_key(|&(_, vote)| vote).map(|(log_id, _)| log_id)
}

/// Returns the seed that several records agree on, and the position of the last of them. What a recycled file had before is
/// at smaller positions.
fn seed(bytes: &[u8]) -> Option<(u32, Lsn)> {
    let mut seeds: BTreeMap<u32, (u32, Lsn)> = BTreeMap::new();
    let (mut at, mut left) = (0, SUMS_PER_BYTE as usize * bytes.len());
    while at < bytes.len() {
        let head = Record::seed(&bytes[at..]);
        let record =
            head.and_then(|(position, whole, seed)| Some((position, bytes.get(at..at + whole)?, seed)));
        let Some((position, record, seed)) = record.filter(|(_, record, _)| record.len() <= left) else {
            at += ALIGN_BYTES;
            continue;
        };
        if !Record::is_sound(record, seed) {
            left -= record.len();
            at += ALIGN_BYTES;
            continue;
        }
        let (records, last) = seeds.entry(seed).or_default();
        (*records, *last) = (*records + 1, position.max(*last));
        // Not within the record: the body of a job may look like anything.
        at += record.len();
    }
    let agreed = seeds.into_iter().filter(|(_, (records, _))| *records >= RECORDS_MIN);
    agreed.map(|(seed, (_, last))| (seed, last)).max_by_key(|&(_, last)| last)
}
