//! When a schedule runs: at the times of a cron line in a time zone, or at equal intervals.

mod cron;

use std::fmt;

use self::cron::Cron;
use crate::time::{Span, Time};

/// The longest interval, in seconds: 366 days.
const EVERY_SECONDS_MAX: u32 = 366 * 86_400;

/// Before an interval.
const EVERY: &str = "every:";

/// The longest text: fields with every value of a list, and the longest name of a zone.
pub const WHEN_BYTES_MAX: usize = 512;

/// How far two times of a cron line are apart, at least.
const MINUTE: Span = Span::from_secs(60);

/// The times at which a schedule runs.
#[derive(Clone, Debug)]
pub struct When {
    text: Box<str>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Every(Span),
    Cron(Box<Cron>),
    /// What another version has written, and this one cannot read.
    Unknown,
}

/// Why a text says no times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WhenError {
    /// It is too long.
    #[error("longer than {WHEN_BYTES_MAX} bytes")]
    TooLong,
    /// It begins with `every:`.
    #[error(
        "not an interval: `every:` and seconds, or a number with s, m, h or d, from 1 second to 366 days"
    )]
    Interval,
    /// It is neither an interval nor a cron line.
    #[error(
        "not a cron line of five fields: minute, hour, day of the month, month and day of the week; a time zone may follow"
    )]
    Line,
    /// A field of a cron line.
    #[error(
        "not a cron line: its {name} must be `*`, a number ({numbers}), a range, steps, or a list of these"
    )]
    Field {
        /// What the field is called.
        name: &'static str,
        /// The numbers that it may have.
        numbers: &'static str,
    },
    /// Behind the five fields.
    #[error(
        "not a time zone of the IANA database, such as Europe/Berlin; a line has five fields, without seconds"
    )]
    Zone,
    /// It is a day that no month has.
    #[error("at no date of the next four years")]
    Never,
}

impl When {
    /// Parses `every:` with a time, or a cron line of five fields, behind which a time zone may stand. Without one it is UTC.
    ///
    /// # Errors
    /// If it is neither, or says no time after `now`, which is that of the system clock.
    pub fn parse(text: &str, now: Time) -> Result<Self, WhenError> {
        let when = Self::restore(text)?;
        let fires = when.next(now, now).is_some();
        // mutant schedule-that-never-fires: fires => true
        if fires { Ok(when) } else { Err(WhenError::Never) }
    }

    /// Parses a text that was checked when the schedule was put.
    ///
    /// # Errors
    /// If it is neither.
    pub fn restore(text: &str) -> Result<Self, WhenError> {
        if text.len() > WHEN_BYTES_MAX {
            return Err(WhenError::TooLong);
        }
        if let Some(interval) = text.strip_prefix(EVERY) {
            let seconds = seconds_of(interval).ok_or(WhenError::Interval)?;
            return Ok(Self { text: text.into(), kind: Kind::Every(Span::from_secs(seconds)) });
        }
        let (text, cron) = Cron::parse(text)?;
        Ok(Self { text, kind: Kind::Cron(Box::new(cron)) })
    }

    /// Parses what a job log has. A line or a time zone that this version does not know has no times: that version may be older than the one
    /// that has written the log, or the zone is gone since. None if it is no text of a schedule at all.
    pub fn logged(text: &str) -> Option<Self> {
        let is_text = text.len() <= WHEN_BYTES_MAX && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let unknown = || Self { text: text.into(), kind: Kind::Unknown };
        is_text.then(|| Self::restore(text).unwrap_or_else(|_| unknown()))
    }

    /// Whether this version can read it.
    pub const fn is_known(&self) -> bool {
        !matches!(self.kind, Kind::Unknown)
    }

    /// Its text, with one space between fields.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is a cron line with a fixed minute and hour, or may be one. Others go by elapsed time, or by what the clock shows.
    pub const fn is_fixed(&self) -> bool {
        match &self.kind {
            Kind::Every(_) => false,
            Kind::Cron(cron) => cron.is_fixed(),
            Kind::Unknown => true,
        }
    }

    /// The first time after `after`. Intervals begin at `anchor`.
    pub fn next(&self, anchor: Time, after: Time) -> Option<Time> {
        match &self.kind {
            Kind::Every(every) => Some(multiple(anchor, *every, after) + *every),
            Kind::Cron(cron) => cron.next(after),
            Kind::Unknown => None,
        }
    }

    /// The last time up to `now`. `due` is one of its times and not after `now`.
    pub fn last(&self, anchor: Time, due: Time, now: Time) -> Time {
        match &self.kind {
            Kind::Every(every) => multiple(anchor, *every, now),
            Kind::Cron(cron) => last_of(cron, due, now),
            Kind::Unknown => due,
        }
    }

    /// The memory behind it, in bytes.
    pub fn bytes(&self) -> usize {
        let cron = if let Kind::Cron(_) = self.kind { size_of::<Cron>() } else { 0 };
        self.text.len() + cron
    }
}

impl PartialEq for When {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for When {}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The last multiple of an interval up to `now`, counted from its beginning. That itself is the first.
fn multiple(anchor: Time, every: Span, now: Time) -> Time {
    let past = now.since(anchor).as_nanos();
    anchor + Span::from_nanos(past - past % every.as_nanos())
}

/// Looks back from `now`, twice as far each time, and then halves the distance. A cron line may have very many times in between.
fn last_of(cron: &Cron, due: Time, now: Time) -> Time {
    let until_now = |after: Time| cron.next(after).filter(|&at| at <= now);
    let (mut last, mut length) = (due, MINUTE);
    // Bounded by 64: the length doubles up to all of time.
    let mut end = now;
    while now.back(length) > due {
        if let Some(at) = until_now(now.back(length)) {
            last = at;
            break;
        }
        end = now.back(length);
        length = Span::from_nanos(length.as_nanos().saturating_mul(2));
    }
    // None is between `end` and `now`. Bounded by 64: the distance halves down to a minute.
    while end.since(last) >= MINUTE {
        let middle = last + Span::from_nanos(end.since(last).as_nanos() / 2);
        match until_now(middle) {
            Some(at) => last = at,
            None => end = middle,
        }
    }
    last
}

/// The seconds of an interval.
fn seconds_of(text: &str) -> Option<u32> {
    let units = [('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];
    let with_unit = units.into_iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (digits, unit) = with_unit.unwrap_or((text, 1));
    let number: u32 = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    number.checked_mul(unit).filter(|seconds| (1..=EVERY_SECONDS_MAX).contains(seconds))
}
