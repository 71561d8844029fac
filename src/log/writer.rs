//! The log at work: records gather in a batch while the one before it is written.

use std::collections::VecDeque;
use std::io;

use super::batch::{BLOCK_BYTES, Batch};
use super::ledger::Ledger;
use super::pauses::{KeptPause, Pauses};
use super::record::{
    FRAME_BYTES, JobRecord, Lsn, PauseRecord, Record, Stamp, job_record_bytes, padding_bytes,
};
use super::replay::Recovered;
use super::segment::{HEADER_BYTES, Header, SegmentNumber};
use super::{Config, Durability};
use crate::ids::JobKey;
use crate::limits::{LOG_BACKLOG_BYTES_MAX, LOG_MOVE_BYTES, LOG_ROOM_BYTES, LOG_SEGMENTS_MIN};
use crate::queue::{Change, Engine};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// Segments that are ready to be written to: one to go on in, and one to move old jobs into when the disk
/// is full.
const PREPARED: usize = 2;

/// Whether a job can be logged now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is space for it.
    Now,
    /// Space for it is being made. Until then the log is [behind](Log::is_behind).
    Later,
    /// Not now, or not at all.
    Never,
}

/// The log of one server.
///
/// Every reply has a ticket: the batch that must be safe before it may leave. See [`ticket`](Self::ticket) and
/// [`safe`](Self::safe).
pub struct Log {
    pub(super) config: Config,
    pub(super) ledger: Ledger,
    /// The header of the segment that records gather for.
    pub(super) active: Header,
    pub(super) seed: u32,
    /// Segments that are ready to be written to, in the order in which they will be.
    pub(super) prepared: VecDeque<SegmentNumber>,
    /// Segments that records gather for, or wait to be written to, and that are still to be made.
    pub(super) missing: VecDeque<SegmentNumber>,
    /// Segments up to this one may be of another size than new ones.
    pub(super) odd_up_to: SegmentNumber,
    /// The largest number given to a segment.
    pub(super) last_number: SegmentNumber,
    /// Records for the active segment, and where in its file they begin.
    pub(super) gathering: Batch,
    /// How much of that was moved from older segments.
    pub(super) gathering_moved: usize,
    pub(super) gathering_at: u64,
    /// Full batches for segments before it.
    pub(super) full: VecDeque<Waiting>,
    pub(super) writing: Option<Writing>,
    /// Batches to gather in.
    pub(super) spare: Vec<Batch>,
    /// How many batches have been closed.
    pub(super) closed: u64,
    pub(super) safe: u64,
    pub(super) end: Lsn,
    pub(super) written: Lsn,
    pub(super) durable: Lsn,
    /// Segments with something that is written and not synced.
    pub(super) unsynced: Vec<SegmentNumber>,
    /// What will be durable when the sync under way is done.
    pub(super) syncing: Option<Lsn>,
    pub(super) sync_due: Option<Time>,
    pub(super) is_arranging: bool,
    /// The oldest segment is empty, and can go when everything before this is durable.
    pub(super) retiring: Option<Lsn>,
    /// The disk is full; when to look again.
    pub(super) short_until: Option<Time>,
    /// A job of this size waits for space, or did.
    pub(super) asked: u64,
    pub(super) pauses: Pauses,
    /// Empty between calls; kept for its allocation.
    pub(super) changes: Vec<Change>,
    pub(super) stopping: bool,
    pub(super) failure: Option<io::Error>,
    pub(super) totals: Totals,
}

/// A full batch.
pub(super) struct Waiting {
    pub(super) segment: SegmentNumber,
    pub(super) offset: u64,
    pub(super) batch: Batch,
    pub(super) end: Lsn,
}

/// The batch that is being written.
#[derive(Clone, Copy)]
pub(super) struct Writing {
    pub(super) segment: SegmentNumber,
    pub(super) bytes: usize,
    pub(super) end: Lsn,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) records: u64,
    pub(super) moved: u64,
    pub(super) syncs: u64,
    pub(super) synced_records: u64,
    pub(super) sync_began: Time,
    pub(super) last_sync: Span,
}

/// What `stats` tells about the log.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs)]
pub struct LogStats {
    pub oldest: u64,
    pub current: u64,
    pub records_moved: u64,
    pub records_written: u64,
    pub segment_bytes: u64,
    /// What the records of all jobs take.
    pub live_bytes: u64,
    /// What all segments take, with those that are only prepared.
    pub disk_bytes: u64,
    pub syncs: u64,
    /// Of all records that were synced, how many with one sync.
    pub records_a_sync: u64,
    /// How long the last sync took.
    pub last_sync: Span,
}

impl Log {
    /// Goes on where a log was left. `prepared` are the segments that are ready, of which there must be one unless the
    /// log goes on in one that it has.
    pub fn new(config: Config, recovered: Recovered, prepared: Vec<SegmentNumber>, engine: &Engine) -> Self {
        let Recovered { log_id, end, active: last, odd_up_to, ledger, pauses } = recovered;
        let mut prepared = VecDeque::from(prepared);
        let last_number = prepared.back().copied().or(last.map(|header| header.number));
        let last_number = last_number.expect("there is a segment to go on in");
        let active = last.unwrap_or_else(|| {
            let number = prepared.pop_front().expect("a segment is prepared");
            let oldest = ledger.oldest().unwrap_or(number);
            Header { log_id, number, first: end, next_id: engine.upcoming_id(), oldest }
        });
        let mut log = Self {
            config,
            ledger,
            active,
            seed: active.seed(),
            prepared,
            missing: VecDeque::new(),
            odd_up_to,
            last_number,
            gathering: Batch::default(),
            gathering_moved: 0,
            gathering_at: active.offset(end),
            full: VecDeque::new(),
            writing: None,
            spare: Vec::new(),
            closed: 0,
            safe: 0,
            end,
            written: end,
            durable: end,
            unsynced: Vec::new(),
            syncing: None,
            sync_due: None,
            is_arranging: false,
            retiring: None,
            short_until: None,
            asked: 0,
            pauses,
            changes: Vec::new(),
            stopping: false,
            failure: None,
            totals: Totals::default(),
        };
        if last.is_none() {
            log.begin_segment();
        }
        log
    }

    // What is logged.

    /// Logs what has changed in the queue since the last call.
    #[inline]
    pub fn record(&mut self, engine: &mut Engine, now: Time) {
        let mut changes = std::mem::take(&mut self.changes);
        engine.take_changes(&mut changes);
        for change in changes.drain(..) {
            self.record_one(change, engine, now);
        }
        self.changes = changes;
    }

    fn record_one(&mut self, change: Change, engine: &Engine, now: Time) {
        match change {
            Change::Put(job) => {
                self.append_job(job, engine);
            }
            // It does not outlive the process; its counters go with the next change.
            Change::Reserved(_) => {}
            Change::TakenOut(job)
            | Change::Released(job)
            | Change::TimedOut(job)
            | Change::Returned(job)
            | Change::Buried(job)
            | Change::Kicked(job) => {
                let record = Record::State { id: engine.jobs().get(job).id, kept: engine.kept(job) };
                self.append_change(&record, engine);
            }
            Change::Deleted(job, id) => {
                self.ledger.leave(job);
                self.append_change(&Record::Deleted(id), engine);
            }
            Change::Paused { tube, until } => {
                let tube = engine.tubes().get(tube);
                let length = tube.pause.map_or(Span::ZERO, |pause| pause.length);
                self.pause(tube.name(), until, length, engine);
            }
            Change::PausedGone(name) => {
                let name = TubeName::new(&name).expect("a tube had it");
                self.pause(name, now, Span::ZERO, engine);
            }
        }
    }

    fn pause(&mut self, tube: TubeName<'_>, until: Time, length: Span, engine: &Engine) {
        let record = Record::Paused(PauseRecord { tube, until, length });
        self.append(&record, engine);
        let (name, segment, bytes) = (tube.as_bytes(), self.active.number, record.bytes());
        let before = if length > Span::ZERO {
            self.ledger.keep(segment, bytes);
            self.pauses.insert(name, KeptPause { until, length, segment, bytes })
        } else {
            self.ledger.waste(bytes as u64);
            self.pauses.remove(name)
        };
        if let Some(before) = before {
            self.ledger.let_go(before.segment, before.bytes);
        }
    }

    /// Writes a pause again, unless it is over.
    fn move_pause(&mut self, tube: &[u8], engine: &Engine, now: Time) {
        let pause = self.pauses.remove(tube).expect("it is there");
        self.ledger.let_go(pause.segment, pause.bytes);
        if pause.until > now {
            let tube = TubeName::new(tube).expect("a tube has it");
            self.pause(tube, pause.until, pause.length, engine);
            self.gathering_moved += pause.bytes;
        }
    }

    /// Logs all of a job, which is in the active segment from now on. How many bytes its record takes.
    fn append_job(&mut self, job: JobKey, engine: &Engine) -> usize {
        let record = engine.jobs().get(job);
        let record = Record::Job(JobRecord {
            id: record.id,
            created: record.created,
            ttr: record.ttr,
            tube: engine.tube_of(job),
            kept: engine.kept(job),
            body: engine.body(job),
        });
        let bytes = record.bytes();
        self.append(&record, engine);
        self.ledger.enter(job, self.active.number, bytes);
        bytes
    }

    /// Logs what need not be written again when the segment goes.
    fn append_change(&mut self, record: &Record<'_>, engine: &Engine) {
        self.append(record, engine);
        self.ledger.waste(record.bytes() as u64);
    }

    fn append(&mut self, record: &Record<'_>, engine: &Engine) {
        if self.active.offset(self.end) + record.bytes() as u64 > self.config.segment_bytes {
            self.go_on_in_next_segment(engine);
        }
        self.append_here(record);
        self.totals.records += 1;
    }

    fn append_here(&mut self, record: &Record<'_>) {
        let stamp = Stamp { seed: self.seed, at: self.end, durable: self.durable };
        record.encode(&stamp, &mut self.gathering);
        self.end.0 += record.bytes() as u64;
    }

    /// Closes the active segment. Where none is prepared, records gather for one that is still to be made.
    fn go_on_in_next_segment(&mut self, engine: &Engine) {
        self.close_batch();
        let number = self.prepared.pop_front().unwrap_or_else(|| {
            self.last_number = self.last_number.next();
            self.missing.push_back(self.last_number);
            self.last_number
        });
        let Header { log_id, .. } = self.active;
        let oldest = self.ledger.oldest().expect("the active one is there");
        self.active = Header { log_id, number, first: self.end, next_id: engine.upcoming_id(), oldest };
        self.seed = self.active.seed();
        self.begin_segment();
    }

    fn begin_segment(&mut self) {
        self.ledger.open(self.active.number);
        self.gathering_at = 0;
        self.active.encode(&mut self.gathering);
    }

    /// Moves what has gathered to where it waits to be written.
    pub(super) fn close_batch(&mut self) {
        if self.gathering.is_empty() {
            return;
        }
        if self.config.durability == Durability::Always {
            self.fill_block();
        }
        self.gathering_moved = 0;
        let batch = std::mem::replace(&mut self.gathering, self.spare.pop().unwrap_or_default());
        let (segment, offset, end) = (self.active.number, self.gathering_at, self.end);
        self.gathering_at += batch.len() as u64;
        self.closed += 1;
        self.full.push_back(Waiting { segment, offset, batch, end });
    }

    /// Ends the batch with a block, so that none that holds a record is written again.
    fn fill_block(&mut self) {
        let gathered = self.gathering.len();
        let at = self.gathering_at + gathered as u64;
        let padding = padding_bytes(at, self.config.segment_bytes);
        if 2 * self.gathering_moved < gathered {
            self.ledger.waste(padding as u64);
        }
        if padding > 0 {
            self.append_here(&Record::Padding(padding));
        }
        self.gathering.pad_to(self.gathering.len().next_multiple_of(BLOCK_BYTES));
    }

    // What waits for it.

    /// The ticket of a reply that is made now: it may leave when this is [`safe`](Self::safe).
    pub fn ticket(&self) -> u64 {
        self.closed + u64::from(!self.gathering.is_empty())
    }

    /// The ticket of a reply that is made after something more is recorded.
    pub const fn next_ticket(&self) -> u64 {
        self.closed + 1
    }

    /// The last ticket whose replies may leave.
    pub const fn safe(&self) -> u64 {
        self.safe
    }

    /// More is to be written than should be, or all of it for good, or there must be space first: no command
    /// should be served before.
    pub fn is_behind(&self) -> bool {
        self.stopping || self.backlog() > LOG_BACKLOG_BYTES_MAX || self.is_short_of_room()
    }

    fn backlog(&self) -> usize {
        let full: usize = self.full.iter().map(|waiting| waiting.batch.len()).sum();
        self.gathering.len() + full + self.writing.map_or(0, |writing| writing.bytes)
    }

    // Space.

    /// Whether there is room for a job of this size with its CR LF.
    pub fn room_for(&mut self, tube_bytes: usize, body_bytes: usize) -> Room {
        let bytes = job_record_bytes(tube_bytes, body_bytes) as u64;
        if HEADER_BYTES + bytes > self.config.segment_bytes {
            Room::Never
        } else if self.has_room_for_job(bytes) {
            Room::Now
        } else if self.is_full() {
            Room::Never
        } else {
            self.asked = bytes;
            Room::Later
        }
    }

    /// Whether what is left behind a job of this size is enough for the changes and the moves that make a segment
    /// free again: one segment to move the oldest into, and before that garbage for half of one.
    fn has_room_for_job(&self, bytes: u64) -> bool {
        let left = self.room().checked_sub(bytes);
        let fresh = self.config.segment_bytes - HEADER_BYTES - bytes;
        let (prepared, room) = match left {
            Some(left) => (self.prepared.len(), left),
            None => (self.prepared.len().saturating_sub(1), fresh),
        };
        let is_ample = room >= self.config.segment_bytes / 4 * 3 - HEADER_BYTES;
        let has_segment = left.is_some() || !self.prepared.is_empty();
        prepared >= self.reserve() || has_segment && is_ample && prepared + 1 >= self.reserve()
    }

    /// How many segments should be ready: what moving all jobs may lose in padding comes on top.
    fn reserve(&self) -> usize {
        let Config { durability, segment_bytes } = self.config;
        if durability != Durability::Always {
            return PREPARED;
        }
        let padding = (segment_bytes / LOG_MOVE_BYTES + 1) * (BLOCK_BYTES + FRAME_BYTES) as u64;
        PREPARED + (self.ledger.segments() as u64 * padding / segment_bytes) as usize
    }

    /// Whether something that makes room should come first.
    fn is_short_of_room(&self) -> bool {
        let reserve = LOG_ROOM_BYTES.min(self.config.segment_bytes / 4);
        let is_low = self.prepared.len() < PREPARED && (self.prepared.is_empty() || self.room() < reserve);
        let is_awaited = self.asked > 0 && !self.has_room_for_job(self.asked);
        let is_being_made = !self.is_full() || self.retiring.is_some() || self.is_worth_it();
        !self.missing.is_empty() || is_low && is_being_made || is_awaited && !self.is_full()
    }

    /// What is left of the active segment.
    fn room(&self) -> u64 {
        self.config.segment_bytes.saturating_sub(self.active.offset(self.end))
    }

    /// Whether there was no space on the disk when it was last looked for.
    const fn is_full(&self) -> bool {
        self.short_until.is_some()
    }

    /// Whether more segments should be ready. A job that takes much of one wants one more.
    pub(super) fn wants_prepared(&self) -> bool {
        let is_large = self.asked > self.config.segment_bytes / 8;
        self.prepared.len() < self.reserve() + usize::from(is_large)
    }

    // Old segments.

    /// Moves some jobs out of the oldest segment, if its space is wanted.
    pub fn compact(&mut self, engine: &Engine, now: Time) {
        if !self.may_compact() {
            return;
        }
        let before = self.end.0;
        while self.end.0 - before < LOG_MOVE_BYTES {
            if self.ledger.oldest() == Some(self.active.number) {
                return;
            }
            let oldest = self.ledger.oldest().expect("there is one");
            if let Some(tube) = self.pauses.first_in(oldest) {
                self.move_pause(&tube, engine, now);
                continue;
            }
            let Some(job) = self.ledger.first_of_oldest() else {
                return self.retire_oldest(engine);
            };
            let moved = self.append_job(job, engine);
            self.gathering_moved += moved;
            self.totals.moved += 1;
        }
    }

    /// Nothing in the oldest segment means anything any more: it can go once that is known on disk.
    fn retire_oldest(&mut self, engine: &Engine) {
        let next = self.ledger.second_oldest().expect("the active one is not empty");
        let record = Record::Oldest(next);
        // Where there is no space for it, the file itself tells: it gets the name of a later one.
        if record.bytes() as u64 <= self.room() || !self.prepared.is_empty() {
            self.append_change(&record, engine);
        }
        self.retiring = Some(self.end);
    }

    /// Whether jobs should be moved now: one more segment is needed, there is no space for it or it would be
    /// more than the jobs are worth, and there is something to be gained.
    pub(super) fn may_compact(&self) -> bool {
        let is_wanted = self.wants_prepared() && (self.is_full() || !self.may_grow());
        let is_free = self.retiring.is_none() && self.missing.is_empty() && !self.stopping;
        let is_possible = self.ledger.segments() > 1 && self.backlog() < LOG_BACKLOG_BYTES_MAX / 2;
        is_wanted && is_free && is_possible && self.is_worth_it()
    }

    /// Whether moving jobs gains something. Counted by what is of no use: ends of segments that no job fits into
    /// remain.
    fn is_worth_it(&self) -> bool {
        self.ledger.garbage() > self.config.segment_bytes / 2
    }

    pub(super) fn segments(&self) -> u64 {
        (self.ledger.segments() + self.prepared.len()) as u64
    }

    pub(super) fn may_grow(&self) -> bool {
        let wanted = 2 * self.ledger.live_bytes() / self.config.segment_bytes + 2;
        let reserved = (self.reserve() - PREPARED) as u64;
        self.segments() < wanted.max(LOG_SEGMENTS_MIN) + reserved || !self.is_worth_it()
    }
}
