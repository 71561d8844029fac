//! The columns of the table of tubes: titles, cells, order, and which of them a terminal has room for.

use std::cmp::Ordering;

use clap::ValueEnum;

use super::tubes::Tube;
use crate::cli::verbs::Column;

/// The columns beside the name, by importance. A narrow terminal has the first of them.
const BY_IMPORTANCE: [Column; 10] = [
    Column::Ready,
    Column::Reserved,
    Column::Buried,
    Column::Delayed,
    Column::Held,
    Column::Oldest,
    Column::Puts,
    Column::Deletes,
    Column::Waiting,
    Column::Paused,
];

/// The least that the names get: a fifth of the terminal, within these bounds.
const NAME_WIDTH_MIN: u16 = 16;
const NAME_WIDTH_WANTED: u16 = 24;

impl Column {
    /// The width on the screen: that of the title with the mark of the order, and at least that of a cell.
    pub(super) const fn width(self) -> u16 {
        let title = self.title().len() as u16 + 1;
        if title < CELL_WIDTH { CELL_WIDTH } else { title }
    }

    /// The next column to sort by, or the one before.
    pub(super) fn beside(self, step: isize) -> Self {
        let all = Self::value_variants();
        all[(self as usize).wrapping_add_signed(step).wrapping_add(all.len()) % all.len()]
    }

    /// The text of a cell on the screen, except for the name.
    pub(super) fn cell_of_rate(self, tube: &Tube) -> String {
        let Some(counts) = &tube.counts else { return "?".to_owned() };
        match (self, counts.of(self)) {
            (Self::Puts, _) => rate(counts.put.per_second()),
            (Self::Deletes, _) => rate(counts.delete.per_second()),
            (Self::Oldest, _) if !counts.has_oldest || counts.of(Self::Ready) == 0 => none(),
            (Self::Paused, 0) => none(),
            (Self::Oldest | Self::Paused, seconds) => age(seconds),
            (_, number) => count(number),
        }
    }

    /// Compares two tubes. Numbers begin with the largest, and equal ones are in the order of their names.
    pub(super) fn compare(self, one: &Tube, other: &Tube) -> Ordering {
        // A tube without counts is behind the others.
        let number = |tube: &Tube| match (&tube.counts, self) {
            (None, _) => -1.0,
            (Some(counts), Self::Puts) => counts.put.per_second().unwrap_or(0.0),
            (Some(counts), Self::Deletes) => counts.delete.per_second().unwrap_or(0.0),
            (Some(counts), _) => counts.of(self) as f64,
        };
        let by_number = match self {
            Self::Name => Ordering::Equal,
            _ => number(other).total_cmp(&number(one)),
        };
        by_number.then_with(|| one.name.cmp(&other.name))
    }
}

/// Returns the width of the names, and the columns beside them. `has` tells whether the server knows a column.
pub(super) fn fitting(width: u16, has: impl Fn(Column) -> bool) -> (u16, Vec<Column>) {
    let mut free = width.saturating_sub((width / 5).clamp(NAME_WIDTH_MIN, NAME_WIDTH_WANTED));
    let mut shown = Vec::new();
    for column in BY_IMPORTANCE.into_iter().filter(|column| has(*column)) {
        match free.checked_sub(column.width() + 1) {
            Some(rest) => free = rest,
            None => break,
        }
        shown.push(column);
    }
    let used: u16 = shown.iter().map(|column| column.width() + 1).sum();
    (
        width.saturating_sub(used),
        Column::value_variants().iter().copied().filter(|column| shown.contains(column)).collect(),
    )
}

/// The longest cell: `9999999`, `1234.5M`, `59m 59s`.
const CELL_WIDTH: u16 = 7;

/// A count in at most seven characters.
pub(super) fn count(count: u64) -> String {
    match count {
        0..10_000_000 => count.to_string(),
        10_000_000..10_000_000_000 => format!("{:.1}M", count as f64 / 1e6),
        10_000_000_000..10_000_000_000_000 => format!("{:.1}G", count as f64 / 1e9),
        _ => format!("{:.0}G", count as f64 / 1e9),
    }
}

/// Something per second; `-` while it is not known.
pub(super) fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => none(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) => count(rate.round() as u64),
    }
}

/// A time with its two largest units, in at most seven characters: `45s`, `12m 5s`, `3d 4h`.
pub(super) fn age(seconds: u64) -> String {
    let (large, small, factor, rest) = match seconds {
        0..60 => return format!("{seconds}s"),
        60..3600 => ("m", "s", 60, seconds % 60),
        3600..86_400 => ("h", "m", 3600, seconds % 3600 / 60),
        86_400..8_640_000 => ("d", "h", 86_400, seconds % 86_400 / 3600),
        _ => return format!("{}d", seconds / 86_400),
    };
    match rest {
        0 => format!("{}{large}", seconds / factor),
        rest => format!("{}{large} {rest}{small}", seconds / factor),
    }
}

fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_short() {
        for (number, text) in [
            (0, "0"),
            (9_999_999, "9999999"),
            (10_000_000, "10.0M"),
            (9_999_940_000, "9999.9M"),
            (12_345_678_901, "12.3G"),
            (12_345_678_901_234, "12346G"),
        ] {
            assert_eq!(count(number), text);
            assert!(text.len() <= usize::from(CELL_WIDTH));
        }
        for (number, text) in [
            (None, "-"),
            (Some(0.0), "0"),
            (Some(0.25), "0.2"),
            (Some(9.96), "10"),
            (Some(12_345.6), "12346"),
        ] {
            assert_eq!(rate(number), text);
        }
        for (seconds, text) in [
            (59, "59s"),
            (60, "1m"),
            (3599, "59m 59s"),
            (86_399, "23h 59m"),
            (86_400, "1d"),
            (8_639_999, "99d 23h"),
            (8_640_000, "100d"),
        ] {
            assert_eq!(age(seconds), text);
            assert!(text.len() <= usize::from(CELL_WIDTH));
        }
    }

    #[test]
    fn narrow_terminals_have_fewer_columns() {
        let shown = |width, has: fn(Column) -> bool| {
            fitting(width, has).1.into_iter().map(Column::title).collect::<Vec<_>>().join(" ")
        };
        let titles = |width| shown(width, |column| column != Column::Held);
        assert_eq!(titles(20), "");
        assert_eq!(titles(40), "READY RESERVED");
        assert_eq!(titles(80), "READY RESERVED DELAYED BURIED PUT/S DELETE/S OLDEST");
        assert_eq!(titles(120), "READY RESERVED DELAYED BURIED WAITING PUT/S DELETE/S OLDEST PAUSED");
        let with_held = |width| shown(width, |_| true);
        assert_eq!(with_held(80), "READY RESERVED DELAYED BURIED HELD PUT/S OLDEST");
        assert_eq!(with_held(128), "READY RESERVED DELAYED BURIED HELD WAITING PUT/S DELETE/S OLDEST PAUSED");
        for width in 0..300 {
            let (name, columns) = fitting(width, |_| true);
            let used: u16 = columns.iter().map(|column| column.width() + 1).sum();
            assert_eq!(name + used, width);
        }
    }
}
