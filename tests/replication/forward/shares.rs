//! Connections to the leader's listener for standbys that finish nothing: they take the places of others from their own address, and
//! never that of a standby.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::rc::Rc;

use beanring::server::{Effect, Entry, Event, Origin, Protocol, Server, Service, TlsCounts, Update, handle};
use beanring::time::{Span, Time};
use beanring::transport::Transport;
use beanring::transport::forwarded::{ClientAddress, Inbound, header};
use beanring::transport::link::{Link, standby_config};
use beanring::values::ids::ConnId;
use beanring_testkit::config::config;
use beanring_testkit::connection::send_all;
use beanring_testkit::tls_stream::{client, sealed};

use super::place::SECRET;

const PUT: &[u8] = b"put 0 0 60 1\r\nx\r\n";

/// More than there may be of unfinished handshakes or headers.
const CROWD: usize = 5_000;

/// A service in memory, and the connections that it has closed.
struct Leader<S> {
    service: S,
    now: Time,
    closed: HashSet<ConnId>,
}

impl<S: Service> Leader<S> {
    fn new(mut service: S) -> Self {
        let now = Time::from_nanos(1_000_000_000);
        service.update(now, Update::LinkSecret(Some(SECRET)));
        Self { service, now, closed: HashSet::new() }
    }

    fn connect(&mut self, network: u128) -> ConnId {
        let entry = Entry::Forwarded(Origin { network, is_local: false });
        let conn = self.service.accept(self.now, Protocol::Beanstalk, entry);
        self.carry_out();
        conn
    }

    fn receive(&mut self, conn: ConnId, bytes: &[u8]) {
        if !self.closed.contains(&conn) {
            handle(&mut self.service, self.now, Event::Received { conn, bytes });
            self.carry_out();
        }
    }

    /// Connections from one address that send something, or nothing.
    fn crowd(&mut self, count: usize, bytes: &[u8]) {
        for _ in 0..count {
            let conn = self.connect(99);
            if !bytes.is_empty() {
                self.receive(conn, bytes);
            }
        }
        self.now = self.now + Span::from_millis(1);
        self.turn();
    }

    fn turn(&mut self) {
        self.service.turn(self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.service.poll_effect() {
            if let Effect::Close(conn) = effect {
                self.closed.insert(conn);
                handle(&mut self.service, self.now, Event::Closed { conn });
            }
        }
    }

    /// What the leader sends to a connection that it has not closed.
    fn said(&mut self, conn: ConnId) -> Vec<u8> {
        assert!(!self.closed.contains(&conn), "the standby is locked out");
        send_all(&mut self.service, conn, self.now)
    }
}

fn transport() -> Transport<Server> {
    Transport::new(Server::new(config(100)), None, Rc::new(TlsCounts::default()))
}

fn hop() -> Vec<u8> {
    header(ClientAddress::Unix, Inbound::default(), SECRET.shown)
}

#[test]
fn unfinished_headers_lock_no_standby_out() {
    for sent in [&b""[..], b"\r\n\r\n\0\r\nQUIT"] {
        let mut leader = Leader::new(transport());
        leader.crowd(CROWD, sent);
        let standby = leader.connect(1);
        leader.crowd(CROWD, sent);
        let header = hop();
        leader.receive(standby, &header[..20]);
        leader.crowd(CROWD, sent);
        leader.receive(standby, &header[20..]);
        leader.receive(standby, PUT);
        leader.turn();
        assert_eq!(leader.said(standby), b"INSERTED 1\r\n");
        assert!(leader.closed.len() > 2 * CROWD, "the crowd has closed its own connections");
    }
}

#[test]
fn unfinished_handshakes_lock_no_standby_out() {
    // Nothing, the beginning of a record, and what makes the leader compute.
    let hello = sealed(&mut client(&standby_config(SECRET)), b"");
    for (count, sent) in [(CROWD, &b""[..]), (CROWD, b"\x16\x03\x01"), (300, &hello)] {
        let mut leader = Leader::new(Link::new(transport()));
        leader.crowd(count, sent);
        let standby = leader.connect(1);
        let mut tls = client(&standby_config(SECRET));
        tls.writer().write_all(&[&hop()[..], PUT].concat()).expect("it has no limit");
        let mut reply = Vec::new();
        for _ in 0..600 {
            let bytes = sealed(&mut tls, b"");
            // In two pieces, with others in between.
            let (first, second) = bytes.split_at(bytes.len().min(40));
            for piece in [first, second].into_iter().filter(|piece| !piece.is_empty()) {
                leader.receive(standby, piece);
                leader.crowd(count / 4, sent);
            }
            leader.turn();
            let said = leader.said(standby);
            let mut unread = &said[..];
            while !unread.is_empty() {
                tls.read_tls(&mut unread).expect("there is little plaintext");
                tls.process_new_packets().expect("the leader is trusted");
            }
            // It ends without close_notify.
            let _ = tls.reader().read_to_end(&mut reply);
            if !reply.is_empty() {
                break;
            }
        }
        assert_eq!(reply.escape_ascii().to_string(), "INSERTED 1\\r\\n");
    }
}
