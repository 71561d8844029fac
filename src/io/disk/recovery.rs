//! From a directory to a log that goes on, and the queue as it was.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fmt, fs};

use tracing::{info, warn};

use super::{Access, Directory};
use crate::bodies::OutOfMemory;
use crate::io::host;
use crate::log::batch::{BLOCK_BYTES, Batch};
use crate::log::record::{Lsn, Record, Stamp, padding_bytes};
use crate::log::scan::{Scanner, Source};
use crate::log::segment::{HEADER_BYTES, Header, HeaderFault};
use crate::log::{Arrangement, Config, Log, Recovered, Replay, SegmentNumber, is_full};
use crate::queue::Engine;
use crate::time::Time;

/// Why a log cannot be used as it is. Nothing in its directory was changed.
#[derive(Debug)]
pub enum RecoveryError {
    /// A file cannot be read or made.
    Io(String, io::Error),
    /// Something that was on disk for good has changed.
    Damaged {
        /// Which file.
        file: String,
        /// Where in it.
        offset: u64,
    },
    /// The log begins with this file, which is not there.
    Missing(String),
    /// A newer version has written it.
    Version(String, u32),
    /// It belongs to another log.
    Stranger(String),
    /// A segment has to be larger for one of the jobs.
    JobTooLarge {
        /// So large at least.
        bytes: u64,
    },
    /// The jobs do not fit into memory.
    Memory,
}

/// Reads the log, puts the jobs into the queue, and gets the directory ready to go on.
pub fn recover(
    directory: &Directory,
    config: Config,
    engine: &mut Engine,
    now: Time,
) -> Result<Log, RecoveryError> {
    let files = directory.segments().map_err(|error| io_error("the directory", error))?;
    let (mut recovered, found, tail) = read(directory.path(), &files, engine, now)?;
    let needed = HEADER_BYTES + recovered.largest;
    if needed > config.segment_bytes {
        return Err(RecoveryError::JobTooLarge { bytes: needed });
    }
    let is_odd = |&(number, bytes): &(&SegmentNumber, &u64)| {
        *bytes != config.segment_bytes && !found.unused.contains(number) && !found.lost.contains(number)
    };
    let odd = files.iter().filter(is_odd).map(|(&number, _)| number);
    recovered.odd_up_to = odd.max().unwrap_or(SegmentNumber(0));
    if let Some(tail) = tail.filter(|tail| found.lost.is_empty() && tail.can_go_on(config)) {
        recovered.end = tail.fill_block(directory)?;
        recovered.active = Some(tail.header);
    }
    let prepared = prepare(directory, &files, &found, config, recovered.active.is_some())?;
    secure(directory, &files)?;
    Ok(Log::new(config, recovered, prepared, engine))
}

/// Reads the log and puts the jobs into the queue. Changes nothing in the directory.
pub(super) fn read(
    directory: &Path,
    files: &BTreeMap<SegmentNumber, u64>,
    engine: &mut Engine,
    now: Time,
) -> Result<(Recovered, Found, Option<Tail>), RecoveryError> {
    let mut reader = Reader {
        directory,
        replay: Replay::default(),
        engine,
        log: None,
        first: None,
        oldest: SegmentNumber(0),
        proven: Lsn::default(),
    };
    let found = reader.read_all(files)?;
    let Reader { replay, log, engine, .. } = reader;
    let jobs = engine.jobs().len();
    if let Some(Tail { file, offset, left: left @ 1.., .. }) = &log {
        warn!("{file}: {left} records beyond offset {offset} were never safe, and are lost");
    }
    let mut recovered = replay.finish(engine, now);
    if !files.is_empty() {
        info!("{jobs} jobs are back");
    }
    match &log {
        Some(tail) => (recovered.log_id, recovered.end) = (tail.header.log_id, tail.end),
        None => {
            let random = host::random_word();
            recovered.log_id = random.map_err(|errno| io_error("random numbers", errno.into()))?;
        }
    }
    Ok((recovered, found, log))
}

/// What the segments turned out to be.
#[derive(Default)]
pub(super) struct Found {
    /// They hold nothing, and have never held anything under their names.
    unused: Vec<SegmentNumber>,
    /// Of those, the ones whose old name alone tells that they, and what was before them, were of no use.
    telling: Vec<SegmentNumber>,
    /// They come after the end.
    lost: Vec<SegmentNumber>,
    last: Option<SegmentNumber>,
}

struct Reader<'a> {
    directory: &'a Path,
    replay: Replay,
    engine: &'a mut Engine,
    log: Option<Tail>,
    first: Option<Header>,
    /// Segments before this one were of no use any more.
    oldest: SegmentNumber,
    /// Everything before this was on disk.
    proven: Lsn,
}

/// The log as far as it was read.
#[derive(Clone)]
pub(super) struct Tail {
    header: Header,
    end: Lsn,
    file: String,
    offset: u64,
    /// Of the file.
    bytes: u64,
    /// Valid records behind the end.
    left: u64,
}

impl Tail {
    /// Whether records can go on behind those that are there. Valid ones behind a gap would come back when it is
    /// filled.
    fn can_go_on(&self, config: Config) -> bool {
        self.bytes == config.segment_bytes && self.left == 0 && self.block_end() < self.bytes
    }

    /// Where the last block ends that a record is in, or will be with the padding behind it.
    fn block_end(&self) -> u64 {
        let padded = self.offset + padding_bytes(self.offset, self.bytes) as u64;
        padded.next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Fills the block of the last record. Where the records go on then.
    fn fill_block(&self, directory: &Directory) -> Result<Lsn, RecoveryError> {
        let padding = padding_bytes(self.offset, self.bytes);
        if padding > 0 {
            let stamp = Stamp { seed: self.header.seed(), at: self.end, durable: Lsn::default() };
            let mut batch = Batch::default();
            Record::Padding(padding).encode(&stamp, &mut batch);
            let file = directory.open_segment(self.header.number, Access::Cached);
            let filled = file.and_then(|file| file.write_all_at(batch.bytes(), self.offset));
            filled.map_err(|error| io_error(&self.file, error))?;
        }
        Ok(Lsn(self.end.0 + padding as u64))
    }
}

/// What is at the beginning of a segment's file.
enum Kind {
    Segment(Header),
    /// Of this log it may have been another one before.
    Unused {
        was: Option<SegmentNumber>,
    },
}

impl Reader<'_> {
    fn read_all(&mut self, files: &BTreeMap<SegmentNumber, u64>) -> Result<Found, RecoveryError> {
        let mut found = Found { last: files.keys().next_back().copied(), ..Found::default() };
        let mut window = Vec::new();
        let mut renamed = Vec::new();
        for (&number, &bytes) in files {
            let name = number.to_string();
            if number > SegmentNumber::LAST {
                return Err(RecoveryError::Stranger(name));
            }
            let file = File::open(self.directory.join(&name)).map_err(|error| io_error(&name, error))?;
            let header = match self.kind(number, &name, &file)? {
                Kind::Unused { was } => {
                    found.unused.push(number);
                    renamed.extend(was.map(|was| (number, was)));
                    continue;
                }
                Kind::Segment(header) => header,
            };
            let follows = |tail: &Tail| header.first == tail.end;
            let is_lost = !found.unused.is_empty()
                || !found.lost.is_empty()
                || self.log.as_ref().is_some_and(|tail| !follows(tail));
            if is_lost {
                found.lost.push(number);
            } else {
                self.first.get_or_insert(header);
            }
            self.oldest = self.oldest.max(header.oldest);
            window = self.read(&name, file, bytes, header, is_lost, window)?;
        }
        let (end, file, offset) = match (&self.log, found.unused.first()) {
            (Some(tail), _) => (tail.end, tail.file.clone(), tail.offset),
            // The beginning of the log is not where it was.
            (None, Some(unused)) => (Lsn::default(), unused.to_string(), 0),
            (None, None) => return Ok(found),
        };
        if self.proven > end {
            return Err(RecoveryError::Damaged { file, offset });
        }
        renamed.retain(|&(_, was)| was >= self.oldest);
        for (number, was) in renamed {
            found.telling.push(number);
            self.oldest = self.oldest.max(was.next());
        }
        match self.first {
            Some(Header { previous, .. }) if previous.0 > 0 && previous >= self.oldest => {
                Err(RecoveryError::Missing(previous.to_string()))
            }
            _ => Ok(found),
        }
    }

    fn kind(&mut self, number: SegmentNumber, name: &str, file: &File) -> Result<Kind, RecoveryError> {
        let mut block = vec![0; HEADER_BYTES as usize];
        let count = read_up_to(file, 0, &mut block).map_err(|error| io_error(name, error))?;
        block.truncate(count);
        let header = match Header::decode(&block) {
            Ok(header) => header,
            Err(HeaderFault::Version(version)) => {
                return Err(RecoveryError::Version(name.to_owned(), version));
            }
            Err(HeaderFault::Invalid) if block.iter().all(|&byte| byte == 0) => {
                return Ok(Kind::Unused { was: None });
            }
            Err(HeaderFault::Invalid) => {
                return Err(RecoveryError::Damaged { file: name.to_owned(), offset: 0 });
            }
        };
        if header.number != number {
            // It had another name, which was of no use any more, and has not been used under this one.
            let is_ours = self.log.as_ref().is_some_and(|tail| tail.header.log_id == header.log_id);
            return Ok(Kind::Unused { was: Some(header.number).filter(|_| is_ours) });
        }
        match &self.log {
            Some(tail) if tail.header.log_id != header.log_id => {
                Err(RecoveryError::Stranger(name.to_owned()))
            }
            _ => Ok(Kind::Segment(header)),
        }
    }

    /// Reads one segment. Of one that is lost, only what it proves about those before it.
    fn read(
        &mut self,
        name: &str,
        file: File,
        bytes: u64,
        header: Header,
        is_lost: bool,
        window: Vec<u8>,
    ) -> Result<Vec<u8>, RecoveryError> {
        let failed = |error| io_error(name, error);
        if !is_lost {
            self.replay.open(&header);
        }
        let mut scanner = Scanner::new(file, bytes, header, window);
        while let Some((_, framed)) = scanner.next_record().map_err(failed)? {
            self.proven = self.proven.max(framed.durable);
            if let Record::Oldest(segment) = framed.record {
                self.oldest = self.oldest.max(segment);
            }
            if !is_lost {
                let applied = self.replay.apply(&framed.record, framed.bytes, self.engine);
                applied.map_err(|OutOfMemory| RecoveryError::Memory)?;
            }
        }
        if !is_lost {
            let end = scanner.end();
            let (file, offset) = (name.to_owned(), header.offset(end));
            self.log = Some(Tail { header, end, file, offset, bytes, left: 0 });
        }
        // What is valid behind the end was written, and maybe proven, before it.
        let mut left = 0;
        while let Some((_, framed)) = scanner.next_beyond().map_err(failed)? {
            self.proven = self.proven.max(framed.durable);
            left += 1;
        }
        if left > 0 && !is_lost {
            self.log.iter_mut().for_each(|tail| tail.left = left);
        }
        Ok(scanner.into_window())
    }
}

/// Takes away what is of no use, and makes sure that there is a segment to go on in.
fn prepare(
    directory: &Directory,
    files: &BTreeMap<SegmentNumber, u64>,
    found: &Found,
    config: Config,
    goes_on: bool,
) -> Result<Vec<SegmentNumber>, RecoveryError> {
    let mut prepared = Vec::new();
    let mut next = found.last.map_or(SegmentNumber(1), SegmentNumber::next);
    let remove = |number: SegmentNumber| {
        let name = number.to_string();
        fs::remove_file(directory.file(&name)).map_err(|error| io_error(&name, error))
    };
    found.lost.iter().rev().try_for_each(|&number| remove(number))?;
    for &number in &found.unused {
        let fits = files[&number] == config.segment_bytes;
        let is_kept = found.telling.contains(&number) || fits && found.lost.is_empty();
        if !is_kept {
            remove(number)?;
            continue;
        }
        let name = number.to_string();
        let resized = if fits { Ok(()) } else { directory.resize_segment(number, config.segment_bytes) };
        // Where the power failed, there may be records in it without the header: under another number they mean
        // nothing.
        resized
            .and_then(|()| fs::rename(directory.file(&name), directory.file(&next.to_string())))
            .map_err(|error| io_error(&name, error))?;
        prepared.push(next);
        next = next.next();
    }
    if prepared.is_empty() {
        let bytes = config.segment_bytes;
        let created = if goes_on {
            directory.create_soon(next, bytes)
        } else {
            directory.arrange(Arrangement::Create { segment: next, bytes })
        };
        match created {
            Ok(()) => prepared.push(next),
            // Jobs can be served and deleted, which will make room.
            Err(error) if goes_on && is_full(&error) => {}
            Err(error) => return Err(io_error(&next.to_string(), error)),
        }
    }
    Ok(prepared)
}

/// Brings to disk what was read: the log will say that it is there, and a process that was killed may have left it
/// in memory.
fn secure(directory: &Directory, files: &BTreeMap<SegmentNumber, u64>) -> Result<(), RecoveryError> {
    for number in files.keys() {
        let name = number.to_string();
        match File::open(directory.file(&name)).and_then(|file| file.sync_data()) {
            // It was of no use.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            result => result.map_err(|error| io_error(&name, error))?,
        }
    }
    directory.sync().map_err(|error| io_error("the directory", error))
}

fn io_error(file: &str, error: io::Error) -> RecoveryError {
    RecoveryError::Io(file.to_owned(), error)
}

/// Reads until there is no more room, or no more of the file.
pub(super) fn read_up_to(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < into.len() {
        match file.read_at(&mut into[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(bytes) => count += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

impl Source for File {
    type Error = io::Error;

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        read_up_to(self, offset, into)
    }
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
            Self::Stranger(file) => write!(f, "{file} belongs to another log; move it out of the directory"),
            Self::Memory => write!(f, "there is too little memory for the jobs of the log"),
        }
    }
}

impl std::error::Error for RecoveryError {}
