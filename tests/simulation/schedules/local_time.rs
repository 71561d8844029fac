//! Local time, minute by minute: a calendar, and the offsets of some zones. Only the offsets come from a library.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

/// Zones of schedules. A line without a zone has the first.
pub const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "America/St_Johns",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
];

/// 2025-01-01 00:00 UTC, in minutes since 1970. A Wednesday.
const BEGIN: i64 = 28_928_160;
const YEARS: i64 = 4;
const DAY: i64 = 24 * 60;

static TABLES: LazyLock<Vec<Zone>> = LazyLock::new(|| ZONES.iter().map(|name| Zone::new(name)).collect());

/// The date of each day from `BEGIN` on: day, month, and day of the week.
static CALENDAR: LazyLock<Vec<[u32; 3]>> = LazyLock::new(|| {
    let lengths = |year: i64| {
        let february = if year % 4 == 0 { 29 } else { 28 };
        [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    };
    let dates = (2025..2025 + YEARS).flat_map(|year| {
        let months = lengths(year).into_iter().zip(1..);
        months.flat_map(|(length, month)| (1..=length).map(move |day| (day, month)))
    });
    dates.zip(3..).map(|((day, month), weekday)| [day, month, weekday % 7]).collect()
});

/// The offsets of a zone, in minutes.
pub struct Zone {
    first: i64,
    pub changes: Vec<Change>,
}

/// A change of the local clock.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The first minute with the new offset.
    pub at: i64,
    before: i64,
    after: i64,
}

/// A date.
pub struct Date {
    pub day: u32,
    pub month: u32,
    /// Sunday is 0.
    pub weekday: u32,
}

fn offset(zone: &TimeZone, minute: i64) -> i64 {
    let at = Timestamp::from_second(minute * 60).expect("a time of these years");
    i64::from(zone.to_offset(at).seconds()) / 60
}

impl Zone {
    pub fn get(zone: usize) -> &'static Self {
        &TABLES[zone]
    }

    fn new(name: &str) -> Self {
        let zone = TimeZoneDatabase::bundled().get(name).expect("the zone is known");
        let first = offset(&zone, BEGIN);
        let (mut before, mut changes) = (first, Vec::new());
        for hour in (BEGIN..BEGIN + (YEARS * 365 - 1) * DAY).step_by(60) {
            if offset(&zone, hour + 60) != before {
                let is_new = |&at: &i64| offset(&zone, at) != before;
                let at = (hour + 1..=hour + 60).find(is_new).expect("it is one of these");
                let after = offset(&zone, at);
                changes.push(Change { at, before, after });
                before = after;
            }
        }
        Self { first, changes }
    }

    /// The last change up to this minute.
    fn last_change(&self, minute: i64) -> Option<&Change> {
        self.changes.iter().rfind(|change| change.at <= minute)
    }

    /// The local time at a minute.
    pub fn local(&self, minute: i64) -> i64 {
        minute + self.last_change(minute).map_or(self.first, |change| change.after)
    }

    /// Whether the clock has shown the same local time before.
    pub fn is_repeated(&self, minute: i64) -> bool {
        self.last_change(minute).is_some_and(|change| minute + change.after < change.at + change.before)
    }

    /// The local times that the clock skips at this minute.
    pub fn skipped(&self, minute: i64) -> std::ops::Range<i64> {
        let change = self.last_change(minute).filter(|change| change.at == minute);
        change.map_or(0..0, |change| minute + change.before..minute + change.after)
    }
}

impl Date {
    /// The date at a local time.
    pub fn at(local: i64) -> Self {
        let days = (local - BEGIN).div_euclid(DAY);
        let [day, month, weekday] = CALENDAR[days as usize];
        Self { day, month, weekday }
    }
}
