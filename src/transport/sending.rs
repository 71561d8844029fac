//! The output of connections: plaintext encrypted ahead of what is sent, and the end.

use std::io::IoSlice;

use rustls::Error;
use tracing::debug;

use super::session::{Phase, RECORD_BYTES_MAX, Session};
use super::{AHEAD_BYTES, Transport};
use crate::server::{Effect, Event, Service, handle};
use crate::time::Span;
use crate::values::account::Account;
use crate::values::ids::ConnId;

/// [`AHEAD_BYTES`] while the memory for it is short. Then a connection that is not read keeps a record of this size, and all of
/// them together little more than plaintext that waits.
const AHEAD_BYTES_MIN: usize = 1024;

/// The part of the memory that is left for ciphertext that one connection may take.
const AHEAD_PART: u64 = 8;

/// A connection that the server ends before it has sent everything does not get the rest if nothing was sent for this time.
const STUCK_TIME: Span = Span::from_secs(1);

impl<S: Service> Transport<S> {
    /// Encrypts what the server shows, as far as there is room, and has the driver send it.
    pub(super) fn send(&mut self, conn: ConnId) {
        let session = self.sessions.get(conn);
        // No effect follows the one that closes.
        if session.flags.has_told_close {
            return;
        }
        if session.flags.has_output && session.can_encrypt() && self.encrypt(conn).is_err() {
            self.break_off(conn);
        }
        let session = self.sessions.get(conn);
        let has_unsent = session.outgoing.len() > 0;
        if has_unsent && !std::mem::replace(&mut session.flags.is_sending, true) {
            session.sent_at = self.now;
            self.effects.push_back(Effect::Send(conn));
        }
        if !has_unsent {
            session.flags.is_sending = false;
            let is_closing = session.phase == Phase::Closing;
            self.sessions.take_buffers(conn);
            if is_closing {
                self.tell_close(conn);
            }
        }
    }

    fn encrypt(&mut self, conn: ConnId) -> Result<(), Error> {
        let Self { server, sessions, iovecs, plaintext, now, account, .. } = self;
        let ahead_max = ahead_bytes_max(account);
        match ahead_max {
            AHEAD_BYTES => sessions.lend(conn),
            _ => sessions.free_spares(),
        }
        let session = sessions.get(conn);
        // Bounded by AHEAD_BYTES: the ciphertext of one connection.
        while session.outgoing.len() < ahead_max {
            let room = (ahead_max - session.outgoing.len()).max(AHEAD_BYTES_MIN);
            let bytes = iovecs
                .with_outgoing(server, conn, |slices| encrypt_slices(session, slices, room, plaintext))?;
            if bytes == 0 {
                session.flags.has_output = false;
                break;
            }
            handle(server, *now, Event::Sent { conn, bytes });
        }
        Ok(())
    }

    /// Closes a connection after what is still to be sent.
    pub(super) fn close(&mut self, conn: ConnId) {
        if self.sessions.get(conn).phase == Phase::Handshake {
            self.sessions.end_handshake(conn, Phase::Failed, &self.counts);
        }
        let session = self.sessions.get(conn);
        // The server ends a connection whose client does not read, to free what it keeps for it.
        let is_stuck = session.outgoing.len() > 0 && session.sent_at + STUCK_TIME <= self.now;
        session.flags.is_broken |= session.flags.has_output && is_stuck;
        if session.can_encrypt() && session.close_notify().is_err() {
            debug!(conn = self.server.names(conn).number, "TLS ends without close_notify, after an error");
        }
        session.phase = Phase::Closing;
        self.closing.add(self.now);
        if session.flags.is_broken {
            return self.tell_close(conn);
        }
        session.flags.is_paused = session.outgoing.len() > 0;
        self.steer_input(conn);
        self.send(conn);
    }

    /// Closes connections whose clients do not take the rest, or a response.
    pub(super) fn end_stuck(&mut self) {
        // Bounded by SLOTS: the connections of one event-loop iteration.
        for slot in self.closing.next_slots(self.sessions.slots(), self.now) {
            let Some(conn) = self.sessions.stuck_at(slot, &self.closing, self.now) else { continue };
            let session = self.sessions.get(conn);
            session.flags.is_broken = true;
            match session.phase {
                Phase::Closing => self.tell_close(conn),
                _ => self.break_off(conn),
            }
        }
    }
}

/// Ciphertext that a connection may have ahead: less, the more all of them have.
fn ahead_bytes_max(account: &Account) -> usize {
    let part = usize::try_from(account.ciphertext_room() / AHEAD_PART).unwrap_or(usize::MAX);
    // mutant tls-ciphertext-without-a-bound: AHEAD_BYTES => 1 << 30
    part.clamp(AHEAD_BYTES_MIN, AHEAD_BYTES)
}

/// Encrypts slices up to one record, or a large slice, as far as there is room. Returns the bytes of plaintext.
fn encrypt_slices(
    session: &mut Session,
    slices: &[IoSlice<'_>],
    room: usize,
    gathered: &mut Vec<u8>,
) -> Result<usize, Error> {
    let Some(first) = slices.first() else { return Ok(0) };
    if slices.len() == 1 || first.len() >= RECORD_BYTES_MAX.min(room) {
        let part = &first[..first.len().min(room)];
        return session.encrypt(part).map(|()| part.len());
    }
    gathered.clear();
    // Bounded by SEND_SLICES_MAX: the slices of one send.
    for slice in slices {
        let left = RECORD_BYTES_MAX.min(room) - gathered.len();
        gathered.extend_from_slice(&slice[..slice.len().min(left)]);
    }
    let result = session.encrypt(gathered).map(|()| gathered.len());
    gathered.clear();
    result
}
