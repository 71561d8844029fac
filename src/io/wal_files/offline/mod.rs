//! The tools of `beanring wal`: they work on a job log that no server uses, and change nothing in it. Only
//! [`backup`] reads the job log of a running server. Nothing here is on the path of a running server.

mod backup;
mod check;
mod export;
mod json;
mod losses;
mod salvage;
mod survey;
#[cfg(feature = "replicate")]
mod transfer;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub use self::backup::{BackedUp, backup};
pub use self::check::{Verdict, check};
pub use self::export::{Exported, export};
pub use self::json::dump_json;
pub use self::salvage::{Damage, Salvaged, salvage};
pub use self::survey::Finding;
use self::survey::{survey, unreadable_bytes};
#[cfg(feature = "replicate")]
pub use self::transfer::{SourceLog, read, write};
use super::directory::{self, Directory, DirectoryError, IMPORT_BEGUN};
use super::end_marks::{EndMarks, MarkFault};
use super::fresh::Fresh;
use super::lock::Lock;
use super::plain_file::{self, FileRefusal};
use super::recovery::{self, Findings, JobBodies, RecoveryError, Tail};
pub use super::recovery::{Extent, Hole};
use crate::io::host;
use crate::io::socket::text_of;
use crate::io::stdout::OutputError;
use crate::queue::Engine;
use crate::time::Time;
#[cfg(feature = "replicate")]
use crate::values::limits::WAL_FILE_BYTES_DEFAULT;
#[cfg(feature = "replicate")]
use crate::wal::batch::BLOCK_BYTES;
use crate::wal::record::Lsn;
#[cfg(feature = "replicate")]
use crate::wal::segment::HEADER_BYTES;
use crate::wal::segment::{format_of, version_of};
use crate::wal::{Recovered, SegmentNumber, snapshot};

/// Why a tool fails. The job log has not changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ToolError {
    #[error("{0}: {reason}", reason = unusable(.1))]
    Unusable(PathBuf, io::Error),
    #[error("{0} is a file; name the directory of the job log")]
    File(PathBuf),
    #[error("{0}: a server uses this job log; stop it first")]
    Locked(PathBuf),
    #[error("{0}: the directory contains no job log")]
    NoLog(PathBuf),
    #[error(
        "{0}: this is a binlog of beanstalkd and not a job log; beanstalkd -b starts from it, and beanring -b imports it"
    )]
    Binlog(PathBuf),
    #[error(
        "{0}: an import of beanstalkd's binlog is incomplete; start `beanring -b` on the directory to finish it"
    )]
    Importing(PathBuf),
    #[error("{0}")]
    Log(RecoveryError),
    #[error("cannot read the job log: {}", unreadable(.0, .1))]
    Unreadable(String, io::Error),
    /// The id of the job log is not known, without which no record is valid.
    #[error(
        "cannot read the job log: no segment has a valid header, and too few records are intact to do without one; salvage \
        cannot help: restore a backup of the directory"
    )]
    NoLogId,
    #[error("cannot read the job log: {0} has format {1} of {version}; use that version", version = version_of(*.1))]
    Version(String, u32),
    #[error("{0}: the directory is not empty; name an empty or a new one")]
    NotEmpty(PathBuf),
    #[cfg(feature = "replicate")]
    #[error(
        "{0}: an interrupted export has left a part of a job log, from which no server starts; remove the directory, and \
        try again"
    )]
    Partial(PathBuf),
    #[error("{0}: the directory is inside that of the job log; name one outside")]
    Inside(PathBuf),
    #[error("{0}: {reason}; the new directory is incomplete: remove it and try again", reason = text_of(.1))]
    Unwritable(PathBuf, io::Error),
    #[error("{0}: {reason}; nothing was copied", reason = text_of(.1))]
    NotCopied(PathBuf, io::Error),
    #[error(
        "{path}: none of {attempts} attempts gave a complete copy, because the server reuses segments while they are \
        copied (the last one: {last}); try when it is less busy, with a larger -s, or copy a snapshot of the volume"
    )]
    Moving { path: PathBuf, attempts: u32, last: String },
    #[error("a start discards {}, so a copy would lack them: normal after a crash; start the server, then back it up",
        Places(.0))]
    Torn(Vec<Extent>),
    #[error("{0}")]
    Output(OutputError),
}

/// A number of things.
#[derive(Debug)]
pub struct Count(pub u64, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, thing) = self;
        write!(f, "{count} {thing}{}", if *count == 1 { "" } else { "s" })
    }
}

/// Where discarded bytes are.
#[derive(Debug)]
pub struct Places<'a>(pub &'a [Extent]);

impl fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Extent { file, offset, bytes }) in self.0.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{} at {file}:{offset}", Count(*bytes, "byte"))?;
        }
        Ok(())
    }
}

/// What a job log has besides jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions {
    /// The number of idempotency keys of deleted jobs that are kept.
    pub kept_keys: usize,
    /// The number of rules of tubes.
    pub rules: usize,
    /// The number of jobs with tags.
    pub tagged_jobs: usize,
    /// Jobs with notes.
    pub noted_jobs: usize,
    /// The number of schedules.
    pub schedules: usize,
}

impl Extensions {
    fn of(engine: &Engine) -> Self {
        let is_tagged = |job| !engine.tags(job).is_empty();
        Self {
            kept_keys: engine.kept_keys().count(),
            schedules: engine.schedule_counts().0,
            rules: engine.ruled_tubes().map(|(_, rules)| rules.iter().count()).sum(),
            tagged_jobs: engine.jobs().iter().filter(|&(job, _)| is_tagged(job)).count(),
            noted_jobs: engine.jobs().iter().filter(|&(job, _)| !engine.notes(job).is_empty()).count(),
        }
    }
}

/// What a server would find that starts from a job log.
struct Start {
    /// The queue that it would start with.
    engine: Engine,
    /// What it would continue from.
    #[cfg_attr(not(feature = "replicate"), expect(dead_code))]
    recovered: Recovered,
    /// What it would find besides.
    outlook: Outlook,
}

/// What a start from a job log would find besides jobs.
#[derive(Default, Debug)]
pub struct Outlook {
    /// Why a server does not start, if it does not.
    pub refusal: Option<RecoveryError>,
    /// What a start discards.
    pub discarded: Vec<Extent>,
    /// Bytes that a start rewrites first, since nothing proves that they are on disk. None if the job log was closed.
    pub unproven_bytes: u64,
    /// Where files may be missing. A healthy job log may look the same.
    pub hole: Option<Hole>,
    /// Damage to the marks of the log's end.
    pub mark_fault: Option<MarkFault>,
}

/// A job log that no server uses while the value lives.
struct Offline<'a> {
    path: &'a Path,
    files: BTreeMap<SegmentNumber, u64>,
    _lock: Option<Lock>,
}

impl<'a> Offline<'a> {
    /// Opens the job log in a directory, which does not change.
    fn open(path: &'a Path) -> Result<Self, ToolError> {
        let unusable = |error| ToolError::Unusable(path.to_owned(), error);
        if path.is_file() {
            return Err(ToolError::File(path.to_owned()));
        }
        let lock = directory::lock_to_read(path).map_err(|error| match error {
            DirectoryError::Unusable(path, error) => ToolError::Unusable(path, error),
            DirectoryError::Denied { file, .. } => {
                ToolError::Unusable(file, ErrorKind::PermissionDenied.into())
            }
            DirectoryError::Locked(path) => ToolError::Locked(path),
            DirectoryError::Foreign(..) => unreachable!("a lock does not depend on other files"),
        })?;
        let files = directory::segments_in(path).map_err(unusable)?;
        if plain_file::exists(&path.join(IMPORT_BEGUN)) {
            return Err(ToolError::Importing(path.to_owned()));
        }
        if files.is_empty() {
            let marks = EndMarks::read(path).map_err(unusable)?;
            return Err(match marks.last().filter(|(_, mark)| mark.end > Lsn::default()) {
                Some((_, mark)) => ToolError::Log(RecoveryError::EndMissing(mark.segment.to_string())),
                None => ToolError::without_segments(path),
            });
        }
        Ok(Self { path, files, _lock: lock })
    }

    /// Reads the job log as a server does that starts from it.
    fn recover(&self, now: Time, bodies: JobBodies) -> Result<Start, ToolError> {
        let mut engine = self.new_engine()?;
        let read = recovery::read(self.path, &self.files, &mut engine, now, bodies);
        let (recovered, findings, tail) = read.map_err(ToolError::Log)?;
        release_held(&mut engine, now);
        let behind = tail.as_ref().and_then(Tail::discarded);
        let whole = |segment| Extent {
            file: SegmentNumber::to_string(segment),
            offset: 0,
            bytes: self.files[segment],
        };
        let mut discarded: Vec<Extent> = behind.into_iter().chain(findings.lost.iter().map(whole)).collect();
        if tail.is_none() {
            for &number in self.files.keys() {
                let unreadable = unreadable_bytes(self.path, number);
                discarded
                    .extend(unreadable.map_err(|error| ToolError::Unusable(self.path.to_owned(), error))?);
            }
        }
        let is_closed = tail.is_some_and(|tail| tail.closed_end.is_some());
        let unproven_bytes = if is_closed { 0 } else { findings.unproven_bytes() };
        let Findings { hole, mark_fault, refusal, .. } = findings;
        let outlook = Outlook { refusal, discarded, unproven_bytes, hole, mark_fault };
        Ok(Start { engine, recovered, outlook })
    }

    /// Returns a queue without jobs.
    fn new_engine(&self) -> Result<Engine, ToolError> {
        let seed = host::random_word();
        Ok(Engine::new(seed.map_err(|errno| ToolError::Unusable(self.path.to_owned(), errno.into()))?))
    }
}

/// Shows everything that can be read of the job log in this directory, in order.
///
/// # Errors
/// If the job log cannot be read, or `show` returns one.
pub fn dump(path: &Path, show: impl FnMut(Finding<'_>) -> Result<(), ToolError>) -> Result<(), ToolError> {
    let log = Offline::open(path)?;
    survey(log.path, &log.files, show)
}

/// Everything in a job log.
pub struct Content {
    /// The queue.
    pub engine: Engine,
    /// What recovery has found besides.
    pub recovered: Recovered,
}

impl Content {
    /// Takes the jobs that recovery has found.
    pub fn new(mut engine: Engine, recovered: Recovered, now: Time) -> Self {
        release_held(&mut engine, now);
        engine.keep_reservations(engine.has_recovered());
        Self { engine, recovered }
    }

    /// The size of a segment that has space for every job, in bytes.
    #[cfg(feature = "replicate")]
    pub fn segment_bytes(&self) -> u64 {
        let needed = HEADER_BYTES + self.recovered.largest;
        needed.next_multiple_of(BLOCK_BYTES as u64).max(WAL_FILE_BYTES_DEFAULT)
    }
}

/// Releases the held jobs whose group is done, as a server does in its first iterations.
fn release_held(engine: &mut Engine, now: Time) {
    while engine.step(now) {}
}

/// Writes everything in the queue as a new job log into a directory, which is empty or new.
fn write_log(content: &Content, to: &Path, segment_bytes: u64, now: Time) -> Result<(), ToolError> {
    let Content { engine, recovered } = content;
    let failed = |error| ToolError::Unwritable(to.to_owned(), error);
    let directory = open_new(to)?;
    let log_id = host::random_word().map_err(|errno| failed(errno.into()))?;
    let format = format_of(engine.keeps_reservations());
    let fresh = Fresh::begin(&directory, segment_bytes, format, log_id, engine.upcoming_id());
    let mut fresh = fresh.map_err(failed)?;
    snapshot(engine, recovered, now).try_for_each(|record| fresh.append(&record)).map_err(failed)?;
    fresh.finish().map_err(failed)
}

/// The mode of a directory whose files have their own: the umask applies.
const PUBLIC: u32 = 0o777;

/// Creates a directory, or accepts one that is empty. It must not be inside the directory of the job log, which must not
/// change. Returns whether it was created.
fn make_empty(path: &Path, log: &Path, mode: u32) -> Result<bool, ToolError> {
    let parent = parent_of(path);
    if let (Ok(parent), Ok(log)) = (fs::canonicalize(parent), fs::canonicalize(log))
        && parent.starts_with(log)
    {
        return Err(ToolError::Inside(path.to_owned()));
    }
    make_empty_anywhere(path, mode)
}

/// Does the same where no job log is read from a directory.
fn make_empty_anywhere(path: &Path, mode: u32) -> Result<bool, ToolError> {
    let parent = parent_of(path);
    let unusable = |error| ToolError::Unusable(path.to_owned(), error);
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(ToolError::Unusable(parent.to_owned(), error));
        }
        result => return result.map(|()| true).map_err(unusable),
    }
    match fs::read_dir(path).map_err(unusable)?.next() {
        Some(_) => Err(ToolError::NotEmpty(path.to_owned())),
        None => Ok(false),
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens and locks an empty directory for a job log.
fn open_new(path: &Path) -> Result<Directory, ToolError> {
    let failed = |error| ToolError::Unwritable(path.to_owned(), error);
    Directory::open(path, false).map_err(|error| match error {
        DirectoryError::Unusable(_, error) => failed(error),
        DirectoryError::Denied { .. } => failed(ErrorKind::PermissionDenied.into()),
        DirectoryError::Locked(path) | DirectoryError::Foreign(path, _) => ToolError::NotEmpty(path),
    })
}

impl ToolError {
    /// Why a directory without segments is refused.
    fn without_segments(path: &Path) -> Self {
        let names =
            || fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
        match names() {
            // beanstalkd wrote it, or it is an export.
            Ok(names)
                if names.iter().any(|name| name.to_str().and_then(directory::binlog_number).is_some()) =>
            {
                Self::Binlog(path.to_owned())
            }
            Ok(_) => Self::NoLog(path.to_owned()),
            Err(error) => Self::Unusable(path.to_owned(), error),
        }
    }
}

fn unreadable(file: &str, error: &io::Error) -> String {
    let text = text_of(error);
    if FileRefusal::of(error).is_some() { text } else { format!("{file}: {text}") }
}

fn unusable(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such directory; correct the path".to_owned(),
        ErrorKind::NotADirectory => "this is a file; name a directory".to_owned(),
        ErrorKind::PermissionDenied => {
            "permission denied; run the command as root, or as the owner of the job log".to_owned()
        }
        _ => text_of(error),
    }
}
