//! Import of beanstalkd's binlog into a job log. A crash at any point neither loses nor duplicates a job.
//!
//! | in the directory  | what is true                                          | what a start does               |
//! |-------------------|-------------------------------------------------------|---------------------------------|
//! | `binlog.N` only   | nothing is imported                                   | creates `import.begun`          |
//! | `import.begun`    | segments may be incomplete; no command was served     | removes and rewrites them       |
//! | `import.done`     | the segments are complete and on disk                 | renames the files that it lists |
//! | segments only     | the import has ended                                  | nothing                         |
//!
//! Each step is on disk before the next.

mod reader;

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use tracing::{info, warn};

use self::reader::Binlog;
pub use self::reader::BinlogError;
use super::signal::StopRequested;
use super::wal_files::Directory;
use super::wal_files::directory::{IMPORT_BEGUN, IMPORT_DONE, binlog_number, segments_in};
use super::wal_files::fresh::Fresh;
use super::wal_files::plain_file::{self, FileRefusal};
use crate::beanstalkd_binlog::Imported;
use crate::io::host;
use crate::io::socket::text_of;
use crate::values::notes::Notes;
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::wal::WalConfig;
use crate::wal::record::{JobRecord, Record};
use crate::wal::segment::HEADER_BYTES;

/// Why a binlog cannot be imported. Its files have not changed.
#[derive(Debug)]
pub enum ImportError {
    /// It cannot be read.
    Binlog(BinlogError),
    /// A file cannot be created, removed or renamed.
    Io(String, io::Error),
    /// The directory also has a job log that does not come from an import of this binlog.
    TwoLogs(String),
    /// A file already has the name that an imported file would get.
    NameTaken(String),
    /// An import has begun, and there is no binlog, but a job log.
    NoBinlog,
    /// The list of imported files has something else.
    ForeignList,
    /// A job does not fit into a segment.
    JobTooLarge {
        /// The size that it needs, in bytes.
        bytes: u64,
    },
}

/// The size of a list of a million files.
const LIST_BYTES_MAX: u64 = 1 << 24;

/// Imports the binlog in a directory, if there is one, or finishes an interrupted import.
///
/// # Errors
/// If the binlog is damaged, or a file cannot be written.
pub fn import(directory: &Directory, config: WalConfig) -> Result<(), ImportError> {
    if plain_file::exists(&directory.file(IMPORT_DONE)) {
        finish(directory)?;
    }
    let names = reader::names(directory.path()).map_err(ImportError::Binlog)?;
    let has_begun = plain_file::exists(&directory.file(IMPORT_BEGUN));
    if names.is_empty() && !has_begun {
        return Ok(());
    }
    if has_begun {
        // An import that has begun leaves its binlog. Segments without one are no part of it.
        if names.is_empty() && has_segments(directory.path())? {
            return Err(ImportError::NoBinlog);
        }
        warn!("an earlier import of beanstalkd's binlog was interrupted; it starts again");
        remove_segments(directory)?;
    } else {
        refuse_two_logs(directory.path(), &names)?;
    }
    if let Some(taken) =
        names.iter().map(|name| imported_name(name)).find(|name| plain_file::exists(&directory.file(name)))
    {
        return Err(ImportError::NameTaken(taken));
    }
    let (history, mut files) = reader::read_all(directory.path(), &names).map_err(ImportError::Binlog)?;
    let next_id = history.next_id();
    let jobs = history.finish();
    let too_large = jobs.iter().map(needed_bytes).find(|&bytes| bytes > config.segment_bytes);
    if let Some(bytes) = too_large {
        return Err(ImportError::JobTooLarge { bytes });
    }
    begin(directory, &names)?;
    let log_id = host::random_word().map_err(|errno| io_error("random numbers", errno.into()))?;
    let failed = |error| io_error("a new segment", error);
    let fresh = Fresh::begin(directory, config.segment_bytes, config.format(), log_id, next_id);
    let mut fresh = fresh.map_err(failed)?;
    write(&jobs, &mut files, &mut fresh)?;
    fresh.finish().map_err(failed)?;
    rename(directory, IMPORT_BEGUN, IMPORT_DONE)?;
    sync(directory)?;
    finish(directory)?;
    info!(
        "imported the binlog of beanstalkd, and renamed its files to *.imported; jobs in it: {}",
        jobs.len()
    );
    Ok(())
}

/// Checks whether [`import`] would refuse a binlog because the directory already has a job log.
///
/// # Errors
/// If it would, or the directory cannot be read.
pub fn check(path: &Path) -> Result<(), ImportError> {
    if [IMPORT_DONE, IMPORT_BEGUN].iter().any(|name| plain_file::exists(&path.join(name))) {
        return Ok(());
    }
    let names = reader::names(path).map_err(ImportError::Binlog)?;
    if names.is_empty() { Ok(()) } else { refuse_two_logs(path, &names) }
}

fn refuse_two_logs(path: &Path, names: &[String]) -> Result<(), ImportError> {
    if has_segments(path)? { Err(ImportError::TwoLogs(names[0].clone())) } else { Ok(()) }
}

fn has_segments(path: &Path) -> Result<bool, ImportError> {
    let segments = segments_in(path).map_err(|error| io_error("the directory", error))?;
    Ok(!segments.is_empty())
}

fn needed_bytes(job: &Imported) -> u64 {
    let record =
        crate::wal::record::job_record_bytes(job.tube.len(), Tags::NONE, job.job.body_bytes as usize);
    HEADER_BYTES + record as u64
}

/// Writes the list of the files to import.
fn begin(directory: &Directory, names: &[String]) -> Result<(), ImportError> {
    let failed = |error| io_error(IMPORT_BEGUN, error);
    let mut file = plain_file::create(&directory.file(IMPORT_BEGUN), 0o600).map_err(failed)?;
    let list: String = names.iter().flat_map(|name| [name, "\n"]).collect();
    file.write_all(list.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    sync(directory)
}

fn write(jobs: &[Imported], files: &mut [Binlog], fresh: &mut Fresh<'_>) -> Result<(), ImportError> {
    let (mut body, mut open) = (Vec::new(), 0);
    for Imported { job, tube, state, body: place } in jobs {
        body.resize(job.body_bytes as usize, 0);
        if open != place.file {
            files[open].close();
            open = place.file;
        }
        files[open].body(place.offset, &mut body).map_err(ImportError::Binlog)?;
        let record = Record::Job(JobRecord {
            id: job.id,
            created: job.created,
            ttr: job.ttr.or_one(),
            tube: TubeName::new(tube).expect("the reader checked it"),
            tags: Tags::NONE,
            notes: Notes::NONE,
            state: *state,
            body: &body,
        });
        fresh.append(&record).map_err(|error| io_error("a new segment", error))?;
    }
    Ok(())
}

/// Renames the imported files.
fn finish(directory: &Directory) -> Result<(), ImportError> {
    let mut list = String::new();
    let read = plain_file::open_to_read(&directory.file(IMPORT_DONE))
        .and_then(|file| file.take(LIST_BYTES_MAX).read_to_string(&mut list));
    read.map_err(|error| io_error(IMPORT_DONE, error))?;
    // A line of another origin could name any file of the machine.
    if list.lines().any(|name| binlog_number(name).is_none()) {
        return Err(ImportError::ForeignList);
    }
    for name in list.lines() {
        match rename(directory, name, &imported_name(name)) {
            // An interrupted import has renamed it.
            Err(ImportError::Io(_, error)) if error.kind() == ErrorKind::NotFound => {}
            result => result?,
        }
    }
    sync(directory)?;
    fs::remove_file(directory.file(IMPORT_DONE)).map_err(|error| io_error(IMPORT_DONE, error))?;
    sync(directory)
}

fn imported_name(name: &str) -> String {
    format!("{name}.imported")
}

fn remove_segments(directory: &Directory) -> Result<(), ImportError> {
    let segments = directory.segments().map_err(|error| io_error("the directory", error))?;
    for number in segments.into_keys() {
        let name = number.to_string();
        fs::remove_file(directory.file(&name)).map_err(|error| io_error(&name, error))?;
    }
    sync(directory)
}

fn rename(directory: &Directory, from: &str, to: &str) -> Result<(), ImportError> {
    fs::rename(directory.file(from), directory.file(to)).map_err(|error| io_error(from, error))
}

fn sync(directory: &Directory) -> Result<(), ImportError> {
    directory.sync().map_err(|error| io_error("the directory", error))
}

fn io_error(file: &str, error: io::Error) -> ImportError {
    ImportError::Io(file.to_owned(), error)
}

impl ImportError {
    /// Whether a signal has ended the import.
    pub fn is_stop(&self) -> bool {
        match self {
            Self::Binlog(BinlogError::Io(_, error)) | Self::Io(_, error) => StopRequested::is(error),
            _ => false,
        }
    }
}

// docs/RUNBOOK.md lists these messages.
impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot import the binlog of beanstalkd: ")?;
        match self {
            Self::Binlog(error) => error.fmt(f),
            Self::Io(_, error) if FileRefusal::of(error).is_some() => f.write_str(&text_of(error)),
            Self::Io(file, error) => write!(f, "{file}: {}", text_of(error)),
            Self::NoBinlog => write!(
                f,
                "{IMPORT_BEGUN} is beside a job log, and the binlog is not there; move {IMPORT_BEGUN} out of the directory, or the binlog back"
            ),
            Self::ForeignList => write!(
                f,
                "{IMPORT_DONE} is damaged: it lists something else than files of a binlog; move it out of the directory"
            ),
            Self::TwoLogs(file) => write!(
                f,
                "{file} and a job log of beanring are in one directory, and may contain the same jobs; move one of them \
                 out of the directory"
            ),
            Self::NameTaken(file) => {
                write!(f, "{file} exists from an earlier import; move it out of the directory")
            }
            Self::JobTooLarge { bytes } => {
                write!(f, "a job needs a segment of {bytes} bytes; start with -s {bytes} or more")
            }
        }
    }
}

impl std::error::Error for ImportError {}
