//! The help of a program, in lines of 80 columns.

use clap::{Arg, ArgAction, Command};

/// The width of the help.
pub const COLUMNS: usize = 80;

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
