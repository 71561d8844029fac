//! The faults, a module each.

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

use crate::context::Context;
use crate::failure::Failure;
use crate::options::Options;
use crate::run::END;
use crate::server::Setup;
use beanring_testkit::bench::logs::{Log, Sync};

/// An event that clients, or the machine, inflict on a server.
pub trait Fault: std::marker::Sync {
    /// The name for the command line.
    fn name(&self) -> &'static str;

    /// A description.
    fn title(&self) -> &'static str;

    /// Duration in seconds. It may be longer under the first driver than under the others.
    fn seconds(&self, options: &Options, is_first: bool) -> f64;

    /// Returns how the server is started, or why this fault cannot be injected here. May leave files in the directory.
    fn setup(&self, _options: &Options, _directory: &Path) -> Result<Setup, String> {
        Ok(Setup::default())
    }

    /// The job log of the server, if it has one.
    fn log(&self) -> Option<Log> {
        None
    }

    /// Injects the fault until [`Context::is_running`] returns false. All its clients are disconnected when this returns.
    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure>;

    /// Returns whether the server refuses puts afterwards.
    fn drains(&self) -> bool {
        false
    }

    /// The signals that stop the server.
    fn end(&self) -> &'static [Signal] {
        END
    }
}

/// Returns all faults, in the order of the table.
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

/// A job log that needs a new file every few moments.
const SMALL_FILES: Log = Log { sync: Sync::Often, file_bytes: Some(65_536) };

/// A job log that every reply waits for.
const DURABLE: Log = Log { sync: Sync::Always, file_bytes: None };
