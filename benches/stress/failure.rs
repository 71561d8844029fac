//! What can go wrong, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use beanring_testkit::bench::Error;

/// The end of the whole run, or of one fault.
#[derive(Debug)]
pub enum Failure {
    /// No fault has such a name.
    NoStorms,
    /// No driver starts; the reasons.
    NoDriver(String),
    /// A signal came, or the program that started this one is gone.
    Interrupted,
    /// Signals cannot be received.
    Signals(nix::Error),
    /// A program cannot be started.
    Start(String, io::Error),
    /// The server ended; what it said.
    Ended(String),
    /// The server does not accept connections.
    Unreachable,
    /// The server ended with another exit code than 0, or not at all.
    Unstopped(String),
    /// /proc does not say.
    Process(u32, io::Error),
    /// The server does not say how it is.
    Stats(io::Error),
    /// A client of a fault cannot do its part.
    Client(&'static str, io::Error),
    /// The server answered what it should not.
    Answer(String),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
    /// Too few descriptors.
    Descriptors(nix::Error),
    /// So many faults broke a bound.
    Bounds(usize),
}

impl Failure {
    /// Of this program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::NoStorms => 2,
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
            Failure::NoStorms => write!(f, "no fault is called so: --list names them"),
            Failure::NoDriver(why) => write!(f, "no driver that was asked for starts here: {why}"),
            Failure::Interrupted => write!(f, "interrupted; the servers are stopped, nothing was written"),
            Failure::Signals(error) => write!(f, "signals cannot be received: {error}"),
            Failure::Start(name, error) => write!(f, "{name} cannot be started (is it installed?): {error}"),
            Failure::Ended(said) => write!(f, "the server ended: {said}"),
            Failure::Unreachable => write!(f, "the server accepts no connection"),
            Failure::Unstopped(how) => write!(f, "the server was told to end: {how}"),
            Failure::Process(pid, error) => write!(f, "process {pid}: {error}"),
            Failure::Stats(error) => write!(f, "stats: {error}"),
            Failure::Client(what, error) => write!(f, "a client cannot {what}: {error}"),
            Failure::Answer(what) => write!(f, "{what}"),
            Failure::Write(path, error) => write!(f, "{} cannot be written: {error}", path.display()),
            Failure::Descriptors(error) => {
                write!(f, "the limit of open files cannot be raised ({error}): raise `ulimit -n`")
            }
            Failure::Bounds(faults) => write!(f, "a bound was broken in {faults} of the faults"),
        }
    }
}
