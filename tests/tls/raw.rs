//! Records that no sane client sends, protected with the keys of a real connection.

use std::io::Write;
use std::sync::Arc;

use beanring_testkit::client::put;
use beanring_testkit::tls_stream::{TlsStream, client_config};
use rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::{ConnectionTrafficSecrets, ContentType, ExtractedSecrets, ProtocolVersion};

use super::place::{Place, read_to_end};

/// The type of a handshake message (RFC 8446, 4).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// The client's keys of a connection, whose records a test makes by itself.
struct Raw {
    stream: TlsStream,
    encrypter: Box<dyn MessageEncrypter>,
    number: u64,
}

impl Raw {
    /// Opens a connection, and executes a command in it.
    fn new(place: &Place, command: &[u8]) -> Self {
        let mut config = (*client_config(&place.certificates.ca, None)).clone();
        config.enable_secret_extraction = true;
        let mut stream = TlsStream::over(place.tcp(), &Arc::new(config)).expect("the server is trusted");
        stream.send(command).expect("the connection is open");
        let TlsStream { tcp, tls } = stream;
        let suite = tls.negotiated_cipher_suite().and_then(|suite| suite.tls13()).expect("TLS 1.3");
        let tcp_again = tcp.try_clone().expect("a descriptor is free");
        let ExtractedSecrets { tx: (number, secrets), .. } =
            tls.dangerous_extract_secrets().expect("the configuration allows it");
        let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
        else {
            panic!("no other suites")
        };
        let encrypter = suite.aead_alg.encrypter(key, iv);
        // Only the socket is used from now on.
        let unused = beanring_testkit::tls_stream::client(&place.trusting);
        drop(tcp);
        Self { stream: TlsStream { tcp: tcp_again, tls: unused.into() }, encrypter, number }
    }

    /// Returns a protected record.
    fn record(&mut self, typ: ContentType, payload: &[u8]) -> Vec<u8> {
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(payload),
        };
        let record = self.encrypter.encrypt(message, self.number).expect("the keys are fresh");
        self.number += 1;
        record.encode()
    }

    fn send(&mut self, typ: ContentType, payload: &[u8]) {
        let record = self.record(typ, payload);
        // The server may have ended the connection.
        let _ = self.stream.tcp.write_all(&record);
    }

    /// Asserts that the server ends the connection.
    fn expect_end(self, place: &mut Place) {
        read_to_end(&self.stream.tcp);
        place.await_stat("current-tls-connections", 0);
        place.expect_service();
    }
}

#[test]
fn a_message_in_two_records_waits_while_replies_leave() {
    let mut place = Place::new(&[]);
    let mut raw = Raw::new(&place, b"reserve\r\n");
    raw.send(ContentType::Handshake, &KEY_UPDATE[..3]);
    place.server.settle();
    // The server encrypts a reply while a part of a message waits for the rest.
    place.control.expect(&put(0, 0, "hello"), "INSERTED 1");
    place.server.settle();
    assert_eq!(place.control.stat("current-jobs-reserved"), 1);
    raw.send(ContentType::Handshake, &KEY_UPDATE[3..]);
    place.server.settle();
    place.expect_service();
    assert_eq!(place.control.stat("current-tls-connections"), 1);
}

#[test]
fn commands_before_an_error_are_executed_and_none_after() {
    let mut place = Place::new(&[]);
    let mut raw = Raw::new(&place, b"list-tube-used\r\n");
    let mut bytes = raw.record(ContentType::ApplicationData, put(0, 0, "before").as_bytes());
    let mut changed = raw.record(ContentType::ApplicationData, put(0, 0, "changed").as_bytes());
    *changed.last_mut().expect("a record is not empty") ^= 1;
    bytes.extend(changed);
    bytes.extend(raw.record(ContentType::ApplicationData, put(0, 0, "after").as_bytes()));
    raw.stream.tcp.write_all(&bytes).expect("the server receives");
    raw.expect_end(&mut place);
    assert_eq!(place.control.stat("total-jobs"), 1);
    place.control.expect("peek 1\r\n", "FOUND 1 6");
}

#[test]
fn messages_at_the_wrong_time_end_the_connection() {
    let (handshake, data, alert) = (ContentType::Handshake, ContentType::ApplicationData, ContentType::Alert);
    let message = |kind: u8, length: [u8; 3], rest: &[u8]| [&[kind], &length[..], rest].concat();
    let put = put(0, 0, "hello");
    for (what, kind, payload, is_put_next) in [
        // An attempt at renegotiation.
        ("ClientHello", handshake, message(1, [0, 0, 40], &[&[3, 3][..], &[7; 38]].concat()), false),
        ("Finished", handshake, message(20, [0, 0, 48], &[7; 48]), false),
        ("a long message", handshake, message(24, [0xff; 3], &[7; 1000]), false),
        ("a wrong KeyUpdate", handshake, message(24, [0, 0, 1], &[9]), false),
        ("data within a message", handshake, KEY_UPDATE[..3].to_vec(), true),
        ("more than 16 KiB", data, vec![b'x'; (1 << 14) + 1], false),
        ("handshake_failure", alert, vec![2, 40], true),
        ("internal_error", alert, vec![2, 80], true),
        ("close_notify", alert, vec![1, 0], true),
    ] {
        println!("{what}");
        let mut place = Place::new(&[]);
        let mut raw = Raw::new(&place, b"list-tube-used\r\n");
        raw.send(kind, &payload);
        if is_put_next {
            raw.send(data, put.as_bytes());
        }
        raw.expect_end(&mut place);
        assert_eq!(place.control.stat("total-jobs"), 0);
    }
    // user_canceled is followed by close_notify.
    let mut place = Place::new(&[]);
    let mut raw = Raw::new(&place, b"list-tube-used\r\n");
    raw.send(alert, &[1, 90]);
    raw.send(data, put.as_bytes());
    place.await_stat("total-jobs", 1);
}

#[test]
fn empty_records_take_no_memory() {
    let mut place = Place::new(&[]);
    let mut raw = Raw::new(&place, b"list-tube-used\r\n");
    let before = place.server.anonymous_bytes();
    for _ in 0..1000 {
        let bytes: Vec<u8> = (0..100).flat_map(|_| raw.record(ContentType::ApplicationData, b"")).collect();
        if raw.stream.tcp.write_all(&bytes).is_err() {
            break;
        }
    }
    place.expect_service();
    let grown = place.server.anonymous_bytes().saturating_sub(before);
    assert!(grown < 1024 * 1024, "empty records took {grown} bytes");
}
