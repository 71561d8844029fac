//! Verbs that show something: statistics, lists and jobs.

use beanring::values::ids::JobId;
use beanring::values::job_state::JobState;
use beanring::values::limits::PAGE_JOBS_DEFAULT;
use clap::{ArgAction, Args, ValueEnum};

use super::values::{count, group_name, job_id, positive_seconds, state_among, tube_name};
use super::{Common, ServerFlags};

/// `beanring tubes`
#[derive(Args, Clone, Debug)]
pub struct Tubes {
    /// Show only tubes whose names contain this text, or match it if it has * or ?; upper and lower
    /// case are the same
    pub pattern: Option<String>,
    /// Sort by name, ready, reserved, delayed, buried, held, waiting, puts, deletes, oldest or paused
    #[arg(short, long, value_name = "COLUMN", default_value = "name", hide_possible_values = true)]
    pub sort: Column,
    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,
    /// Show only tubes with jobs
    #[arg(short, long)]
    pub busy: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring tube`
#[derive(Args, Clone, Debug)]
pub struct Tube {
    /// Tube to show
    #[arg(value_name = "NAME", value_parser = tube_name)]
    pub name: String,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring group`
#[derive(Args, Clone, Debug)]
pub struct Group {
    /// Group to show
    #[arg(value_name = "NAME", value_parser = group_name)]
    pub name: String,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring job`
#[derive(Args, Clone, Debug)]
pub struct Job {
    /// Job to show
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id)]
    pub id: JobId,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring jobs`
#[derive(Args, Clone, Debug)]
pub struct Jobs {
    /// Tube whose jobs are listed
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tube: String,
    /// Show the jobs in this state: ready, reserved, delayed, buried or held
    #[arg(short, long, value_name = "STATE", default_value = "ready", hide_possible_values = true)]
    #[arg(value_parser = state_among(&JobState::ALL))]
    pub state: JobState,
    /// Show only jobs with a larger id than this
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub after: Option<JobId>,
    /// Show at most this number of jobs
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = PAGE_JOBS_DEFAULT)]
    #[arg(allow_negative_numbers = true, value_parser = count)]
    pub limit: u32,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring peek`
#[derive(Args, Clone, Debug)]
pub struct Peek {
    /// Job to show; without an id, the next one of a tube
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id, conflicts_with_all = ["tube", "state"])]
    pub id: Option<JobId>,
    /// Show the next job of this tube
    #[arg(short, long, value_name = "TUBE", default_value = "default", action = ArgAction::Append)]
    #[arg(value_parser = tube_name)]
    pub tube: String,
    /// Show the next job in this state: ready, reserved, delayed or buried
    #[arg(short, long, value_name = "STATE", default_value = "ready", hide_possible_values = true)]
    #[arg(value_parser = state_among(&[JobState::Ready, JobState::Reserved, JobState::Delayed, JobState::Buried]))]
    pub state: JobState,
    /// Print only the body
    #[arg(long, conflicts_with = "json")]
    pub body: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring watch`
#[derive(Args, Clone, Debug)]
pub struct Watch {
    /// Tubes to watch, with a line for each; without any, the whole server
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tubes: Vec<String>,
    /// Time between two lines, such as 1 or 10s
    #[arg(short, long, value_name = "TIME", default_value = "1", allow_negative_numbers = true)]
    #[arg(value_parser = positive_seconds)]
    pub interval: u32,
    /// End after this number of intervals [default: never]
    #[arg(short = 'n', long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = count)]
    pub count: Option<u32>,
    /// Print a line only if something has changed since the last one
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring top`
#[derive(Args, Clone, Debug)]
pub struct Top {
    /// Time between two updates, such as 1 or 10s
    #[arg(short, long, value_name = "TIME", default_value = "1", allow_negative_numbers = true)]
    #[arg(value_parser = positive_seconds)]
    pub interval: u32,
    /// Sort by name, ready, reserved, delayed, buried, held, waiting, puts, deletes, oldest or paused
    #[arg(short, long, value_name = "COLUMN", default_value = "name", hide_possible_values = true)]
    pub sort: Column,
    /// The server.
    #[command(flatten)]
    pub server: Box<ServerFlags>,
}

/// A column by which tubes are sorted. Numbers begin with the largest. Puts and deletes are rates in `top`, and totals elsewhere.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Column {
    #[default]
    Name,
    Ready,
    Reserved,
    Delayed,
    Buried,
    Held,
    Waiting,
    #[value(aliases = ["put", "total"])]
    Puts,
    #[value(alias = "delete")]
    Deletes,
    Oldest,
    Paused,
}
