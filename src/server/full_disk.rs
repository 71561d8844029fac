//! Log lines about a full disk of the job log.

use std::mem;

use tracing::{info, warn};

use crate::time::{Span, Time};
use crate::values::log_limit::LogLimit;
use crate::wal::Wal;

/// How often, at most, each of the two warnings is logged.
const WARNING_INTERVAL: Span = Span::from_secs(60);

/// Limits how often a full disk is logged.
pub(super) struct FullDiskWarnings {
    /// A new segment found no space.
    full: LogLimit,
    /// A write waits for space.
    stalled: LogLimit,
    /// Whether a line said that the current write waits.
    is_stall_logged: bool,
    /// Whether a line said that a new segment found no space.
    is_full_logged: bool,
}

impl Default for FullDiskWarnings {
    fn default() -> Self {
        let limit = || LogLimit::every(WARNING_INTERVAL);
        Self { full: limit(), stalled: limit(), is_stall_logged: false, is_full_logged: false }
    }
}

impl FullDiskWarnings {
    /// Logs what an operator has to know of the state of the job log after a disk operation.
    pub fn note(&mut self, wal: &Wal, now: Time) {
        if wal.is_stalled() {
            if self.stalled.admit(now).is_some() {
                self.is_stall_logged = true;
                if wal.is_in_database() {
                    warn!(
                        "the database of the job log (--replicate) has no space: an append waits, and so do clients whose \
                         commands change or reserve a job; give it some space"
                    );
                    return;
                }
                warn!(
                    "the disk of the job log (-b) is full: a write waits for space, and so do clients whose commands \
                     change or reserve a job; free some space"
                );
            }
        } else if mem::take(&mut self.is_stall_logged) {
            info!("{} has space again: the write that waited is complete", place(wal));
        } else if !wal.is_full() {
            if mem::take(&mut self.is_full_logged) {
                info!("{} has space again: put is accepted", place(wal));
            }
        } else if self.full.admit(now).is_some() {
            self.is_full_logged = true;
            if wal.is_in_database() {
                warn!(
                    "the database of the job log (--replicate) has little space: put is refused with OUT_OF_MEMORY, and other \
                     commands use what was kept in reserve; give it some space, or delete jobs"
                );
                return;
            }
            warn!(
                "the disk of the job log (-b) is full: no new segment can be created, and put is refused with \
                 OUT_OF_MEMORY once the prepared segments are used up; free some space"
            );
        }
    }
}

const fn place(wal: &Wal) -> &'static str {
    if wal.is_in_database() { "the database of the job log" } else { "the disk of the job log" }
}
