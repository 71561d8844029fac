//! What a driver counts, for `stats` and `/metrics`.

use std::cell::{RefCell, RefMut};

use super::host::{ProcessFiles, cpu_usage};
use super::log_writer;
use crate::server::{DriverCounts, DriverStats};

/// The counts of a driver, which its server reads. Both run on one thread.
#[derive(Default)]
pub struct Counts {
    /// Without what [`read`](DriverCounts::read) asks the kernel for.
    kept: RefCell<DriverStats>,
    process: ProcessFiles,
}

impl Counts {
    /// Begins with zeros.
    pub fn new(process: ProcessFiles) -> Self {
        Self { process, ..Self::default() }
    }

    /// The counts, to be changed.
    ///
    /// # Panics
    /// If an earlier result is still in use.
    #[inline]
    pub fn kept(&self) -> RefMut<'_, DriverStats> {
        self.kept.borrow_mut()
    }
}

impl DriverCounts for Counts {
    fn read(&self) -> DriverStats {
        DriverStats {
            cpu: cpu_usage(),
            process: self.process.usage(),
            lost_log_lines: log_writer::lost(),
            ..*self.kept.borrow()
        }
    }
}
