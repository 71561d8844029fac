//! The input of open connections: records in turns, and the plaintext that they become.

use tracing::debug;

use super::Transport;
use super::session::{Phase, Progress, text_of};
use crate::server::{Effect, Event, Service, handle};
use crate::values::budget::{Cost, Limit, Quota, RUN_STEPS, TURN_STEPS};
use crate::values::ids::ConnId;
use crate::values::peer_wait::PeerWait;

/// Input that waits for its turn is read up to this size.
pub(super) const WAITING_BYTES_MAX: usize = 16 * 1024;

/// The plaintext of a record that is passed on without a copy.
const PASSED_BYTES_MIN: usize = 4 * 1024;

/// The unit in which input that waits grows.
const INPUT_UNIT: usize = 4 * 1024;

/// The maximum number of late connections of one kind that end in an event-loop iteration.
pub(super) const LATE_MAX: usize = 64;

impl<S: Service> Transport<S> {
    /// Reports the input of an open connection as plaintext.
    pub(super) fn input(&mut self, conn: ConnId, bytes: &[u8]) {
        let limit = self.server.budget().turn();
        self.read(conn, bytes, limit);
    }

    /// Reports records of an open connection as plaintext, up to the limit. The rest waits for its next turn.
    fn read(&mut self, conn: ConnId, bytes: &[u8], limit: Limit) {
        let Self { server, sessions, plaintext, account, now, .. } = self;
        let session = sessions.get(conn);
        let mut own = std::mem::take(&mut session.incoming);
        // Little input goes behind the rest of before. Both go into the shared buffer if there is much.
        let is_own = !own.is_empty() && bytes.len() < INPUT_UNIT;
        let mut input = if is_own { std::mem::take(&mut own) } else { std::mem::take(&mut self.ciphertext) };
        if is_own {
            grow(&mut input, bytes.len());
        }
        input.extend_from_slice(&own);
        input.extend_from_slice(bytes);
        let paid = session.pay(&input, server.budget(), limit);
        // A large record goes from where it is decrypted to the place of its body. Small ones share an event.
        let mut deliver = |payload: &[u8]| {
            if payload.len() < PASSED_BYTES_MIN {
                return plaintext.extend_from_slice(payload);
            }
            if !plaintext.is_empty() {
                handle(server, *now, Event::Received { conn, bytes: plaintext });
                plaintext.clear();
            }
            handle(server, *now, Event::Received { conn, bytes: payload });
        };
        let progress = session.process(&mut input, &paid, &mut deliver, account);
        server.budget().charge(Cost::NEW_KEYS.times(progress.empty_records));
        let rest = &input[progress.used..];
        if progress.is_last() || rest.is_empty() {
            input.clear();
        } else if is_own {
            // Bounded by RECORD_BYTES_MAX: the rest of one record moves.
            input.drain(..progress.used);
            session.incoming = std::mem::take(&mut input);
        } else {
            own.clear();
            grow(&mut own, rest.len());
            own.extend_from_slice(rest);
            session.incoming = own;
            input.clear();
        }
        if self.account.is_tls_input_short() {
            session.incoming.shrink_to_fit();
        }
        if progress.is_unpaid && !progress.is_last() {
            self.queue_unread(conn);
        }
        // A buffer that a large record has needed goes with its connection.
        if input.capacity() > self.ciphertext.capacity() {
            self.ciphertext = input;
        }
        self.pass_on(conn, &progress);
    }

    /// Passes decrypted input to the server, and what else it meant.
    pub(super) fn pass_on(&mut self, conn: ConnId, progress: &Progress) {
        if !self.plaintext.is_empty() {
            handle(&mut self.server, self.now, Event::Received { conn, bytes: &self.plaintext });
            self.plaintext.clear();
        }
        if let Some(error) = &progress.error {
            debug!(conn = self.server.names(conn).number, "TLS ends: {}", text_of(error));
        }
        let session = self.sessions.get(conn);
        session.flags.is_failing = progress.error.is_some();
        session.flags.end_is_waiting |= progress.has_ended;
        if session.phase == Phase::Open && progress.has_partial_message {
            self.sessions.begin_unfinished(conn, PeerWait::HandshakeMessage, true, self.now);
        } else {
            self.watch_record(conn, progress.used == 0);
        }
        self.continue_later(conn);
    }

    /// Has a connection with unread records wait for its turn.
    pub(super) fn queue_unread(&mut self, conn: ConnId) {
        self.sessions.get(conn).flags.is_unread = true;
        self.unread.push_back(conn);
        self.pause_unread(conn);
    }

    /// Pauses a connection that has much unread input. The beginning of a record waits for its rest.
    pub(super) fn pause_unread(&mut self, conn: ConnId) {
        let session = self.sessions.get(conn);
        // mutant tls-beginning-of-a-record-paused: session.flags.is_unread => true
        session.flags.is_paused = session.flags.is_unread && session.incoming.len() > WAITING_BYTES_MAX;
        self.steer_input(conn);
    }

    /// Gives connections with unread records their turns, first come, first served. They have the steps of a phase, so those whose
    /// commands use up the others do not keep them from being read.
    pub(super) fn read_on(&mut self) {
        let mut quota = Quota::of(RUN_STEPS);
        // Bounded by RUN_STEPS: the turns of one iteration.
        for _ in 0..self.unread.len() {
            if quota.is_used_up() {
                break;
            }
            let Some(conn) = self.unread.pop_front() else { break };
            if !self.sessions.has(conn) || !std::mem::take(&mut self.sessions.get(conn).flags.is_unread) {
                continue;
            }
            if self.sessions.get(conn).phase == Phase::Open {
                let budget = self.server.budget();
                let whole = quota.limit(budget);
                let limit = whole.min(budget.within(TURN_STEPS));
                self.read(conn, &[], limit);
                self.pause_unread(conn);
                self.sessions.recount(conn);
                quota.settle(whole, self.server.budget());
            }
        }
    }

    /// Limits the time for the rest of a record, if the connection waits for it and may send it. `is_same` is whether it waited for this
    /// record before.
    pub(super) fn watch_record(&mut self, conn: ConnId, is_same: bool) {
        let session = self.sessions.get(conn);
        let is_awaited = session.phase == Phase::Open
            && !session.incoming.is_empty()
            && !session.flags.is_unread
            && !session.flags.is_paused_by_server;
        match is_awaited {
            true => self.sessions.begin_unfinished(conn, PeerWait::Record, is_same, self.now),
            false => self.sessions.clear_unfinished(conn),
        }
    }

    /// Ends open connections with a record or handshake message that takes too long, and those that have waited longest while they all
    /// take too much memory.
    pub(super) fn end_unfinished(&mut self) {
        // Bounded by LATE_MAX: the connections that end in an event-loop iteration.
        for _ in 0..LATE_MAX {
            let Some((conn, until)) = self.sessions.next_unfinished() else { return };
            // mutant tls-records-without-an-end: self.sessions.is_too_much_unfinished() => false
            if until > self.now && !self.sessions.is_too_much_unfinished() {
                return;
            }
            self.sessions.clear_unfinished(conn);
            let session = self.sessions.get(conn);
            if session.phase == Phase::Open {
                // Now, so that no more connections end than must.
                session.forget_input();
                debug!(
                    conn = self.server.names(conn).number,
                    "TLS ends: a record or handshake message takes too long"
                );
                self.break_off(conn);
                self.sessions.recount(conn);
            }
        }
    }

    /// Tells the driver to pause or resume the input, if that is news to it.
    pub(super) fn steer_input(&mut self, conn: ConnId) {
        let session = self.sessions.get(conn);
        let is_paused = session.flags.is_paused || session.flags.is_paused_by_server;
        if !session.flags.has_told_close
            && is_paused != std::mem::replace(&mut session.flags.has_told_pause, is_paused)
        {
            self.effects.push_back(if is_paused { Effect::Pause(conn) } else { Effect::Resume(conn) });
        }
    }

    /// Reports the end of the input once: the client may announce it, and the kernel does.
    pub(super) fn end_input(&mut self, conn: ConnId) {
        let session = self.sessions.get(conn);
        if !std::mem::replace(&mut session.flags.input_has_ended, true) {
            handle(&mut self.server, self.now, Event::InputEnded { conn });
        }
    }
}

/// Reserves memory for more input, without much beyond it: many connections may wait for the rest of a record.
pub(super) fn grow(input: &mut Vec<u8>, more: usize) {
    let needed = input.len() + more;
    if input.capacity() < needed {
        input.reserve_exact(needed.next_multiple_of(INPUT_UNIT) - input.len());
    }
}
