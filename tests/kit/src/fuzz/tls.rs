//! A client shakes hands, and then records are changed, cut, repeated and mixed with other bytes: nothing panics, and no command
//! of a changed record, or of one after it, is executed.

use std::io::Write;
use std::rc::Rc;

use beanring::server::{Effect, Entry, Event, Peer, Protocol, Server, Service, TlsCounts};
use beanring::time::{Span, Time};
use beanring::transport::Transport;
use rustls::{ClientConnection, Error};

use super::input::Input;
use crate::config::config;
use crate::connection::Connection;
use crate::tls_stream::{client, sealed};
use crate::tunnel::identity;

const JOB_BYTES_MAX: u32 = 65_535;

/// Whether a byte is one of those in a record's header that say nothing: the protocol ignores the version (RFC 8446, 5.1), and rustls
/// the outer type, which the key does not protect.
fn is_ignored(mut records: &[u8], mut at: usize) -> bool {
    while let [_, _, _, high, low, ..] = *records {
        let length = 5 + usize::from(u16::from_be_bytes([high, low]));
        if at < length {
            return at <= 2;
        }
        (records, at) = (&records[length..], at - length);
    }
    false
}

struct Attack {
    transport: Transport<Server>,
    counts: Rc<TlsCounts>,
    now: Time,
    tls: ClientConnection,
    link: Connection,
    /// The commands in records before the first changed one.
    puts: usize,
    /// The input is not what the client has encrypted any more.
    is_changed: bool,
    /// The client has ended after an error.
    has_failed: bool,
}

/// Runs an input: each byte is an action, and what follows it says how.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut attack = Attack::new();
    if input.below(4) != 0 {
        attack.shake_hands();
    }
    while !input.is_empty() && attack.link.is_open() {
        attack.act(&mut input);
        attack.check();
    }
    attack.now = attack.now + Span::from_secs(10);
    attack.turn();
    attack.check();
}

impl Attack {
    fn new() -> Self {
        let (identity, clients) = identity();
        let counts = Rc::new(TlsCounts::default());
        let mut transport =
            Transport::new(Server::new(config(JOB_BYTES_MAX)), Some(identity), counts.clone());
        let now = Time::from_nanos(1_000_000_000);
        let conn = transport.accept(now, Protocol::Beanstalk, Entry::Tls(Peer::unknown()));
        let (tls, link) = (client(&clients), Connection::new(conn));
        let mut attack =
            Self { transport, counts, now, tls, link, puts: 0, is_changed: false, has_failed: false };
        attack.carry_out();
        attack
    }

    fn shake_hands(&mut self) {
        while self.counts.full_handshakes.get() == 0 {
            let bytes = self.encrypted();
            self.deliver(&bytes, usize::MAX);
            self.turn();
            self.transmit(usize::MAX);
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(12) {
            0..4 => {
                self.say(b"put 0 0 60 5\r\nhello\r\n");
                self.send_record(input);
            }
            4 if !self.tls.is_handshaking() && !self.has_failed => {
                self.tls.refresh_traffic_keys().expect("the handshake has finished");
                let bytes = self.encrypted();
                self.deliver(&bytes, 1 + input.below(40));
            }
            5 => {
                self.say(b"peek 1\r\n");
                let bytes = self.encrypted();
                self.deliver(&bytes, 1 + input.below(40));
            }
            6 => {
                let count = input.below(64);
                let bytes = input.bytes(count).to_vec();
                self.is_changed |= !bytes.is_empty();
                self.deliver(&bytes, usize::MAX);
            }
            7 => self.transmit(1 + input.below(2000)),
            8 => self.turn(),
            9 if input.below(4) == 0 => {
                // An error after close_notify is a failed assertion in the client of rustls.
                self.has_failed |= self.is_changed || self.tls.is_handshaking();
                self.tls.send_close_notify();
                self.is_changed = true;
                let bytes = self.encrypted();
                self.deliver(&bytes, usize::MAX);
            }
            10 if input.below(4) == 0 => self.link.is_half_closed = true,
            11 if input.below(8) == 0 => {
                self.is_changed = true;
                self.transport.handle(self.now, Event::HungUp { conn: self.link.conn });
            }
            _ => self.turn(),
        }
        self.carry_out();
        if let Some(event) = self.link.is_open().then(|| self.link.end_of_input()).flatten() {
            self.is_changed = true;
            self.transport.handle(self.now, event);
            self.carry_out();
        }
    }

    /// Encrypts a command, unless the client has failed.
    fn say(&mut self, command: &[u8]) {
        let result = self.tls.writer().write_all(command);
        assert!(result.is_ok() || self.has_failed, "{result:?}");
    }

    /// Sends a command in records that may be changed.
    fn send_record(&mut self, input: &mut Input<'_>) {
        let is_shaking_hands = self.tls.is_handshaking();
        let mut bytes = self.encrypted();
        let (how, at) = (input.below(8), input.below(1 + bytes.len()));
        let is_whole = how > 2 || bytes.is_empty();
        if !self.is_changed && (is_whole || how == 2) {
            self.puts += 1;
        }
        match how {
            0 if at < bytes.len() && !is_ignored(&bytes, at) => {
                bytes[at] ^= 1 << input.below(8);
                // A handshake has more bytes that mean nothing, such as records for old middleboxes.
                self.is_changed |= !is_shaking_hands;
            }
            1 => {
                self.is_changed |= at < bytes.len() && !is_shaking_hands;
                bytes.truncate(at);
            }
            2 => {
                self.is_changed |= !bytes.is_empty() && !is_shaking_hands;
                bytes.extend_from_within(..);
            }
            _ => {}
        }
        if how < 2 && !self.is_changed {
            self.puts += 1;
        }
        self.deliver(&bytes, 1 + input.below(60));
    }

    /// Returns what the client has encrypted.
    fn encrypted(&mut self) -> Vec<u8> {
        self.is_changed |= self.has_failed;
        sealed(&mut self.tls, b"")
    }

    /// Has the server receive bytes in pieces, unless it wants none.
    fn deliver(&mut self, bytes: &[u8], piece: usize) {
        if self.link.is_half_closed {
            return;
        }
        self.link.unreceived.extend_from_slice(bytes);
        while self.link.is_open() && !self.link.is_paused && !self.link.unreceived.is_empty() {
            self.link.receive(piece, false, &mut self.transport, self.now);
            self.carry_out();
        }
    }

    /// Sends at most `bytes` of the output to the client, which must accept them.
    fn transmit(&mut self, bytes: usize) {
        if !self.link.is_open() || !self.link.wants_send {
            return;
        }
        self.link.begin_send(&mut self.transport);
        if self.link.is_sending() {
            let sent = self.link.end_send(bytes, &mut self.transport);
            self.transport.handle(self.now, Event::Sent { conn: self.link.conn, bytes: sent.len() });
            self.read(&sent);
            self.carry_out();
        }
    }

    fn read(&mut self, mut ciphertext: &[u8]) {
        while !ciphertext.is_empty() && !self.has_failed {
            self.tls.read_tls(&mut ciphertext).expect("the plaintext was taken");
            if let Err(error) = self.tls.process_new_packets() {
                self.has_failed = true;
                let is_told = matches!(error, Error::AlertReceived(_));
                assert!(
                    is_told || self.is_changed || self.puts == 0 || self.counts.full_handshakes.get() == 0,
                    "the client cannot read the server: {error}"
                );
            }
            let mut plaintext = Vec::new();
            // It may end without close_notify.
            let _ = std::io::Read::read_to_end(&mut self.tls.reader(), &mut plaintext);
        }
    }

    fn turn(&mut self) {
        self.transport.turn(self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.transport.poll_effect() {
            if let Effect::Send(_) | Effect::Pause(_) | Effect::Resume(_) | Effect::Close(_) = effect {
                self.link.apply(&effect);
                self.link.close(&mut self.transport, self.now);
            }
        }
    }

    fn check(&self) {
        let server = self.transport.server();
        server.check();
        let jobs = server.engine().jobs().len();
        assert!(jobs <= self.puts, "{jobs} jobs of {} puts", self.puts);
    }
}
