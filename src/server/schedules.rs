//! Schedules: from the line of a `schedule-put` to the schedule, and the runs that are due.

use tracing::{info, warn};

use super::client_state::{Input, ProtocolState, TextOf};
use super::memory::Kept;
use super::outcome::{Outcome, Refusal, Shortage};
use super::{Core, Server};
use crate::bodies::Slot;
use crate::protocol::command::{Command, PutArgs, ScheduleArgs};
use crate::protocol::reply::Reply;
use crate::queue::{BACKGROUND_STEPS, NewSchedule, RunRefusal, ScheduleName};
use crate::server::rights::Need;
use crate::time::{Span, Time};
use crate::values::budget::Cost;
use crate::values::limits::SCHEDULE_BYTES_MAX;
use crate::values::schedules::{ConfiguredSchedule, Missed};
use crate::values::tube_name::TubeName;
use crate::values::when::When;
use crate::wal::{PutSpace, run_record_bytes, schedule_record_bytes};

/// While the server cannot put the job of a schedule, it tries again after this time.
const RETRY: Span = Span::from_secs(1);

/// A schedule whose body is arriving.
pub(super) struct PlannedSchedule {
    name: Box<[u8]>,
    tube: Box<[u8]>,
    when: When,
    put: PutArgs,
    missed: Missed,
    overlaps: bool,
}

impl PlannedSchedule {
    fn of(args: &ScheduleArgs<'_>, when: When) -> Self {
        let &ScheduleArgs { name, put, tube, missed, overlaps, .. } = args;
        let (name, tube) = (name.as_bytes().into(), tube.as_bytes().into());
        Self { name, tube, when, put, missed, overlaps }
    }

    fn name(&self) -> TubeName<'_> {
        TubeName::checked_before(&self.name)
    }

    fn tube(&self) -> TubeName<'_> {
        TubeName::checked_before(&self.tube)
    }

    fn as_new(&self) -> NewSchedule<'_> {
        NewSchedule {
            name: self.name(),
            tube: self.tube(),
            when: self.when.clone(),
            pri: self.put.pri,
            delay: self.put.delay,
            ttr: self.put.ttr,
            missed: self.missed,
            overlaps: self.overlaps,
            is_configured: false,
        }
    }

    /// The size of its record in the job log with this body, in bytes.
    fn record_bytes(&self, body: &Slot) -> u64 {
        let texts = self.name.len() + self.tube.len() + self.when.as_str().len();
        schedule_record_bytes(texts + body.len()) as u64
    }
}

/// As the queue takes a schedule of the configuration file.
fn configured(schedule: &ConfiguredSchedule) -> NewSchedule<'_> {
    NewSchedule {
        name: TubeName::checked_before(schedule.name.as_bytes()),
        tube: TubeName::checked_before(schedule.tube.as_bytes()),
        when: schedule.when.clone(),
        pri: schedule.pri,
        delay: schedule.delay,
        ttr: schedule.ttr,
        missed: schedule.missed,
        overlaps: schedule.overlaps,
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
        if let Err(refusal) = self.authorize(protocol, Need::of(&Command::SchedulePut(*args))) {
            return protocol.skip_text(whole, refusal);
        }
        self.charge(Cost::SCHEDULE_TIMES);
        let Ok(when) = When::parse(args.when, self.engine.system_time(now)) else {
            return protocol.skip_text(whole, Refusal::BadFormat);
        };
        let planned = PlannedSchedule::of(args, when);
        self.begin_text(protocol, args.put.bytes, TextOf::Schedule(Box::new(planned)))
    }

    /// Adds a schedule whose body has arrived. The users may have changed since its line, so rights are asked for here.
    pub(super) fn add_schedule(
        &mut self,
        protocol: &ProtocolState,
        planned: &PlannedSchedule,
        body: Slot,
        now: Time,
    ) -> Result<(), (Refusal, Slot)> {
        if let Err(refusal) = self.authorize(protocol, Need::ScheduleTo(planned.name(), planned.tube())) {
            return Err((refusal, body));
        }
        if !self.engine.can_put_schedule(planned.name()) {
            return Err((Shortage::Schedules.into(), body));
        }
        self.memory.invalidate();
        self.engine.put_schedule(planned.as_new(), body, now);
        Ok(())
    }

    /// The space that a text takes in the job log.
    pub(super) fn space_for_schedule(&mut self, planned: &PlannedSchedule, body: &Slot) -> PutSpace {
        self.log.space_for_records(planned.record_bytes(body))
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
        if !self.has_memory_for_run(bytes) {
            return Outcome::Refused(Shortage::Memory.into());
        }
        let due = self.engine.system_time(now);
        match self.engine.run_schedule(&name, due, now) {
            Ok(id) => Outcome::Done(Reply::Inserted(id)),
            Err(RunRefusal::Full(full)) => Outcome::Refused(Shortage::Rule(full).into()),
            Err(RunRefusal::NoTube) => Outcome::Refused(Shortage::Tubes.into()),
            Err(RunRefusal::NoMemory) => Outcome::Refused(Shortage::Memory.into()),
        }
    }

    fn space_for_run(&mut self, name: &ScheduleName, body_bytes: usize) -> PutSpace {
        let tube_bytes = self
            .engine
            .schedule(TubeName::checked_before(name))
            .map_or(0, |schedule| schedule.tube().as_bytes().len());
        self.log.space_for_records(run_record_bytes(tube_bytes + name.len() + body_bytes) as u64)
    }

    /// Whether there is memory for a job with this body, given with its CR LF.
    fn has_memory_for_run(&mut self, body_bytes: usize) -> bool {
        self.config.max_memory_bytes.is_none_or(|max| self.has_memory_for_job(body_bytes as u32, max))
    }

    /// Runs the schedules that are due, up to the share of background work. Others follow in the next iteration. While the server drains or
    /// has no space, they stay due.
    pub(super) fn run_due_schedules(&mut self, now: Time) {
        if !self.engine.has_schedules() {
            return;
        }
        let limit = self.engine.budget().within(BACKGROUND_STEPS);
        let mut earliest = now;
        while let Some(schedule) = self.engine.due_schedule(now) {
            let (name, bytes) = (schedule.shared_name(), schedule.body.len());
            if self.engine.budget().is_reached(limit) {
                break;
            }
            self.memory.invalidate();
            let space = self.space_for_run(&name, bytes);
            if self.puts.is_draining()
                || matches!(space, PutSpace::Pending | PutSpace::Unavailable)
                || !self.has_memory_for_run(bytes)
            {
                earliest = now + RETRY;
                break;
            }
            if let Some(due) = self.engine.begin_run(&name, now)
                && let Err(refusal) = self.engine.run_schedule(&name, due, now)
            {
                self.warn_refused(&name, refusal, now);
            }
            self.record_changes(now);
        }
        self.engine.arm_schedules(earliest, now);
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
            RunRefusal::NoMemory => warn!(
                "schedule {name}: there is no memory for its job; delete jobs, or raise --max-memory{left_out}"
            ),
        }
    }

    /// Adds the schedules of the configuration file, and removes those that it had before.
    // Bounded by SCHEDULES_MAX: before the first command.
    pub(super) fn set_schedules(&mut self, now: Time) {
        let all = std::mem::take(&mut self.config.schedules);
        let is_there = |name: TubeName<'_>| all.iter().any(|one| one.name == name.as_str());
        let gone: Vec<ScheduleName> = self
            .engine
            .schedules_after(None)
            .filter(|schedule| schedule.is_configured && !is_there(schedule.name()))
            .map(|schedule| schedule.shared_name())
            .collect();
        for name in gone {
            info!(
                "schedule {} is deleted: the configuration file lacks it",
                TubeName::checked_before(&name).as_str()
            );
            self.engine.delete_schedule(TubeName::checked_before(&name));
        }
        for schedule in &all {
            let new = configured(schedule);
            if self.engine.has_schedule(&new, &schedule.body) {
                continue;
            }
            match self.engine.bodies_mut().store(&schedule.body) {
                Ok(body) => self.engine.put_schedule(new, body, now),
                Err(_) => warn!(
                    "schedule {}: there is no memory for its body; delete jobs, or raise --max-memory",
                    schedule.name
                ),
            }
        }
        self.config.schedules = all;
        self.record_changes(now);
    }

    /// Frees the text that is arriving.
    pub(super) fn free_text(&mut self, input: Input) {
        let Input::Text(incoming) = input else { return };
        self.memory.count(Kept::ScheduleLine, incoming.is_of_schedule(), false);
        self.engine.bodies_mut().free(incoming.text);
    }
}

impl Server {
    /// The time of the system clock, which may have been set.
    pub(super) fn take_system_time(&mut self, system: Time, now: Time) {
        self.core.engine.set_system_time(system, now);
    }
}
