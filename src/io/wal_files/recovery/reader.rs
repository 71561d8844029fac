//! Reading all segments of a job log in order: which of them have records, where the log ends, and what is proven to be
//! on disk.

use std::collections::BTreeMap;

use super::{RecoveryError, io_error};
use crate::bodies::OutOfMemory;
use crate::io::wal_files::end_marks::{END_MARKS, EndMarks, MarkFault};
use crate::io::wal_files::storage::Segments;
use crate::queue::Engine;
use crate::values::ids::JobId;
use crate::wal::batch::{BLOCK_BYTES, Batch};
use crate::wal::record::{FRAME_BYTES, Lsn, Record, Stamp, first_position, padding_bytes};
use crate::wal::scan::{ScanSource, Scanner};
use crate::wal::segment::{self, HEADER_BYTES, Header, HeaderFault, Headers};
use crate::wal::{BACKLOG_BYTES_MAX, EndMark, Replay, SegmentNumber, WalConfig};

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
    /// The first lost segment, if its header is missing.
    headless: Option<SegmentNumber>,
    /// The id of the log, as headers show it.
    pub log_id: Option<u64>,
    /// The last mark of this log's end.
    pub mark: Option<EndMark>,
    /// The same, if both copies agree.
    pub agreed_mark: Option<EndMark>,
    /// Copies of the mark that are damaged.
    pub mark_fault: Option<MarkFault>,
    /// Why a server does not start, if that is known only once all is read.
    pub refusal: Option<RecoveryError>,
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

/// Bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Extent {
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
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
    /// The position behind the closing record, if that is the last one.
    pub closed_end: Option<Lsn>,
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

    /// Returns the bytes behind the end that a server discards.
    pub fn discarded(&self) -> Option<Extent> {
        let (file, offset, bytes) = (self.header.number.to_string(), self.offset, self.discarded);
        Some(Extent { file, offset, bytes }).filter(|extent| extent.bytes > 0)
    }
}

/// Whether jobs get their bodies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum JobBodies {
    Restored,
    Empty,
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
    bodies: JobBodies,
}

impl<'a, S: Segments + ?Sized> Reader<'a, S> {
    pub fn new(segments: &'a S, engine: &'a mut Engine, bodies: JobBodies) -> Self {
        let (replay, findings) = (Replay::default(), Findings::default());
        let (tail, first, oldest) = (None, None, SegmentNumber(0));
        Self { segments, replay, engine, tail, first, oldest, findings, bodies }
    }

    pub fn read_all(
        mut self,
        files: &BTreeMap<SegmentNumber, u64>,
    ) -> Result<(Replay, Option<Tail>, Findings), RecoveryError> {
        self.findings.last = files.keys().next_back().copied();
        let headers = files.keys().map(|&number| Ok((number, read_header(self.segments, number)?)));
        let headers = headers.collect::<Result<BTreeMap<_, _>, RecoveryError>>()?;
        let log_id = self.read_marks(&headers)?;
        let mut window = Vec::new();
        let mut renamed = Vec::new();
        for ((&number, &header), &bytes) in headers.iter().zip(files.values()) {
            let headless = match (header, log_id) {
                (None, Some(log_id)) => self.headless(number, log_id)?,
                _ => None,
            };
            let Some(header) = header.filter(|header| header.number == number).or(headless) else {
                // With a header it was recycled: renamed after its old segment was retired, and not written to since.
                let was = header.map(|header| header.number).filter(|was| !headers.contains_key(was));
                self.findings.unused.push(number);
                renamed.extend(was.map(|was| (number, was)));
                continue;
            };
            let scanner = Scanner::new(self.open(number)?, bytes, header, window);
            self.oldest = self.oldest.max(header.oldest);
            window = if headless.is_some() || self.is_lost(&header) {
                if self.findings.lost.is_empty() {
                    self.findings.missing = self.missing_before(&header, files);
                    self.findings.headless = headless.map(|_| number);
                }
                self.findings.lost.push(number);
                self.read_lost(scanner)?
            } else {
                self.first.get_or_insert(header);
                self.read(scanner)?
            };
        }
        self.refuse_damage(renamed, files).map_err(|error| renamed_to(error, &headers))?;
        Ok((self.replay, self.tail, self.findings))
    }

    /// Returns a header for a file whose own is zeros, if a record follows. A power failure may leave that of a segment's first write, and
    /// a disk that has lost a block does.
    fn headless(&self, number: SegmentNumber, log_id: u64) -> Result<Option<Header>, RecoveryError> {
        let mut head = [0; FRAME_BYTES];
        let read = self.open(number)?.read_at(HEADER_BYTES, &mut head);
        read.map_err(|error| io_error(&number.to_string(), error))?;
        let header = Header::reconstructed(number, log_id, first_position(&head).expect("it has a position"));
        let is_head = header.first <= Lsn::LAST && Record::head(&head, header.seed(), header.first).is_ok();
        Ok(is_head.then_some(header))
    }

    fn open(&self, number: SegmentNumber) -> Result<S::File, RecoveryError> {
        self.segments.open(number).map_err(|error| io_error(&number.to_string(), error))
    }

    /// Reads the marks of the log's end. Returns the id of the log, if anything shows it. Refuses files that do not belong to it.
    fn read_marks(&mut self, headers: &Headers) -> Result<Option<u64>, RecoveryError> {
        let marks = self.segments.end_marks().map_err(|error| io_error(END_MARKS[0], error))?;
        self.findings.mark_fault = MarkFault::of(&marks);
        self.findings.log_id = marks.log_id(headers);
        let Some(log_id) = self.findings.log_id.or(marks.last().map(|(_, mark)| mark.log_id)) else {
            return Ok(None);
        };
        refuse_strays(&marks, headers, log_id)?;
        self.findings.mark = marks.last_of(log_id);
        self.findings.agreed_mark = marks.agreed().filter(|mark| mark.log_id == log_id);
        Ok(Some(log_id))
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
        files: &BTreeMap<SegmentNumber, u64>,
    ) -> Result<(), RecoveryError> {
        let end = self.tail.as_ref().map_or(Lsn::default(), |tail| tail.end);
        if self.findings.proven > end {
            return Err(self.before_proven());
        }
        if let Some(mark) = self.findings.mark.filter(|mark| mark.end > end) {
            return Err(self.before_mark(&mark, files));
        }
        self.findings.proven =
            self.findings.mark.map_or(Lsn::default(), |mark| mark.end).max(self.findings.proven);
        // A segment is recycled once others have what it had: without those, it was renamed by somebody else.
        if let Some((file, was)) = renamed.first().filter(|_| self.tail.is_none()) {
            return Err(RecoveryError::Misnamed { file: file.to_string(), is: was.to_string() });
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
            tail.closed_end = tail.closed_end.filter(|_| tail.discarded == 0);
        }
        match self.first {
            Some(Header { previous, .. }) if previous.0 > 0 && previous >= self.oldest => {
                Err(RecoveryError::Missing(previous.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Says where the records are missing that a mark of the log's end proves.
    fn before_mark(&self, mark: &EndMark, files: &BTreeMap<SegmentNumber, u64>) -> RecoveryError {
        let file = mark.segment.to_string();
        let last = self.tail.as_ref().filter(|tail| tail.header.number == mark.segment);
        match last {
            _ if !files.contains_key(&mark.segment) => RecoveryError::EndMissing(file),
            _ => RecoveryError::Damaged { file, offset: last.map_or(0, |tail| tail.offset) },
        }
    }

    /// Says where the records are missing that later ones prove.
    fn before_proven(&self) -> RecoveryError {
        let Findings { missing, headless, unused, lost, .. } = &self.findings;
        if let Some(missing) = missing {
            return RecoveryError::Missing(missing.to_string());
        }
        // A segment without space for another record is whole: what follows is missing.
        let is_whole = |tail: &Tail| tail.offset + (FRAME_BYTES as u64) > tail.bytes;
        let next = headless.or(unused.first().copied()).or(lost.first().copied());
        let tail = self.tail.as_ref();
        let (file, offset) = match tail.filter(|tail| next.is_none() || headless.is_none() && !is_whole(tail))
        {
            Some(tail) => (tail.header.number, tail.offset),
            None => (next.expect("records of a file have proven it"), 0),
        };
        RecoveryError::Damaged { file: file.to_string(), offset }
    }

    /// Replays the records of a segment. Returns the buffer for the next one.
    fn read(&mut self, mut scanner: Scanner<S::File>) -> Result<Vec<u8>, RecoveryError> {
        let Scanner { bytes, header, .. } = scanner;
        let name = header.number.to_string();
        let failed = |error| io_error(&name, error);
        self.replay.open(&header);
        self.findings.note_id(&name, JobId(header.next_id.0.saturating_sub(1)));
        let mut closed_end = None;
        while let Some((at, mut framed)) = scanner.next_record().map_err(failed)? {
            self.note(&framed.record, framed.durable);
            let (job, body) = match &mut framed.record {
                Record::Job(job) => (Some(job.id), Some(&mut job.body)),
                Record::Run(of) => (Some(of.job.id), Some(&mut of.job.body)),
                Record::Schedule(schedule) => (None, Some(&mut schedule.body)),
                _ => (None, None),
            };
            job.into_iter().for_each(|id| self.findings.note_id(&name, id));
            if let Some(body) = body.filter(|_| self.bodies == JobBodies::Empty) {
                *body = b"\r\n";
            }
            closed_end = match framed.record {
                Record::Padding(_) => closed_end,
                Record::Closed => Some(Lsn(header.lsn(at).0 + framed.bytes as u64)),
                _ => None,
            };
            let applied = self.replay.apply(&framed.record, framed.bytes, self.engine);
            applied.map_err(|OutOfMemory| RecoveryError::Memory)?;
        }
        let end = scanner.end();
        let left = self.read_beyond(&mut scanner).map_err(failed)?;
        let offset = header.offset(end);
        let discarded = scanner.traces_end.saturating_sub(offset);
        let nonzero = scanner.nonzero_end.saturating_sub(offset);
        let closed_end = closed_end.filter(|_| discarded == 0);
        self.findings.read.push(Piece { header, end, bytes });
        self.tail = Some(Tail { header, end, offset, bytes, left, discarded, nonzero, closed_end });
        Ok(scanner.into_window())
    }

    /// Reads a lost segment, only for what it proves about those before it.
    fn read_lost(&mut self, mut scanner: Scanner<S::File>) -> Result<Vec<u8>, RecoveryError> {
        let number = scanner.header.number;
        let failed = |error| io_error(&number.to_string(), error);
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
        let goes_on = is_full && tail.closed_end.is_none() && tail.is_whole() && self.lost.is_empty();
        let next = self.unused.first().filter(|&&next| goes_on && next > last.next());
        self.hole = next.map(|&next| Hole { last, next });
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
        if id > JobId::START_MAX && self.refusal.is_none() {
            self.refusal = Some(RecoveryError::Id { file: file.to_owned(), id });
        }
    }
}

/// Returns the header of a file, if it has one. Zeros are none.
pub fn read_header<S: Segments + ?Sized>(
    segments: &S,
    number: SegmentNumber,
) -> Result<Option<Header>, RecoveryError> {
    let name = number.to_string();
    if number > SegmentNumber::LAST_NAME {
        return Err(RecoveryError::Foreign(name));
    }
    let mut block = vec![0; HEADER_BYTES as usize];
    let read = segments.open(number).and_then(|mut file| file.read_at(0, &mut block));
    let count = read.map_err(|error| io_error(&name, error))?;
    block.truncate(count);
    let is_blank = block.iter().all(|&byte| byte == 0);
    if count < HEADER_BYTES as usize && !is_blank {
        // A file gets all its space before anything is written to it.
        return Err(RecoveryError::Truncated { file: name, bytes: count as u64 });
    }
    match Header::decode(&block) {
        Ok(header) => Ok(Some(header)),
        Err(HeaderFault::Version(version)) => Err(RecoveryError::Version(name, version)),
        Err(HeaderFault::Invalid) if is_blank => Ok(None),
        Err(HeaderFault::Invalid) => Err(RecoveryError::Damaged { file: name, offset: 0 }),
    }
}

/// Refuses files of other logs than this one, and files with names that no server has given them.
pub fn refuse_strays(marks: &EndMarks, headers: &Headers, log_id: u64) -> Result<(), RecoveryError> {
    if let Some((file, mark)) = marks.foreign(log_id) {
        return Err(RecoveryError::other_log(file, mark.log_id, log_id));
    }
    for (&number, header) in headers.iter().filter_map(|(number, header)| Some((number, header.as_ref()?))) {
        let file = number.to_string();
        if header.log_id != log_id {
            return Err(RecoveryError::other_log(&file, header.log_id, log_id));
        }
        if header.number != number && segment::is_misnamed(number, header, headers) {
            return Err(RecoveryError::Misnamed { file, is: header.number.to_string() });
        }
    }
    Ok(())
}

/// A segment that is missing may be there under another name.
fn renamed_to(error: RecoveryError, headers: &Headers) -> RecoveryError {
    let (RecoveryError::Missing(missing) | RecoveryError::EndMissing(missing)) = &error else { return error };
    let has_its_header = |(_, header): &(&SegmentNumber, &Option<Header>)| {
        header.is_some_and(|header| header.number.to_string() == *missing)
    };
    match headers.iter().find(has_its_header) {
        Some((file, _)) => RecoveryError::Misnamed { file: file.to_string(), is: missing.clone() },
        None => error,
    }
}
