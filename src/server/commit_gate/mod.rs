//! The commit gate: a reply leaves only after the job log has committed every change that the reply may reveal, which is
//! every change recorded before it. If the log is in a database, and the reply reveals anything of the queue, it leaves only after a
//! [round](Rounds) that began after its command too: until then another server may lead, and know more.
//!
//! The job log numbers its commits and its rounds; the numbers that a reply waits for are its ticket. Replies come into being only inside
//! [`Core::with_replies`], which gives them their ticket when it ends, and they leave only through
//! [`Core::replies_to_send`]. So no caller can forget a ticket. While a write is stalled, replies that are
//! declared [harmless](Replies::set_harmless) leave without waiting. Pages and errors over HTTP need no ticket
//! ([`Core::write_ungated`]).
//!
//! Without a job log every reply has ticket 0, and everything counts as committed.

mod output;
mod uncommitted;

use std::collections::{HashSet, VecDeque};
use std::io::IoSlice;

pub(super) use self::output::{Buffers, Output, Replies};
pub(super) use self::uncommitted::may_reveal_uncommitted;
use super::connections::Connection;
use super::{Core, Effect, Server};
use crate::protocol::reply::Reply;
use crate::time::Time;
use crate::values::ids::ConnId;
#[cfg(doc)]
use crate::wal::Rounds;
use crate::wal::{DiskOutcome, Round, Wal};

/// Connections whose replies leave after a commit in one event-loop iteration: each takes a system call of some 2 us.
const RELEASED_MAX: usize = 256;

/// What a reply waits for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Ticket {
    commit: u64,
    round: Round,
}

/// The connections whose next reply waits.
#[derive(Default)]
pub(super) struct CommitGate {
    commits: Waiting,
    rounds: Waiting,
    /// The job log has failed, and the server ends.
    has_failed: bool,
}

/// Connections in the order of the numbers that they wait for.
#[derive(Default)]
struct Waiting(VecDeque<(u64, ConnId)>);

impl Ticket {
    /// Everything may leave.
    const ALL: Self = Self { commit: u64::MAX, round: Round::MAX };

    #[inline]
    const fn is_within(self, released: Self) -> bool {
        self.commit <= released.commit && self.round <= released.round
    }

    #[inline]
    #[must_use]
    fn max(self, other: Self) -> Self {
        Self { commit: self.commit.max(other.commit), round: self.round.max(other.round) }
    }
}

impl Waiting {
    #[inline(never)]
    fn add(&mut self, number: u64, conn: ConnId) {
        let position = self.0.partition_point(|&(other, _)| other <= number);
        self.0.insert(position, (number, conn));
    }

    #[inline]
    fn has(&self, released: u64) -> bool {
        self.0.front().is_some_and(|&(number, _)| number <= released)
    }

    fn next(&mut self, released: u64) -> Option<ConnId> {
        self.0.pop_front_if(|&mut (number, _)| number <= released).map(|(_, conn)| conn)
    }
}

impl CommitGate {
    #[inline]
    fn can_release(&self, released: Ticket) -> bool {
        self.commits.has(released.commit) || self.rounds.has(released.round)
    }

    /// The number of connections whose next reply waits.
    pub fn clients(&self) -> usize {
        // Bounded by the end of the server: no client is served any more.
        let waiting = self.commits.0.iter().chain(&self.rounds.0);
        let clients: HashSet<ConnId> = waiting.map(|&(_, conn)| conn).collect();
        clients.len()
    }

    pub fn memory_bytes(&self) -> usize {
        (self.commits.0.capacity() + self.rounds.0.capacity()) * size_of::<(u64, ConnId)>()
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
        let next = self.log.wal().map_or(Ticket::default(), next_ticket);
        let result = write(self, output.begin_group(next));
        let ticket = self.log.wal_mut().map_or(Ticket::default(), |wal| ticket(wal, output));
        output.end_group(ticket);
        result
    }

    /// Appends bytes that show no job. They wait only for the replies before them.
    pub(super) fn write_ungated(&mut self, output: &mut Output, bytes: &[u8]) {
        output.begin_group(Ticket::default()).bytes(bytes, &mut self.buffers);
        output.end_group(Ticket::default());
    }

    /// Whether replies may leave that have not been released yet.
    #[inline]
    pub(super) fn can_release(&self) -> bool {
        let CommitGate { commits, rounds, .. } = &self.gate;
        (!commits.0.is_empty() || !rounds.0.is_empty()) && self.gate.can_release(self.released())
    }

    /// What may leave.
    fn released(&self) -> Ticket {
        let Some(wal) = self.log.wal() else { return Ticket::ALL };
        // mutant reply-before-sync: wal.released() => wal.released() + 1
        let commit = wal.released();
        // mutant replica-reply-without-a-round: wal.rounds().proven() => Round::MAX
        let round = wal.rounds().proven();
        Ticket { commit, round }
    }

    /// Requests a send for the replies that may leave, and has the others wait for their commit.
    pub(super) fn request_send(&mut self, conn: ConnId, output: &mut Output) {
        if !output.is_sending && output.can_send(self.released()) {
            output.is_sending = true;
            self.effects.push_back(Effect::Send(conn));
        }
        self.await_commit(conn, output);
    }

    /// Whether all replies may leave.
    pub(super) fn is_released(&self, output: &Output) -> bool {
        output.is_released(self.released())
    }

    /// Appends the bytes of replies that may leave.
    #[inline(always)]
    pub(super) fn replies_to_send<'a>(&'a self, output: &'a mut Output, slices: &mut Vec<IoSlice<'a>>) {
        output.slices(self.released(), self.engine.bodies(), slices);
    }

    /// Takes off what the driver has sent. The replies behind it may wait for a later commit.
    pub(super) fn take_sent(&mut self, conn: ConnId, output: &mut Output, bytes: usize) {
        output.advance(bytes, self.engine.bodies_mut(), &mut self.buffers);
        output.is_sending = output.can_send(self.released());
        self.await_commit(conn, output);
    }

    /// Registers the connection for the commit and the round that its next reply waits for, once for each of them.
    #[inline(always)]
    fn await_commit(&mut self, conn: ConnId, output: &mut Output) {
        if self.log.wal().is_some() {
            let known = self.released().max(output.awaited);
            if let Some(ticket) = output.next_ticket().filter(|ticket| !ticket.is_within(known)) {
                output.awaited = output.awaited.max(ticket);
                if ticket.commit > known.commit {
                    self.gate.commits.add(ticket.commit, conn);
                }
                if ticket.round > known.round {
                    self.gate.rounds.add(ticket.round, conn);
                }
            }
        }
    }

    /// Replaces the replies that cannot be committed any more by an error, and requests a send for it.
    pub(super) fn fail_output(
        &mut self,
        conn: ConnId,
        output: &mut Output,
        error: impl FnOnce(&mut Replies, &mut Buffers),
    ) {
        let released = self.released();
        if output.fail(released, error, self.engine.bodies_mut(), &mut self.buffers) && !output.is_sending {
            output.is_sending = true;
            self.effects.push_back(Effect::Send(conn));
        }
    }
}

/// What a reply will wait for whose command is executed next.
#[inline]
fn next_ticket(wal: &Wal) -> Ticket {
    Ticket { commit: wal.next_ticket(), round: wal.rounds().next() }
}

/// What the replies of a group wait for.
#[inline]
fn ticket(wal: &mut Wal, output: &Output) -> Ticket {
    let is_harmless = wal.is_stalled() && !output.reveals_uncommitted();
    let commit = if is_harmless { wal.committed() } else { wal.ticket() };
    Ticket { commit, round: if output.reveals_state() { wal.rounds_mut().want() } else { 0 } }
}

impl Server {
    /// Reports the end of a disk operation to the job log, and lets the replies leave that it has committed.
    pub(super) fn disk_completed(&mut self, outcome: DiskOutcome, now: Time) {
        let core = &mut self.core;
        let has_next = core.log.complete(outcome, &mut core.engine, now);
        if core.log.wal().is_some_and(|wal| wal.failure().is_some()) {
            return self.fail(now);
        }
        if has_next {
            // The disk writes the next batch while the replies of this one leave.
            core.effects.push_back(Effect::Log);
        }
        self.release_committed(now);
    }

    /// Lets replies leave whose commit has come, of a bounded number of connections.
    pub(super) fn release_committed(&mut self, now: Time) {
        let Self { core, connections } = self;
        let released = core.released();
        // Bounded by RELEASED_MAX: the connections of one call.
        for _ in 0..RELEASED_MAX {
            let CommitGate { commits, rounds, .. } = &mut core.gate;
            let next = commits.next(released.commit).or_else(|| rounds.next(released.round));
            let Some(conn) = next else { return };
            if let Some(session) = connections.find(conn) {
                core.request_send(conn, &mut session.output);
            } else if let Some(connection) = connections.find_http(conn) {
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
        (core.gate.commits, core.gate.rounds) = (Waiting::default(), Waiting::default());
        for connection in connections.all_mut() {
            match connection {
                Connection::Client(session) => {
                    core.fail_output(session.conn, &mut session.output, |replies, buffers| {
                        replies.refuse(Reply::InternalError, buffers);
                    });
                }
                Connection::Http(connection) => {
                    core.fail_call(connection);
                    core.after_http(connection, now);
                }
            }
        }
        core.effects.push_back(Effect::Fail);
    }
}
