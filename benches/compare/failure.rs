//! What can go wrong, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use beanring_testkit::bench::Error;

/// The end of the whole run, or of one measurement.
#[derive(Debug)]
pub enum Failure {
    /// No row has such a name.
    NoRows,
    /// No driver of beanring starts; the reasons.
    NoDriver(String),
    /// A signal came, or the program that started this one is gone.
    Interrupted,
    /// Signals cannot be received.
    Signals(nix::Error),
    /// A program cannot be started.
    Start(String, io::Error),
    /// A server ended at once; what it said.
    Ended(String),
    /// A server does not accept connections.
    Unreachable(String),
    /// The load ended badly; what it said.
    Load(String),
    /// The load took too long.
    TooLong(Duration),
    /// The figures of the load cannot be read.
    Figures(PathBuf, String),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
    /// The picture cannot be drawn.
    Draw(PathBuf, String),
    /// The page for the tables lacks the place for them.
    NoPlace(PathBuf),
    /// A server does not say how it is.
    Stats(String, io::Error),
    /// A server does not end when it is asked to.
    Unstopped(String),
    /// Jobs that it should have, and that it has after a restart.
    Lost(u64, u64),
    /// Too few descriptors.
    Descriptors(nix::Error),
}

impl Failure {
    /// Of this program.
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
            Failure::NoRows => write!(f, "no row is called so: --list names them"),
            Failure::NoDriver(why) => write!(f, "no driver that was asked for starts here: {why}"),
            Failure::Interrupted => write!(f, "interrupted; the servers are stopped, nothing was written"),
            Failure::Signals(error) => write!(f, "signals cannot be received: {error}"),
            Failure::Start(name, error) => write!(f, "{name} cannot be started (is it installed?): {error}"),
            Failure::Ended(said) => write!(f, "it ended at its start: {said}"),
            Failure::Unreachable(name) => write!(f, "{name} accepts no connection"),
            Failure::Load(said) => write!(f, "the load failed: {said}"),
            Failure::TooLong(limit) => write!(f, "not done after {} s", limit.as_secs()),
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
            Failure::Unstopped(name) => write!(f, "{name} does not end when it is asked to"),
            Failure::Lost(put, found) => write!(f, "{put} jobs were put, {found} are back after a restart"),
            Failure::Descriptors(error) => {
                write!(f, "the limit of open files cannot be raised ({error}): raise `ulimit -n`")
            }
        }
    }
}
