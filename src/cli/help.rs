//! The help as a terminal shows it: in lines of 80 columns, with the words that the rest of the program uses.

use std::ffi::OsString;

#[cfg(feature = "client")]
use clap::Subcommand;
use clap::{Arg, ArgAction, Command};

use super::HELP_TEMPLATE;
#[cfg(feature = "client")]
use super::verbs::Verb;
use crate::flags;

/// The width of the help.
pub(super) const COLUMNS: usize = 80;

/// The heading of the flags of a tool.
const FLAGS: &str = "Flags";

const HELP: &str = "Print the help of the program or of a command";

/// Completes the definition of the server's command line, and changes texts that clap has added.
pub(super) fn complete(mut command: Command) -> Command {
    command = with_client(command);
    command.build();
    let command = fitted(command, flags::PROCESS).mut_subcommands(|tool| {
        let tool = tool.mut_subcommands(|tool| fitted(with_flags_in_usage(tool), FLAGS));
        fitted(with_flags_in_usage(tool), FLAGS)
    });
    command.mut_subcommand("help", |help| help.about(HELP).mut_subcommand("help", |help| help.about(HELP)))
}

/// Reads `help --help` as `help help`, and `help put --help` as `help put`. clap takes the flag for the name of a command.
pub(super) fn asked(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        let count = words.len();
        words.retain(|word| word != "--help" && word != "-h");
        if count > words.len() && words.len() == 2 {
            words.push("help".into());
        }
    }
    words
}

/// Names flags in the usage as everywhere else. clap says "options".
fn with_flags_in_usage(mut command: Command) -> Command {
    let usage = command.render_usage().to_string();
    match usage.strip_prefix("Usage: ").filter(|usage| usage.contains("[OPTIONS]")) {
        Some(usage) => {
            let usage = usage.replace("[OPTIONS]", "[FLAGS]");
            command.override_usage(usage)
        }
        None => command,
    }
}

/// Shows the verbs of the client under a heading of their own. clap has one heading for all commands.
fn with_client(command: Command) -> Command {
    let mut rows = Vec::new();
    let command = command.mut_subcommands(|tool| {
        if !is_verb(tool.get_name()) {
            return tool;
        }
        rows.push((
            tool.get_name().to_owned(),
            tool.get_about().map(ToString::to_string).unwrap_or_default(),
        ));
        tool.hide(true)
    });
    if rows.is_empty() {
        return command;
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let rows: String = rows.iter().map(|(name, about)| format!("  {name:width$}  {about}\n")).collect();
    command.help_template(HELP_TEMPLATE.replace("{all-args}", &format!("Client:\n{rows}\n{{all-args}}")))
}

#[cfg(feature = "client")]
fn is_verb(name: &str) -> bool {
    Verb::has_subcommand(name)
}

#[cfg(not(feature = "client"))]
const fn is_verb(_: &str) -> bool {
    false
}

/// Removes the dots that clap writes behind a flag that may be repeated.
pub(super) fn without_dots(help: &str) -> String {
    help.replace("--verbose...", "--verbose   ")
}

/// Breaks the long lines of a help. Flags without a heading get this one.
pub fn fitted(command: Command, heading: &'static str) -> Command {
    let command = command.mut_args(|argument| match argument.get_help_heading() {
        None if !argument.is_positional() => argument.help_heading(heading),
        _ => argument,
    });
    let shown: Vec<Arg> =
        command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned().collect();
    command.mut_args(|argument| {
        let section = shown.iter().filter(|other| other.get_help_heading() == argument.get_help_heading());
        let column = section.map(column_of_help).max().unwrap_or_default();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default() + &default_of(&argument);
        argument.help(wrapped(&help, COLUMNS.saturating_sub(column))).hide_default_value(true)
    })
}

/// What clap would add to the help about the default.
fn default_of(argument: &Arg) -> String {
    let values: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if values.is_empty() || !argument.get_action().takes_values() {
        return String::new();
    }
    format!(" [default: {}]", values.join(" "))
}

/// The column in which clap begins the help of a section with this argument alone.
fn column_of_help(argument: &Arg) -> usize {
    let value = argument.get_value_names().and_then(<[_]>::first).map_or(0, |name| name.len());
    let has_many = argument.get_num_args().is_some_and(|range| range.max_values() > 1);
    let value = if has_many { value + "...".len() } else { value };
    match argument.get_long() {
        None => "  [...]  ".len() + value + 2,
        Some(long) => {
            let value = match argument.get_action() {
                ArgAction::Count => "...".len(),
                action if action.takes_values() => " <>".len() + value,
                _ => 0,
            };
            "  -x, --".len() + long.len() + value + 2
        }
    }
}

/// Breaks a text into lines of at most `columns` characters.
fn wrapped(text: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    // The default is not broken.
    let (text, default) = text.split_at(text.find("[default").unwrap_or(text.len()));
    for word in text.split_whitespace().chain(Some(default).filter(|default| !default.is_empty())) {
        let line = lines.last_mut().expect("it has a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= columns {
            line.extend([" ", word]);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}
