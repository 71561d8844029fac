//! The tables `[[schedule]]` of the file.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::rules::Mistake;
use super::{size, suggestion};
use crate::io::clock;
use crate::time::Seconds;
use crate::values::limits::{PRIORITY_DEFAULT, SCHEDULE_BYTES_MAX, SCHEDULES_MAX, TTR_SECONDS_DEFAULT};
use crate::values::schedules::{ConfiguredSchedule, Missed, Plan};
use crate::values::tube_name::TubeName;
use crate::values::when::When;

/// The key of the tables.
pub const SCHEDULE: &str = "schedule";

const KEYS: [&str; 9] = ["name", "tube", "when", "body", "pri", "delay", "ttr", "missed", "overlap"];

/// Whether a mistake shows the value of this key of a schedule. A body may be a secret.
pub fn is_shown(key: &str) -> bool {
    KEYS.contains(&key) && key != "body"
}

/// Reads all schedules.
///
/// # Errors
/// The first mistake.
pub fn read(schedules: &Spanned<DeValue<'_>>) -> Result<Vec<ConfiguredSchedule>, Mistake> {
    let DeValue::Array(tables) = schedules.get_ref() else {
        return Err((schedules.span(), "must be tables, each below [[schedule]]".to_owned()));
    };
    let mut all: Vec<ConfiguredSchedule> = Vec::new();
    for table in tables.iter() {
        let DeValue::Table(keys) = table.get_ref() else {
            return Err((table.span(), "must be a table, below [[schedule]]".to_owned()));
        };
        let one = schedule_of(keys, table.span())?;
        if all.iter().any(|other| other.name == one.name) {
            return Err((table.span(), format!("there is another schedule {}", one.name)));
        }
        if all.len() == SCHEDULES_MAX {
            return Err((table.span(), format!("there may be at most {SCHEDULES_MAX} schedules")));
        }
        all.push(one);
    }
    Ok(all)
}

fn schedule_of(keys: &DeTable<'_>, at: Range<usize>) -> Result<ConfiguredSchedule, Mistake> {
    if let Some((key, _)) = keys.iter().find(|(key, _)| !KEYS.contains(&key.get_ref().as_ref())) {
        let known = KEYS.into_iter().map(str::to_owned);
        let problem = match suggestion(key.get_ref(), known) {
            Some(known) => format!("no such key of a schedule; did you mean {known}?"),
            None => format!("no such key of a schedule; it has {}", KEYS.join(", ")),
        };
        return Err((key.span(), problem));
    }
    let value = |key: &str| keys.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value);
    let text = |key: &str| match value(key).map(|value| (value.get_ref(), value.span())) {
        None => Err((at.clone(), format!("the schedule lacks {key}"))),
        Some((DeValue::String(text), place)) => Ok((text.to_string(), place)),
        Some((_, place)) => Err((place, "must be a text in quotes".to_owned())),
    };
    let name_of = |key: &str| {
        let (text, place) = text(key)?;
        let is_name = TubeName::new(text.as_bytes()).is_some();
        if is_name {
            Ok(text)
        } else {
            Err((
                place,
                "must be 1 to 200 letters, digits or one of -+/;.$_(), not beginning with -".to_owned(),
            ))
        }
    };
    let (name, tube) = (name_of("name")?, name_of("tube")?);
    let (times, place) = text("when")?;
    let when = When::parse(&times, clock::system_time()).map_err(|error| (place, error.to_string()))?;
    let (body, place) = text("body")?;
    if body.len() > SCHEDULE_BYTES_MAX as usize {
        return Err((place, format!("must have at most {SCHEDULE_BYTES_MAX} bytes")));
    }
    let missed = |value: &DeValue<'_>| Missed::named(value.as_str()?.as_bytes());
    let missed = optional(value("missed"), missed, "must be \"skip\", \"once\" or \"all\"")?;
    let overlaps = optional(value("overlap"), |value| value.as_bool(), "must be true or false")?;
    let pri_range = format!("must be a number from 0 to {}", u32::MAX);
    let time = |key| {
        let expected = "must be a number of seconds, or a text such as \"5m\"";
        Ok(optional(value(key), seconds, expected)?.map(Seconds::whole))
    };
    Ok(ConfiguredSchedule {
        name,
        tube,
        plan: Plan {
            when,
            pri: optional(value("pri"), number, &pri_range)?.unwrap_or(PRIORITY_DEFAULT),
            delay: time("delay")?.unwrap_or(Seconds::ZERO),
            ttr: time("ttr")?.unwrap_or(Seconds::whole(TTR_SECONDS_DEFAULT)),
            missed: missed.unwrap_or_default(),
            overlaps: overlaps.unwrap_or(true),
        },
        body: [body.as_bytes(), b"\r\n"].concat(),
    })
}

/// Reads a value, if there is one.
fn optional<T>(
    value: Option<&Spanned<DeValue<'_>>>,
    read: impl Fn(&DeValue<'_>) -> Option<T>,
    expected: &str,
) -> Result<Option<T>, Mistake> {
    let Some(value) = value else { return Ok(None) };
    read(value.get_ref()).map(Some).ok_or_else(|| (value.span(), expected.to_owned()))
}

fn number(value: &DeValue<'_>) -> Option<u32> {
    value.as_integer()?.to_string().parse().ok()
}

fn seconds(value: &DeValue<'_>) -> Option<u32> {
    number(value).or_else(|| size::seconds(value.as_str()?).ok())
}
