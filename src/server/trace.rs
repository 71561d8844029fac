//! What the server reports of its work, in order: lines in the trace log (`-VV`), and each step to the observer of a test.

use std::fmt;

use tracing::{Level, enabled, trace};

use crate::protocol::announced::Follows;
use crate::protocol::reply::Reply;
use crate::queue::{BatchRoom, Engine};
use crate::values::ids::{ClientKey, ConnId, JobId};

/// Whether lines are logged at this level. It costs a load while they are not.
#[inline]
pub(super) fn is_on() -> bool {
    enabled!(Level::TRACE)
}

/// The command that has a secret. Words that begin alike are not shown either, in whatever case and after whatever space: they may be
/// a mistyped one.
const AUTH_WORD: &[u8] = b"auth";

fn may_have_token(line: &[u8]) -> bool {
    // Bounded by LINE_BYTES_LONG_MAX: the bytes of one line.
    let start = line.iter().position(|byte| byte.is_ascii_graphic()).unwrap_or(line.len());
    line[start..].get(..AUTH_WORD.len()).is_some_and(|word| word.eq_ignore_ascii_case(AUTH_WORD))
}

/// Logs a command line, without its CR LF. `conn` is the number of the connection.
#[cold]
pub(super) fn command(conn: u64, line: &[u8]) {
    if may_have_token(line) {
        return trace!(conn, "command: auth ...");
    }
    trace!(conn, "command: {}", line.escape_ascii());
}

/// Logs that a command line is rejected for its length.
#[cold]
pub(super) fn command_too_long(conn: u64) {
    trace!(conn, "command: the line is longer than any command");
}

/// Logs a reply, or the first line of one.
#[cold]
pub(super) fn reply(conn: u64, reply: &Reply<'_>) {
    trace!(conn, job = reply.job().map(|JobId(id)| id), "reply: {}", Escaped(reply));
}

/// A reply line without its CR LF and without control characters.
struct Escaped<'a>(&'a Reply<'a>);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = Vec::new();
        self.0.render(&mut line);
        line.trim_ascii_end().escape_ascii().fmt(f)
    }
}

/// A step of the server for one client.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// It serves this command line, without its CR LF.
    Line(&'a [u8]),
    /// It rejects a line that is longer than any command, with what follows it.
    LineTooLong(Follows),
    /// It has a job's complete body, and replies this to the `put`.
    Put(JobId, Reply<'a>),
    /// It has the text of a `job-note`, and replies this.
    Note(Reply<'a>),
    /// It has the body of a `schedule-put`, and replies this.
    Schedule(Reply<'a>),
    /// It has the last body of a `put-batch`, and replies this. The first job that it has put has this id.
    PutBatch(Reply<'a>, Option<JobId>),
    /// It takes jobs for a `reserve-batch` that has its first one. The room is smaller than the command permits only if there is a
    /// memory limit.
    Batch(BatchRoom),
    /// It reserves these jobs for one command, after a weighted draw.
    Drawn(&'a [JobId]),
    /// It ends the client's wait, because the next line is `cancel-reserve`.
    Canceled,
    /// It removes the client from the queue.
    Left,
}

/// Learns what the server does, in order and as it happens.
pub trait Observer {
    /// Takes in one step.
    fn observe(&mut self, conn: ConnId, observation: Observation<'_>);

    /// Takes in how far each unfinished `move-jobs` and `flush-tube` is, after each of these commands and after each piece of background
    /// work. See [`Engine::unfinished_changes`].
    fn observe_changes(&mut self, unfinished: Vec<(ConnId, u32)>);
}

/// The observer of a test, if there is one.
#[derive(Default)]
pub(super) struct Reporter(Option<Box<dyn Observer>>);

impl Reporter {
    /// Reports to `observer` from now on.
    pub fn begin(&mut self, observer: Box<dyn Observer>) {
        self.0 = Some(observer);
    }

    #[inline]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    #[inline]
    pub fn observe(&mut self, engine: &Engine, client: ClientKey, observation: Observation<'_>) {
        if self.is_on() {
            self.report(engine, client, observation);
        }
    }

    #[inline]
    pub fn observe_changes(&mut self, engine: &Engine) {
        if self.is_on() {
            self.report_changes(engine);
        }
    }

    #[cold]
    fn report(&mut self, engine: &Engine, client: ClientKey, observation: Observation<'_>) {
        if let Some(observer) = &mut self.0 {
            observer.observe(engine.clients().get(client).conn, observation);
        }
    }

    #[cold]
    fn report_changes(&mut self, engine: &Engine) {
        if let Some(observer) = &mut self.0 {
            // Bounded by its caller: a test.
            observer.observe_changes(engine.unfinished_changes().collect());
        }
    }
}
