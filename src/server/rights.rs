//! Which right a command needs, and on which tube. A command without a row does not compile.

use super::users::Rights;
use crate::protocol::command::{Command, Ids};
use crate::values::ids::JobId;
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::RuleValue;

/// What a command needs. Where several rights are named, one of them is enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need<'a> {
    /// Every client may do this.
    Nothing,
    /// A right on the used tube.
    Used(Rights),
    /// To put a job with these tags into the used tube. Keys and groups are shared by jobs of all tubes, so a user may name only
    /// [its own](Rights::NAME_KEY).
    Put(Tags<'a>),
    /// A right on this tube.
    Tube(TubeName<'a>, Rights),
    /// A right on each of two tubes.
    Tubes([(TubeName<'a>, Rights); 2]),
    /// A right on the tube of this job. Without the job, the command answers that there is none.
    Job(JobId, Rights),
    /// A right on the tubes of all these jobs.
    Jobs(Ids<'a>, Rights),
    /// A right on the tube of this job, and one on the tube that gets it.
    JobTo(JobId, Rights, TubeName<'a>, Rights),
    /// A right on the tube of this schedule. Without it, the command answers that there is none.
    Schedule(TubeName<'a>, Rights),
    /// To put this schedule for this tube: a right on both, and on the tube of the schedule that it replaces.
    ScheduleTo(TubeName<'a>, TubeName<'a>),
    /// A watched tube. A client watches only tubes on which it may consume.
    Watch,
    /// A right on at least one tube. The reply shows only such tubes.
    Somewhere(Rights),
    /// A right on all tubes.
    Everywhere(Rights),
}

/// What a user lacks a right on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lacking {
    /// The tube that the command names or uses.
    Tube,
    /// The tube that gets jobs of another one.
    TargetTube,
    /// The tube of the job that the command names.
    TubeOfJob,
    /// The tube of the schedule that the command names.
    TubeOfSchedule,
    /// No tube has it, and one would be enough.
    AnyTube,
    AllTubes,
    /// The name of a concurrency key or a group.
    Key,
}

/// What a user lacks: one of these rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Missing {
    pub rights: Rights,
    pub on: Lacking,
    /// The refusal tells something of a job with a change that is not committed yet.
    pub may_reveal: bool,
}

impl Missing {
    /// The lack of one of these rights on a tube.
    pub const fn on_tube(rights: Rights) -> Self {
        Self { rights, on: Lacking::Tube, may_reveal: false }
    }

    /// The lack of one of these rights on every tube.
    pub const fn on_any_tube(rights: Rights) -> Self {
        Self { rights, on: Lacking::AnyTube, may_reveal: false }
    }
}

const PRODUCE: Rights = Rights::PRODUCE;
const CONSUME: Rights = Rights::CONSUME;
const INSPECT: Rights = Rights::INSPECT;
const ADMIN: Rights = Rights::ADMIN;

/// The names in the tags of one job that jobs of other tubes may have, too: a concurrency key and two groups.
const SHARED_NAMES_MAX: usize = 3;

/// A tube gets jobs from another one.
const RECEIVE: Rights = PRODUCE.or(ADMIN);

/// The names in the tags of a job that jobs of other tubes may have, too. An idempotency key is not among them: it belongs to its tube.
pub(super) fn shared_names<'a>(tags: Tags<'a>) -> [Option<TubeName<'a>>; SHARED_NAMES_MAX] {
    [tags.con().map(|con| con.key), tags.grp(), tags.aft()]
}

impl<'a> Need<'a> {
    /// How many tubes or keys are compared with the patterns of the user, at most.
    pub(super) fn tubes(&self) -> usize {
        match *self {
            Self::Tube(..) | Self::Job(..) | Self::Schedule(..) => 1,
            Self::Tubes(_) | Self::JobTo(..) | Self::ScheduleTo(..) => 2,
            Self::Put(tags) if tags.is_empty() => 0,
            Self::Put(_) => SHARED_NAMES_MAX,
            // Bounded by LINE_BYTES_LONG_MAX: the ids of one line, some 500.
            Self::Jobs(ids, _) => ids.iter().count(),
            Self::Nothing | Self::Used(_) | Self::Watch | Self::Somewhere(_) | Self::Everywhere(_) => 0,
        }
    }

    /// The need of a command.
    pub fn of(command: &Command<'a>) -> Self {
        match *command {
            Command::Put { tags: Some(tags), .. } => Self::Put(tags),
            Command::Put { tags: None, .. } | Command::PutBatch { .. } => Self::Used(PRODUCE),
            // For the commands that need a right on the used tube.
            Command::Use(tube) => Self::Tube(tube, PRODUCE.or(INSPECT).or(ADMIN)),
            Command::Watch(tube) | Command::WatchWeighted { tube, .. } => Self::Tube(tube, CONSUME),
            Command::Reserve | Command::ReserveWithTimeout { .. } | Command::ReserveBatch { .. } => {
                Self::Watch
            }
            Command::ReserveJob(id)
            | Command::Release { id, .. }
            | Command::Bury { id, .. }
            | Command::Touch(id)
            | Command::JobNote { id, .. } => Self::Job(id, CONSUME),
            // A consumer could reserve the job and delete it then.
            Command::Delete(id) => Self::Job(id, CONSUME.or(ADMIN)),
            Command::DeleteBatch(ids) => Self::Jobs(ids, CONSUME.or(ADMIN)),
            Command::Peek(id) => Self::Job(id, INSPECT),
            // Workers and operators look at a job before they act on it.
            Command::StatsJob(id) => Self::Job(id, INSPECT.or(CONSUME).or(ADMIN)),
            // A producer learns what has become of its job.
            Command::WaitJob { id, .. } => Self::Job(id, PRODUCE.or(INSPECT)),
            Command::PeekReady | Command::PeekDelayed | Command::PeekBuried | Command::PeekReserved => {
                Self::Used(INSPECT)
            }
            Command::StatsTube(tube) | Command::ListJobs { tube, .. } => Self::Tube(tube, INSPECT),
            // Its numbers name no tube.
            Command::Stats | Command::ListTubes => Self::Somewhere(INSPECT),
            // The jobs of a group may be in any tube.
            Command::StatsGroup(_) => Self::Everywhere(INSPECT),
            Command::Kick { .. } => Self::Used(ADMIN),
            Command::KickJob(id) => Self::Job(id, ADMIN),
            Command::PauseTube { tube: Some(tube), .. }
            | Command::FlushTube(tube)
            | Command::FlushKeys(tube) => Self::Tube(tube, ADMIN),
            Command::MoveJob { id, tube } => Self::JobTo(id, ADMIN, tube, RECEIVE),
            Command::MoveJobs { from, to, .. } => Self::Tubes([(from, ADMIN), (to, RECEIVE)]),
            Command::TubeConfig { tube, rule: None } => Self::Tube(tube, INSPECT.or(ADMIN)),
            Command::TubeConfig { tube, rule: Some(rule) } => match rule.value() {
                // The other tube gets jobs of this one.
                RuleValue::Tube(to) => Self::Tubes([(tube, ADMIN), (to, RECEIVE)]),
                RuleValue::None | RuleValue::Number(_) => Self::Tube(tube, ADMIN),
            },
            // A schedule belongs to those who may produce to its tube.
            Command::SchedulePut(line) => {
                let args = line.args();
                Self::ScheduleTo(args.name, args.tube)
            }
            Command::ScheduleDelete(name) | Command::ScheduleRun(name) => {
                Self::Schedule(name, PRODUCE.or(ADMIN))
            }
            Command::ScheduleStats(name) => Self::Schedule(name, PRODUCE.or(INSPECT).or(ADMIN)),
            Command::ListSchedules { .. } => Self::Somewhere(PRODUCE.or(INSPECT).or(ADMIN)),
            Command::Drain | Command::Undrain => Self::Everywhere(ADMIN),
            // What a client sets of itself, or is refused for its form.
            Command::Ignore(_)
            | Command::ListTubeUsed
            | Command::ListTubesWatched
            | Command::ReserveMode(_)
            | Command::CancelReserve
            | Command::PauseTube { tube: None, .. }
            | Command::Quit => Self::Nothing,
        }
    }
}
