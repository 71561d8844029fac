//! The format of records (docs/internals/LOG.md).
//!
//! ```text
//!  0       4        8            16            24     25      28           32
//!  | crc32c | bytes  | position   | durable     | kind | zeros | head check | payload ... | zeros to 8 bytes
//! ```
//! The checksum covers everything behind it except the last zeros, the head check the bytes between both. Both begin with a seed of the
//! segment, so bytes from an earlier use of the file are never valid records. No length is believed before its head is checked: clients
//! do not know the seed, so the body of a job cannot look like a head.

mod fields;
mod jobs;
mod schedules;

use self::fields::{Fields, Reader, state_word};
use self::jobs::{
    JOB_BYTES, NOTED_JOB, NOTED_JOB_BYTES, PLAIN_JOB, SCHEDULED_JOB, TAGGED_JOB, TAGGED_JOB_BYTES, parse_job,
};
pub use self::jobs::{JobOfRun, JobRecord, job_bytes_max, job_record_bytes, run_record_bytes};
use self::schedules::{
    PROGRESS_BYTES, SCHEDULE_BYTES, parse_schedule, push_progress, push_schedule, read_progress,
};
use super::batch::{BLOCK_BYTES, Batch};
use super::checksum::head_hash;
use super::segment::SegmentNumber;
use crate::queue::{KeptKey, LoggedSchedule, PersistedState};
use crate::time::{Span, Time};
use crate::values::ids::JobId;
use crate::values::notes::{NOTE_BYTES_MAX, Note};
use crate::values::schedules::Progress;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, RuleKey, RuleValue};

/// A position in the log (log sequence number): bytes of records since its beginning, over all segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The largest position at which a segment may begin. It leaves space for positions above it.
    pub const LAST: Self = Self(i64::MAX as u64);
}

/// The size of what precedes the payload.
pub const FRAME_BYTES: usize = 32;

/// Where the head check is, behind the bytes that it covers.
const HEAD_CHECK_AT: usize = 28;

/// Records begin at multiples of this.
pub const ALIGN_BYTES: usize = 8;

/// The fixed fields of a note, before its text.
const NOTE_BYTES: usize = 16;

const STATE_BYTES: usize = 48;

/// The fixed fields of a pause, before the name of its tube.
const PAUSE_BYTES: usize = 24;

/// The fixed fields of a kept key, before the name of its tube and the key.
const KEPT_KEY_BYTES: usize = 24;

/// The fixed fields of a rule, before the name of its tube and that of the tube of dead letters.
const RULE_BYTES: usize = 16;

/// The content of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A whole job: it was put, or compacted from an older segment.
    Job(JobRecord<'a>),
    /// A job that a schedule has put, and how far the schedule is. Compaction appends the job alone.
    Run(Box<JobOfRun<'a>>),
    /// A change of a job.
    #[allow(missing_docs)]
    Change { id: JobId, state: PersistedState },
    /// A job was moved to another tube.
    #[allow(missing_docs)]
    Moved { id: JobId, state: PersistedState, tube: TubeName<'a> },
    /// The holder of a job has noted why an attempt failed.
    #[allow(missing_docs)]
    Noted { id: JobId, note: Note<'a> },
    /// A job was deleted.
    Deleted(JobId),
    /// A tube was paused, or its pause ended.
    Paused(PauseRecord<'a>),
    /// A job was deleted, and its idempotency key is kept.
    KeptKey(KeptKey<'a>),
    /// All jobs of a group are deleted, so the jobs before this record that it holds are held no more.
    GroupDone(TubeName<'a>),
    /// A rule of a tube was set or removed.
    Rule(RuleRecord<'a>),
    /// A whole schedule: it was put, or compacted from an older segment.
    Schedule(Box<LoggedSchedule<'a>>),
    /// A schedule was deleted.
    ScheduleGone(TubeName<'a>),
    /// How far a schedule is: a run was left out.
    Progress(ProgressRecord<'a>),
    /// Segments before this one are not needed any more.
    Oldest(SegmentNumber),
    /// Zeros up to the next block. The number is that of all bytes, with the frame.
    Padding(usize),
    /// The server has stopped or is idle, and everything before this is on disk. It distinguishes damage to the last
    /// records from a torn write.
    Closed,
}

/// How far a schedule is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct ProgressRecord<'a> {
    pub schedule: TubeName<'a>,
    pub progress: Progress,
}

/// A pause of a tube; a length of zero ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct PauseRecord<'a> {
    pub tube: TubeName<'a>,
    pub until: Time,
    pub length: Span,
}

/// A rule of a tube.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct RuleRecord<'a> {
    pub tube: TubeName<'a>,
    pub rule: Rule<'a>,
}

impl RuleRecord<'_> {
    /// The number and the name that stand for the value.
    fn value(&self) -> (u64, &[u8]) {
        match self.rule.value() {
            RuleValue::None => (0, b""),
            RuleValue::Number(number) => (number, b""),
            RuleValue::Tube(name) => (0, name.as_bytes()),
        }
    }
}

/// Returns the ids of the jobs in these records. The records are whole, and end with the bytes or with zeros.
pub fn job_ids(mut records: &[u8]) -> impl Iterator<Item = JobId> {
    std::iter::from_fn(move || {
        // No record has kind 0.
        while records.get(24).is_some_and(|&kind| kind != 0) {
            let Framed { record, bytes, .. } = Record::decode(records);
            records = records.get(bytes..).unwrap_or_default();
            if let Some(id) = record.job_id() {
                return Some(id);
            }
        }
        None
    })
}

/// Returns the position of the first of these records. They are whole.
pub fn first_position(records: &[u8]) -> Option<Lsn> {
    records.first_chunk::<FRAME_BYTES>().map(|frame| Lsn(Reader(&frame[8..]).u64()))
}

/// What the frame of a record needs besides its content.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The seed of the segment: see [`Header::seed`](super::segment::Header::seed).
    pub seed: u32,
    /// The position of the record.
    pub at: Lsn,
    /// Everything before this was durable when the record was written.
    pub durable: Lsn,
}

/// A decoded record.
#[derive(Debug)]
pub struct Framed<'a> {
    /// Its content.
    pub record: Record<'a>,
    /// See [`Stamp::durable`].
    pub durable: Lsn,
    /// Its size with the frame and the zeros behind it.
    pub bytes: usize,
}

/// Why there is no record at a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// There are too few bytes to decide: this number is needed.
    Short(usize),
    /// The position is that of a record here. The rest of the head is damaged, or this is no head.
    Head,
    /// The bytes are not a whole record of this position.
    Other,
}

/// Returns the size of a record with this payload, in bytes.
pub const fn framed_bytes(payload: usize) -> usize {
    (FRAME_BYTES + payload).next_multiple_of(ALIGN_BYTES)
}

/// Returns the bytes of padding that a batch which ends at this offset needs, so that the next one begins a block. That is
/// 0 at the beginning of a block, and at the end of a segment, where no record follows.
pub const fn padding_bytes(offset: u64, segment_bytes: u64) -> usize {
    let rest = (offset.next_multiple_of(BLOCK_BYTES as u64) - offset) as usize;
    if rest == 0 || rest >= FRAME_BYTES {
        rest
    } else if offset + rest as u64 >= segment_bytes {
        0
    } else {
        rest + BLOCK_BYTES
    }
}

/// Returns the size of the record of a note, given with its CR LF, in bytes.
pub const fn note_record_bytes(bytes: usize) -> usize {
    framed_bytes(NOTE_BYTES + bytes)
}

/// Returns what a schedule needs in a segment, in bytes: the size of its record or that of a run, whichever is larger. Its texts are the
/// names, the times and the body.
pub const fn schedule_room_bytes(texts: usize) -> u64 {
    let (own, run) = (framed_bytes(SCHEDULE_BYTES + texts), run_record_bytes(texts));
    (if own > run { own } else { run }) as u64
}

impl Record<'_> {
    /// Returns its size in bytes, with the frame and the zeros behind it.
    pub fn bytes(&self) -> usize {
        framed_bytes(self.payload_bytes())
    }

    fn payload_bytes(&self) -> usize {
        match self {
            Self::Job(job) => job.payload_bytes(),
            Self::Run(of) => of.payload_bytes(),
            Self::Noted { note, .. } => NOTE_BYTES + note.text.len(),
            Self::Change { .. } => STATE_BYTES,
            Self::Moved { tube, .. } => STATE_BYTES + tube.as_bytes().len(),
            Self::Deleted(_) | Self::Oldest(_) => 8,
            Self::Paused(pause) => PAUSE_BYTES + pause.tube.as_bytes().len(),
            Self::KeptKey(kept) => KEPT_KEY_BYTES + kept.tube.as_bytes().len() + kept.key.as_bytes().len(),
            Self::GroupDone(group) => group.as_bytes().len(),
            Self::Rule(rule) => RULE_BYTES + rule.tube.as_bytes().len() + rule.value().1.len(),
            Self::Schedule(schedule) => SCHEDULE_BYTES + schedule.texts_bytes(),
            Self::ScheduleGone(name) => name.as_bytes().len(),
            Self::Progress(run) => PROGRESS_BYTES + run.schedule.as_bytes().len(),
            Self::Padding(bytes) => bytes - FRAME_BYTES,
            Self::Closed => 0,
        }
    }

    /// The id of the job that it is about.
    pub const fn job_id(&self) -> Option<JobId> {
        match self {
            Self::Job(job) => Some(job.id),
            Self::Run(of) => Some(of.job.id),
            Self::Change { id, .. }
            | Self::Moved { id, .. }
            | Self::Noted { id, .. }
            | Self::Deleted(id)
            | Self::KeptKey(KeptKey { id, .. }) => Some(*id),
            Self::Paused(_)
            | Self::GroupDone(_)
            | Self::Rule(_)
            | Self::Schedule(_)
            | Self::ScheduleGone(_)
            | Self::Progress(_)
            | Self::Oldest(_)
            | Self::Padding(_)
            | Self::Closed => None,
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Job(job) => job.kind(),
            Self::Run(_) => SCHEDULED_JOB,
            Self::Change { .. } => 2,
            Self::Deleted(_) => 3,
            Self::Paused(_) => 4,
            Self::Oldest(_) => 5,
            Self::Padding(_) => 6,
            Self::Closed => 7,
            Self::KeptKey(_) => 9,
            Self::Moved { .. } => 10,
            Self::GroupDone(_) => 11,
            Self::Rule(_) => 12,
            Self::Noted { .. } => 14,
            Self::Schedule(_) => 16,
            Self::ScheduleGone(_) => 17,
            Self::Progress(_) => 18,
        }
    }

    /// Appends the record to a batch.
    pub fn encode(&self, stamp: &Stamp, out: &mut Batch) {
        let payload = self.payload_bytes();
        let bytes = framed_bytes(payload);
        out.reserve(bytes);
        let begin = out.len();
        let mut frame = [0; FRAME_BYTES];
        frame[4..8].copy_from_slice(&(payload as u32).to_le_bytes());
        frame[8..16].copy_from_slice(&stamp.at.0.to_le_bytes());
        frame[16..24].copy_from_slice(&stamp.durable.0.to_le_bytes());
        frame[24] = self.kind();
        let check = head_check(stamp.seed, &frame);
        frame[HEAD_CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        out.push(&frame);
        match self {
            Self::Job(job) => job.push(out),
            Self::Run(of) => of.push(out),
            Self::Change { id, state } => {
                out.push(
                    &Fields::<STATE_BYTES>::default().u64(id.0).state(state).u32(state_word(state)).bytes,
                );
            }
            Self::Moved { id, state, tube } => {
                out.push(
                    &Fields::<STATE_BYTES>::default().u64(id.0).state(state).u32(state_word(state)).bytes,
                );
                out.push(tube.as_bytes());
            }
            Self::Noted { id, note } => {
                out.push(&Fields::<NOTE_BYTES>::default().u64(id.0).u64(note.at.as_nanos()).bytes);
                out.push(note.text);
            }
            Self::Deleted(id) => out.push(&id.0.to_le_bytes()),
            Self::Paused(pause) => {
                let mut fixed = Fields::<PAUSE_BYTES>::default();
                let tube = pause.tube.as_bytes();
                fixed.u64(pause.until.as_nanos()).u64(pause.length.as_nanos()).u32(tube.len() as u32);
                out.push(&fixed.bytes);
                out.push(tube);
            }
            Self::KeptKey(kept) => {
                let mut fixed = Fields::<KEPT_KEY_BYTES>::default();
                let tube = kept.tube.as_bytes();
                fixed.u64(kept.id.0).u64(kept.until.as_nanos()).u32(kept.ttl).u32(tube.len() as u32);
                out.push(&fixed.bytes);
                out.push(tube);
                out.push(kept.key.as_bytes());
            }
            Self::GroupDone(group) => out.push(group.as_bytes()),
            Self::Rule(rule) => {
                let (tube, (number, name)) = (rule.tube.as_bytes(), rule.value());
                let mut fixed = Fields::<RULE_BYTES>::default();
                fixed.u32(rule_code(rule.rule.key())).u32(tube.len() as u32).u64(number);
                out.push(&fixed.bytes);
                out.push(tube);
                out.push(name);
            }
            Self::Schedule(schedule) => push_schedule(schedule, out),
            Self::ScheduleGone(name) => out.push(name.as_bytes()),
            Self::Progress(run) => {
                push_progress(run, out);
                out.push(run.schedule.as_bytes());
            }
            Self::Oldest(segment) => out.push(&segment.0.to_le_bytes()),
            Self::Padding(bytes) => out.pad_to(begin + bytes),
            Self::Closed => {}
        }
        let crc = crc32c::crc32c_append(stamp.seed, &out.bytes()[begin + 4..]);
        out.bytes_mut()[begin..begin + 4].copy_from_slice(&crc.to_le_bytes());
        out.pad_to(begin + bytes);
    }

    /// Returns the size of the record at the beginning of `bytes`, if one is valid at this position.
    ///
    /// # Errors
    /// If none is.
    pub fn find(bytes: &[u8], seed: u32, at: Lsn) -> Result<usize, Absent> {
        let whole = Self::head(bytes, seed, at)?;
        match bytes.get(..whole) {
            None => Err(Absent::Short(whole)),
            Some(record) if Self::is_sound(record, seed) => Ok(whole),
            Some(_) => Err(Absent::Other),
        }
    }

    /// Returns the size that the head of a record at the beginning of `bytes` announces, if one is valid at this position.
    ///
    /// # Errors
    /// If none is.
    pub fn head(bytes: &[u8], seed: u32, at: Lsn) -> Result<usize, Absent> {
        let Some(frame) = bytes.first_chunk::<FRAME_BYTES>() else {
            return Err(Absent::Short(FRAME_BYTES));
        };
        let mut fields = Reader(&frame[4..]);
        let (payload, position) = (fields.u32() as usize, fields.u64());
        // Zeros were never written.
        if position != at.0 || *frame == [0; FRAME_BYTES] {
            return Err(Absent::Other);
        }
        // mutant wal-length-believed-unchecked: frame[HEAD_CHECK_AT..] == head_check(seed, frame).to_le_bytes() => true
        let is_valid = frame[HEAD_CHECK_AT..] == head_check(seed, frame).to_le_bytes();
        if is_valid { Ok(framed_bytes(payload)) } else { Err(Absent::Head) }
    }

    /// Whether a record is whole. Its head is valid, and announces as many bytes.
    pub fn is_sound(record: &[u8], seed: u32) -> bool {
        let mut fields = Reader(record);
        let (crc, payload) = (fields.u32(), fields.u32() as usize);
        let end = FRAME_BYTES + payload;
        record[25..HEAD_CHECK_AT] == [0; 3]
            && crc32c::crc32c_append(seed, &record[4..end]) == crc
            && Self::parse(record[24], &record[FRAME_BYTES..end]).is_some()
    }

    /// Decodes a record that [`find`](Self::find) has found.
    ///
    /// # Panics
    /// If it has not found one.
    pub fn decode(bytes: &[u8]) -> Framed<'_> {
        let mut fields = Reader(&bytes[4..24]);
        let (payload, _, durable) = (fields.u32() as usize, fields.u64(), fields.u64());
        let record = Self::parse(bytes[24], &bytes[FRAME_BYTES..FRAME_BYTES + payload]);
        Framed {
            record: record.expect("find has checked it"),
            durable: Lsn(durable),
            bytes: framed_bytes(payload),
        }
    }

    /// Returns the position that everything before was durable up to when the record at the beginning of `bytes` was written.
    /// Does not check the record.
    pub fn durable_before(bytes: &[u8]) -> Option<Lsn> {
        bytes.get(..FRAME_BYTES).map(|frame| Lsn(Reader(&frame[16..]).u64()))
    }

    /// Returns the position and the size that the head of a record at the beginning of `bytes` announces, and the seed with which it is
    /// valid. Any bytes have such a seed, so one head proves nothing.
    pub fn seed(bytes: &[u8]) -> Option<(Lsn, usize, u32)> {
        let frame = bytes.first_chunk::<FRAME_BYTES>()?;
        let mut fields = Reader(&frame[4..]);
        let (payload, position) = (fields.u32() as usize, fields.u64());
        let looks_right = frame[25..HEAD_CHECK_AT] == [0; 3] && (1..=KIND_MAX).contains(&frame[24]);
        let check = u32::from_le_bytes(frame[HEAD_CHECK_AT..].try_into().expect("four bytes"));
        let seed = check.wrapping_sub(head_check(0, frame));
        looks_right.then_some((Lsn(position), framed_bytes(payload), seed))
    }

    fn parse(kind: u8, payload: &[u8]) -> Option<Record<'_>> {
        let (fixed, rest) = payload.split_at_checked(fixed_bytes(kind))?;
        let mut fields = Reader(fixed);
        Some(match kind {
            PLAIN_JOB | TAGGED_JOB | NOTED_JOB | SCHEDULED_JOB => parse_job(kind, &mut fields, rest)?,
            2 => {
                let id = JobId(fields.u64());
                let raw = fields.state();
                Record::Change { id, state: raw.state(fields.u32())? }
            }
            3 => Record::Deleted(JobId(fields.u64())),
            4 => {
                let (until, length) = (Time::from_nanos(fields.u64()), Span::from_nanos(fields.u64()));
                Record::Paused(PauseRecord { tube: TubeName::new(rest)?, until, length })
            }
            5 => Record::Oldest(SegmentNumber(fields.u64())),
            6 => Record::Padding(FRAME_BYTES + payload.len()),
            7 if rest.is_empty() => Record::Closed,
            9 => {
                let (id, until) = (JobId(fields.u64()), Time::from_nanos(fields.u64()));
                let (ttl, tube_bytes) = (fields.u32(), fields.u32());
                let (tube, key) = rest.split_at_checked(tube_bytes as usize)?;
                let (tube, key) = (TubeName::new(tube)?, TubeName::new(key)?);
                Record::KeptKey(KeptKey { id, tube, key, until, ttl })
            }
            10 => {
                let id = JobId(fields.u64());
                let raw = fields.state();
                Record::Moved { id, state: raw.state(fields.u32())?, tube: TubeName::new(rest)? }
            }
            11 => Record::GroupDone(TubeName::new(rest)?),
            12 => {
                let (code, tube_bytes, number) = (fields.u32(), fields.u32(), fields.u64());
                let key = RuleKey::ALL.into_iter().find(|&key| rule_code(key) == code)?;
                let (tube, name) = rest.split_at_checked(tube_bytes as usize)?;
                let tube = TubeName::new(tube)?;
                let value = match (number, name) {
                    (0, b"") => RuleValue::None,
                    (0, name) => RuleValue::Tube(TubeName::new(name)?),
                    (number, b"") => RuleValue::Number(number),
                    _ => return None,
                };
                Record::Rule(RuleRecord { tube, rule: Rule::new(tube, key, value)? })
            }
            14 => {
                let (id, at) = (JobId(fields.u64()), Time::from_nanos(fields.u64()));
                let note = Some(Note { at, text: rest });
                Record::Noted { id, note: note.filter(|note| note.text.len() <= NOTE_BYTES_MAX as usize)? }
            }
            16 => Record::Schedule(Box::new(parse_schedule(fixed, rest)?)),
            17 => Record::ScheduleGone(TubeName::new(rest)?),
            18 => {
                let (progress, name_bytes) = read_progress(&mut fields)?;
                let schedule = TubeName::new(rest).filter(|name| name.as_bytes().len() == name_bytes)?;
                Record::Progress(ProgressRecord { schedule, progress })
            }
            _ => return None,
        })
    }
}

/// The size of the fixed fields of a record of this kind, before its names and other texts.
const fn fixed_bytes(kind: u8) -> usize {
    match kind {
        PLAIN_JOB => JOB_BYTES,
        TAGGED_JOB => TAGGED_JOB_BYTES,
        NOTED_JOB => NOTED_JOB_BYTES,
        SCHEDULED_JOB => JOB_BYTES + PROGRESS_BYTES,
        2 | 10 => STATE_BYTES,
        3 | 5 => 8,
        4 => PAUSE_BYTES,
        9 => KEPT_KEY_BYTES,
        12 => RULE_BYTES,
        14 => NOTE_BYTES,
        16 => SCHEDULE_BYTES,
        18 => PROGRESS_BYTES,
        _ => 0,
    }
}

/// The largest kind of a record.
const KIND_MAX: u8 = 18;

/// The check of the head in a frame. Without the seed nobody can make one.
fn head_check(seed: u32, frame: &[u8; FRAME_BYTES]) -> u32 {
    head_hash(frame[4..].first_chunk().expect("24 bytes")).wrapping_add(seed)
}

const fn rule_code(key: RuleKey) -> u32 {
    match key {
        RuleKey::MaxAttempts => 1,
        RuleKey::DeadLetter => 2,
        RuleKey::MaxJobs => 3,
        RuleKey::MaxBytes => 4,
        RuleKey::DefaultTtr => 5,
        RuleKey::Retention => 6,
        RuleKey::Rate => 7,
        RuleKey::RetryFor => 8,
        RuleKey::RetryDelay => 9,
        RuleKey::RetryFactor => 10,
        RuleKey::RetryMaxDelay => 11,
        RuleKey::RetryJitter => 12,
        RuleKey::LostCounts => 13,
    }
}
