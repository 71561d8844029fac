//! Clients that misuse TLS: none harms another, or takes much memory.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use beanring_testkit::client::{Client, put};
use beanring_testkit::peer::Received;
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::{TlsStream, client, sealed};

use super::place::{Place, expect_reply};

const MIB: usize = 1024 * 1024;

/// Asserts that the server ends a connection.
fn expect_end(mut stream: TlsStream) {
    loop {
        match stream.receive(REPLY_PATIENCE) {
            Ok(Received::Bytes(_)) => {}
            Ok(Received::Closed) => return,
            Ok(Received::Silence) => panic!("the server keeps the connection"),
            Err(error) => return assert!(error.kind() != ErrorKind::WouldBlock, "{error}"),
        }
    }
}

#[test]
fn a_client_that_never_reads_takes_little_memory() {
    const CLIENTS: usize = 8;
    let mut place = Place::new(&[]);
    place.control.expect(&put(0, 0, &"b".repeat(60_000)), "INSERTED 1");
    drop(place.connect());
    let before = place.server.anonymous_bytes();
    let mut greedy: Vec<TlsStream> = (0..CLIENTS).map(|_| place.stream()).collect();
    for stream in &mut greedy {
        stream.tcp.set_nonblocking(true).expect("a socket option");
        let mut unsent = 0;
        // The server receives no more once its output is not read.
        while unsent < 64 * MIB {
            stream.tls.writer().write_all(&b"peek 1\r\n".repeat(1000)).expect("the buffer has no limit");
            if stream.flush().is_err() {
                break;
            }
            unsent += 8000;
        }
        assert!(unsent < 64 * MIB, "the server receives without an end");
    }
    place.server.settle();
    place.expect_service();
    let grown = place.server.anonymous_bytes().saturating_sub(before);
    println!("{CLIENTS} clients that never read took {} KiB", grown / 1024);
    // 64 KiB of ciphertext and a record, the input and the replies of a client without TLS, and buffers of the driver.
    assert!(grown < CLIENTS * 512 * 1024 + 8 * MIB, "{CLIENTS} clients took {grown} bytes");
    drop(greedy);
    place.await_stat("current-tls-connections", 0);
}

#[test]
fn key_updates_take_no_memory() {
    let mut place = Place::new(&[]);
    let mut client = place.stream();
    let mut before = 0;
    for round in 0..1100 {
        client.tls.refresh_traffic_keys().expect("the handshake has finished");
        expect_reply(&mut client, b"list-tube-used\r\n", "USING default\r\n");
        if round == 100 {
            before = place.server.anonymous_bytes();
        }
    }
    let grown = place.server.anonymous_bytes().saturating_sub(before);
    assert!(grown < 64 * 1024, "1,000 key updates took {grown} bytes");
    place.expect_service();
}

/// Without data between them, updates are an attack on the CPU. The server may end that connection, and no other.
#[test]
fn key_updates_alone_harm_nobody() {
    let mut place = Place::new(&[]);
    let mut client = place.stream();
    for _ in 0..2000 {
        client.tls.refresh_traffic_keys().expect("the handshake has finished");
        if client.flush().is_err() {
            break;
        }
    }
    place.expect_service();
    drop(client);
    place.await_stat("current-tls-connections", 0);
}

#[test]
fn a_client_that_stops_within_a_record_waits() {
    let mut place = Place::new(&[]);
    let mut client = place.stream();
    let record = sealed(&mut client.tls, put(0, 0, "hello").as_bytes());
    let (first, rest) = record.split_at(record.len() - 1);
    client.tcp.write_all(first).expect("the server receives");
    place.server.settle();
    place.expect_service();
    assert_eq!(place.control.stat("total-jobs"), 0);
    client.tcp.write_all(rest).expect("the server receives");
    let received = client.receive(REPLY_PATIENCE).expect("the connection is open");
    assert_eq!(received, Received::Bytes(b"INSERTED 1\r\n".to_vec()));
    client.tcp.write_all(first).expect("the server receives");
    client.tcp.shutdown(Shutdown::Both).expect("the connection is open");
    place.await_stat("current-tls-connections", 0);
    assert_eq!(place.control.stat("total-jobs"), 1);
}

#[test]
fn a_changed_record_ends_the_connection() {
    for at in [0, 3, 5, 20, 40] {
        let mut place = Place::new(&[]);
        let mut client = place.stream();
        client.send(b"list-tube-used\r\n").expect("the connection is open");
        let mut record = sealed(&mut client.tls, put(0, 0, "hello").as_bytes());
        record[at] ^= 0x40;
        // A longer record than was sent is waited for.
        client.tcp.write_all(&record).expect("the server receives");
        client.tcp.write_all(&[0; 40_000]).unwrap_or_default();
        expect_end(client);
        place.await_stat("current-tls-connections", 0);
        assert_eq!(place.control.stat("total-jobs"), 0, "byte {at}");
        place.expect_service();
    }
}

#[test]
fn records_that_are_too_long_or_empty_end_the_connection() {
    let mut place = Place::new(&[]);
    // 2^14 + 256 bytes are the most that TLS 1.3 allows.
    let too_long = [&[23, 3, 3, 0x41, 0x01][..], &[0; 0x4101]].concat();
    // A record without protection, and an alert without it.
    for bytes in [&too_long[..], &[23, 3, 3, 0, 0].repeat(10_000), &[21, 3, 3, 0, 2, 2, 40]] {
        let mut client = place.stream();
        client.send(b"list-tube-used\r\n").expect("the connection is open");
        let _ = client.tcp.write_all(bytes);
        expect_end(client);
        place.expect_service();
    }
    place.await_stat("current-tls-connections", 0);
}

#[test]
fn input_after_close_notify_takes_no_memory() {
    let mut place = Place::new(&[]);
    let mut client = place.stream();
    client.send(b"watch nothing\r\nignore default\r\nreserve\r\n").expect("the connection is open");
    client.tls.send_close_notify();
    client.flush().expect("the connection is open");
    let before = place.server.anonymous_bytes();
    // The server may end the connection.
    let _ = client.tcp.set_write_timeout(Some(Duration::from_secs(1)));
    for _ in 0..64 {
        if client.tcp.write_all(&vec![23; MIB]).is_err() {
            break;
        }
    }
    place.expect_service();
    let grown = place.server.anonymous_bytes().saturating_sub(before);
    assert!(grown < 4 * MIB, "input after the end took {grown} bytes");
}

/// Many at once, so that the end of the input comes while the handshake waits for its turn.
#[test]
fn a_client_may_send_and_go_at_once() {
    const CLIENTS: usize = 16;
    const ROUNDS: usize = 20;
    let mut place = Place::new(&[]);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| (0..ROUNDS).for_each(|_| send_and_go(&place)));
        }
    });
    assert_eq!(place.control.stat("total-jobs"), (CLIENTS * ROUNDS) as u64);
    assert_eq!(place.failures(), [0; 6]);
}

fn send_and_go(place: &Place) {
    let mut tcp = place.tcp();
    let mut tls = client(&place.trusting);
    tcp.write_all(&sealed(&mut tls, put(0, 0, "hello").as_bytes())).expect("the connection is open");
    while tls.is_handshaking() {
        tls.read_tls(&mut tcp).expect("the server answers");
        tls.process_new_packets().expect("the server answers");
    }
    // The end of the handshake, the command and the end of the input in one packet.
    tcp.write_all(&sealed(&mut tls, b"")).expect("the connection is open");
    tcp.shutdown(Shutdown::Write).expect("the connection is open");
    let mut client = Client::new(Stream::Tls(TlsStream { tcp, tls: tls.into() }));
    assert!(client.line().is_some_and(|line| line.starts_with("INSERTED ")));
    assert_eq!(client.line(), None);
}

#[test]
fn an_end_without_close_notify_is_an_end() {
    let mut place = Place::new(&[]);
    let mut client = place.stream();
    client.send(put(0, 0, "hello").as_bytes()).expect("the connection is open");
    client.tcp.shutdown(Shutdown::Write).expect("the connection is open");
    let mut client = Client::new(Stream::Tls(client));
    assert_eq!(client.line().as_deref(), Some("INSERTED 1"));
    assert_eq!(client.line(), None);
    place.expect_service();
}
