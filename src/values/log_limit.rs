//! Limits how often a line is logged whose cause may repeat at any rate, such as what a client does.

use std::fmt;

use tracing::warn;

use crate::time::{Span, Time};

/// Admits one line per interval, and counts those that it leaves out.
#[derive(Debug)]
pub struct LogLimit {
    interval: Span,
    last: Option<Time>,
    left_out: u64,
}

/// How many lines were left out since the last one. Displays as the end of a message: nothing if there were none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftOut(pub u64);

impl LogLimit {
    /// Admits the first line at once.
    pub const fn every(interval: Span) -> Self {
        Self { interval, last: None, left_out: 0 }
    }

    /// Returns how many lines were left out, if one may be logged now. Otherwise counts this one as left out.
    pub fn admit(&mut self, now: Time) -> Option<LeftOut> {
        if self.last.is_some_and(|at| now.since(at) < self.interval) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(LeftOut(std::mem::take(&mut self.left_out)))
    }

    /// Logs how many lines were left out since the last one, if any were: no further line will say so. `what` names them.
    pub fn end(&mut self, what: &str) {
        match std::mem::take(&mut self.left_out) {
            0 => {}
            count => warn!("warnings that were not logged since the last such line: {count} ({what})"),
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
}
