//! Errors of a run.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use beanring_testkit::bench::Error;

/// An error that ends the whole run, or one measurement.
#[derive(Debug)]
pub enum Failure {
    /// No row has such a name.
    NoRows,
    /// No driver of beanring starts; the reasons.
    NoDriver(String),
    /// A signal arrived, or the program that started this one has ended.
    Interrupted,
    /// Signals cannot be received.
    Signals(nix::Error),
    /// A program cannot be started.
    Start(String, io::Error),
    /// A server ended during its start; its output.
    Ended(String),
    /// A server does not accept connections.
    Unreachable(String),
    /// There is no veth pair, and why.
    Cable(String),
    /// The load failed; its output.
    Load(String),
    /// The load took too long.
    TooLong(Duration),
    /// The results of the load cannot be read.
    Figures(PathBuf, String),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
    /// The plots cannot be drawn.
    Draw(PathBuf, String),
    /// The page lacks the markers between which the tables belong.
    NoPlace(PathBuf),
    /// `stats` failed.
    Stats(String, io::Error),
    /// A server does not stop.
    Unstopped(String),
    /// Jobs that were put, and that were recovered by a restart.
    Lost(u64, u64),
    /// The limit of descriptors cannot be raised.
    Descriptors(nix::Error),
}

impl Failure {
    /// Returns the exit code of this program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::NoRows => 2,
            Failure::Interrupted => 130,
            _ => 1,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Interrupted => Failure::Interrupted,
            Error::Signals(error) => Failure::Signals(error),
            Error::Write(path, error) => Failure::Write(path, error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoRows => write!(f, "no row has this name: --list shows the names"),
            Failure::NoDriver(why) => write!(f, "none of the selected drivers starts here: {why}"),
            Failure::Interrupted => write!(f, "interrupted; the servers are stopped, nothing was written"),
            Failure::Signals(error) => write!(f, "signals cannot be received: {error}"),
            Failure::Start(name, error) => write!(f, "{name} cannot be started (is it installed?): {error}"),
            Failure::Ended(output) => write!(f, "the server ended during its start: {output}"),
            Failure::Unreachable(name) => write!(f, "{name} does not accept connections"),
            Failure::Cable(why) => write!(f, "no veth pair can be made: {why}"),
            Failure::Load(output) => write!(f, "the load failed: {output}"),
            Failure::TooLong(limit) => write!(f, "not finished after {} s", limit.as_secs()),
            Failure::Figures(path, error) => write!(f, "{}: {error}", path.display()),
            Failure::Write(path, error) => write!(f, "{} cannot be written: {error}", path.display()),
            Failure::Draw(path, error) => write!(f, "{} cannot be drawn: {error}", path.display()),
            Failure::NoPlace(path) => {
                write!(
                    f,
                    "{} has no lines `{}` and `{}`",
                    path.display(),
                    crate::report::BEGIN,
                    crate::report::END
                )
            }
            Failure::Stats(name, error) => write!(f, "{name}: {error}"),
            Failure::Unstopped(name) => write!(f, "{name} does not stop after SIGTERM"),
            Failure::Lost(put, found) => {
                write!(f, "{put} jobs were put, {found} were recovered by a restart")
            }
            Failure::Descriptors(error) => {
                write!(f, "the limit of open files cannot be raised ({error}): raise `ulimit -n`")
            }
        }
    }
}
