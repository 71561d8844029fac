//! The help as a terminal shows it: in lines of 80 columns, with the words that the rest of the program uses.

use std::ffi::OsString;

use beanring::flags;
use beanring::help::fitted;
use clap::Command;
#[cfg(feature = "client")]
use clap::Subcommand;

use super::HELP_TEMPLATE;
#[cfg(feature = "client")]
use super::verbs::Verb;

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
