//! When schedules run: cron lines where the local clock changes, as another program has them, and the last one of many times.

use beanring::time::{Span, Time, date};
use beanring::values::when::{When, WhenError};
use beanring_testkit::random::{Random, seeds};

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

/// `tests/queue/cron_cases.py` makes these, with the program that it names.
#[test]
fn lines_are_those_of_another_program_where_the_clock_changes() {
    let mut zones = std::collections::BTreeSet::new();
    let cases = include_str!("cron_cases.tsv").lines().filter(|line| !line.starts_with('#')).skip(1);
    let (mut count, mut wrong) = (0, Vec::new());
    for case in cases {
        let [line, zone, after, times] = case.split('\t').collect::<Vec<_>>()[..] else { panic!("{case}") };
        zones.insert(zone);
        count += 1;
        let when = When::restore(&format!("{line} {zone}")).expect(case);
        let mut last = at(after.parse().expect("a number"));
        for expected in times.split(' ') {
            let expected: u64 = expected.parse().expect("a number");
            let next = when.next(Time::ZERO, last).expect("there is a next one");
            if next != at(expected) {
                let next = next.since(Time::ZERO).as_secs();
                wrong.push(format!("{line} {zone}: {} and not {}", date(next), date(expected)));
                break;
            }
            last = next;
        }
    }
    assert!(count >= 40 && zones.len() == 5, "{count} cases in {zones:?}");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

/// A clock that has these times in a line of its own.
fn check(text: &str, after: u64, times: &[u64]) {
    let when = When::parse(text, at(after)).unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut last = at(after);
    for &expected in times {
        last = when.next(at(after), last).expect("there is a next one");
        assert_eq!(
            last,
            at(expected),
            "{text}: {} and not {}",
            date(last.since(Time::ZERO).as_secs()),
            date(expected)
        );
    }
}

#[test]
fn intervals_begin_when_the_schedule_is_put() {
    let begin = 1_800_000_007;
    check("every:1", begin, &[begin + 1, begin + 2]);
    check("every:90", begin, &[begin + 90, begin + 180]);
    check("every:15m", begin, &[begin + 900, begin + 1800]);
    check("every:2h", begin, &[begin + 7200]);
    check("every:366d", begin, &[begin + 366 * 86_400]);
    let when = When::restore("every:10").expect("an interval");
    assert_eq!(when.next(at(100), at(125)), Some(at(130)), "between two times");
    assert_eq!(when.last(at(100), at(110), at(1234)), at(1230));
}

/// 2026-11-29 00:00 UTC is a Sunday.
#[test]
fn each_field_is_that_of_a_crontab() {
    let sunday = 1_795_910_400;
    let (minute, hour, day) = (60, 3600, 86_400);
    check("* * * * *", sunday, &[sunday + minute, sunday + 2 * minute]);
    check("7 * * * *", sunday, &[sunday + 7 * minute, sunday + hour + 7 * minute]);
    check("0,30 1-2 * * *", sunday, &[sunday + hour, sunday + hour + 1800, sunday + 2 * hour]);
    check(
        "*/25 5 * * *",
        sunday,
        &[5, 5, 5]
            .map(|at| sunday + at * hour)
            .iter()
            .zip([0, 25, 50])
            .map(|(at, more)| at + more * minute)
            .collect::<Vec<_>>(),
    );
    check("10-50/20 0 * * *", sunday, &[10, 30, 50].map(|at| sunday + at * minute));
    check("0 12 1 * *", sunday, &[sunday + 2 * day + 12 * hour, sunday + 33 * day + 12 * hour]);
    check("0 0 * DEC *", sunday, &[sunday + 2 * day, sunday + 3 * day]);
    check("0 0 * * 7", sunday, &[sunday + 7 * day]);
    check("0 0 * * SUN", sunday, &[sunday + 7 * day]);
    check("0 0 * * 1-5", sunday, &[sunday + day, sunday + 2 * day]);
    // One of two restricted days is enough, as in every cron.
    check("0 0 1 * FRI", sunday, &[sunday + 2 * day, sunday + 5 * day, sunday + 12 * day]);
    // The leap day of 2028.
    check("0 0 29 2 *", sunday, &[sunday + (365 + 92) * day]);
    check("0 1 * * * Europe/Berlin", sunday, &[sunday + day]);
    check("  0   1 * * *   Asia/Kolkata ", sunday, &[sunday + 19 * hour + 1800]);
}

#[test]
fn what_is_no_line_says_why() {
    let now = at(1_795_910_400);
    let long = format!("{} * * * *", "1,".repeat(300));
    let wrong = |field: &str| match field {
        "minute" => WhenError::Field { name: "minute", numbers: "0 to 59" },
        "hour" => WhenError::Field { name: "hour", numbers: "0 to 23" },
        "day of the month" => WhenError::Field { name: "day of the month", numbers: "1 to 31" },
        "month" => WhenError::Field { name: "month", numbers: "1 to 12, or JAN to DEC" },
        _ => WhenError::Field { name: "day of the week", numbers: "0 to 7, or SUN to SAT" },
    };
    for (text, expected) in [
        ("", WhenError::Line),
        ("* * * *", WhenError::Line),
        ("60 * * * *", wrong("minute")),
        ("* 24 * * *", wrong("hour")),
        ("* * 0 * *", wrong("day of the month")),
        ("* * 32 * *", wrong("day of the month")),
        ("* * * 13 *", wrong("month")),
        ("* * * * 8", wrong("day of the week")),
        ("5-1 * * * *", wrong("minute")),
        ("*/0 * * * *", wrong("minute")),
        ("* * L * *", wrong("day of the month")),
        ("* * * * 5L", wrong("day of the week")),
        ("* * * * 5#2", wrong("day of the week")),
        ("* * 15W * *", wrong("day of the month")),
        ("H * * * *", wrong("minute")),
        ("? * * * *", wrong("minute")),
        ("@daily", WhenError::Line),
        ("* * * * * UTC more", WhenError::Line),
        ("* * * * * Mars/Phobos", WhenError::Zone),
        ("* * * * * ../etc/passwd", WhenError::Zone),
        ("0 0 31 2 *", WhenError::Never),
        ("0 0 31 4,6,9,11 *", WhenError::Never),
        ("every:", WhenError::Interval),
        ("every:0", WhenError::Interval),
        ("every:-1", WhenError::Interval),
        ("every:1.5", WhenError::Interval),
        ("every:367d", WhenError::Interval),
        ("every:4294967296", WhenError::Interval),
        ("every:99999999999d", WhenError::Interval),
        ("every:10 m", WhenError::Interval),
        (&*long, WhenError::TooLong),
    ] {
        assert_eq!(When::parse(text, now).err(), Some(expected), "{text:?}");
    }
}

/// A search that looks at few times agrees with one that looks at each.
#[test]
fn the_last_of_many_times_is_that_of_a_walk() {
    let lines = [
        "* * * * *",
        "*/7 3 * * *",
        "0 0 1 1 *",
        "30 2 * * * Europe/Berlin",
        "5 */3 * * MON America/New_York",
        "59 23 31 12 *",
        "* * 29 2 *",
        "0 0 * * * Australia/Lord_Howe",
    ];
    for seed in seeds(300) {
        let mut random = Random::new(seed);
        let when = When::restore(random.pick(&lines)).expect("a line");
        let begin = at(1_774_000_000 + random.below(40_000_000) as u64);
        let due = when.next(begin, begin).expect("there is a next one");
        let bits = 5 + random.below(18);
        let now = due + Span::from_secs(random.below(1 << bits) as u32);
        let mut last = due;
        while let Some(next) = when.next(begin, last).filter(|&next| next <= now) {
            last = next;
        }
        assert_eq!(when.last(begin, due, now), last, "seed {seed}: {when}, due {due:?}, now {now:?}");
    }
}

/// A log may contain any text. If it is accepted as a line, its times are in order.
#[test]
fn any_text_is_refused_or_has_times_in_order() {
    const FIELDS: [&str; 6] = ["*", "*/7", "2", "1-5", "3,6", "7"];
    const OTHERS: [&str; 17] = [
        "0",
        "59",
        "60",
        "5-1",
        "*/0",
        "29",
        "31",
        "FEB",
        "SUN-TUE",
        "L",
        "W",
        "#",
        "every:",
        "every:3d",
        "\u{e9}",
        "UTC",
        "America/St_Johns",
    ];
    let mut lines = 0;
    for seed in seeds(5_000) {
        let mut random = Random::new(seed);
        let count = if random.below(8) == 0 { random.below(9) } else { 5 + random.below(2) };
        let text = (0..count)
            .map(|_| if random.below(4) == 0 { random.pick(&OTHERS) } else { random.pick(&FIELDS) })
            .collect::<Vec<_>>()
            .join(" ");
        let text = if random.below(10) == 0 { text.replacen(' ', "", 1) } else { text };
        let Ok(when) = When::restore(&text) else { continue };
        lines += 1;
        let begin = at(random.below(u32::MAX as usize) as u64);
        let mut last = begin;
        for _ in 0..5 {
            let Some(next) = when.next(begin, last) else { break };
            assert!(next > last, "seed {seed}: {text:?} after {last:?}");
            last = next;
        }
        assert!(
            when.next(Time::ZERO, at(u64::from(u32::MAX) * 4)).is_none_or(|next| next > begin),
            "seed {seed}: {text:?}"
        );
    }
    assert!(lines > 500, "{lines} of the texts are lines");
}
