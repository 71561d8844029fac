//! What can be typed: the reference's flags with long names and environment variables. Nothing is
//! checked here; [`Config`](crate::config::Config) does that.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, Resettable};
use clap::parser::ValueSource;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

use crate::io::driver::Choice;

/// The raw arguments.
#[derive(Parser, Clone, Default, Debug)]
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
#[allow(missing_docs)]
pub struct Arguments {
    /// Take from this file (TOML, keys as the long options) what neither the command line nor the environment says
    #[arg(long, value_name = "FILE", env = "BEANRING_CONFIG", hide_env = true)]
    pub config: Option<PathBuf>,

    /// Say whether the configuration is good and which driver would run, and exit
    #[arg(long)]
    pub check_config: bool,

    /// Listen on this address, or on a UNIX socket as unix:PATH [default: 0.0.0.0]
    #[arg(short, long, value_name = "ADDR", env = "BEANRING_LISTEN", hide_env = true)]
    pub listen: Option<String>,

    /// Listen on this TCP port [default: 11300]
    #[arg(short, long, value_name = "PORT", env = "BEANRING_PORT", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub port: Option<String>,

    /// Keep a log in this directory, so that jobs outlive the process
    #[arg(short = 'b', long, value_name = "DIR", env = "BEANRING_LOG_DIR", hide_env = true)]
    pub log_dir: Option<PathBuf>,

    /// With -b: sync the log at most this many milliseconds after a change, 0 before every answer
    /// [default: 50]
    #[arg(short = 'f', long, value_name = "MS", env = "BEANRING_SYNC_INTERVAL", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub sync_interval: Option<String>,

    /// With -b: never sync the log
    #[arg(short = 'F', long, env = "BEANRING_NO_SYNC", hide_env = true)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub no_sync: bool,

    /// That was said, be it that it should sync.
    #[arg(skip)]
    pub says_no_sync: bool,

    /// With -b: size of a file of the log [default: 10485760]
    #[arg(short = 's', long, value_name = "BYTES", env = "BEANRING_LOG_FILE_SIZE", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub log_file_size: Option<String>,

    /// Become this user once the sockets are open
    #[arg(short, long, value_name = "USER", env = "BEANRING_USER", hide_env = true)]
    pub user: Option<String>,

    /// Accept jobs up to this size, at most 1073741824 [default: 65535]
    #[arg(short = 'z', long, value_name = "BYTES", env = "BEANRING_MAX_JOB_SIZE", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub max_job_size: Option<String>,

    /// Refuse new jobs (OUT_OF_MEMORY) while jobs and buffers take this much memory: a number with k, m or g for
    /// 1024, 1024^2 or 1024^3 bytes; 0 for no limit [default: 0]
    #[arg(long, value_name = "BYTES", env = "BEANRING_MAX_MEMORY", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub max_memory: Option<String>,

    /// Have further connections wait while there are this many; 0 for no limit [default: 0]
    #[arg(long, value_name = "NUMBER", env = "BEANRING_MAX_CONNECTIONS", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub max_connections: Option<String>,

    /// Refuse new tubes (OUT_OF_MEMORY) while there are this many; 0 for no limit [default: 100000]
    #[arg(long, value_name = "NUMBER", env = "BEANRING_MAX_TUBES", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub max_tubes: Option<String>,

    /// Refuse further watches (OUT_OF_MEMORY) of a connection that watches this many tubes; 0 for no limit
    /// [default: 65536]
    #[arg(long, value_name = "NUMBER", env = "BEANRING_MAX_WATCHES", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub max_watches: Option<String>,

    /// How to do I/O [default: auto]
    #[arg(long, value_enum, value_name = "DRIVER", env = "BEANRING_IO", hide_env = true)]
    pub io: Option<Choice>,

    /// With io_uring: memory of job bodies that may be registered with the kernel, for sends without a copy
    /// to other machines; 0 for none [default: 67108864]
    #[arg(long, value_name = "BYTES", env = "BEANRING_REGISTERED_MEMORY", hide_env = true)]
    #[arg(allow_negative_numbers = true)]
    pub registered_memory: Option<String>,

    /// Serve a connection also if it begins with an HTTP request or a TLS handshake, each line as a command; without this
    /// it is closed
    #[arg(long, env = "BEANRING_ALLOW_FOREIGN_REQUESTS", hide_env = true)]
    #[arg(value_parser = BoolishValueParser::new())]
    pub allow_foreign_requests: bool,

    /// Whether the command line or the environment sets it.
    #[arg(skip)]
    pub says_allow_foreign_requests: bool,

    /// Tell monitors over HTTP at this address how the server is: a port of 127.0.0.1, HOST:PORT, or unix:PATH; /metrics for
    /// Prometheus, /healthz, /readyz
    #[arg(long, value_name = "ADDR", env = "BEANRING_HTTP", hide_env = true)]
    pub http: Option<String>,

    /// With --http: answer requests for this name too, *.NAME for all below it, or * for any; may be repeated. Loopback,
    /// the host name and addresses always work
    #[arg(long, value_name = "NAME", env = "BEANRING_HTTP_HOST", hide_env = true, value_delimiter = ',')]
    pub http_host: Vec<String>,

    /// What the names of metrics begin with [default: beanring]
    #[arg(long, value_name = "WORD", env = "BEANRING_METRICS_PREFIX", hide_env = true)]
    pub metrics_prefix: Option<String>,

    /// Log connections; twice: commands too
    #[arg(short = 'V', long, action = ArgAction::Count, env = "BEANRING_VERBOSE", hide_env = true)]
    #[arg(value_parser = verbosity)]
    pub verbose: u8,

    /// That was said, be it zero.
    #[arg(skip)]
    pub says_verbose: bool,

    /// How to write what is logged: lines for people, or a JSON object a line [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", env = "BEANRING_LOG_FORMAT", hide_env = true)]
    pub log_format: Option<LogFormat>,

    #[arg(short = 'c', hide = true)]
    pub compact: bool,

    #[arg(short = 'n', hide = true)]
    pub no_compact: bool,

    /// Print the name and the version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: Option<bool>,

    /// What to do instead of serving.
    #[command(subcommand)]
    pub tool: Option<Tool>,
}

impl Arguments {
    /// What was typed, with the name of the program first, and what the environment says beside it. A variable that is
    /// empty says nothing.
    pub fn from_words<I>(words: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item: Into<OsString> + Clone>,
    {
        let is_empty = |name: &OsStr| env::var_os(name).is_some_and(|value| value.is_empty());
        let command = Self::command().mut_args(|argument| match argument.get_env() {
            Some(name) if is_empty(name) => argument.env(Resettable::Reset),
            _ => argument,
        });
        let matches = command.try_get_matches_from(words)?;
        let mut arguments = Self::from_arg_matches(&matches)?;
        let is_said = |name| matches.value_source(name).is_some_and(|from| from != ValueSource::DefaultValue);
        arguments.says_no_sync = is_said("no_sync");
        arguments.says_verbose = is_said("verbose");
        arguments.says_allow_foreign_requests = is_said("allow_foreign_requests");
        // They are about the same: what was typed last counts, or else -F.
        if arguments.no_sync && arguments.sync_interval.is_some() {
            let typed = |name| {
                let is_typed = matches.value_source(name) == Some(ValueSource::CommandLine);
                is_typed.then(|| matches.index_of(name))
            };
            if typed("sync_interval") > typed("no_sync") {
                arguments.no_sync = false;
            } else {
                arguments.sync_interval = None;
            }
        }
        Ok(arguments)
    }
}

/// How lines of the log look.
#[derive(ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: an object with `timestamp`, `level`, `fields`.
    Json,
}

/// What to do instead of serving.
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

fn verbosity(given: &str) -> Result<u8, &'static str> {
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
