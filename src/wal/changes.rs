//! From changes of the queue to records in the gathering batch.

use std::io;

use super::Wal;
use super::pauses::FORGOTTEN_PER_PAUSE;
use super::placed::PlacedRecord;
use super::record::{JobRecord, Lsn, PauseRecord, Record, job_record_bytes, padding_bytes};
use super::segment::{Header, SegmentNumber};
use crate::queue::{Change, Engine, KeptKey, Pause};
use crate::time::{Span, Time};
use crate::values::ids::{IdpSlot, JobId, JobKey};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

impl Wal {
    /// Logs what has changed in the queue since the last call.
    #[inline]
    pub fn record(&mut self, engine: &mut Engine, now: Time) {
        let before = self.commits.end().0;
        let mut changes = std::mem::take(&mut self.changes);
        engine.take_changes(&mut changes);
        for change in changes.drain(..) {
            self.record_one(change, engine, now);
        }
        self.changes = changes;
        let appended = self.commits.end().0 - before;
        self.compactor.note_appended(appended);
        if appended > 0 {
            self.appender.note_changes();
        }
    }

    fn record_one(&mut self, change: Change, engine: &Engine, now: Time) {
        // mutant reservation-lost-by-a-restart: adds if let Change::Reserved(_) = change { return; }
        match change {
            Change::Put(job) => {
                self.append_job(job, engine);
            }
            Change::Reserved(job)
            | Change::TakenOut(job)
            | Change::Released(job)
            | Change::TimedOut(job)
            | Change::Returned(job)
            | Change::Buried(job)
            | Change::Kicked(job)
            | Change::Reprioritized(job) => {
                let record =
                    Record::Change { id: engine.jobs().get(job).id, state: engine.persisted_state(job) };
                self.append_change(&record, engine);
            }
            Change::Moved(job) => {
                let id = engine.jobs().get(job).id;
                let (state, tube) = (engine.persisted_state(job), engine.tube_of(job));
                self.append_growth(job, &Record::Moved { id, state, tube }, engine);
            }
            Change::Noted(job) => {
                let id = engine.jobs().get(job).id;
                if let Some(note) = engine.notes(job).iter().next_back() {
                    self.append_growth(job, &Record::Noted { id, note }, engine);
                }
            }
            Change::GroupDone(name) => {
                let group = TubeName::new(&name).expect("it is the name of a group");
                self.append_change(&Record::GroupDone(group), engine);
            }
            Change::Deleted(job, id) => {
                self.index.remove(job);
                self.append_change(&Record::Deleted(id), engine);
            }
            Change::DeletedKeepingKey(job, key) => {
                self.index.remove(job);
                self.append_kept_key(key, engine);
            }
            Change::KeyForgotten(key) => {
                self.kept_keys.remove(&key, &mut self.index).expect("the key is logged");
            }
            Change::KeyFlushed(key, flushed) => {
                self.kept_keys.remove(&key, &mut self.index).expect("the key is logged");
                let (tube, name) = flushed.names();
                // Recovery replaces the kept key by one that is over.
                // mutant idp-flushed-key-back-after-a-restart: Time::ZERO => now + Span::from_secs(100)
                // mutant idp-flushed-key-back-after-a-restart: 0 => 100
                let record =
                    Record::KeptKey(KeptKey { id: flushed.id, tube, key: name, until: Time::ZERO, ttl: 0 });
                self.append_change(&record, engine);
            }
            Change::Paused { tube, until } => {
                let tube = engine.tubes().get(tube);
                let length = tube.pause.map_or(Span::ZERO, |pause| pause.length);
                self.pauses.forget_over(now, FORGOTTEN_PER_PAUSE, &mut self.index);
                self.append_pause(PauseRecord { tube: tube.name(), until, length }, engine);
            }
            Change::PausedGone(name) => {
                let tube = TubeName::new(&name).expect("it is the name of a tube");
                self.append_pause(PauseRecord { tube, until: now, length: Span::ZERO }, engine);
            }
            Change::RuleSet(tube, key) => self.append_rule(&tube, key, engine),
            Change::ScheduleSet(name) => _ = self.append_schedule(&name, engine),
            Change::ScheduleGone(name) => self.append_schedule_end(&name, engine),
            Change::Ran(job, name) => self.append_run(job, &name, engine),
            Change::LeftOut(name) => self.append_progress(&name, engine),
        }
    }

    /// Logs the deletion of a job and its key. Returns the size of the record in bytes.
    pub(super) fn append_kept_key(&mut self, key: IdpSlot, engine: &Engine) -> usize {
        let record = Record::KeptKey(engine.kept_key(key).expect("the queue keeps the key"));
        let place = self.append(&record, engine);
        self.kept_keys.insert(key, (), place, &mut self.index);
        place.1
    }

    /// Logs a pause, or its end if the length is zero.
    pub(super) fn append_pause(&mut self, pause: PauseRecord<'_>, engine: &Engine) {
        let place = self.append(&Record::Paused(pause), engine);
        self.pauses.apply(&pause, place, &mut self.index);
    }

    /// Logs a pause again, unless it is over. Returns the size of the record in bytes.
    pub(super) fn compact_pause(&mut self, tube: &[u8], engine: &Engine, now: Time) -> usize {
        let paused = self.pauses.remove(tube, &mut self.index).expect("the tube has a pause");
        let PlacedRecord { content: Pause { until, length }, bytes, .. } = paused;
        if until <= now {
            return 0;
        }
        let tube = TubeName::new(tube).expect("it is the name of a tube");
        self.append_pause(PauseRecord { tube, until, length }, engine);
        bytes
    }

    /// Logs a job with its body, which is in the active segment from now on. Returns the size of the record in bytes.
    pub(super) fn append_job(&mut self, job: JobKey, engine: &Engine) -> usize {
        // mutant reservation-compacted-as-ready: JobRecord::of(job, engine) =>
        //     use crate::queue::LoggedState::{Ready, Reserved};
        //     let mut record = JobRecord::of(job, engine);
        //     if let Reserved(_) = record.state.state { record.state.state = Ready }
        //     record
        let record = Record::Job(JobRecord::of(job, engine));
        let (segment, bytes) = self.append(&record, engine);
        self.segments.note_record(bytes);
        self.index.insert(job, segment, bytes);
        bytes
    }

    /// Logs that a job is in another tube, or has another note. Compaction of its record appends a longer or a shorter one.
    fn append_growth(&mut self, job: JobKey, record: &Record<'_>, engine: &Engine) {
        let (_, appended) = self.append(record, engine);
        let bytes = Record::Job(JobRecord::of(job, engine)).bytes();
        self.segments.note_record(bytes);
        self.index.resize(job, bytes, appended);
    }

    /// Logs what compaction does not have to append again.
    pub(super) fn append_change(&mut self, record: &Record<'_>, engine: &Engine) {
        let (_, bytes) = self.append(record, engine);
        self.index.add_garbage(bytes as u64);
    }

    /// Returns the segment of the record, and its size in bytes.
    pub(super) fn append(&mut self, record: &Record<'_>, engine: &Engine) -> (SegmentNumber, usize) {
        let bytes = record.bytes();
        if bytes as u64 > self.appender.batch_bytes_left(self.commits.end()) {
            self.close_full(bytes as u64, engine);
        }
        self.append_here(record, bytes);
        self.counters.records += 1;
        (self.appender.active().number, bytes)
    }

    /// Appends a record of this size, in bytes, for which the active segment has space.
    fn append_here(&mut self, record: &Record<'_>, bytes: usize) {
        self.appender.append(record, self.commits.end(), self.commits.durable());
        self.space.note_unwritten(record.job_id());
        self.commits.record_appended(bytes);
    }

    /// Closes the gathering batch, and ends the active segment if that has no space for a record of this size either.
    fn close_full(&mut self, bytes: u64, engine: &Engine) {
        if bytes > self.bytes_left() {
            self.begin_next_segment(engine);
        } else {
            self.close_batch();
        }
    }

    /// Ends the active segment and begins the next.
    pub(super) fn begin_next_segment(&mut self, engine: &Engine) {
        self.close_batch();
        let number = self.segments.take_next();
        let Header { log_id, number: previous, .. } = *self.appender.active();
        let oldest = self.oldest();
        // mutant ids-again-after-a-restart: engine.upcoming_id() => crate::values::ids::JobId(1)
        let next_id = engine.upcoming_id();
        let first = self.commits.end();
        self.note_ids_left(engine);
        let format = self.config.format();
        self.begin_segment(Header { format, log_id, number, first, next_id, oldest, previous });
        self.retirement.declare(oldest, first);
    }

    /// Refuses puts from now on if those of a segment could have ids from which no server starts.
    pub(super) fn note_ids_left(&mut self, engine: &Engine) {
        let jobs_max = self.config.segment_bytes / job_record_bytes(1, Tags::NONE, 2) as u64;
        self.is_out_of_ids |= engine.upcoming_id().0 + jobs_max > JobId::START_MAX.0;
    }

    /// Begins a segment, or fails: nothing is written that the next start would refuse.
    pub(super) fn begin_segment(&mut self, header: Header) {
        if header.number > SegmentNumber::LAST || header.first > Lsn::LAST {
            self.failure.get_or_insert(io::Error::other("the numbers of segments have run out"));
        }
        self.index.open_segment(header.number);
        self.appender.begin_segment(header);
    }

    /// Closes the gathering batch, if there is one, so that it can be written.
    pub(super) fn close_batch(&mut self) {
        if !self.appender.is_gathering() {
            return;
        }
        if self.config.pads() {
            self.fill_block();
        }
        self.appender.close_batch(self.commits.end());
        self.commits.batch_closed();
    }

    /// Ends the batch with a whole block: see [`pads`](super::WalConfig::pads).
    fn fill_block(&mut self) {
        let segment_bytes = self.config.segment_bytes;
        let padding = padding_bytes(self.appender.gathering_end(), segment_bytes);
        let max = self.capacity().compaction_padding();
        let entitled = self.appender.compacted_bytes() as u64 * max / segment_bytes;
        let garbage = self.compactor.garbage_of_padding(padding, entitled, max);
        self.index.add_garbage(garbage);
        if padding > 0 {
            let record = Record::Padding(padding);
            self.append_here(&record, record.bytes());
        }
        if self.appender.has_changes() {
            self.compactor.note_appended(padding as u64);
        }
        self.appender.pad_to_block();
    }
}
