//! Parsed commands of the protocol.

use std::fmt;
use std::num::NonZeroU32;

use crate::time::Seconds;
use crate::values::ids::JobId;
use crate::values::job_state::JobState;
use crate::values::reserve_mode::ReserveMode;
use crate::values::schedules::Missed;
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::Rule;

/// A parsed command line. It borrows names and tags from the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// `put`: a job body of `bytes` bytes and a CR LF follow the line.
    Put {
        /// The numbers.
        args: PutArgs,
        /// The tags. `None` if other text follows the last number. That is an error, but beanstalkd checks the size of the body
        /// first.
        tags: Option<Tags<'a>>,
    },
    /// `peek`
    Peek(JobId),
    /// `peek-ready`
    PeekReady,
    /// `peek-delayed`
    PeekDelayed,
    /// `peek-buried`
    PeekBuried,
    /// `reserve`
    Reserve,
    /// `reserve-with-timeout`
    ReserveWithTimeout {
        /// How long to wait.
        seconds: Seconds,
    },
    /// `reserve-job`
    ReserveJob(JobId),
    /// `delete`
    Delete(JobId),
    /// `release`
    Release {
        /// The job.
        id: JobId,
        /// The new priority.
        pri: u32,
        /// The time until the job is ready.
        delay: Seconds,
    },
    /// `bury`
    Bury {
        /// The job.
        id: JobId,
        /// The new priority.
        pri: u32,
    },
    /// `kick`
    Kick {
        /// Maximum number of jobs to kick.
        bound: u32,
    },
    /// `kick-job`
    KickJob(JobId),
    /// `touch`
    Touch(JobId),
    /// `stats`
    Stats,
    /// `stats-job`
    StatsJob(JobId),
    /// `stats-tube`
    StatsTube(TubeName<'a>),
    /// `use`
    Use(TubeName<'a>),
    /// `watch`
    Watch(TubeName<'a>),
    /// `watch` with a weight, which beanstalkd does not have.
    WatchWeighted {
        /// The tube.
        tube: TubeName<'a>,
        /// The weight of the tube in the modes of reserve in which chance decides.
        weight: NonZeroU32,
    },
    /// `ignore`
    Ignore(TubeName<'a>),
    /// `list-tubes`
    ListTubes,
    /// `list-tube-used`
    ListTubeUsed,
    /// `list-tubes-watched`
    ListTubesWatched,
    /// `pause-tube`
    PauseTube {
        /// The tube, or `None` if the name is invalid. beanstalkd finds that out only after it has counted the command.
        tube: Option<TubeName<'a>>,
        /// How long no job is reserved from the tube.
        seconds: Seconds,
    },
    /// `peek-reserved`, which beanstalkd does not have.
    PeekReserved,
    /// `list-jobs`, which beanstalkd does not have.
    ListJobs {
        /// The tube of the jobs.
        tube: TubeName<'a>,
        /// Their state.
        state: JobState,
        /// Only jobs with a larger id are listed.
        after: JobId,
        /// Maximum number of jobs, at least 1.
        limit: u32,
    },
    /// `move-job`, which beanstalkd does not have.
    MoveJob {
        /// The job.
        id: JobId,
        /// The tube that gets it.
        tube: TubeName<'a>,
    },
    /// `move-jobs`, which beanstalkd does not have.
    MoveJobs {
        /// The tube of the jobs.
        from: TubeName<'a>,
        /// Their state, which is neither `Reserved` nor `Held`.
        state: JobState,
        /// The tube that gets them, another one.
        to: TubeName<'a>,
        /// Maximum number of jobs to move.
        bound: u32,
    },
    /// `tube-config`, which beanstalkd does not have.
    TubeConfig {
        /// The tube.
        tube: TubeName<'a>,
        /// The rule to set or to remove, or `None` to show the rules.
        rule: Option<Rule<'a>>,
    },
    /// `flush-tube`, which beanstalkd does not have.
    FlushTube(TubeName<'a>),
    /// `flush-keys`, which beanstalkd does not have.
    FlushKeys(TubeName<'a>),
    /// `put-batch`, which beanstalkd does not have: as many `put` follow, each with its body.
    PutBatch {
        /// The number of jobs, or `None` if the line has no valid one. Then the end of the batch is unknown. That is so for
        /// every other line that begins with this word.
        count: Option<u32>,
    },
    /// `delete-batch`, which beanstalkd does not have.
    DeleteBatch(Ids<'a>),
    /// `reserve-batch`, which beanstalkd does not have.
    ReserveBatch {
        /// Maximum number of jobs, at least 1.
        count: u32,
        /// How long to wait for the first job. `None` is no wait, and no job is no error.
        seconds: Option<Seconds>,
    },
    /// `reserve-mode`, which beanstalkd does not have.
    ReserveMode(ReserveMode),
    /// `stats-group`, which beanstalkd does not have.
    StatsGroup(TubeName<'a>),
    /// `wait-job`, which beanstalkd does not have.
    WaitJob {
        /// The job.
        id: JobId,
        /// How long to wait for its end.
        seconds: Seconds,
    },
    /// `job-note`, which beanstalkd does not have: a text of `bytes` bytes and a CR LF follow the line.
    JobNote {
        /// The job, which the client has reserved.
        id: JobId,
        /// Length of the text without its CR LF.
        bytes: u32,
    },
    /// `schedule-put`, which beanstalkd does not have: a body of `bytes` bytes and a CR LF follow the line.
    SchedulePut(ScheduleLine<'a>),
    /// `schedule-delete`, which beanstalkd does not have.
    ScheduleDelete(TubeName<'a>),
    /// `schedule-run`, which beanstalkd does not have.
    ScheduleRun(TubeName<'a>),
    /// `schedule-stats`, which beanstalkd does not have.
    ScheduleStats(TubeName<'a>),
    /// `list-schedules`, which beanstalkd does not have.
    ListSchedules {
        /// Only schedules with a name behind this one are listed.
        after: Option<TubeName<'a>>,
        /// Maximum number of names, at least 1.
        limit: u32,
    },
    /// `cancel-reserve`, which beanstalkd does not have.
    CancelReserve,
    /// `drain`, which beanstalkd does not have.
    Drain,
    /// `undrain`, which beanstalkd does not have.
    Undrain,
    /// `quit`
    Quit,
}

/// The numbers of `put`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutArgs {
    /// Priority; smaller is more urgent.
    pub pri: u32,
    /// The time until the job is ready.
    pub delay: Seconds,
    /// Time to run: how long a worker may keep the job reserved. 0 counts as 1, or as a rule of the tube says.
    pub ttr: Seconds,
    /// Length of the body without its CR LF.
    pub bytes: u32,
}

/// A line of `schedule-put` behind its word, checked. Its [arguments](Self::args) are many, and would make every command larger.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleLine<'a>(pub(super) &'a [u8]);

impl PartialEq for ScheduleLine<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.args() == other.args()
    }
}

impl Eq for ScheduleLine<'_> {}

/// The arguments of `schedule-put`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScheduleArgs<'a> {
    /// Its name.
    pub name: TubeName<'a>,
    /// The numbers of each `put`.
    pub put: PutArgs,
    /// The tube that gets the jobs.
    pub tube: TubeName<'a>,
    /// When it runs: see [`When`](crate::values::when::When). It is not checked yet.
    pub when: &'a str,
    /// What becomes of times that have passed.
    pub missed: Missed,
    /// Whether it runs while its last job still exists.
    pub overlaps: bool,
}

/// The ids of `delete-batch`.
#[derive(Clone, Copy)]
pub struct Ids<'a>(&'a [u8]);

impl<'a> Ids<'a> {
    /// `text` must be decimal numbers of 64 bits with spaces between them.
    pub(super) const fn new(text: &'a [u8]) -> Self {
        Self(text)
    }

    /// Returns the ids in order.
    pub fn iter(self) -> impl Iterator<Item = JobId> + use<'a> {
        self.0
            .split(|&byte| byte == b' ')
            .filter(|digits| !digits.is_empty())
            .map(|digits| JobId(digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'))))
    }
}

impl PartialEq for Ids<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Ids<'_> {}

impl fmt::Debug for Ids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Where `stats` counts a kind of command. `/metrics` counts all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Among the keys of beanstalkd, in its order.
    Beanstalkd,
    /// Behind all other keys: beanstalkd does not have the command.
    Beanring,
    /// Nowhere.
    Nowhere,
}

macro_rules! kinds {
    ($($command:pat => $kind:ident $word:literal $counted:ident;)*) => {
        /// The kind under which a command is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        #[allow(missing_docs)]
        pub enum CommandKind { $($kind,)* }

        impl CommandKind {
            /// Every kind, in order.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$kind),*];

            /// The word of the command.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$kind => $word,)* }
            }

            /// The key of its number in `stats`.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$kind => concat!("cmd-", $word),)* }
            }

            /// Where `stats` counts it.
            pub const fn counted(self) -> Counted {
                match self { $(Self::$kind => Counted::$counted,)* }
            }
        }

        impl Command<'_> {
            /// Returns the kind under which the command is counted.
            pub const fn kind(&self) -> CommandKind {
                match self { $($command => CommandKind::$kind,)* }
            }
        }
    };
}

// In the order of `stats`.
kinds! {
    Command::Put { .. } => Put "put" Beanstalkd;
    Command::Peek(_) => Peek "peek" Beanstalkd;
    Command::PeekReady => PeekReady "peek-ready" Beanstalkd;
    Command::PeekDelayed => PeekDelayed "peek-delayed" Beanstalkd;
    Command::PeekBuried => PeekBuried "peek-buried" Beanstalkd;
    Command::Reserve => Reserve "reserve" Beanstalkd;
    Command::ReserveWithTimeout { .. } => ReserveWithTimeout "reserve-with-timeout" Beanstalkd;
    Command::Delete(_) => Delete "delete" Beanstalkd;
    Command::Release { .. } => Release "release" Beanstalkd;
    Command::Use(_) => Use "use" Beanstalkd;
    Command::Watch(_) | Command::WatchWeighted { .. } => Watch "watch" Beanstalkd;
    Command::Ignore(_) => Ignore "ignore" Beanstalkd;
    Command::Bury { .. } => Bury "bury" Beanstalkd;
    Command::Kick { .. } => Kick "kick" Beanstalkd;
    Command::Touch(_) => Touch "touch" Beanstalkd;
    Command::Stats => Stats "stats" Beanstalkd;
    Command::StatsJob(_) => StatsJob "stats-job" Beanstalkd;
    Command::StatsTube(_) => StatsTube "stats-tube" Beanstalkd;
    Command::ListTubes => ListTubes "list-tubes" Beanstalkd;
    Command::ListTubeUsed => ListTubeUsed "list-tube-used" Beanstalkd;
    Command::ListTubesWatched => ListTubesWatched "list-tubes-watched" Beanstalkd;
    Command::PauseTube { .. } => PauseTube "pause-tube" Beanstalkd;
    Command::FlushTube(_) => FlushTube "flush-tube" Beanring;
    Command::FlushKeys(_) => FlushKeys "flush-keys" Beanring;
    Command::DeleteBatch(_) => DeleteBatch "delete-batch" Beanring;
    Command::ReserveBatch { .. } => ReserveBatch "reserve-batch" Beanring;
    Command::PutBatch { .. } => PutBatch "put-batch" Beanring;
    Command::ReserveMode(_) => ReserveMode "reserve-mode" Beanring;
    Command::StatsGroup(_) => StatsGroup "stats-group" Beanring;
    Command::WaitJob { .. } => WaitJob "wait-job" Beanring;
    Command::JobNote { .. } => JobNote "job-note" Beanring;
    Command::SchedulePut(_) => SchedulePut "schedule-put" Beanring;
    Command::ScheduleDelete(_) => ScheduleDelete "schedule-delete" Beanring;
    Command::ScheduleRun(_) => ScheduleRun "schedule-run" Beanring;
    Command::ScheduleStats(_) => ScheduleStats "schedule-stats" Beanring;
    Command::ListSchedules { .. } => ListSchedules "list-schedules" Beanring;
    Command::CancelReserve => CancelReserve "cancel-reserve" Beanring;
    Command::ListJobs { .. } => ListJobs "list-jobs" Beanring;
    Command::PeekReserved => PeekReserved "peek-reserved" Beanring;
    Command::MoveJob { .. } => MoveJob "move-job" Beanring;
    Command::MoveJobs { .. } => MoveJobs "move-jobs" Beanring;
    Command::TubeConfig { .. } => TubeConfig "tube-config" Beanring;
    Command::ReserveJob(_) => ReserveJob "reserve-job" Nowhere;
    Command::KickJob(_) => KickJob "kick-job" Nowhere;
    Command::Drain => Drain "drain" Nowhere;
    Command::Undrain => Undrain "undrain" Nowhere;
    Command::Quit => Quit "quit" Nowhere;
}
