//! All that can be read of a log, whatever has become of the rest.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::{fmt, io};

use crate::ids::JobId;
use crate::io::wal_files::storage::read_up_to;
use crate::wal::SegmentNumber;
use crate::wal::record::{ALIGN_BYTES, FRAME_BYTES, Framed, Lsn, Record};
use crate::wal::scan::Scanner;
use crate::wal::segment::{HEADER_BYTES, Header};

/// What is looked through for the first record of a segment without a header.
const SEARCH_BYTES: u64 = 1 << 24;

/// What is met on the way through a log.
#[derive(Debug)]
pub enum Finding<'a> {
    /// A segment that has records, or should have.
    Segment {
        /// Its file.
        file: &'a str,
        /// What its header says, or must have said.
        header: &'a Header,
        /// The header is not what was written there.
        is_headless: bool,
    },
    /// Records are missing here, of so many bytes.
    Gap {
        /// The file that they were in, or the one before theirs.
        file: &'a str,
        /// Where in it.
        offset: u64,
        /// Its position in the log.
        at: Lsn,
        /// How much of the log.
        bytes: u64,
    },
    /// A record that is as it was written.
    Record {
        /// The file that it is in.
        file: &'a str,
        /// Where in it.
        offset: u64,
        /// Its position in the log.
        at: Lsn,
        /// What it says.
        framed: &'a Framed<'a>,
    },
}

/// Why nothing can be read.
#[derive(Debug)]
pub enum SurveyError {
    /// A file cannot be read.
    Io(String, io::Error),
    /// No segment has a header, which is what tells its records from other bytes.
    NoHeader,
}

/// A segment that has records, or should have.
struct Segment {
    name: String,
    bytes: u64,
    header: Header,
    /// Its header was guessed.
    is_headless: bool,
    /// A later segment goes on from here: what is behind was given up by an earlier start.
    limit: Lsn,
}

/// Goes through all segments in their order, and tells what there is. Those that were never begun are passed over.
pub fn survey<E: From<SurveyError>>(
    directory: &Path,
    files: &BTreeMap<SegmentNumber, u64>,
    mut visit: impl FnMut(Finding<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let segments = segments(directory, files)?;
    let mut last: Option<(&Segment, Lsn)> = None;
    let mut window = Vec::new();
    for segment in &segments {
        let Segment { name, header, limit, .. } = segment;
        let failed = |error| SurveyError::Io(name.clone(), error);
        if let Some((before, end)) = last.filter(|(_, end)| *end < header.first) {
            let (file, offset) = (&*before.name, before.header.offset(end));
            visit(Finding::Gap { file, offset, at: end, bytes: header.first.0 - end.0 })?;
        }
        visit(Finding::Segment { file: name, header, is_headless: segment.is_headless })?;
        let mut end = header.first;
        let file = File::open(directory.join(name)).map_err(failed)?;
        let mut scanner = Scanner::new(file, segment.bytes, *header, window);
        while let Some((offset, framed)) = scanner.next_beyond().map_err(failed)? {
            let at = header.lsn(offset);
            if at >= *limit {
                break;
            }
            if end < at {
                let offset = header.offset(end);
                visit(Finding::Gap { file: name, offset, at: end, bytes: at.0 - end.0 })?;
            }
            end = Lsn(at.0 + framed.bytes as u64);
            visit(Finding::Record { file: name, offset, at, framed: &framed })?;
        }
        window = scanner.into_window();
        last = Some((segment, end));
    }
    Ok(())
}

fn segments(directory: &Path, files: &BTreeMap<SegmentNumber, u64>) -> Result<Vec<Segment>, SurveyError> {
    let mut headers = Vec::new();
    for &number in files.keys() {
        let name = number.to_string();
        let mut block = vec![0; HEADER_BYTES as usize];
        let read = File::open(directory.join(&name)).and_then(|file| read_up_to(&file, 0, &mut block));
        let count = read.map_err(|error| SurveyError::Io(name, error))?;
        headers.push(Header::decode(&block[..count]).ok());
    }
    let log_id = headers.iter().find_map(|header| header.map(|header| header.log_id));
    let log_id = log_id.ok_or(SurveyError::NoHeader)?;
    let mut segments = Vec::new();
    for ((&number, &bytes), header) in files.iter().zip(headers) {
        let name = number.to_string();
        let (header, is_headless) = match header {
            // It has not been used under this name, or it belongs to another log.
            _ if number > SegmentNumber::LAST => continue,
            Some(header) if header.number != number || header.log_id != log_id => continue,
            Some(header) => (header, false),
            None => {
                let file = File::open(directory.join(&name));
                match file.and_then(|file| guess_header(&file, bytes, number, log_id)) {
                    Ok(Some(header)) => (header, true),
                    Ok(None) => continue,
                    Err(error) => return Err(SurveyError::Io(name, error)),
                }
            }
        };
        segments.push(Segment { name, bytes, header, is_headless, limit: Lsn(u64::MAX) });
    }
    for at in (1..segments.len()).rev() {
        segments[at - 1].limit = segments[at].limit.min(segments[at].header.first);
    }
    Ok(segments)
}

/// What the header must have said, by the position of a record behind it. None if there is no record.
fn guess_header(file: &File, bytes: u64, number: SegmentNumber, log_id: u64) -> io::Result<Option<Header>> {
    let (oldest, previous) = (SegmentNumber(0), SegmentNumber(0));
    let mut header = Header { log_id, number, first: Lsn(0), next_id: JobId(0), oldest, previous };
    let seed = header.seed();
    let mut searched = vec![0; SEARCH_BYTES.min(bytes) as usize];
    let count = read_up_to(file, HEADER_BYTES, &mut searched)?;
    searched.truncate(count);
    for begin in (0..count.saturating_sub(FRAME_BYTES)).step_by(ALIGN_BYTES) {
        let word = searched[begin + 8..begin + 16].try_into().expect("eight bytes");
        let at = u64::from_le_bytes(word);
        let found = Record::find(&searched[begin..], seed, Lsn(at));
        let first = at.checked_sub(begin as u64).map(Lsn).filter(|&first| first <= Lsn::LAST);
        if let (Ok(_), Some(first)) = (found, first) {
            header.first = first;
            return Ok(Some(header));
        }
    }
    Ok(None)
}

impl fmt::Display for SurveyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(file, error) => write!(f, "{file}: {error}"),
            Self::NoHeader => {
                write!(f, "no file has a sound header, without which its records cannot be told")
            }
        }
    }
}
