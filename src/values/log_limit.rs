//! Limits how often a line is logged whose cause may repeat at any rate, such as what a client does.

use std::fmt;

use tracing::warn;

use crate::time::{Span, Time};

/// Admits some lines per interval, and counts those that it leaves out.
#[derive(Debug)]
pub struct LogLimit {
    lines_max: u32,
    interval: Span,
    /// The first line of the interval.
    begin: Option<Time>,
    /// Lines since then.
    lines: u32,
    left_out: u64,
}

/// How many lines were left out since the last one. Displays as the end of a message: nothing if there were none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftOut(pub u64);

impl LogLimit {
    /// Admits one line per interval, the first one at once.
    pub const fn every(interval: Span) -> Self {
        Self::lines(1, interval)
    }

    /// Admits this many lines per interval, which begins with the first of them.
    pub const fn lines(lines_max: u32, interval: Span) -> Self {
        Self { lines_max, interval, begin: None, lines: 0, left_out: 0 }
    }

    /// From when on a line may be logged.
    pub fn next(&self) -> Time {
        let is_used_up = self.lines == self.lines_max;
        self.begin.filter(|_| is_used_up).map_or(Time::ZERO, |begin| begin + self.interval)
    }

    /// Returns how many lines were left out, if one may be logged now. Otherwise counts this one as left out.
    pub fn admit(&mut self, now: Time) -> Option<LeftOut> {
        if self.begin.is_none_or(|at| now.since(at) >= self.interval) {
            (self.begin, self.lines) = (Some(now), 0);
        }
        if self.lines == self.lines_max {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(LeftOut(std::mem::take(&mut self.left_out)))
    }

    /// Counts a line as left out.
    pub const fn leave_out(&mut self) {
        self.left_out += 1;
    }

    /// Logs how many lines were left out since the last one, if any were: no further line will say so. `what` names them.
    pub fn end(&mut self, what: &str) {
        match std::mem::take(&mut self.left_out) {
            0 => {}
            count => warn!("lines that were not logged since the last such line: {count} ({what})"),
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} more since the last such line)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_interval_is_admitted_and_the_others_are_counted() {
        let mut limit = LogLimit::every(Span::from_secs(60));
        let begin = Time::from_nanos(7);
        for (second, expected) in [
            (0, Some("")),
            (1, None),
            (59, None),
            (60, Some(" (2 more since the last such line)")),
            (61, None),
            (120, Some(" (1 more since the last such line)")),
            (180, Some("")),
        ] {
            let admitted = limit.admit(begin + Span::from_secs(second)).map(|left_out| left_out.to_string());
            assert_eq!(admitted.as_deref(), expected, "second {second}");
        }
    }

    #[test]
    fn some_lines_per_interval_are_admitted() {
        let mut limit = LogLimit::lines(2, Span::from_secs(10));
        let admitted = [0, 1, 2, 9, 10, 11, 12]
            .map(|second| limit.admit(Time::ZERO + Span::from_secs(second)).map(|LeftOut(count)| count));
        assert_eq!(admitted, [Some(0), Some(0), None, None, Some(2), Some(0), None]);
    }
}
