//! The command line of the client: one struct per verb. The doc comments are the help.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, ArgGroup, Args, Subcommand, ValueEnum};

use crate::client::top::Column;
use crate::config::settings::{Origin, Setting};
use crate::config::{ConfigError, address};
use crate::ids::JobId;
use crate::io::socket::Address;
use crate::limits::{PAGE_JOBS_DEFAULT, PRIORITY_DEFAULT, TTR_SECONDS_DEFAULT};
use crate::tags::Tags;
use crate::tube_name::TubeName;

/// The variable with the address of the server.
pub const ADDRESS_VARIABLE: &str = "BEANRING_ADDR";

/// The address without a flag and a variable: the port of beanstalkd on this machine.
const ADDRESS_DEFAULT: (&str, u16) = ("127.0.0.1", 11300);

/// The most commands that `beanring work` runs at the same time. Each takes two threads, a connection and a process.
const COMMANDS_MAX: u32 = 1000;

/// What the help of every verb ends with.
const EXIT_CODES: &str = "\
Exit code: 0 done, 1 the server said no, 2 wrong usage, 3 no connection.
BEANRING_ADDR is the server without --addr.";

const PUT_HELP: &str = "\
Examples:
  beanring put -t mail hello world    two jobs
  seq 1000 | beanring put --lines     1000 jobs
  beanring put -d 10m -f photo.jpg    a file, ready in ten minutes

The first SIGTERM, SIGINT or SIGHUP ends it after the jobs in progress, with
exit code 128 + the number of the signal.
";

const MOVE_HELP: &str = "\
Jobs keep state, priority, remaining delay and time to run, and with beanring
their ids. With beanstalkd each job is put before it is deleted: if this command
is killed, the last job may be in both tubes, and none is lost. The first
SIGTERM, SIGINT or SIGHUP ends it after the jobs in progress, with exit code
128 + the number of the signal.
";

/// What the help of verbs says for which beanstalkd has no command.
const EXTENSION_HELP: &str = "\
This verb needs a beanring server; beanstalkd lacks the command.
";

const WAIT_HELP: &str = "\
This verb needs a beanring server; beanstalkd lacks the command.

Exit code 0 if the job is deleted. Exit code 1 if it is buried or does not
exist, or at the timeout.
";

const WORK_HELP: &str = "\
Exit code 0 of the command deletes the job. In its environment are:
  BEANRING_JOB_ID, BEANRING_TUBE, BEANRING_JOB_PRI, BEANRING_JOB_TTR,
  BEANRING_JOB_AGE, BEANRING_JOB_RELEASES, BEANRING_JOB_TIMEOUTS, BEANRING_ADDR
SIGTERM or SIGINT: no further job is reserved, running commands end. A second
signal kills them and releases their jobs.

Example:
  beanring work -t mail -j 8 --on-failure release --tries 5 -- ./send-mail
";

/// What the client does.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Show the statistics of the server
    Stats(Stats),
    /// List the tubes with their numbers of jobs
    Tubes(Tubes),
    /// Show the statistics of a tube
    Tube(Tube),
    /// Show the state of a job
    Job(Job),
    /// List the jobs of a tube that are in one state
    Jobs(Jobs),
    /// Put jobs into a tube
    Put(Put),
    /// Take the next job of some tubes, and print it
    Reserve(Reserve),
    /// Show the next job of a tube, or a job by its id, without reserving it
    Peek(Peek),
    /// Make buried or delayed jobs ready
    Kick(Kick),
    /// Bury jobs, so that no worker gets them until they are kicked
    Bury(Bury),
    /// Delete jobs
    Delete(Delete),
    /// Make jobs ready again, with another priority or delay
    Release(Release),
    /// Keep jobs reserved while this command runs
    Touch(Touch),
    /// Wait until a job is deleted or buried
    Wait(Wait),
    /// Give no jobs of a tube to workers for a time
    Pause(Pause),
    /// Delete the jobs of a tube that no worker has reserved
    Flush(Flush),
    /// Have the server refuse new jobs
    Drain(ServerVerb),
    /// Have the server accept new jobs again
    Undrain(ServerVerb),
    /// Print job counts and rates at every interval
    Watch(Watch),
    /// Move jobs to another tube
    Move(Move),
    /// Run a command for each job
    Work(Work),
    /// Watch the server and its tubes in a live view, and steer them by keys
    Top(Top),
}

impl Verb {
    /// Whether the verb with this name acts on the tube of its `--tube`, and not on several.
    pub fn has_one_tube(name: &str) -> bool {
        matches!(name, "put" | "peek" | "kick")
    }

    /// The end of the help of the verb with this name.
    pub fn after_help(name: &str) -> String {
        let own = match name {
            "put" => PUT_HELP,
            "move" => MOVE_HELP,
            "work" => WORK_HELP,
            "wait" => WAIT_HELP,
            "jobs" | "flush" | "drain" | "undrain" => EXTENSION_HELP,
            _ => return EXIT_CODES.to_owned(),
        };
        format!("{own}\n{EXIT_CODES}")
    }
}

/// The flags of every verb.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Server: HOST:PORT, PORT or unix:PATH [default: 127.0.0.1:11300]
    #[arg(short, long, value_name = "ADDR", help_heading = "Server and output", value_parser = parse_address)]
    pub addr: Option<Address>,
    /// Print JSON instead of text for people
    #[arg(long, help_heading = "Server and output")]
    pub json: bool,
}

impl Common {
    /// The address of the server: that of `--addr`, else that of the variable, else the default.
    ///
    /// # Errors
    /// If the variable is not valid.
    pub fn address(&self) -> Result<Address, ConfigError> {
        if let Some(address) = &self.addr {
            return Ok(address.clone());
        }
        match env::var_os(ADDRESS_VARIABLE).filter(|value| !value.is_empty()) {
            Some(value) => {
                let origin = Origin::Variable(ADDRESS_VARIABLE.to_owned());
                address::endpoint(&Setting { origin, value })
            }
            None => {
                let (host, port) = ADDRESS_DEFAULT;
                Ok(Address::Tcp { host: host.to_owned(), port })
            }
        }
    }
}

/// `beanring stats`
#[derive(Args, Clone, Debug)]
pub struct Stats {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring tubes`
#[derive(Args, Clone, Debug)]
pub struct Tubes {
    /// Only tubes whose name contains this text in any case, or matches it if it has * or ?
    pub pattern: Option<String>,
    /// Order: name, ready, reserved, delayed, buried, waiting, total or oldest
    #[arg(short, long, value_name = "KEY", default_value = "name", hide_possible_values = true)]
    pub sort: SortKey,
    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,
    /// Only tubes with jobs
    #[arg(short, long)]
    pub busy: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// The order of tubes. Numbers begin with the largest.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SortKey {
    Name,
    Ready,
    Reserved,
    Delayed,
    Buried,
    Waiting,
    #[value(alias = "total")]
    Puts,
    Oldest,
}

/// `beanring tube`
#[derive(Args, Clone, Debug)]
pub struct Tube {
    /// The tube
    #[arg(value_name = "NAME", value_parser = tube_name)]
    pub name: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring job`
#[derive(Args, Clone, Debug)]
pub struct Job {
    /// The job
    #[arg(value_name = "ID", value_parser = job_id)]
    pub id: JobId,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring jobs`
#[derive(Args, Clone, Debug)]
pub struct Jobs {
    /// The tube
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tube: String,
    /// State of the jobs: ready, reserved, delayed or buried
    #[arg(short, long, value_name = "STATE", default_value = "ready", hide_possible_values = true)]
    pub state: ListState,
    /// Only jobs with a larger id than this
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub after: Option<JobId>,
    /// Show at most this number of jobs
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = PAGE_JOBS_DEFAULT)]
    #[arg(allow_negative_numbers = true, value_parser = count)]
    pub limit: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// A state of which the jobs can be listed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ListState {
    Ready,
    Reserved,
    Delayed,
    Buried,
}

impl ListState {
    /// The state as the protocol names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Reserved => "reserved",
            Self::Delayed => "delayed",
            Self::Buried => "buried",
        }
    }
}

/// `beanring put`
#[derive(Args, Clone, Debug)]
pub struct Put {
    /// Bodies of jobs, one job each; without any, standard input is the body
    #[arg(value_name = "BODY", conflicts_with = "file")]
    pub bodies: Vec<OsString>,
    /// Read bodies from files, one job each; - is standard input
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    pub file: Vec<PathBuf>,
    /// Make a job of each line instead of the whole input
    #[arg(long, conflicts_with = "bodies")]
    pub lines: bool,
    /// Tube to put into
    #[arg(short, long, value_name = "TUBE", default_value = "default", action = ArgAction::Append)]
    #[arg(value_parser = tube_name)]
    pub tube: String,
    /// Priority: 0 is the most urgent
    #[arg(short, long, value_name = "PRI", default_value_t = PRIORITY_DEFAULT, allow_negative_numbers = true)]
    #[arg(value_parser = priority)]
    pub pri: u32,
    /// Time until the job is ready, such as 30, 10m or 1d
    #[arg(short, long, value_name = "TIME", default_value = "0", allow_negative_numbers = true)]
    #[arg(value_parser = seconds)]
    pub delay: u32,
    /// Time to run: how long a worker may keep the job reserved
    #[arg(short = 'r', long, value_name = "TIME", default_value_t = TTR_SECONDS_DEFAULT, allow_negative_numbers = true)]
    #[arg(value_parser = seconds)]
    pub ttr: u32,
    /// Key that only one job of the tube has, also for TTL seconds after its deletion:
    /// a second put adds no job
    #[arg(long, value_name = "KEY[:TTL]", conflicts_with = "lines", value_parser = idempotency_tag)]
    pub idp: Option<String>,
    /// Have at most N jobs of this key reserved at a time [default: 1]
    #[arg(long, value_name = "KEY[:N]", value_parser = concurrency_tag)]
    pub con: Option<String>,
    /// Do not print the ids of the jobs
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

impl Put {
    /// The tags as they stand in the line of a `put`.
    pub fn tags(&self) -> String {
        let tags = [&self.idp, &self.con].into_iter().flatten();
        tags.map(|tag| format!(" {tag}")).collect()
    }
}

/// `beanring reserve`
#[derive(Args, Clone, Debug)]
pub struct Reserve {
    /// Tubes to reserve from: the flag is repeated, or its value has commas
    #[arg(short, long, value_name = "TUBE", default_value = "default", value_delimiter = ',')]
    #[arg(value_parser = tube_name)]
    pub tube: Vec<String>,
    /// Longest time to wait for a job, such as 0, 30 or 10m [default: forever]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = seconds)]
    pub timeout: Option<u32>,
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
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring peek`
#[derive(Args, Clone, Debug)]
pub struct Peek {
    /// The job; without an id, the next one of a tube
    #[arg(value_name = "ID", value_parser = job_id, conflicts_with_all = ["tube", "state"])]
    pub id: Option<JobId>,
    /// Tube of the next job
    #[arg(short, long, value_name = "TUBE", default_value = "default", action = ArgAction::Append)]
    #[arg(value_parser = tube_name)]
    pub tube: String,
    /// State of the next job: ready, reserved, delayed or buried
    #[arg(short, long, value_name = "STATE", default_value = "ready", hide_possible_values = true)]
    pub state: ListState,
    /// Print only the body
    #[arg(long, conflicts_with = "json")]
    pub body: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// A state of which jobs can be moved.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum MoveState {
    Ready,
    Delayed,
    Buried,
}

impl MoveState {
    /// The state as the protocol names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::Buried => "buried",
        }
    }
}

/// `beanring kick`
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["ids", "count", "all"]))]
pub struct Kick {
    /// Jobs to kick
    #[arg(value_name = "ID", value_parser = job_id, conflicts_with = "tube")]
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
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring delete`
#[derive(Args, Clone, Debug)]
pub struct Delete {
    /// Jobs to delete
    #[arg(value_name = "ID", value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring bury`
#[derive(Args, Clone, Debug)]
pub struct Bury {
    /// Jobs to bury
    #[arg(value_name = "ID", value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    /// New priority [default: that of the job]
    #[arg(short, long, value_name = "PRI", allow_negative_numbers = true, value_parser = priority)]
    pub pri: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring release`
#[derive(Args, Clone, Debug)]
pub struct Release {
    /// Jobs to release: ready, delayed or buried ones
    #[arg(value_name = "ID", value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    /// New priority [default: that of the job]
    #[arg(short, long, value_name = "PRI", allow_negative_numbers = true, value_parser = priority)]
    pub pri: Option<u32>,
    /// Time until the jobs are ready, such as 30, 10m or 1d
    #[arg(short, long, value_name = "TIME", default_value = "0", allow_negative_numbers = true)]
    #[arg(value_parser = seconds)]
    pub delay: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring touch`
#[derive(Args, Clone, Debug)]
pub struct Touch {
    /// Jobs to keep: ready, delayed or buried ones
    #[arg(value_name = "ID", value_parser = job_id, required = true)]
    pub ids: Vec<JobId>,
    /// Time to keep them, such as 30, 10m or 1d [default: until a signal]
    #[arg(long = "for", value_name = "TIME", allow_negative_numbers = true, value_parser = seconds)]
    pub for_time: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring wait`
#[derive(Args, Clone, Debug)]
pub struct Wait {
    /// The job
    #[arg(value_name = "ID", value_parser = job_id)]
    pub id: JobId,
    /// Longest time to wait, such as 0, 30 or 10m [default: forever]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = seconds)]
    pub timeout: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring pause`
#[derive(Args, Clone, Debug)]
pub struct Pause {
    /// The tube
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tube: String,
    /// How long, such as 30, 10m or 1d; 0 ends a pause
    #[arg(value_name = "TIME", allow_negative_numbers = true, value_parser = seconds)]
    pub time: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring flush`
#[derive(Args, Clone, Debug)]
pub struct Flush {
    /// The tube
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tube: String,
    /// Delete without asking; required without a terminal
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring drain` and `beanring undrain`
#[derive(Args, Clone, Debug)]
pub struct ServerVerb {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring watch`
#[derive(Args, Clone, Debug)]
pub struct Watch {
    /// Tubes, each with a line of its own; without any, all jobs of the server
    #[arg(value_name = "TUBE", value_parser = tube_name)]
    pub tubes: Vec<String>,
    /// Time between two lines
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
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring move`
#[derive(Args, Clone, Debug)]
pub struct Move {
    /// Tube with the jobs
    #[arg(value_name = "FROM", value_parser = tube_name)]
    pub from: String,
    /// Tube that gets them
    #[arg(value_name = "TO", value_parser = tube_name)]
    pub to: String,
    /// State of the jobs: ready, delayed or buried. They keep it
    #[arg(short, long, value_name = "STATE", default_value = "ready", hide_possible_values = true)]
    pub state: MoveState,
    /// Move at most this number of jobs [default: all]
    #[arg(short = 'n', long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = count)]
    pub count: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `beanring work`
#[derive(Args, Clone, Debug)]
pub struct Work {
    /// Command and its arguments; the body is on its standard input
    #[arg(value_name = "CMD", last = true, required = true)]
    pub command: Vec<OsString>,
    /// Tubes to reserve from: the flag is repeated, or its value has commas
    #[arg(short, long, value_name = "TUBE", default_value = "default", value_delimiter = ',')]
    #[arg(value_parser = tube_name)]
    pub tube: Vec<String>,
    /// Number of commands at the same time
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = commands)]
    pub jobs: u32,
    /// Time after which a command is killed: SIGTERM, and SIGKILL 5 s later [default: none]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = positive_seconds)]
    pub timeout: Option<u32>,
    /// Do not touch the job while its command runs
    #[arg(long)]
    pub no_touch: bool,
    /// What to do with the job of a command that fails: bury or release
    #[arg(long, value_name = "ACTION", default_value = "bury", hide_possible_values = true)]
    pub on_failure: OnFailure,
    /// Delay of a released job, doubled with each release
    #[arg(short, long, value_name = "TIME", default_value = "1", allow_negative_numbers = true)]
    #[arg(value_parser = seconds)]
    pub delay: u32,
    /// Longest delay of a released job
    #[arg(long, value_name = "TIME", default_value = "1h", allow_negative_numbers = true)]
    #[arg(value_parser = seconds)]
    pub max_delay: u32,
    /// With --on-failure release: bury the job after this number of failures [default: never]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = count)]
    pub tries: Option<u32>,
    /// End when no job is ready, instead of waiting for one
    #[arg(long)]
    pub until_empty: bool,
    /// Also print the jobs whose commands succeed
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// What becomes of a job whose command fails.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum OnFailure {
    Bury,
    Release,
}

/// `beanring top`
#[derive(Args, Clone, Debug)]
pub struct Top {
    /// Time between two updates, such as 1 or 10s
    #[arg(short, long, value_name = "TIME", default_value = "1", allow_negative_numbers = true)]
    #[arg(value_parser = positive_seconds)]
    pub interval: u32,
    /// Column to sort by: name, ready, reserved, delayed, buried, waiting, put, delete, oldest or paused
    #[arg(short, long, value_name = "COLUMN", default_value = "name", hide_possible_values = true)]
    pub sort: Column,
    /// Server: HOST:PORT, PORT or unix:PATH [default: 127.0.0.1:11300]
    #[arg(short, long, value_name = "ADDR", help_heading = "Server and output", value_parser = parse_address)]
    pub addr: Option<Address>,
}

fn parse_address(text: &str) -> Result<Address, String> {
    address::endpoint(&Setting::on_command_line("-a/--addr", text)).map_err(|error| match error {
        ConfigError::Value { problem, .. } => problem.to_string(),
        other => other.to_string(),
    })
}

fn tube_name(text: &str) -> Result<String, String> {
    let rule = "must be 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), and not begin with -";
    TubeName::new(text.as_bytes()).map(|name| name.as_str().to_owned()).ok_or_else(|| rule.to_owned())
}

fn idempotency_tag(text: &str) -> Result<String, String> {
    tag("idp", text).ok_or_else(|| format!("must be a key, or KEY:TTL with seconds; a key {KEY_RULE}"))
}

fn concurrency_tag(text: &str) -> Result<String, String> {
    tag("con", text).ok_or_else(|| format!("must be a key, or KEY:N with N from 1; a key {KEY_RULE}"))
}

const KEY_RULE: &str =
    "has 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), and does not begin with -";

fn tag(kind: &str, text: &str) -> Option<String> {
    let tag = format!("{kind}:{text}");
    Tags::new(tag.as_bytes()).is_some().then_some(tag)
}

fn job_id(text: &str) -> Result<JobId, String> {
    let id = digits(text).and_then(|digits| digits.parse().ok()).filter(|id| *id > 0);
    id.map(JobId).ok_or_else(|| "must be the id of a job: a number from 1".to_owned())
}

fn priority(text: &str) -> Result<u32, String> {
    let pri = digits(text).and_then(|digits| digits.parse().ok());
    pri.ok_or_else(|| format!("must be a number from 0 to {}", u32::MAX))
}

fn count(text: &str) -> Result<u32, String> {
    let count = digits(text).and_then(|digits| digits.parse().ok()).filter(|count| *count > 0);
    count.ok_or_else(|| format!("must be a number from 1 to {}", u32::MAX))
}

/// A number of threads with a connection each.
fn commands(text: &str) -> Result<u32, String> {
    let count = count(text).ok().filter(|count| *count <= COMMANDS_MAX);
    count.ok_or_else(|| format!("must be a number from 1 to {COMMANDS_MAX}"))
}

/// A number of seconds, or of other units: `90`, `90s`, `10m`, `2h`, `1d`.
fn seconds(text: &str) -> Result<u32, String> {
    let unit = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let (number, factor) = unit
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    let Some(number) = digits(number).filter(|digits| !digits.is_empty()) else {
        return Err("must be a number of seconds, or a time such as 90s, 10m, 2h or 1d".to_owned());
    };
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor));
    seconds.ok_or_else(|| format!("must be at most {} s, {} days", u32::MAX, u32::MAX / 86_400))
}

/// A time above 0.
fn positive_seconds(text: &str) -> Result<u32, String> {
    match seconds(text)? {
        0 => Err("must be 1 s or more".to_owned()),
        seconds => Ok(seconds),
    }
}

/// `parse` accepts a sign, which numbers of the protocol do not have.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("0", Some(0)),
            ("90", Some(90)),
            ("90s", Some(90)),
            ("10m", Some(600)),
            ("2h", Some(7200)),
            ("1d", Some(86_400)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("49711d", None),
            ("", None),
            ("s", None),
            ("-1", None),
            ("+1", None),
            ("1.5h", None),
            ("1 m", None),
        ] {
            assert_eq!(seconds(text).ok(), expected, "{text}");
        }
    }
}
