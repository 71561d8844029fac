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
#[derive(Debug)]
pub enum RecoveryError {
    /// A file cannot be read or created.
    Io(String, io::Error),
    /// Records or a header that were durable have changed.
    Damaged {
        /// The name of the file.
        file: String,
        /// The offset in the file, in bytes.
        offset: u64,
    },
    /// A file ends within its header.
    Truncated {
        /// The name of the file.
        file: String,
        /// Its size.
        bytes: u64,
    },
    /// The job log begins or continues with this file, which does not exist.
    Missing(String),
    /// The mark of the log's end shows that the job log went on to this file, which does not exist.
    EndMissing(String),
    /// A newer version of beanring wrote the file.
    Version(String, u32),
    /// The file belongs to another log.
    Foreign(String),
    /// The file belongs to another log than those beside it.
    OtherLog {
        /// The name of the file.
        file: String,
        /// The id of its log.
        log_id: u64,
        /// The id of the log in this directory.
        expected: u64,
    },
    /// Files have been renamed, and not by a server.
    Misnamed {
        /// The name of the file.
        file: String,
        /// The name that its header has.
        is: String,
    },
    /// A job needs a larger segment than `-s` allows.
    JobTooLarge {
        /// The size that it needs, in bytes.
        bytes: u64,
    },
    /// The id of a job is so large that the ids above it could run out.
    Id {
        /// The name of the file.
        file: String,
        /// The id.
        id: JobId,
    },
    /// The unproven end of the job log cannot be rewritten: the disk is full.
    NoSpace {
        /// The name of the file.
        file: String,
        /// How many bytes are to be rewritten in all files.
        bytes: u64,
    },
    /// Two reads of the file returned different records.
    Unstable(String),
    /// There is too little memory for the jobs.
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
impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(file, error) if is_full(error) => write!(
                f,
                "the disk is full, and the job log needs the new segment {file}; free some space, or start with the -f and \
                 -s of the last run"
            ),
            Self::Io(_, error) if FileRefusal::of(error).is_some() => f.write_str(&text_of(error)),
            Self::Io(file, error) => {
                write!(f, "cannot read or write the job log: {file}: {}", text_of(error))
            }
            Self::JobTooLarge { bytes } => write!(
                f,
                "a job in the job log needs a segment of {bytes} bytes; start with -s {bytes} or more"
            ),
            Self::Damaged { file, offset } => write!(
                f,
                "the job log is damaged: {file}: checksum mismatch at offset {offset}; restore a backup of the directory, or \
                 run beanring wal salvage, which saves the intact jobs, if any"
            ),
            Self::Truncated { file, bytes } => write!(
                f,
                "the job log is damaged: {file} ends after {bytes} bytes, within its header; restore a backup of the \
                 directory, or run beanring wal salvage, which saves the intact jobs, if any"
            ),
            Self::Missing(file) => write!(
                f,
                "the job log is damaged: {file} is missing; restore it, or run beanring wal salvage, which saves the \
                 intact jobs, if any"
            ),
            Self::EndMissing(file) => write!(
                f,
                "the job log is damaged: {file} is missing, and log.end.1 shows that the job log went on to it; restore it, or run beanring \
                 wal salvage, which saves the intact jobs, if any; if a backup was copied over a job log, copy it into an empty directory"
            ),
            Self::Version(file, version) => {
                write!(f, "{file} has format {version} of {}; start that version", version_of(*version))
            }
            Self::Foreign(file) => {
                write!(f, "{file} belongs to another job log; move it out of the directory")
            }
            Self::OtherLog { file, log_id, expected } => write!(
                f,
                "{file} belongs to another job log, with the id {log_id:016x}; this one has {expected:016x}; move it out of the \
                 directory"
            ),
            Self::Misnamed { file, is } => write!(
                f,
                "{file} is {is} by its header: files of the job log have been renamed; rename it, or run beanring wal salvage, which \
                 goes by the headers"
            ),
            Self::Id { file, id } => write!(
                f,
                "{file}: job {id} has too large an id: the ids above it could run out; export the job log to beanstalkd \
                 (beanring wal export), or finish its jobs with the version that wrote it and start with an empty directory"
            ),
            Self::NoSpace { file, bytes } => write!(
                f,
                "the disk is full, and the end of the job log in {file} must be rewritten; free {bytes} bytes or more, or \
                 write a new job log to another disk with beanring wal salvage and start from that"
            ),
            Self::Unstable(file) => write!(
                f,
                "{file} has changed since the start began: the disk has lost the latest writes; start again to see what is \
                 left"
            ),
            Self::Memory => write!(f, "too little memory for the jobs of the job log"),
        }
    }
}

impl std::error::Error for RecoveryError {}
