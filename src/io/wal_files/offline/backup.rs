//! `beanring wal backup`: copies the job log of a server, which may be running. It takes no lock of that directory.
//!
//! An attempt lists the segments, reads their headers, copies the segments that have records, and checks the copy as a
//! start does. It fails if the server removes or reuses a segment during that, and the next attempt begins at the list.
//!
//! The copy has every change whose reply left before the attempt. A change is written before its reply leaves, so its record
//! is in a listed segment, or compaction has copied it to one. Segments but the active one do not change until they are
//! recycled. The active one is copied up to the end of its valid records, which is found after the list.
//!
//! The first blocks of all segments are read twice, before and after that end is found. If they are the same, the active
//! segment was the last one with records at one moment between. Else an announcement that an older segment is not needed may
//! be about records that compaction has copied to a segment that is not listed as one with records. For the same reason
//! a segment must still have its first block after it was copied.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

#[cfg(feature = "replicate")]
use super::make_empty_anywhere;
use super::{
    Content, Extent, Hole, JobBodies, Offline, Places, Start, ToolError, make_empty, open_new, parent_of,
    write_log,
};
use crate::io::wal_files::directory::{Directory, IMPORT_BEGUN, segments_in};
#[cfg(feature = "replicate")]
use crate::io::wal_files::directory::{DirectoryError, lock_to_read};
use crate::io::wal_files::end_marks::{END_MARKS, EndMarks};
use crate::io::wal_files::storage::{Segments, Storage, read_up_to};
use crate::io::wal_files::{Access, RecoveryError, plain_file};
use crate::time::Time;
use crate::wal::scan::Scanner;
use crate::wal::segment::{HEADER_BYTES, Header, may_be_recycled};
use crate::wal::{Arrangement, EndMark, SegmentNumber};

/// Attempts before the backup fails.
const ATTEMPTS_MAX: u32 = 200;

/// Attempts that end with the same damage: it is not a write that was seen half done.
const DAMAGED_MAX: u32 = 3;

/// The pause before the next attempt, and before the end of the records is looked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks for the end of a write that is half done.
const LOOKS_MAX: u32 = 50;

/// Segments that are open during an attempt, from the oldest on. An open segment can be copied after its removal.
const OPEN_MAX: usize = 256;

/// Bytes per read and write. No copy_file_range(2): it may share blocks with the segment of the server, whose next write
/// would then need new space.
const PIECE_BYTES: usize = 1 << 20;

/// The directory within the new one that has the copy until it is checked. No server starts from the new one before.
const INCOMPLETE: &str = "incomplete";

/// The mode of directories with jobs.
const PRIVATE: u32 = 0o700;

/// The result of a backup.
#[derive(Debug)]
pub struct BackedUp {
    /// The number of jobs in the copy.
    pub jobs: usize,
    /// The number of segments with records.
    pub segments: usize,
    /// The number of attempts that it took.
    pub attempts: u32,
    /// Where files may be missing. A healthy job log may look the same.
    pub hole: Option<Hole>,
}

/// Why an attempt gives no copy.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Another attempt would end in the same way.
    #[error("{0}")]
    Final(ToolError),
    /// The server has changed the segments.
    #[error("{0}")]
    Moved(String),
    /// A server would not start from the copy.
    #[error("{0}")]
    Refused(RecoveryError),
    /// A server would start from the copy without these bytes.
    #[error("a start would discard {}", Places(.0))]
    Discards(Vec<Extent>),
}

/// Copies the job log in `from` to `to`.
///
/// # Errors
/// If no attempt gives a copy that a server starts from, or `to` is not empty or cannot be written. `to` is then empty, or
/// does not exist if it did not before.
pub fn backup(from: &Path, to: &Path, now: Time) -> Result<BackedUp, ToolError> {
    refuse_other(from)?;
    let mut plan = match Plan::of(from) {
        Err(Failure::Final(error)) => return Err(error),
        plan => plan,
    };
    let target = BackupTarget::new(to, from)?;
    let (mut damage, mut same) = (String::new(), 0);
    for attempt in 1..=ATTEMPTS_MAX {
        let failure = match plan.and_then(|plan| plan.attempt(&target, now)) {
            Ok(found) => return target.complete(&found, attempt),
            Err(failure) => failure,
        };
        let text = failure.to_string();
        same = if text == damage { same + 1 } else { 1 };
        match failure {
            Failure::Final(error) => return Err(error),
            Failure::Refused(error) if same == DAMAGED_MAX => return Err(ToolError::Log(error)),
            Failure::Discards(places) if same == DAMAGED_MAX => return Err(ToolError::Torn(places)),
            _ => damage = text,
        }
        thread::sleep(PAUSE);
        plan = Plan::of(from);
    }
    Err(ToolError::Moving { path: from.to_owned(), attempts: ATTEMPTS_MAX, last: damage })
}

/// Refuses what has no job log.
fn refuse_other(from: &Path) -> Result<(), ToolError> {
    if from.is_file() {
        return Err(ToolError::File(from.to_owned()));
    }
    match segments_in(from) {
        Ok(files) if files.is_empty() => Err(ToolError::without_segments(from)),
        // A segment is gone since it was listed.
        Err(error) if error.kind() == ErrorKind::NotFound && from.is_dir() => Ok(()),
        Err(error) => Err(ToolError::Unusable(from.to_owned(), error)),
        Ok(_) => Ok(()),
    }
}

/// What an attempt copies.
struct Plan<'a> {
    from: &'a Path,
    /// Segments with records, oldest first.
    segments: Vec<Planned>,
    /// Segments without records, with their first blocks: one may announce that an older segment is not needed.
    unused: Vec<(SegmentNumber, Vec<u8>)>,
    /// The last segment with records.
    active: Option<SegmentNumber>,
    /// What the copy must reach: the mark of the log's end before it was listed.
    mark: Option<EndMark>,
}

struct Planned {
    number: SegmentNumber,
    /// The size of the file.
    bytes: u64,
    /// How much of it is copied.
    copied: u64,
    /// Its first block.
    block: Vec<u8>,
    /// It is opened when its turn comes, if too many are open.
    file: Option<File>,
}

impl<'a> Plan<'a> {
    /// Lists the segments, and decides how much of each is copied.
    fn of(from: &'a Path) -> Result<Self, Failure> {
        if plain_file::exists(&from.join(IMPORT_BEGUN)) {
            return Err(Failure::Final(ToolError::Importing(from.to_owned())));
        }
        let marks = EndMarks::read(from).map_err(|error| Failure::of_source(from, error))?;
        let mark = marks.last().map(|(_, mark)| mark);
        let files = segments_in(from).map_err(|error| Failure::of_source(from, error))?;
        let mut segments = Vec::new();
        let mut unused = Vec::new();
        let mut headers = Vec::new();
        let mut is_regular = true;
        for (&number, &bytes) in &files {
            let failed = |error| Failure::of_segment(from, number, error);
            let file = from.open(number).map_err(failed)?;
            let block = first_block(&file).map_err(failed)?;
            match Header::decode(&block) {
                Ok(header) if header.number == number => {
                    is_regular &= unused.is_empty();
                    headers.push(header);
                }
                Err(_) if block.iter().any(|&byte| byte != 0) => is_regular = false,
                _ => unused.push((number, block.clone())),
            }
            let file = Some(file).filter(|_| segments.len() < OPEN_MAX);
            segments.push(Planned { number, bytes, copied: bytes, block, file });
        }
        is_regular &= headers.windows(2).all(|pair| pair[0].log_id == pair[1].log_id);
        let Some(active) = headers.last().filter(|_| is_regular) else {
            // Whatever is wrong with it, the check of the copy finds the same.
            unchanged(from, &segments)?;
            let active = headers.last().map(|header| header.number);
            return Ok(Self { from, segments, unused: Vec::new(), active, mark });
        };
        if let Some((file, mark)) = marks.foreign(active.log_id) {
            return Err(Failure::Refused(RecoveryError::other_log(file, mark.log_id, active.log_id)));
        }
        let (first, last) = (active.oldest, active.number);
        let end = segments.iter_mut().find(|segment| segment.number == last).expect("it is listed");
        let failed = |error| Failure::of_segment(from, last, error);
        let file = from.open(last).map_err(failed)?;
        if let Some(records_end) = records_end(&file, end.bytes, *active).map_err(failed)? {
            // mutant backup-without-its-active-segment: records_end => records_end.min(HEADER_BYTES)
            end.copied = records_end;
        }
        unchanged(from, &segments)?;
        segments.retain(|segment| (first..=last).contains(&segment.number));
        Ok(Self { from, segments, unused, active: Some(last), mark })
    }

    /// Copies and checks.
    fn attempt(self, target: &BackupTarget, now: Time) -> Result<Found, Failure> {
        let copy = target.begin_copy().map_err(|error| Failure::Final(target.unwritable(error)))?;
        let directory = open_new(&copy).map_err(Failure::Final)?;
        let mut piece = vec![0; PIECE_BYTES];
        for Planned { number, bytes, copied, block, file } in self.segments {
            let source = file.map_or_else(|| self.from.open(number), Ok);
            let source = source.map_err(|error| Failure::of_segment(self.from, number, error))?;
            let failed = |error| Failure::of_source(Path::new(&number.to_string()), error);
            let to = create(&directory, number, bytes).map_err(|error| target.full(error))?;
            let mut at = 0;
            while at < copied {
                let wanted = (copied - at).min(PIECE_BYTES as u64) as usize;
                let count = read_up_to(&source, at, &mut piece[..wanted]).map_err(failed)?;
                if count == 0 {
                    return Err(Failure::Moved(format!("{number} became shorter during the copy")));
                }
                to.write_all_at(&piece[..count], at).map_err(|error| target.full(error))?;
                at += count as u64;
            }
            to.sync_all().map_err(|error| target.full(error))?;
            if first_block(&source).map_err(failed)? != block {
                return Err(Failure::changed(number));
            }
        }
        for (number, block) in self.unused {
            let to = create(&directory, number, HEADER_BYTES).map_err(|error| target.full(error))?;
            to.write_all_at(&block, 0).and_then(|()| to.sync_all()).map_err(|error| target.full(error))?;
        }
        if let Some(mark) = self.mark {
            directory.arrange(Arrangement::MarkEnd(mark)).map_err(|error| target.full(error))?;
        }
        drop(directory);
        Found::of(&copy, self.active, now)
    }
}

/// Returns the block of a segment in which its header is.
pub(super) fn first_block(segment: &File) -> io::Result<Vec<u8>> {
    let mut block = vec![0; HEADER_BYTES as usize];
    let count = read_up_to(segment, 0, &mut block)?;
    block.truncate(count);
    Ok(block)
}

/// Checks that all segments have the first blocks that they had when they were listed.
fn unchanged(from: &Path, segments: &[Planned]) -> Result<(), Failure> {
    for &Planned { number, ref block, .. } in segments {
        let again = from.open(number).and_then(|file| first_block(&file));
        if again.map_err(|error| Failure::of_segment(from, number, error))? != *block {
            return Err(Failure::changed(number));
        }
    }
    Ok(())
}

/// Creates a segment with all its space, so that the next server writes to it even if the disk is full.
fn create(directory: &Directory, number: SegmentNumber, bytes: u64) -> io::Result<File> {
    directory.create_unwritten(number, bytes)?;
    directory.open_segment(number, Access::Cached)
}

/// Returns the offset behind the valid records of the active segment. Bytes behind them are a write that is in progress if
/// records follow the end later. Returns none if they do not: then the check of the whole file says what they are.
fn records_end(file: &File, bytes: u64, header: Header) -> io::Result<Option<u64>> {
    let scanner = || Ok::<_, io::Error>(Scanner::new(file.try_clone()?, bytes, header, Vec::new()));
    let mut found = scanner()?;
    while found.next_record()?.is_some() {}
    let end = found.end();
    while found.next_beyond()?.is_some() {}
    let beyond = if may_be_recycled(header.oldest) { found.traces_end } else { found.nonzero_end };
    if beyond <= header.offset(end) {
        return Ok(Some(header.offset(end)));
    }
    for _ in 0..LOOKS_MAX {
        thread::sleep(PAUSE);
        if scanner()?.starting_at(end).next_record()?.is_some() {
            return Ok(Some(header.offset(end)));
        }
    }
    Ok(None)
}

/// The content of a copy that a server starts from.
pub(super) struct Found {
    jobs: usize,
    /// The numbers of the segments with records, the last one first.
    segments: Vec<SegmentNumber>,
    others: Vec<SegmentNumber>,
    hole: Option<Hole>,
}

impl Found {
    /// Checks a copy.
    pub(super) fn of(copy: &Path, active: Option<SegmentNumber>, now: Time) -> Result<Self, Failure> {
        let log = Offline::open(copy).map_err(Failure::Final)?;
        // A server that runs beside this may need the memory of the bodies.
        let Start { engine, outlook, .. } = match log.recover(now, JobBodies::Empty) {
            Ok(start) => start,
            Err(ToolError::Log(error)) if !matches!(error, RecoveryError::Memory) => {
                return Err(Failure::Refused(error));
            }
            Err(error) => return Err(Failure::Final(error)),
        };
        if let Some(error) = outlook.refusal {
            return Err(Failure::Refused(error));
        }
        if !outlook.discarded.is_empty() {
            return Err(Failure::Discards(outlook.discarded));
        }
        let (segments, others) = log.files.keys().rev().partition(|&&number| active >= Some(number));
        Ok(Self { jobs: engine.jobs().len(), segments, others, hole: outlook.hole })
    }
}

/// The new directory. Unless the copy is complete, dropping it removes what it got.
pub(super) struct BackupTarget {
    path: PathBuf,
    is_created: bool,
    is_complete: bool,
}

impl BackupTarget {
    pub(super) fn new(path: &Path, log: &Path) -> Result<Self, ToolError> {
        let is_created = make_empty(path, log, PRIVATE)?;
        Ok(Self { path: path.to_owned(), is_created, is_complete: false })
    }

    /// Creates an empty directory, or accepts one that is empty, or that has only an incomplete copy that no other process
    /// writes.
    #[cfg(feature = "replicate")]
    pub(super) fn alone(path: &Path) -> Result<Self, ToolError> {
        let copy = path.join(INCOMPLETE);
        if copy.is_dir() {
            let unusable = |error| ToolError::Unusable(path.to_owned(), error);
            if fs::read_dir(path).map_err(unusable)?.count() > 1 {
                return Err(ToolError::Partial(path.to_owned()));
            }
            let is_locked = matches!(lock_to_read(&copy), Err(DirectoryError::Locked(_)));
            if is_locked {
                return Err(ToolError::NotEmpty(path.to_owned()));
            }
            fs::remove_dir_all(&copy).map_err(unusable)?;
        }
        let is_created = make_empty_anywhere(path, PRIVATE)?;
        Ok(Self { path: path.to_owned(), is_created, is_complete: false })
    }

    /// Creates an empty directory for the copy, instead of that of the last attempt.
    pub(super) fn begin_copy(&self) -> io::Result<PathBuf> {
        let copy = self.path.join(INCOMPLETE);
        match fs::remove_dir_all(&copy) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => DirBuilder::new().mode(PRIVATE).create(&copy)?,
        }
        Ok(copy)
    }

    /// Writes everything in the queue as a new job log. It is checked there before it gets its name, so a server starts from all of it or
    /// refuses it.
    pub(super) fn write(self, content: &Content, segment_bytes: u64, now: Time) -> Result<(), ToolError> {
        let copy = self.begin_copy().map_err(|error| self.unwritable(error))?;
        write_log(content, &copy, segment_bytes, now).map_err(|error| match error {
            ToolError::Unwritable(_, error) => self.unwritable(error),
            error => error,
        })?;
        let found =
            Found::of(&copy, Some(SegmentNumber(u64::MAX)), now).map_err(|failure| match failure {
                Failure::Final(error) => error,
                // It was written just now, so the disk has changed it.
                failure => self.unwritable(io::Error::other(failure.to_string())),
            })?;
        self.complete(&found, 1).map(drop)
    }

    /// Moves the checked copy to its place. The newest segment comes first, and those without records last: a server
    /// refuses every part of it, since older segments are missing.
    pub(super) fn complete(mut self, found: &Found, attempts: u32) -> Result<BackedUp, ToolError> {
        let copy = self.path.join(INCOMPLETE);
        let finish = || {
            for number in found.segments.iter().chain(&found.others) {
                let name = number.to_string();
                fs::rename(copy.join(&name), self.path.join(&name))?;
            }
            for name in END_MARKS.iter().filter(|name| plain_file::exists(&copy.join(name))) {
                fs::rename(copy.join(name), self.path.join(name))?;
            }
            fs::remove_dir_all(&copy)?;
            File::open(&self.path)?.sync_all()?;
            if self.is_created { File::open(parent_of(&self.path))?.sync_all() } else { Ok(()) }
        };
        finish().map_err(|error| self.unwritable(error))?;
        self.is_complete = true;
        Ok(BackedUp { jobs: found.jobs, segments: found.segments.len(), attempts, hole: found.hole })
    }

    pub(super) fn unwritable(&self, error: io::Error) -> ToolError {
        ToolError::NotCopied(self.path.clone(), error)
    }

    fn full(&self, error: io::Error) -> Failure {
        Failure::Final(self.unwritable(error))
    }
}

impl Drop for BackupTarget {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        // It was empty, so all of it is from this backup. What cannot be removed stays, and no server starts from it.
        let _ = fs::remove_dir_all(self.path.join(INCOMPLETE));
        for number in segments_in(&self.path).unwrap_or_default().keys().rev() {
            let _ = fs::remove_file(self.path.join(number.to_string()));
        }
        for name in END_MARKS {
            let _ = fs::remove_file(self.path.join(name));
        }
        if self.is_created {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

impl Failure {
    fn changed(number: SegmentNumber) -> Self {
        Self::Moved(format!("{number} was begun or reused during the copy"))
    }

    fn of_segment(from: &Path, number: SegmentNumber, error: io::Error) -> Self {
        Self::of_source(&from.join(number.to_string()), error)
    }

    /// A file that is gone was there when it was listed.
    fn of_source(path: &Path, error: io::Error) -> Self {
        if error.kind() == ErrorKind::NotFound {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            Self::Moved(format!("{name} was removed or renamed during the copy"))
        } else {
            Self::Final(ToolError::Unusable(path.to_owned(), error))
        }
    }
}
