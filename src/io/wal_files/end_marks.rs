//! Two copies of the mark of the log's end, each in a file of its own beside the segments.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::plain_file;
use super::storage::read_up_to;
use crate::wal::record::Lsn;
use crate::wal::segment::{self, Headers};
use crate::wal::{EndMark, MARK_BYTES};

/// The names of the files.
pub const END_MARKS: [&str; 2] = ["log.end.1", "log.end.2"];

/// What the copies say.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct EndMarks {
    /// The valid ones, with their files.
    pub valid: Vec<(&'static str, EndMark)>,
    /// Files without a valid mark.
    pub damaged: Vec<&'static str>,
}

/// Damage to the copies.
// docs/RUNBOOK.md lists these messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MarkFault {
    #[error("{0} is damaged, and is written again when the job log is closed")]
    One(&'static str),
    #[error(
        "log.end.1 and log.end.2 are damaged, so nothing shows whether the last segments are there; compare with a backup"
    )]
    All,
}

impl MarkFault {
    /// Returns the damage, if there is any.
    pub fn of(marks: &EndMarks) -> Option<Self> {
        let &file = marks.damaged.first()?;
        Some(if marks.valid.is_empty() { Self::All } else { Self::One(file) })
    }
}

impl EndMarks {
    /// Reads the copies in a directory.
    ///
    /// # Errors
    /// If one exists and cannot be read.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut marks = Self::default();
        for name in END_MARKS {
            let mut bytes = [0; MARK_BYTES];
            match plain_file::open_to_read(&directory.join(name)) {
                Ok(file) => _ = read_up_to(&file, 0, &mut bytes)?,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
            match EndMark::decode(&bytes) {
                Some(mark) => marks.valid.push((name, mark)),
                None => marks.damaged.push(name),
            }
        }
        Ok(marks)
    }

    /// The mark, if both copies are the same.
    pub fn agreed(&self) -> Option<EndMark> {
        match *self.valid {
            [(_, one), (_, other)] if one == other => Some(one),
            _ => None,
        }
    }

    /// The id of the log that files belong to: that of both marks if they agree and a file has it, or else that of most files.
    pub fn log_id(&self, headers: &Headers) -> Option<u64> {
        let is_there = |mark: &EndMark| headers.values().flatten().any(|header| header.log_id == mark.log_id);
        self.agreed().filter(is_there).map(|mark| mark.log_id).or_else(|| segment::log_of_most(headers))
    }

    /// The last mark, and its file.
    pub fn last(&self) -> Option<(&'static str, EndMark)> {
        self.valid.iter().copied().max_by_key(|(_, mark)| mark.end)
    }

    /// The last mark of a log.
    pub fn last_of(&self, log_id: u64) -> Option<EndMark> {
        let of_log = self.valid.iter().filter(|(_, mark)| mark.log_id == log_id);
        of_log.map(|&(_, mark)| mark).max_by_key(|mark| mark.end)
    }

    /// A mark of another log, and its file, if there is one. That of a log without records shows nothing.
    pub fn foreign(&self, log_id: u64) -> Option<(&'static str, EndMark)> {
        self.valid.iter().copied().find(|(_, mark)| mark.log_id != log_id && mark.end > Lsn::default())
    }
}

/// Writes both copies, one after the other, so that one is whole at any time. Durable but for the names of new files: returns whether
/// there are any.
///
/// # Errors
/// If there is no space, or the disk reports an error.
pub fn write(directory: &Path, mark: &EndMark) -> io::Result<bool> {
    let mut is_new = false;
    for name in END_MARKS {
        let path = directory.join(name);
        is_new |= !plain_file::exists(&path);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = plain_file::open(&path, &mut options, 0)?;
        file.write_all_at(&mark.encode(), 0)?;
        file.sync_data()?;
    }
    Ok(is_new)
}
