//! From chunks to a queue: what a standby does with each chunk that it reads.

use std::collections::VecDeque;

use super::chunk::{ChunkHeader, Kind, identity};
use super::request::{APPENDS_MAX, Epoch, Page, Position};
use crate::bodies::OutOfMemory;
use crate::queue::Engine;
use crate::time::Time;
use crate::wal::record::{Lsn, Record};
use crate::wal::segment::{HEADER_BYTES, Header, HeaderFault, SegmentNumber};
use crate::wal::{Recovered, Replay};

/// Applies the chunks of a log, in the order of their positions.
pub struct Follower {
    log_id: u64,
    replay: Replay,
    /// The epoch of the last chunk.
    epoch: Epoch,
    /// The position of the next chunk.
    next: Position,
    /// The identities of the last chunks, up to [`APPENDS_MAX`] of them.
    pub(super) tail: VecDeque<u32>,
    /// The position behind the last record of the last whole batch, where the WAL continues.
    end: Lsn,
    /// Batches that may not be acknowledged, each with its end and its last chunk, the oldest first.
    unproven: VecDeque<(Lsn, Witness)>,
    /// The last chunk that was acknowledged, as far as records tell.
    proven: Option<Witness>,
    /// A chunk that must be in the log, because it was acknowledged.
    expected: Option<Witness>,
    segment: Option<Header>,
    batch: Batch,
    /// The first chunk of each segment.
    starts: SegmentStarts,
    /// The oldest segment that is needed.
    oldest: SegmentNumber,
    /// The kind of the last chunk.
    last_kind: Kind,
}

/// The first chunk of each segment in the log, the oldest first.
pub type SegmentStarts = VecDeque<(SegmentNumber, Position)>;

/// A chunk that was acknowledged: if it is missing later, the log has lost data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Witness {
    position: Position,
    identity: u32,
}

/// The parts of a batch that have come.
#[derive(Default)]
struct Batch {
    parts: u32,
    bytes: Vec<u8>,
}

/// Why a standby cannot go on with what it has read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The log is damaged, or not this one.
    Damaged(Damage),
    /// Chunks that were read are gone or replaced: the log must be read again from the beginning.
    Diverged,
    /// There is no memory for a body.
    OutOfMemory,
}

/// Damage of a log.
// docs/RUNBOOK.md lists these messages.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Damage {
    /// A chunk is missing that was acknowledged, or that a later chunk proves to be missing.
    #[error("the chunk at position {0} is missing")]
    Missing(Position),
    /// The bytes at this position are no chunk, or one of another position.
    #[error("the chunk at position {0} is damaged")]
    Chunk(Position),
    /// The records of a batch do not follow those before it.
    #[error("the records of the chunk at position {0} are not those that follow")]
    Records(Position),
    #[error("the chunk at position {position} has format {format}, which this version does not know")]
    Format { position: Position, format: u32 },
    #[error("the log has another id than before")]
    OtherLog,
}

impl Damage {
    /// The damage of a header that cannot be decoded: `invalid`, unless its format is unknown.
    fn of_header(fault: HeaderFault, position: Position, invalid: Self) -> Self {
        match fault {
            HeaderFault::Invalid => invalid,
            HeaderFault::Version(format) => Self::Format { position, format },
        }
    }
}

impl From<Damage> for Fault {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl From<OutOfMemory> for Fault {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl Follower {
    /// Begins with the first page of a log. `expected` is a chunk that must be in it, unless it is trimmed.
    pub fn new(page: &Page, expected: Option<Witness>) -> Self {
        Self {
            log_id: page.log_id,
            replay: Replay::default(),
            epoch: Epoch::default(),
            next: page.begin,
            tail: VecDeque::with_capacity(APPENDS_MAX),
            end: Lsn::default(),
            unproven: VecDeque::new(),
            proven: None,
            expected: expected.filter(|witness| witness.position >= page.begin),
            segment: None,
            batch: Batch::default(),
            starts: SegmentStarts::new(),
            oldest: SegmentNumber(0),
            last_kind: Kind::Data,
        }
    }

    /// The position from which to read next. The last chunk is read again, to notice whether it was replaced.
    pub fn read_from(&self) -> Position {
        if self.tail.is_empty() { self.next } else { self.next.previous() }
    }

    /// Applies a page that was read from [`read_from`](Self::read_from) on. Returns whether it had new chunks.
    ///
    /// # Errors
    /// If the log cannot be followed.
    pub fn apply(&mut self, page: &Page, engine: &mut Engine) -> Result<bool, Fault> {
        if page.log_id != self.log_id {
            return Err(Damage::OtherLog.into());
        }
        if page.begin > self.read_from() && page.begin > Position::FIRST {
            // The leader has trimmed chunks that were not read here.
            return Err(Fault::Diverged);
        }
        let mut chunks = page.chunks.iter().peekable();
        if let Some(&last) = self.tail.back() {
            match chunks.next() {
                Some((position, chunk)) if position.next() == self.next && identity(chunk) == Some(last) => {}
                _ => return Err(Fault::Diverged),
            }
        }
        let before = self.next;
        while let Some((_, chunk)) = chunks.next_if(|(position, _)| *position == self.next) {
            self.chunk(chunk, engine)?;
        }
        self.drop_segments(engine)?;
        for (position, chunk) in chunks {
            self.check_behind_gap(*position, chunk)?;
            // mutant replica-gap-half-checked: adds break;
        }
        match self.expected {
            Some(Witness { position, .. }) if page.is_end() => Err(Damage::Missing(position).into()),
            _ => Ok(self.next > before),
        }
    }

    /// A chunk that must be in the log when it is read again.
    pub fn witness(&self) -> Option<Witness> {
        self.expected.or(self.proven)
    }

    /// Checks, by a chunk behind a gap, that the chunk missing there may still be in flight.
    fn check_behind_gap(&self, position: Position, chunk: &[u8]) -> Result<(), Fault> {
        let missing = Damage::Missing(self.next);
        if position >= self.next.plus(APPENDS_MAX as u64) {
            return Err(missing.into());
        }
        let (header, payload) = self.header(position, chunk)?;
        let is_begun = header.kind == Kind::Data && header.part == 0;
        let records = match Header::decode(payload) {
            Ok(_) => payload.get(HEADER_BYTES as usize..).unwrap_or_default(),
            Err(_) => payload,
        };
        // Each record has the position up to which the log was acknowledged when the record was written.
        match Record::durable_before(records) {
            Some(durable) if is_begun && durable > self.end => Err(missing.into()),
            _ => Ok(()),
        }
    }

    fn header<'a>(&self, position: Position, chunk: &'a [u8]) -> Result<(ChunkHeader, &'a [u8]), Fault> {
        match ChunkHeader::decode(chunk) {
            Ok((header, _)) if header.log_id != self.log_id || header.position != position => {
                Err(Damage::Chunk(position).into())
            }
            Ok(decoded) => Ok(decoded),
            Err(fault) => Err(Damage::of_header(fault, position, Damage::Chunk(position)).into()),
        }
    }

    fn chunk(&mut self, chunk: &[u8], engine: &mut Engine) -> Result<(), Fault> {
        let position = self.next;
        let damaged = || Fault::from(Damage::Chunk(position));
        let (header, payload) = self.header(position, chunk)?;
        let is_epoch = header.kind == Kind::Epoch;
        let follows = match self.tail.is_empty() {
            false if is_epoch => header.epoch > self.epoch,
            false => header.epoch == self.epoch && !self.has_left(),
            // A log begins with its first epoch or, trimmed, with a segment.
            true if position == Position::FIRST => is_epoch,
            true => header.kind == Kind::Data,
        };
        if !follows {
            return Err(damaged());
        }
        match header.kind {
            Kind::Epoch => {
                // The previous leader may have left a batch incomplete.
                // mutant replica-incomplete-batch-applied: removed
                self.batch = Batch::default();
                if header.lsn != self.end {
                    return Err(damaged());
                }
            }
            Kind::Farewell if self.batch.parts == 0 => {}
            Kind::Farewell => return Err(damaged()),
            Kind::Data => self.part(&header, payload, engine)?,
        }
        self.last_kind = header.kind;
        let identity = identity(chunk).ok_or_else(damaged)?;
        (self.epoch, self.next) = (header.epoch, position.next());
        if self.tail.len() == APPENDS_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(identity);
        let witness = Witness { position, identity };
        if let Some(expected) = self.expected.filter(|expected| expected.position == position) {
            if expected != witness {
                return Err(Damage::Missing(position).into());
            }
            self.expected = None;
        }
        // A batch without records ends where the batch before it ends, so an acknowledgement up to there does not prove it.
        // mutant replica-segment-without-records-proven: self.end > header.lsn => true
        if header.kind == Kind::Data && self.batch.parts == 0 && self.end > header.lsn {
            self.unproven.push_back((self.end, witness));
        }
        Ok(())
    }

    /// Notes that everything before this position was acknowledged, as a record tells.
    fn note_durable(&mut self, durable: Lsn) {
        while let Some((_, witness)) = self.unproven.pop_front_if(|(end, _)| *end <= durable) {
            self.proven = Some(witness);
        }
    }

    fn part(&mut self, header: &ChunkHeader, payload: &[u8], engine: &mut Engine) -> Result<(), Fault> {
        let begins = self.tail.is_empty();
        if header.part != self.batch.parts || header.part >= header.parts || header.lsn != self.end && !begins
        {
            return Err(Damage::Chunk(header.position).into());
        }
        self.end = header.lsn;
        if header.parts == 1 {
            return self.whole_batch(header, payload, engine);
        }
        self.batch.bytes.extend_from_slice(payload);
        self.batch.parts += 1;
        if self.batch.parts == header.parts {
            let batch = std::mem::take(&mut self.batch);
            self.whole_batch(header, &batch.bytes, engine)?;
        }
        Ok(())
    }

    fn whole_batch(
        &mut self,
        chunk: &ChunkHeader,
        mut bytes: &[u8],
        engine: &mut Engine,
    ) -> Result<(), Fault> {
        let damaged = || Damage::Records(chunk.position);
        if self.segment.is_none_or(|segment| segment.number != chunk.segment) {
            let header =
                Header::decode(bytes).map_err(|fault| Damage::of_header(fault, chunk.position, damaged()))?;
            let is_next = self.segment.is_none_or(|segment| header.number > segment.number);
            if header.number != chunk.segment
                || header.first != chunk.lsn
                || header.log_id != self.log_id
                || !is_next
            {
                return Err(damaged().into());
            }
            bytes = bytes.get(HEADER_BYTES as usize..).ok_or_else(damaged)?;
            self.replay.open(&header);
            let first_part = Position(chunk.position.0 - u64::from(chunk.part));
            self.starts.push_back((header.number, first_part));
            self.oldest = self.oldest.max(header.oldest);
            (self.segment, self.end) = (Some(header), header.first);
        }
        let seed = self.segment.ok_or_else(damaged)?.seed();
        while !bytes.is_empty() {
            let size = Record::find(bytes, seed, self.end).map_err(|_| damaged())?;
            let framed = Record::decode(bytes);
            if let Record::Oldest(oldest) = framed.record {
                self.oldest = self.oldest.max(oldest);
            }
            let durable = framed.durable;
            self.replay.apply(&framed.record, size, engine)?;
            self.note_durable(durable);
            self.end.0 += size as u64;
            bytes = &bytes[size..];
        }
        Ok(())
    }

    /// Drops segments that the leader does not need any more.
    fn drop_segments(&mut self, engine: &mut Engine) -> Result<(), Damage> {
        let (next, oldest) = (self.next, self.oldest);
        self.replay.drop_before(oldest, engine).map_err(|_| Damage::Records(next))?;
        if let Some(kept) = self.replay.index.oldest() {
            while self.starts.front().is_some_and(|&(first, _)| first < kept) {
                self.starts.pop_front();
            }
        }
        Ok(())
    }

    /// The epoch of the last chunk.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The position of the next chunk.
    pub const fn next(&self) -> Position {
        self.next
    }

    /// Where the WAL continues.
    pub const fn end(&self) -> Lsn {
        self.end
    }

    /// Whether the last chunk is the farewell of the leader.
    pub fn has_left(&self) -> bool {
        self.last_kind == Kind::Farewell
    }

    /// Whether the last chunk begins this epoch.
    pub fn ends_with(&self, epoch: Epoch) -> bool {
        self.last_kind == Kind::Epoch && self.epoch == epoch
    }

    /// Memory of an incomplete batch, of what is noted about chunks and of what is known about the log, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let unproven = self.unproven.capacity() * size_of::<(Lsn, Witness)>();
        let starts = self.starts.capacity() * size_of::<(SegmentNumber, Position)>();
        self.batch.bytes.capacity() + unproven + starts + self.replay.memory_bytes()
    }

    /// Whether all segments that are needed are there. Meaningful at the end of the log.
    pub fn is_complete(&self) -> bool {
        self.starts.front().is_none_or(|&(first, _)| first <= self.oldest)
    }

    /// Ends following and shows the jobs. Returns the log to continue, and the first chunk of each segment.
    pub fn finish(self, engine: &mut Engine, now: Time) -> (Recovered, SegmentStarts) {
        let Self { log_id, replay, end, starts, .. } = self;
        let mut recovered = replay.finish(engine, now);
        (recovered.log_id, recovered.end) = (log_id, end);
        (recovered, starts)
    }
}
