//! Records that no sane client sends, protected with the keys of a real connection.

use std::io::Write;
use std::net::TcpStream;

use beanring_testkit::client::put;
use beanring_testkit::forge::Sealer;
use rustls::ContentType::{Alert, ApplicationData, Handshake};

use super::place::{Place, read_to_end};

/// The type of a handshake message (RFC 8446, 4).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// Opens a connection, and executes a command in it. Returns it, and what seals further records.
fn open(place: &Place, command: &[u8]) -> (TcpStream, Sealer) {
    let (mut tcp, mut sealer) = place.forged();
    tcp.write_all(&sealer.record(ApplicationData, command)).expect("the connection is open");
    (tcp, sealer)
}

/// Asserts that the server ends the connection.
fn expect_end(tcp: &TcpStream, place: &mut Place) {
    read_to_end(tcp);
    place.await_stat("current-tls-connections", 0);
    place.expect_service();
}

#[test]
fn a_message_in_two_records_waits_while_replies_leave() {
    let mut place = Place::new(&[]);
    let (mut tcp, mut sealer) = open(&place, b"reserve\r\n");
    let _ = tcp.write_all(&sealer.record(Handshake, &KEY_UPDATE[..3]));
    place.server.settle();
    // The server encrypts a reply while a part of a message waits for the rest.
    place.control.expect(&put(0, 0, "hello"), "INSERTED 1");
    place.server.settle();
    assert_eq!(place.control.stat("current-jobs-reserved"), 1);
    let _ = tcp.write_all(&sealer.record(Handshake, &KEY_UPDATE[3..]));
    place.server.settle();
    place.expect_service();
    assert_eq!(place.control.stat("current-tls-connections"), 1);
}

#[test]
fn commands_before_an_error_are_executed_and_none_after() {
    let mut place = Place::new(&[]);
    let (mut tcp, mut sealer) = open(&place, b"list-tube-used\r\n");
    let mut bytes = sealer.record(ApplicationData, put(0, 0, "before").as_bytes());
    let mut changed = sealer.record(ApplicationData, put(0, 0, "changed").as_bytes());
    *changed.last_mut().expect("a record is not empty") ^= 1;
    bytes.extend(changed);
    bytes.extend(sealer.record(ApplicationData, put(0, 0, "after").as_bytes()));
    tcp.write_all(&bytes).expect("the server receives");
    expect_end(&tcp, &mut place);
    assert_eq!(place.control.stat("total-jobs"), 1);
    place.control.expect("peek 1\r\n", "FOUND 1 6");
}

#[test]
fn messages_at_the_wrong_time_end_the_connection() {
    let (handshake, data, alert) = (Handshake, ApplicationData, Alert);
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
        let (mut tcp, mut sealer) = open(&place, b"list-tube-used\r\n");
        let _ = tcp.write_all(&sealer.record(kind, &payload));
        if is_put_next {
            let _ = tcp.write_all(&sealer.record(data, put.as_bytes()));
        }
        expect_end(&tcp, &mut place);
        assert_eq!(place.control.stat("total-jobs"), 0);
    }
    // user_canceled is followed by close_notify.
    let mut place = Place::new(&[]);
    let (mut tcp, mut sealer) = open(&place, b"list-tube-used\r\n");
    let _ = tcp.write_all(&sealer.record(alert, &[1, 90]));
    let _ = tcp.write_all(&sealer.record(data, put.as_bytes()));
    place.await_stat("total-jobs", 1);
}

#[test]
fn empty_records_take_no_memory() {
    let mut place = Place::new(&[]);
    let (mut tcp, mut sealer) = open(&place, b"list-tube-used\r\n");
    let before = place.server.anonymous_bytes();
    for _ in 0..1000 {
        let bytes: Vec<u8> = (0..100).flat_map(|_| sealer.record(ApplicationData, b"")).collect();
        if tcp.write_all(&bytes).is_err() {
            break;
        }
    }
    place.expect_service();
    let grown = place.server.anonymous_bytes().saturating_sub(before);
    assert!(grown < 1024 * 1024, "empty records took {grown} bytes");
}
