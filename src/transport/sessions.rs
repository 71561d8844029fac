//! All connections over TLS, by the slots of the server.

use std::collections::{BTreeSet, VecDeque};

use super::session::{Phase, Session};
use crate::server::TlsCounts;
use crate::time::Time;
use crate::values::ids::ConnId;

/// Buffers that are kept for the next connection with output.
const SPARES_MAX: usize = 64;

/// A larger buffer is freed.
const SPARE_BYTES_MAX: usize = 32 * 1024;

/// All connections over TLS.
#[derive(Default)]
pub(super) struct Sessions {
    by_slot: Vec<Option<Box<Session>>>,
    open: usize,
    /// Handshakes by their time limit, with some that have ended. The first has not.
    handshakes: VecDeque<(Time, ConnId)>,
    unfinished: usize,
    /// The slots of open connections with an unfinished handshake message, by the time when it must have ended.
    messages: BTreeSet<(Time, u32)>,
    /// Buffers for ciphertext, all empty.
    spares: Vec<Vec<u8>>,
    spare_bytes: usize,
    /// Memory of the connections.
    bytes: usize,
}

impl Sessions {
    pub const fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Connections whose handshake has not ended.
    pub const fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Memory of all connections, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.spare_bytes + self.by_slot.capacity() * size_of::<Option<Box<Session>>>()
    }

    /// Whether an open connection is one over TLS.
    #[inline]
    pub fn has(&self, conn: ConnId) -> bool {
        self.open > 0 && self.find(conn).is_some()
    }

    fn find(&self, conn: ConnId) -> Option<&Session> {
        self.by_slot.get(conn.slot as usize)?.as_deref().filter(|session| session.conn == conn)
    }

    /// Returns a connection over TLS.
    ///
    /// # Panics
    /// If it is not one.
    pub fn get(&mut self, conn: ConnId) -> &mut Session {
        let session = self.by_slot[conn.slot as usize].as_mut().filter(|session| session.conn == conn);
        session.expect("the connection is one over TLS")
    }

    /// Adds a connection whose handshake ends at `until` at the latest: not before that of any other.
    pub fn insert(&mut self, session: Session, until: Time, counts: &TlsCounts) {
        let (conn, slot) = (session.conn, session.conn.slot as usize);
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, || None);
        }
        self.by_slot[slot] = Some(Box::new(session));
        self.handshakes.push_back((until, conn));
        self.open += 1;
        self.unfinished += 1;
        self.recount(conn);
        self.show(counts);
    }

    /// Removes a connection that the driver has closed.
    pub fn remove(&mut self, conn: ConnId, counts: &TlsCounts) {
        self.end_message(conn);
        let session = self.by_slot[conn.slot as usize].take().expect("the connection is one over TLS");
        self.bytes -= session.counted_bytes;
        self.open -= 1;
        self.show(counts);
    }

    /// Ends a handshake, successfully or not.
    // Bounded by earlier calls: the handshakes since the last removal pay for it.
    pub fn end_handshake(&mut self, conn: ConnId, phase: Phase, counts: &TlsCounts) {
        let session = self.get(conn);
        assert_eq!(session.phase, Phase::Handshake, "a handshake ends once");
        session.phase = phase;
        self.unfinished -= 1;
        while self.handshakes.front().is_some_and(|&(_, conn)| !self.is_unfinished(conn)) {
            self.handshakes.pop_front();
        }
        // Behind one client that takes its time, many others may have finished.
        if self.handshakes.len() > 16 + 4 * self.unfinished {
            let mut handshakes = std::mem::take(&mut self.handshakes);
            handshakes.retain(|&(_, conn)| self.is_unfinished(conn));
            self.handshakes = handshakes;
        }
        self.show(counts);
    }

    fn is_unfinished(&self, conn: ConnId) -> bool {
        self.find(conn).is_some_and(|session| session.phase == Phase::Handshake)
    }

    /// Whether a handshake waits for its turn.
    pub fn is_waiting(&self, conn: ConnId) -> bool {
        self.find(conn).is_some_and(|session| session.phase == Phase::Handshake && session.is_waiting)
    }

    /// The handshake that has taken the longest.
    pub fn oldest_unfinished(&self) -> Option<ConnId> {
        self.handshakes.front().map(|&(_, conn)| conn)
    }

    /// A handshake that takes too long.
    pub fn next_late(&self, now: Time) -> Option<ConnId> {
        self.handshakes.front().filter(|&&(until, _)| until <= now).map(|&(_, conn)| conn)
    }

    /// Notes that a handshake message of an open connection has begun, and ends at `until` at the latest, unless one has before.
    pub fn begin_message(&mut self, conn: ConnId, until: Time) {
        let until = *self.get(conn).message_until.get_or_insert(until);
        self.messages.insert((until, conn.slot));
    }

    /// Notes that a connection has no unfinished handshake message.
    pub fn end_message(&mut self, conn: ConnId) {
        if let Some(until) = self.get(conn).message_until.take() {
            self.messages.remove(&(until, conn.slot));
        }
    }

    /// A connection with a handshake message that takes too long.
    pub fn next_late_message(&self, now: Time) -> Option<ConnId> {
        let &(_, slot) = self.messages.first().filter(|&&(until, _)| until <= now)?;
        self.by_slot[slot as usize].as_ref().map(|session| session.conn)
    }

    /// When the next handshake, or message after it, takes too long.
    pub fn next_deadline(&self) -> Option<Time> {
        let handshake = self.handshakes.front().map(|&(until, _)| until);
        let message = self.messages.first().map(|&(until, _)| until);
        [handshake, message].into_iter().flatten().min()
    }

    /// The number of slots.
    pub const fn slots(&self) -> usize {
        self.by_slot.len()
    }

    /// The connection in a slot, if it is closing and has sent nothing since the last call.
    pub fn stuck_at(&mut self, slot: usize) -> Option<ConnId> {
        let session = self.by_slot[slot].as_mut().filter(|session| session.phase == Phase::Closing)?;
        let unsent = session.outgoing.len();
        let is_stuck = std::mem::replace(&mut session.unsent_before, unsent) == unsent;
        is_stuck.then_some(session.conn)
    }

    /// Gives a connection a buffer for ciphertext, unless it has one.
    pub fn lend(&mut self, conn: ConnId) {
        if self.get(conn).outgoing.gathered().capacity() == 0
            && let Some(spare) = self.spares.pop()
        {
            self.spare_bytes -= spare.capacity();
            *self.get(conn).outgoing.gathered() = spare;
        }
    }

    /// Takes the buffers of a connection that has sent everything.
    pub fn take_buffers(&mut self, conn: ConnId) {
        // Bounded by the two buffers of a connection.
        for buffer in self.get(conn).outgoing.take_buffers() {
            let is_of_use = (1..=SPARE_BYTES_MAX).contains(&buffer.capacity());
            if is_of_use && self.spares.len() < SPARES_MAX {
                let mut buffer = buffer;
                buffer.clear();
                self.spare_bytes += buffer.capacity();
                self.spares.push(buffer);
            }
        }
    }

    /// Recounts the memory of a connection.
    pub fn recount(&mut self, conn: ConnId) {
        let session = self.get(conn);
        let (before, bytes) = (session.counted_bytes, session.bytes());
        session.counted_bytes = bytes;
        self.bytes = self.bytes - before + bytes;
    }

    fn show(&self, counts: &TlsCounts) {
        counts.connections.set(self.open as u64);
        counts.unfinished_handshakes.set(self.unfinished as u64);
    }
}
