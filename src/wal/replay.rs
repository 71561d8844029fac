//! Replay: records in, the queue as it was out.

use std::collections::{BTreeMap, BTreeSet};

use super::EndMark;
use super::pauses::Pauses;
use super::placed::KeptKeys;
use super::record::{JobOfRun, JobRecord, Lsn, PauseRecord, Record, RuleRecord, schedule_room_bytes};
use super::rules::LoggedRules;
use super::schedules::LoggedSchedules;
use super::segment::{Header, SegmentNumber};
use super::segment_index::SegmentIndex;
use crate::bodies::OutOfMemory;
use crate::queue::{Engine, LoggedState, Restored};
use crate::time::Time;
use crate::values::ids::{JobId, JobKey, TubeKey};
use crate::values::tube_name::TubeName;

/// Applies records to a queue, in the order of the log.
#[derive(Default)]
pub struct Replay {
    pub(super) index: SegmentIndex,
    /// The segment that records come from.
    segment: SegmentNumber,
    pub(super) pauses: Pauses,
    pub(super) kept_keys: KeptKeys,
    pub(super) rules: LoggedRules,
    pub(super) schedules: LoggedSchedules,
    /// Jobs with a change so far, and neither a record before it nor a later one. Compaction may append the record of a job behind its changes.
    changed: BTreeSet<JobId>,
    /// Jobs that a group has held so far and that are not deleted, by its name.
    held: BTreeMap<Box<[u8]>, BTreeSet<JobId>>,
    next_id: JobId,
    /// The tube of the last job, which is often that of the next one too.
    tube: Option<(Box<[u8]>, TubeKey)>,
}

/// Pauses, keys and segments that a call of [`Replay::drop_before`] drops, so that one page of the log is a bounded piece of work.
const DROPPED_PER_CALL: usize = 4096;

/// A segment that is not needed has a live record.
#[derive(Debug)]
pub struct NeededRecord;

/// What recovery found, for [`Wal::new`](super::Wal::new) to continue from.
#[derive(Default)]
pub struct Recovered {
    /// See [`Header::log_id`].
    pub log_id: u64,
    /// The position behind the last record.
    pub end: Lsn,
    /// The segment to continue in, unless that is a new one.
    pub active: Option<Header>,
    /// Segments up to this one may have another size than new ones.
    pub other_size_up_to: SegmentNumber,
    /// The size of the largest record of a job, in bytes.
    pub largest: u64,
    /// The position behind the last record, if that closes the log.
    pub closed_end: Option<Lsn>,
    /// The mark of the log's end, if both copies of it agree.
    pub mark: Option<EndMark>,
    /// Jobs that have changes and no record, in order: their puts are lost.
    pub unrecorded: Vec<JobId>,
    /// Everything that is live.
    pub(super) replay: Replay,
}

impl Recovered {
    /// The number of the newest segment, if there is one.
    pub fn newest_segment(&self) -> Option<SegmentNumber> {
        self.replay.index.newest()
    }

    /// Pauses of tubes, with those that are over.
    pub fn pauses(&self) -> impl Iterator<Item = PauseRecord<'_>> {
        self.replay.pauses.records()
    }

    /// Rules of tubes.
    pub fn rules(&self) -> impl Iterator<Item = RuleRecord<'_>> {
        self.replay.rules.records()
    }
}

impl Replay {
    /// Begins a segment: the records that follow are in it.
    pub fn open(&mut self, header: &Header) {
        self.index.open_segment(header.number);
        self.segment = header.number;
        self.next_id = self.next_id.max(header.next_id);
    }

    /// Applies a record of this size in bytes. The engine hides the jobs until [`finish`](Self::finish).
    ///
    /// # Errors
    /// If there is no memory for a body.
    pub fn apply(
        &mut self,
        record: &Record<'_>,
        bytes: usize,
        engine: &mut Engine,
    ) -> Result<(), OutOfMemory> {
        match record {
            Record::Job(job) => self.job(job, bytes, engine)?,
            Record::Run(of) => {
                let JobOfRun { job, run } = &**of;
                // mutant schedule-runs-again-after-a-restart: removed
                engine.restore_progress(run.schedule, run.progress);
                // Compaction appends the job alone.
                let alone = Record::Job(job.clone()).bytes();
                self.job(job, alone, engine)?;
                self.index.add_garbage((bytes - alone) as u64);
            }
            Record::Paused(pause) => self.pauses.apply(pause, (self.segment, bytes), &mut self.index),
            Record::Rule(rule) => self.rules.apply(rule, (self.segment, bytes), &mut self.index),
            Record::Schedule(schedule) => {
                engine.restore_schedule(schedule);
                let name = schedule.name.as_bytes().into();
                let room = schedule_room_bytes(schedule.texts_bytes());
                self.schedules.insert(name, room, (self.segment, bytes), &mut self.index);
            }
            Record::ScheduleGone(name) => {
                self.index.add_garbage(bytes as u64);
                engine.drop_schedule(*name);
                self.schedules.remove(name.as_bytes(), &mut self.index);
            }
            Record::Progress(run) => {
                self.index.add_garbage(bytes as u64);
                engine.restore_progress(run.schedule, run.progress);
            }
            Record::Change { id, state } => {
                self.index.add_garbage(bytes as u64);
                match engine.jobs().find(*id) {
                    Some(job) => engine.restore_state(job, state),
                    None => _ = self.changed.insert(*id),
                }
            }
            Record::Moved { id, state, tube } => self.grow(*id, bytes, engine, |replay, job, engine| {
                let tube = replay.tube(*tube, engine);
                engine.restore_tube_of(job, tube);
                engine.restore_state(job, state);
            }),
            Record::Noted { id, note } => {
                // mutant note-lost-by-a-restart: engine.restore_note(job, *note) => _ = (job, engine, note)
                self.grow(*id, bytes, engine, |_, job, engine| engine.restore_note(job, *note));
            }
            Record::GroupDone(group) => {
                self.index.add_garbage(bytes as u64);
                for id in self.held.remove(group.as_bytes()).unwrap_or_default() {
                    if let Some(job) = engine.jobs().find(id) {
                        engine.release_restored(job);
                    }
                }
            }
            Record::Deleted(id) => {
                self.index.add_garbage(bytes as u64);
                self.delete(*id, engine);
            }
            Record::KeptKey(kept) => {
                self.delete(kept.id, engine);
                // mutant idp-kept-key-lost-at-a-restart: removed
                self.kept_keys.insert(engine.restore_key(kept), (), (self.segment, bytes), &mut self.index);
            }
            Record::Oldest(_) | Record::Padding(_) | Record::Closed => self.index.add_garbage(bytes as u64),
        }
        Ok(())
    }

    /// Changes a job so that compaction of its record appends a longer or a shorter one.
    fn grow(
        &mut self,
        id: JobId,
        bytes: usize,
        engine: &mut Engine,
        change: impl FnOnce(&mut Self, JobKey, &mut Engine),
    ) {
        let Some(job) = engine.jobs().find(id) else {
            self.index.add_garbage(bytes as u64);
            self.changed.insert(id);
            return;
        };
        let record_bytes = |engine: &Engine| Record::Job(JobRecord::of(job, engine)).bytes();
        let before = record_bytes(engine);
        change(self, job, engine);
        // Not the size itself: in a log that was changed, the last record may have another body.
        let size = self.index.bytes_of(job) + record_bytes(engine) - before;
        self.index.resize(job, size, bytes);
    }

    fn job(&mut self, job: &JobRecord<'_>, bytes: usize, engine: &mut Engine) -> Result<(), OutOfMemory> {
        let &JobRecord { id, created, ttr, tube, tags, ref notes, state, body } = job;
        if matches!(state.state, LoggedState::Held(_))
            && let Some(group) = tags.aft()
        {
            self.held.entry(group.as_bytes().into()).or_default().insert(id);
        }
        if let Some(job) = engine.jobs().find(id) {
            // Compaction has appended it again: its body is the same.
            let tube = self.tube(tube, engine);
            engine.restore_tube_of(job, tube);
            engine.restore_state(job, &state);
            engine.restore_notes(job, notes);
            self.index.remove(job);
            self.index.insert(job, self.segment, bytes);
            return Ok(());
        }
        self.changed.remove(&id);
        let tube = self.tube(tube, engine);
        let bodies = engine.bodies_mut();
        let mut slot = bodies.allocate(body.len() as u32)?;
        bodies.bytes_mut(&mut slot).copy_from_slice(body);
        let job = engine.restore(Restored {
            id,
            created,
            ttr,
            tube,
            tags,
            notes: notes.clone(),
            state,
            body: slot,
        });
        self.index.insert(job, self.segment, bytes);
        Ok(())
    }

    fn delete(&mut self, id: JobId, engine: &mut Engine) {
        self.changed.remove(&id);
        let Some(job) = engine.jobs().find(id) else { return };
        if let Some(group) = engine.tags(job).aft()
            && let Some(ids) = self.held.get_mut(group.as_bytes())
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.held.remove(group.as_bytes());
            }
        }
        self.index.remove(job);
        engine.drop_restored(job);
    }

    /// Drops segments before `oldest`, which the leader does not need any more, with up to 4,096 pauses and keys in them:
    /// it has forgotten these.
    ///
    /// # Errors
    /// If one of them has another live record.
    pub fn drop_before(&mut self, oldest: SegmentNumber, engine: &mut Engine) -> Result<(), NeededRecord> {
        let mut left = DROPPED_PER_CALL;
        while left > 0
            && self.index.segments() > 1
            && let Some(segment) = self.index.oldest().filter(|&segment| segment < oldest)
        {
            left -= 1;
            if let Some(tube) = self.pauses.first_in(segment) {
                self.pauses.remove(&tube, &mut self.index);
            } else if let Some(key) = self.kept_keys.first_in(segment) {
                self.kept_keys.remove(&key, &mut self.index);
                engine.drop_restored_key(key);
            } else if self.index.has_live_in_oldest() {
                return Err(NeededRecord);
            } else {
                self.index.drop_oldest();
            }
        }
        Ok(())
    }

    /// Memory of what is known about the log, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let places = self.pauses.memory_bytes() + self.kept_keys.memory_bytes() + self.rules.memory_bytes();
        self.index.memory_bytes() + places + self.schedules.memory_bytes()
    }

    fn tube(&mut self, name: TubeName<'_>, engine: &mut Engine) -> TubeKey {
        let last = self.tube.as_ref().filter(|(last, _)| **last == *name.as_bytes());
        if let Some((_, tube)) = last.filter(|(_, tube)| engine.tubes().get_if_there(*tube).is_some()) {
            return *tube;
        }
        let tube = engine.restore_tube(name);
        self.tube = Some((name.as_bytes().into(), tube));
        tube
    }

    /// Shows the restored jobs. The result describes a new log with id 0 at position 0: the caller fills in what it knows.
    pub fn finish(mut self, engine: &mut Engine, now: Time) -> Recovered {
        engine.settle_restored(now);
        self.kept_keys.retain(&mut self.index, |&key| engine.kept_key(key).is_some());
        for PauseRecord { tube, until, length } in self.pauses.records() {
            engine.restore_pause(tube, until, length, now);
        }
        for RuleRecord { tube, rule } in self.rules.records() {
            engine.restore_rule(tube, rule, now);
        }
        if self.next_id > JobId(1) {
            engine.keep_ids_above(JobId(self.next_id.0 - 1));
        }
        let largest = self.index.largest().max(self.schedules.largest());
        let unrecorded = std::mem::take(&mut self.changed).into_iter().collect();
        Recovered { largest, unrecorded, replay: self, ..Recovered::default() }
    }
}
