//! What ends a run without figures, and what is only counted.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::body::BodyFault;
use crate::meter::Command;

/// How much of a strange reply is shown.
const EXCERPT_BYTES: usize = 48;

/// Why there are no figures.
#[derive(Debug)]
pub enum Failure {
    /// Options that do not fit together.
    Usage(&'static str),
    /// `--addr` is not an address, or cannot be looked up.
    Address(String, io::Error),
    /// Nobody there.
    Connect(String, io::Error),
    /// A connection that broke.
    Broken(io::Error),
    /// A connection that the server closed.
    Closed,
    /// An answer that does not fit the command.
    Nonsense {
        /// The command.
        to: Command,
        /// The answer's beginning.
        got: String,
    },
    /// A command was refused in a way that makes the rest pointless.
    Refused {
        /// The command.
        to: Command,
        /// The answer.
        word: &'static str,
    },
    /// An answer to nothing.
    Unasked,
    /// No answer for this long.
    Silent(Duration),
    /// `--pid` names a process that cannot be read.
    Process(u32, io::Error),
    /// Too few descriptors for the connections.
    Descriptors {
        /// For this run.
        needed: u64,
        /// The hard limit.
        allowed: u64,
    },
    /// All answers were errors, the first of them this.
    NothingDone(Option<Complaint>),
    /// The schedule is so far beyond the server that nothing of the window could begin.
    Overloaded,
    /// The clock that paces the open loop.
    Timer(io::Error),
    /// `--io tokio-uring` and a kernel that refuses it.
    Uring(io::Error),
    /// `--bare-loop` could not serve.
    BareLoop(String),
    /// No runtime at all.
    Runtime(io::Error),
    /// `--json` cannot be written.
    Output(PathBuf, io::Error),
}

impl Failure {
    /// An answer that does not fit `to`.
    pub fn nonsense(to: Command, input: &[u8]) -> Failure {
        let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(input.len()).min(EXCERPT_BYTES);
        let got = input[..end].trim_ascii_end().escape_ascii().to_string();
        Failure::Nonsense { to, got }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) => f.write_str(text),
            Failure::Address(addr, error) => write!(f, "--addr {addr}: {error} (HOST:PORT or unix:PATH)"),
            Failure::Connect(target, error) => write!(f, "cannot connect to {target}: {error}"),
            Failure::Broken(error) => write!(f, "a connection broke: {error}"),
            Failure::Closed => f.write_str("the server closed a connection"),
            Failure::Nonsense { to, got } => {
                write!(f, "the answer to {} makes no sense: \"{got}\"", to.text())
            }
            Failure::Refused { to, word } => write!(f, "the server answers {word} to {}", to.text()),
            Failure::Unasked => f.write_str("the server answered more than it was asked"),
            Failure::Silent(time) => write!(f, "no answer for {} s", time.as_secs_f64()),
            Failure::Process(pid, error) => write!(f, "--pid {pid}: {error}"),
            Failure::Descriptors { needed, allowed } => {
                write!(f, "{needed} descriptors are needed, the hard limit (ulimit -Hn) is {allowed}")
            }
            Failure::NothingDone(Some(complaint)) => write!(f, "no operation succeeded: {complaint}"),
            Failure::NothingDone(None) => f.write_str("no operation was completed in the measured time"),
            Failure::Overloaded => f.write_str(
                "no operation of the measured time was completed: the server, or this load, cannot keep up with --rate",
            ),
            Failure::Timer(error) => write!(f, "timerfd: {error}"),
            Failure::Uring(error) => write!(
                f,
                "io_uring is refused: {error} (a seccomp filter, as of containers, or kernel.io_uring_disabled; \
                --io epoll does without)"
            ),
            Failure::BareLoop(what) => write!(f, "--bare-loop: {what}"),
            Failure::Runtime(error) => write!(f, "no runtime: {error}"),
            Failure::Output(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

/// An answer that fits the protocol and is not the one hoped for. It is counted, and shown the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// A command was answered by this word.
    Refused(Command, &'static str),
    /// A body is not one that was put.
    Body(BodyFault),
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Complaint::Refused(command, word) => write!(f, "{} was answered {word}", command.text()),
            Complaint::Body(BodyFault::Length) => f.write_str("a body has another length than was put"),
            Complaint::Body(BodyFault::Bytes) => f.write_str("a body has other bytes than were put"),
        }
    }
}
