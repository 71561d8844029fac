//! Log lines that say that the disk of the job log is full.

use std::mem;

use tracing::{info, warn};

use crate::time::{Span, Time};
use crate::wal::Wal;

/// How often, at most, each of the two warnings is logged.
const WARNING_INTERVAL: Span = Span::from_secs(60);

/// Limits how often a full disk is logged.
#[derive(Default)]
pub(super) struct FullDiskWarnings {
    /// When a line last said that a new file found no space.
    full_at: Option<Time>,
    /// When a line last said that a write waits.
    stalled_at: Option<Time>,
    /// Whether a line said that the current write waits.
    is_stall_logged: bool,
}

impl FullDiskWarnings {
    fn is_due(last: &mut Option<Time>, now: Time) -> bool {
        let is_due = last.is_none_or(|at| now.since(at) >= WARNING_INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    /// Logs what an operator has to know of the state of the job log after a disk operation.
    pub fn note(&mut self, log: &Wal, now: Time) {
        if log.is_stalled() {
            if Self::is_due(&mut self.stalled_at, now) {
                self.is_stall_logged = true;
                warn!(
                    "the disk of the job log (-b) is full: a write waits for space, and clients whose commands change or \
                     reserve a job wait with it; free some space"
                );
            }
        } else if mem::take(&mut self.is_stall_logged) {
            info!("the write to the job log that waited for space is done");
        } else if log.is_full() && Self::is_due(&mut self.full_at, now) {
            warn!(
                "the disk of the job log (-b) is full: no new file can be created, and put is answered OUT_OF_MEMORY when \
                 the prepared files are used up; free some space"
            );
        }
    }
}
