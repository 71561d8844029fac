//! Schedules in the API: the arguments of a put and of a list, and what is shown.

use super::object::Object;
use super::response::{ErrorResponse, bad};
use super::selection::LIMIT_MAX;
use super::target::{LIMIT_DEFAULT, Name, Parameters, put_args};
use crate::protocol::command::{PutArgs, ScheduleArgs};
use crate::queue::Schedule;
use crate::server::{Core, User};
use crate::time::{Time, date};
use crate::values::schedules::Missed;
use crate::values::tube_name::TubeName;

/// A schedule of a put, but the body of its jobs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ScheduleTarget {
    pub name: Name,
    pub tube: Name,
    /// Visible ASCII characters and spaces.
    pub when: Box<str>,
    pub args: PutArgs,
    missed: Missed,
    overlaps: bool,
}

/// A schedule in a list, at most, with the longest names and times.
pub(super) const SCHEDULE_JSON_BYTES: u64 = 1300;

/// A page of the list of schedules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SchedulesQuery {
    /// The page begins after this name, whether or not a schedule still has it.
    pub after: Option<Name>,
    pub limit: u32,
}

impl ScheduleTarget {
    pub fn read(name: Name, parameters: &mut Parameters, bytes: u32) -> Result<Self, ErrorResponse> {
        let tube = parameters.take("tube").ok_or_else(|| bad("name the tube of the jobs: tube=NAME"))?;
        let when = parameters.take("when").ok_or_else(|| bad("say when it runs: when=WHEN"))?;
        if !when.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err(bad("when must consist of visible ASCII characters and spaces"));
        }
        let missed = match parameters.take("missed") {
            None => Missed::default(),
            Some(word) => {
                Missed::named(word.as_bytes()).ok_or_else(|| bad("missed must be skip, once or all"))?
            }
        };
        let overlaps = match parameters.take("overlap").as_deref() {
            None | Some("yes" | "true") => true,
            Some("no" | "false") => false,
            Some(_) => return Err(bad("overlap must be yes or no")),
        };
        Ok(Self {
            name,
            tube: Name::new(tube.as_bytes())?,
            when: when.trim_matches(' ').into(),
            args: put_args(parameters, bytes)?,
            missed,
            overlaps,
        })
    }

    /// The arguments of `schedule-put`.
    pub fn args(&self) -> ScheduleArgs<'_> {
        let &Self { args: put, missed, overlaps, .. } = self;
        ScheduleArgs { name: self.name.get(), put, tube: self.tube.get(), when: &self.when, missed, overlaps }
    }

    /// The memory behind a box with it, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let names = [&self.name, &self.tube].map(|name| name.get().as_bytes().len());
        size_of::<Self>() + names[0] + names[1] + self.when.len()
    }
}

impl SchedulesQuery {
    pub fn read(parameters: &mut Parameters) -> Result<Self, ErrorResponse> {
        let after = parameters.take("after").map(|text| Name::of("schedule", text.as_bytes())).transpose()?;
        Ok(Self { after, limit: parameters.number("limit", LIMIT_DEFAULT, 1..=LIMIT_MAX)? })
    }
}

pub(super) fn schedule(core: &Core, schedule: &Schedule, now: Time, object: &mut Object<'_>) {
    let system = core.engine.system_time(now);
    let shown = |span| core.config.shown(span);
    let date_of = |time: Time| date(time.since(Time::ZERO).as_secs());
    let (plan, progress) = (&schedule.plan, &schedule.progress);
    object.member("name", schedule.name().as_str());
    object.member("tube", schedule.tube().as_str());
    object.member("when", plan.when.as_str());
    object.member("priority", plan.pri);
    object.member("delay_seconds", shown(plan.delay.span()));
    object.member("ttr_seconds", shown(plan.ttr.span()));
    object.member("body_bytes", schedule.body.len() - 2);
    object.member("missed", plan.missed);
    object.member("overlap", plan.overlaps);
    object.member("configured", schedule.is_configured);
    object.member("age_seconds", system.since(schedule.created).as_secs());
    if let Some(next) = schedule.next() {
        object.object("next_run", |object| {
            object.member("at", date_of(next));
            object.member("left_seconds", next.since(system).as_secs());
        });
    }
    if progress.ran > Time::ZERO {
        object.object("last_run", |object| {
            // When it was due.
            object.member("at", date_of(progress.due));
            object.member("age_seconds", system.since(progress.ran).as_secs());
            object.member("late_seconds", shown(progress.ran.since(progress.due)));
            object.member("job", progress.job.0);
        });
    }
    object.member("runs", progress.runs);
    object.member("skips", progress.skips);
    object.member("refusals", progress.refusals);
    object.member("gaps", progress.gaps);
}

/// At most `limit` schedules after this name, without those that the user may not see.
pub(super) fn schedule_page(
    core: &Core,
    after: Option<TubeName<'_>>,
    limit: u32,
    user: Option<&User>,
    now: Time,
    object: &mut Object<'_>,
) {
    let (schedules, next) = core.schedules_page(after, limit, user);
    object.objects("schedules", schedules, |object, one| schedule(core, one, now, object));
    // The name to go on after, if there are more.
    object.if_some("next", next.map(TubeName::as_str));
}
