//! Schedules, and which segment the record of each is in.
//!
//! The record of a schedule has how far it was when the record was written. Each run is in the record of its job, and what was left out in a
//! record of its own: both are garbage as soon as the schedule itself is written again. That is so before their segment goes, since the oldest
//! segment goes first and theirs is not older than that of the schedule.

use super::Wal;
use super::placed::Placed;
use super::record::{JobOfRun, JobRecord, ProgressRecord, Record, schedule_room_bytes};
use crate::queue::{Engine, ScheduleName};
use crate::values::ids::JobKey;
use crate::values::tube_name::TubeName;

/// All logged schedules, by their names, and what each needs in a segment: see [`schedule_room_bytes`].
pub type LoggedSchedules = Placed<ScheduleName, u64>;

/// Memory of one schedule, at most: its share of two trees. They share its name with the queue.
const SCHEDULE_BYTES: usize = 8 * size_of::<ScheduleName>();

impl LoggedSchedules {
    /// What the one needs that needs most, in bytes.
    pub fn largest(&self) -> u64 {
        self.iter().map(|(_, &bytes)| bytes).max().unwrap_or(0)
    }

    /// An upper bound of the memory that they take.
    pub fn memory_bytes(&self) -> usize {
        self.len() * SCHEDULE_BYTES
    }
}

impl Wal {
    /// Logs a schedule. Returns the size of the record in bytes.
    pub(super) fn append_schedule(&mut self, name: &ScheduleName, engine: &Engine) -> usize {
        let schedule = engine.logged_schedule(name).expect("the queue has it");
        let room = schedule_room_bytes(schedule.texts_bytes());
        let place = self.append(&Record::Schedule(Box::new(schedule)), engine);
        self.segments.note_record(place.1);
        self.schedules.insert(ScheduleName::clone(name), room, place, &mut self.index);
        place.1
    }

    /// Logs that a schedule is deleted.
    pub(super) fn append_schedule_end(&mut self, name: &ScheduleName, engine: &Engine) {
        self.schedules.remove(name, &mut self.index).expect("the schedule is logged");
        self.append_change(&Record::ScheduleGone(TubeName::checked_before(name)), engine);
    }

    /// Logs that a run of a schedule was left out.
    pub(super) fn append_progress(&mut self, name: &ScheduleName, engine: &Engine) {
        self.append_change(&Record::Progress(progress_of(name, engine)), engine);
    }

    /// Logs a job and that a schedule has put it, in one record. Compaction appends the job alone.
    pub(super) fn append_run(&mut self, job: JobKey, name: &ScheduleName, engine: &Engine) {
        let of = JobOfRun { job: JobRecord::of(job, engine), run: progress_of(name, engine) };
        let alone = Record::Job(of.job.clone()).bytes();
        let (segment, bytes) = self.append(&Record::Run(Box::new(of)), engine);
        self.segments.note_record(bytes);
        self.index.insert(job, segment, alone);
        self.index.add_garbage((bytes - alone) as u64);
    }
}

/// How far a schedule is.
fn progress_of<'a>(name: &ScheduleName, engine: &'a Engine) -> ProgressRecord<'a> {
    let schedule = engine.schedule(TubeName::checked_before(name)).expect("the queue has it");
    ProgressRecord { schedule: schedule.name(), progress: schedule.progress }
}
