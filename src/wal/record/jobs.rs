//! Records of whole jobs.

use super::fields::{Fields, MILLIS_MASK, Reader, STATE_MASK, state_word};
use super::schedules::{PROGRESS_BYTES, push_progress, read_progress};
use super::{ALIGN_BYTES, FRAME_BYTES, ProgressRecord, Record, fixed_bytes, framed_bytes};
use crate::queue::{Engine, Job, PersistedState};
use crate::time::{Seconds, Time};
use crate::values::ids::{JobId, JobKey};
use crate::values::limits::JOB_BYTES_MAX;
use crate::values::notes::{NOTE_BYTES_MAX, NOTE_FIELDS_BYTES, NOTES_LENGTH_BYTES, NOTES_MAX, Note, Notes};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::wal::batch::Batch;
use crate::wal::segment::HEADER_BYTES;

/// The fixed fields of a job, before the name of its tube and its body.
pub(super) const JOB_BYTES: usize = 60;

/// The fixed fields of a job with tags, before the name of its tube, its tags and its body.
pub(super) const TAGGED_JOB_BYTES: usize = JOB_BYTES + 4;

/// The fixed fields of a job with notes, before the name of its tube, its tags, its notes and its body.
pub(super) const NOTED_JOB_BYTES: usize = TAGGED_JOB_BYTES + NOTES_LENGTH_BYTES;

/// The kinds of the record of a job: without tags and notes, with tags, with notes, put by a schedule.
pub(super) const PLAIN_JOB: u8 = 1;
pub(super) const TAGGED_JOB: u8 = 8;
pub(super) const NOTED_JOB: u8 = 13;
pub(super) const SCHEDULED_JOB: u8 = 15;

/// A whole job.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct JobRecord<'a> {
    pub id: JobId,
    pub created: Time,
    pub ttr: Seconds,
    pub tube: TubeName<'a>,
    pub tags: Tags<'a>,
    pub notes: Notes<'a>,
    pub state: PersistedState,
    /// The body with CR LF.
    pub body: &'a [u8],
}

/// A job that a schedule has put. It has neither tags nor notes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct JobOfRun<'a> {
    pub job: JobRecord<'a>,
    pub run: ProgressRecord<'a>,
}

impl<'a> JobRecord<'a> {
    /// Describes a job of the queue.
    pub fn of(job: JobKey, engine: &'a Engine) -> Self {
        let Job { id, created, .. } = *engine.jobs().get(job);
        let ttr = engine.jobs().ttr(job);
        let (tube, tags) = (engine.tube_of(job), engine.tags(job));
        let (state, body) = (engine.persisted_state(job), engine.body(job));
        Self { id, created, ttr, tube, tags, notes: engine.notes(job), state, body }
    }

    /// The size of its record without the frame.
    pub(super) fn payload_bytes(&self) -> usize {
        let texts = self.tube.as_bytes().len() + self.tags.as_bytes().len() + self.body.len();
        fixed_bytes(self.kind()) + texts + self.notes.logged_bytes()
    }

    /// The fixed fields that jobs of every kind have.
    fn fields(&self) -> Fields<JOB_BYTES> {
        let mut fixed = Fields::<JOB_BYTES>::default();
        fixed.u64(self.id.0).u64(self.created.as_nanos()).state(&self.state);
        let tube_bytes = self.tube.as_bytes().len() as u32;
        let word = tube_bytes << 24 | u32::from(self.ttr.millis()) << 14 | state_word(&self.state);
        fixed.u32(self.ttr.as_whole()).u32(word);
        fixed
    }

    pub(super) const fn kind(&self) -> u8 {
        match (self.tags.is_empty(), self.notes.is_empty()) {
            (true, true) => PLAIN_JOB,
            (false, true) => TAGGED_JOB,
            (_, false) => NOTED_JOB,
        }
    }

    /// Whether the queue could have had this job. The queue relies on these properties, and a checksum alone does not
    /// guarantee them.
    fn is_possible(&self) -> bool {
        let Self { id, created, ttr, body, .. } = self;
        (1..=JobId::LAST.0).contains(&id.0)
            && *created > Time::ZERO
            && *ttr > Seconds::ZERO
            && body.ends_with(b"\r\n")
            && body.len() <= JOB_BYTES_MAX as usize + 2
    }

    /// Appends it without its frame.
    pub(super) fn push(&self, out: &mut Batch) {
        out.push(&self.fields().bytes);
        if self.kind() != PLAIN_JOB {
            out.push(&(self.tags.as_bytes().len() as u32).to_le_bytes());
        }
        if !self.notes.is_empty() {
            out.push(&(self.notes.logged_bytes() as u32).to_le_bytes());
        }
        out.push(self.tube.as_bytes());
        out.push(self.tags.as_bytes());
        for note in self.notes.iter() {
            let (at, bytes) = (note.at.as_nanos(), note.text.len() as u32);
            out.push(&Fields::<NOTE_FIELDS_BYTES>::default().u64(at).u32(bytes).bytes);
            out.push(note.text);
        }
        out.push(self.body);
    }
}

impl JobOfRun<'_> {
    /// The size of its record without the frame.
    pub(super) fn payload_bytes(&self) -> usize {
        PROGRESS_BYTES + self.run.schedule.as_bytes().len() + self.job.payload_bytes()
    }

    /// Appends it without its frame.
    pub(super) fn push(&self, out: &mut Batch) {
        let JobOfRun { job, run } = self;
        out.push(&job.fields().bytes);
        push_progress(run, out);
        out.push(job.tube.as_bytes());
        out.push(run.schedule.as_bytes());
        out.push(job.body);
    }
}

/// Returns the size of the record of a job, in bytes.
pub const fn job_record_bytes(tube_bytes: usize, tags: Tags<'_>, body_bytes: usize) -> usize {
    let fixed = if tags.is_empty() { JOB_BYTES } else { TAGGED_JOB_BYTES };
    framed_bytes(fixed + tube_bytes + tags.as_bytes().len() + body_bytes)
}

/// Returns how many bytes the tube name, the tags, the body of a job with its CR LF, and its [notes](Notes::room_bytes) have at most, in
/// segments of this size.
pub const fn job_bytes_max(segment_bytes: u64) -> usize {
    (segment_bytes - HEADER_BYTES) as usize / ALIGN_BYTES * ALIGN_BYTES - FRAME_BYTES - TAGGED_JOB_BYTES
}

/// Returns the size of the record of a job that a schedule puts, in bytes. Its texts are the names of tube and schedule, and the body.
pub const fn run_record_bytes(texts: usize) -> usize {
    framed_bytes(JOB_BYTES + PROGRESS_BYTES + texts)
}

/// Reads a job of one of these kinds.
pub(super) fn parse_job<'a>(kind: u8, fields: &mut Reader<'_>, rest: &'a [u8]) -> Option<Record<'a>> {
    let (id, created) = (JobId(fields.u64()), Time::from_nanos(fields.u64()));
    let raw = fields.state();
    let (ttr, word) = (fields.u32(), fields.u32());
    let (tube, rest) = rest.split_at_checked((word >> 24) as usize)?;
    let tube = TubeName::new(tube)?;
    let (run, rest) = match kind {
        SCHEDULED_JOB => {
            let (progress, name_bytes) = read_progress(fields)?;
            let (name, rest) = rest.split_at_checked(name_bytes)?;
            (Some(ProgressRecord { schedule: TubeName::new(name)?, progress }), rest)
        }
        _ => (None, rest),
    };
    let (tags, rest) = match kind {
        PLAIN_JOB | SCHEDULED_JOB => (&[][..], rest),
        _ => rest.split_at_checked(fields.u32() as usize)?,
    };
    // A job with notes may have no tags.
    let tags = if tags.is_empty() && kind != TAGGED_JOB { Tags::NONE } else { Tags::new(tags)? };
    let (notes, body) = match kind {
        NOTED_JOB => {
            let (notes, body) = rest.split_at_checked(fields.u32() as usize)?;
            (parse_notes(notes).filter(|notes| !notes.is_empty())?, body)
        }
        _ => (Notes::NONE, rest),
    };
    let ttr = Seconds::new(ttr, (word >> 14 & MILLIS_MASK) as u16)?;
    let job = JobRecord { id, created, ttr, tube, tags, notes, state: raw.state(word & STATE_MASK)?, body };
    let job = Some(job).filter(JobRecord::is_possible)?;
    Some(match run {
        None => Record::Job(job),
        Some(run) => Record::Run(Box::new(JobOfRun { job, run })),
    })
}

/// Reads the notes of a job: none if there are more than a job has, or one is too long.
fn parse_notes(bytes: &[u8]) -> Option<Notes<'_>> {
    let (mut notes, mut rest) = ([None; NOTES_MAX], bytes);
    for place in &mut notes {
        if let Some((fixed, following)) = rest.split_first_chunk::<NOTE_FIELDS_BYTES>() {
            let mut fields = Reader(fixed);
            let (at, length) = (Time::from_nanos(fields.u64()), fields.u32());
            let (text, following) = following.split_at_checked(length as usize)?;
            *place = Some(Note { at, text }).filter(|_| length <= NOTE_BYTES_MAX);
            rest = following;
        }
    }
    let whole = Notes::new(notes.into_iter().flatten());
    (rest.is_empty() && whole.logged_bytes() == bytes.len()).then_some(whole)
}
