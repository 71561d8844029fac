//! What a driver counts, for `stats` and `/metrics`.

use std::cell::{RefCell, RefMut};

use super::host::{ProcessFiles, cpu_usage};
use super::log_writer;
use crate::server::{DriverCounts, DriverStats, ThreadStats};

/// Reads what the threads of a driver use.
pub type ReadThreads = Box<dyn Fn() -> ThreadStats>;

/// The counts of a driver, which its server reads. Both run on one thread.
#[derive(Default)]
pub struct Counts {
    /// Without what [`read`](DriverCounts::read) asks the kernel for.
    kept: RefCell<DriverStats>,
    threads: RefCell<Option<ReadThreads>>,
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

    /// Sets how to read what the threads of the driver use, if it has some.
    pub fn set_threads(&self, read: Option<ReadThreads>) {
        *self.threads.borrow_mut() = read;
    }
}

impl DriverCounts for Counts {
    fn read(&self) -> DriverStats {
        DriverStats {
            threads: self.threads.borrow().as_ref().map(|read| read()),
            cpu: cpu_usage(),
            process: self.process.usage(),
            lost_log_lines: log_writer::lost(),
            ..self.kept.borrow().clone()
        }
    }
}
