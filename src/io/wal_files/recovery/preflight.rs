//! Whether a server would start from a job log that another one may be writing: by the headers and the end, since all of it takes long.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::reader::{read_header, refuse_strays};
use super::{RecoveryError, io_error};
use crate::io::wal_files::directory::segments_in;
use crate::io::wal_files::end_marks::{END_MARKS, EndMarks};
use crate::io::wal_files::storage::Segments;
use crate::wal::scan::Scanner;
use crate::wal::segment::{Header, Headers};
use crate::wal::{EndMark, SegmentNumber};

/// What a server is writing is whole a moment later.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Checks the headers of all files, that no segment is missing between them, and that the records reach the mark of the log's end. Records
/// of other segments are not read, and nothing shows whether the first segments are still needed. Changes nothing.
///
/// # Errors
/// If a server would refuse the log.
pub fn preflight(path: &Path) -> Result<(), RecoveryError> {
    let mut attempt = 1;
    // A server changes the files. Damage stays.
    while let Err(error) = check(path) {
        if attempt == ATTEMPTS {
            return Err(error);
        }
        attempt += 1;
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn check(path: &Path) -> Result<(), RecoveryError> {
    // Before the records, so that they are behind it.
    let marks = EndMarks::read(path).map_err(|error| io_error(END_MARKS[0], error))?;
    let mut files = segments_in(path).map_err(RecoveryError::of_directory)?;
    // The newest first: a segment that has a header has one before it.
    let headers = files.keys().rev().map(|&number| Ok((number, header_of(path, number)?)));
    let headers = headers.collect::<Result<Vec<_>, RecoveryError>>()?.into_iter();
    let headers: Headers = headers.filter_map(|(number, header)| Some((number, header?))).collect();
    files.retain(|number, _| headers.contains_key(number));
    let Some(log_id) = marks.log_id(&headers) else { return Ok(()) };
    refuse_strays(&marks, &headers, log_id)?;
    let own = headers.iter().filter_map(|(&number, header)| header.filter(|header| header.number == number));
    let own: Vec<Header> = own.collect();
    if let Some(pair) = own.windows(2).find(|pair| pair[1].previous != pair[0].number) {
        return Err(absent(pair[1].previous, &files));
    }
    // Without a file of its own, it may have been retired since a header named it.
    if let Some(first) = own.first().filter(|first| files.contains_key(&first.previous)) {
        return Err(absent(first.previous, &files));
    }
    let Some(mark) = marks.last_of(log_id) else { return Ok(()) };
    match own.iter().find(|header| header.number == mark.segment) {
        Some(header) => reach(path, &mark, *header, files[&mark.segment]),
        // The log may have gone on, and the segment been recycled.
        None if own.last().is_some_and(|last| last.number > mark.segment) => Ok(()),
        None => Err(absent(mark.segment, &files)),
    }
}

/// A segment that has no header under its number.
fn absent(number: SegmentNumber, files: &BTreeMap<SegmentNumber, u64>) -> RecoveryError {
    let file = number.to_string();
    if files.contains_key(&number) {
        RecoveryError::Damaged { file, offset: 0 }
    } else {
        RecoveryError::Missing(file)
    }
}

/// Returns what is in the place of a header, or none if a server has removed or renamed the file.
fn header_of(path: &Path, number: SegmentNumber) -> Result<Option<Option<Header>>, RecoveryError> {
    match read_header(path, number) {
        Err(RecoveryError::Io(_, error)) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Refuses a segment whose records end before the mark.
fn reach(path: &Path, mark: &EndMark, header: Header, bytes: u64) -> Result<(), RecoveryError> {
    let file = mark.segment.to_string();
    let failed = |error| io_error(&file, error);
    let opened = match path.open(mark.segment) {
        // It was recycled: the log has gone on.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        result => result.map_err(failed)?,
    };
    let mut scanner = Scanner::new(opened, bytes, header, Vec::new());
    while scanner.end() < mark.end && scanner.next_record().map_err(failed)?.is_some() {}
    if scanner.end() >= mark.end {
        return Ok(());
    }
    let offset = header.offset(scanner.end());
    // A server may have recycled the file since: then these are other records.
    match header_of(path, mark.segment)? {
        Some(Some(now)) if now.number == mark.segment => Err(RecoveryError::Damaged { file, offset }),
        _ => Ok(()),
    }
}
