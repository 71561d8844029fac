//! Reading the files of beanstalkd's binlog.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use nix::unistd::{Whence, lseek};
use tracing::warn;

use crate::beanstalkd_binlog::{BodyPlace, Entry, HEAD_BYTES_MAX, History, NoEntry, VERSION_BYTES, Version};
use crate::io::privileges::current_user;
use crate::io::signal::refuse_to_go_on;
use crate::io::socket::text_of;
use crate::io::wal_files::directory::binlog_number;
use crate::io::wal_files::plain_file::{self, FileRefusal};
use crate::io::wal_files::storage::{next_data, read_up_to};
use crate::values::ids::JobId;

/// Bytes per read.
const WINDOW_BYTES: usize = 1 << 20;

/// Numbers that a version of beanstalkd may have.
const VERSION_MAX: u32 = 255;

/// Why a binlog cannot be read.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BinlogError {
    #[error(fmt = write_io)]
    Io(String, io::Error),
    #[error(
        "{file}:{offset} is damaged: beanstalkd wrote something else there; restore a copy of the file, or start \
        beanstalkd on it, which skips what it cannot read"
    )]
    Damaged { file: String, offset: u64 },
    #[error(
        "{0} has version {1}, and beanring reads 5 and 7; start the beanstalkd that wrote it, and finish its jobs there"
    )]
    Version(String, u32),
    #[error("{0} is not a binlog of beanstalkd; move it out of the directory")]
    Foreign(String),
    #[error("{0} is missing between older and newer files; restore it")]
    Missing(String),
    #[error(
        "{file}: job {id} has an id that beanring cannot continue from: it reads ids from 1 to {}",
        JobId::IMPORT_MAX
    )]
    Id { file: String, id: JobId },
}

/// A file of the binlog. It is open only while it is read: there may be more files than descriptors.
pub struct Binlog {
    name: String,
    path: PathBuf,
    file: Option<File>,
    /// The offset behind the last byte that is not zero.
    end: u64,
    window: Vec<u8>,
    window_at: u64,
}

/// Returns the names of all files of the binlog in a directory, in order.
pub fn names(directory: &Path) -> Result<Vec<String>, BinlogError> {
    let failed = |error| BinlogError::Io("the directory".to_owned(), error);
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        numbers.extend(name.to_str().and_then(binlog_number));
    }
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[0] + 1 < pair[1]) {
        Some(pair) => Err(BinlogError::Missing(format!("binlog.{}", pair[0] + 1))),
        None => Ok(numbers.into_iter().map(|number| format!("binlog.{number}")).collect()),
    }
}

/// Reads all records. Returns the files too, to read bodies from.
pub fn read_all(directory: &Path, names: &[String]) -> Result<(History, Vec<Binlog>), BinlogError> {
    let opened: Result<Vec<_>, _> = names.iter().map(|name| Binlog::open(directory, name)).collect();
    let mut files = opened?;
    let last = files.iter().rposition(|file| file.end > VERSION_BYTES as u64);
    let mut history = History::default();
    for (number, file) in files.iter_mut().enumerate() {
        file.read(number, last.is_none_or(|last| number >= last), &mut history)?;
        file.close();
    }
    Ok((history, files))
}

impl Binlog {
    fn open(directory: &Path, name: &str) -> Result<Self, BinlogError> {
        let path = directory.join(name);
        let mut binlog =
            Self { name: name.to_owned(), path, file: None, end: 0, window: Vec::new(), window_at: 0 };
        let file = binlog.file()?;
        let end = file.metadata().and_then(|found| content_end(file, found.len()));
        binlog.end = end.map_err(|error| binlog.failed(error))?;
        binlog.close();
        Ok(binlog)
    }

    fn file(&mut self) -> Result<&File, BinlogError> {
        if self.file.is_none() {
            let opened = plain_file::open_to_read(&self.path);
            self.file = Some(opened.map_err(|error| self.failed(error))?);
        }
        Ok(self.file.as_ref().expect("it is open"))
    }

    /// Gives back its descriptor and its buffer. A read opens it again.
    pub fn close(&mut self) {
        (self.file, self.window) = (None, Vec::new());
    }

    /// Reads the body of a record.
    pub fn body(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BinlogError> {
        let read = read_up_to(self.file()?, offset, into);
        let count = read.map_err(|error| self.failed(error))?;
        if count < into.len() { Err(self.damaged(offset)) } else { Ok(()) }
    }

    fn read(&mut self, number: usize, is_last: bool, history: &mut History) -> Result<(), BinlogError> {
        if self.end == 0 {
            // beanstalkd allocates files ahead: this one was not used.
            return Ok(());
        }
        let code = self.bytes(0, VERSION_BYTES)?.first_chunk().copied();
        let Some(code) = code.map(u32::from_le_bytes) else {
            return if is_last { Ok(()) } else { Err(self.damaged(0)) };
        };
        let Some(version) = Version::from_number(code) else {
            let name = self.name.clone();
            // The number of a foreign file is its content, which may be a secret.
            let is_foreign = code > VERSION_MAX;
            return Err(if is_foreign {
                BinlogError::Foreign(name)
            } else {
                BinlogError::Version(name, code)
            });
        };
        let mut offset = VERSION_BYTES as u64;
        while offset < self.end {
            let tear = match self.take(version, number, offset, history)? {
                Ok(bytes) => {
                    offset += bytes;
                    continue;
                }
                Err(tear) => tear,
            };
            let may_be_torn = tear.explains(self.end - offset, is_last);
            if !may_be_torn || self.has_record_behind(version, offset, history)? {
                return Err(self.damaged(offset));
            }
            warn!(
                "{}: the record at offset {offset} is left out: beanstalkd did not finish writing it",
                self.name
            );
            return Ok(());
        }
        Ok(())
    }

    /// Applies the record at this offset. Returns its size; or, if it is incomplete, how it could have been torn.
    fn take(
        &mut self,
        version: Version,
        number: usize,
        offset: u64,
        history: &mut History,
    ) -> Result<Result<u64, Tear>, BinlogError> {
        let end = self.end;
        let length_bytes = version.length_bytes as u64;
        let head = self.bytes(offset, HEAD_BYTES_MAX)?;
        let entry = match version.parse(head) {
            Ok(Entry { job, .. }) if !is_id(job.id) => {
                return Err(BinlogError::Id { file: self.name.clone(), id: job.id });
            }
            Ok(entry) => entry,
            Err(NoEntry { extent }) => {
                let name_end = length_bytes + u64::from(*head.first().unwrap_or(&0));
                return Ok(Err(Tear { extent: extent as u64, length_bytes, seams: [name_end; 2] }));
            }
        };
        let head_bytes = entry.head_bytes as u64;
        let place = BodyPlace { file: number, offset: offset + head_bytes };
        let Some(tube) = entry.tube else {
            let tear = Tear { extent: head_bytes, length_bytes, seams: [head_bytes; 2] };
            return Ok(history.apply(&entry, place).map(|()| head_bytes).map_err(|_| tear));
        };
        let name_end = length_bytes + tube.as_bytes().len() as u64;
        let fields_end = head_bytes - version.padding_bytes as u64;
        let extent = head_bytes + u64::from(entry.job.body_bytes);
        let tear = Tear { extent, length_bytes, seams: [name_end, fields_end] };
        // A whole body ends with CR LF, so the content of the file cannot end before it.
        if offset + extent > end {
            return Ok(Err(tear));
        }
        history.apply(&entry, place).expect("a whole job contradicts nothing");
        let is_body = self.bytes(offset + extent - 2, 2)? == b"\r\n";
        Ok(if is_body { Ok(extent) } else { Err(Tear { extent: 0, ..tear }) })
    }

    /// Whether a record begins behind this offset. If so, the one here was complete once.
    fn has_record_behind(
        &mut self,
        version: Version,
        offset: u64,
        history: &History,
    ) -> Result<bool, BinlogError> {
        let end = self.end;
        for at in offset + 1..end {
            let Ok(Entry { tube, job, head_bytes }) = version.parse(self.bytes(at, HEAD_BYTES_MAX)?) else {
                continue;
            };
            if !is_id(job.id) {
                continue;
            }
            let body_end = at + head_bytes as u64 + u64::from(job.body_bytes);
            let is_record = match tube {
                None => history.is_about_known(&job),
                Some(_) => body_end <= end && self.bytes(body_end - 2, 2)? == b"\r\n",
            };
            if is_record {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the bytes at this offset: fewer at the end of the file.
    fn bytes(&mut self, offset: u64, count: usize) -> Result<&[u8], BinlogError> {
        let window_end = self.window_at + self.window.len() as u64;
        // A window that is not full reaches the end of the file.
        let is_last = (1..WINDOW_BYTES).contains(&self.window.len()) && offset <= window_end;
        let is_there = offset >= self.window_at && (offset + count as u64 <= window_end || is_last);
        if !is_there {
            let mut window = std::mem::take(&mut self.window);
            window.resize(WINDOW_BYTES, 0);
            let file = self.file()?;
            let read = refuse_to_go_on().and_then(|()| read_up_to(file, offset, &mut window));
            window.truncate(read.map_err(|error| self.failed(error))?);
            self.window = window;
            self.window_at = offset;
        }
        let begin = (offset - self.window_at) as usize;
        let end = (begin + count).min(self.window.len());
        Ok(&self.window[begin..end])
    }

    fn damaged(&self, offset: u64) -> BinlogError {
        BinlogError::Damaged { file: self.name.clone(), offset }
    }

    fn failed(&self, error: io::Error) -> BinlogError {
        BinlogError::Io(self.name.clone(), error)
    }
}

/// Whether a job log can have a job with this id and continue with larger ids.
fn is_id(id: JobId) -> bool {
    (JobId(1)..=JobId::IMPORT_MAX).contains(&id)
}

/// Where the writing of a record can have been interrupted.
struct Tear {
    /// The size of the record as far as it is known; 0 if the bytes cannot begin a record.
    extent: u64,
    /// The end of the first piece: beanstalkd writes a record in pieces, which end here and at the seams.
    length_bytes: u64,
    seams: [u64; 2],
}

impl Tear {
    /// Whether an interrupted write explains that only zeros follow after this number of bytes. Before the last file, only
    /// a process that was killed between two pieces leaves that, since beanstalkd then continues in a new file.
    fn explains(&self, bytes: u64, is_last: bool) -> bool {
        let is_seam = bytes <= self.length_bytes || self.seams.contains(&bytes);
        bytes < self.extent && (is_last || is_seam)
    }
}

/// Returns the offset behind the last byte that is not zero. Holes are not read: a file may have any size without using
/// space.
fn content_end(file: &File, bytes: u64) -> io::Result<u64> {
    let mut window = vec![0; WINDOW_BYTES];
    let (mut content_end, mut at) = (0, 0);
    while at < bytes
        && let Some(begin) = next_data(file, at)
    {
        let hole = lseek(file, begin as i64, Whence::SeekHole).map_or(bytes, |hole| bytes.min(hole as u64));
        let mut end = hole;
        while end > begin {
            refuse_to_go_on()?;
            let from = end.saturating_sub(WINDOW_BYTES as u64).max(begin);
            let count = read_up_to(file, from, &mut window[..(end - from) as usize])?;
            if let Some(last) = window[..count].iter().rposition(|&byte| byte != 0) {
                content_end = from + last as u64 + 1;
                break;
            }
            end = from;
        }
        at = hole.max(begin + 1);
    }
    Ok(content_end)
}

// docs/RUNBOOK.md lists these messages.
fn write_io(file: &str, error: &io::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error.kind() {
        _ if FileRefusal::of(error).is_some() => f.write_str(&text_of(error)),
        ErrorKind::PermissionDenied => {
            write!(f, "{file}: permission denied; user {} must be able to read it", current_user())
        }
        _ => {
            write!(f, "cannot read {file}: {}; check the disk and the limits of the process", text_of(error))
        }
    }
}
