//! The log at work: records gather in a batch while the one before it is written.

use std::collections::{BTreeSet, VecDeque};
use std::io;

use super::batch::{BLOCK_BYTES, Batch};
use super::compaction::Pace;
use super::pauses::{KeptPause, Pauses};
use super::record::{JobRecord, Lsn, PauseRecord, Record, Stamp, padding_bytes};
use super::replay::Recovered;
use super::segment::{Header, SegmentNumber};
use super::segment_index::SegmentIndex;
use super::{Config, Durability};
use crate::histogram::Histogram;
use crate::ids::{JobId, JobKey};
use crate::limits::LOG_BACKLOG_BYTES_MAX;
use crate::queue::{Change, Engine};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// The log of one server.
///
/// Every reply has a ticket: the batch that must be safe before it may leave. See [`ticket`](Self::ticket) and
/// [`safe`](Self::safe).
pub struct Log {
    pub(super) config: Config,
    pub(super) ledger: SegmentIndex,
    /// The header of the segment that records gather for.
    pub(super) active: Header,
    pub(super) seed: u32,
    /// Segments that are ready to be written to, in the order in which they will be.
    pub(super) prepared: VecDeque<SegmentNumber>,
    /// Segments that records gather for, or wait to be written to, and that are still to be made.
    pub(super) missing: VecDeque<SegmentNumber>,
    /// Segments up to this one may be of another size than new ones.
    pub(super) odd_up_to: SegmentNumber,
    /// The largest record of a job so far.
    pub(super) largest: u64,
    /// The largest number given to a segment.
    pub(super) last_number: SegmentNumber,
    /// Records for the active segment, and where in its file they begin.
    pub(super) gathering: Batch,
    /// How much of that was moved from older segments.
    pub(super) gathering_moved: usize,
    /// Whether anything else is in it.
    pub(super) gathering_changed: bool,
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
    /// A write found no space, although its segment was prepared.
    pub(super) is_stalled: bool,
    /// Jobs that the records tell of that wait for it.
    pub(super) pending: BTreeSet<JobId>,
    /// When to try it again.
    pub(super) retry_at: Option<Time>,
    /// The name of a segment that is ready may be all that says that older ones are of no use.
    pub(super) has_telling_name: bool,
    /// That has happened: a write takes new space, and gives back the old some time later (docs/LOG.md).
    pub(super) writes_take_space: bool,
    /// When to close the log if nothing else happens.
    pub(super) close_due: Option<Time>,
    /// Where the log was closed last: behind the record, and the padding that follows it.
    pub(super) closed_at: Option<Lsn>,
    /// A job of this size waits for space, or did.
    pub(super) asked: u64,
    pub(super) pace: Pace,
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
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// The memory that it takes.
    pub(super) memory_bytes: usize,
    pub(super) end: Lsn,
}

#[derive(Clone)]
pub(super) struct Totals {
    pub(super) records: u64,
    pub(super) moved: u64,
    pub(super) syncs: u64,
    pub(super) synced_records: u64,
    pub(super) sync_began: Time,
    pub(super) last_sync: Span,
    pub(super) sync_times: Histogram,
}

impl Totals {
    fn new() -> Self {
        Self {
            records: 0,
            moved: 0,
            syncs: 0,
            synced_records: 0,
            sync_began: Time::ZERO,
            last_sync: Span::ZERO,
            sync_times: Histogram::new(&SYNC_BOUNDS),
        }
    }
}

/// Of how long syncs take, in nanoseconds: from 50 us to 10 s.
const SYNC_BOUNDS: [u64; 16] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

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
        let Recovered { log_id, end, active: last, odd_up_to, largest, is_closed, ledger, pauses } =
            recovered;
        let mut prepared = VecDeque::from(prepared);
        let last_number = prepared.back().copied().or(last.map(|header| header.number));
        let last_number = last_number.expect("there is a segment to go on in");
        let active = last.unwrap_or_else(|| {
            let number = prepared.pop_front().expect("a segment is prepared");
            let oldest = ledger.oldest().unwrap_or(number);
            let previous = ledger.newest().unwrap_or(SegmentNumber(0));
            Header { log_id, number, first: end, next_id: engine.upcoming_id(), oldest, previous }
        });
        let mut log = Self {
            config,
            ledger,
            active,
            seed: active.seed(),
            prepared,
            missing: VecDeque::new(),
            odd_up_to,
            largest,
            last_number,
            gathering: Batch::default(),
            gathering_moved: 0,
            gathering_changed: false,
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
            is_stalled: false,
            pending: BTreeSet::new(),
            retry_at: None,
            has_telling_name: true,
            writes_take_space: false,
            close_due: None,
            closed_at: last.and(is_closed.then_some(end)),
            asked: 0,
            pace: Pace::new(active.oldest, end),
            pauses,
            changes: Vec::new(),
            stopping: false,
            failure: None,
            totals: Totals::new(),
        };
        if last.is_none() {
            log.begin_segment();
        }
        log.drop_pauses_of_nothing(engine);
        log
    }

    /// A tube that nobody needed after the start has taken its pause with it: it must not come back with another
    /// tube of its name.
    fn drop_pauses_of_nothing(&mut self, engine: &Engine) {
        let paused = |tube: TubeName<'_>| {
            engine.tubes().find(tube).is_some_and(|tube| engine.tubes().get(tube).pause.is_some())
        };
        let kept = self.pauses.iter().map(|(name, pause)| (Box::from(name), pause.until));
        let kept: Vec<(Box<[u8]>, Time)> = kept.collect();
        for (name, until) in kept {
            let tube = TubeName::new(&name).expect("a tube had it");
            if !paused(tube) {
                self.pause(tube, until, Span::ZERO, engine);
            }
        }
    }

    // What is logged.

    /// Logs what has changed in the queue since the last call.
    #[inline]
    pub fn record(&mut self, engine: &mut Engine, now: Time) {
        let before = self.end.0;
        let mut changes = std::mem::take(&mut self.changes);
        engine.take_changes(&mut changes);
        for change in changes.drain(..) {
            self.record_one(change, engine, now);
        }
        self.changes = changes;
        let written = self.end.0 - before;
        self.pace.written += written;
        self.gathering_changed |= written > 0;
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
    pub(super) fn move_pause(&mut self, tube: &[u8], engine: &Engine, now: Time) {
        let pause = self.pauses.remove(tube).expect("it is there");
        self.ledger.let_go(pause.segment, pause.bytes);
        if pause.until > now {
            let tube = TubeName::new(tube).expect("a tube has it");
            self.pause(tube, pause.until, pause.length, engine);
            self.gathering_moved += pause.bytes;
        }
    }

    /// Logs all of a job, which is in the active segment from now on. How many bytes its record takes.
    pub(super) fn append_job(&mut self, job: JobKey, engine: &Engine) -> usize {
        let record = Record::Job(JobRecord::of(job, engine));
        let bytes = record.bytes();
        self.append(&record, engine);
        self.largest = self.largest.max(bytes as u64);
        self.ledger.enter(job, self.active.number, bytes);
        bytes
    }

    /// Logs what need not be written again when the segment goes.
    pub(super) fn append_change(&mut self, record: &Record<'_>, engine: &Engine) {
        self.append(record, engine);
        self.ledger.waste(record.bytes() as u64);
    }

    fn append(&mut self, record: &Record<'_>, engine: &Engine) {
        if record.bytes() as u64 > self.room() {
            self.go_on_in_next_segment(engine);
        }
        self.append_here(record);
        self.totals.records += 1;
    }

    fn append_here(&mut self, record: &Record<'_>) {
        let stamp = Stamp { seed: self.seed, at: self.end, durable: self.durable };
        record.encode(&stamp, &mut self.gathering);
        if self.is_stalled {
            self.pending.extend(record.job_id());
        }
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
        let Header { log_id, number: previous, .. } = self.active;
        let oldest = self.ledger.oldest().expect("the active one is there");
        let next_id = engine.upcoming_id();
        self.active = Header { log_id, number, first: self.end, next_id, oldest, previous };
        self.seed = self.active.seed();
        self.begin_segment();
        if oldest > self.pace.told {
            (self.pace.told, self.pace.told_by) = (oldest, self.end);
        }
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
        (self.gathering_moved, self.gathering_changed) = (0, false);
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
        // What is there again when these jobs are moved again is not gained by that.
        self.pace.padding +=
            self.gathering_moved as u64 * self.padding_of_moves() / self.config.segment_bytes;
        let inherent = self.pace.padding.min(padding as u64);
        self.pace.padding = (self.pace.padding - inherent).min(self.padding_of_moves());
        self.ledger.waste(padding as u64 - inherent);
        if padding > 0 {
            self.append_here(&Record::Padding(padding));
        }
        if self.gathering_changed {
            self.pace.written += padding as u64;
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

    /// The memory that records on their way to the disk take, and what is known of those that are there.
    pub fn memory_bytes(&self) -> usize {
        let full: usize = self.full.iter().map(|waiting| waiting.batch.memory_bytes()).sum();
        let spare: usize = self.spare.iter().map(Batch::memory_bytes).sum();
        let writing = self.writing.map_or(0, |writing| writing.memory_bytes);
        let batches = self.gathering.memory_bytes() + full + writing + spare;
        let changes = self.changes.capacity() * size_of::<Change>();
        let pending = 2 * self.pending.len() * size_of::<JobId>();
        batches + changes + pending + self.ledger.memory_bytes() + self.pauses.memory_bytes()
    }

    pub(super) fn backlog(&self) -> usize {
        let full: usize = self.full.iter().map(|waiting| waiting.batch.len()).sum();
        self.gathering.len() + full + self.writing.map_or(0, |writing| writing.bytes)
    }
}
