//! A server behind TLS that looks like one without: each connection has the client's end of TLS in it. The ciphertext between
//! both is cut anywhere.

use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use beanring::bodies::Bodies;
use beanring::server::{
    CertificatePem, ClientAct, ConnNames, Effect, Entry, Event, Peer, Priced, Protocol, Server, Service,
    Status, TlsCounts, Update, Users,
};
use beanring::time::Time;
use beanring::transport::{Identity, Transport};
use beanring::values::budget::Budget;
use beanring::values::ids::ConnId;
use beanring::wal::LogRequest;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection};

use super::connection::{Connection, outgoing};
use super::forge;
use super::in_memory::Cut;
use super::random::Random;
use super::tls_stream::{client, sealed, trusting};
use super::under_test::UnderTest;
use super::unmetered::Unmetered;

/// The largest random piece of ciphertext in bytes: more than a record, so that some pieces have several.
const PIECE_BYTES_MAX: usize = 20_000;

/// More rounds than any event needs, even if every byte comes alone.
const ROUNDS_MAX: usize = 10_000_000;

/// A server behind TLS, with its clients' ends of TLS.
pub struct Tunnel {
    transport: Transport<Unmetered>,
    counts: Rc<TlsCounts>,
    clients: Arc<ClientConfig>,
    /// The connections by the slots of the server.
    ends: Vec<Option<End>>,
    effects: VecDeque<Effect>,
    now: Time,
    cut: Cut,
    random: Random,
}

/// The client's end of a connection, and the driver's end of its ciphertext.
struct End {
    tls: ClientConnection,
    link: Connection,
    output: Output,
    /// The driver was asked to send.
    is_sending: bool,
    has_closed: bool,
    has_hung_up: bool,
    /// The driver was asked to close.
    is_closing: bool,
    /// The transport has closed before it has sent everything: the client did not read.
    is_cut: bool,
}

/// Plaintext for the driver to send. What it was shown stays in place.
#[derive(Default)]
struct Output {
    shown: Vec<u8>,
    sent: usize,
    gathered: Vec<u8>,
}

/// Returns a certificate for a server in memory, whose handshakes are as cheap as they can be, and clients that trust it.
pub fn identity() -> (Identity, Arc<ClientConfig>) {
    let clients = trusting(CERTIFICATE.1.clone(), default_provider()).with_no_client_auth();
    (CERTIFICATE.0.clone(), clients.into())
}

/// Returns [`identity`] with clients whose records a test makes.
pub fn forged_identity() -> (Identity, &'static ClientConfig) {
    static CLIENTS: LazyLock<ClientConfig> = LazyLock::new(|| forge::config(CERTIFICATE.1.clone()));
    (CERTIFICATE.0.clone(), &CLIENTS)
}

static CERTIFICATE: LazyLock<(Identity, CertificateDer<'static>)> = LazyLock::new(|| {
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("the system has random numbers");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("the name is valid");
    let made = params.self_signed(&key).expect("the parameters are valid");
    let (chain, key) = (made.pem().into_bytes(), key.serialize_pem().into_bytes());
    let identity = Identity::read(&CertificatePem { chain, key, client_ca: None });
    (identity.expect("the certificate can be used"), made.der().clone())
});

impl Tunnel {
    /// Puts TLS before a server. Its ciphertext is cut as `cut` says.
    pub fn new(server: Server, cut: Cut) -> Self {
        Self::before(Unmetered { server, is_metered: true }, cut)
    }

    /// Puts TLS before a server whose limit of memory is exact: the memory of TLS does not count.
    pub fn unmetered(server: Server, cut: Cut) -> Self {
        Self::before(Unmetered { server, is_metered: false }, cut)
    }

    fn before(mut server: Unmetered, cut: Cut) -> Self {
        let (identity, clients) = identity();
        let counts = Rc::new(TlsCounts::default());
        server.server.show_tls(counts.clone());
        let seed = if let Cut::Random { seed } = cut { seed } else { 0 };
        Self {
            transport: Transport::new(server, Some(identity), counts.clone()),
            counts,
            clients,
            ends: Vec::new(),
            effects: VecDeque::new(),
            now: Time::ZERO,
            cut,
            random: Random::new(!seed),
        }
    }

    fn end(&mut self, conn: ConnId) -> &mut End {
        let end = self.ends[conn.slot as usize].as_mut();
        end.filter(|end| end.link.conn == conn).expect("the connection is open")
    }

    /// Exchanges ciphertext until neither side has any, or one has to wait.
    fn exchange(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut is_done = !self.carry_out();
            for slot in 0..self.ends.len() {
                is_done &= !self.feed(slot) & !self.fetch(slot);
            }
            if is_done {
                return self.ask_driver();
            }
        }
        panic!("the exchange of ciphertext does not end");
    }

    /// Carries out the effects of the transport. Returns whether there was one.
    fn carry_out(&mut self) -> bool {
        let mut had_effect = false;
        while let Some(effect) = self.transport.poll_effect() {
            had_effect = true;
            match effect {
                Effect::Send(conn) => self.end(conn).link.apply(&effect),
                Effect::Pause(conn) | Effect::Resume(conn) => {
                    self.end(conn).link.apply(&effect);
                    self.effects.push_back(effect);
                }
                Effect::Close(conn) => {
                    let is_cut = !outgoing(&mut self.transport, conn).is_empty();
                    let end = self.end(conn);
                    end.is_cut = is_cut;
                    end.close();
                }
                Effect::LogClient(conn, ClientAct::HandshakeFailed(why, _)) => {
                    assert!(self.end(conn).has_hung_up, "the handshake fails: {why:?}");
                }
                effect => self.effects.push_back(effect),
            }
        }
        had_effect
    }

    /// Has the transport receive a piece of what the client sends. Returns whether there was one.
    fn feed(&mut self, slot: usize) -> bool {
        let Self { transport, ends, now, cut, random, .. } = self;
        let Some(end) = ends[slot].as_mut().filter(|end| end.link.is_open() && !end.has_hung_up) else {
            return false;
        };
        if !end.link.unreceived.is_empty() && !end.link.is_paused {
            end.link.receive(piece(*cut, random), false, transport, *now);
        } else if let Some(event) = end.link.end_of_input() {
            transport.handle(*now, event);
        } else {
            return false;
        }
        self.carry_out();
        true
    }

    /// Takes a piece of what the transport sends, while the driver has nothing to send. Returns whether there was one.
    fn fetch(&mut self, slot: usize) -> bool {
        let Self { transport, ends, now, cut, random, .. } = self;
        let Some(end) = ends[slot].as_mut().filter(|end| end.link.is_open() && !end.has_hung_up) else {
            return false;
        };
        if end.link.is_sending() {
            let most = if matches!(cut, Cut::Random { .. }) { piece(*cut, random) } else { usize::MAX };
            let sent = end.link.end_send(most, transport);
            end.decrypt(&sent);
            transport.handle(*now, Event::Sent { conn: end.link.conn, bytes: sent.len() });
            self.carry_out();
            return true;
        }
        if !end.link.wants_send || !end.output.is_empty() {
            return false;
        }
        end.link.begin_send(transport);
        true
    }

    /// Asks the driver to send what was decrypted, and to close what was closed after that.
    fn ask_driver(&mut self) {
        for end in self.ends.iter_mut().flatten() {
            if end.is_closing {
                continue;
            }
            if !end.output.is_empty() && !end.has_hung_up && !end.is_cut {
                if !std::mem::replace(&mut end.is_sending, true) {
                    self.effects.push_back(Effect::Send(end.link.conn));
                }
            } else if !end.link.is_open() {
                assert!(end.has_closed || end.has_hung_up || end.is_cut, "a close follows close_notify");
                end.is_closing = true;
                self.effects.push_back(Effect::Close(end.link.conn));
            }
        }
    }

    /// Handles an event of a driver for a connection.
    fn handle_end(&mut self, conn: ConnId, event: &Event<'_>) {
        let may_update_keys = self.random.one_in(16);
        let says_goodbye = self.random.one_in(2);
        let end = self.end(conn);
        match *event {
            Event::Received { bytes, .. } if end.link.is_open() => {
                if may_update_keys && !end.tls.is_handshaking() {
                    end.tls.refresh_traffic_keys().expect("the handshake has finished");
                }
                end.tls.writer().write_all(bytes).expect("the buffer has no limit");
                end.write();
            }
            Event::InputEnding { .. } if end.link.is_open() => {
                end.link.note_ending();
                self.transport.handle(self.now, Event::InputEnding { conn });
            }
            Event::InputEnded { .. } if end.link.is_open() => {
                if says_goodbye {
                    end.tls.send_close_notify();
                    end.write();
                }
                end.link.is_half_closed = true;
            }
            Event::Sent { bytes, .. } => end.output.remove(bytes),
            Event::HungUp { .. } => {
                end.has_hung_up = true;
                if end.link.is_open() {
                    self.transport.handle(self.now, Event::HungUp { conn });
                }
            }
            Event::Closed { .. } => {
                self.ends[conn.slot as usize] = None;
                self.transport.handle(self.now, Event::Closed { conn });
            }
            _ => {}
        }
    }
}

/// The size of the next piece.
const fn piece(cut: Cut, random: &mut Random) -> usize {
    match cut {
        Cut::Whole => usize::MAX,
        Cut::EveryByte => 1,
        Cut::Random { .. } if random.one_in(4) => 1 + random.below(30),
        Cut::Random { .. } => 1 + random.below(PIECE_BYTES_MAX),
    }
}

impl End {
    fn new(conn: ConnId, tls: ClientConnection) -> Self {
        let mut end = Self {
            tls,
            link: Connection::new(conn),
            output: Output::default(),
            is_sending: false,
            has_closed: false,
            has_hung_up: false,
            is_closing: false,
            is_cut: false,
        };
        end.write();
        end
    }

    /// Sends what the client has encrypted.
    fn write(&mut self) {
        self.link.unreceived.extend(sealed(&mut self.tls, b""));
    }

    fn decrypt(&mut self, mut ciphertext: &[u8]) {
        while !ciphertext.is_empty() {
            self.tls.read_tls(&mut ciphertext).expect("the plaintext was taken");
            let state = self.tls.process_new_packets().expect("the server sends what is right");
            self.has_closed |= state.peer_has_closed();
            let read = self.tls.reader().read_to_end(&mut self.output.gathered);
            assert!(read.is_ok() == self.has_closed, "the plaintext ends with close_notify: {read:?}");
        }
        if self.link.is_open() {
            self.write();
        }
    }

    fn close(&mut self) {
        assert!(!self.link.is_sending(), "all ciphertext was sent");
        self.link.apply(&Effect::Close(self.link.conn));
    }
}

impl Output {
    const fn is_empty(&self) -> bool {
        self.sent == self.shown.len() && self.gathered.is_empty()
    }

    fn show(&mut self) -> &[u8] {
        if self.sent == self.shown.len() {
            self.sent = 0;
            self.shown = std::mem::take(&mut self.gathered);
        }
        &self.shown[self.sent..]
    }

    fn remove(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.shown.len(), "a driver sends what it was shown");
    }
}

impl UnderTest for Tunnel {
    fn server(&self) -> &Server {
        &self.transport.server().server
    }

    fn server_mut(&mut self) -> &mut Server {
        &mut self.transport.server_mut().server
    }

    fn is_shaking_hands(&self) -> bool {
        self.counts.unfinished_handshakes.get() > 0
    }
}

impl Service for Tunnel {
    type Identity = Identity;

    fn accept(&mut self, now: Time, protocol: Protocol, entry: Entry) -> ConnId {
        self.now = now;
        let Entry::Plain(peer) = entry else { unreachable!("the client's end of TLS is in the tunnel") };
        let peer = peer.unwrap_or_else(Peer::unknown);
        let conn = self.transport.accept(now, protocol, Entry::Tls(peer));
        let slot = conn.slot as usize;
        if self.ends.len() <= slot {
            self.ends.resize_with(slot + 1, || None);
        }
        self.ends[slot] = Some(End::new(conn, client(&self.clients)));
        self.exchange();
        conn
    }

    fn handle_event(&mut self, now: Time, event: Priced<'_>) {
        self.now = now;
        match event.event() {
            Event::Received { conn, .. }
            | Event::InputEnding { conn }
            | Event::InputEnded { conn }
            | Event::Sent { conn, .. }
            | Event::HungUp { conn }
            | Event::Closed { conn } => self.handle_end(*conn, event.event()),
            _ => self.transport.handle_event(now, event),
        }
        self.exchange();
    }

    fn update(&mut self, now: Time, update: Update<Identity>) -> Option<Users> {
        self.transport.update(now, update)
    }

    fn turn(&mut self, now: Time) {
        self.now = now;
        self.transport.turn(now);
        self.exchange();
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.transport.next_deadline()
    }

    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]> {
        assert!(self.transport.direct(conn).is_none(), "ciphertext has no place in a body");
        None
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        let end = self.end(conn);
        end.is_sending &= !end.output.is_empty();
        let unsent = end.output.show();
        slices.extend((!unsent.is_empty()).then(|| IoSlice::new(unsent)));
    }

    fn poll_log_request(&mut self, now: Time) -> Option<LogRequest> {
        self.transport.poll_log_request(now)
    }

    fn names(&self, conn: ConnId) -> ConnNames<'_> {
        self.transport.names(conn)
    }

    fn status(&self) -> Status {
        self.transport.status()
    }

    fn budget(&mut self) -> &mut Budget {
        self.transport.budget()
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        self.transport.body_memory()
    }
}
