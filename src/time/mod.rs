//! Points in time and spans of time, in nanoseconds. There is no clock here: drivers read the clock and pass `now`.

mod seconds;

use std::ops::Add;

pub use self::seconds::Seconds;

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

#[cfg(test)]
mod tests {
    use super::date;

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
}
