//! All connections over TLS, by the slots of the server.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::outgoing::Buffer;
use super::session::{Memory, Phase, SESSION_BYTES, Session};
use super::shares::Shares;
use super::{HANDSHAKE_TIME, HANDSHAKES_MAX};
use crate::server::{ClosingWatch, Origin, TlsCounts};
use crate::time::Time;
use crate::values::account::{Account, Held};
use crate::values::ids::ConnId;
use crate::values::peer_wait::PeerWait;

/// The maximum number of buffers that are kept for the next connection with output.
const SPARES_MAX: usize = 64;

/// The maximum size of all of them, in bytes.
const SPARE_BYTES_MAX: usize = 1024 * 1024;

/// All connections over TLS.
pub(super) struct Sessions {
    by_slot: Vec<Option<Box<Session>>>,
    open: usize,
    /// Handshakes that have not ended.
    pub handshakes: Shares,
    /// The slots of open connections with an unfinished record or handshake message, by the time when it must have ended.
    unfinished: BTreeSet<(Time, u32)>,
    /// Buffers for ciphertext, all empty.
    spares: Vec<Buffer>,
    spare_bytes: usize,
    /// HTTP connections with a response that is not sent.
    responding: usize,
    account: Rc<Account>,
    /// The input of connections with an unfinished record or handshake message, in bytes.
    unfinished_bytes: usize,
    /// The certificates of clients, in bytes.
    chain_bytes: usize,
    /// What the account has of connections beside their buffers.
    counted_bytes: usize,
}

impl Sessions {
    pub fn new(account: Rc<Account>) -> Self {
        Self {
            by_slot: Vec::new(),
            open: 0,
            handshakes: Shares::new(HANDSHAKES_MAX, HANDSHAKE_TIME),
            unfinished: BTreeSet::new(),
            spares: Vec::new(),
            spare_bytes: 0,
            responding: 0,
            account,
            unfinished_bytes: 0,
            chain_bytes: 0,
            counted_bytes: 0,
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Counts what connections have beside their buffers.
    fn count_connections(&mut self) {
        let table = self.by_slot.capacity() * size_of::<Option<Box<Session>>>();
        let own = table + self.handshakes.bytes() + self.spare_bytes;
        let bytes = self.open * SESSION_BYTES + self.chain_bytes + own;
        let before = std::mem::replace(&mut self.counted_bytes, bytes);
        self.account.change(Held::TlsConnections, before, bytes);
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

    /// Adds a connection from this origin, whose handshake begins now.
    pub fn insert(&mut self, mut session: Session, origin: Origin, now: Time, counts: &TlsCounts) {
        let (conn, slot) = (session.conn, session.conn.slot as usize);
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, || None);
        }
        session.handshake = Some(self.handshakes.insert(conn, origin, now));
        self.by_slot[slot] = Some(Box::new(session));
        self.open += 1;
        self.recount(conn);
        self.show(counts);
    }

    /// Removes a connection that the driver has closed.
    pub fn remove(&mut self, conn: ConnId, counts: &TlsCounts) {
        self.clear_unfinished(conn);
        let session = self.by_slot[conn.slot as usize].take().expect("the connection is one over TLS");
        self.count(session.counted, Memory::default());
        self.responding -= usize::from(session.is_responding);
        self.open -= 1;
        self.show(counts);
    }

    /// The connection whose handshake must end before that of another one from this origin begins, if there are too many.
    pub fn surplus(&self, newest: Origin) -> Option<ConnId> {
        self.handshakes.surplus(newest)
    }

    /// Notes that the client has sent a part of its handshake.
    pub fn note_handshake_input(&mut self, conn: ConnId) {
        if let Some(key) = self.get(conn).handshake {
            self.handshakes.note_input(key);
        }
    }

    /// Ends a handshake, successfully or not.
    pub fn end_handshake(&mut self, conn: ConnId, phase: Phase, counts: &TlsCounts) {
        let session = self.get(conn);
        assert_eq!(session.phase, Phase::Handshake, "a handshake ends once");
        session.phase = phase;
        let key = session.handshake.take().expect("a handshake has its place");
        self.handshakes.remove(key);
        self.show(counts);
    }

    /// Whether a handshake waits for its turn.
    pub fn is_waiting(&self, conn: ConnId) -> bool {
        self.find(conn).is_some_and(|session| session.phase == Phase::Handshake && session.flags.is_waiting)
    }

    /// Notes that an open connection waits for the rest of a record or handshake message. Its time goes on if it has waited for the
    /// same one before.
    pub fn begin_unfinished(&mut self, conn: ConnId, what: PeerWait, is_same: bool, now: Time) {
        let before = self.get(conn).unfinished;
        if before.is_some_and(|(kind, _)| kind == what && is_same) {
            return;
        }
        self.clear_unfinished(conn);
        let until = now + what.within();
        self.get(conn).unfinished = Some((what, until));
        self.unfinished.insert((until, conn.slot));
    }

    /// Notes that a connection has no unfinished record or handshake message.
    pub fn clear_unfinished(&mut self, conn: ConnId) {
        if let Some((_, until)) = self.get(conn).unfinished.take() {
            self.unfinished.remove(&(until, conn.slot));
        }
    }

    /// Whether unfinished records and handshake messages take more memory than they may. Complete records that are not read yet do not count.
    pub fn is_too_much_unfinished(&self) -> bool {
        self.account.is_too_much_unfinished(self.unfinished_bytes)
    }

    /// The connection whose record or handshake message must end first, and until when.
    pub fn next_unfinished(&self) -> Option<(ConnId, Time)> {
        let &(until, slot) = self.unfinished.first()?;
        self.by_slot[slot as usize].as_ref().map(|session| (session.conn, until))
    }

    /// When the next handshake, or record or message after it, takes too long.
    pub fn next_deadline(&self) -> Option<Time> {
        let unfinished = self.unfinished.first().map(|&(until, _)| until);
        [self.handshakes.next_deadline(), unfinished].into_iter().flatten().min()
    }

    pub const fn slots(&self) -> usize {
        self.by_slot.len()
    }

    /// Whether an HTTP connection has a response that is not sent.
    pub const fn has_responses(&self) -> bool {
        self.responding > 0
    }

    /// The connection in a slot, if it must send and has sent nothing for too long.
    pub fn stuck_at(&mut self, slot: usize, watch: &ClosingWatch, now: Time) -> Option<ConnId> {
        let session = self.by_slot[slot].as_mut()?;
        let (wait, sent) = (session.awaits(), session.outgoing.sent_bytes());
        let standing = session.progress.look(watch, now, wait, sent)?;
        standing.is_over.then_some(session.conn)
    }

    /// Gives a connection a buffer for ciphertext, unless it has one.
    pub fn lend(&mut self, conn: ConnId) {
        if self.get(conn).outgoing.gathered().capacity() == 0
            && let Some(spare) = self.spares.pop()
        {
            self.spare_bytes -= spare.capacity();
            *self.get(conn).outgoing.gathered() = spare;
            self.count_connections();
        }
    }

    /// Frees the buffers that no connection has, since memory is short.
    pub fn free_spares(&mut self) {
        if !self.spares.is_empty() {
            self.spares.clear();
            self.spare_bytes = 0;
            self.count_connections();
        }
    }

    /// Takes the buffers of a connection that has sent everything.
    pub fn take_buffers(&mut self, conn: ConnId) {
        // Bounded by the two buffers of a connection.
        for mut buffer in self.get(conn).outgoing.take_buffers() {
            let bytes = buffer.capacity();
            let has_place = self.spares.len() < SPARES_MAX && self.spare_bytes + bytes <= SPARE_BYTES_MAX;
            if bytes > 0 && has_place {
                buffer.clear();
                self.spare_bytes += bytes;
                self.spares.push(buffer);
            }
        }
        self.count_connections();
    }

    /// Recounts the memory of a connection.
    pub fn recount(&mut self, conn: ConnId) {
        let session = self.get(conn);
        let memory = session.memory();
        let before = session.counted.replace(memory);
        let is_responding = session.awaits() == Some(PeerWait::Response);
        let was_responding = std::mem::replace(&mut session.is_responding, is_responding);
        self.responding = self.responding + usize::from(is_responding) - usize::from(was_responding);
        self.count(before, memory);
    }

    fn count(&mut self, before: Option<Memory>, after: Memory) {
        let before = before.unwrap_or_default();
        self.unfinished_bytes = self.unfinished_bytes - before.unfinished + after.unfinished;
        if before.chain != after.chain {
            self.chain_bytes = self.chain_bytes - before.chain + after.chain;
            self.count_connections();
        }
        self.account.change(Held::TlsInput, before.input, after.input);
        self.account.change(Held::TlsOutput, before.output, after.output);
    }

    fn show(&mut self, counts: &TlsCounts) {
        self.count_connections();
        counts.connections.set(self.open as u64);
        counts.unfinished_handshakes.set(self.handshakes.len() as u64);
    }
}
