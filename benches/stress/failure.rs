//! Errors of a run.

use std::fmt;
use std::io;
use std::path::PathBuf;

use beanring_testkit::bench::Error;

/// An error that ends the whole run, or one fault.
#[derive(Debug)]
pub enum Failure {
    /// No fault has such a name.
    UnknownFault,
    /// No driver starts; the reasons.
    NoDriver(String),
    /// A signal arrived, or the program that started this one has ended.
    Interrupted,
    /// Signals cannot be received.
    Signals(nix::Error),
    /// A program cannot be started.
    Start(String, io::Error),
    /// The server ended; its output.
    Ended(String),
    /// The server does not accept connections.
    Unreachable,
    /// The server ended with another exit code than 0, or not at all.
    Unstopped(String),
    /// Facts of a process cannot be read from /proc.
    Process(u32, io::Error),
    /// `stats` failed.
    Stats(io::Error),
    /// A client of a fault failed.
    Client(&'static str, io::Error),
    /// The server gave a wrong reply.
    Answer(String),
    /// A file cannot be written.
    Write(PathBuf, io::Error),
    /// The limit of descriptors cannot be raised.
    Descriptors(nix::Error),
    /// The number of faults in which a limit was exceeded.
    Bounds(usize),
}

impl Failure {
    /// Returns the exit code of this program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::UnknownFault => 2,
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
            Failure::UnknownFault => write!(f, "no fault has this name: --list shows the names"),
            Failure::NoDriver(why) => write!(f, "none of the selected drivers starts here: {why}"),
            Failure::Interrupted => write!(f, "interrupted; the servers are stopped, nothing was written"),
            Failure::Signals(error) => write!(f, "signals cannot be received: {error}"),
            Failure::Start(name, error) => write!(f, "{name} cannot be started (is it installed?): {error}"),
            Failure::Ended(output) => write!(f, "the server ended: {output}"),
            Failure::Unreachable => write!(f, "the server does not accept connections"),
            Failure::Unstopped(how) => write!(f, "the server did not stop as it should: {how}"),
            Failure::Process(pid, error) => write!(f, "process {pid}: {error}"),
            Failure::Stats(error) => write!(f, "stats: {error}"),
            Failure::Client(what, error) => write!(f, "a client failed to {what}: {error}"),
            Failure::Answer(what) => write!(f, "{what}"),
            Failure::Write(path, error) => write!(f, "{} cannot be written: {error}", path.display()),
            Failure::Descriptors(error) => {
                write!(f, "the limit of open files cannot be raised ({error}): raise `ulimit -n`")
            }
            Failure::Bounds(faults) => write!(f, "a limit was exceeded in {faults} of the faults"),
        }
    }
}
