//! The command line of the client: one struct per verb. The doc comments are the help.

mod jobs;
mod schedules;
mod server;
mod show;
mod tubes;
mod values;

use clap::{Arg, Args, Subcommand};

pub use self::jobs::{Bury, Delete, Kick, OnFailure, Put, Release, Reserve, Touch, Wait, Work};
pub use self::schedules::{OneSchedule, Schedule, ScheduleAdd};
pub use self::server::ServerFlags;
pub use self::show::{Column, Group, Job, Jobs, Peek, Top, Tube, Tubes, Watch};
pub use self::tubes::{Flush, Move, Pause, TubeConfig};
use self::values::parse_address;
pub use self::values::{count, time};

/// What the help of every verb ends with.
const ADDRESS_HELP: &str = "\
Without --addr, the variable BEANRING_ADDR names the server. The other variables
are BEANRING_TLS_CA, BEANRING_TLS_CLIENT_CERT, BEANRING_TLS_CLIENT_KEY,
BEANRING_TLS_NAME and BEANRING_TOKEN_FILE.";

/// The exit codes of verbs that have no others.
const EXIT_CODES: &str = "\
Exit code: 0 done, 1 the server refused or the output cannot be written,
2 wrong usage, 3 no connection, 7 the server does not know the token.
";

const PUT_HELP: &str = "\
Examples:
  beanring put -t mail hello world    two jobs
  seq 1000 | beanring put --lines     1000 jobs
  beanring put -d 10m -f photo.jpg    a file, ready in ten minutes

The first SIGTERM, SIGINT or SIGHUP ends it after the jobs in progress.

Exit code: 0 done, 1 the server refused a job or the output cannot be written,
2 wrong usage or a file that cannot be read, 3 no connection, 7 the server does
not know the token, 128 + N ended by signal N.
";

const MOVE_HELP: &str = "\
Jobs keep state, priority, remaining delay and time to run, and with beanring
their ids. With beanstalkd each job is put before it is deleted: if this command
is killed, the last job may be in both tubes, and none is lost.

It stops at a job that the other tube cannot take, and says why. The first
SIGTERM, SIGINT or SIGHUP ends it after the jobs in progress.

Exit code: 0 done, 1 the server refused a job or the output cannot be written,
2 wrong usage, 3 no connection, 7 the server does not know the token, 128 + N
ended by signal N.
";

/// What the help of verbs says for which beanstalkd has no command.
const EXTENSION_HELP: &str = "\
This verb needs a beanring server; beanstalkd lacks the command.
";

const CONFIG_HELP: &str = "\
Rules:
  max-attempts N     a job is buried after N attempts; timeouts, releases and
                     lost connections count
  retry-for TIME     a failure this long after the put is the last attempt
  retry-delay TIME   a job that has failed is delayed by this time; a delay
                     that a worker gives in release wins
  retry-factor N     each further failure multiplies the delay by N, from 1 to
                     100 with one decimal; 2 if unset
  retry-max-delay TIME
                     the longest delay after a failure
  retry-jitter PART  shortens each delay by a random part, up to this one, from
                     0.01 to 1; 0.2 if unset
  lost-counts no     a lost connection is no failure of a job
  dead-letter TUBE   a job out of attempts is moved to this tube instead of
                     being buried
  max-jobs N         a put beyond N jobs is refused
  max-bytes SIZE     a put is refused if all bodies together would exceed this
                     size
  default-ttr TIME   a job that is put with a TTR of 0 has this time to run
  retention TIME     a buried job is deleted after this time
  rate N             workers get at most N jobs per second
Without a unit, sizes are in bytes and times in seconds. They may have units:
64k, 1GiB; 90s, 5m, 2h, 1d. The value 0 removes a rule.

This verb needs a beanring server; beanstalkd lacks the command.
";

const WAIT_HELP: &str = "\
This verb needs a beanring server; beanstalkd lacks the command.

Exit code: 0 the job is deleted, 1 the server refused, 2 wrong usage,
3 no connection, 4 the job is buried, 5 it is still there at the timeout,
6 there is no such job, 7 the server does not know the token.
";

const WORK_HELP: &str = "\
A command that ends with exit code 0 deletes its job. Its environment has:
  BEANRING_JOB_ID, BEANRING_TUBE, BEANRING_JOB_PRI, BEANRING_JOB_TTR,
  BEANRING_JOB_AGE, BEANRING_JOB_RELEASES, BEANRING_JOB_TIMEOUTS, BEANRING_ADDR
After the first SIGTERM, SIGINT or SIGHUP, work ends when the running commands
have ended. The second signal kills them and hands their jobs back without a
failed attempt.

Without flags, the job of a command that fails is buried at once, whatever the
rules of its tube. With --on-failure release and no --delay, the rules of the
tube decide: retry-delay, max-attempts, dead-letter (see tube-config --help).

Example:
  beanring work -t mail -j 8 --on-failure release --tries 5 -- ./send-mail

Exit code: 0 ended by a signal or by --until-empty, 1 the server refused or the
output cannot be written, 2 wrong usage or a command that cannot be started,
3 no connection, 7 the server does not know the token.
";

const SCHEDULE_ADD_HELP: &str = "\
WHEN is every:TIME, or a cron line: minute, hour, day of the month, month, day
of the week, and a time zone such as Europe/Berlin. Without a zone it is UTC.
If both the day of the month and the day of the week are set, one of them must
match; if one of them begins with *, such as */2, both must match.

Examples:
  beanring schedule add nightly -w '0 3 * * * Europe/Berlin' -t reports daily
  beanring schedule add sync -w every:15m -t sync --no-overlap -f sync.json

Missed times are those at which the server was stopped, was draining or had no
space. once runs the last one; skip runs the last one only if it is at most a
minute old; all runs each, in order, up to 99, and then the last one.

This verb needs a beanring server; beanstalkd lacks the command.
";

/// What the client does.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Show the statistics of the server
    Stats(Common),
    /// List the tubes and how many jobs they have
    Tubes(Tubes),
    /// Show the statistics of a tube
    Tube(Tube),
    /// Show the jobs of a group by state, and how many jobs wait for it
    Group(Group),
    /// Show the state of a job
    Job(Job),
    /// List the jobs of a tube that are in one state
    Jobs(Jobs),
    /// Put jobs into a tube
    Put(Put),
    /// Reserve the next job from the given tubes, and print it
    Reserve(Reserve),
    /// Show the next job of a tube, or a job by id, without reserving it
    Peek(Peek),
    /// Make buried, delayed or held jobs ready
    Kick(Kick),
    /// Bury jobs, so that no worker gets them until they are kicked
    Bury(Bury),
    /// Delete jobs
    Delete(Delete),
    /// Make jobs ready or delayed, with their priority or a new one
    Release(Release),
    /// Keep jobs reserved while this command runs
    Touch(Touch),
    /// Wait until a job is deleted or buried
    Wait(Wait),
    /// Pause a tube
    Pause(Pause),
    /// Set a rule of a tube, such as max-attempts, or show its rules
    TubeConfig(TubeConfig),
    /// Delete the jobs of a tube that no worker has reserved
    Flush(Flush),
    /// Put jobs at set times: add, list, show, delete and run schedules
    #[command(subcommand, disable_help_subcommand = true, arg_required_else_help = false)]
    Schedule(Schedule),
    /// Begin drain mode: the server refuses new jobs
    Drain(Common),
    /// End drain mode: the server accepts new jobs again
    Undrain(Common),
    /// Print numbers of jobs and rates at every interval
    Watch(Watch),
    /// Move jobs to another tube
    Move(Move),
    /// Run a command for each job
    Work(Work),
    /// Show the server and its tubes live; pause and kick tubes by key
    Top(Top),
}

impl Verb {
    /// Whether the verb with this name acts on the tube of its `--tube`, and not on several.
    pub fn has_one_tube(name: &str) -> bool {
        matches!(name, "put" | "peek" | "kick" | "schedule add")
    }

    /// The end of the help of the verb with this name, which is of two words for a command of a verb.
    pub fn after_help(name: &str) -> String {
        let own = match name {
            "put" => PUT_HELP,
            "move" => MOVE_HELP,
            "work" => WORK_HELP,
            "wait" => WAIT_HELP,
            "tube-config" => CONFIG_HELP,
            "schedule add" => SCHEDULE_ADD_HELP,
            "group" | "jobs" | "flush" | "drain" | "undrain" => EXTENSION_HELP,
            _ if name.starts_with("schedule") => EXTENSION_HELP,
            _ => "",
        };
        let (space, codes) = match own {
            "" => ("", EXIT_CODES),
            _ if own.contains("Exit code") => ("", ""),
            _ => ("\n", EXIT_CODES),
        };
        format!("{own}{space}{codes}{ADDRESS_HELP}")
    }
}

/// The flags of every verb.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The server.
    #[command(flatten)]
    pub server: Box<ServerFlags>,
    /// Print JSON instead of text for people
    #[arg(long, help_heading = "Server and output")]
    pub json: bool,
}

impl Common {
    /// The flag `--addr` where it stands before the name of the verb. clap passes its value on to the verb.
    pub(super) fn addr_before_verb() -> Arg {
        Arg::new("addr")
            .short('a')
            .long("addr")
            .value_name("ADDR")
            .value_parser(parse_address)
            .global(true)
            .hide(true)
    }
}
