//! The options of the server, as the command line, the environment and the file of `--config` set them. Nothing is checked
//! here; [`ServerConfig`](crate::config::ServerConfig) does that.
//!
//! A new option is one field of [`Arguments`]: clap reads it from the command line and the environment, serde from the file
//! under the same name.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, Resettable};
use clap::parser::ValueSource;
use clap::{
    ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use serde::{Deserialize, Deserializer};
use tracing::level_filters::LevelFilter;

use crate::io::driver::Choice;

/// Options with a value, and the flags that set the same. The later one on the command line counts, or else the flag.
const SAME_SETTING: [(&str, &str); 2] = [("sync_interval", "no_sync"), ("log_level", "verbose")];

/// The command line: the options of the server, or a tool.
#[derive(Parser)]
#[command(
    name = "beanring",
    version,
    about,
    disable_version_flag = true,
    disable_help_subcommand = true,
    args_override_self = true,
    after_help = "Every option can be set by an environment variable too, or in a file (--config). The command line \
                  wins over the environment, and both over the file; a variable that is empty says nothing."
)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,

    /// What to do instead of serving.
    #[command(subcommand)]
    tool: Option<Tool>,
}

/// The options as they were given.
#[derive(Args, Deserialize, Clone, Default, Debug)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs)]
pub struct Arguments {
    /// Take from this file (TOML, keys as the long options) what neither the command line nor the environment says
    #[arg(long, value_name = "FILE", env = "BEANRING_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Say whether the configuration is good and which driver would run, and exit
    #[arg(long)]
    #[serde(skip)]
    pub check_config: bool,

    /// Listen on this address, or on a UNIX socket as unix:PATH [default: 0.0.0.0]
    #[arg(short, long, value_name = "ADDR", env = "BEANRING_LISTEN", hide_env = true)]
    pub listen: Option<String>,

    /// Listen on this TCP port [default: 11300]
    #[arg(short, long, value_name = "PORT", env = "BEANRING_PORT", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub port: Option<String>,

    /// Keep a log in this directory, so that jobs outlive the process
    #[arg(short = 'b', long, value_name = "DIR", env = "BEANRING_LOG_DIR", hide_env = true)]
    pub log_dir: Option<PathBuf>,

    /// With -b: sync the log at most this many milliseconds after a change, 0 before every answer
    /// [default: 50]
    #[arg(short = 'f', long, value_name = "MS", env = "BEANRING_SYNC_INTERVAL", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub sync_interval: Option<String>,

    /// With -b: never sync the log
    #[arg(short = 'F', long, env = "BEANRING_NO_SYNC", hide_env = true)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub no_sync: bool,

    /// With -b: size of a file of the log [default: 10485760]
    #[arg(short = 's', long, value_name = "BYTES", env = "BEANRING_LOG_FILE_SIZE", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub log_file_size: Option<String>,

    /// Become this user once the sockets are open
    #[arg(short, long, value_name = "USER", env = "BEANRING_USER", hide_env = true)]
    pub user: Option<String>,

    /// Accept jobs up to this size, at most 1073741824 [default: 65535]
    #[arg(short = 'z', long, value_name = "BYTES", env = "BEANRING_MAX_JOB_SIZE", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub max_job_size: Option<String>,

    /// Refuse new jobs (OUT_OF_MEMORY) while jobs and buffers take this much memory: a number with k, m or g for
    /// 1024, 1024^2 or 1024^3 bytes; 0 for no limit [default: 0]
    #[arg(long, value_name = "BYTES", env = "BEANRING_MAX_MEMORY", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub max_memory: Option<String>,

    /// Have further connections wait while there are this many; 0 for no limit [default: 0]
    #[arg(long, value_name = "NUMBER", env = "BEANRING_MAX_CONNECTIONS", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub max_connections: Option<String>,

    /// Refuse new tubes (OUT_OF_MEMORY) while there are this many; 0 for no limit [default: 100000]
    #[arg(long, value_name = "NUMBER", env = "BEANRING_MAX_TUBES", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub max_tubes: Option<String>,

    /// Refuse further watches (OUT_OF_MEMORY) of a connection that watches this many tubes; 0 for no limit
    /// [default: 65536]
    #[arg(long, value_name = "NUMBER", env = "BEANRING_MAX_WATCHES", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub max_watches: Option<String>,

    /// How to do I/O [default: auto]
    #[arg(long, value_enum, value_name = "DRIVER", env = "BEANRING_IO", hide_env = true)]
    pub io: Option<Choice>,

    /// With io_uring: memory of job bodies that may be registered with the kernel, for sends without a copy
    /// to other machines; 0 for none [default: 67108864]
    #[arg(long, value_name = "BYTES", env = "BEANRING_REGISTERED_MEMORY", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub registered_memory: Option<String>,

    /// Serve a connection also if it begins with an HTTP request or a TLS handshake, each line as a command; without this
    /// it is closed
    #[arg(long, env = "BEANRING_ALLOW_FOREIGN_REQUESTS", hide_env = true)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub allow_foreign_requests: bool,

    /// Tell monitors over HTTP at this address how the server is: a port of 127.0.0.1, HOST:PORT, or unix:PATH; /metrics for
    /// Prometheus, /healthz, /readyz
    #[arg(long, value_name = "ADDR", env = "BEANRING_HTTP", hide_env = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub http: Option<String>,

    /// With --http: answer requests for this name too, *.NAME for all below it, or * for any; may be repeated. Loopback,
    /// the host name and addresses always work
    #[arg(long, value_name = "NAME", env = "BEANRING_HTTP_HOST", hide_env = true, value_delimiter = ',')]
    #[serde(deserialize_with = "text_or_texts")]
    pub http_host: Vec<String>,

    /// What the names of metrics begin with [default: beanring]
    #[arg(long, value_name = "WORD", env = "BEANRING_METRICS_PREFIX", hide_env = true)]
    pub metrics_prefix: Option<String>,

    /// Maximum number of tubes that /metrics shows; 0 shows none [default: 1000]
    #[arg(long, value_name = "NUMBER", env = "BEANRING_METRICS_TUBES", hide_env = true)]
    #[serde(deserialize_with = "number_or_text")]
    pub metrics_tubes: Option<String>,

    /// Write log lines of this level and of the more severe ones [default: info]
    #[arg(long, value_enum, value_name = "LEVEL", env = "BEANRING_LOG_LEVEL", hide_env = true)]
    pub log_level: Option<LogLevel>,

    /// Same as --log-level debug; -VV: --log-level trace
    #[arg(short = 'V', long, action = ArgAction::Count, env = "BEANRING_VERBOSE", hide_env = true)]
    #[arg(value_parser = count)]
    pub verbose: u8,

    /// How to write what is logged: lines for people, or a JSON object a line [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", env = "BEANRING_LOG_FORMAT", hide_env = true)]
    pub log_format: Option<LogFormat>,

    #[arg(short = 'c', hide = true)]
    #[serde(skip)]
    pub compact: bool,

    #[arg(short = 'n', hide = true)]
    #[serde(skip)]
    pub no_compact: bool,

    /// Print the name and the version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    #[serde(skip)]
    version: Option<bool>,

    /// What to do instead of serving.
    #[arg(skip)]
    #[serde(skip)]
    pub tool: Option<Tool>,

    /// What the command line and the environment set, without defaults.
    #[arg(skip)]
    #[serde(skip)]
    set: ArgMatches,
}

impl Arguments {
    /// The definition of the command line.
    pub fn command() -> Command {
        CommandLine::command()
    }

    /// Parses a command line, with the name of the program first, and the environment. An empty variable counts as unset.
    ///
    /// # Errors
    /// If the command line is not valid, or asks for help or the version.
    pub fn from_words<I>(words: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item: Into<OsString> + Clone>,
    {
        Self::parse_with(Self::command(), words)
    }

    fn parse_with<I>(command: Command, words: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item: Into<OsString> + Clone>,
    {
        let is_empty = |name: &OsStr| env::var_os(name).is_some_and(|value| value.is_empty());
        let command = command.mut_args(|argument| match argument.get_env() {
            Some(name) if is_empty(name) => argument.env(Resettable::Reset),
            _ => argument,
        });
        let names: Vec<_> = command.get_arguments().map(|argument| argument.get_id().clone()).collect();
        let mut set = command.try_get_matches_from(words)?;
        let CommandLine { arguments: _, tool } = CommandLine::from_arg_matches(&set)?;
        for name in names {
            if set.value_source(name.as_str()) == Some(ValueSource::DefaultValue) {
                clear(&mut set, name.as_str());
            }
        }
        for (value, flag) in SAME_SETTING {
            if set.contains_id(value) && set.contains_id(flag) {
                let index = |name| {
                    let is_typed = set.value_source(name) == Some(ValueSource::CommandLine);
                    is_typed.then(|| set.indices_of(name)?.next_back())
                };
                let is_value_last = index(value) > index(flag);
                let is_flag_off = matches!(set.try_get_one(flag), Ok(Some(false)))
                    || matches!(set.try_get_one(flag), Ok(Some(0_u8)));
                clear(&mut set, if is_value_last || is_flag_off { flag } else { value });
            }
        }
        Self { set, tool, ..Self::default() }.with_set()
    }

    /// Takes the options that neither the command line nor the environment sets from those of a file.
    pub(crate) fn fill_from(&mut self, mut file: Self) {
        (file.set, file.tool) = (std::mem::take(&mut self.set), self.tool.take());
        // One that is set hides both of the file.
        if file.set.contains_id("sync_interval") || file.set.contains_id("no_sync") {
            (file.sync_interval, file.no_sync) = (None, false);
        }
        if file.set.contains_id("log_level") || file.set.contains_id("verbose") {
            (file.log_level, file.verbose) = (None, 0);
        }
        *self = file.with_set().expect("the same options were parsed before");
    }

    fn with_set(mut self) -> Result<Self, clap::Error> {
        let set = self.set.clone();
        self.update_from_arg_matches(&set)?;
        Ok(self)
    }
}

fn clear(set: &mut ArgMatches, name: &str) {
    set.try_clear_id(name).expect("the command defines the option");
}

/// Reads a value of the file that may have a unit. It is checked with what the command line gives.
fn number_or_text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number or a text")]
    enum Value {
        Number(i64),
        Text(String),
    }
    Ok(Some(match Value::deserialize(value)? {
        Value::Number(number) => number.to_string(),
        Value::Text(text) => text,
    }))
}

fn text_or_texts<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a text or a list of texts")]
    enum Value {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Value::deserialize(value)? {
        Value::One(text) => vec![text],
        Value::Several(texts) => texts,
    })
}

/// The least severe level of log lines that are written.
#[derive(ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// The server ends.
    Error,
    /// Something needs attention.
    Warn,
    /// Start, drain, restart and stop.
    #[default]
    Info,
    /// Also connections.
    Debug,
    /// Also commands.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// The format of log lines.
#[derive(ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: an object with `timestamp`, `level`, `fields`.
    Json,
}

/// A tool that runs instead of the server.
#[derive(Subcommand, Clone, Debug)]
pub enum Tool {
    /// Work on the log of a server that does not run
    #[command(subcommand, disable_help_subcommand = true)]
    Log(LogTool),
    /// Ask the server that runs with the same flags and environment whether it serves: exit code 0 if it does
    Healthcheck(Healthcheck),
}

/// How to ask. Without a variable of their own: the flags of the server have it.
#[derive(Args, Clone, Debug)]
pub struct Healthcheck {
    /// Where the server listens, as in its own -l; 0.0.0.0 and :: mean this machine
    #[arg(short, long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Its TCP port, as in its own -p
    #[arg(short, long, value_name = "PORT", allow_negative_numbers = true)]
    pub port: Option<String>,
    /// How long it may take to answer
    #[arg(short, long, value_name = "SECONDS", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
}

/// What to do with a log.
#[derive(Subcommand, Clone, Debug)]
pub enum LogTool {
    /// Say whether the log is as it was written, and count the jobs
    Check {
        /// The directory of the log, as in -b; it stays as it is
        dir: PathBuf,
    },
    /// Save what is left of a damaged log as a new one, and list the jobs that are lost
    Salvage {
        /// The directory of the log, as in -b; it stays as it is
        dir: PathBuf,
        /// Where the new log goes: a directory that is empty or to be made
        #[arg(value_name = "NEWDIR")]
        new_dir: PathBuf,
    },
    /// Print every record as a line of JSON
    Dump {
        /// The directory of the log, as in -b; it stays as it is
        dir: PathBuf,
    },
    /// Write the jobs as a binlog that beanstalkd starts from
    Export {
        /// The directory of the log, as in -b; it stays as it is
        dir: PathBuf,
        /// Where the binlog goes: a directory that is empty or to be made
        #[arg(value_name = "NEWDIR")]
        new_dir: PathBuf,
    },
}

fn count(given: &str) -> Result<u8, &'static str> {
    given.parse().map_err(|_| "must be a number from 0 to 255")
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::from_words(["beanring"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn flags_glued_or_apart() {
        for line in ["-p11301 -z9 -VV", "-p 11301 -z 9 -V -V", "--port=11301 --max-job-size 9 -VV"] {
            let arguments = parse(line).unwrap();
            assert_eq!(arguments.port.as_deref(), Some("11301"), "{line}");
            assert_eq!(arguments.max_job_size.as_deref(), Some("9"), "{line}");
            assert_eq!(arguments.verbose, 2, "{line}");
        }
    }

    #[test]
    fn the_last_of_several_counts() {
        assert_eq!(parse("-p 1 -p 2").unwrap().port.as_deref(), Some("2"));
        let arguments = parse("-f 5 -F").unwrap();
        assert!(arguments.no_sync && arguments.sync_interval.is_none());
        let arguments = parse("-F -f 5").unwrap();
        assert!(!arguments.no_sync && arguments.sync_interval.as_deref() == Some("5"));
    }

    #[test]
    fn options_that_are_set_to_no_or_zero_hide_those_of_a_file() {
        // On the command line these are flags; the environment can set them to no or zero.
        let names = ["no_sync", "allow_foreign_requests", "verbose"];
        let command = names.into_iter().fold(Arguments::command(), |command, name| {
            command.mut_arg(name, |argument| argument.action(ArgAction::Set).num_args(1))
        });
        let words = ["beanring", "--no-sync", "no", "--allow-foreign-requests", "no", "--verbose", "0"];
        let mut arguments = Arguments::parse_with(command, words).unwrap();
        let file =
            Arguments { no_sync: true, allow_foreign_requests: true, verbose: 2, ..Arguments::default() };
        arguments.fill_from(file);
        assert!(!arguments.no_sync && !arguments.allow_foreign_requests && arguments.verbose == 0);
    }

    #[test]
    fn tools() {
        assert!(parse("-p 1").unwrap().tool.is_none());
        let Some(Tool::Log(LogTool::Export { dir, new_dir })) = parse("log export a b").unwrap().tool else {
            panic!("it is a tool")
        };
        assert_eq!((dir, new_dir), ("a".into(), "b".into()));
        let parsed = |line| parse(line).unwrap().tool.expect("it is a tool");
        assert!(matches!(parsed("log check a"), Tool::Log(LogTool::Check { .. })));
        assert!(matches!(parsed("log salvage a b"), Tool::Log(LogTool::Salvage { .. })));
        let Tool::Healthcheck(tool) = parsed("healthcheck -l ::1 -p 7") else {
            panic!("it is a healthcheck")
        };
        assert_eq!((tool.listen.as_deref(), tool.port.as_deref()), (Some("::1"), Some("7")));
        assert_eq!(tool.timeout, 3);
        assert!(matches!(parsed("log dump a"), Tool::Log(LogTool::Dump { .. })));
    }

    #[test]
    fn help_version_and_nonsense() {
        let kind = |line| parse(line).unwrap_err().kind();
        assert_eq!(kind("-h"), ErrorKind::DisplayHelp);
        assert_eq!(kind("-v"), ErrorKind::DisplayVersion);
        assert_eq!(kind("-q"), ErrorKind::UnknownArgument);
        assert_eq!(kind("extra"), ErrorKind::InvalidSubcommand);
        assert_eq!(kind("log"), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
        assert_eq!(kind("log export a"), ErrorKind::MissingRequiredArgument);
        assert_eq!(kind("-p"), ErrorKind::InvalidValue);
    }
}
