//! A cron line in a time zone. The line is that of cronie, and so is what becomes of it where the local clock changes.
//!
//! `cronexpr` parses a line and finds its times in a calendar without changes of the clock; `jiff` knows the time zones. This file decides
//! about the changes. A time that the clock skips runs at the end of the gap. A time that comes twice runs the first time. A line whose minutes
//! or hours begin with `*` follows elapsed time instead: it runs whenever the clock shows one of its times.

use std::sync::LazyLock;

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions, parse_crontab_with};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use super::WhenError;
use crate::time::Time;

/// Zones that are built in: a server reads no file for them, and a container needs none.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The fields of a line, and the numbers that each may have.
const FIELDS: [(&str, &str); 5] = [
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of the month", "1 to 31"),
    ("month", "1 to 12, or JAN to DEC"),
    ("day of the week", "0 to 7, or SUN to SAT"),
];

/// The first field that may have names: of months, and then of days.
const NAMED_FIELD: usize = 3;

/// Where the next time is further away, nothing between is looked at: the local clock never changes by as much.
const CHANGE_MAX: SignedDuration = SignedDuration::from_hours(48);

/// A line and its zone.
#[derive(Clone, Debug)]
pub struct Cron {
    /// On a clock that never changes.
    line: Crontab,
    zone: TimeZone,
    follows_elapsed_time: bool,
}

impl Cron {
    /// Parses a line. Returns it with one space between its fields, too.
    pub fn parse(text: &str) -> Result<(Box<str>, Self), WhenError> {
        let mut words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let joined = words.join(" ").into();
        let zone = match words.len() {
            5 => TimeZone::UTC,
            // mutant schedule-zone-ignored: zone_of(words.pop().expect("there are six"))? => { words.pop(); TimeZone::UTC }
            6 => zone_of(words.pop().expect("there are six"))?,
            _ => return Err(WhenError::Line),
        };
        let line = parse_fields(&words).ok_or_else(|| mistake_in(&words))?;
        let follows_elapsed_time = words[..2].iter().any(|word| word.starts_with('*'));
        Ok((joined, Self { line, zone, follows_elapsed_time }))
    }

    /// Whether it has a fixed minute and hour: a time that the clock shows twice has one run.
    pub const fn is_fixed(&self) -> bool {
        !self.follows_elapsed_time
    }

    /// The first time after `after`.
    pub fn next(&self, after: Time) -> Option<Time> {
        let after = Timestamp::from_nanosecond(after.as_nanos().into()).ok()?;
        let next = if self.follows_elapsed_time { self.next_shown(after) } else { self.next_fixed(after) };
        next.and_then(|next| u64::try_from(next.as_nanosecond()).ok()).map(Time::from_nanos)
    }

    /// The first time of the line after this one of a clock that never changes.
    fn next_local(&self, after: DateTime) -> Option<DateTime> {
        let after = TimeZone::UTC.to_timestamp(after).ok()?;
        self.line.find_next(MakeTimestamp(after)).ok().map(|next| next.datetime())
    }

    /// Each time of the line is one instant.
    fn next_fixed(&self, after: Timestamp) -> Option<Timestamp> {
        let mut local = self.zone.to_datetime(after);
        // Bounded by the minutes that one change of the clock skips or repeats.
        loop {
            local = self.next_local(local)?;
            // mutant schedule-second-of-two-times: self.instant_of(local) => self.zone.to_ambiguous_timestamp(local).later().ok()
            let instant = self.instant_of(local)?;
            if instant > after {
                return Some(instant);
            }
        }
    }

    /// The instant of a local time: the first of two, and the end of the gap that it is in.
    fn instant_of(&self, local: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok(),
            AmbiguousOffset::Gap { before, .. } => {
                // As if the clock had not changed: this is not before the change.
                let beyond =
                    before.to_timestamp(local).ok()?.checked_add(SignedDuration::from_secs(1)).ok()?;
                self.zone.preceding(beyond).next().map(|change| change.timestamp())
            }
        }
    }

    /// Each instant whose local time is one of the line.
    fn next_shown(&self, after: Timestamp) -> Option<Timestamp> {
        let mut from = after;
        let mut local = self.zone.to_datetime(from);
        let mut is_first = true;
        // Bounded by some changes of the clock: then the next time is found, and what is before it is passed over.
        loop {
            let offset = self.zone.to_offset(from);
            let next = offset.to_timestamp(self.next_local(local)?).ok()?;
            let Some(change) = self.zone.following(from).next().map(|change| change.timestamp()) else {
                return Some(next);
            };
            if next < change {
                return Some(next);
            }
            from = match next.checked_sub(CHANGE_MAX) {
                Ok(nearer) if !is_first && nearer > change => nearer,
                _ => change,
            };
            is_first = false;
            // The instant itself counts.
            local = self.zone.to_datetime(from).checked_sub(SignedDuration::from_secs(1)).ok()?;
        }
    }
}

fn zone_of(name: &str) -> Result<TimeZone, WhenError> {
    ZONES.get(name).map_err(|_| WhenError::Zone)
}

fn parse_fields(words: &[&str]) -> Option<Crontab> {
    let is_plain = words.iter().enumerate().all(|(field, word)| is_plain_field(field, word));
    let mut options = ParseOptions::default();
    options.fallback_timezone_option = FallbackTimezoneOption::UTC;
    parse_crontab_with(&words.join(" "), options).ok().filter(|_| is_plain)
}

/// The first field that is wrong by itself.
fn mistake_in(words: &[&str]) -> WhenError {
    let is_wrong = |field: &usize| {
        let mut alone = ["*"; FIELDS.len()];
        alone[*field] = words[*field];
        parse_fields(&alone).is_none()
    };
    (0..FIELDS.len()).find(is_wrong).map_or(WhenError::Line, |field| {
        let (name, numbers) = FIELDS[field];
        WhenError::Field { name, numbers }
    })
}

/// Whether a field has only what the lines of cronie have.
fn is_plain_field(field: usize, word: &str) -> bool {
    let has_names = field >= NAMED_FIELD;
    let names = word.split(|byte: char| !byte.is_ascii_alphabetic()).filter(|name| !name.is_empty());
    word.bytes().all(|byte| {
        matches!(byte, b'0'..=b'9' | b'*' | b',' | b'-' | b'/') || has_names && byte.is_ascii_alphabetic()
    }) && names.into_iter().all(|name| name.len() == 3)
}
