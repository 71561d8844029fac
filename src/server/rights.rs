//! Which right a command needs, and on which tube. A command without a row does not compile.

use super::users::Rights;
use crate::protocol::command::{Command, Ids};
use crate::protocol::parse::{parse, parse_decimals};
use crate::values::ids::{JobId, TagsKey};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::RuleValue;

/// What a right is needed on.
#[derive(Clone, Copy, Debug)]
pub(super) enum On<'a> {
    /// Nothing: every client may do this.
    Nothing,
    /// The used tube.
    Used,
    /// A tube that the command names.
    Tube(TubeName<'a>),
    /// A tube that gets jobs of another one.
    Target(TubeName<'a>),
    /// The tube of this job. Without the job, the command answers that there is none.
    Job(JobId),
    /// The tubes of all these jobs.
    Jobs(Ids<'a>),
    /// The tube of this schedule. Without it, the command answers that there is none.
    Schedule(TubeName<'a>),
    /// The names in these tags. Keys and groups are shared by jobs of all tubes, so a user may name only
    /// [its own](Rights::NAME_KEY).
    Names(Tags<'a>),
    /// The same for the tags of a job that has arrived.
    StoredNames(Option<TagsKey>),
    /// A watched tube. A client watches only tubes on which it may consume.
    Watched,
    /// At least one tube. The reply shows only such tubes.
    AnyTube,
    AllTubes,
}

/// What a command needs: a right on each of these. Where several rights are named, one of them is enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need<'a>(pub [(On<'a>, Rights); 2]);

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

impl Lacking {
    /// Where the right is lacking, given the tubes that the request names. Names no other tube: that of a job is not told to a user
    /// without a right on it.
    pub fn place(self, [tube, target]: [Option<TubeName<'_>>; 2]) -> String {
        let named =
            |tube: Option<TubeName<'_>>| tube.map_or_else(String::new, |tube| format!(" {}", tube.as_str()));
        match self {
            Self::Tube => format!("on the tube{}", named(tube)),
            Self::TargetTube => format!("on the tube{}", named(target)),
            Self::TubeOfJob => "on the tube of the job".to_owned(),
            Self::TubeOfSchedule => "on the tube of the schedule".to_owned(),
            Self::AnyTube => "on any tube".to_owned(),
            Self::AllTubes => "on all tubes".to_owned(),
            Self::Key => "on the keys and groups of the tags".to_owned(),
        }
    }
}

/// The rights that a command needs and where, for a client: the reply `FORBIDDEN` does not say which one is missing. `None` if the line,
/// without its CR LF, is no command, or one that needs no right.
pub fn rights_needed(line: &[u8]) -> Option<String> {
    let need = Need::from(&parse(line).or_else(|_| parse_decimals(line)).ok()?);
    // Bounded by the two parts of a need.
    let parts = need.0.iter().filter(|(on, _)| !matches!(on, On::Nothing));
    let parts: Vec<_> =
        parts.map(|(on, rights)| format!("{rights} {}", on.lacking().place(need.tubes()))).collect();
    (!parts.is_empty()).then(|| parts.join(", and "))
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

impl On<'_> {
    /// How many tubes or keys are compared with the patterns of the user, at most.
    fn names(&self) -> usize {
        match *self {
            Self::Tube(_) | Self::Target(_) | Self::Job(_) | Self::Schedule(_) => 1,
            Self::Names(tags) if tags.is_empty() => 0,
            Self::StoredNames(None) => 0,
            Self::Names(_) | Self::StoredNames(Some(_)) => SHARED_NAMES_MAX,
            // Bounded by LINE_BYTES_LONG_MAX: the ids of one line, some 500.
            Self::Jobs(ids) => ids.iter().count(),
            Self::Nothing | Self::Used | Self::Watched | Self::AnyTube | Self::AllTubes => 0,
        }
    }

    /// What a user lacks that has no right on it.
    pub const fn lacking(&self) -> Lacking {
        match self {
            Self::Nothing | Self::Used | Self::Tube(_) | Self::Watched => Lacking::Tube,
            Self::Target(_) => Lacking::TargetTube,
            Self::Job(_) | Self::Jobs(_) => Lacking::TubeOfJob,
            Self::Schedule(_) => Lacking::TubeOfSchedule,
            Self::Names(_) | Self::StoredNames(_) => Lacking::Key,
            Self::AnyTube => Lacking::AnyTube,
            Self::AllTubes => Lacking::AllTubes,
        }
    }
}

impl<'a> Need<'a> {
    pub const fn on(on: On<'a>, rights: Rights) -> Self {
        Self([(on, rights), (On::Nothing, rights)])
    }

    /// To put a job with these tags into the used tube.
    pub const fn put(tags: Tags<'a>) -> Self {
        Self([(On::Names(tags), Rights::NAME_KEY), (On::Used, PRODUCE)])
    }

    /// To put a job that has arrived: the users may have changed since its line.
    pub fn put_arrived(tags: Option<TagsKey>) -> Self {
        // mutant auth-key-of-before-a-reload: On::StoredNames(tags) => On::Nothing
        let names = (On::StoredNames(tags), Rights::NAME_KEY);
        // mutant auth-put-of-before-a-reload: On::Used => On::Nothing
        Self([names, (On::Used, PRODUCE)])
    }

    /// To put this schedule for this tube: a right on it, and on the tube of the schedule that it replaces.
    pub const fn schedule(name: TubeName<'a>, tube: TubeName<'a>) -> Self {
        Self([(On::Tube(tube), PRODUCE), (On::Schedule(name), PRODUCE)])
    }

    /// How many tubes or keys are compared with the patterns of the user, at most.
    pub fn names(&self) -> usize {
        // Bounded by the two parts of a need.
        self.0.iter().map(|(on, _)| on.names()).sum()
    }

    /// The tube that the command names, and the one that gets jobs of another one.
    pub fn tubes(&self) -> [Option<TubeName<'a>>; 2] {
        let mut tubes = [None; 2];
        // Bounded by the two parts of a need.
        for (on, _) in self.0 {
            match on {
                On::Tube(tube) => tubes[0] = Some(tube),
                On::Target(tube) => tubes[1] = Some(tube),
                _ => {}
            }
        }
        tubes
    }
}

impl<'a> From<&Command<'a>> for Need<'a> {
    fn from(command: &Command<'a>) -> Self {
        let on = Self::on;
        match *command {
            Command::Put { tags: Some(tags), .. } => Self::put(tags),
            Command::Put { tags: None, .. } | Command::PutBatch { .. } => on(On::Used, PRODUCE),
            // For the commands that need a right on the used tube.
            Command::Use(tube) => on(On::Tube(tube), PRODUCE.or(INSPECT).or(ADMIN)),
            Command::Watch(tube) | Command::WatchWeighted { tube, .. } => on(On::Tube(tube), CONSUME),
            Command::Reserve | Command::ReserveWithTimeout { .. } | Command::ReserveBatch { .. } => {
                on(On::Watched, CONSUME)
            }
            Command::ReserveJob(id)
            | Command::Release { id, .. }
            | Command::Bury { id, .. }
            | Command::Touch(id)
            | Command::JobNote { id, .. } => on(On::Job(id), CONSUME),
            // A consumer could reserve the job and delete it then.
            Command::Delete(id) => on(On::Job(id), CONSUME.or(ADMIN)),
            Command::DeleteBatch(ids) => on(On::Jobs(ids), CONSUME.or(ADMIN)),
            Command::Peek(id) => on(On::Job(id), INSPECT),
            // Workers and operators look at a job before they act on it.
            Command::StatsJob(id) => on(On::Job(id), INSPECT.or(CONSUME).or(ADMIN)),
            // A producer learns what has become of its job.
            Command::WaitJob { id, .. } => on(On::Job(id), PRODUCE.or(INSPECT)),
            Command::PeekReady | Command::PeekDelayed | Command::PeekBuried | Command::PeekReserved => {
                on(On::Used, INSPECT)
            }
            Command::StatsTube(tube) | Command::ListJobs { tube, .. } => on(On::Tube(tube), INSPECT),
            // Its numbers name no tube.
            Command::Stats | Command::ListTubes => on(On::AnyTube, INSPECT),
            // The jobs of a group may be in any tube.
            Command::StatsGroup(_) => on(On::AllTubes, INSPECT),
            Command::Kick { .. } => on(On::Used, ADMIN),
            Command::KickJob(id) => on(On::Job(id), ADMIN),
            Command::PauseTube { tube: Some(tube), .. }
            | Command::FlushTube(tube)
            | Command::FlushKeys(tube) => on(On::Tube(tube), ADMIN),
            Command::MoveJob { id, tube } => Self([(On::Job(id), ADMIN), (On::Target(tube), RECEIVE)]),
            Command::MoveJobs { from, to, .. } => Self([(On::Tube(from), ADMIN), (On::Target(to), RECEIVE)]),
            Command::TubeConfig { tube, rule: None } => on(On::Tube(tube), INSPECT.or(ADMIN)),
            Command::TubeConfig { tube, rule: Some(rule) } => match rule.value() {
                // The other tube gets jobs of this one.
                RuleValue::Tube(to) => Self([(On::Tube(tube), ADMIN), (On::Target(to), RECEIVE)]),
                RuleValue::None | RuleValue::Number(_) => on(On::Tube(tube), ADMIN),
            },
            // A schedule belongs to those who may produce to its tube.
            Command::SchedulePut(line) => {
                let args = line.args();
                Self::schedule(args.name, args.tube)
            }
            Command::ScheduleDelete(name) | Command::ScheduleRun(name) => {
                on(On::Schedule(name), PRODUCE.or(ADMIN))
            }
            Command::ScheduleStats(name) => on(On::Schedule(name), PRODUCE.or(INSPECT).or(ADMIN)),
            Command::ListSchedules { .. } => on(On::AnyTube, PRODUCE.or(INSPECT).or(ADMIN)),
            Command::Drain | Command::Undrain => on(On::AllTubes, ADMIN),
            // What a client sets of itself, or is refused for its form.
            Command::Ignore(_)
            | Command::ListTubeUsed
            | Command::ListTubesWatched
            | Command::ReserveMode(_)
            | Command::CancelReserve
            | Command::PauseTube { tube: None, .. }
            | Command::Quit => on(On::Nothing, Rights::NONE),
        }
    }
}
