//! Errors of the command line, each in one line.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;

use beanring::config::settings::quoted;
use beanring::config::{passwords, suggestion};
use beanring::flags::{FLAGS, Flag};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use super::SERVE;

/// The words of the command that takes flags of the server before its name.
const HEALTHCHECK: &str = "beanring healthcheck";

/// Another one.
const CONFIG_SHOW: &str = "beanring config show";

const KICK: &str = "beanring kick";
const SCHEDULE_ADD: &str = "beanring schedule add";
const PUT: &str = "beanring put";
const WORK: &str = "beanring work";

/// Why a command line is not valid.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum UsageError {
    #[error(fmt = write_syntax)]
    Syntax { error: clap::Error, command: String },
    /// A word of several short flags has the one that prints the version: a long name with one dash may be meant.
    #[error("{word}: {}", about_cluster(.meant))]
    Cluster { word: String, meant: Option<String> },
    #[cfg(feature = "client")]
    #[error("-t/--tube: given twice; beanring {verb} takes one tube")]
    TwoTubes { verb: String },
    #[cfg(feature = "client")]
    #[error(
        "-a/--addr: this is a flag of the client; name a verb, such as beanring stats --addr ADDR. A server listens on \
        the address of -l/--listen"
    )]
    AddrWithoutVerb,
    #[cfg(feature = "client")]
    #[error(
        "{flag}: this is a flag of the server; beanring {verb} takes its flags behind its name, see beanring {verb} \
        --help"
    )]
    ServerFlag { flag: String, verb: String },
}

impl UsageError {
    /// An error of clap about these words.
    pub(super) fn syntax(error: clap::Error, words: &[OsString]) -> Self {
        let mut command = &super::command().args(super::hidden());
        let mut names = vec![command.get_name()];
        let mut words = words.iter().skip(1).map(|word| word.to_str().unwrap_or_default());
        while let Some(word) = words.next().filter(|word| *word != "--") {
            if takes_next(command, word) {
                words.next();
            } else if let Some(inner) = command.find_subcommand(word) {
                command = inner;
                names.push(inner.get_name());
            }
        }
        Self::Syntax { error, command: names.join(" ") }
    }
}

/// Refuses `-verbose` and the like, of which clap would read `-v` and print the version.
///
/// # Errors
/// [`UsageError::Cluster`].
pub(super) fn refuse_clusters_with_version(command: &Command, words: &[OsString]) -> Result<(), UsageError> {
    let mut words = words.iter().skip(1).map(|word| word.to_str().unwrap_or_default());
    while let Some(word) = words.next().filter(|word| *word != "--") {
        if command.find_subcommand(word).is_some_and(|inner| inner.get_name() != SERVE) {
            break;
        }
        let flags = word.strip_prefix('-').filter(|flags| !flags.starts_with('-')).unwrap_or_default();
        let before_value = flags.split(|flag| has_value(command, flag)).next().unwrap_or_default();
        if before_value.contains('v') && flags.chars().any(|flag| flag != 'v') {
            let known = command.get_arguments().filter_map(Arg::get_long).map(str::to_owned);
            let meant = suggestion(flags, known).map(|name| format!("--{name}"));
            return Err(UsageError::Cluster { word: word.to_owned(), meant });
        }
        if takes_next(command, word) {
            words.next();
        }
    }
    Ok(())
}

fn about_cluster(meant: &Option<String>) -> String {
    match meant {
        Some(meant) => format!("a long flag begins with two dashes; did you mean {meant}?"),
        None => "-v prints the version and stands alone; see beanring --help".to_owned(),
    }
}

fn write_syntax(error: &clap::Error, command: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let context = |kind| match error.get(kind) {
        // A word may be a URL with a password.
        Some(ContextValue::String(text)) => passwords::hide(text),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let argument = context(ContextKind::InvalidArg);
    let value = context(ContextKind::InvalidValue);
    let meant = |kind| remedy(error.get(kind), command);
    match error.kind() {
        ErrorKind::UnknownArgument if command == WORK && !argument.starts_with('-') => {
            write!(f, "{argument}: write -- before the command to run: beanring work -t TUBE -- {argument}")
        }
        ErrorKind::UnknownArgument if command == SCHEDULE_ADD && !argument.starts_with('-') => {
            write!(f, "{argument}: a schedule has one body; write the body and the cron line in quotes")
        }
        ErrorKind::UnknownArgument if !argument.starts_with('-') => {
            write!(f, "{argument}: unexpected argument; see {command} --help")
        }
        ErrorKind::UnknownArgument
            if let Some(flag) =
                flag_of_server(&argument).filter(|_| command == HEALTHCHECK || command == CONFIG_SHOW) =>
        {
            let tool = command.trim_start_matches("beanring ");
            write!(
                f,
                "{}: this is a flag of the server; write it before the command: beanring {argument} ... {tool}",
                flag.spelled()
            )
        }
        // A verb knows its own flags, so this one stands before it.
        ErrorKind::UnknownArgument if has_flag(command, &argument) => {
            write!(f, "{argument}: put the flags of a verb behind its name: {command} {argument}")
        }
        ErrorKind::UnknownArgument => {
            write!(f, "{argument}: no such flag; {}", meant(ContextKind::SuggestedArg))
        }
        ErrorKind::InvalidSubcommand => {
            let given = context(ContextKind::InvalidSubcommand);
            // clap also suggests names that have little in common with the word.
            let similar = match error.get(ContextKind::SuggestedSubcommand) {
                Some(ContextValue::String(name)) => suggestion(&given, [name.clone()].into_iter()),
                Some(ContextValue::Strings(names)) => suggestion(&given, names.iter().cloned()),
                _ => None,
            };
            let serves = ["start", "run", "server", "daemon"].contains(&&*given).then(|| "serve".to_owned());
            let remedy = remedy(serves.or(similar).map(ContextValue::String).as_ref(), command);
            write!(f, "{given}: no such command; {remedy}")
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            write!(f, "{}: the value is missing", spelled(&argument, command))
        }
        ErrorKind::InvalidValue => {
            let words = one_of(&context(ContextKind::ValidValue));
            write!(f, "{} {}: must be {words}", spelled(&argument, command), quoted(value.as_ref()))
        }
        ErrorKind::ArgumentConflict => {
            let other = spelled(&context(ContextKind::PriorArg), command);
            let argument = spelled(&argument, command);
            match (command, [&*argument, &*other].iter().any(|name| name.starts_with("BODY"))) {
                (PUT, true) if !(argument.contains("--lines") || other.contains("--lines")) => {
                    f.write_str("give bodies or files, not both")
                }
                _ => write!(f, "{argument} and {other} cannot be combined; remove one of them"),
            }
        }
        ErrorKind::TooManyValues => {
            write!(
                f,
                "{} {}: this flag takes no value; remove it",
                spelled(&argument, command),
                quoted(value.as_ref())
            )
        }
        ErrorKind::InvalidUtf8 => write!(f, "an argument is not UTF-8 text; see {command} --help"),
        ErrorKind::ValueValidation => {
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            let value = quoted(value.as_ref());
            match &*spelled(&argument, command) {
                // The reason names it.
                "ID" | "ID..." => write!(f, "{value}: {reason}"),
                name => write!(f, "{name} {value}: {reason}"),
            }
        }
        ErrorKind::MissingRequiredArgument if command == KICK => {
            write!(f, "name the ids of jobs, --count or --all; see {command} --help")
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
            match &*names {
                [] => write!(f, "{command}: name a command: {last}"),
                names => write!(f, "{command}: name a command: {} or {last}", names.join(", ")),
            }
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            write!(f, "{}; see {command} --help", line.strip_prefix("error: ").unwrap_or(line))
        }
    }
}

/// What to do about a word that is not known.
fn remedy(meant: Option<&ContextValue>, command: &str) -> String {
    match meant {
        Some(ContextValue::String(meant)) => format!("did you mean {meant}?"),
        // The most similar one is the last.
        Some(ContextValue::Strings(all)) if !all.is_empty() => {
            format!("did you mean {}?", all[all.len() - 1])
        }
        _ => format!("see {command} --help"),
    }
}

/// Returns words separated by commas as a choice: `a, b or c`.
fn one_of(words: &str) -> String {
    words.rsplit_once(", ").map_or_else(|| words.to_owned(), |(some, last)| format!("{some} or {last}"))
}

/// Whether a word is a flag of which the value is the next word.
fn takes_next(command: &Command, word: &str) -> bool {
    let takes_value = |argument: &Arg| argument.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        return command.get_arguments().any(|known| known.get_long() == Some(long) && takes_value(known));
    }
    // The rest of a word is the value of its first flag that takes one.
    let Some(flags) = word.strip_prefix('-') else { return false };
    flags.find(|flag| has_value(command, flag)).is_some_and(|at| at + 1 == flags.len())
}

/// Whether a command such as `beanring put` has a flag that is written like this.
fn has_flag(command: &str, written: &str) -> bool {
    let is_it = |known: &Arg| {
        known.get_long().is_some_and(|long| written.strip_prefix("--") == Some(long))
            || known.get_short().is_some_and(|short| *written == format!("-{short}"))
    };
    let top = super::command();
    find(&top, command).is_some_and(|inner| inner.get_arguments().any(is_it))
}

/// Returns a command of several words, such as `beanring put`.
fn find<'a>(top: &'a Command, command: &str) -> Option<&'a Command> {
    command.split(' ').skip(1).try_fold(top, |command, name| command.find_subcommand(name))
}

/// Whether a short flag takes a value.
fn has_value(command: &Command, flag: char) -> bool {
    let mut known = command.get_arguments();
    known.any(|known| known.get_short() == Some(flag) && known.get_action().takes_values())
}

/// The flag of the server that is written like this.
fn flag_of_server(written: &str) -> Option<&'static Flag> {
    let name = written.split('=').next()?.trim_start_matches('-');
    let short = |flag: &&Flag| flag.short.is_some_and(|short| written == format!("-{short}"));
    Flag::find(name).filter(|_| written.starts_with("--")).or_else(|| FLAGS.iter().find(short))
}

/// Returns a flag of a command as other errors name it: `-p/--port` for `--port <PORT>`.
fn spelled(argument: &str, command: &str) -> String {
    if !argument.starts_with('-') {
        return argument.replace(['<', '>', '[', ']'], "");
    }
    let given = argument.split(' ').next().unwrap_or_default();
    let name = given.trim_start_matches('-');
    let top = super::command();
    let mut arguments =
        find(&top, command).unwrap_or(&top).get_arguments().filter(|known| known.get_long() == Some(name));
    let short = arguments.find_map(Arg::get_short);
    short.map_or_else(|| given.to_owned(), |short| format!("-{short}/--{name}"))
}

/// Returns a usage line without the brackets of its values.
fn plain(usage: &str) -> String {
    usage.replace(['<', '>'], "")
}
