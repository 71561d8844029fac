//! Reading every valid record of a job log, past any damage.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::backup::first_block;
use super::{Extent, ToolError};
use crate::io::wal_files::end_marks::{END_MARKS, EndMarks};
use crate::io::wal_files::plain_file;
use crate::io::wal_files::storage::{Segments, next_data, read_up_to};
use crate::wal::record::{ALIGN_BYTES, FRAME_BYTES, Framed, Lsn, Record};
use crate::wal::scan::{SUMS_PER_BYTE, Scanner};
use crate::wal::segment::{self, HEADER_BYTES, Header, HeaderFault, Headers};
use crate::wal::{EndMark, SegmentNumber};

/// Bytes that are searched for the first record of a segment without a valid header.
const SEARCH_BYTES: u64 = 1 << 24;

/// Records that must agree on a seed.
const RECORDS_MIN: u32 = 2;

/// A part of a job log, in the order of the log.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Finding<'a> {
    /// A segment that has records, or should have.
    Segment {
        file: &'a str,
        /// Its header, or one that was reconstructed from a record.
        header: &'a Header,
        is_headless: bool,
        bytes: u64,
    },
    /// Records are missing here.
    Gap {
        /// The file that they were in, or the one before theirs.
        file: &'a str,
        offset: u64,
        at: Lsn,
        bytes: u64,
    },
    /// A file belongs to another job log, so nothing of it is read.
    OtherLog {
        file: &'a str,
        log_id: u64,
        /// The id of the log in this directory.
        expected: u64,
    },
    /// A file is missing, with these records.
    Missing { file: &'a str, at: Lsn, bytes: u64 },
    /// A valid record.
    Record { file: &'a str, offset: u64, at: Lsn, framed: &'a Framed<'a> },
}

/// A segment that has records, or should have.
struct Segment {
    name: String,
    bytes: u64,
    header: Header,
    /// Whether its header is reconstructed.
    is_headless: bool,
    /// A later segment begins at this position: an earlier start discarded the records behind it.
    limit: Lsn,
}

/// A segment that was visited.
#[derive(Clone, Copy)]
struct Surveyed<'a> {
    segment: &'a Segment,
    /// The position behind its last valid record.
    end: Lsn,
    /// Whether nothing shows damage behind that record.
    is_whole: bool,
}

/// Visits all segments with records, in order, with their records and the gaps between them.
pub fn survey(
    directory: &Path,
    files: &BTreeMap<SegmentNumber, u64>,
    mut visit: impl FnMut(Finding<'_>) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let Survey { segments, unreadable, foreign, log_id, mark } = segments(directory, files)?;
    for (file, other) in &foreign {
        visit(Finding::OtherLog { file, log_id: *other, expected: log_id })?;
    }
    for Extent { file, offset, bytes } in &unreadable {
        visit(Finding::Gap { file, offset: *offset, at: Lsn(0), bytes: *bytes })?;
    }
    let mut last: Option<Surveyed> = None;
    let mut window = Vec::new();
    let mut oldest = SegmentNumber(0);
    for segment in &segments {
        let Segment { name, bytes, header, is_headless, limit } = segment;
        let failed = cannot_read(name);
        if let Some(before) = last.filter(|before| before.end < header.first) {
            let (at, bytes) = (before.end, header.first.0 - before.end.0);
            let is_missing =
                header.previous > before.segment.header.number && !files.contains_key(&header.previous);
            if is_missing {
                visit(Finding::Missing { file: &header.previous.to_string(), at, bytes })?;
            }
            if !is_missing || !before.is_whole {
                let (file, offset) = (&*before.segment.name, before.segment.header.offset(at));
                visit(Finding::Gap { file, offset, at, bytes })?;
            }
        }
        visit(Finding::Segment { file: name, header, is_headless: *is_headless, bytes: *bytes })?;
        oldest = oldest.max(header.oldest);
        let mut end = header.first;
        let file = plain_file::open_to_read(&directory.join(name)).map_err(&failed)?;
        let mut scanner = Scanner::new(file, *bytes, *header, window);
        while let Some((offset, framed)) = scanner.next_beyond().map_err(&failed)? {
            let at = header.lsn(offset);
            if at >= *limit {
                break;
            }
            if end < at {
                let offset = header.offset(end);
                visit(Finding::Gap { file: name, offset, at: end, bytes: at.0 - end.0 })?;
            }
            end = Lsn(at.0 + framed.bytes as u64);
            if let Record::Oldest(segment) = framed.record {
                oldest = oldest.max(segment);
            }
            visit(Finding::Record { file: name, offset, at, framed: &framed })?;
        }
        // Behind the end of the job log only traces show that there were records. Elsewhere the next segment does.
        let traces_end =
            if segment::may_be_recycled(oldest) { scanner.traces_end } else { scanner.nonzero_end };
        let offset = header.offset(end);
        if *limit == Lsn(u64::MAX) && traces_end > offset {
            visit(Finding::Gap { file: name, offset, at: end, bytes: traces_end - offset })?;
        }
        window = scanner.into_window();
        last = Some(Surveyed { segment, end, is_whole: traces_end <= offset });
    }
    let Some(mark) = mark else { return Ok(()) };
    let at = last.map_or(Lsn(0), |last| last.end);
    if at >= mark.end {
        return Ok(());
    }
    let (file, bytes) = (&*mark.segment.to_string(), mark.end.0 - at.0);
    match last {
        _ if !files.contains_key(&mark.segment) => visit(Finding::Missing { file, at, bytes }),
        Some(Surveyed { segment: Segment { name, header, .. }, .. }) if header.number >= mark.segment => {
            visit(Finding::Gap { file: name, offset: header.offset(at), at, bytes })
        }
        _ => visit(Finding::Gap { file, offset: 0, at, bytes }),
    }
}

fn cannot_read(file: &str) -> impl Fn(io::Error) -> ToolError {
    move |error| ToolError::Unreadable(file.to_owned(), error)
}

/// The result of reading all headers.
struct Survey {
    segments: Vec<Segment>,
    /// Bytes of files that have neither a header nor a valid record.
    unreadable: Vec<Extent>,
    /// Files of other logs, with their ids.
    foreign: Vec<(String, u64)>,
    log_id: u64,
    /// The last mark of its end.
    mark: Option<EndMark>,
}

/// Returns the bytes of a file from the first to the last that is not zero, if there is one.
pub fn unreadable_bytes(directory: &Path, number: SegmentNumber) -> io::Result<Option<Extent>> {
    let file = directory.open(number)?;
    let (mut from, mut end, mut at) = (None, 0, 0);
    let mut piece = vec![0; 1 << 20];
    while let Some(begin) = next_data(&file, at) {
        at = begin;
        let count = read_up_to(&file, at, &mut piece)?;
        if let Some(first) = piece[..count].iter().position(|&byte| byte != 0) {
            let last = piece[..count].iter().rposition(|&byte| byte != 0).expect("one is not zero");
            from.get_or_insert(at + first as u64);
            end = at + last as u64 + 1;
        }
        at += count as u64;
        if count < piece.len() {
            break;
        }
    }
    Ok(from.map(|offset| Extent { file: number.to_string(), offset, bytes: end - offset }))
}

fn segments(directory: &Path, files: &BTreeMap<SegmentNumber, u64>) -> Result<Survey, ToolError> {
    let marks = EndMarks::read(directory).map_err(cannot_read(END_MARKS[0]))?;
    let mut headers = Vec::new();
    let mut is_blank = true;
    for &number in files.keys() {
        let name = number.to_string();
        let block = directory.open(number).and_then(|file| first_block(&file)).map_err(cannot_read(&name))?;
        is_blank &= block.iter().all(|&byte| byte == 0) && number <= SegmentNumber::LAST;
        headers.push(Header::decode(&block));
    }
    let unreadable_of =
        |number: SegmentNumber| unreadable_bytes(directory, number).map_err(cannot_read(&number.to_string()));
    if is_blank {
        // As on a disk where the first write of a job log was torn.
        let unreadable = files.keys().filter_map(|&number| unreadable_of(number).transpose());
        let unreadable = unreadable.collect::<Result<_, _>>()?;
        let mark = marks.last().map(|(_, mark)| mark);
        return Ok(Survey { segments: Vec::new(), unreadable, foreign: Vec::new(), log_id: 0, mark });
    }
    let found: Headers = files.keys().copied().zip(headers.iter().map(|header| header.ok())).collect();
    let log_id = log_id(directory, &found, &headers, &marks)?;
    let (mut segments, mut unreadable, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
    foreign.extend(marks.foreign(log_id).map(|(file, mark)| (file.to_owned(), mark.log_id)));
    let own = found.values().flatten().filter(|header| header.log_id == log_id);
    let oldest = own.map(|header| header.oldest).max().unwrap_or(SegmentNumber(0));
    for ((&number, &bytes), header) in files.iter().zip(headers) {
        let name = number.to_string();
        let is_right = |header: &Header| {
            let is_needed = !files.contains_key(&header.number) && header.number >= oldest;
            header.number == number || is_needed || segment::is_misnamed(number, header, &found)
        };
        let (header, is_headless) = match header.ok() {
            _ if number > SegmentNumber::LAST => continue,
            Some(header) if header.log_id != log_id => {
                foreign.push((name, header.log_id));
                continue;
            }
            // The segment is unused.
            Some(header) if !is_right(&header) => continue,
            Some(header) => (header, false),
            None => {
                let found = reconstruct_header(directory, number, log_id);
                let Some(header) = found.map_err(cannot_read(&name))? else {
                    // A file that was never used has zeros there.
                    unreadable.extend(unreadable_of(number)?.filter(|bytes| bytes.offset < HEADER_BYTES));
                    continue;
                };
                (header, true)
            }
        };
        segments.push(Segment { name, bytes, header, is_headless, limit: Lsn(u64::MAX) });
    }
    // Of several files with one header, that counts which has its name.
    segments.sort_by_key(|segment: &Segment| {
        (segment.header.number, segment.name != segment.header.number.to_string())
    });
    segments.dedup_by_key(|segment| segment.header.number);
    for at in (1..segments.len()).rev() {
        segments[at - 1].limit = segments[at].limit.min(segments[at].header.first);
    }
    Ok(Survey { segments, unreadable, foreign, log_id, mark: marks.last_of(log_id) })
}

/// Returns the id of the log: that of most valid headers, or else the one that a mark of its end or the records show.
fn log_id(
    directory: &Path,
    found: &Headers,
    headers: &[Result<Header, HeaderFault>],
    marks: &EndMarks,
) -> Result<u64, ToolError> {
    if let Some(log_id) = marks.log_id(found).or(marks.last().map(|(_, mark)| mark.log_id)) {
        return Ok(log_id);
    }
    let mut shown = Vec::new();
    for (&number, header) in found.keys().zip(headers) {
        if let Err(HeaderFault::Version(version)) = header {
            return Err(ToolError::Version(number.to_string(), *version));
        }
        shown.extend(shown_by(directory, number).map_err(cannot_read(&number.to_string()))?);
    }
    agreed_id(shown.into_iter()).ok_or(ToolError::NoLogId)
}

/// Reconstructs a header from the position of a record behind it. Returns none if there is no record.
fn reconstruct_header(directory: &Path, number: SegmentNumber, log_id: u64) -> io::Result<Option<Header>> {
    let mut header = Header::reconstructed(number, log_id, Lsn(0));
    let (seed, searched) = (header.seed(), first_records(directory, number)?);
    for begin in (0..searched.len().saturating_sub(FRAME_BYTES)).step_by(ALIGN_BYTES) {
        let word = searched[begin + 8..begin + 16].try_into().expect("eight bytes");
        let at = u64::from_le_bytes(word);
        let found = Record::head(&searched[begin..], seed, Lsn(at));
        let first = at.checked_sub(begin as u64).map(Lsn).filter(|&first| first <= Lsn::LAST);
        if let (Ok(_), Some(first)) = (found, first) {
            header.first = first;
            return Ok(Some(header));
        }
    }
    Ok(None)
}

/// Returns the bytes of a segment behind its header that are searched for records.
fn first_records(directory: &Path, number: SegmentNumber) -> io::Result<Vec<u8>> {
    let file = directory.open(number)?;
    let mut bytes = vec![0; file.metadata()?.len().min(SEARCH_BYTES) as usize];
    let count = read_up_to(&file, HEADER_BYTES, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Returns the id that the records of a segment show, if there are enough of them, and the position of the last one. Checksums begin with
/// a seed that follows from the id and the number of the segment.
fn shown_by(directory: &Path, number: SegmentNumber) -> io::Result<Option<(u64, Lsn)>> {
    let seed = agreed_seed(&first_records(directory, number)?);
    Ok(seed.map(|(seed, last)| (Header::log_id_of(seed, number), last)))
}

/// Returns the id that most segments show. If the records of an earlier use of a file show another one, those at the end of
/// the log decide.
fn agreed_id(shown: impl Iterator<Item = (u64, Lsn)>) -> Option<u64> {
    let mut votes: BTreeMap<u64, (u32, Lsn)> = BTreeMap::new();
    for (log_id, last) in shown {
        let (segments, end) = votes.entry(log_id).or_default();
        (*segments, *end) = (*segments + 1, last.max(*end));
    }
    votes.into_iter().max_by_key(|&(_, vote)| vote).map(|(log_id, _)| log_id)
}

/// Returns the seed that several records agree on, and the position of the last of them. What a recycled file had before is
/// at smaller positions.
fn agreed_seed(bytes: &[u8]) -> Option<(u32, Lsn)> {
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
