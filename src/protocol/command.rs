//! The commands of the protocol, parsed.

use crate::ids::JobId;
use crate::tube_name::TubeName;

/// One command line, understood. Borrows the tube name from the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// `put`: a job body of `bytes` bytes and a CR LF follow the line.
    Put(PutArgs),
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
        /// How long to wait, in seconds.
        seconds: u32,
    },
    /// `reserve-job`
    ReserveJob(JobId),
    /// `delete`
    Delete(JobId),
    /// `release`
    Release {
        /// The job.
        id: JobId,
        /// Its priority from now on.
        pri: u32,
        /// Seconds until it is ready.
        delay: u32,
    },
    /// `bury`
    Bury {
        /// The job.
        id: JobId,
        /// Its priority from now on.
        pri: u32,
    },
    /// `kick`
    Kick {
        /// The most jobs to kick.
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
        /// The tube; `None` if the name cannot be one, which the reference finds out only after it has
        /// counted the command.
        tube: Option<TubeName<'a>>,
        /// For how many seconds no job is reserved from it.
        seconds: u32,
    },
    /// `undrain`, which is no command of the reference.
    Undrain,
    /// `quit`
    Quit,
}

/// The arguments of `put`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutArgs {
    /// Priority; smaller is more urgent.
    pub pri: u32,
    /// Seconds until the job is ready.
    pub delay: u32,
    /// Seconds that a worker may hold the job; 0 counts as 1.
    pub ttr: u32,
    /// Length of the body without its CR LF.
    pub bytes: u32,
    /// Something followed the last number. It is an error, but only after the size has been checked
    /// and found small enough (PROTOCOL: the order of checks in the reference).
    pub trailing: bool,
}

/// The kind of a command, for counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum CommandKind {
    Put,
    Peek,
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Reserve,
    ReserveWithTimeout,
    ReserveJob,
    Delete,
    Release,
    Bury,
    Kick,
    KickJob,
    Touch,
    Stats,
    StatsJob,
    StatsTube,
    Use,
    Watch,
    Ignore,
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube,
    Undrain,
    Quit,
}

impl CommandKind {
    /// How many kinds there are.
    pub const COUNT: usize = Self::Quit as usize + 1;
}

impl Command<'_> {
    /// What to count the command as.
    pub const fn kind(&self) -> CommandKind {
        match self {
            Self::Put(_) => CommandKind::Put,
            Self::Peek(_) => CommandKind::Peek,
            Self::PeekReady => CommandKind::PeekReady,
            Self::PeekDelayed => CommandKind::PeekDelayed,
            Self::PeekBuried => CommandKind::PeekBuried,
            Self::Reserve => CommandKind::Reserve,
            Self::ReserveWithTimeout { .. } => CommandKind::ReserveWithTimeout,
            Self::ReserveJob(_) => CommandKind::ReserveJob,
            Self::Delete(_) => CommandKind::Delete,
            Self::Release { .. } => CommandKind::Release,
            Self::Bury { .. } => CommandKind::Bury,
            Self::Kick { .. } => CommandKind::Kick,
            Self::KickJob(_) => CommandKind::KickJob,
            Self::Touch(_) => CommandKind::Touch,
            Self::Stats => CommandKind::Stats,
            Self::StatsJob(_) => CommandKind::StatsJob,
            Self::StatsTube(_) => CommandKind::StatsTube,
            Self::Use(_) => CommandKind::Use,
            Self::Watch(_) => CommandKind::Watch,
            Self::Ignore(_) => CommandKind::Ignore,
            Self::ListTubes => CommandKind::ListTubes,
            Self::ListTubeUsed => CommandKind::ListTubeUsed,
            Self::ListTubesWatched => CommandKind::ListTubesWatched,
            Self::PauseTube { .. } => CommandKind::PauseTube,
            Self::Undrain => CommandKind::Undrain,
            Self::Quit => CommandKind::Quit,
        }
    }
}
