//! Failures as JSON, in the form of the errors of the HTTP API: a word for programs and a sentence.

use std::error::Error;
use std::ffi::{OsStr, OsString};

use beanring::config::ConfigError;
use beanring::replies::UNAUTHORIZED;
use clap::Subcommand;
use serde::Serialize;

use super::{ClientError, Refusal, json, say};
use crate::cli::UsageError;
use crate::cli::verbs::Verb;

/// The command that is no verb and prints JSON too.
const CONFIG: &str = "config";

/// The word of a command line that is not valid.
const WRONG_USAGE: &str = "bad-request";

/// A failure. Objects with other fields contain it flattened.
#[derive(Serialize, Debug)]
pub(super) struct JsonFailure {
    error: &'static str,
    message: String,
}

impl JsonFailure {
    /// The failure that ends a verb.
    fn of(error: &ClientError) -> Self {
        Self { error: word(error), message: error.to_string() }
    }

    /// A failure that is no error of the client.
    pub(super) fn new(error: &'static str, message: impl Into<String>) -> Self {
        Self { error, message: message.into() }
    }
}

impl From<&Refusal> for JsonFailure {
    fn from(refusal: &Refusal) -> Self {
        Self { error: word_of_refusal(refusal), message: refusal.to_string() }
    }
}

/// Prints an error that ends the program as an object, if these arguments ask for JSON. The object is on standard output, or
/// for `work`, whose commands write there, on standard error. Returns whether standard error has it.
pub fn print_failure(error: &(dyn Error + 'static), arguments: impl Iterator<Item = OsString>) -> bool {
    let Some(verb) = verb_with_json(arguments) else { return false };
    let failure = match error.downcast_ref::<ClientError>() {
        Some(error) => JsonFailure::of(error),
        None if error.is::<UsageError>() || error.is::<ConfigError>() => {
            JsonFailure::new(WRONG_USAGE, error.to_string())
        }
        None => return false,
    };
    let text = json(&failure).expect("it is plain");
    let is_on_stderr = verb == "work";
    if is_on_stderr {
        say(text);
    } else {
        // The exit code reports that the output cannot be written.
        let _ = beanring::io::stdout::print(&format_args!("{text}\n"));
    }
    is_on_stderr
}

/// Returns the verb that these arguments name, if they ask for JSON. They need not be valid.
fn verb_with_json(arguments: impl Iterator<Item = OsString>) -> Option<String> {
    let own: Vec<OsString> = arguments.take_while(|word| word != OsStr::new("--")).collect();
    let asks = own.iter().any(|word| word == OsStr::new("--json"));
    own.into_iter()
        .filter(|_| asks)
        .filter_map(|word| word.into_string().ok())
        .find(|word| Verb::has_subcommand(word) || word == CONFIG)
}

fn word(error: &ClientError) -> &'static str {
    match error {
        ClientError::Refused(refusal) => word_of_refusal(refusal),
        ClientError::Unknown { .. } => UNSUPPORTED,
        error => match error.exit_code() {
            2 => WRONG_USAGE,
            3 => "no-connection",
            UNAUTHORIZED => "unauthorized",
            _ => "client",
        },
    }
}

/// What a server lacks, as beanstalkd lacks the extensions.
const UNSUPPORTED: &str = "unsupported";

fn word_of_refusal(refusal: &Refusal) -> &'static str {
    match refusal.word() {
        // The job is there, and something else prevents the action.
        "NOT_FOUND" if refusal.hides_reply => "conflict",
        "NOT_FOUND" => "not-found",
        "FORBIDDEN" => "forbidden",
        "DRAINING" => "draining",
        "OUT_OF_MEMORY" => "out-of-memory",
        "JOB_TOO_BIG" => "too-large",
        "INTERNAL_ERROR" => "internal",
        "BAD_FORMAT" => WRONG_USAGE,
        "UNKNOWN_COMMAND" => UNSUPPORTED,
        "TIMED_OUT" => "timed-out",
        _ => "conflict",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_ask_for_json() {
        for (line, verb) in [
            ("stats --json", Some("stats")),
            ("-a 1 stats --json", Some("stats")),
            ("--json put", Some("put")),
            ("put --json --nonsense", Some("put")),
            ("work --json -- false", Some("work")),
            ("put -- --json", None),
            ("-p 1 config show --json", Some("config")),
            ("stats", None),
            ("-p 1 --json", None),
        ] {
            let found = verb_with_json(line.split(' ').map(OsString::from));
            assert_eq!(found.as_deref(), verb, "{line}");
        }
    }
}
