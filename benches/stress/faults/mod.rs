//! The faults. Each is a module with the same verbs.

mod announced;
mod clock;
mod flood;
mod half_closed;
mod killed;
mod memory;
mod signals;
mod slow;
mod stopped;
mod stuffed;
mod unread;

use std::path::Path;

use nix::sys::signal::Signal;

use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;
use crate::run::END;
use crate::server::Setup;
use beanring_testkit::bench::logs::{Log, Sync};

/// Something that clients, or the machine, do to a server.
pub trait Fault: std::marker::Sync {
    /// As typed.
    fn name(&self) -> &'static str;

    /// For people.
    fn title(&self) -> &'static str;

    /// How long it lasts, in seconds; under the first of the drivers it may be longer than under the others.
    fn seconds(&self, options: &Options, is_first: bool) -> f64;

    /// How the server is started, or why this fault cannot be had here. Files may be left in the directory.
    fn setup(&self, _options: &Options, _directory: &Path) -> Result<Setup, String> {
        Ok(Setup::default())
    }

    /// The log that the server keeps, if it does.
    fn log(&self) -> Option<Log> {
        None
    }

    /// Does it, until [`Field::rages`] says that it is over. The crowd has left when it returns.
    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure>;

    /// Whether the server takes no jobs after it.
    fn drains(&self) -> bool {
        false
    }

    /// The signals that end the server.
    fn end(&self) -> &'static [Signal] {
        END
    }
}

/// All of them, in the order of the table.
pub fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(unread::Unread),
        Box::new(stuffed::Stuffed),
        Box::new(slow::Slow),
        Box::new(announced::Announced),
        Box::new(flood::Flood { log: None }),
        Box::new(flood::Flood { log: Some(SMALL_FILES) }),
        Box::new(half_closed::HalfClosed),
        Box::new(killed::Killed { log: None }),
        Box::new(killed::Killed { log: Some(DURABLE) }),
        Box::new(stopped::Stopped),
        Box::new(clock::Clock),
        Box::new(signals::Signals),
        Box::new(memory::Memory),
    ]
}

/// A log that needs a new file every few moments.
const SMALL_FILES: Log = Log { sync: Sync::Often, file_bytes: Some(65_536) };

/// A log that every answer waits for.
const DURABLE: Log = Log { sync: Sync::Always, file_bytes: None };
