//! Records of schedules.

use super::ProgressRecord;
use super::fields::{Fields, MILLIS_MASK, Reader};
use crate::queue::LoggedSchedule;
use crate::time::{Seconds, Time};
use crate::values::ids::JobId;
use crate::values::limits::SCHEDULE_BYTES_MAX;
use crate::values::schedules::{Missed, Plan, Progress};
use crate::values::tube_name::TubeName;
use crate::values::when::When;
use crate::wal::batch::Batch;

/// How far a schedule is, and the length of its name.
pub(super) const PROGRESS_BYTES: usize = 72;

/// The fixed fields of a schedule, before its name, that of its tube, its times and its body.
pub(super) const SCHEDULE_BYTES: usize = 32 + PROGRESS_BYTES;

/// The flags behind the milliseconds of two times.
const MISSED_SHIFT: u32 = 20;
const MISSED_MASK: u32 = 3;
const OVERLAPS: u32 = 1 << 22;
const IS_CONFIGURED: u32 = 1 << 23;

/// Appends how far a schedule is, without its name.
pub(super) fn push_progress(ProgressRecord { schedule, progress }: &ProgressRecord<'_>, out: &mut Batch) {
    let mut fixed = Fields::<PROGRESS_BYTES>::default();
    fixed.u64(progress.handled.as_nanos()).u64(progress.due.as_nanos()).u64(progress.ran.as_nanos());
    fixed.u64(progress.job.0).u64(progress.runs).u64(progress.skips);
    fixed.u64(progress.refusals).u64(progress.gaps);
    fixed.u32(progress.caught_up.into()).u32(schedule.as_bytes().len() as u32);
    out.push(&fixed.bytes);
}

/// Reads it. Returns the length of the name, too.
pub(super) fn read_progress(fields: &mut Reader<'_>) -> Option<(Progress, usize)> {
    let mut time = || Time::from_nanos(fields.u64());
    let (handled, due, ran) = (time(), time(), time());
    let job = JobId(fields.u64());
    let [runs, skips, refusals, gaps] = [(); 4].map(|()| fields.u64());
    let (caught_up, name_bytes) = (u8::try_from(fields.u32()).ok()?, fields.u32() as usize);
    Some((Progress { handled, due, ran, job, runs, skips, refusals, gaps, caught_up }, name_bytes))
}

/// Appends a schedule.
pub(super) fn push_schedule(schedule: &LoggedSchedule<'_>, out: &mut Batch) {
    let LoggedSchedule { name, tube, is_configured, .. } = *schedule;
    let &Plan { ref when, pri, delay, ttr, missed, overlaps } = &schedule.plan;
    let when = when.as_str();
    let mut flags = u32::from(delay.millis()) | u32::from(ttr.millis()) << 10;
    flags |= (missed as u32) << MISSED_SHIFT;
    flags |= if overlaps { OVERLAPS } else { 0 };
    flags |= if is_configured { IS_CONFIGURED } else { 0 };
    let mut fixed = Fields::<{ SCHEDULE_BYTES - PROGRESS_BYTES }>::default();
    fixed.u64(schedule.created.as_nanos()).u32(pri).u32(delay.as_whole()).u32(ttr.as_whole()).u32(flags);
    fixed.u32(tube.as_bytes().len() as u32).u32(when.len() as u32);
    out.push(&fixed.bytes);
    push_progress(&ProgressRecord { schedule: name, progress: schedule.progress }, out);
    out.push(name.as_bytes());
    out.push(tube.as_bytes());
    out.push(when.as_bytes());
    out.push(schedule.body);
}

/// Reads a schedule.
pub(super) fn parse_schedule<'a>(fixed: &[u8], rest: &'a [u8]) -> Option<LoggedSchedule<'a>> {
    let mut fields = Reader(fixed);
    let created = Time::from_nanos(fields.u64());
    let [pri, delay, ttr, flags] = [(); 4].map(|()| fields.u32());
    let (tube_bytes, when_bytes) = (fields.u32() as usize, fields.u32() as usize);
    let (progress, name_bytes) = read_progress(&mut fields)?;
    let (name, rest) = rest.split_at_checked(name_bytes)?;
    let (tube, rest) = rest.split_at_checked(tube_bytes)?;
    let (when, body) = rest.split_at_checked(when_bytes)?;
    let when = When::logged(str::from_utf8(when).ok()?)?;
    let is_body = body.ends_with(b"\r\n") && body.len() <= SCHEDULE_BYTES_MAX as usize + 2;
    let missed = (flags >> MISSED_SHIFT & MISSED_MASK) as usize;
    Some(LoggedSchedule {
        name: TubeName::new(name)?,
        tube: TubeName::new(tube)?,
        plan: Plan {
            when,
            pri,
            delay: Seconds::new(delay, (flags & MILLIS_MASK) as u16)?,
            ttr: Seconds::new(ttr, (flags >> 10 & MILLIS_MASK) as u16)?,
            missed: Missed::ALL.get(missed).copied()?,
            overlaps: flags & OVERLAPS != 0,
        },
        is_configured: flags & IS_CONFIGURED != 0,
        created,
        progress,
        body: Some(body).filter(|_| is_body)?,
    })
}
