//! `beanring schedule` and its commands.

use std::ffi::OsString;
use std::path::PathBuf;

use beanring::time::Seconds;
use beanring::values::limits::{PRIORITY_DEFAULT, TTR_SECONDS_DEFAULT};
use beanring::values::schedules::Missed;
use beanring::values::when::When;
use clap::{ArgAction, Args, Subcommand};

use super::Common;
use super::values::{missed_policy, priority, time, tube_name, when};

/// `beanring schedule`
#[derive(Subcommand, Clone, Debug)]
pub enum Schedule {
    /// Add a schedule, or replace the one with its name
    Add(Box<ScheduleAdd>),
    /// List the schedules
    List(Common),
    /// Show when a schedule runs, and what its runs have done
    Show(OneSchedule),
    /// Delete a schedule; the jobs that it has put stay
    Rm(OneSchedule),
    /// Put a job of a schedule now, and print its id
    Run(OneSchedule),
}

/// `beanring schedule add`
#[derive(Args, Clone, Debug)]
pub struct ScheduleAdd {
    /// Name of the schedule; a schedule that has it is replaced
    #[arg(value_name = "NAME", value_parser = tube_name)]
    pub name: String,
    /// Body of the jobs; without one, standard input is the body
    #[arg(value_name = "BODY", conflicts_with = "file")]
    pub body: Option<OsString>,
    /// Read the body from a file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Put jobs with an empty body if standard input is empty
    #[arg(long)]
    pub allow_empty: bool,
    /// When to put a job: a cron line in quotes, or an interval such as every:15m
    #[arg(short, long, value_name = "WHEN", value_parser = when)]
    pub when: When,
    /// Tube to put into [default: default]
    #[arg(short, long, value_name = "TUBE", action = ArgAction::Append, value_parser = tube_name)]
    pub tube: Option<String>,
    /// Priority of the jobs: 0 is the most urgent
    #[arg(short, long, value_name = "PRI", default_value_t = PRIORITY_DEFAULT, allow_negative_numbers = true)]
    #[arg(value_parser = priority)]
    pub pri: u32,
    /// Time from a run until its job is ready, such as 30, 10m or 1d; decimals such as 0.25 need --sub-second on the
    /// server
    #[arg(short, long, value_name = "TIME", default_value = "0", allow_negative_numbers = true)]
    #[arg(value_parser = time)]
    pub delay: Seconds,
    /// Time to run: how long a worker may keep a job reserved
    #[arg(short = 'r', long, value_name = "TIME", allow_negative_numbers = true, value_parser = time)]
    #[arg(default_value_t = Seconds::whole(TTR_SECONDS_DEFAULT))]
    pub ttr: Seconds,
    /// What to do about missed times: once, skip or all
    #[arg(long, value_name = "POLICY", default_value = "once", hide_possible_values = true)]
    #[arg(value_parser = missed_policy())]
    pub missed: Missed,
    /// Leave out a run while the job of the last run exists
    #[arg(long)]
    pub no_overlap: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring schedule show`, `rm` and `run`
#[derive(Args, Clone, Debug)]
pub struct OneSchedule {
    /// Schedule, by its name
    #[arg(value_name = "NAME", value_parser = tube_name)]
    pub name: String,
    #[command(flatten)]
    pub common: Common,
}

impl ScheduleAdd {
    /// The name of the tube.
    pub fn tube(&self) -> &str {
        self.tube.as_deref().unwrap_or("default")
    }
}
