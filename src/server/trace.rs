//! The trace log (`-VV`): each command line that is served and each reply line, in order, and never a body.

use std::fmt;

use tracing::{Level, enabled, trace};

use crate::protocol::reply::Reply;
use crate::values::ids::JobId;

/// Whether lines are logged at this level. It costs a load while they are not.
#[inline]
pub(super) fn is_on() -> bool {
    enabled!(Level::TRACE)
}

/// Logs a command line, without its CR LF. `conn` is the number of the connection.
#[cold]
pub(super) fn command(conn: u64, line: &[u8]) {
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
