//! Connections over TLS that close while their clients do not read.

use std::io::Read;
use std::rc::Rc;

use beanring::io::users_file;
use beanring::server::{Config, Effect, Entry, Event, Peer, Protocol, Server, Service, Update};
use beanring::time::{Span, Time};
use beanring::transport::Transport;
use beanring::values::ids::ConnId;
use beanring_testkit::config::config;
use beanring_testkit::connection::outgoing;
use beanring_testkit::tls_stream::{client, sealed};
use beanring_testkit::tunnel::identity;
use rustls::ClientConnection;

const USERS: &str = "[users.one]\ntoken = \"one-one-one-one-one\"\nproduce = [\"*\"]\ninspect = [\"*\"]\n";

/// A server, and a client of it.
struct Place {
    transport: Transport<Server>,
    now: Time,
    conn: ConnId,
    tls: ClientConnection,
    is_closed: bool,
    /// Bytes of plaintext, without the reply to the put.
    read: usize,
}

impl Place {
    /// Connects a client that shakes hands.
    fn new(users: Option<&str>) -> Self {
        let users = users.map(|text| users_file::parse(text).expect("they are valid"));
        let (identity, clients) = identity();
        let server = Server::new(Config { users, ..config(60_000) });
        let mut transport = Transport::new(server, Some(identity), Rc::default());
        let now = Time::ZERO + Span::from_secs(1);
        let conn = transport.accept(now, Protocol::Beanstalk, Entry::Tls(Peer::unknown()));
        let mut place = Self { transport, now, conn, tls: client(&clients), is_closed: false, read: 0 };
        while place.tls.is_handshaking() {
            place.say(b"");
            place.read();
        }
        place
    }

    fn say(&mut self, text: &[u8]) {
        let bytes = sealed(&mut self.tls, text);
        self.transport.handle(self.now, Event::Received { conn: self.conn, bytes: &bytes });
        self.carry_out();
        self.pass(Span::ZERO);
    }

    /// Reads all that comes.
    fn read(&mut self) {
        loop {
            let bytes = outgoing(&mut self.transport, self.conn);
            if bytes.is_empty() {
                return;
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                self.tls.read_tls(&mut rest).expect("there is room");
                self.tls.process_new_packets().expect("it is TLS");
                let mut plaintext = Vec::new();
                // The end is not announced while there is more.
                let _ = self.tls.reader().read_to_end(&mut plaintext);
                self.read += if plaintext.starts_with(b"INSERTED") { 0 } else { plaintext.len() };
            }
            self.transport.handle(self.now, Event::Sent { conn: self.conn, bytes: bytes.len() });
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.transport.poll_effect() {
            self.is_closed |= effect == Effect::Close(self.conn);
        }
    }

    fn pass(&mut self, span: Span) {
        let until = self.now + span;
        while let Some(due) = self.transport.next_deadline().filter(|&due| due <= until) {
            self.now = self.now.max(due);
            self.transport.turn(self.now);
            self.carry_out();
        }
        self.now = until;
    }
}

/// Puts a large job and asks for it so often.
fn ask_for_much(place: &mut Place, times: usize) {
    place.say(b"put 0 0 9 40000\r\n");
    place.say(&[b'x'; 40_000]);
    place.say(b"\r\n");
    place.read();
    place.say(&b"peek 1\r\n".repeat(times));
    let ahead = outgoing(&mut place.transport, place.conn).len();
    assert!((40_000..70_000).contains(&ahead), "{ahead} bytes");
}

#[test]
fn a_client_that_does_not_read_is_closed() {
    // With two replies, more is left than the ciphertext that may be ahead.
    for (times, is_user_gone) in [(1, false), (2, false), (2, true)] {
        let mut place = Place::new(Some(USERS));
        place.say(b"auth one-one-one-one-one\r\n");
        ask_for_much(&mut place, times);
        if is_user_gone {
            let nobody = users_file::parse("").expect("nobody is valid");
            place.transport.update(place.now, Update::Users(Some(nobody)));
            place.pass(Span::ZERO);
        } else {
            place.say(b"quit\r\n");
        }
        place.pass(Span::from_secs(59));
        assert!(!place.is_closed, "it has a minute");
        // The server may give up first, and then the transport.
        place.pass(Span::from_secs(if times == 2 && !is_user_gone { 62 } else { 2 }));
        assert!(place.is_closed, "{times} {is_user_gone}");
        place.transport.handle(place.now, Event::Closed { conn: place.conn });
        place.transport.server().check();
    }
}

#[test]
fn a_client_that_reads_in_time_gets_everything() {
    let mut place = Place::new(None);
    ask_for_much(&mut place, 2);
    place.say(b"quit\r\n");
    place.pass(Span::from_secs(50));
    place.read();
    assert!(place.is_closed && place.read == 80_000 + 2 * b"FOUND 1 40000\r\n\r\n".len());
}
