//! Errors that end a run without results, and errors that are only counted.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use beanring::io::socket::text_of;
use thiserror::Error;

use crate::body::BodyFault;
use crate::meter::Command;

/// How much of an unexpected reply is shown, in bytes.
const EXCERPT_BYTES: usize = 48;

/// Why there are no results.
#[derive(Debug, Error)]
pub enum Failure {
    /// Options that do not fit together.
    #[error("{0}")]
    Usage(&'static str),
    /// The certificates for TLS, as a sentence.
    #[cfg(feature = "tls")]
    #[error("{0}")]
    Tls(String),
    /// `--addr` is no address, or cannot be resolved.
    #[error("--addr {}: {} (HOST:PORT or unix:PATH)", .0, text_of(.1))]
    Address(String, io::Error),
    /// No server accepts the connection.
    #[error("cannot connect to {}: {}", .0, text_of(.1))]
    Connect(String, io::Error),
    /// A connection failed.
    #[error("a connection broke: {}", text_of(.0))]
    Broken(io::Error),
    #[error("the server closed a connection")]
    Closed,
    /// A reply that does not match the command. `got` is its start.
    #[error("the answer to {} makes no sense: \"{got}\"", .to.text())]
    Nonsense { to: Command, got: String },
    /// An error reply that makes the rest of the run pointless.
    #[error("the server answers {word} to {}", .to.text())]
    Refused { to: Command, word: &'static str },
    #[error("the server answered more than it was asked")]
    Unasked,
    /// No reply for this long.
    #[error("no answer for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// `--pid` names a process that cannot be read.
    #[error("--pid {}: {}", .0, text_of(.1))]
    Process(u32, io::Error),
    /// Too few descriptors for the connections: those needed, and the hard limit.
    #[error("{needed} descriptors are needed, the hard limit (ulimit -Hn) is {allowed}")]
    Descriptors { needed: u64, allowed: u64 },
    /// All replies were errors; the first of them.
    #[error("no operation succeeded: {0}")]
    NothingDone(Complaint),
    #[error("no operation was completed in the measured time")]
    NothingMeasured,
    /// The schedule is so much faster than the server that no operation of the window began.
    #[error(
        "no operation of the measured time was completed: the server, or this load, cannot keep up with --rate"
    )]
    Overloaded,
    /// The timer of the open loop failed.
    #[error("timerfd: {}", text_of(.0))]
    Timer(io::Error),
    /// `--io tokio-uring`, but the kernel refuses io_uring.
    #[error(
        "io_uring is refused: {} (a seccomp filter, as of containers, or kernel.io_uring_disabled; --io epoll does without)",
        text_of(.0)
    )]
    Uring(io::Error),
    #[error("--baseline: {0}")]
    BareLoop(String),
    /// The runtime cannot be created.
    #[error("no runtime: {}", text_of(.0))]
    Runtime(io::Error),
    /// The JSON cannot be written.
    #[error("{}: {}", .0.display(), text_of(.1))]
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

/// A valid reply that means failure. It is counted, and the first one is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Complaint {
    /// The reply to a command.
    #[error("{} was answered {}", .0.text(), .1)]
    Refused(Command, &'static str),
    /// A body is not one that was put.
    #[error("{0}")]
    Body(BodyFault),
}
