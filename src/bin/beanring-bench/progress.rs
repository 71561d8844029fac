//! A progress line on a terminal while a phase runs.

use std::io::{IsTerminal, Write, stderr};

use crate::meter::Meter;

/// Nanoseconds between two updates.
const PERIOD_NS: u64 = 500_000_000;

/// The progress line of a phase.
pub struct Progress {
    name: String,
    shown: bool,
    terminal: bool,
    last: (u64, u64),
}

impl Progress {
    /// Creates the line of the phase `name`.
    pub fn new(name: &str) -> Progress {
        Progress { name: name.to_owned(), shown: false, terminal: stderr().is_terminal(), last: (0, 0) }
    }

    /// Updates the line, at most twice per second.
    pub fn show(&mut self, meter: &Meter, now_ns: u64) {
        let (then_ns, before) = self.last;
        if !self.terminal || now_ns < then_ns + PERIOD_NS {
            return;
        }
        let replies = meter.replies();
        let rate = (replies - before) as f64 * 1e9 / (now_ns - then_ns) as f64;
        self.last = (now_ns, replies);
        let (operations, errors) = (meter.operations(), meter.errors());
        eprint!("\r\x1b[K{}: {operations} operations, {rate:.0} replies/s, {errors} errors", self.name);
        // An error here must not stop the run.
        let _ = stderr().flush();
        self.shown = true;
    }

    /// Erases the line.
    pub fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
            self.shown = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
