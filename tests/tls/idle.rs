//! A server whose connections have all gone has nothing to do.

use std::fs;
use std::rc::Rc;

use beanring::server::{CertificatePem, Effect, Event, Peer, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::transport::{Identity, Transport};
use beanring_testkit::certificates::Certificates;
use beanring_testkit::config::config;
use beanring_testkit::scratch::Scratch;

/// Closes what the server wants closed.
fn carry_out(transport: &mut Transport<Server>, now: Time) {
    while let Some(effect) = transport.next_effect() {
        if let Effect::Close(conn) = effect {
            transport.handle(now, Event::Closed { conn });
        }
    }
}

#[test]
fn handshakes_that_wait_for_their_turn_leave_nothing_behind() {
    let dir = Scratch::new("tls-idle");
    let pair = Certificates::new(&dir.0).server;
    let read = |path| fs::read(path).expect("the file exists");
    let files = CertificatePem { chain: read(pair.certificate), key: read(pair.key), client_ca: None };
    let identity = Identity::read(&files).expect("the certificate is good");
    let mut transport = Transport::new(Server::new(config(100)), Some(identity), Rc::default());
    let now = Time::ZERO + Span::from_secs(1);
    let connections = [(); 3].map(|()| {
        let conn = transport.accept(Protocol::Beanstalk);
        transport.begin_tls(now, conn, Peer::unknown().origin);
        conn
    });
    // The beginning of a ClientHello: one has its turn at once, and the others wait.
    for conn in connections {
        transport.handle(now, Event::Received { conn, bytes: b"\x16\x03\x01\x02\x00\x01" });
        carry_out(&mut transport, now);
    }
    assert_eq!(transport.next_deadline(), Some(Time::ZERO), "there is work left");
    for conn in connections {
        transport.handle(now, Event::HungUp { conn });
        carry_out(&mut transport, now);
    }
    transport.turn(now);
    carry_out(&mut transport, now);
    assert_eq!(transport.next_deadline(), None, "nothing is left");
}
