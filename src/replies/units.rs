//! Sizes and times with units, for people.

use std::fmt;

use crate::time;
use crate::values::byte_size::largest_unit;

/// A number of bytes: `512 B`, `1.5 KiB`, `12.0 MiB`. It is rounded down, so that `64.0 KiB` is never less than that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes(pub u64);

/// A number of seconds, with its two largest units: `45 s`, `3 min 5 s`, `2 d 4 h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seconds(pub u64);

/// A number of microseconds: `850 µs`, `1.2 ms`, `3.4 s`, `2 min 5 s`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Micros(pub u64);

/// A moment, in seconds since 1970: `2026-11-26 04:05:06 UTC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Date(pub u64);

/// The first second of the year 10000.
const YEAR_10000: u64 = 253_402_300_800;

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= YEAR_10000 {
            return f.write_str("after 9999");
        }
        f.write_str(&time::date(self.0).replace('T', " ").replace('Z', " UTC"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = self.0.checked_ilog2().unwrap_or(0) / 10;
        let Some(unit) = power.checked_sub(1) else { return write!(f, "{} B", self.0) };
        let unit = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit as usize];
        let tenths = (u128::from(self.0) * 10) >> (10 * power);
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")];
        match units.into_iter().find(|(seconds, ..)| self.0 >= *seconds) {
            None => write!(f, "{} s", self.0),
            Some((large, large_unit, small, small_unit)) => {
                write!(f, "{} {large_unit}", self.0 / large)?;
                match self.0 % large / small {
                    0 => Ok(()),
                    rest => write!(f, " {rest} {small_unit}"),
                }
            }
        }
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1000 => write!(f, "{} µs", self.0),
            1000..999_950 => write!(f, "{:.1} ms", self.0 as f64 / 1e3),
            999_950..60_000_000 => write!(f, "{:.1} s", self.0 as f64 / 1e6),
            _ => Seconds(self.0 / 1_000_000).fmt(f),
        }
    }
}

/// A time of a command: as it is below a minute, else with its two largest units.
pub fn time(time: time::Seconds) -> String {
    if time.as_whole() < 60 { format!("{time} s") } else { Seconds(time.as_whole().into()).to_string() }
}

/// A number of jobs: `1 job`, `2 jobs`.
pub fn jobs(count: u64) -> String {
    counted(count, "job")
}

/// A number of things: `1 run`, `2 runs`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A number of bytes that the command line takes, with the largest unit that leaves a whole number: `1536`, `64KiB`.
pub fn whole_size(bytes: u64) -> String {
    match largest_unit(bytes) {
        (number, Some(unit)) => format!("{number}{}iB", unit.to_ascii_uppercase()),
        (number, None) => number.to_string(),
    }
}

/// Shows a number of seconds in its largest whole unit: `90s`, `5m`.
pub fn whole_time(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let fits = |(factor, _): &(u64, &str)| seconds > 0 && seconds.is_multiple_of(*factor);
    let (factor, unit) = units.into_iter().find(fits).unwrap_or((1, "s"));
    format!("{}{unit}", seconds / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::size;

    #[test]
    fn dates_have_the_days_of_their_years() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (86_400 * 59 - 1, "1970-02-28 23:59:59 UTC"),
            (86_400 * 59, "1970-03-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
            (253_402_300_800, "after 9999"),
            (u64::MAX, "after 9999"),
        ] {
            assert_eq!(Date(seconds).to_string(), expected, "{seconds}");
        }
    }

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (65_535, "63.9 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (12 << 20, "12.0 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn whole_numbers_of_units() {
        for (bytes, text) in
            [(1000, "1000"), (1536, "1536"), (65_536, "64KiB"), (1_100_000, "1100000"), (3 << 30, "3GiB")]
        {
            assert_eq!(whole_size(bytes), text);
            assert_eq!(size::parse(text), Ok(bytes));
        }
        for (seconds, text) in
            [(0, "0s"), (45, "45s"), (90, "90s"), (300, "5m"), (7200, "2h"), (86_400, "1d"), (90_000, "25h")]
        {
            assert_eq!(whole_time(seconds), text);
            assert_eq!(size::seconds(text).map(u64::from), Ok(seconds));
        }
    }

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (185, "3 min 5 s"),
            (3600, "1 h"),
            (7260, "2 h 1 min"),
            (86_400, "1 d"),
            (187_200, "2 d 4 h"),
        ] {
            assert_eq!(Seconds(seconds).to_string(), text);
        }
        for (seconds, text) in
            [("0", "0 s"), ("0.25", "0.25 s"), ("59.999", "59.999 s"), ("90.5", "1 min 30 s")]
        {
            assert_eq!(time(time::Seconds::parse(seconds).expect("a time")), text);
        }
        for (micros, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1200, "1.2 ms"),
            (999_950, "1.0 s"),
            (3_400_000, "3.4 s"),
            (125_000_000, "2 min 5 s"),
        ] {
            assert_eq!(Micros(micros).to_string(), text);
        }
    }
}
