//! Errors that end a run without results, and errors that are only counted.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use beanring::io::socket::text_of;

use crate::body::BodyFault;
use crate::meter::Command;

/// How much of an unexpected reply is shown, in bytes.
const EXCERPT_BYTES: usize = 48;

/// Why there are no results.
#[derive(Debug)]
pub enum Failure {
    /// Options that do not fit together.
    Usage(&'static str),
    /// The certificates for TLS, as a sentence.
    Tls(String),
    /// `--addr` is no address, or cannot be resolved.
    Address(String, io::Error),
    /// No server accepts the connection.
    Connect(String, io::Error),
    /// A connection failed.
    Broken(io::Error),
    /// The server closed a connection.
    Closed,
    /// A reply that does not match the command.
    Nonsense {
        to: Command,
        /// The start of the reply.
        got: String,
    },
    /// An error reply that makes the rest of the run pointless.
    Refused { to: Command, word: &'static str },
    /// A reply without a command.
    Unasked,
    /// No reply for this long.
    Silent(Duration),
    /// `--pid` names a process that cannot be read.
    Process(u32, io::Error),
    /// Too few descriptors for the connections.
    Descriptors {
        /// Required for this run.
        needed: u64,
        /// The hard limit.
        allowed: u64,
    },
    /// All replies were errors; the first of them.
    NothingDone(Option<Complaint>),
    /// The schedule is so much faster than the server that no operation of the window began.
    Overloaded,
    /// The timer of the open loop failed.
    Timer(io::Error),
    /// `--io tokio-uring`, but the kernel refuses io_uring.
    Uring(io::Error),
    /// `--baseline` failed.
    BareLoop(String),
    /// The runtime cannot be created.
    Runtime(io::Error),
    /// The JSON cannot be written.
    Output(PathBuf, io::Error),
}

impl Failure {
    /// Returns the error for a reply that does not match `to`.
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
            Failure::Tls(text) => f.write_str(text),
            Failure::Address(addr, error) => write!(f, "--addr {addr}: {} (HOST:PORT or unix:PATH)", text_of(error)),
            Failure::Connect(target, error) => write!(f, "cannot connect to {target}: {}", text_of(error)),
            Failure::Broken(error) => write!(f, "a connection broke: {}", text_of(error)),
            Failure::Closed => f.write_str("the server closed a connection"),
            Failure::Nonsense { to, got } => {
                write!(f, "the answer to {} makes no sense: \"{got}\"", to.text())
            }
            Failure::Refused { to, word } => write!(f, "the server answers {word} to {}", to.text()),
            Failure::Unasked => f.write_str("the server answered more than it was asked"),
            Failure::Silent(time) => write!(f, "no answer for {} s", time.as_secs_f64()),
            Failure::Process(pid, error) => write!(f, "--pid {pid}: {}", text_of(error)),
            Failure::Descriptors { needed, allowed } => {
                write!(f, "{needed} descriptors are needed, the hard limit (ulimit -Hn) is {allowed}")
            }
            Failure::NothingDone(Some(complaint)) => write!(f, "no operation succeeded: {complaint}"),
            Failure::NothingDone(None) => f.write_str("no operation was completed in the measured time"),
            Failure::Overloaded => f.write_str(
                "no operation of the measured time was completed: the server, or this load, cannot keep up with --rate",
            ),
            Failure::Timer(error) => write!(f, "timerfd: {}", text_of(error)),
            Failure::Uring(error) => write!(
                f,
                "io_uring is refused: {} (a seccomp filter, as of containers, or kernel.io_uring_disabled; --io epoll does without)",
                text_of(error)
            ),
            Failure::BareLoop(what) => write!(f, "--baseline: {what}"),
            Failure::Runtime(error) => write!(f, "no runtime: {}", text_of(error)),
            Failure::Output(path, error) => write!(f, "{}: {}", path.display(), text_of(error)),
        }
    }
}

/// A valid reply that means failure. It is counted, and the first one is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// The reply to a command.
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
