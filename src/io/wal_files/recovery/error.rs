//! Why a server does not start from a job log.

use std::fmt;
use std::io;

use crate::io::signal::StopRequested;
use crate::io::socket::text_of;
use crate::io::wal_files::plain_file::FileRefusal;
use crate::values::ids::JobId;
use crate::wal::is_full;
use crate::wal::segment::version_of;

/// Why a job log cannot be recovered. Only [`NoSpace`](Self::NoSpace) and [`Unstable`](Self::Unstable) may leave changes
/// in the directory: none that loses a record.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RecoveryError {
    #[error(fmt = write_io)]
    Io(String, io::Error),
    #[error(
        "the job log is damaged: {file}: checksum mismatch at offset {offset}; restore a backup of the directory, or run \
        beanring wal salvage, which saves the intact jobs, if any"
    )]
    Damaged { file: String, offset: u64 },
    #[error(
        "the job log is damaged: {file} ends after {bytes} bytes, within its header; restore a backup of the directory, \
        or run beanring wal salvage, which saves the intact jobs, if any"
    )]
    Truncated { file: String, bytes: u64 },
    #[error(
        "the job log is damaged: {0} is missing; restore it, or run beanring wal salvage, which saves the intact jobs, if \
        any"
    )]
    Missing(String),
    #[error(
        "the job log is damaged: {0} is missing, and log.end.1 shows that the job log went on to it; restore it, or run \
        beanring wal salvage, which saves the intact jobs, if any; if a backup was copied over a job log, copy it into an \
        empty directory"
    )]
    EndMissing(String),
    #[error("{0} has format {1} of {version}; start that version", version = version_of(*.1))]
    Version(String, u32),
    #[error("{0} belongs to another job log; move it out of the directory")]
    Foreign(String),
    #[error(
        "{file} belongs to another job log, with the id {log_id:016x}; this one has {expected:016x}; move it out of the \
        directory"
    )]
    OtherLog { file: String, log_id: u64, expected: u64 },
    #[error(
        "{file} is {is} by its header: files of the job log have been renamed; rename it, or run beanring wal salvage, \
        which goes by the headers"
    )]
    Misnamed { file: String, is: String },
    #[error("a job in the job log needs a segment of {bytes} bytes; start with -s {bytes} or more")]
    JobTooLarge { bytes: u64 },
    #[error(
        "{file}: job {id} has too large an id: the ids above it could run out; export the job log to beanstalkd (beanring \
        wal export), or finish its jobs with the version that wrote it and start with an empty directory"
    )]
    Id { file: String, id: JobId },
    #[error(
        "the disk is full, and the end of the job log in {file} must be rewritten; free {bytes} bytes or more, or write a \
        new job log to another disk with beanring wal salvage and start from that"
    )]
    NoSpace { file: String, bytes: u64 },
    #[error(
        "{0} has changed since the start began: the disk has lost the latest writes; start again to see what is left"
    )]
    Unstable(String),
    #[error("too little memory for the jobs of the job log")]
    Memory,
}

impl RecoveryError {
    /// A file belongs to the log with the id `log_id`, and not to the one in this directory.
    pub fn other_log(file: &str, log_id: u64, expected: u64) -> Self {
        Self::OtherLog { file: file.to_owned(), log_id, expected }
    }

    /// The directory cannot be read or synced.
    pub fn of_directory(error: io::Error) -> Self {
        Self::Io("the directory".to_owned(), error)
    }

    /// Whether a signal has ended the recovery.
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::Io(_, error) if StopRequested::is(error))
    }
}

// docs/RUNBOOK.md lists these messages.
fn write_io(file: &str, error: &io::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if is_full(error) {
        return write!(
            f,
            "the disk is full, and the job log needs space for the segment {file}; free some space or, if -f or -s has changed, start \
             with those of the last run"
        );
    }
    if FileRefusal::of(error).is_some() {
        return f.write_str(&text_of(error));
    }
    write!(f, "cannot read or write the job log: {file}: {}", text_of(error))
}
