//! From a directory to a log that goes on, and the queue as it was.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use tracing::{info, warn};

use super::storage::{Segments, Storage};
use crate::bodies::OutOfMemory;
use crate::ids::JobId;
use crate::io::host;
use crate::limits::LOG_BACKLOG_BYTES_MAX;
use crate::queue::Engine;
use crate::time::Time;
use crate::wal::batch::{BLOCK_BYTES, Batch};
use crate::wal::record::{Lsn, Record, Stamp, padding_bytes};
use crate::wal::scan::{Scanner, Source};
use crate::wal::segment::{HEADER_BYTES, Header, HeaderFault};
use crate::wal::{Arrangement, Config, Log, Recovered, Replay, SegmentNumber, is_full};

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
    /// A job has an id so large that the ids above it could run out.
    Id {
        /// Which file.
        file: String,
        /// The id.
        id: JobId,
    },
    /// What is not proven to be on disk cannot be written again: there is no space.
    NoSpace(String),
    /// A file was not read twice as the same.
    Unsteady(String),
    /// The jobs do not fit into memory.
    Memory,
}

/// What is discarded behind the last record is replaced by zeros if there is no more of it: about what a server may
/// have had under way. Behind more than that, the log goes on in another file.
const WIPED_BYTES_MAX: u64 = LOG_BACKLOG_BYTES_MAX as u64;

/// Reads the log, puts the jobs into the queue, and gets the directory ready to go on.
pub fn recover(
    storage: &impl Storage,
    config: Config,
    engine: &mut Engine,
    now: Time,
) -> Result<Log, RecoveryError> {
    let files = storage.list().map_err(|error| io_error("the directory", error))?;
    let (mut recovered, mut found, tail) = read(storage, &files, engine, now)?;
    if let Some((file, id)) = found.beyond.take() {
        return Err(RecoveryError::Id { file, id });
    }
    let needed = HEADER_BYTES + recovered.largest;
    if needed > config.segment_bytes {
        return Err(RecoveryError::JobTooLarge { bytes: needed });
    }
    let is_odd = |&(number, bytes): &(&SegmentNumber, &u64)| {
        *bytes != config.segment_bytes && !found.unused.contains(number) && !found.lost.contains(number)
    };
    let odd = files.iter().filter(is_odd).map(|(&number, _)| number);
    recovered.other_size_up_to = odd.max().unwrap_or(SegmentNumber(0));
    let goes_on = tail.as_ref().filter(|tail| found.lost.is_empty() && tail.can_go_on(config));
    let filling = goes_on.map(Tail::filling).unwrap_or_default();
    secure(storage, &mut found, filling.bytes())?;
    if let Some(tail) = goes_on {
        recovered.end.0 += padding_bytes(tail.offset, tail.bytes) as u64;
        recovered.active = Some(tail.header);
    }
    let prepared = prepare(storage, &files, &found, config, recovered.active.is_some())?;
    storage.sync().map_err(|error| io_error("the directory", error))?;
    Ok(Log::new(config, recovered, prepared, engine))
}

/// Reads the log and puts the jobs into the queue. Changes nothing in the directory.
pub(super) fn read<S: Segments + ?Sized>(
    segments: &S,
    files: &BTreeMap<SegmentNumber, u64>,
    engine: &mut Engine,
    now: Time,
) -> Result<(Recovered, Found, Option<Tail>), RecoveryError> {
    let mut reader = Reader {
        segments,
        replay: Replay::default(),
        engine,
        log: None,
        first: None,
        oldest: SegmentNumber(0),
        proven: Lsn::default(),
    };
    let mut found = reader.read_all(files)?;
    let Reader { replay, log, engine, proven, .. } = reader;
    found.proven = proven;
    let jobs = engine.jobs().len();
    if let Some(Tail { file, offset, discarded, left, .. }) = &log
        && *discarded > 0
    {
        warn!(
            "{file}: {discarded} bytes from offset {offset} on were not synced before the server ended, and are \
             discarded ({left} whole records)"
        );
    }
    let mut recovered = replay.finish(engine, now);
    if !files.is_empty() {
        info!("{jobs} jobs are back");
    }
    match &log {
        Some(tail) => {
            (recovered.log_id, recovered.end) = (tail.header.log_id, tail.end);
            recovered.is_closed = tail.is_closed;
        }
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
    /// What the log was read from, in its order.
    read: Vec<Piece>,
    /// Everything before this was synced by the process that wrote it.
    proven: Lsn,
    /// The first file with an id that a server does not start from.
    beyond: Option<(String, JobId)>,
}

/// The valid records of a segment.
struct Piece {
    header: Header,
    end: Lsn,
    /// Of the file.
    bytes: u64,
}

struct Reader<'a, S: ?Sized> {
    segments: &'a S,
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
    /// Bytes behind the end that were meant to be records of this segment.
    discarded: u64,
    /// The last record closes the log.
    is_closed: bool,
    /// An older version began it, and reads no records of this one.
    is_older: bool,
}

impl Tail {
    /// Whether records can go on behind those that are there. Valid ones behind a gap would come back when it is
    /// filled.
    fn can_go_on(&self, config: Config) -> bool {
        self.bytes == config.segment_bytes
            && !self.is_older
            && self.left == 0
            && self.discarded <= WIPED_BYTES_MAX
            && self.block_end() < self.bytes
    }

    /// Where the last block ends that a record is in, or will be with the padding behind it.
    fn block_end(&self) -> u64 {
        let padded = self.offset + padding_bytes(self.offset, self.bytes) as u64;
        padded.next_multiple_of(BLOCK_BYTES as u64)
    }

    /// What fills the block of the last record, and takes the place of what is discarded.
    fn filling(&self) -> Batch {
        let mut batch = Batch::default();
        let padding = padding_bytes(self.offset, self.bytes);
        if padding > 0 {
            let stamp = Stamp { seed: self.header.seed(), at: self.end, durable: Lsn::default() };
            Record::Padding(padding).encode(&stamp, &mut batch);
        }
        batch.pad_to(self.discarded as usize);
        batch
    }

    /// Returns the file, the offset in it, and how many bytes from there on a server discards.
    pub(super) fn discarded(&self) -> Option<(String, u64, u64)> {
        (self.discarded > 0).then(|| (self.file.clone(), self.offset, self.discarded))
    }
}

/// What is at the beginning of a segment's file.
enum Kind {
    Segment {
        header: Header,
        is_older: bool,
    },
    /// Of this log it may have been another one before.
    Unused {
        was: Option<SegmentNumber>,
    },
}

impl<S: Segments + ?Sized> Reader<'_, S> {
    fn read_all(&mut self, files: &BTreeMap<SegmentNumber, u64>) -> Result<Found, RecoveryError> {
        let mut found = Found { last: files.keys().next_back().copied(), ..Found::default() };
        let mut window = Vec::new();
        let mut renamed = Vec::new();
        for (&number, &bytes) in files {
            let name = number.to_string();
            if number > SegmentNumber::LAST {
                return Err(RecoveryError::Stranger(name));
            }
            let mut file = self.segments.open(number).map_err(|error| io_error(&name, error))?;
            let (header, is_older) = match self.kind(number, &name, &mut file)? {
                Kind::Unused { was } => {
                    found.unused.push(number);
                    renamed.extend(was.map(|was| (number, was)));
                    continue;
                }
                Kind::Segment { header, is_older } => (header, is_older),
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
            window = self.read(file, bytes, header, is_lost, window, &mut found)?;
            if let Some(tail) = self.log.as_mut().filter(|_| !is_lost) {
                tail.is_older = is_older;
            }
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

    fn kind(&self, number: SegmentNumber, name: &str, file: &mut S::File) -> Result<Kind, RecoveryError> {
        let mut block = vec![0; HEADER_BYTES as usize];
        let count = file.read_at(0, &mut block).map_err(|error| io_error(name, error))?;
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
            _ => Ok(Kind::Segment { header, is_older: !Header::is_current(&block) }),
        }
    }

    /// Reads one segment. Of one that is lost, only what it proves about those before it.
    fn read(
        &mut self,
        file: S::File,
        bytes: u64,
        header: Header,
        is_lost: bool,
        window: Vec<u8>,
        found: &mut Found,
    ) -> Result<Vec<u8>, RecoveryError> {
        let name = header.number.to_string();
        let failed = |error| io_error(&name, error);
        if !is_lost {
            self.replay.open(&header);
            found.note_id(&name, JobId(header.next_id.0.saturating_sub(1)));
        }
        let mut scanner = Scanner::new(file, bytes, header, window);
        let mut is_closed = false;
        while let Some((_, framed)) = scanner.next_record().map_err(failed)? {
            self.proven = self.proven.max(framed.durable);
            match &framed.record {
                Record::Oldest(segment) => self.oldest = self.oldest.max(*segment),
                Record::Job(job) if !is_lost => found.note_id(&name, job.id),
                _ => {}
            }
            is_closed = match framed.record {
                Record::Padding(_) => is_closed,
                Record::Closed => true,
                _ => false,
            };
            if !is_lost {
                let applied = self.replay.apply(&framed.record, framed.bytes, self.engine);
                applied.map_err(|OutOfMemory| RecoveryError::Memory)?;
            }
        }
        let end = scanner.end();
        // What is valid behind the end was written, and maybe proven, before it.
        let mut left = 0;
        while let Some((_, framed)) = scanner.next_beyond().map_err(failed)? {
            self.proven = self.proven.max(framed.durable);
            left += 1;
        }
        if !is_lost {
            let offset = header.offset(end);
            let discarded = scanner.traces_end().saturating_sub(offset);
            is_closed &= discarded == 0;
            let is_older = false;
            self.log =
                Some(Tail { header, end, file: name, offset, bytes, left, discarded, is_closed, is_older });
            found.read.push(Piece { header, end, bytes });
        }
        Ok(scanner.into_window())
    }
}

impl Found {
    /// Segments that come after the end.
    pub(super) fn lost(&self) -> impl Iterator<Item = SegmentNumber> {
        self.lost.iter().copied()
    }

    fn note_id(&mut self, file: &str, id: JobId) {
        if id > JobId::START_MAX && self.beyond.is_none() {
            self.beyond = Some((file.to_owned(), id));
        }
    }
}

/// Takes away what is of no use, and makes sure that there is a segment to go on in.
fn prepare(
    storage: &impl Storage,
    files: &BTreeMap<SegmentNumber, u64>,
    found: &Found,
    config: Config,
    goes_on: bool,
) -> Result<Vec<SegmentNumber>, RecoveryError> {
    let mut prepared = Vec::new();
    let mut next = found.last.map_or(SegmentNumber(1), SegmentNumber::next);
    let remove =
        |number: SegmentNumber| storage.remove(number).map_err(|error| io_error(&number.to_string(), error));
    found.lost.iter().rev().try_for_each(|&number| remove(number))?;
    for &number in &found.unused {
        let fits = files[&number] == config.segment_bytes;
        let is_kept = found.telling.contains(&number) || fits && found.lost.is_empty();
        if !is_kept {
            remove(number)?;
            continue;
        }
        let resized = if fits { Ok(()) } else { storage.resize(number, config.segment_bytes) };
        // Where the power failed, there may be records in it without the header: under another number they mean
        // nothing.
        resized
            .and_then(|()| storage.rename(number, next))
            .map_err(|error| io_error(&number.to_string(), error))?;
        prepared.push(next);
        next = next.next();
    }
    if prepared.is_empty() {
        let bytes = config.segment_bytes;
        let created = if goes_on {
            storage.create_soon(next, bytes)
        } else {
            storage.arrange(Arrangement::Create { segment: next, bytes })
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

/// Writes what is not proven to be on disk again, and `filling` behind it: the log will say that it is there. Having
/// read it proves nothing, and neither does a sync. Where a write to the disk has failed, the kernel may keep the page
/// and call it clean, so that it can be read until it is dropped and never reaches the disk.
fn secure(storage: &impl Storage, found: &mut Found, filling: &[u8]) -> Result<(), RecoveryError> {
    let mut window = Vec::new();
    let last = found.read.last().map(|piece| piece.header.number);
    for &Piece { header, end, bytes } in &found.read {
        // Once something behind it was on disk, a header was too.
        let is_header_proven = header.first < found.proven;
        if is_header_proven && end <= found.proven && (Some(header.number) != last || filling.is_empty()) {
            continue;
        }
        let from = if is_header_proven { header.offset(found.proven.min(end)) } else { 0 };
        let (from, to) = (from / BLOCK_BYTES as u64 * BLOCK_BYTES as u64, header.offset(end));
        let then = if Some(header.number) == last { filling } else { &[] };
        let failed = |error| io_error(&header.number.to_string(), error);
        let mut written = storage.rewrite(header.number, from, to, then);
        while let Err(error) = &written
            && is_full(error)
            && let Some(spare) = found.unused.iter().rposition(|unused| !found.telling.contains(unused))
        {
            // Where a write needs new space, a file that nothing was written to has some.
            storage.remove(found.unused.remove(spare)).and_then(|()| storage.sync()).map_err(failed)?;
            written = storage.rewrite(header.number, from, to, then);
        }
        written.map_err(|error| match is_full(&error) {
            true => RecoveryError::NoSpace(header.number.to_string()),
            false => failed(error),
        })?;
        // The kernel may have dropped such a page since it was first read.
        let file = storage.open(header.number).map_err(failed)?;
        let mut scanner = Scanner::new(file, bytes, header, window);
        while scanner.end() < end && scanner.next_record().map_err(failed)?.is_some() {}
        if scanner.end() < end {
            return Err(RecoveryError::Unsteady(header.number.to_string()));
        }
        window = scanner.into_window();
    }
    Ok(())
}

fn io_error(file: &str, error: io::Error) -> RecoveryError {
    RecoveryError::Io(file.to_owned(), error)
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
            Self::Id { file, id } => write!(
                f,
                "{file}: a job has the id {id}, above which ids could run out; export the log to beanstalkd, or work off \
                 its jobs with the version that has written it, and start with an empty directory"
            ),
            Self::NoSpace(file) => {
                write!(
                    f,
                    "the end of the log, in {file}, has to be written again, and the disk is full: free some space"
                )
            }
            Self::Unsteady(file) => write!(
                f,
                "{file} has changed since the start began: its disk has lost what was written last; start again to see \
                 what is left"
            ),
            Self::Memory => write!(f, "there is too little memory for the jobs of the log"),
        }
    }
}

impl std::error::Error for RecoveryError {}
