//! What the server reports about the order of its work, to a test that checks it and to the trace log.

use std::fmt::{self, Display};

use tracing::{Level, enabled, trace};

use super::Core;
use crate::ids::{ClientKey, ConnId, JobId};
use crate::protocol::reply::Reply;

/// A step of the server for one client.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// It serves this command line, without its CR LF.
    Line(&'a [u8]),
    /// It rejects a line that is longer than any command.
    LineTooLong,
    /// It has a job's complete body, and replies this to the `put`.
    Put(JobId, Reply<'a>),
    /// It removes the client from the queue.
    Left,
}

/// Learns what the server does, in order and as it happens.
pub trait Observer {
    /// Takes in one step.
    fn observe(&mut self, conn: ConnId, observation: Observation<'_>);
}

impl Display for Observation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => line.escape_ascii().fmt(f),
            Self::LineTooLong => f.write_str("(a line that is too long)"),
            Self::Put(_, reply) => {
                let mut line = Vec::new();
                reply.render(&mut line);
                line.trim_ascii_end().escape_ascii().fmt(f)
            }
            Self::Left => f.write_str("(the client leaves the queue)"),
        }
    }
}

impl Core {
    /// Whether anything wants to know of the next steps.
    #[inline]
    pub(super) fn is_observed(&self) -> bool {
        self.observer.is_some() || enabled!(Level::TRACE)
    }

    #[inline]
    pub(super) fn observe(&mut self, client: ClientKey, observation: Observation<'_>) {
        if self.is_observed() {
            self.report(client, observation);
        }
    }

    #[cold]
    pub(super) fn report(&mut self, client: ClientKey, observation: Observation<'_>) {
        let conn = self.engine.clients().get(client).conn;
        match observation {
            Observation::Put(id, _) => trace!(conn = conn.slot, job = id.0, "{observation}"),
            _ => trace!(conn = conn.slot, "{observation}"),
        }
        if let Some(observer) = &mut self.observer {
            observer.observe(conn, observation);
        }
    }
}
