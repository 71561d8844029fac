//! The values of flags and arguments, from text.

use beanring::config::address::Remote;
use beanring::config::settings::Setting;
use beanring::config::size::seconds;
use beanring::config::{ConfigError, address};
use beanring::io::clock;
use beanring::time::Seconds;
use beanring::values::ids::JobId;
use beanring::values::job_state::JobState;
use beanring::values::schedules::Missed;
use beanring::values::tags::Tags;
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::RuleKey;
use beanring::values::when::{When, WhenError};
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The most commands that `beanring work` runs at the same time. Each takes two threads, a connection and a process.
const COMMANDS_MAX: u32 = 1000;

/// The rule of keys and names, which is that of tubes.
const KEY_RULE: &str =
    "has 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), and does not begin with -";

/// Accepts the states of jobs that a verb works with.
pub(super) fn state_among(states: &[JobState]) -> impl TypedValueParser<Value = JobState> + use<> {
    let words = states.iter().map(|state| state.word());
    PossibleValuesParser::new(words)
        .map(|word| JobState::named(word.as_bytes()).expect("clap accepts only these words"))
}

/// Accepts the policies for missed times.
pub(super) fn missed_policy() -> impl TypedValueParser<Value = Missed> {
    PossibleValuesParser::new(Missed::ALL.map(Missed::word))
        .map(|word| Missed::named(word.as_bytes()).expect("clap accepts only these words"))
}

/// The times of a schedule, by the clock and the time zones of this machine.
pub(super) fn when(text: &str) -> Result<When, String> {
    When::parse(text, clock::system_time()).map_err(|error| match error {
        // A line without quotes is several arguments.
        WhenError::Line => format!("{error}; write a line in quotes, and an interval as every:15m"),
        error => error.to_string(),
    })
}

pub(super) fn parse_address(text: &str) -> Result<Remote, String> {
    address::remote(&Setting::on_command_line("-a/--addr", text)).map_err(|error| match error {
        ConfigError::Value { problem, .. } => problem.to_string(),
        other => other.to_string(),
    })
}

pub(super) fn tube_name(text: &str) -> Result<String, String> {
    let rule = "must be 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), and not begin with -";
    TubeName::new(text.as_bytes()).map(|name| name.as_str().to_owned()).ok_or_else(|| rule.to_owned())
}

pub(super) fn rule_key(text: &str) -> Result<RuleKey, String> {
    let [some @ .., last] = RuleKey::ALL.map(RuleKey::word);
    RuleKey::named(text.as_bytes()).ok_or_else(|| format!("must be {} or {last}", some.join(", ")))
}

pub(super) fn idempotency_tag(text: &str) -> Result<String, String> {
    tag("idp", text).ok_or_else(|| format!("must be a key, or KEY:TTL with seconds; a key {KEY_RULE}"))
}

pub(super) fn concurrency_tag(text: &str) -> Result<String, String> {
    tag("con", text).ok_or_else(|| format!("must be a key, or KEY:N with N from 1; a key {KEY_RULE}"))
}

pub(super) fn member_tag(text: &str) -> Result<String, String> {
    tag("grp", text).ok_or_else(|| format!("must be the name of a group, which {KEY_RULE}"))
}

pub(super) fn after_tag(text: &str) -> Result<String, String> {
    tag("aft", text).ok_or_else(|| format!("must be the name of a group, which {KEY_RULE}"))
}

pub(super) fn group_name(text: &str) -> Result<String, String> {
    member_tag(text).map(|_| text.to_owned())
}

fn tag(kind: &str, text: &str) -> Option<String> {
    let tag = format!("{kind}:{text}");
    // A space would begin another tag.
    (!text.contains(' ') && Tags::new(tag.as_bytes()).is_some()).then_some(tag)
}

pub(super) fn job_id(text: &str) -> Result<JobId, String> {
    let id = digits(text).and_then(|digits| digits.parse().ok()).filter(|id| *id > 0);
    id.map(JobId).ok_or_else(|| "must be the id of a job, a number from 1".to_owned())
}

fn number(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let number = digits(text).and_then(|digits| digits.parse().ok());
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("must be a number from {min} to {max}"))
}

pub(super) fn priority(text: &str) -> Result<u32, String> {
    number(text, 0, u32::MAX)
}

/// A number from 1, as of jobs.
///
/// # Errors
/// If the text is something else.
pub fn count(text: &str) -> Result<u32, String> {
    number(text, 1, u32::MAX)
}

/// A number of threads with a connection each.
pub(super) fn commands(text: &str) -> Result<u32, String> {
    number(text, 1, COMMANDS_MAX)
}

/// A time that a server with `--sub-second` accepts: `0.25`, `1.5s`, or what [`seconds`] takes.
///
/// # Errors
/// If the text is something else, or the time too long.
pub fn time(text: &str) -> Result<Seconds, String> {
    if !text.contains('.') {
        return seconds(text).map(Seconds::whole);
    }
    let rule = "must be a number of seconds with one to three decimals, such as 0.25, or a whole number with a unit, such as 90m";
    Seconds::parse(text.strip_suffix('s').unwrap_or(text)).ok_or_else(|| rule.to_owned())
}

/// A time above 0.
pub(super) fn positive_seconds(text: &str) -> Result<u32, String> {
    match seconds(text)? {
        0 => Err("must be 1 s or more".to_owned()),
        seconds => Ok(seconds),
    }
}

/// `parse` accepts a sign, which numbers of the protocol do not have.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("0", Some(0)),
            ("90", Some(90)),
            ("90s", Some(90)),
            ("10m", Some(600)),
            ("2h", Some(7200)),
            ("1d", Some(86_400)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("49711d", None),
            ("", None),
            ("s", None),
            ("-1", None),
            ("+1", None),
            ("1.5h", None),
            ("1 m", None),
        ] {
            assert_eq!(seconds(text).ok(), expected, "{text}");
            assert_eq!(time(text).ok(), expected.map(Seconds::whole), "{text}");
        }
        for (text, whole, millis) in
            [("0.25", 0, 250), ("1.5s", 1, 500), ("2.0", 2, 0), ("4294967295.999", u32::MAX, 999)]
        {
            assert_eq!(time(text).ok(), Seconds::new(whole, millis), "{text}");
            assert!(seconds(text).is_err(), "{text}");
        }
        for text in [".5", "1.", "0.1234", "1.5m", "-0.5", "0.5 s", "1e3.0", "4294967296.5"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
