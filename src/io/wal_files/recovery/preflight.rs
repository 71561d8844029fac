//! Whether a server would start from a job log that another one may be writing: by the headers and the end, since all of it takes long.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::reader::read_header;
use super::{RecoveryError, io_error};
use crate::io::wal_files::directory::segments_in;
use crate::io::wal_files::end_marks::{END_MARKS, EndMarks};
use crate::io::wal_files::storage::Segments;
use crate::wal::scan::Scanner;
use crate::wal::segment::Header;
use crate::wal::{EndMark, SegmentNumber};

/// A header that a server is writing is whole a moment later.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Checks the headers of all files, and that the records reach the mark of the log's end. Changes nothing.
///
/// # Errors
/// If a server would refuse the log.
pub fn check(path: &Path) -> Result<(), RecoveryError> {
    // Before the records, so that they are behind it.
    let marks = EndMarks::read(path).map_err(|error| io_error(END_MARKS[0], error))?;
    let files = segments_in(path).map_err(RecoveryError::of_directory)?;
    let mut headers = BTreeMap::new();
    for (&number, &bytes) in &files {
        if let Some(header) = settled_header(path, number)?.filter(|header| header.number == number) {
            headers.insert(number, (header, bytes));
        }
    }
    let Some(mark) = marks.valid.into_iter().max_by_key(|mark| mark.end) else { return Ok(()) };
    match headers.get(&mark.segment) {
        Some((header, bytes)) if header.log_id == mark.log_id => reach(path, &mark, *header, *bytes),
        _ => Ok(()),
    }
}

/// Returns the header of a file. A server may be writing it, or have removed the file.
fn settled_header(path: &Path, number: SegmentNumber) -> Result<Option<Header>, RecoveryError> {
    let mut attempt = 1;
    loop {
        match read_header(path, number) {
            Err(RecoveryError::Io(_, error)) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(RecoveryError::Damaged { .. } | RecoveryError::Truncated { .. }) if attempt < ATTEMPTS => {
                attempt += 1;
                thread::sleep(PAUSE);
            }
            result => return result,
        }
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
    // Bytes of a file that has been recycled meanwhile are another's.
    match settled_header(path, mark.segment)? {
        Some(now) if now.number == mark.segment => Err(RecoveryError::Damaged { file, offset }),
        _ => Ok(()),
    }
}
