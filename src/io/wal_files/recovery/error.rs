//! Why a server does not start from a job log.

use std::fmt;
use std::io;

use crate::ids::JobId;
use crate::wal::is_full;

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
    /// The job log begins or continues with this file, which does not exist.
    Missing(String),
    /// A newer version of beanring wrote the file.
    Version(String, u32),
    /// The file belongs to another log.
    Foreign(String),
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

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(file, error) if is_full(error) => {
                write!(
                    f,
                    "the log needs a new file, {file}, and there is no space for it: make some, or start with the last -f and -s"
                )
            }
            Self::Io(file, error) => write!(f, "the log cannot be used: {file}: {error}"),
            Self::JobTooLarge { bytes } => {
                write!(f, "a job needs a file of {bytes} bytes; start with -s {bytes} or more")
            }
            Self::Damaged { file, offset } => write!(
                f,
                "the log is damaged: {file}:{offset} is not what was written there; bring back a backup of the directory, or see what `beanring log salvage` can save"
            ),
            Self::Missing(file) => write!(
                f,
                "the log is damaged: {file} is missing; bring it back, or see what `beanring log salvage` can save"
            ),
            Self::Version(file, version) => write!(
                f,
                "{file} is of format {version}, which a newer version of beanring writes; start that one"
            ),
            Self::Foreign(file) => write!(f, "{file} belongs to another log; move it out of the directory"),
            Self::Id { file, id } => write!(
                f,
                "{file}: a job has the id {id}, above which ids could run out; export the log to beanstalkd, or work off \
                 its jobs with the version that has written it, and start with an empty directory"
            ),
            Self::NoSpace { file, bytes } => write!(
                f,
                "the end of the log, in {file}, has to be written again, and the disk is full: free {bytes} bytes or more, \
                 or write a new log to another disk with `beanring log salvage` and start from that"
            ),
            Self::Unstable(file) => write!(
                f,
                "{file} has changed since the start began: its disk has lost what was written last; start again to see \
                 what is left"
            ),
            Self::Memory => write!(f, "there is too little memory for the jobs of the log"),
        }
    }
}

impl std::error::Error for RecoveryError {}
