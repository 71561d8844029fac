//! Points in time and spans of time, in nanoseconds, and spans as commands state them. There is no clock here: drivers read the
//! clock and pass `now`.

use std::fmt;
use std::ops::Add;

use serde::{Serialize, Serializer};

/// A point in time: nanoseconds of a monotonic clock that starts at the time since 1970. So the times in a job log mean
/// something to the next process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time(u64);

/// A span of time in nanoseconds. The longest span of the protocol, 2^32 - 1 seconds, fits into it four times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Span(u64);

impl Time {
    /// The earliest point in time.
    pub const ZERO: Self = Self(0);

    /// The point `ns` nanoseconds after zero.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to this point, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The point `span` before this one, or zero if that would be earlier.
    pub const fn back(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// The first multiple of `step` at or after this point.
    ///
    /// # Panics
    /// If `step` is zero.
    pub const fn round_up(self, step: Span) -> Self {
        Self(self.0.div_ceil(step.0).saturating_mul(step.0))
    }
}

/// Returns a point in seconds since 1970 as a date and time of UTC, such as `2026-11-28T08:00:00Z`.
pub fn date(seconds: u64) -> String {
    // Years begin in March, so that a leap day is the last of its year. 719,468 days before 1970 an era of 400 years began.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

impl Add<Span> for Time {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);

    /// A span of whole seconds, as the protocol counts them.
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds as u64 * 1_000_000_000)
    }

    /// A span of milliseconds.
    pub const fn from_millis(milliseconds: u32) -> Self {
        Self(milliseconds as u64 * 1_000_000)
    }

    /// A span of nanoseconds.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// The span in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The whole seconds of the span.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }
}

/// A span of time as commands state it: seconds, with thousandths of a second if the server accepts them (`--sub-second`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Seconds {
    whole: u32,
    millis: u16,
}

/// The most digits behind the point.
const DECIMALS_MAX: usize = 3;

impl Seconds {
    /// No time.
    pub const ZERO: Self = Self::whole(0);

    /// One second.
    pub const ONE: Self = Self::whole(1);

    /// Whole seconds.
    pub const fn whole(seconds: u32) -> Self {
        Self { whole: seconds, millis: 0 }
    }

    /// Seconds and thousandths of a second. Returns `None` from 1,000 thousandths on.
    pub const fn new(whole: u32, millis: u16) -> Option<Self> {
        if millis < 1000 { Some(Self { whole, millis }) } else { None }
    }

    /// The whole milliseconds of a span, up to the longest span of the protocol.
    pub const fn of(span: Span) -> Self {
        let (whole, millis) = (span.as_secs(), span.as_nanos() / 1_000_000 % 1000);
        if whole > u32::MAX as u64 {
            return Self { whole: u32::MAX, millis: 999 };
        }
        Self { whole: whole as u32, millis: millis as u16 }
    }

    /// Parses a decimal number: digits, and if `.` follows, one to three digits.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, decimals) = match text.split_once('.') {
            Some((whole, decimals)) => (whole, Some(decimals)),
            None => (text, None),
        };
        let is_number = !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit());
        let millis = decimals.map_or(Some(0), |decimals| Self::millis_of(decimals.as_bytes()))?;
        Self::new(whole.parse().ok().filter(|_| is_number)?, millis)
    }

    /// The thousandths that the digits behind a point stand for. Returns `None` unless there are one to three.
    pub fn millis_of(decimals: &[u8]) -> Option<u16> {
        let is_number =
            (1..=DECIMALS_MAX).contains(&decimals.len()) && decimals.iter().all(u8::is_ascii_digit);
        let digits = decimals.iter().copied().chain([b'0'; DECIMALS_MAX]).take(DECIMALS_MAX);
        is_number.then(|| digits.fold(0, |value, digit| value * 10 + u16::from(digit - b'0')))
    }

    /// The whole seconds.
    pub const fn as_whole(self) -> u32 {
        self.whole
    }

    /// The thousandths of a second beyond the whole ones.
    pub const fn millis(self) -> u16 {
        self.millis
    }

    /// Leaves out the thousandths.
    #[must_use]
    pub const fn floor(self) -> Self {
        Self::whole(self.whole)
    }

    /// One second in the place of none, as a time to run of 0 counts.
    #[must_use]
    pub fn or_one(self) -> Self {
        if self == Self::ZERO { Self::ONE } else { self }
    }

    /// The span.
    pub const fn span(self) -> Span {
        Span(Span::from_secs(self.whole).0 + Span::from_millis(self.millis as u32).0)
    }
}

impl From<u32> for Seconds {
    fn from(seconds: u32) -> Self {
        Self::whole(seconds)
    }
}

impl fmt::Display for Seconds {
    /// Writes a number without trailing zeros: `2`, `2.5` or `2.005`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { whole, millis } = *self;
        match millis {
            0 => write!(f, "{whole}"),
            _ if millis % 100 == 0 => write!(f, "{whole}.{}", millis / 100),
            _ if millis % 10 == 0 => write!(f, "{whole}.{:02}", millis / 10),
            _ => write!(f, "{whole}.{millis:03}"),
        }
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { whole, millis } = *self;
        match millis {
            0 => serializer.serialize_u32(whole),
            // A quotient is the nearest number to the decimal one, so it is written with its digits.
            _ => serializer.serialize_f64((f64::from(whole) * 1000.0 + f64::from(millis)) / 1000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_leap_years() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (2_000_000_000, "2033-05-18T03:33:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn numbers_are_parsed_and_shown() {
        for (text, whole, millis, shown) in [
            ("0", 0, 0, "0"),
            ("7", 7, 0, "7"),
            ("1.5", 1, 500, "1.5"),
            ("1.50", 1, 500, "1.5"),
            ("0.25", 0, 250, "0.25"),
            ("00.001", 0, 1, "0.001"),
            ("3.000", 3, 0, "3"),
            ("4294967295.999", u32::MAX, 999, "4294967295.999"),
        ] {
            let seconds = Seconds::parse(text).expect(text);
            assert_eq!((seconds.as_whole(), seconds.millis()), (whole, millis), "{text}");
            assert_eq!(seconds.to_string(), shown);
            assert_eq!(serde_json::to_string(&seconds).unwrap(), shown);
            assert_eq!(Seconds::of(seconds.span()), seconds);
        }
    }

    #[test]
    fn other_texts_are_no_numbers() {
        for text in
            ["", ".", ".5", "1.", "1.2345", "1.5.5", "-1", "+1", "1e3", "0.+5", " 1", "1 ", "4294967296"]
        {
            assert_eq!(Seconds::parse(text), None, "{text}");
        }
        assert_eq!(Seconds::new(1, 1000), None);
    }

    #[test]
    fn a_span_loses_what_is_below_a_millisecond() {
        assert_eq!(Seconds::of(Span::from_nanos(1_999_999)), Seconds { whole: 0, millis: 1 });
        assert_eq!(Seconds::of(Span::from_nanos(u64::MAX)), Seconds { whole: u32::MAX, millis: 999 });
        assert_eq!(Seconds { whole: 2, millis: 999 }.floor(), Seconds::whole(2));
    }
}
