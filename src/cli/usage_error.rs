//! Errors of the command line, each in one line.

use std::error::Error;
use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use crate::config::ConfigError;

/// Why a command line is not valid.
#[derive(Debug)]
pub enum UsageError {
    /// clap does not accept it.
    Syntax(clap::Error),
    /// Both names of a flag were given.
    Twice(ConfigError),
}

impl From<clap::Error> for UsageError {
    fn from(error: clap::Error) -> Self {
        Self::Syntax(error)
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => write(f, error),
            Self::Twice(error) => error.fmt(f),
        }
    }
}

impl Error for UsageError {}

fn write(f: &mut fmt::Formatter<'_>, error: &clap::Error) -> fmt::Result {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let argument = context(ContextKind::InvalidArg);
    let value = context(ContextKind::InvalidValue);
    let meant = |kind| match context(kind) {
        meant if meant.is_empty() => "see beanring --help".to_owned(),
        meant => format!("did you mean {meant}?"),
    };
    match error.kind() {
        ErrorKind::UnknownArgument if !argument.starts_with('-') => {
            write!(f, "{argument}: unexpected argument; see beanring --help")
        }
        ErrorKind::UnknownArgument => {
            write!(f, "{argument}: no such flag; {}", meant(ContextKind::SuggestedArg))
        }
        ErrorKind::InvalidSubcommand => {
            let command = context(ContextKind::InvalidSubcommand);
            write!(f, "{command}: no such command; {}", meant(ContextKind::SuggestedSubcommand))
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            write!(f, "{}: the value is missing", spelled(&argument))
        }
        ErrorKind::TooManyValues => {
            let value = value.escape_debug();
            write!(f, "{} \"{value}\": this flag takes no value; remove it", spelled(&argument))
        }
        ErrorKind::InvalidUtf8 => write!(f, "an argument is not UTF-8 text; see beanring --help"),
        ErrorKind::ValueValidation => {
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            write!(f, "{} \"{}\": {reason}", spelled(&argument), value.escape_debug())
        }
        ErrorKind::MissingRequiredArgument => {
            let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
            let usage = usage.trim().replacen("Usage", "usage", 1);
            write!(f, "{} is missing; {}", plain(&argument), plain(&usage))
        }
        ErrorKind::MissingSubcommand => {
            let command = context(ContextKind::InvalidSubcommand);
            let mut names = match error.get(ContextKind::ValidSubcommand) {
                Some(ContextValue::Strings(names)) => names.clone(),
                _ => Vec::new(),
            };
            names.sort_unstable();
            let last = names.pop().unwrap_or_default();
            write!(f, "{command}: name a command: {} or {last}", names.join(", "))
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            write!(f, "{}; see beanring --help", line.strip_prefix("error: ").unwrap_or(line))
        }
    }
}

/// Returns a flag of the server or of a tool as other errors name it: `-p/--port` for `--port <PORT>`.
fn spelled(argument: &str) -> String {
    let given = argument.split(' ').next().unwrap_or_default();
    let name = given.trim_start_matches('-');
    let command = super::command();
    let arguments = command.get_arguments().chain(command.get_subcommands().flat_map(Command::get_arguments));
    let short = arguments.filter(|known| known.get_long() == Some(name)).find_map(Arg::get_short);
    short.map_or_else(|| given.to_owned(), |short| format!("-{short}/--{name}"))
}

/// Returns a usage line without the brackets of its values.
fn plain(usage: &str) -> String {
    usage.replace(['<', '>'], "")
}
