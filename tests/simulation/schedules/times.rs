//! The times of a schedule, found by a walk over all minutes.

use beanring_testkit::random::Random;

use super::local_time::{Date, ZONES, Zone};

pub const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;

/// Names that a line may have in place of numbers.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// When a schedule runs.
#[derive(Debug)]
pub struct Times {
    /// As `schedule-stats` shows it.
    pub text: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Every { seconds: u64 },
    Cron { fields: [Field; 5], zone: usize },
}

/// A field of a line: the numbers that it permits, and whether it begins with a star.
#[derive(Debug)]
struct Field {
    text: String,
    is_any: bool,
    permitted: u64,
}

impl Field {
    fn any() -> Self {
        Self { text: "*".to_owned(), is_any: true, permitted: u64::MAX }
    }

    fn of(text: String, numbers: impl IntoIterator<Item = u32>) -> Self {
        let permitted = numbers.into_iter().fold(0, |all, number| all | 1 << number);
        Self { is_any: text.starts_with('*'), text, permitted }
    }

    fn number(number: u32) -> Self {
        Self::of(number.to_string(), [number])
    }

    fn steps(step: u32, max: u32) -> Self {
        Self::of(format!("*/{step}"), (0..=max).step_by(step as usize))
    }

    fn range(from: u32, to: u32, step: u32) -> Self {
        let steps = if step > 1 { format!("/{step}") } else { String::new() };
        Self::of(format!("{from}-{to}{steps}"), (from..=to).step_by(step as usize))
    }

    fn list(mut numbers: Vec<u32>) -> Self {
        numbers.sort_unstable();
        numbers.dedup();
        let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
        Self::of(texts.join(","), numbers)
    }

    const fn permits(&self, number: u32) -> bool {
        self.permitted >> number & 1 == 1
    }

    /// A random field of a time of day. Small numbers are more likely: clocks change early in the day.
    fn of_day(max: u32, random: &mut Random) -> Self {
        let number = |random: &mut Random| {
            if random.chance(50) { random.below(4) as u32 } else { random.below(max as usize + 1) as u32 }
        };
        match random.below(8) {
            0..4 => Self::number(number(random)),
            4..6 => Self::list((0..1 + random.below(4)).map(|_| number(random)).collect()),
            6 => {
                let from = number(random).min(max - 3);
                Self::range(from, from + 3, 1 + random.below(2) as u32)
            }
            _ => Self::steps(random.pick(&[6, 7, 8, 12]), max),
        }
    }

    fn months(random: &mut Random) -> Self {
        let month = 1 + random.below(12) as u32;
        match random.below(16) {
            0 => Self::of(MONTHS[month as usize - 1].to_owned(), [month]),
            1 => Self::range(1, month, 1),
            _ => Self::any(),
        }
    }

    /// The fields of days of the month and of the week.
    fn days(random: &mut Random) -> [Self; 2] {
        let (day, weekday) = (1 + random.below(28) as u32, random.below(7) as u32);
        let named = |weekday: u32| Self::of(WEEKDAYS[weekday as usize].to_owned(), [weekday]);
        match random.below(12) {
            0 => [Self::range(day, day + 3, 1), Self::any()],
            1 => [Self::any(), named(weekday)],
            2 => [Self::any(), Self::range(1, 5, 1)],
            // Sunday is 7, too.
            3 => [Self::any(), Self::of("5,7".to_owned(), [5, 0])],
            4 => [Self::number(day), named(weekday)],
            _ => [Self::any(), Self::any()],
        }
    }
}

impl Times {
    pub fn random(span_seconds: u64, random: &mut Random) -> Self {
        if random.chance(35) { Self::every(span_seconds, random) } else { Self::cron(span_seconds, random) }
    }

    /// An interval that ends some times within the span.
    fn every(span_seconds: u64, random: &mut Random) -> Self {
        let parts = 1 << random.below(7);
        let seconds = 1 + span_seconds / (parts + random.below_u64(parts));
        let (number, unit, length) = match random.below(4) {
            0 => (seconds.div_ceil(86_400), "d", 86_400),
            1 => (seconds.div_ceil(3_600), "h", 3_600),
            2 => (seconds.div_ceil(60), "m", 60),
            _ => (seconds, random.pick(&["", "s"]), 1),
        };
        Self { text: format!("every:{number}{unit}"), kind: Kind::Every { seconds: number * length } }
    }

    fn cron(span_seconds: u64, random: &mut Random) -> Self {
        // A long run has few lines with many times.
        let is_minutely = random.below_u64(span_seconds / 3_600 + 1) < 6;
        let is_hourly = random.below_u64(span_seconds / 86_400 + 1) < 20;
        let (minutes, hours) = match random.below(6) {
            0 if is_minutely => (Field::any(), Field::any()),
            0 if is_hourly => (Field::number(random.below(60) as u32), Field::any()),
            1 if is_minutely => (Field::steps(random.pick(&[15, 20, 25]), 59), Field::any()),
            1 if is_hourly => (Field::any(), Field::number(random.below(4) as u32)),
            2 if is_hourly => (Field::of_day(59, random), Field::steps(random.pick(&[2, 3]), 23)),
            _ => (Field::of_day(59, random), Field::of_day(23, random)),
        };
        let [days, weekdays] = Field::days(random);
        let fields = [minutes, hours, days, Field::months(random), weekdays];
        let zone = random.below(ZONES.len());
        let mut words: Vec<&str> = fields.iter().map(|field| field.text.as_str()).collect();
        if zone > 0 || random.chance(50) {
            words.push(ZONES[zone]);
        }
        Self { text: words.join(" "), kind: Kind::Cron { fields, zone } }
    }

    /// Whether it names an hour and a minute.
    pub fn is_fixed(&self) -> bool {
        matches!(&self.kind, Kind::Cron { fields, .. } if !fields[0].is_any && !fields[1].is_any)
    }

    /// The first time after `after` and up to `until`, in nanoseconds. Intervals begin at `anchor`.
    pub fn first_after(&self, anchor: u64, after: u64, until: u64) -> Option<u64> {
        match &self.kind {
            Kind::Every { seconds } => {
                let every = seconds * SECOND;
                let count = after.saturating_sub(anchor) / every + 1;
                Some(anchor + count * every).filter(|&at| at <= until)
            }
            Kind::Cron { fields, zone } => {
                let minutes = after / MINUTE + 1..=until / MINUTE;
                minutes.into_iter().find(|&minute| is_due(fields, *zone, minute as i64)).map(|at| at * MINUTE)
            }
        }
    }
}

/// A line that names hours and minutes has each local time once: at the end of the gap that it is in, and at the first of two.
/// Otherwise it goes by what the clock shows.
fn is_due(fields: &[Field; 5], zone: usize, minute: i64) -> bool {
    let zone = Zone::get(zone);
    let is_shown = is_at(fields, zone.local(minute));
    if fields[0].is_any || fields[1].is_any {
        return is_shown;
    }
    is_shown && !zone.is_repeated(minute) || zone.skipped(minute).any(|local| is_at(fields, local))
}

fn is_at([minutes, hours, days, months, weekdays]: &[Field; 5], local: i64) -> bool {
    let of_day = local.rem_euclid(24 * 60) as u32;
    if !minutes.permits(of_day % 60) || !hours.permits(of_day / 60) {
        return false;
    }
    let Date { day, month, weekday } = Date::at(local);
    let (by_day, by_weekday) = (days.permits(day), weekdays.permits(weekday));
    let is_day = if days.is_any || weekdays.is_any { by_day && by_weekday } else { by_day || by_weekday };
    is_day && months.permits(month)
}
