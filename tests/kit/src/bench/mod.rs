//! What the benchmarks share: the machine, the server processes and their files, and tables of results.

pub mod engine;
pub mod logs;
pub mod machine;
pub mod process;
pub mod server;
pub mod signals;
pub mod stats;
pub mod table;

use std::io;
use std::path::PathBuf;

/// The reason why a run ends early.
#[derive(Debug)]
pub enum Error {
    /// A signal arrived, or the program that started this one has ended.
    Interrupted,
    /// Signals cannot be received.
    Signals(nix::Error),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
}
