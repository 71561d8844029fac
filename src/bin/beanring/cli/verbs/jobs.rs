//! Verbs that put jobs, take them, and act on them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use beanring::time::Seconds;
use beanring::values::ids::JobId;
use beanring::values::limits::{PRIORITY_DEFAULT, TTR_SECONDS_DEFAULT};
use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, ValueEnum, value_parser,
};

use super::Common;
use super::values::{
    after_tag, commands, concurrency_tag, count, idempotency_tag, job_id, member_tag, positive_seconds,
    priority, time, tube_name,
};

/// `beanring put`
#[derive(Args, Clone, Debug)]
pub struct Put {
    /// Bodies, one job each; without any, standard input is the body
    #[arg(value_name = "BODY", conflicts_with = "file")]
    pub bodies: Vec<OsString>,
    #[command(flatten)]
    pub files: Files,
    /// Make a job of each line instead of the whole input
    #[arg(long, conflicts_with = "bodies")]
    pub lines: bool,
    /// Put a job with an empty body if standard input is empty
    #[arg(long)]
    pub allow_empty: bool,
    /// Tube to put into; several bodies need it [default: default]
    #[arg(short, long, value_name = "TUBE", action = ArgAction::Append, value_parser = tube_name)]
    pub tube: Option<String>,
    /// Priority: 0 is the most urgent
    #[arg(short, long, value_name = "PRI", default_value_t = PRIORITY_DEFAULT, allow_negative_numbers = true)]
    #[arg(value_parser = priority)]
    pub pri: u32,
    /// Time until the job is ready, such as 30, 10m or 1d; decimals such as 0.25 need --sub-second on the server
    #[arg(short, long, value_name = "TIME", default_value = "0", allow_negative_numbers = true)]
    #[arg(value_parser = time)]
    pub delay: Seconds,
    /// Time to run: how long a worker may keep the job reserved
    #[arg(short = 'r', long, value_name = "TIME", allow_negative_numbers = true, value_parser = time)]
    #[arg(default_value_t = Seconds::whole(TTR_SECONDS_DEFAULT))]
    pub ttr: Seconds,
    /// Idempotency key: a put that repeats it in the tube adds no job, also for TTL seconds
    /// after the job is deleted
    #[arg(long, value_name = "KEY[:TTL]", conflicts_with = "lines", value_parser = idempotency_tag)]
    pub idp: Option<String>,
    /// Concurrency key: workers have at most N of its jobs at a time [default: 1]
    #[arg(long, value_name = "KEY[:N]", value_parser = concurrency_tag)]
    pub con: Option<String>,
    /// Make the jobs members of this group
    #[arg(long, value_name = "NAME", value_parser = member_tag)]
    pub grp: Option<String>,
    /// Hold the jobs until all members of this group are deleted
    #[arg(long, value_name = "NAME", value_parser = after_tag)]
    pub aft: Option<String>,
    /// Do not print the ids of the jobs
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub common: Common,
}

/// The files of `beanring put`, by their flag: a word after a file is a file too, which may be meant as a body.
#[derive(Clone, Debug)]
pub struct Files(Vec<Vec<PathBuf>>);

impl Files {
    /// The paths in the order of the command line.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.0.iter().flatten()
    }

    /// Whether the path stands directly behind its flag.
    pub fn is_flagged(&self, path: &Path) -> bool {
        self.0.iter().any(|of_flag| of_flag.first().is_some_and(|first| first == path))
    }
}

impl FromArgMatches for Files {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let by_flag = matches.get_occurrences("file").into_iter().flatten();
        Ok(Self(by_flag.map(|paths| paths.cloned().collect()).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Files {
    fn augment_args(command: Command) -> Command {
        let help = "Read the bodies from files, one job each; - is standard input";
        let file = Arg::new("file").short('f').long("file").value_name("FILE").num_args(1..).help(help);
        command.arg(file.action(ArgAction::Append).value_parser(value_parser!(PathBuf)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl Put {
    /// The name of the tube.
    pub fn tube(&self) -> &str {
        self.tube.as_deref().unwrap_or("default")
    }

    /// The tags as they stand in the line of a `put`.
    pub fn tags(&self) -> String {
        let tags = [&self.idp, &self.con, &self.grp, &self.aft].into_iter().flatten();
        tags.map(|tag| format!(" {tag}")).collect()
    }
}

/// `beanring reserve`
#[derive(Args, Clone, Debug)]
pub struct Reserve {
    /// Tube to reserve from; for several, repeat the flag or use commas
    #[arg(short, long, value_name = "TUBE", default_value = "default", value_delimiter = ',')]
    #[arg(value_parser = tube_name)]
    pub tube: Vec<String>,
    /// Longest time to wait for a job, such as 0, 30 or 10m; decimals such as 0.25 need --sub-second on the server [default: forever]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = time)]
    pub timeout: Option<Seconds>,
    /// Delete the job after it is printed
    #[arg(long, conflicts_with = "hold")]
    pub delete: bool,
    /// Keep the job reserved until a signal ends this command
    #[arg(long)]
    pub hold: bool,
    /// Print only the body
    #[arg(long, conflicts_with = "json")]
    pub body: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring kick`
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["ids", "count", "all"]))]
pub struct Kick {
    /// Buried, delayed or held jobs to kick
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id, conflicts_with = "tube")]
    pub ids: Vec<JobId>,
    /// Tube to kick jobs of
    #[arg(short, long, value_name = "TUBE", default_value = "default", action = ArgAction::Append)]
    #[arg(value_parser = tube_name)]
    pub tube: String,
    /// Kick at most this number of jobs of the tube: buried ones, or delayed ones if none is buried
    #[arg(short = 'n', long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = count)]
    pub count: Option<u32>,
    /// Kick all buried jobs of the tube, and no delayed ones
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring delete`
#[derive(Args, Clone, Debug)]
pub struct Delete {
    /// Jobs to delete
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring bury`
#[derive(Args, Clone, Debug)]
pub struct Bury {
    /// Jobs to bury
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    /// New priority [default: that of the job]
    #[arg(short, long, value_name = "PRI", allow_negative_numbers = true, value_parser = priority)]
    pub pri: Option<u32>,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring release`
#[derive(Args, Clone, Debug)]
pub struct Release {
    /// Ready, delayed or buried jobs to release
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    /// New priority [default: that of the job]
    #[arg(short, long, value_name = "PRI", allow_negative_numbers = true, value_parser = priority)]
    pub pri: Option<u32>,
    /// Time until the jobs are ready, such as 30, 10m or 1d; decimals such as 0.25 need --sub-second on the server
    #[arg(short, long, value_name = "TIME", default_value = "0", allow_negative_numbers = true)]
    #[arg(value_parser = time)]
    pub delay: Seconds,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring touch`
#[derive(Args, Clone, Debug)]
pub struct Touch {
    /// Ready, delayed or buried jobs to keep reserved
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    /// Time to keep them reserved, such as 30, 10m or 1d [default: until a signal]
    #[arg(long = "for", value_name = "TIME", allow_negative_numbers = true, value_parser = time)]
    pub for_time: Option<Seconds>,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring wait`
#[derive(Args, Clone, Debug)]
pub struct Wait {
    /// Job to wait for
    #[arg(value_name = "ID", allow_negative_numbers = true, value_parser = job_id)]
    pub id: JobId,
    /// Longest time to wait, such as 0, 30 or 10m; decimals such as 0.25 need --sub-second on the server [default: forever]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = time)]
    pub timeout: Option<Seconds>,
    #[command(flatten)]
    pub common: Common,
}

/// `beanring work`
#[derive(Args, Clone, Debug)]
pub struct Work {
    /// Command with its arguments; it reads the body from its standard input
    #[arg(value_name = "CMD", last = true, required = true)]
    pub command: Vec<OsString>,
    /// Tube to reserve from; for several, repeat the flag or use commas
    #[arg(short, long, value_name = "TUBE", default_value = "default", value_delimiter = ',')]
    #[arg(value_parser = tube_name)]
    pub tube: Vec<String>,
    /// Run up to this number of commands at a time
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = commands)]
    pub jobs: u32,
    /// Kill a command that runs longer: SIGTERM, and SIGKILL 5 s later [default: never]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = positive_seconds)]
    pub timeout: Option<u32>,
    /// Do not touch the job while its command runs: it may time out
    #[arg(long)]
    pub no_touch: bool,
    /// What happens to the job of a command that fails: bury or release
    #[arg(long, value_name = "ACTION", default_value = "bury", hide_possible_values = true)]
    pub on_failure: OnFailure,
    /// Delay of a released job, such as 10; it doubles with each release; decimals such as 0.25 need
    /// --sub-second on the server [default: as the rules of the tube say, or 1]
    #[arg(short, long, value_name = "TIME", allow_negative_numbers = true)]
    #[arg(value_parser = time)]
    pub delay: Option<Seconds>,
    /// Longest delay of a released job
    #[arg(long, value_name = "TIME", default_value = "1h", allow_negative_numbers = true)]
    #[arg(value_parser = time)]
    pub max_delay: Seconds,
    /// With --on-failure release: bury the job after this number of failures [default: never]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = count)]
    pub tries: Option<u32>,
    /// End when no job is ready; do not wait for one
    #[arg(long)]
    pub until_empty: bool,
    /// Print a line also for a command that succeeds
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub common: Common,
}

/// What becomes of a job whose command fails.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFailure {
    Bury,
    Release,
}
