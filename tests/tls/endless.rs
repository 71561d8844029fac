//! Handshake messages that never end: they take little memory, and have a time limit.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use beanring::server::{Effect, Entry, Event, Peer, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::transport::{HANDSHAKE_TIME, Transport};
use beanring::values::ids::ConnId;
use beanring_testkit::config::config;
use beanring_testkit::connection::outgoing;
use beanring_testkit::forge::{Forger, Sealer};
use beanring_testkit::measured::thread_cpu_time;
use beanring_testkit::tunnel::forged_identity;
use rustls::ClientConfig;
use rustls::ContentType::{ApplicationData, Handshake};

use super::place::Place;

const MIB: usize = 1024 * 1024;

/// The header of a message of 64 KiB.
const HEADER: [u8; 4] = [24, 0, 0xff, 0xff];

/// Where the message is, and how it arrives.
#[derive(Clone, Copy, PartialEq, Debug)]
enum When {
    InHandshake,
    AfterIt,
    InHandshakeByteByByte,
    AfterItByteByByte,
}

/// Sends a message in records of one byte until the server ends the connection.
fn send_endless(place: &Place, when: When) -> TcpStream {
    const SENT_MAX: usize = 48 * MIB;
    let mut tcp = place.tcp();
    tcp.set_nodelay(true).expect("a socket option");
    let mut flight = place.flight(&mut tcp);
    let sealer = match when {
        When::InHandshake | When::InHandshakeByteByByte => &mut flight.handshake,
        When::AfterIt | When::AfterItByteByByte => {
            let last = flight.handshake.record(Handshake, &flight.finished);
            tcp.write_all(&last).expect("the server receives");
            &mut flight.data
        }
    };
    let is_whole = matches!(when, When::InHandshake | When::AfterIt);
    let bytes_max = if is_whole { SENT_MAX } else { MIB / 4 };
    let (mut number, mut sent) = (0, 0);
    while sent < bytes_max {
        let record = sealer.padded(Handshake, &[*HEADER.get(number).unwrap_or(&0)]);
        number += 1;
        sent += record.len();
        let is_sent = match is_whole {
            true => tcp.write_all(&record).is_ok(),
            false => record.iter().all(|&byte| tcp.write_all(&[byte]).is_ok()),
        };
        if !is_sent {
            break;
        }
    }
    println!("{when:?}: {sent} bytes");
    tcp
}

/// Returns the memory of the server, at most, while four clients send.
fn attack(whens: [When; 4]) {
    let mut place = Place::new(&["--max-memory", "64m"]);
    let (mut most, limit) = (0, 64 * MIB + 64 * MIB / 10);
    thread::scope(|scope| {
        let place = &place;
        let clients = whens.map(|when| scope.spawn(move || send_endless(place, when)));
        while !clients.iter().all(|client| client.is_finished()) {
            most = most.max(place.server.resident_bytes());
            thread::sleep(std::time::Duration::from_millis(2));
        }
        // They keep their connections until here.
        most = most.max(place.server.resident_bytes());
        println!("{whens:?}: {} KiB", most / 1024);
        for client in clients {
            let mut tcp = client.join().expect("the client does not panic");
            let end = tcp.read_to_end(&mut Vec::new());
            let is_kept = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            assert!(!is_kept, "the server keeps the connection");
        }
    });
    assert!(most <= limit, "{whens:?}: {most} bytes");
    place.expect_service();
    place.await_stat("current-tls-connections", 0);
}

#[test]
fn endless_messages_after_the_handshake_take_little_memory() {
    attack([When::AfterIt; 4]);
}

#[test]
fn endless_messages_in_the_handshake_take_little_memory() {
    attack([When::InHandshake; 4]);
}

#[test]
fn endless_messages_byte_by_byte_take_little_memory() {
    let [first, second] = [When::InHandshakeByteByByte, When::AfterItByteByByte];
    attack([first, second, first, second]);
}

/// Each of them may keep a message of 64 KiB, but not all.
#[test]
fn a_crowd_with_endless_messages_keeps_the_memory_limit() {
    const CROWD: usize = 1000;
    const PIECE_BYTES: usize = 1024;
    let mut place = Place::new(&["--max-memory", "64m"]);
    let mut crowd: Vec<(TcpStream, Sealer)> = (0..CROWD).map(|_| place.forged()).collect();
    let mut most = 0;
    for (tcp, data) in &mut crowd {
        let mut message = HEADER.to_vec();
        message.resize(64 * PIECE_BYTES, 0);
        let records: Vec<u8> =
            message.chunks(PIECE_BYTES).flat_map(|piece| data.record(Handshake, piece)).collect();
        // The server ends connections beyond the limit.
        let _ = tcp.write_all(&records);
        most = most.max(place.server.resident_bytes());
    }
    place.expect_service();
    most = most.max(place.server.resident_bytes());
    println!("{CROWD} connections with a message: {} KiB", most / 1024);
    assert!(most <= 64 * MIB + 64 * MIB / 10, "{most} bytes");
}

/// A connection in virtual time, whose handshake has finished.
struct Open {
    transport: Transport<Server>,
    now: Time,
    conn: ConnId,
    data: Sealer,
    is_closed: bool,
}

/// The time at which connections open.
const START: Time = Time::from_nanos(1_000_000_000);

/// A server with TLS, and the configuration of its clients.
fn transport() -> (Transport<Server>, &'static ClientConfig) {
    let (identity, clients) = forged_identity();
    (Transport::new(Server::new(config(100)), Some(identity), Rc::default()), clients)
}

/// Has a client connect and finish its handshake. Returns its connection, and what seals its records.
fn shake_hands(transport: &mut Transport<Server>, config: &ClientConfig) -> (ConnId, Sealer) {
    let conn = transport.accept(START, Protocol::Beanstalk, Entry::Tls(Peer::unknown()));
    let mut forger = Forger::new(config);
    transport.handle(START, Event::Received { conn, bytes: &forger.output() });
    while transport.poll_effect().is_some() {}
    let bytes = VecDeque::from(outgoing(transport, conn));
    transport.handle(START, Event::Sent { conn, bytes: bytes.len() });
    let mut flight = forger.flight(bytes);
    iterate(transport, START, &[conn]);
    let finished = flight.handshake.record(Handshake, &flight.finished);
    transport.handle(START, Event::Received { conn, bytes: &finished });
    iterate(transport, START, &[conn]);
    (conn, flight.data)
}

/// Ends an event-loop iteration. Returns the connections to close, and how many bytes were sent.
fn iterate(transport: &mut Transport<Server>, now: Time, conns: &[ConnId]) -> (Vec<ConnId>, usize) {
    let (mut closed, mut sent) = (Vec::new(), 0);
    transport.turn(now);
    loop {
        while let Some(effect) = transport.poll_effect() {
            closed.extend(if let Effect::Close(conn) = effect { Some(conn) } else { None });
        }
        let before = sent;
        for &conn in conns.iter().filter(|conn| !closed.contains(conn)) {
            let bytes = outgoing(transport, conn).len();
            if bytes > 0 {
                transport.handle(now, Event::Sent { conn, bytes });
            }
            sent += bytes;
        }
        if sent == before {
            return (closed, sent);
        }
    }
}

impl Open {
    fn new() -> Self {
        let (mut transport, config) = transport();
        let (conn, data) = shake_hands(&mut transport, config);
        Self { transport, now: START, conn, data, is_closed: false }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.transport.handle(self.now, Event::Received { conn: self.conn, bytes });
        self.pass(Span::ZERO);
    }

    fn receive_message(&mut self, bytes: &[u8]) {
        let record = self.data.record(Handshake, bytes);
        self.receive(&record);
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        let (closed, _) = iterate(&mut self.transport, self.now, &[self.conn]);
        self.is_closed |= !closed.is_empty();
    }

    /// Ends the connection, and asserts that nothing is left.
    fn close(mut self) {
        self.transport.handle(self.now, Event::HungUp { conn: self.conn });
        self.pass(Span::ZERO);
        assert!(self.is_closed);
        self.transport.handle(self.now, Event::Closed { conn: self.conn });
        assert_eq!(self.transport.next_deadline(), None, "nothing is left");
        self.transport.server().check();
    }
}

#[test]
fn a_message_after_the_handshake_has_five_seconds() {
    let mut open = Open::new();
    assert_eq!(open.transport.next_deadline(), None);
    // One that ends in time, and the next one, have each its own.
    open.receive_message(&[24, 0, 0]);
    assert_eq!(open.transport.next_deadline(), Some(open.now + HANDSHAKE_TIME));
    open.pass(Span::from_secs(4));
    open.receive_message(&[1, 0]);
    open.data.renew();
    assert_eq!(open.transport.next_deadline(), None);
    open.receive_message(&[24]);
    open.pass(Span::from_secs(4));
    // More of it is no more time.
    open.receive_message(&[0]);
    assert!(!open.is_closed);
    open.pass(Span::from_secs(1));
    assert!(open.is_closed);
    open.close();

    // A connection that ends before leaves nothing behind.
    let mut open = Open::new();
    open.receive_message(&[24]);
    open.close();
}

#[test]
fn a_record_has_thirty_seconds() {
    let mut open = Open::new();
    let record = open.data.record(ApplicationData, b"put 0 0 60 5\r\nhello\r\n");
    let (first, rest) = record.split_at(record.len() - 1);
    open.receive(first);
    open.pass(Span::from_secs(29));
    open.receive(rest);
    assert_eq!(open.transport.server().engine().jobs().len(), 1);
    assert_eq!(open.transport.next_deadline(), None);
    // Each record has its own time, also if it begins with the end of the one before.
    let mut records = Vec::new();
    for _ in 0..3 {
        records.extend(open.data.record(ApplicationData, b"put 0 0 60 1\r\nx\r\n"));
    }
    let (first, rest) = records.split_at(5);
    open.receive(first);
    open.pass(Span::from_secs(29));
    open.receive(&rest[..rest.len() - 1]);
    assert_eq!(open.transport.server().engine().jobs().len(), 3);
    open.pass(Span::from_secs(29));
    assert!(!open.is_closed);
    open.pass(Span::from_secs(1));
    assert!(open.is_closed);
    open.close();
}

/// While the server wants no more input of a client, its record cannot end.
#[test]
fn the_record_of_a_paused_client_has_no_end() {
    let mut open = Open::new();
    let mut bytes = open.data.record(ApplicationData, b"reserve\r\n");
    for _ in 0..8 {
        bytes.extend(open.data.record(ApplicationData, &b"delete 1\r\n".repeat(1600)));
    }
    bytes.extend(&open.data.record(ApplicationData, b"stats\r\n")[..7]);
    open.receive(&bytes);
    open.pass(Span::from_secs(3600));
    assert!(!open.is_closed);
    open.close();
}

/// Each of them may keep a record, but not all.
#[test]
fn unfinished_records_take_a_part_of_the_memory() {
    const CROWD: usize = 900;
    let mut place = Place::new(&["--max-memory", "24m"]);
    let connect = |_| {
        let (mut tcp, mut data) = place.forged();
        let record = data.record(ApplicationData, &[b'x'; 1 << 14]);
        // The server ends connections beyond the limit.
        let _ = tcp.write_all(&record[..record.len() - 1]);
        tcp
    };
    let crowd: Vec<TcpStream> = (0..CROWD).map(connect).collect();
    place.expect_service();
    let bytes = place.server.resident_bytes();
    println!("{CROWD} connections with a record: {} KiB", bytes / 1024);
    drop(crowd);
    assert!(bytes <= 24 * MIB + 24 * MIB / 10, "{bytes} bytes");
}

/// CPU time of an event-loop iteration, without optimization.
const ITERATION_MAX: Duration = Duration::from_millis(4);

/// Has eight clients send records of one kind at the same time, each as many as its receive buffers take. Returns how many bytes they
/// were sent, after iterations that take little time.
fn flood(name: &str, mut record: impl FnMut(&mut Sealer, usize) -> Vec<u8>) -> usize {
    const CLIENTS: usize = 8;
    const INPUT_BYTES: usize = 4 * 16 * 1024;
    let (mut transport, config) = transport();
    let mut input = VecDeque::new();
    let mut conns = Vec::new();
    for _ in 0..CLIENTS {
        let (conn, mut sealer) = shake_hands(&mut transport, config);
        let mut bytes = Vec::new();
        for number in 0.. {
            bytes.extend(record(&mut sealer, number));
            if bytes.len() >= INPUT_BYTES {
                break;
            }
        }
        conns.push(conn);
        input.extend(bytes.chunks(16 * 1024).map(|piece| (conn, piece.to_vec())));
    }
    let (mut longest, mut iterations, mut sent) = (Duration::ZERO, 0, 0);
    while !input.is_empty() || transport.next_deadline() == Some(Time::ZERO) {
        let begun = thread_cpu_time();
        while !transport.budget().is_full()
            && let Some((conn, bytes)) = input.pop_front()
        {
            transport.handle(START, Event::Received { conn, bytes: &bytes });
            while transport.poll_effect().is_some() {}
        }
        sent += iterate(&mut transport, START, &conns).1;
        longest = longest.max(thread_cpu_time() - begun);
        iterations += 1;
        assert!(iterations < 10_000, "the input is read");
    }
    println!("{name}: {iterations} iterations, the longest {longest:?}");
    assert!(longest <= ITERATION_MAX, "{name}: an iteration takes {longest:?}");
    transport.server().check();
    sent
}

#[test]
fn records_of_one_byte_are_read_in_turns() {
    const COMMAND: &[u8] = b"list-tube-used\r\n";
    let byte = |sealer: &mut Sealer, number: usize| {
        let at = number % COMMAND.len();
        sealer.record(ApplicationData, &COMMAND[at..=at])
    };
    assert!(flood("records of one byte", byte) > 0, "the commands are served");
}

#[test]
fn key_updates_are_read_in_turns() {
    let update = |sealer: &mut Sealer, number: usize| {
        // Without data between them, they end the connection.
        if number.is_multiple_of(2) {
            return sealer.record(ApplicationData, b"a");
        }
        let record = sealer.record(Handshake, &[24, 0, 0, 1, 1]);
        sealer.renew();
        record
    };
    flood("key updates", update);
}

/// Only input that waits for a turn pauses a connection: the rest of a record must come.
#[test]
fn a_connection_that_lacks_the_end_of_a_record_is_not_paused() {
    let mut open = Open::new();
    let mut bytes = Vec::new();
    // More of them than a turn has.
    for byte in b"list-tube-used\r\n".repeat(40) {
        bytes.extend(open.data.record(ApplicationData, &[byte]));
    }
    let puts = b"put 0 0 60 0\r\n\r\n".repeat(1024);
    assert_eq!(puts.len(), 1 << 14, "the longest plaintext of a record (RFC 8446, 5.1)");
    bytes.extend(open.data.record(ApplicationData, &puts));
    let (first, last) = bytes.split_at(bytes.len() - 1);
    open.transport.handle(open.now, Event::Received { conn: open.conn, bytes: first });
    let mut pauses = Vec::new();
    while open.transport.next_deadline() == Some(Time::ZERO) {
        while let Some(effect) = open.transport.poll_effect() {
            pauses.extend(matches!(effect, Effect::Pause(_) | Effect::Resume(_)).then_some(effect));
        }
        open.transport.turn(open.now);
    }
    assert_eq!(pauses, [Effect::Pause(open.conn), Effect::Resume(open.conn)]);
    open.receive(last);
    while open.transport.next_deadline() == Some(Time::ZERO) {
        open.pass(Span::ZERO);
    }
    assert_eq!(open.transport.server().engine().jobs().len(), 1024);
    open.close();
}

/// Closes what the server wants closed.
fn close(transport: &mut Transport<Server>) {
    while let Some(effect) = transport.poll_effect() {
        if let Effect::Close(conn) = effect {
            transport.handle(START, Event::Closed { conn });
        }
    }
}

/// A server whose connections have all gone has nothing to do.
#[test]
fn handshakes_that_wait_for_their_turn_leave_nothing_behind() {
    let (mut transport, _) = transport();
    let connections =
        [(); 3].map(|()| transport.accept(START, Protocol::Beanstalk, Entry::Tls(Peer::unknown())));
    // The beginning of a ClientHello: one has its turn at once, and the others wait.
    for conn in connections {
        transport.handle(START, Event::Received { conn, bytes: b"\x16\x03\x01\x02\x00\x01" });
        close(&mut transport);
    }
    assert_eq!(transport.next_deadline(), Some(Time::ZERO), "there is work left");
    for conn in connections {
        transport.handle(START, Event::HungUp { conn });
        close(&mut transport);
    }
    transport.turn(START);
    close(&mut transport);
    assert_eq!(transport.next_deadline(), None, "nothing is left");
}
