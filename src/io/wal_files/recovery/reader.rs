//! Reading all segments of a job log in order: which of them have records, where the log ends, and what is proven to be
//! on disk.

use std::collections::BTreeMap;

use super::{RecoveryError, io_error};
use crate::bodies::OutOfMemory;
use crate::io::wal_files::storage::Segments;
use crate::queue::Engine;
use crate::values::ids::JobId;
use crate::wal::batch::{BLOCK_BYTES, Batch};
use crate::wal::record::{Lsn, Record, Stamp, padding_bytes};
use crate::wal::scan::{Scanner, Source};
use crate::wal::segment::{self, HEADER_BYTES, Header, HeaderFault};
use crate::wal::{BACKLOG_BYTES_MAX, Replay, SegmentNumber, WalConfig};

/// Discarded bytes behind the last record are overwritten with zeros up to this size, about what a server may have in
/// flight. Behind more than that, the job log continues in another file.
const WIPED_BYTES_MAX: u64 = BACKLOG_BYTES_MAX as u64;

/// What the segments turned out to be.
#[derive(Default)]
pub struct Findings {
    /// Segments without records under their present names.
    pub unused: Vec<SegmentNumber>,
    /// Of those, recycled files whose old header alone announces that their old segment, and all before it, are not
    /// needed.
    pub markers: Vec<SegmentNumber>,
    /// Segments behind the end of the job log. Their records were never durable.
    pub lost: Vec<SegmentNumber>,
    /// The segment before the first lost one, if its file does not exist.
    missing: Option<SegmentNumber>,
    /// The segment with the largest number.
    pub last: Option<SegmentNumber>,
    /// The segments that make up the job log, in order.
    pub read: Vec<Piece>,
    /// Everything before this position was durable when a later record was written.
    pub proven: Lsn,
    /// Files that may be missing behind the last segment.
    pub hole: Option<Hole>,
    /// The first file with an id that a server does not start from.
    id_too_large: Option<(String, JobId)>,
}

/// Numbers without files between the last segment and the first prepared file, where the last segment looks as if the job
/// log went on behind it. It proves nothing: a start gives prepared files new numbers, and a crash may follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole {
    /// The last segment. It has no space for another job of the largest size, and was not closed.
    pub last: SegmentNumber,
    /// The first prepared file.
    pub next: SegmentNumber,
}

/// The valid records of a segment.
pub struct Piece {
    pub header: Header,
    pub end: Lsn,
    /// The size of the file.
    pub bytes: u64,
}

/// The end of the job log, and the segment that it is in.
#[derive(Clone)]
pub struct Tail {
    pub header: Header,
    pub end: Lsn,
    pub file: String,
    /// The offset of the end in the file.
    pub offset: u64,
    /// The size of the file.
    pub bytes: u64,
    /// Valid records behind the end: they follow a gap.
    pub left: u64,
    /// Bytes behind the end that were written as records of this segment.
    pub discarded: u64,
    /// Bytes behind the end up to the last one that is not zero.
    nonzero: u64,
    /// Whether the last record closes the job log.
    pub is_closed: bool,
}

impl Tail {
    /// Whether new records can follow the last one. Valid records behind a gap prevent that: they would come back when
    /// the gap is filled.
    pub fn can_continue(&self, config: WalConfig) -> bool {
        self.bytes == config.segment_bytes
            && self.header.format == config.format()
            && self.left == 0
            && self.discarded <= WIPED_BYTES_MAX
            && self.block_end() < self.bytes
    }

    /// Whether nothing shows damage behind the last record.
    const fn is_whole(&self) -> bool {
        self.left == 0 && self.discarded == 0
    }

    /// The end of the last block that has a record, with the padding behind it.
    fn block_end(&self) -> u64 {
        let padded = self.offset + padding_bytes(self.offset, self.bytes) as u64;
        padded.next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Bytes that fill the block of the last record and replace what is discarded.
    pub fn filling(&self) -> Batch {
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
    pub fn discarded(&self) -> Option<(String, u64, u64)> {
        (self.discarded > 0).then(|| (self.file.clone(), self.offset, self.discarded))
    }
}

/// What the header of a file shows.
enum FileContent {
    Segment(Header),
    /// No records under this name. `was` is the segment of this log that it was before.
    Unused {
        was: Option<SegmentNumber>,
    },
}

/// Reads segments one after the other into a [`Replay`].
pub struct Reader<'a, S: ?Sized> {
    segments: &'a S,
    replay: Replay,
    engine: &'a mut Engine,
    tail: Option<Tail>,
    first: Option<Header>,
    /// The oldest segment that is needed, as records and headers announce it.
    oldest: SegmentNumber,
    findings: Findings,
    has_bodies: bool,
}

impl<'a, S: Segments + ?Sized> Reader<'a, S> {
    pub fn new(segments: &'a S, engine: &'a mut Engine) -> Self {
        let (replay, findings) = (Replay::default(), Findings::default());
        let (tail, first, oldest) = (None, None, SegmentNumber(0));
        Self { segments, replay, engine, tail, first, oldest, findings, has_bodies: true }
    }

    /// Restores the jobs with empty bodies.
    pub fn without_bodies(mut self) -> Self {
        self.has_bodies = false;
        self
    }

    pub fn read_all(
        mut self,
        files: &BTreeMap<SegmentNumber, u64>,
    ) -> Result<(Replay, Option<Tail>, Findings, &'a mut Engine), RecoveryError> {
        self.findings.last = files.keys().next_back().copied();
        let mut window = Vec::new();
        let mut renamed = Vec::new();
        for (&number, &bytes) in files {
            let name = number.to_string();
            if number > SegmentNumber::LAST {
                return Err(RecoveryError::Foreign(name));
            }
            let mut file = self.segments.open(number).map_err(|error| io_error(&name, error))?;
            let header = match self.content(number, &name, &mut file)? {
                FileContent::Unused { was } => {
                    self.findings.unused.push(number);
                    renamed.extend(was.map(|was| (number, was)));
                    continue;
                }
                FileContent::Segment(header) => header,
            };
            self.oldest = self.oldest.max(header.oldest);
            window = if self.is_lost(&header) {
                if self.findings.lost.is_empty() {
                    self.findings.missing = self.missing_before(&header, files);
                }
                self.findings.lost.push(number);
                self.read_lost(file, bytes, header, window)?
            } else {
                self.first.get_or_insert(header);
                self.read(file, bytes, header, window)?
            };
        }
        self.refuse_damage(renamed)?;
        Ok((self.replay, self.tail, self.findings, self.engine))
    }

    /// Whether a segment comes behind a gap: records before it are missing.
    fn is_lost(&self, header: &Header) -> bool {
        !self.findings.unused.is_empty()
            || !self.findings.lost.is_empty()
            || self.tail.as_ref().is_some_and(|tail| header.first != tail.end)
    }

    /// Returns the segment before the first lost one, if the records up to it are whole and its file does not exist.
    fn missing_before(&self, lost: &Header, files: &BTreeMap<SegmentNumber, u64>) -> Option<SegmentNumber> {
        let tail = self.tail.as_ref().filter(|tail| tail.is_whole())?;
        let is_missing = lost.previous > tail.header.number && !files.contains_key(&lost.previous);
        Some(lost.previous).filter(|_| is_missing)
    }

    /// Refuses a log whose end is before what was durable, or whose first needed segment does not exist. `renamed` are
    /// unused files with the segments that they were before.
    fn refuse_damage(
        &mut self,
        mut renamed: Vec<(SegmentNumber, SegmentNumber)>,
    ) -> Result<(), RecoveryError> {
        let (end, file, offset) = match (&self.tail, self.findings.unused.first()) {
            (Some(tail), _) => (tail.end, tail.file.clone(), tail.offset),
            // Records are missing from the beginning of the job log on.
            (None, Some(unused)) => (Lsn::default(), unused.to_string(), 0),
            (None, None) => return Ok(()),
        };
        if self.findings.proven > end {
            if let Some(missing) = self.findings.missing {
                return Err(RecoveryError::Missing(missing.to_string()));
            }
            return Err(RecoveryError::Damaged { file, offset });
        }
        renamed.retain(|&(_, was)| was >= self.oldest);
        for (number, was) in renamed {
            self.findings.markers.push(number);
            self.oldest = self.oldest.max(was.next());
        }
        if !segment::may_be_recycled(self.oldest)
            && let Some(tail) = &mut self.tail
        {
            tail.discarded = tail.discarded.max(tail.nonzero);
            tail.is_closed &= tail.discarded == 0;
        }
        match self.first {
            Some(Header { previous, .. }) if previous.0 > 0 && previous >= self.oldest => {
                Err(RecoveryError::Missing(previous.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn content(
        &self,
        number: SegmentNumber,
        name: &str,
        file: &mut S::File,
    ) -> Result<FileContent, RecoveryError> {
        let mut block = vec![0; HEADER_BYTES as usize];
        let count = file.read_at(0, &mut block).map_err(|error| io_error(name, error))?;
        block.truncate(count);
        if block.len() < HEADER_BYTES as usize && block.iter().any(|&byte| byte != 0) {
            // A file gets all its space before anything is written to it.
            return Err(RecoveryError::Truncated { file: name.to_owned(), bytes: count as u64 });
        }
        let header = match Header::decode(&block) {
            Ok(header) => header,
            Err(HeaderFault::Version(version)) => {
                return Err(RecoveryError::Version(name.to_owned(), version));
            }
            Err(HeaderFault::Invalid) if block.iter().all(|&byte| byte == 0) => {
                return Ok(FileContent::Unused { was: None });
            }
            Err(HeaderFault::Invalid) => {
                return Err(RecoveryError::Damaged { file: name.to_owned(), offset: 0 });
            }
        };
        if header.number != number {
            // It was recycled: renamed after its old segment was retired, and not written to since.
            let is_ours = self.tail.as_ref().is_some_and(|tail| tail.header.log_id == header.log_id);
            return Ok(FileContent::Unused { was: Some(header.number).filter(|_| is_ours) });
        }
        match &self.tail {
            Some(tail) if tail.header.log_id != header.log_id => Err(RecoveryError::Foreign(name.to_owned())),
            _ => Ok(FileContent::Segment(header)),
        }
    }

    /// Replays the records of a segment. Returns the buffer for the next one.
    fn read(
        &mut self,
        file: S::File,
        bytes: u64,
        header: Header,
        window: Vec<u8>,
    ) -> Result<Vec<u8>, RecoveryError> {
        let name = header.number.to_string();
        let failed = |error| io_error(&name, error);
        self.replay.open(&header);
        self.findings.note_id(&name, JobId(header.next_id.0.saturating_sub(1)));
        let mut scanner = Scanner::new(file, bytes, header, window);
        let mut is_closed = false;
        while let Some((_, mut framed)) = scanner.next_record().map_err(failed)? {
            self.note(&framed.record, framed.durable);
            if let Record::Job(job) = &mut framed.record {
                self.findings.note_id(&name, job.id);
                if !self.has_bodies {
                    job.body = b"\r\n";
                }
            }
            is_closed = match framed.record {
                Record::Padding(_) => is_closed,
                Record::Closed => true,
                _ => false,
            };
            let applied = self.replay.apply(&framed.record, framed.bytes, self.engine);
            applied.map_err(|OutOfMemory| RecoveryError::Memory)?;
        }
        let end = scanner.end();
        let left = self.read_beyond(&mut scanner).map_err(failed)?;
        let offset = header.offset(end);
        let discarded = scanner.traces_end().saturating_sub(offset);
        let nonzero = scanner.nonzero_end().saturating_sub(offset);
        is_closed &= discarded == 0;
        self.findings.read.push(Piece { header, end, bytes });
        self.tail =
            Some(Tail { header, end, file: name, offset, bytes, left, discarded, nonzero, is_closed });
        Ok(scanner.into_window())
    }

    /// Reads a lost segment, only for what it proves about those before it.
    fn read_lost(
        &mut self,
        file: S::File,
        bytes: u64,
        header: Header,
        window: Vec<u8>,
    ) -> Result<Vec<u8>, RecoveryError> {
        let failed = |error| io_error(&header.number.to_string(), error);
        let mut scanner = Scanner::new(file, bytes, header, window);
        while let Some((_, framed)) = scanner.next_record().map_err(failed)? {
            self.note(&framed.record, framed.durable);
        }
        self.read_beyond(&mut scanner).map_err(failed)?;
        Ok(scanner.into_window())
    }

    fn note(&mut self, record: &Record<'_>, durable: Lsn) {
        self.findings.proven = self.findings.proven.max(durable);
        if let Record::Oldest(segment) = record {
            self.oldest = self.oldest.max(*segment);
        }
    }

    /// Reads valid records behind the end of a segment: they too say what was durable. Returns how many there are.
    fn read_beyond(&mut self, scanner: &mut Scanner<S::File>) -> std::io::Result<u64> {
        let mut left = 0;
        while let Some((_, framed)) = scanner.next_beyond()? {
            self.findings.proven = self.findings.proven.max(framed.durable);
            left += 1;
        }
        Ok(left)
    }
}

impl Findings {
    /// Notes the hole behind the last segment, if there is one. `largest` is the size of the largest job's record.
    pub fn note_hole(&mut self, tail: &Tail, largest: u64) {
        let last = tail.header.number;
        let is_full = tail.offset + largest > tail.bytes;
        let goes_on = is_full && !tail.is_closed && tail.is_whole() && self.lost.is_empty();
        let next = self.unused.first().filter(|&&next| goes_on && next > last.next());
        self.hole = next.map(|&next| Hole { last, next });
    }

    /// Returns why a server does not start, if that is known only once all is read.
    pub fn take_refusal(&mut self) -> Option<RecoveryError> {
        self.id_too_large.take().map(|(file, id)| RecoveryError::Id { file, id })
    }

    /// Bytes of files that are not proven to be on disk, in whole blocks.
    pub fn unproven_bytes(&self) -> u64 {
        let blocks = |(from, to): (u64, u64)| to.next_multiple_of(BLOCK_BYTES as u64) - from;
        self.read.iter().filter_map(|piece| self.unproven(piece)).map(blocks).sum()
    }

    /// Returns which bytes of a file are not proven to be on disk: from the beginning of a block to the end of the
    /// records.
    pub fn unproven(&self, piece: &Piece) -> Option<(u64, u64)> {
        let &Piece { header, end, .. } = piece;
        // A record behind the header that was durable proves the header too.
        let is_header_proven = header.first < self.proven;
        if is_header_proven && end <= self.proven {
            return None;
        }
        let from = if is_header_proven { header.offset(self.proven) } else { 0 };
        Some((from / BLOCK_BYTES as u64 * BLOCK_BYTES as u64, header.offset(end)))
    }

    fn note_id(&mut self, file: &str, id: JobId) {
        if id > JobId::START_MAX && self.id_too_large.is_none() {
            self.id_too_large = Some((file.to_owned(), id));
        }
    }
}
