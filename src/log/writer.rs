//! The log at work: records gather in a batch while the one before it is written.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::batch::{BLOCK_BYTES, Batch};
use super::ledger::Ledger;
use super::record::{JobRecord, Lsn, PauseRecord, Record, Stamp, job_record_bytes};
use super::replay::Recovered;
use super::segment::{HEADER_BYTES, Header, SegmentNumber};
use super::{Config, Durability};
use crate::ids::JobKey;
use crate::limits::{LOG_BACKLOG_BYTES_MAX, LOG_MOVE_BYTES, LOG_SEGMENTS_MIN};
use crate::queue::{Change, Engine};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// Segments that are ready to be written to: one to go on in, and one to move old jobs into when the disk
/// is full.
pub(super) const PREPARED: usize = 2;

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
    /// The largest number given to a segment.
    pub(super) last_number: SegmentNumber,
    /// Records for the active segment, and where in its file they begin.
    pub(super) gathering: Batch,
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
    pub(super) pauses: BTreeMap<Box<[u8]>, (Time, Span)>,
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
    /// Goes on where a log was left. `prepared` are the segments that are ready, of which there must be one.
    pub fn new(config: Config, recovered: Recovered, prepared: Vec<SegmentNumber>, engine: &Engine) -> Self {
        let Recovered { log_id, end, ledger, pauses, .. } = recovered;
        let mut prepared = VecDeque::from(prepared);
        let last_number = *prepared.back().expect("a segment is prepared");
        let number = prepared.pop_front().expect("a segment is prepared");
        let active = Header { log_id, number, first: end, next_id: engine.upcoming_id() };
        let mut log = Self {
            config,
            ledger,
            active,
            seed: active.seed(),
            prepared,
            missing: VecDeque::new(),
            last_number,
            gathering: Batch::default(),
            gathering_at: 0,
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
            pauses,
            changes: Vec::new(),
            stopping: false,
            failure: None,
            totals: Totals::default(),
        };
        log.begin_segment(Time::ZERO);
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
            Change::Put(job) => self.append_job(job, engine, now),
            // It does not outlive the process; its counters go with the next change.
            Change::Reserved(_) => {}
            Change::Released(job)
            | Change::TimedOut(job)
            | Change::Returned(job)
            | Change::Buried(job)
            | Change::Kicked(job) => {
                let record = Record::State { id: engine.jobs().get(job).id, kept: engine.kept(job) };
                self.append(&record, engine, now);
            }
            Change::Deleted(job, id) => {
                self.ledger.leave(job);
                self.append(&Record::Deleted(id), engine, now);
            }
            Change::Paused { tube, until } => {
                let tube = engine.tubes().get(tube);
                let length = tube.pause.map_or(Span::ZERO, |pause| pause.length);
                self.pause(tube.name(), until, length, engine, now);
            }
            Change::PausedGone(name) => {
                let name = TubeName::new(&name).expect("a tube had it");
                self.pause(name, now, Span::ZERO, engine, now);
            }
        }
    }

    fn pause(&mut self, tube: TubeName<'_>, until: Time, length: Span, engine: &Engine, now: Time) {
        if length > Span::ZERO {
            self.pauses.insert(tube.as_bytes().into(), (until, length));
        } else {
            self.pauses.remove(tube.as_bytes());
        }
        self.append(&Record::Paused(PauseRecord { tube, until, length }), engine, now);
    }

    /// Logs all of a job, which is in the active segment from now on.
    fn append_job(&mut self, job: JobKey, engine: &Engine, now: Time) {
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
        self.append(&record, engine, now);
        self.ledger.enter(job, self.active.number, bytes);
    }

    fn append(&mut self, record: &Record<'_>, engine: &Engine, now: Time) {
        if self.active.offset(self.end) + record.bytes() as u64 > self.config.segment_bytes {
            self.go_on_in_next_segment(engine, now);
        }
        self.append_here(record);
    }

    fn append_here(&mut self, record: &Record<'_>) {
        let stamp = Stamp { seed: self.seed, at: self.end, durable: self.durable };
        record.encode(&stamp, &mut self.gathering);
        self.end.0 += record.bytes() as u64;
        self.totals.records += 1;
    }

    /// Closes the active segment. Where none is prepared, records gather for one that is still to be made.
    fn go_on_in_next_segment(&mut self, engine: &Engine, now: Time) {
        self.close_batch();
        let number = self.prepared.pop_front().unwrap_or_else(|| {
            self.last_number = self.last_number.next();
            self.missing.push_back(self.last_number);
            self.last_number
        });
        let Header { log_id, .. } = self.active;
        self.active = Header { log_id, number, first: self.end, next_id: engine.upcoming_id() };
        self.seed = self.active.seed();
        self.begin_segment(now);
    }

    fn begin_segment(&mut self, now: Time) {
        self.ledger.open(self.active.number);
        self.gathering_at = 0;
        self.active.encode(&mut self.gathering);
        self.pauses.retain(|_, &mut (until, _)| until > now);
        for (name, (until, length)) in std::mem::take(&mut self.pauses) {
            let tube = TubeName::new(&name).expect("a tube has it");
            self.append_here(&Record::Paused(PauseRecord { tube, until, length }));
            self.pauses.insert(name, (until, length));
        }
    }

    /// Moves what has gathered to where it waits to be written.
    pub(super) fn close_batch(&mut self) {
        if self.gathering.is_empty() {
            return;
        }
        if self.config.durability == Durability::Always {
            // So that no block that holds a record is written again.
            let padded = self.gathering.len().next_multiple_of(BLOCK_BYTES);
            self.end.0 += (padded - self.gathering.len()) as u64;
            self.gathering.pad_to(padded);
        }
        let batch = std::mem::replace(&mut self.gathering, self.spare.pop().unwrap_or_default());
        let (segment, offset, end) = (self.active.number, self.gathering_at, self.end);
        self.gathering_at += batch.len() as u64;
        self.closed += 1;
        self.full.push_back(Waiting { segment, offset, batch, end });
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

    /// More is to be written than should be, or all of it for good: no command should be served before some
    /// of it is.
    pub fn is_behind(&self) -> bool {
        self.stopping
            || self.backlog() > LOG_BACKLOG_BYTES_MAX
            || self.short_until.is_some() && self.must_make_room()
    }

    /// What is left has to do for moving jobs, so that old segments can go.
    fn must_make_room(&self) -> bool {
        let reserve = LOG_MOVE_BYTES.min(self.config.segment_bytes / 4);
        let room = self.config.segment_bytes.saturating_sub(self.active.offset(self.end));
        !self.missing.is_empty() || self.prepared.len() < PREPARED && room < reserve
    }

    fn backlog(&self) -> usize {
        let full: usize = self.full.iter().map(|waiting| waiting.batch.len()).sum();
        self.gathering.len() + full + self.writing.map_or(0, |writing| writing.bytes)
    }

    /// Whether there is no room for a job of this size with its CR LF, now or at all.
    pub fn refuses(&self, tube_bytes: usize, body_bytes: usize) -> bool {
        let bytes = HEADER_BYTES + job_record_bytes(tube_bytes, body_bytes) as u64;
        bytes > self.config.segment_bytes || self.short_until.is_some() && self.prepared.len() < PREPARED
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
            let Some(job) = self.ledger.first_of_oldest() else {
                self.retiring = Some(self.end);
                return;
            };
            self.append_job(job, engine, now);
            self.totals.moved += 1;
        }
    }

    /// Whether jobs should be moved now: one more segment is needed, there is no space for it or it would be
    /// more than the jobs are worth, and there is something to be gained.
    pub(super) fn may_compact(&self) -> bool {
        let is_wanted = self.prepared.len() < PREPARED && (self.short_until.is_some() || !self.may_grow());
        let full = (self.ledger.segments() as u64 - 1) * self.config.segment_bytes;
        let used = full + self.active.offset(self.end);
        let is_worth_it = used.saturating_sub(self.ledger.live_bytes()) > self.config.segment_bytes / 2;
        let is_free = self.retiring.is_none() && self.missing.is_empty() && !self.stopping;
        is_wanted && is_worth_it && is_free && self.backlog() < LOG_BACKLOG_BYTES_MAX / 2
    }

    pub(super) fn segments(&self) -> u64 {
        (self.ledger.segments() + self.prepared.len()) as u64
    }

    pub(super) fn may_grow(&self) -> bool {
        let wanted = 2 * self.ledger.live_bytes() / self.config.segment_bytes + 2;
        self.segments() < wanted.max(LOG_SEGMENTS_MIN)
    }
}
