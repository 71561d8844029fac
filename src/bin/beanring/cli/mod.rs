//! The command line: which words are flags of the server, which name a tool. Values are not checked here;
//! [`ServerConfig`](beanring::config::ServerConfig) does that.

pub mod help;
mod usage_error;
#[cfg(feature = "client")]
pub(crate) mod verbs;

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;

use beanring::config::settings::{Setting, Settings};
use beanring::flags::{self, FLAGS, Flag, Kind};
#[cfg(feature = "completions")]
use clap::ValueEnum;
use clap::builder::{OsStringValueParser, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand};

pub use self::usage_error::UsageError;
#[cfg(feature = "client")]
use self::verbs::{Common, Verb};

/// Flags of old versions of beanstalkd. They have no effect.
const OBSOLETE: [(&str, &str); 2] = [("c", "-c"), ("n", "-n")];

/// The longest time for `beanring healthcheck --timeout`.
const TIMEOUT_SECONDS_MAX: u32 = 3600;

/// The command that runs the server.
const SERVE: &str = "serve";

const HELP_TEMPLATE: &str =
    "{name} {version}: {about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}\n";

const USAGE: &str = "\
beanring [serve] [FLAGS]
       beanring [FLAGS] healthcheck
       beanring [FLAGS] config show
       beanring wal check|dump DIR
       beanring wal backup|export|salvage DIR NEWDIR
       beanring help [COMMAND]";

const WAL_AFTER_HELP: &str = "\
beanring wal COMMAND --help prints the help of a command.

Exit code: 0 success, 1 the job log is damaged, or cannot be read or copied,
2 wrong usage, 3 salvage has lost something.";

#[cfg(feature = "replicate")]
const REPLICATE_AFTER_HELP: &str = "\
The password may be in the URL, in PGPASSWORD or in the file ~/.pgpass.

Exit code: 0 success, 1 the database cannot be reached now, 2 wrong usage, or
the database cannot be used as it is.";

const AFTER_HELP: &str = "\
Examples:
  beanring                              port 11300, jobs in memory only
  beanring -b /var/lib/beanring -f 0    keep a job log, fsync before reply
  beanring --max-memory 2g --http 9100  limit the memory, serve metrics

SIZE is a number of bytes, or a number with k, m or g (powers of 1024): 64k,
512MiB, 2g.

Most flags are also variables and keys of the --config file: --wal-dir is
BEANRING_WAL_DIR and wal-dir. The command line overrides variables, and both
override the file.

Signals: SIGTERM, SIGINT and SIGHUP stop the server, SIGUSR1 drains it (put is
refused), SIGUSR2 restarts it in place, SIGWINCH reads users and TLS files.

Exit code: 0 success, 1 cannot start or continue (another attempt may succeed),
2 wrong configuration. More: man beanring.";

/// A parsed command line.
#[derive(Default, Debug)]
pub struct CommandLine {
    /// The flags of the server.
    pub settings: Settings,
    /// `--check-config` was given.
    pub checks_config: bool,
    /// The tool to run instead of the server.
    pub tool: Option<Tool>,
}

/// The definition of the command line, for help, manual pages and shell completions.
pub fn command() -> Command {
    let command = Command::new("beanring")
        .version(env!("CARGO_PKG_VERSION"))
        .override_usage(USAGE)
        .help_template(HELP_TEMPLATE)
        .after_help(AFTER_HELP)
        .disable_version_flag(true)
        .args_override_self(true)
        .subcommand_required(false)
        .args(FLAGS.iter().map(argument))
        .arg(
            Arg::new("version")
                .short('v')
                .long("version")
                .action(ArgAction::Version)
                .help_heading(flags::PROCESS)
                .help("Print name and version"),
        );
    let command = Tool::augment_subcommands(command.subcommand(serve()));
    #[cfg(feature = "client")]
    let command = command.mut_subcommands(|tool| {
        let name = tool.get_name().to_owned();
        if !Verb::has_subcommand(&name) {
            return tool;
        }
        let tool = tool.mut_subcommands(|inner| {
            let help = Verb::after_help(&format!("{name} {}", inner.get_name()));
            inner.after_help(help)
        });
        tool.after_help(Verb::after_help(&name))
    });
    command.about("a work-queue server that speaks the beanstalk protocol")
}

/// The argument of a flag.
fn argument(flag: &'static Flag) -> Arg {
    let argument = Arg::new(flag.name).long(flag.name).help(flag.help).help_heading(flag.heading);
    let argument = match flag.kind {
        Kind::Value(value) => argument.value_name(value).action(ArgAction::Set),
        Kind::Choice(value, words) => {
            argument.value_name(value).value_parser(PossibleValuesParser::new(words)).action(ArgAction::Set)
        }
        Kind::List(value) => argument.value_name(value).action(ArgAction::Append),
        Kind::Switch => argument.action(ArgAction::SetTrue),
        Kind::Count => argument.action(ArgAction::Count),
    };
    let takes_value = argument.get_action().takes_values();
    let argument = argument.allow_negative_numbers(takes_value).hide_possible_values(takes_value);
    argument.short(flag.short)
}

/// What the server accepts and no help mentions: obsolete flags of beanstalkd.
fn hidden() -> impl Iterator<Item = Arg> {
    let obsolete = |(name, _): (&'static str, _)| {
        Arg::new(name).short(name.chars().next()).action(ArgAction::SetTrue).hide(true)
    };
    OBSOLETE.into_iter().map(obsolete)
}

/// The server as a command, which has the same flags.
fn serve() -> Command {
    Command::new(SERVE)
        .about("Run the server, as without a command")
        .override_usage("beanring serve [FLAGS]")
        .args_override_self(true)
        .args(FLAGS.iter().map(argument))
}

/// Parses a command line, with the name of the program first. Breaks with a text that was asked for: the help or the version.
///
/// # Errors
/// If the command line is not valid.
pub fn parse<I>(words: I) -> Result<ControlFlow<String, CommandLine>, UsageError>
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    // Values are checked later, wherever they come from.
    let as_given = |argument: Arg| {
        let takes_value = argument.get_action().takes_values();
        if takes_value { argument.value_parser(OsStringValueParser::new()) } else { argument }
    };
    let accepting = |command: Command| command.args(hidden()).mut_args(as_given);
    let command = accepting(command()).mut_subcommand(SERVE, accepting);
    #[cfg(feature = "client")]
    let command = command.arg(Common::addr_before_verb());
    let command = help::complete(command);
    let words = help::asked(words.into_iter().map(Into::into).collect());
    usage_error::refuse_clusters_with_version(&command, &words)?;
    let matches = match command.try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(ControlFlow::Break(help::without_dots(&error.render().to_string())));
        }
        Err(error) => return Err(UsageError::syntax(error, &words)),
    };
    let mut settings = settings(&matches);
    let tool = match matches.subcommand() {
        None => None,
        Some((SERVE, matches)) => {
            settings = self::settings(matches).over(settings);
            None
        }
        Some(_) => Some(Tool::from_arg_matches(&matches).map_err(|error| UsageError::syntax(error, &words))?),
    };
    if let Some(Tool::Healthcheck(tool)) = &tool {
        for (name, given) in [("listen", &tool.listen), ("port", &tool.port)] {
            if let (Some(flag), Some(given)) = (Flag::find(name), given) {
                settings.set(flag, Setting::on_command_line(flag.spelled(), given));
            }
        }
    }
    #[cfg(feature = "client")]
    check_verb(&matches, &settings, tool.as_ref())?;
    let checks_config = settings.take("check-config").is_some();
    Ok(ControlFlow::Continue(CommandLine { settings, checks_config, tool }))
}

/// Refuses flags that are valid in themselves, and wrong with or without a verb.
#[cfg(feature = "client")]
fn check_verb(matches: &ArgMatches, settings: &Settings, tool: Option<&Tool>) -> Result<(), UsageError> {
    let Some(Tool::Client(_)) = tool else {
        return if matches.contains_id("addr") { Err(UsageError::AddrWithoutVerb) } else { Ok(()) };
    };
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    if let Some(flag) = settings.rest() {
        let flag = Flag::find(flag).map_or_else(|| format!("--{flag}"), Flag::spelled);
        return Err(UsageError::ServerFlag { flag, verb: name.to_owned() });
    }
    let (verb, matches) = match matches.subcommand() {
        Some((inner, matches)) => (format!("{name} {inner}"), matches),
        None => (name.to_owned(), matches),
    };
    if Verb::has_one_tube(&verb) && matches.get_many::<String>("tube").is_some_and(|tubes| tubes.len() > 1) {
        return Err(UsageError::TwoTubes { verb });
    }
    Ok(())
}

fn settings(matches: &ArgMatches) -> Settings {
    let mut settings = Settings::default();
    let is_typed = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    for flag in FLAGS {
        let name = flag.name;
        if !is_typed(name) {
            continue;
        }
        let given = |value| Setting::on_command_line(flag.spelled(), value);
        settings.set_list(
            flag,
            match flag.kind {
                Kind::Switch => vec![given(OsString::from("yes"))],
                Kind::Count => vec![given(matches.get_count(name).to_string().into())],
                Kind::Value(_) | Kind::Choice(..) | Kind::List(_) => {
                    matches.get_many::<OsString>(name).into_iter().flatten().cloned().map(given).collect()
                }
            },
        );
    }
    let last = |name: &str| matches.indices_of(name).and_then(Iterator::last);
    settings.keep_later_alternatives(|one, other| last(one) > last(other));
    settings.obsolete =
        OBSOLETE.into_iter().filter(|(name, _)| matches.get_flag(name)).map(|(_, flag)| flag).collect();
    settings
}

/// A tool that runs instead of the server.
#[derive(Subcommand, Clone, Debug)]
pub enum Tool {
    /// Back up, check, dump, export or salvage a job log
    #[command(subcommand, disable_help_subcommand = true, arg_required_else_help = false)]
    #[command(after_help = WAL_AFTER_HELP)]
    Wal(WalTool),
    /// Make and show a job log in PostgreSQL
    #[cfg(feature = "replicate")]
    #[command(subcommand, disable_help_subcommand = true, arg_required_else_help = false)]
    #[command(after_help = REPLICATE_AFTER_HELP)]
    Replicate(ReplicateTool),
    /// Check that a server with the same flags and variables replies
    #[command(override_usage = "beanring [FLAGS] healthcheck [FLAGS]")]
    Healthcheck(Healthcheck),
    /// Show the settings, and where each comes from
    #[command(subcommand, disable_help_subcommand = true, arg_required_else_help = false)]
    #[command(override_usage = "beanring [FLAGS] config show [--json]")]
    Config(ConfigTool),
    /// Print the completions of a shell
    #[cfg(feature = "completions")]
    Completions {
        /// The shell: bash, zsh or fish
        #[arg(value_name = "SHELL", hide_possible_values = true)]
        shell: Shell,
    },
    /// Write the manual pages and the shell completions into a directory, for packages
    #[cfg(feature = "completions")]
    #[command(hide = true)]
    Manual {
        /// The directory
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Print name and version
    Version,
    /// What the client does.
    #[cfg(feature = "client")]
    #[command(flatten)]
    Client(verbs::Verb),
}

/// The flags of `beanring healthcheck`. They have no variables, since those of the server apply.
#[derive(Args, Clone, Debug)]
pub struct Healthcheck {
    /// Address of the server, as in its -l, or beanstalks://HOST for TLS; 0.0.0.0 and :: mean this machine
    #[arg(short, long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Accept only a certificate of this CA (PEM) [default: any certificate]
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// TCP port of the server, as in its -p
    #[arg(short, long, value_name = "PORT", allow_negative_numbers = true)]
    pub port: Option<String>,
    /// Maximum time for the reply, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, allow_negative_numbers = true)]
    #[arg(value_parser = timeout)]
    pub timeout: u32,
}

fn timeout(text: &str) -> Result<u32, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=TIMEOUT_SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("must be a number from 1 to {TIMEOUT_SECONDS_MAX}"))
}

/// A shell that has completions.
#[cfg(feature = "completions")]
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// What to do with the configuration.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigTool {
    /// Print each setting with its value and source
    #[command(override_usage = "beanring [FLAGS] config show [--json]")]
    Show {
        /// Print an object for each setting
        #[arg(long)]
        json: bool,
    },
}

/// What to do with a job log in PostgreSQL.
#[cfg(feature = "replicate")]
#[derive(Subcommand, Clone, Debug)]
pub enum ReplicateTool {
    /// Create the tables, or another log in them; what exists is kept
    Init {
        /// Where the log is.
        #[command(flatten)]
        database: Database,
    },
    /// Show the leader, the standbys and the size of the log
    Status {
        /// Where the log is.
        #[command(flatten)]
        database: Database,
        /// Print JSON instead of text for people
        #[arg(long)]
        json: bool,
    },
    /// Copy a job log (-b) to a log without jobs; no server may use either
    Import {
        /// Directory of the job log; it is not changed
        dir: PathBuf,
        /// Where the log is.
        #[command(flatten)]
        database: Database,
    },
    /// Have the leader write all jobs again, if chunks are damaged
    Rewrite {
        /// Where the log is.
        #[command(flatten)]
        database: Database,
    },
    /// Copy a log to a directory, for beanring -b; a server may lead it
    Export {
        /// Directory for the job log: an empty one, or one to create
        #[arg(value_name = "NEWDIR")]
        new_dir: PathBuf,
        /// Where the log is.
        #[command(flatten)]
        database: Database,
    },
}

/// A database.
#[cfg(feature = "replicate")]
#[derive(Args, Clone, Debug)]
pub struct Database {
    /// postgres://USER@HOST/DATABASE, as for psql [default: BEANRING_REPLICATE]
    #[arg(value_name = "URL")]
    pub url: Option<String>,
}

/// What to do with a job log.
#[derive(Subcommand, Clone, Debug)]
pub enum WalTool {
    /// Check a job log for damage, and count its jobs
    Check {
        /// Directory of the job log; it is not changed
        dir: PathBuf,
    },
    /// Copy the job log of a running or stopped server, and check the copy
    Backup {
        /// Directory of the job log; it is not changed
        dir: PathBuf,
        /// Directory for the copy: an empty one, or one to create
        #[arg(value_name = "NEWDIR")]
        new_dir: PathBuf,
    },
    /// Copy the jobs of a damaged job log to a new one; list the lost ones
    Salvage {
        /// Directory of the job log; it is not changed
        dir: PathBuf,
        /// Directory for the new job log: an empty one, or one to create
        #[arg(value_name = "NEWDIR")]
        new_dir: PathBuf,
    },
    /// Print each record as a line of JSON
    Dump {
        /// Directory of the job log; it is not changed
        dir: PathBuf,
    },
    /// Write the jobs as a binlog for beanstalkd
    Export {
        /// Directory of the job log; it is not changed
        dir: PathBuf,
        /// Directory for the binlog: an empty one, or one to create
        #[arg(value_name = "NEWDIR")]
        new_dir: PathBuf,
    },
}

#[cfg(test)]
mod tests;
