//! From chunks to a queue: what a standby does with each chunk that it reads.

use std::collections::VecDeque;
use std::fmt;

use super::chunk::{ChunkFault, ChunkHeader, Kind, identity};
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
    /// The last chunk; none before the first.
    last: Option<u32>,
    /// The last chunks, up to [`APPENDS_MAX`] of them.
    tail: VecDeque<u32>,
    /// The position behind the last record of the last whole batch.
    end: Lsn,
    /// Batches that no record says to be acknowledged, the oldest first.
    unproven: VecDeque<(Lsn, Witness)>,
    /// The last chunk that a record says to be acknowledged.
    proven: Option<Witness>,
    /// A chunk that must be in the log, because it was acknowledged.
    expected: Option<Witness>,
    segment: Option<Header>,
    batch: Batch,
    /// The first chunk of each segment.
    starts: SegmentStarts,
    /// The oldest segment that is needed.
    oldest: SegmentNumber,
    /// What the last chunk is about.
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
    /// The log has gone another way since it was read: read it again from the beginning.
    Diverged,
    /// There is no memory for a body.
    OutOfMemory,
}

/// What is wrong with a log.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Damage {
    /// A chunk is missing, though a later one is there or it was acknowledged.
    Missing(Position),
    /// The bytes at this position are not a chunk, or not the one that belongs there.
    Chunk(Position),
    /// The records of a batch are not those that follow.
    Records(Position),
    /// A chunk has an unknown format.
    Format { position: Position, format: u32 },
    /// The log is another one than before.
    OtherLog,
}

// docs/RUNBOOK.md lists these messages.
impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(position) => write!(f, "the chunk at position {position} is missing"),
            Self::Chunk(position) => write!(f, "the chunk at position {position} is damaged"),
            Self::Records(position) => {
                write!(f, "the records of the chunk at position {position} are not those that follow")
            }
            Self::Format { position, format } => {
                write!(
                    f,
                    "the chunk at position {position} has format {format}, which this version does not know"
                )
            }
            Self::OtherLog => f.write_str("the log has another id than before"),
        }
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
            last: None,
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

    /// The position that is read next. The chunk before it is read again, so that a log that has gone another way is noticed.
    pub fn read_from(&self) -> Position {
        if self.last.is_some() { self.next.previous() } else { self.next }
    }

    /// Applies a page that was read from [`read_from`](Self::read_from) on. Returns whether it had new chunks.
    ///
    /// # Errors
    /// If the log cannot be followed.
    pub fn apply(&mut self, page: &Page, engine: &mut Engine) -> Result<bool, Fault> {
        if page.log_id != self.log_id {
            return Err(Fault::Damaged(Damage::OtherLog));
        }
        if page.begin > self.read_from() && page.begin > Position::FIRST {
            // It was trimmed past what was read here.
            return Err(Fault::Diverged);
        }
        let mut chunks = page.chunks.iter().peekable();
        if let Some(last) = self.last {
            match chunks.next() {
                Some((position, chunk)) if position.next() == self.next && identity(chunk) == Some(last) => {}
                _ => return Err(Fault::Diverged),
            }
        }
        let before = self.next;
        while let Some((_, chunk)) = chunks.next_if(|(position, _)| *position == self.next) {
            self.chunk(chunk, engine)?;
        }
        for (position, chunk) in chunks {
            self.check_behind_gap(*position, chunk)?;
            // mutant replica-gap-half-checked: adds break;
        }
        match self.expected {
            Some(Witness { position, .. }) if page.is_end() => Err(Fault::Damaged(Damage::Missing(position))),
            _ => Ok(self.next > before),
        }
    }

    /// A chunk that must be in the log when it is read again.
    pub fn witness(&self) -> Option<Witness> {
        self.expected.or(self.proven)
    }

    /// Checks that the next chunk may be in flight, given one behind it.
    fn check_behind_gap(&self, position: Position, chunk: &[u8]) -> Result<(), Fault> {
        let missing = Fault::Damaged(Damage::Missing(self.next));
        if position >= self.next.plus(APPENDS_MAX as u64) {
            return Err(missing);
        }
        let (header, payload) = self.header(position, chunk)?;
        let is_begun = header.kind == Kind::Data && header.part == 0;
        let records = match Header::decode(payload) {
            Ok(_) => payload.get(HEADER_BYTES as usize..).unwrap_or_default(),
            Err(_) => payload,
        };
        // A record says up to where the log was acknowledged when it was written.
        match Record::durable_before(records) {
            Some(durable) if is_begun && durable > self.end => Err(missing),
            _ => Ok(()),
        }
    }

    fn header<'a>(&self, position: Position, chunk: &'a [u8]) -> Result<(ChunkHeader, &'a [u8]), Fault> {
        let (header, payload) = ChunkHeader::decode(chunk).map_err(|fault| {
            Fault::Damaged(match fault {
                ChunkFault::Invalid => Damage::Chunk(position),
                ChunkFault::Format(format) => Damage::Format { position, format: format.into() },
            })
        })?;
        if header.log_id != self.log_id || header.position != position {
            return Err(Fault::Damaged(Damage::Chunk(position)));
        }
        Ok((header, payload))
    }

    fn chunk(&mut self, chunk: &[u8], engine: &mut Engine) -> Result<(), Fault> {
        let position = self.next;
        let damaged = || Fault::Damaged(Damage::Chunk(position));
        let (header, payload) = self.header(position, chunk)?;
        let is_epoch = header.kind == Kind::Epoch;
        let follows = match self.last {
            Some(_) if is_epoch => header.epoch > self.epoch,
            Some(_) => header.epoch == self.epoch && !self.has_left(),
            // A log begins with its first epoch or, trimmed, with a segment.
            None if position == Position::FIRST => is_epoch,
            None => header.kind == Kind::Data,
        };
        if !follows {
            return Err(damaged());
        }
        match header.kind {
            Kind::Epoch => {
                // The leader before may have written a part of a batch.
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
        (self.epoch, self.last, self.next) = (header.epoch, Some(identity), position.next());
        if self.tail.len() == APPENDS_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(identity);
        let witness = Witness { position, identity };
        match self.expected {
            Some(expected) if expected.position == position && expected != witness => {
                return Err(Fault::Damaged(Damage::Missing(position)));
            }
            Some(expected) if expected.position == position => self.expected = None,
            _ => {}
        }
        // A batch without records ends where the one before it does: what was acknowledged up to there need not include it.
        // mutant replica-segment-without-records-proven: self.end > header.lsn => true
        if header.kind == Kind::Data && self.batch.parts == 0 && self.end > header.lsn {
            self.unproven.push_back((self.end, witness));
        }
        Ok(())
    }

    /// A record says that everything before this position was acknowledged.
    fn note_durable(&mut self, durable: Lsn) {
        while let Some((_, witness)) = self.unproven.pop_front_if(|(end, _)| *end <= durable) {
            self.proven = Some(witness);
        }
    }

    fn part(&mut self, header: &ChunkHeader, payload: &[u8], engine: &mut Engine) -> Result<(), Fault> {
        let begins = self.last.is_none();
        if header.part != self.batch.parts || header.part >= header.parts || header.lsn != self.end && !begins
        {
            return Err(Fault::Damaged(Damage::Chunk(header.position)));
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
        let damaged = || Fault::Damaged(Damage::Records(chunk.position));
        if self.segment.is_none_or(|segment| segment.number != chunk.segment) {
            let header = Header::decode(bytes).map_err(|fault| match fault {
                HeaderFault::Invalid => damaged(),
                HeaderFault::Version(format) => {
                    Fault::Damaged(Damage::Format { position: chunk.position, format })
                }
            })?;
            let is_next = self.segment.is_none_or(|segment| header.number > segment.number);
            if header.number != chunk.segment
                || header.first != chunk.lsn
                || header.log_id != self.log_id
                || !is_next
            {
                return Err(damaged());
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

    /// The epoch of the last chunk.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The position of the next chunk.
    pub const fn next(&self) -> Position {
        self.next
    }

    /// The identities of the last chunks.
    pub fn tail(&self) -> Vec<u32> {
        self.tail.iter().copied().collect()
    }

    /// Where the WAL continues.
    pub const fn end(&self) -> Lsn {
        self.end
    }

    /// Whether the leader has said that it leaves.
    pub fn has_left(&self) -> bool {
        self.last_kind == Kind::Farewell
    }

    /// Whether the last chunk begins this epoch.
    pub fn ends_with(&self, epoch: Epoch) -> bool {
        self.last_kind == Kind::Epoch && self.epoch == epoch
    }

    /// Memory of an incomplete batch and of what is noted about chunks, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let unproven = self.unproven.capacity() * size_of::<(Lsn, Witness)>();
        let starts = self.starts.capacity() * size_of::<(SegmentNumber, Position)>();
        self.batch.bytes.capacity() + unproven + starts
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
