//! Why a verb of the client fails, and with which exit code.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use super::tls_problem::TlsProblem;
use super::{ReadError, Untrusted, escaped};
use crate::config::ConfigError;
use crate::config::address::Remote;
use crate::io::socket::text_of;

/// Why a verb fails.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ClientError {
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Usage(String),
    #[error("the server does not know {what}; {advice}")]
    Unknown { what: &'static str, advice: &'static str },
    #[error("cannot read {}: {}", input(.path), text_of(.error))]
    File { path: Option<PathBuf>, error: io::Error },
    #[error("cannot connect to {remote}: {}", reason(.error))]
    Connect { remote: Remote, error: io::Error },
    #[error("{}; {}", broken(.remote, .error), if is_end(.error) { "is it a beanstalk server, and does it still run?" } else { "try again" })]
    Broken { remote: Remote, error: io::Error },
    #[error("cannot connect to {remote}: {problem}{}", .problem.advice())]
    Tls { remote: Remote, problem: TlsProblem },
    #[error(
        "{remote} does not know the token; correct the file of --token-file or BEANRING_TOKEN_FILE, or add the token to \
        the server's --auth"
    )]
    Unauthorized { remote: Remote },
    #[error("{remote} has not replied within {} s; is it a beanstalk server, and is it overloaded?", .patience.as_secs())]
    Silent { remote: Remote, patience: Duration },
    #[error("{remote} replied \"{}\", which is no reply of the beanstalk protocol; correct --addr",
        .line.beginning(SHOWN_BYTES_MAX))]
    Foreign { remote: Remote, line: Untrusted },
    #[error("the server replied with \"{}\", which is not what the command asks for; is it a beanstalk server?",
        .0.beginning(SHOWN_BYTES_MAX))]
    Unreadable(Untrusted),
    #[error(
        "{remote} announced a reply of {bytes} bytes, and the client reads at most {bytes_max} here; is it a beanstalk \
        server?"
    )]
    TooLong { remote: Remote, bytes: u64, bytes_max: u64 },
    /// Only output is written without a more exact error.
    #[error("cannot write the output: {}", text_of(.0))]
    Output(#[from] io::Error),
    /// Nothing reads standard output, which the commands of jobs inherit.
    #[error("standard output is closed; no further job is reserved")]
    OutputClosed,
    #[error("cannot run {}: {}", escaped(.program.as_bytes()), text_of(.error))]
    Command { program: String, error: io::Error },
    /// `what` is a verb: `wait for signals`.
    #[error("cannot {what}: {}", text_of(.error))]
    System { what: &'static str, error: io::Error },
}

impl ClientError {
    /// Why a server's reply cannot be read, or a command cannot be sent.
    pub fn of_server(error: ReadError, remote: &Remote, patience: Duration) -> Self {
        let remote = remote.clone();
        match error {
            ReadError::Io(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Self::Silent { remote, patience }
            }
            ReadError::Io(error) if let Some(problem) = TlsProblem::within(&error) => {
                Self::Tls { remote, problem }
            }
            ReadError::Io(error) => Self::Broken { remote, error },
            ReadError::Foreign(line) => Self::Foreign { remote, line },
            ReadError::Unexpected(line) => Self::Unreadable(line),
            ReadError::TooLong { bytes, bytes_max } => Self::TooLong { remote, bytes, bytes_max },
        }
    }

    /// The exit code: 1 the server refused, 2 wrong usage, 3 no connection, 7 a token that the server does not know.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_)
            | Self::Unknown { .. }
            | Self::Output(_)
            | Self::OutputClosed
            | Self::System { .. } => 1,
            Self::Config(_) | Self::Usage(_) | Self::File { .. } | Self::Command { .. } => 2,
            Self::Unauthorized { .. } => UNAUTHORIZED,
            Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Broken { .. }
            | Self::Silent { .. }
            | Self::Foreign { .. }
            | Self::Unreadable(_)
            | Self::TooLong { .. } => 3,
        }
    }

    /// The error without its advice, for a caller that tries again by itself.
    pub fn event(&self) -> String {
        match self {
            Self::Connect { remote, error } => format!("cannot connect to {remote}: {}", text_of(error)),
            Self::Broken { remote, error } => broken(remote, error),
            Self::Tls { remote, problem } => format!("cannot connect to {remote}: {problem}"),
            Self::Silent { remote, patience } => {
                format!("{remote} has not replied within {} s", patience.as_secs())
            }
            other => other.to_string(),
        }
    }

    /// Whether another connection may succeed.
    pub const fn is_connection(&self) -> bool {
        self.exit_code() == 3
    }
}

/// The exit code if the server does not know the token. `wait` has the codes from 4 to 6.
pub const UNAUTHORIZED: u8 = 7;

/// The most of a strange reply that an error repeats.
const SHOWN_BYTES_MAX: usize = 80;

fn input(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map_or("standard input".to_owned(), |path| escaped(path.as_os_str().as_encoded_bytes()).to_string())
}

fn is_end(error: &io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof
}

fn broken(remote: &Remote, error: &io::Error) -> String {
    if is_end(error) {
        return format!("{remote} closed the connection");
    }
    format!("the connection to {remote} broke: {}", text_of(error))
}

fn reason(error: &io::Error) -> String {
    let text = text_of(error);
    match error.kind() {
        ErrorKind::ConnectionRefused => format!("{text}; start the server, or name it with --addr"),
        ErrorKind::NotFound => format!("{text}; start the server, or correct the path"),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            "no answer; check the address and the firewall".to_owned()
        }
        _ => text,
    }
}

/// A reply that means no, with what it was about.
#[derive(Debug)]
pub struct Refusal {
    /// The subject of the request, such as `job 7`.
    pub subject: String,
    /// The reply.
    pub reply: Untrusted,
    /// What it means, and what to do.
    pub meaning: String,
    /// The meaning alone says what is the case.
    pub hides_reply: bool,
}

impl Refusal {
    /// Explains a reply that means the same in every verb.
    pub fn new(subject: impl Into<String>, reply: &Untrusted) -> Self {
        let meaning = meaning(reply.word()).to_owned();
        Self { subject: subject.into(), reply: reply.clone(), meaning, hides_reply: false }
    }

    /// Replaces the explanation of one reply.
    #[must_use]
    pub fn meaning(mut self, word: &str, meaning: impl Into<String>) -> Self {
        if self.word() == word {
            self.meaning = meaning.into();
        }
        self
    }

    /// Explains a reply by what is the case with the subject. Its words say something else, so they are not shown.
    pub fn explain(&mut self, meaning: String) {
        (self.meaning, self.hides_reply) = (meaning, true);
    }

    /// The first word of the reply.
    pub fn word(&self) -> &str {
        self.reply.word()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, reply, meaning, hides_reply } = self;
        f.write_str(subject)?;
        if !hides_reply {
            write!(f, ": {reply}")?;
        }
        if meaning.is_empty() { Ok(()) } else { write!(f, ": {meaning}") }
    }
}

impl std::error::Error for Refusal {}

fn meaning(word: &str) -> &'static str {
    match word {
        "NOT_FOUND" => "there is no such job",
        "FORBIDDEN" => "a right is missing; see the server's --auth",
        "DRAINING" => "the server accepts no new jobs; put them to another one, or run beanring undrain",
        "OUT_OF_MEMORY" => {
            "a limit is reached: memory (--max-memory), a rule of the tube (beanring tube-config TUBE), or the disk of the job \
             log; delete jobs, raise that limit, or make room on the disk"
        }
        "JOB_TOO_BIG" => {
            "the body is larger than the server accepts; raise -z of the server, or split the job"
        }
        "BURIED" => {
            "the server has buried the job: it has had all attempts, or there is no memory to queue it; kick it later"
        }
        "INTERNAL_ERROR" => "the server has an error; see its log",
        "UNKNOWN_COMMAND" => "the server does not know this command",
        "BAD_FORMAT" => "the server does not accept a value of the command",
        "DEADLINE_SOON" => "a job that this connection has reserved is about to time out",
        _ => "",
    }
}
