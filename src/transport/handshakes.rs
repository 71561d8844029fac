//! TLS handshakes, and the certificate that they show. In an event-loop iteration at most one of a client goes on, and one of a
//! standby.

use tracing::{debug, info, warn};

use super::Transport;
use super::identity::Identity;
use super::reading::{LATE_MAX, WAITING_BYTES_MAX, grow};
use super::session::{Finished, Phase, failure_of, reason_of, text_of};
use crate::server::{ClientAct, Effect, Event, HandshakeFailure, Service, TlsCounts, handle, increment};
use crate::time::{Span, Time, date};
use crate::values::budget::{Cost, TURN_STEPS};
use crate::values::ids::ConnId;

impl<S: Service> Transport<S> {
    /// Takes input of a handshake, and continues it at once if none had its turn in this iteration.
    pub(super) fn handshake_input(&mut self, conn: ConnId, bytes: &[u8]) {
        self.sessions.note_handshake_input(conn);
        let session = self.sessions.get(conn);
        grow(&mut session.incoming, bytes.len());
        session.incoming.extend_from_slice(bytes);
        if session.flags.is_waiting {
            session.flags.is_paused |= session.incoming.len() > WAITING_BYTES_MAX;
            self.steer_input(conn);
        } else if self.has_shaken_hands || !self.waiting.is_empty() {
            self.wait_for_turn(conn);
        } else {
            self.has_shaken_hands = true;
            self.shake_hands(conn);
        }
    }

    fn wait_for_turn(&mut self, conn: ConnId) {
        self.sessions.get(conn).flags.is_waiting = true;
        self.waiting.push_back(conn);
    }

    /// Continues a handshake with its input.
    fn shake_hands(&mut self, conn: ConnId) {
        let session = self.sessions.get(conn);
        (session.flags.is_waiting, session.flags.is_paused) = (false, false);
        let mut input = std::mem::take(&mut session.incoming);
        let budget = self.server.budget();
        budget.charge(Cost::HANDSHAKE);
        let limit = budget.within(TURN_STEPS);
        let paid = session.pay(&input, budget, limit);
        // mutant tls-hellos-without-a-price: Cost::hello(paid.bytes()) => Cost::NOTHING
        budget.charge(Cost::hello(paid.bytes()));
        // The server learns who the client is before it gets its first command.
        let plaintext = &mut self.plaintext;
        let mut deliver = |payload: &[u8]| plaintext.extend_from_slice(payload);
        let mut progress = session.process(&mut input, &paid, &mut deliver, &self.account);
        self.server.budget().charge(Cost::NEW_KEYS.times(progress.empty_records).plus(progress.keys));
        if !progress.is_last() && progress.used < input.len() {
            // Bounded by INCOMING_BYTES_MAX: the rest of the input moves.
            input.drain(..progress.used);
            session.incoming = input;
        }
        let is_unpaid = progress.is_unpaid && !progress.is_last();
        let has_ended = progress.has_ended || session.flags.end_is_waiting && !is_unpaid;
        match (progress.finished.take(), &progress.error) {
            (Some(finished), _) => self.open(conn, finished),
            (None, Some(error)) => {
                // Nothing of this client may reach the next one.
                self.plaintext.clear();
                debug!(conn = self.server.names(conn).number, "the TLS handshake fails: {}", text_of(error));
                let failure = failure_of(error);
                return self.fail_because(conn, failure, reason_of(error).unwrap_or(failure.text()));
            }
            (None, None) if has_ended => return self.fail(conn, HandshakeFailure::Disconnected),
            (None, None) => {}
        }
        if is_unpaid && self.sessions.get(conn).phase == Phase::Handshake {
            self.wait_for_turn(conn);
        } else if is_unpaid {
            self.queue_unread(conn);
        }
        self.steer_input(conn);
        self.pass_on(conn, &progress);
    }

    /// Opens a connection after its handshake.
    fn open(&mut self, conn: ConnId, finished: Finished) {
        self.sessions.end_handshake(conn, Phase::Open, &self.counts);
        let Finished { is_resumed, names } = finished;
        let TlsCounts { resumed_handshakes, full_handshakes, .. } = &*self.counts;
        increment(if is_resumed { resumed_handshakes } else { full_handshakes });
        if !names.is_empty() {
            handle(&mut self.server, self.now, Event::Certified { conn, names: &names });
        }
    }

    /// Ends a handshake that has failed. The client may get an alert before the connection closes.
    pub(super) fn fail(&mut self, conn: ConnId, failure: HandshakeFailure) {
        self.fail_because(conn, failure, failure.text());
    }

    fn fail_because(&mut self, conn: ConnId, failure: HandshakeFailure, reason: &'static str) {
        self.counts.add_failure(failure);
        self.sessions.end_handshake(conn, Phase::Failed, &self.counts);
        self.effects.push_back(Effect::LogClient(conn, ClientAct::HandshakeFailed(failure, reason)));
        handle(&mut self.server, self.now, Event::HungUp { conn });
    }

    /// Continues one of the handshakes that wait.
    pub(super) fn continue_handshake(&mut self) {
        // With entries of connections that have gone since.
        // Bounded by earlier input, which added each entry. At most one handshake continues.
        while let Some(conn) = self.waiting.pop_front() {
            if self.sessions.is_waiting(conn) {
                self.has_shaken_hands = true;
                self.shake_hands(conn);
                self.sessions.recount(conn);
                break;
            }
        }
    }

    /// Ends the handshakes that take too long.
    pub(super) fn end_late_handshakes(&mut self) {
        // Bounded by LATE_MAX: the connections that end in an event-loop iteration.
        for _ in 0..LATE_MAX {
            let Some(conn) = self.sessions.handshakes.next_late(self.now) else { return };
            self.fail(conn, HandshakeFailure::Timeout);
        }
    }

    // docs/RUNBOOK.md lists these messages.
    /// Takes a changed certificate into use, for the handshakes to come. One that is not valid does not replace a valid one: clients
    /// would refuse it.
    pub(super) fn renew_identity(&mut self, now: Time, identity: Result<Identity, String>) {
        self.next_identity = None;
        let is_valid = self.identity.as_ref().is_some_and(|present| present.is_valid(now));
        match identity {
            Ok(identity) if is_valid && !identity.is_valid(now) => {
                if identity.own.not_before_s > now.since(Time::ZERO).as_secs() {
                    self.keep_certificate(&format!(
                        "the new certificate of --tls-cert becomes valid on {}, and is used from then on",
                        date(identity.own.not_before_s)
                    ));
                    self.next_identity = Some(identity);
                } else {
                    self.keep_certificate(
                        "the new certificate of --tls-cert has expired: put one that is valid into the file",
                    );
                }
            }
            Ok(identity) => self.use_identity(identity),
            Err(why) => self.keep_certificate(&why),
        }
    }

    fn keep_certificate(&self, why: &str) {
        warn!("the certificate of TLS stays as it was: {why}");
        self.counts.is_outdated.set(true);
        increment(&self.counts.reload_failures);
    }

    fn use_identity(&mut self, identity: Identity) {
        info!("the certificate of TLS was replaced: new connections get it");
        self.counts.not_after_s.set(identity.own.not_after_s);
        self.counts.is_outdated.set(false);
        increment(&self.counts.reloads);
        self.identity = Some(match &self.identity {
            Some(earlier) => identity.with_tickets_of(earlier),
            None => identity,
        });
    }

    /// When a certificate becomes valid that waits for that.
    pub(super) fn next_identity_at(&self) -> Option<Time> {
        let seconds = self.next_identity.as_ref()?.own.not_before_s;
        Some(Time::ZERO + Span::from_secs(u32::try_from(seconds).unwrap_or(u32::MAX)))
    }

    /// Takes a certificate into use that has become valid.
    pub(super) fn use_next_identity(&mut self) {
        if self.next_identity_at().is_some_and(|at| at <= self.now)
            && let Some(identity) = self.next_identity.take()
        {
            self.renew_identity(self.now, Ok(identity));
        }
    }
}
