//! Schedules: from the line of a `schedule-put` to the schedule, and the runs that are due.

use std::collections::BTreeSet;

use tracing::{info, warn};

use super::access::Permit;
use super::client_state::{BodyOf, ProtocolState};
use super::metrics::Count;
use super::outcome::{Outcome, Refusal, Shortage};
use super::{Core, Rights, Server, User};
use crate::bodies::Slot;
use crate::protocol::command::{PutArgs, ScheduleArgs};
use crate::protocol::reply::Reply;
use crate::queue::{BACKGROUND_STEPS, NewSchedule, RunRefusal, Schedule, ScheduleName};
use crate::server::rights::Need;
use crate::time::{Span, Time};
use crate::values::budget::{Cost, RUN_STEPS};
use crate::values::limits::SCHEDULE_BYTES_MAX;
use crate::values::schedules::{ConfiguredSchedule, Plan};
use crate::values::tube_name::TubeName;
use crate::values::when::When;
use crate::wal::{PutSpace, run_record_bytes, schedule_room_bytes};

/// While the server cannot put the job of a schedule, it tries again after this time.
const RETRY: Span = Span::from_secs(1);

/// The same while the job log makes a file.
const RETRY_SOON: Span = Span::from_millis(10);

/// A schedule whose body is arriving.
pub(super) struct PlannedSchedule {
    name: Box<[u8]>,
    tube: Box<[u8]>,
    plan: Plan,
}

/// The rights with one of which a user sees a schedule of a tube.
const SEES: Rights = Rights::PRODUCE.or(Rights::INSPECT).or(Rights::ADMIN);

/// When to try again without space in the job log, if there is none now.
const fn retry_after(space: PutSpace) -> Option<Span> {
    match space {
        PutSpace::Available | PutSpace::TooLarge => None,
        PutSpace::Pending => Some(RETRY_SOON),
        PutSpace::Unavailable => Some(RETRY),
    }
}

/// Schedules of the configuration file that are still to be put.
pub(super) struct Configuring {
    /// Those to delete first.
    gone: Vec<ScheduleName>,
    /// The place of the next one to put.
    next: usize,
    /// Not before this time.
    pub earliest: Time,
}

impl PlannedSchedule {
    fn of(args: &ScheduleArgs<'_>, when: When) -> Self {
        let &ScheduleArgs { name, put, tube, missed, overlaps, .. } = args;
        let PutArgs { pri, delay, ttr, .. } = put;
        let plan = Plan { when, pri, delay, ttr, missed, overlaps };
        Self { name: name.as_bytes().into(), tube: tube.as_bytes().into(), plan }
    }

    fn name(&self) -> TubeName<'_> {
        TubeName::checked_before(&self.name)
    }

    fn tube(&self) -> TubeName<'_> {
        TubeName::checked_before(&self.tube)
    }

    pub fn need(&self) -> Need<'_> {
        Need::schedule(self.name(), self.tube())
    }

    fn as_new(&self) -> NewSchedule<'_> {
        NewSchedule { name: self.name(), tube: self.tube(), plan: self.plan.clone(), is_configured: false }
    }

    /// The size of its record in the job log with this body, in bytes.
    pub fn record_bytes(&self, body: &Slot) -> u64 {
        let texts = self.name.len() + self.tube.len() + self.plan.when.as_str().len();
        schedule_room_bytes(texts + body.len())
    }
}

/// As the queue takes a schedule of the configuration file.
fn configured(schedule: &ConfiguredSchedule) -> NewSchedule<'_> {
    NewSchedule {
        name: TubeName::checked_before(schedule.name.as_bytes()),
        tube: TubeName::checked_before(schedule.tube.as_bytes()),
        plan: schedule.plan.clone(),
        is_configured: true,
    }
}

impl Core {
    /// Begins a `schedule-put`, whose body follows its line.
    pub(super) fn begin_schedule(
        &mut self,
        protocol: &mut ProtocolState,
        args: &ScheduleArgs<'_>,
        now: Time,
    ) -> Outcome<'static> {
        let whole = u64::from(args.put.bytes) + 2;
        if args.put.bytes > SCHEDULE_BYTES_MAX.min(self.config.max_job_bytes) {
            return protocol.skip_text(whole, Refusal::JobTooBig);
        }
        if let Err(refusal) = self.authorize(protocol, Need::schedule(args.name, args.tube)) {
            return protocol.skip_text(whole, refusal);
        }
        self.charge(Cost::SCHEDULE_TIMES);
        let Ok(when) = When::parse(args.when, self.engine.system_time(now)) else {
            return protocol.skip_text(whole, Refusal::BadFormat);
        };
        let planned = PlannedSchedule::of(args, when);
        self.begin_text(protocol, args.put.bytes, BodyOf::Schedule(Box::new(planned)))
    }

    /// Adds a schedule whose body has arrived.
    pub(super) fn add_schedule(
        &mut self,
        planned: &PlannedSchedule,
        body: Slot,
        _permit: Permit,
        now: Time,
    ) -> Result<(), (Refusal, Slot)> {
        if !self.engine.can_put_schedule(planned.name()) {
            return Err((Shortage::Schedules.into(), body));
        }
        self.memory.invalidate();
        self.engine.put_schedule(planned.as_new(), body, now);
        Ok(())
    }

    /// At most `limit` schedules after this name, without those that the user may not see, and the name to go on after, if there are more.
    pub(super) fn schedules_page(
        &self,
        after: Option<TubeName<'_>>,
        limit: u32,
        user: Option<&User>,
    ) -> (Vec<&Schedule>, Option<TubeName<'_>>) {
        // Bounded by PAGE_SCHEDULES_MAX: the schedules of one page.
        let mut all = self.engine.schedules_after(after);
        let mut last = None;
        let seen = all
            .by_ref()
            .take(limit as usize)
            .inspect(|schedule| last = Some(schedule.name()))
            .filter(|schedule| user.is_none_or(|user| user.may(SEES, schedule.tube())))
            .collect();
        (seen, last.filter(|_| all.next().is_some()))
    }

    /// Charges a page of at most `limit` schedules for this user. Returns how many it may look at: fewer if the user has many patterns.
    pub(super) fn charge_schedules(&mut self, limit: u32, user: Option<&User>) -> u32 {
        let each = user.map_or(Cost::STEP, |user| Cost::STEP.plus(user.grants.cost()));
        let limit = limit.min(each.fits(RUN_STEPS));
        self.charge(each.times(self.engine.schedule_counts().0.min(limit as usize)));
        limit
    }

    pub(super) fn delete_schedule(&mut self, name: TubeName<'_>) -> Outcome<'static> {
        match self.engine.delete_schedule(name) {
            true => Outcome::Done(Reply::Deleted),
            false => Outcome::Refused(Refusal::NoSchedule),
        }
    }

    /// Puts the job of a schedule now, as a client wants it.
    pub(super) fn run_schedule(&mut self, name: TubeName<'_>, now: Time) -> Outcome<'static> {
        let Some(schedule) = self.engine.schedule(name) else {
            return Outcome::Refused(Refusal::NoSchedule);
        };
        let (name, bytes) = (schedule.shared_name(), schedule.body.len());
        if self.puts.is_draining() {
            return Outcome::Refused(Refusal::Draining);
        }
        if let Some(refusal) = Refusal::for_space(self.space_for_run(&name, bytes)) {
            return Outcome::Refused(refusal);
        }
        if !self.has_memory_for_job(bytes as u32) {
            self.counts.add(Count::MemoryRefusals, 1);
            return Outcome::Refused(Shortage::Memory.into());
        }
        let due = self.engine.system_time(now);
        match self.engine.run_schedule(&name, due, now) {
            Ok(id) => Outcome::Done(Reply::Inserted(id)),
            Err(RunRefusal::Full(full)) => Outcome::Refused(Shortage::Rule(full).into()),
            Err(RunRefusal::NoTube) => Outcome::Refused(Shortage::Tubes.into()),
            Err(RunRefusal::NoMemory) => Outcome::Refused(Shortage::Memory.into()),
            Err(RunRefusal::NoRoom) => Outcome::Refused(Refusal::JobTooBig),
        }
    }

    fn space_for_run(&mut self, name: &ScheduleName, body_bytes: usize) -> PutSpace {
        let tube_bytes = self
            .engine
            .schedule(TubeName::checked_before(name))
            .map_or(0, |schedule| schedule.tube().as_bytes().len());
        self.log.space_for_records(run_record_bytes(tube_bytes + name.len() + body_bytes) as u64)
    }

    /// Runs the schedules that are due, up to the share of background work. Others follow in the next iteration. While the server drains or
    /// has no space, they stay due. A standby runs none.
    #[inline(always)]
    pub(super) fn run_due_schedules(&mut self, now: Time) {
        if self.puts.configuring.is_some() || self.engine.has_schedules() {
            self.run_schedules(now);
        }
    }

    #[inline(never)]
    fn run_schedules(&mut self, now: Time) {
        // The clock of a standby may find a time for what it has read.
        // mutant schedule-runs-on-a-standby: self.log.is_followed() => false
        if self.log.is_followed() {
            return;
        }
        if let Some(left) = self.puts.configuring.take_if(|left| left.earliest <= now) {
            self.configure(left, now);
        }
        if self.puts.configuring.is_some() || !self.engine.has_schedules() {
            return;
        }
        let limit = self.engine.budget().within(BACKGROUND_STEPS);
        while !self.engine.budget().is_reached(limit) && self.engine.recheck_schedule(now) {}
        if self.puts.is_draining() {
            return self.engine.arm_schedules(now + RETRY, now);
        }
        let mut earliest = now;
        while !self.engine.budget().is_reached(limit) {
            let Some(schedule) = self.engine.due_schedule(now) else { break };
            let (name, bytes) = (schedule.shared_name(), schedule.body.len());
            self.memory.invalidate();
            let space = self.space_for_run(&name, bytes);
            if space == PutSpace::Pending {
                earliest = now + RETRY_SOON;
                break;
            }
            // Others may be smaller.
            if space == PutSpace::Unavailable || !self.has_memory_for_job(bytes as u32) {
                self.warn_waiting(&name, space, now);
                self.engine.postpone_run(&name, now + RETRY);
                continue;
            }
            if let Some(due) = self.engine.begin_run(&name, now) {
                self.run_or_warn(&name, due, space, now);
            }
            self.record_changes(now);
        }
        self.engine.arm_schedules(earliest, now);
    }

    fn run_or_warn(&mut self, name: &ScheduleName, due: Time, space: PutSpace, now: Time) {
        let refusal = if space == PutSpace::TooLarge {
            self.engine.refuse_run(name);
            Some(RunRefusal::NoRoom)
        } else {
            self.engine.run_schedule(name, due, now).err()
        };
        if let Some(refusal) = refusal {
            self.warn_refused(name, refusal, now);
        }
    }

    // docs/RUNBOOK.md lists these messages.
    #[cold]
    fn warn_waiting(&mut self, name: &ScheduleName, space: PutSpace, now: Time) {
        let Some(left_out) = self.puts.refused_runs.admit(now) else { return };
        let name = TubeName::checked_before(name).as_str();
        if space == PutSpace::Unavailable {
            warn!(
                "schedule {name} waits: the job log has no space; free space on its disk, or delete jobs{left_out}"
            );
        } else {
            warn!(
                "schedule {name} waits: there is no memory for its job; delete jobs, or raise --max-memory{left_out}"
            );
        }
    }

    // docs/RUNBOOK.md lists these messages.
    #[cold]
    fn warn_refused(&mut self, name: &ScheduleName, refusal: RunRefusal, now: Time) {
        let Some(left_out) = self.puts.refused_runs.admit(now) else { return };
        let name = TubeName::checked_before(name).as_str();
        match refusal {
            RunRefusal::Full(full) => warn!(
                "schedule {name}: its tube is full by {}, so no job was put; delete jobs, or change the rule{left_out}",
                full.rule.word()
            ),
            RunRefusal::NoTube => warn!(
                "schedule {name}: its tube does not exist and there is no room for it, so no job was put; raise --max-tubes or \
                 --max-memory{left_out}"
            ),
            RunRefusal::NoRoom => warn!(
                "schedule {name}: a file of the job log has no room for its job; raise -s/--wal-segment-size{left_out}"
            ),
            RunRefusal::NoMemory => warn!(
                "schedule {name}: there is no memory for its job; delete jobs, or raise --max-memory{left_out}"
            ),
        }
    }

    /// Has the schedules of the configuration file put, and those deleted that it had before. Warns of those that cannot run.
    // docs/RUNBOOK.md lists this message.
    // Bounded by SCHEDULES_MAX: before the first command.
    pub(super) fn begin_configuring(&mut self) {
        let names: BTreeSet<&str> = self.config.schedules.iter().map(|one| &*one.name).collect();
        let mut gone = Vec::new();
        for schedule in self.engine.schedules_after(None) {
            let (name, when) = (schedule.name().as_str(), &schedule.plan.when);
            if schedule.is_configured && !names.contains(name) {
                gone.push(schedule.shared_name());
            } else if !when.is_known() {
                warn!(
                    "schedule {name} does not run: this version does not know the times {}; update the program, or put the schedule again",
                    when.as_str()
                );
            }
        }
        let is_needed = !gone.is_empty() || !self.config.schedules.is_empty();
        self.puts.configuring = is_needed.then_some(Configuring { gone, next: 0, earliest: Time::ZERO });
    }

    /// Goes on with that, up to the share of background work. Without space in the job log it waits.
    fn configure(&mut self, mut left: Configuring, now: Time) {
        let limit = self.engine.budget().within(BACKGROUND_STEPS);
        while !self.engine.budget().is_reached(limit) {
            let done = if let Some(name) = left.gone.last() {
                let name = ScheduleName::clone(name);
                self.delete_unconfigured(&name)
            } else if left.next < self.config.schedules.len() {
                self.put_configured(left.next, now)
            } else {
                return;
            };
            self.record_changes(now);
            if let Err(wait) = done {
                left.earliest = now + wait;
                break;
            }
            left.next += usize::from(left.gone.is_empty());
            left.gone.pop();
        }
        self.puts.configuring = Some(left);
    }

    /// Deletes a schedule that the configuration file lacks, or returns for how long that has to wait.
    fn delete_unconfigured(&mut self, name: &ScheduleName) -> Result<(), Span> {
        if let Some(wait) = retry_after(self.log.space_for_records(run_record_bytes(name.len()) as u64)) {
            return Err(wait);
        }
        let name = TubeName::checked_before(name);
        // A client may have put it again since.
        if self.engine.schedule(name).is_some_and(|schedule| schedule.is_configured) {
            info!("schedule {} is deleted: it is no longer in the configuration", name.as_str());
            self.engine.delete_schedule(name);
        }
        Ok(())
    }

    /// Puts a schedule of the configuration file, unless it is there, or returns for how long that has to wait.
    // docs/RUNBOOK.md lists these messages.
    fn put_configured(&mut self, at: usize, now: Time) -> Result<(), Span> {
        let schedule = &self.config.schedules[at];
        let new = configured(schedule);
        self.engine.budget().charge(Cost::STEP.plus(Cost::copied(schedule.body.len())));
        if self.engine.has_schedule(&new, &schedule.body) {
            return Ok(());
        }
        let texts = schedule.name.len() + schedule.tube.len() + schedule.plan.when.as_str().len();
        let bytes = schedule_room_bytes(texts + schedule.body.len());
        let name = &schedule.name;
        let space = self.log.space_for_records(bytes);
        if let Some(wait) = retry_after(space) {
            if space == PutSpace::Unavailable {
                let name = ScheduleName::from(name.as_bytes());
                self.warn_waiting(&name, space, now);
            }
            return Err(wait);
        }
        match space {
            PutSpace::TooLarge => {
                warn!(
                    "schedule {name}: a file of the job log has no room for its body; raise -s/--wal-segment-size"
                );
            }
            _ => match self.engine.bodies_mut().store(&schedule.body) {
                Ok(body) => self.engine.put_schedule(new, body, now),
                Err(_) => warn!(
                    "schedule {name}: there is no memory for its body; delete jobs, or raise --max-memory"
                ),
            },
        }
        Ok(())
    }
}

impl Server {
    /// The time of the system clock, which may have been set.
    pub(super) fn take_system_time(&mut self, system: Time, now: Time) {
        self.core.engine.set_system_time(system, now);
    }
}
