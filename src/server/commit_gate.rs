//! The commit gate: a reply leaves only after the job log has committed every change that the reply may reveal, which is
//! every change recorded before it.
//!
//! The job log numbers its commits; the number that a reply waits for is its ticket. Replies come into being only inside
//! [`Core::with_replies`], which gives them their ticket when it ends, and they leave only through
//! [`Core::replies_to_send`]. So no caller can forget a ticket. While a write is stalled, replies that are
//! declared [harmless](Replies::set_harmless) leave without waiting.
//!
//! Without a job log every reply has ticket 0, and everything counts as committed.

mod output;
mod uncommitted;

use std::collections::{HashSet, VecDeque};
use std::io::IoSlice;

pub(super) use self::output::{Buffers, Output, Replies};
use super::beanstalk::Session;
use super::{Core, Effect, Server};
use crate::protocol::reply::Reply;
use crate::time::Time;
use crate::values::ids::ConnId;
use crate::wal::{Outcome, Wal};

/// Connections whose replies leave after a commit in one event-loop iteration: each takes a system call of some 2 us.
const RELEASED_MAX: usize = 256;

/// The number of a commit of the job log.
type Ticket = u64;

/// The connections whose next reply waits for a commit, in the order of their tickets.
#[derive(Default)]
pub(super) struct CommitGate {
    waiting: VecDeque<(Ticket, ConnId)>,
    /// The job log has failed, and the server ends.
    has_failed: bool,
}

impl CommitGate {
    #[inline(never)]
    fn add(&mut self, ticket: Ticket, conn: ConnId) {
        let position = self.waiting.partition_point(|&(other, _)| other <= ticket);
        self.waiting.insert(position, (ticket, conn));
    }

    /// Whether replies may leave that wait for a commit up to this one.
    #[inline]
    pub fn has_released(&self, committed: Ticket) -> bool {
        self.waiting.front().is_some_and(|&(ticket, _)| ticket <= committed)
    }

    /// The number of connections whose next reply waits.
    pub fn clients(&self) -> usize {
        // Bounded by the end of the server: no client is served any more.
        let clients: HashSet<ConnId> = self.waiting.iter().map(|&(_, conn)| conn).collect();
        clients.len()
    }

    pub fn memory_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<(Ticket, ConnId)>()
    }
}

impl Core {
    /// Runs `write`, which may append replies, and gives these their ticket. Changes that the replies reveal must be
    /// recorded in the job log before `write` returns.
    // Inlined: a group then costs a few instructions per event.
    #[inline(always)]
    pub(super) fn with_replies<R>(
        &mut self,
        output: &mut Output,
        write: impl FnOnce(&mut Self, &mut Replies) -> R,
    ) -> R {
        let next = self.wal.as_ref().map_or(0, Wal::next_ticket);
        let result = write(self, output.begin_group(next));
        let ticket = match &self.wal {
            Some(wal) if wal.is_stalled() && !output.reveals_uncommitted() => wal.committed(),
            Some(wal) => wal.ticket(),
            None => 0,
        };
        output.end_group(ticket);
        result
    }

    /// Whether replies may leave that have not been released yet.
    #[inline]
    pub(super) fn has_released(&self) -> bool {
        !self.gate.waiting.is_empty() && self.gate.has_released(self.committed())
    }

    /// The last ticket whose replies may leave.
    fn committed(&self) -> Ticket {
        // mutant reply-before-sync: Wal::released => |wal: &Wal| wal.released() + 1
        self.wal.as_ref().map_or(Ticket::MAX, Wal::released)
    }

    /// Requests a send for the replies that may leave, and has the others wait for their commit.
    pub(super) fn request_send(&mut self, conn: ConnId, output: &mut Output) {
        if !output.is_sending && output.can_send(self.committed()) {
            output.is_sending = true;
            self.effects.push_back(Effect::Send(conn));
        }
        self.await_commit(conn, output);
    }

    /// Whether the next reply may leave. If not, has the connection wait for its commit.
    pub(super) fn is_released(&mut self, conn: ConnId, output: &mut Output) -> bool {
        let is_released = output.can_send(self.committed());
        if !is_released {
            self.await_commit(conn, output);
        }
        is_released
    }

    /// Appends the bytes of replies that may leave.
    #[inline(always)]
    pub(super) fn replies_to_send<'a>(&'a self, output: &'a mut Output, slices: &mut Vec<IoSlice<'a>>) {
        output.slices(self.committed(), self.engine.bodies(), slices);
    }

    /// Takes off what the driver has sent. The replies behind it may wait for a later commit.
    pub(super) fn take_sent(&mut self, conn: ConnId, output: &mut Output, bytes: usize) {
        output.advance(bytes, self.engine.bodies_mut(), &mut self.buffers);
        output.is_sending = output.can_send(self.committed());
        self.await_commit(conn, output);
    }

    /// Registers the connection for the commit that its next reply waits for, once for each ticket.
    #[inline(always)]
    fn await_commit(&mut self, conn: ConnId, output: &mut Output) {
        if let Some(wal) = &self.wal {
            let known = wal.released().max(output.awaited);
            if let Some(ticket) = output.next_ticket().filter(|&ticket| ticket > known) {
                output.awaited = ticket;
                self.gate.add(ticket, conn);
            }
        }
    }

    /// Replaces the replies that cannot be committed any more by an error, and requests a send for it.
    fn fail_replies(&mut self, session: &mut Session) {
        let Session { conn, output, .. } = session;
        if self.fail_output(output) && !output.is_sending {
            output.is_sending = true;
            self.effects.push_back(Effect::Send(*conn));
        }
    }

    /// Replaces the replies that cannot be committed any more by an error. Returns whether there were any.
    pub(super) fn fail_output(&mut self, output: &mut Output) -> bool {
        let committed = self.committed();
        output.fail(committed, Reply::InternalError, self.engine.bodies_mut(), &mut self.buffers)
    }
}

impl Server {
    /// Reports the end of a disk operation to the job log, and lets the replies leave that it has committed.
    // Not a part of the function that handles all events, which would get its frame.
    #[inline(never)]
    pub(super) fn disk_completed(&mut self, outcome: Outcome, now: Time) {
        if let Outcome::Replicated(reply) = outcome {
            return self.database_replied(*reply, now);
        }
        let core = &mut self.core;
        let wal = core.wal.as_mut().expect("only a job log has disk operations");
        wal.complete(outcome, now);
        core.engine.set_log_room(wal.room());
        if wal.failure().is_some() {
            return self.fail(now);
        }
        core.full_disk.note(wal, now);
        if wal.is_gathering() {
            // The disk writes the next batch while the replies of this one leave.
            core.effects.push_back(Effect::Disk);
        }
        self.release_committed(now);
    }

    /// Lets replies leave whose commit has come, of a bounded number of connections.
    pub(super) fn release_committed(&mut self, now: Time) {
        let Self { core, connections } = self;
        let committed = core.committed();
        // Bounded by RELEASED_MAX: the connections of one call.
        for _ in 0..RELEASED_MAX {
            let next = core.gate.waiting.pop_front_if(|(ticket, _)| *ticket <= committed);
            let Some((_, conn)) = next else { return };
            if let Some(session) = connections.find(conn) {
                core.request_send(conn, &mut session.output);
            } else if let Some(connection) = connections.find_http(conn) {
                core.release_call(connection);
                core.after_http(connection, now);
            }
        }
    }

    /// The job log cannot be written: every client whose replies wait for a commit gets an error, and the driver stops.
    // The queue of the gate does not suffice: a connection that is sending joins it only after the send.
    // Bounded by the end of the server: no client is served any more.
    pub(super) fn fail(&mut self, now: Time) {
        let Self { core, connections } = self;
        if std::mem::replace(&mut core.gate.has_failed, true) {
            return;
        }
        core.gate.waiting.clear();
        connections.clients_mut().for_each(|session| core.fail_replies(session));
        for connection in connections.all_http_mut() {
            core.fail_call(connection);
            core.after_http(connection, now);
        }
        core.effects.push_back(Effect::Fail);
    }
}
