//! TLS between a driver and a server: ciphertext on the side of the driver, plaintext on the other.
//!
//! [`Transport`] is a [`Service`] around another. Events of plaintext connections pass through it. For a connection over TLS it
//! turns input into plaintext, and encrypts output ahead of what is sent, up to 64 KiB. No driver knows TLS, and the
//! server knows only what [`TlsCounts`] shows.

mod chain;
pub mod forwarded;
mod handshakes;
mod identity;
mod keys;
#[cfg(feature = "replicate")]
pub mod link;
mod outgoing;
mod proxy;
mod reading;
mod sending;
mod session;
mod sessions;
mod shares;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use tracing::warn;

pub use self::identity::{Identity, IdentityError};
use self::proxy::{Proxied, Sender};
use self::session::{Phase, Session};
use self::sessions::Sessions;
use crate::bodies::Bodies;
use crate::server::{
    ClosingWatch, ConnNames, Effect, Entry, Event, HandshakeFailure, IoVecs, Origin, Peer, Priced, Protocol,
    Service, Status, TlsCounts, Update, Users, handle,
};
use crate::time::{Span, Time};
use crate::values::account::{Account, Held};
use crate::values::budget::{Budget, Cost};
use crate::values::ids::ConnId;
use crate::values::link_secret::LinkSecret;
use crate::values::peer_wait::PeerWait;
use crate::wal::LogRequest;

/// Ciphertext of a connection that is not sent yet. The server keeps what does not fit.
const AHEAD_BYTES: usize = 64 * 1024;

/// The time that a handshake may take.
pub const HANDSHAKE_TIME: Span = PeerWait::Handshake.within();

/// The maximum number of unfinished handshakes, and of unfinished headers of load balancers. Another one takes the place of one from
/// the address that has most.
pub const HANDSHAKES_MAX: usize = 256;

/// A server whose connections may be over TLS.
pub struct Transport<S> {
    server: S,
    sessions: Sessions,
    proxied: Proxied,
    /// What a standby must show to forward its clients. None: it cannot.
    link_secret: Option<LinkSecret>,
    /// No listener is without TLS: a standby may forward only clients that speak TLS too.
    refuses_clear_clients: bool,
    /// None: the server has no certificate, and every listener is one of plaintext.
    identity: Option<Identity>,
    /// The certificate that replaces it once it is valid.
    next_identity: Option<Identity>,
    /// Those of the transport itself. They come before those of the server.
    effects: VecDeque<Effect>,
    /// Connections to continue after the effects of the server: it may have closed them.
    ready: VecDeque<ConnId>,
    now: Time,
    /// A handshake had its turn in this event-loop iteration. One costs as much as some hundred commands.
    has_shaken_hands: bool,
    /// Handshakes with input that had no turn yet.
    waiting: VecDeque<ConnId>,
    /// Open connections with records that had no turn yet.
    unread: VecDeque<ConnId>,
    plaintext: Vec<u8>,
    /// Input that is decrypted in place.
    ciphertext: Vec<u8>,
    iovecs: IoVecs,
    counts: Rc<TlsCounts>,
    /// Connections that close after what is still to be sent.
    closing: ClosingWatch,
    account: Rc<Account>,
    /// What the account has of the buffers and queues here.
    shared_bytes: usize,
    /// What it has of headers.
    header_bytes: usize,
}

impl<S: Service> Transport<S> {
    /// Returns a transport for this server, which counts in `counts`. Without an identity no connection is one over TLS.
    pub fn new(server: S, identity: Option<Identity>, counts: Rc<TlsCounts>) -> Self {
        if let Some(identity) = &identity {
            counts.not_after_s.set(identity.own.not_after_s);
        }
        let account = server.account();
        Self {
            server,
            sessions: Sessions::new(Rc::clone(&account)),
            proxied: Proxied::default(),
            link_secret: None,
            refuses_clear_clients: false,
            identity,
            next_identity: None,
            effects: VecDeque::new(),
            ready: VecDeque::new(),
            now: Time::ZERO,
            has_shaken_hands: false,
            waiting: VecDeque::new(),
            unread: VecDeque::new(),
            plaintext: Vec::new(),
            ciphertext: Vec::new(),
            iovecs: IoVecs::default(),
            counts,
            closing: ClosingWatch::default(),
            account,
            shared_bytes: 0,
            header_bytes: 0,
        }
    }

    /// Refuses clients without TLS that standbys forward, as the listeners of this server do.
    pub const fn refuse_clear_clients(&mut self) {
        self.refuses_clear_clients = true;
    }

    /// The server.
    pub const fn server(&self) -> &S {
        &self.server
    }

    /// Handles an event: see [`handle`].
    pub fn handle(&mut self, now: Time, event: Event<'_>) {
        handle(self, now, event);
    }

    /// The server, to be changed.
    pub const fn server_mut(&mut self) -> &mut S {
        &mut self.server
    }

    /// Expects a TLS handshake before anything else of a connection.
    fn begin_tls(&mut self, conn: ConnId, origin: Origin) {
        if let Some(surplus) = self.sessions.surplus(origin) {
            self.fail(surplus, HandshakeFailure::Surplus);
        }
        let identity = self.identity.as_ref().expect("a listener with TLS has a certificate");
        match Session::new(conn, identity) {
            Ok(session) => self.sessions.insert(session, origin, self.now, &self.counts),
            Err(error) => {
                warn!("cannot begin a TLS connection: {error}");
                handle(&mut self.server, self.now, Event::HungUp { conn });
            }
        }
    }

    fn handle_session(&mut self, conn: ConnId, event: &Event<'_>) {
        let session = self.sessions.get(conn);
        match *event {
            Event::Received { bytes, .. } => match session.phase {
                Phase::Handshake => self.handshake_input(conn, bytes),
                Phase::Open if session.flags.is_unread => {
                    session.incoming.extend_from_slice(bytes);
                    self.pause_unread(conn);
                }
                Phase::Open if !session.has_last_input() => self.input(conn, bytes),
                // After close_notify nothing counts (RFC 8446, 6.1), nor after an error.
                Phase::Open | Phase::Failed | Phase::Closing => {}
            },
            Event::Sent { bytes, .. } => {
                session.outgoing.remove(bytes);
                session.sent_at = self.now;
                // At once: a driver may look for more output before it carries out effects.
                self.send(conn);
            }
            Event::InputEnding { .. } if session.phase == Phase::Open => {
                handle(&mut self.server, self.now, Event::InputEnding { conn });
            }
            Event::InputEnded { .. } => match session.phase {
                Phase::Handshake if session.flags.is_waiting => session.flags.end_is_waiting = true,
                Phase::Handshake => self.fail(conn, HandshakeFailure::Disconnected),
                Phase::Open if session.flags.is_unread => session.flags.end_is_waiting = true,
                Phase::Open => self.end_input(conn),
                Phase::Failed | Phase::Closing => {}
            },
            Event::HungUp { .. } => {
                session.flags.is_broken = true;
                match session.phase {
                    Phase::Handshake => self.fail(conn, HandshakeFailure::Disconnected),
                    Phase::Open => handle(&mut self.server, self.now, Event::HungUp { conn }),
                    Phase::Failed => {}
                    Phase::Closing => self.tell_close(conn),
                }
            }
            Event::Closed { .. } => {
                self.server.budget().charge(Cost::TLS_CLOSE);
                self.sessions.remove(conn, &self.counts);
                self.proxied.remove(conn);
                self.count_headers();
                return handle(&mut self.server, self.now, Event::Closed { conn });
            }
            Event::ReceivedDirect { .. } => unreachable!("ciphertext has no place in a body"),
            _ => {}
        }
        self.sessions.recount(conn);
        self.count_shared();
    }

    /// Has a connection continue once the effects of the server are carried out.
    fn continue_later(&mut self, conn: ConnId) {
        if !std::mem::replace(&mut self.sessions.get(conn).flags.is_ready, true) {
            self.ready.push_back(conn);
        }
    }

    /// Does the next thing that is left over of input, or sends.
    fn continue_now(&mut self, conn: ConnId) {
        let session = self.sessions.get(conn);
        session.flags.is_ready = false;
        if session.phase == Phase::Open && std::mem::take(&mut session.flags.is_failing) {
            self.break_off(conn);
            self.continue_later(conn);
        } else if session.phase == Phase::Open
            && !session.flags.is_unread
            && std::mem::take(&mut session.flags.end_is_waiting)
        {
            self.end_input(conn);
            self.continue_later(conn);
        } else {
            self.send(conn);
        }
        self.sessions.recount(conn);
    }

    fn tell_close(&mut self, conn: ConnId) {
        if !std::mem::replace(&mut self.sessions.get(conn).flags.has_told_close, true) {
            self.closing.remove();
            self.effects.push_back(Effect::Close(conn));
        }
    }

    /// Ends an open connection after an error. The client may get an alert.
    fn break_off(&mut self, conn: ConnId) {
        let session = self.sessions.get(conn);
        session.phase = Phase::Failed;
        handle(&mut self.server, self.now, Event::HungUp { conn });
    }

    /// Carries out an effect of the server for a connection over TLS.
    fn translate(&mut self, effect: Effect) -> Option<Effect> {
        match effect {
            Effect::Send(conn) if self.sessions.has(conn) => {
                self.sessions.get(conn).flags.has_output = true;
                self.continue_later(conn);
                None
            }
            Effect::Close(conn) if self.sessions.has(conn) => {
                self.close(conn);
                self.sessions.recount(conn);
                None
            }
            Effect::Pause(conn) | Effect::Resume(conn) if self.sessions.has(conn) => {
                self.sessions.get(conn).flags.is_paused_by_server = effect == Effect::Pause(conn);
                self.watch_record(conn, true);
                self.sessions.recount(conn);
                self.steer_input(conn);
                None
            }
            effect => Some(effect),
        }
    }

    /// Counts the buffers and queues that all connections share.
    fn count_shared(&mut self) {
        let bytes = self.plaintext.capacity()
            + self.ciphertext.capacity()
            + self.effects.capacity() * size_of::<Effect>()
            + (self.ready.capacity() + self.waiting.capacity() + self.unread.capacity())
                * size_of::<ConnId>();
        self.account.change(Held::TlsInput, std::mem::replace(&mut self.shared_bytes, bytes), bytes);
    }

    /// Counts the memory of headers, and of the names in them.
    pub(super) fn count_headers(&mut self) {
        let bytes = self.proxied.bytes();
        self.account.change(Held::ProxyHeaders, std::mem::replace(&mut self.header_bytes, bytes), bytes);
    }
}

impl<S: Service> Service for Transport<S> {
    type Identity = Identity;

    fn accept(&mut self, now: Time, protocol: Protocol, entry: Entry) -> ConnId {
        self.now = now;
        let mut accept = |peer| self.server.accept(now, protocol, Entry::Plain(peer));
        match entry {
            Entry::Plain(peer) => accept(peer),
            Entry::Tls(peer) => {
                let origin = peer.origin;
                let conn = accept(Some(peer));
                self.begin_tls(conn, origin);
                conn
            }
            Entry::Proxied { has_tls, balancer } => {
                let conn = accept(None);
                self.expect(conn, Sender { peer: balancer, is_standby: false, has_tls });
                conn
            }
            Entry::Forwarded(standby) => {
                let conn = accept(None);
                let peer = Peer { origin: standby, ..Peer::unknown() };
                self.expect(conn, Sender { peer, is_standby: true, has_tls: false });
                conn
            }
        }
    }

    fn handle_event(&mut self, now: Time, event: Priced<'_>) {
        self.now = now;
        match event.event().conn() {
            Some(conn) if self.sessions.has(conn) => self.handle_session(conn, event.event()),
            Some(conn) if self.proxied.is_unfinished(conn) => self.handle_unfinished(conn, event.event()),
            conn => {
                if let (Some(conn), Event::Closed { .. }) = (conn, event.event()) {
                    self.proxied.remove(conn);
                    self.count_headers();
                }
                self.server.handle_event(now, event);
            }
        }
    }

    fn update(&mut self, now: Time, update: Update<Identity>) -> Option<Users> {
        match update {
            Update::Counts(counts) => self.server.update(now, Update::Counts(counts)),
            Update::Users(users) => self.server.update(now, Update::Users(users)),
            Update::Certificate(identity) => {
                self.renew_identity(now, identity);
                None
            }
            Update::LinkSecret(secret) => {
                self.link_secret = secret;
                None
            }
        }
    }

    fn turn(&mut self, now: Time) {
        self.now = now;
        self.has_shaken_hands = false;
        self.use_next_identity();
        self.end_late_headers();
        self.end_late_handshakes();
        self.end_unfinished();
        self.closing.note_others(self.sessions.has_responses(), false, now);
        self.end_stuck();
        self.continue_handshake();
        self.read_on();
        self.server.turn(now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        // Bounded by Budget::is_full: the effects of one event, and encryption until an iteration is full.
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            if let Some(effect) = self.server.poll_effect() {
                if self.sessions.is_empty() {
                    return Some(effect);
                }
                if let Some(effect) = self.translate(effect) {
                    return Some(effect);
                }
            } else {
                // To encrypt takes time: the others go on in the next iteration.
                if self.server.budget().is_full() {
                    return None;
                }
                let conn = self.ready.pop_front()?;
                if self.sessions.has(conn) {
                    self.continue_now(conn);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        if !self.waiting.is_empty() || !self.unread.is_empty() || !self.ready.is_empty() {
            return Some(Time::ZERO);
        }
        let header = [self.proxied.next_deadline(), self.next_identity_at()].into_iter().flatten().min();
        let own = match self.sessions.is_empty() {
            true => header,
            false => {
                [header, self.sessions.next_deadline(), self.closing.deadline()].into_iter().flatten().min()
            }
        };
        match (self.server.next_deadline(), own) {
            (Some(server), Some(own)) => Some(server.min(own)),
            (server, own) => server.or(own),
        }
    }

    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]> {
        if self.sessions.has(conn) || self.proxied.is_unfinished(conn) {
            None
        } else {
            self.server.direct(conn)
        }
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        if !self.sessions.has(conn) {
            return self.server.outgoing(conn, slices);
        }
        let unsent = self.sessions.get(conn).outgoing.show();
        slices.extend((!unsent.is_empty()).then(|| IoSlice::new(unsent)));
    }

    fn poll_log_request(&mut self, now: Time) -> Option<LogRequest> {
        self.server.poll_log_request(now)
    }

    fn names(&self, conn: ConnId) -> ConnNames<'_> {
        let names = self.server.names(conn);
        ConnNames { peer: self.proxied.name(conn).or(names.peer), ..names }
    }

    fn status(&self) -> Status {
        let status = self.server.status();
        Status { is_settled: status.is_settled && self.ready.is_empty(), ..status }
    }

    #[inline]
    fn budget(&mut self) -> &mut Budget {
        self.server.budget()
    }

    fn account(&self) -> Rc<Account> {
        Rc::clone(&self.account)
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        self.server.body_memory()
    }
}
