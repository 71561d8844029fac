//! Conversations of several records per write, cut anywhere and ended anywhere: the server outlives all of them.

use std::env;
use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::driver;
use beanring_testkit::forge::{Flight, Forger, Sealer, config};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::tls_stream::certificate;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ClientConfig;
use rustls::ContentType::{Alert, ApplicationData, ChangeCipherSpec, Handshake};

use super::place::Place;

/// Every command line that ends a connection, some that do not, and first lines of other protocols.
const DATA: [&[u8]; 12] = [
    b"quit\r\n",
    b"put 0 0 60 5\r\nhello\r\n",
    b"put 0 0 60 5\r\nhello\r\nquit\r\n",
    b"list-tube-used\r\n",
    b"reserve\r\n",
    b"reserve-with-timeout 0\r\n",
    b"auth root-root-root-root\r\n",
    b"auth nobody-nobody-nobody\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
    b"no such command\r\n",
    b"put 0 0 60 5\r\nhel",
];

/// A key update (RFC 8446, 4.6.3): with another one asked for, or none.
const KEY_UPDATES: [[u8; 5]; 2] = [[24, 0, 0, 1, 0], [24, 0, 0, 1, 1]];

const USERS: &str = "[users.root]\ntoken = \"root-root-root-root\"\nproduce = [\"*\"]\nconsume = [\"*\"]\n\
                     inspect = [\"*\"]\nadmin = [\"*\"]\n";

/// The number of conversations under each driver: `BEANRING_TEST_CONVERSATIONS`.
fn conversations() -> u64 {
    env::var("BEANRING_TEST_CONVERSATIONS").map_or(400, |text| text.parse().expect("it is a number"))
}

/// Returns some bytes.
fn noise(random: &mut Random, bytes_max: usize) -> Vec<u8> {
    (0..1 + random.below(bytes_max)).map(|_| random.next() as u8).collect()
}

/// Returns a record, or two, or what is none.
fn piece(sealer: &mut Sealer, random: &mut Random) -> Vec<u8> {
    match random.below(18) {
        0..5 => sealer.record(ApplicationData, random.pick(&DATA)),
        5 => sealer.record(ApplicationData, b""),
        // Messages that are longer than any can be, and that have not ended.
        6 => sealer.record(Handshake, &[24, 1, 0, 0]),
        7 => {
            let message = random.pick(&[[24, 0, 0xff, 0xff], [11, 0, 1, 0], [24, 0, 0, 1], [1, 0, 0, 40]]);
            let bytes = 1 + random.below(message.len());
            sealer.record(Handshake, &message[..bytes])
        }
        8 => {
            let message = noise(random, 100);
            sealer.record(Handshake, &message)
        }
        9 => sealer.record(Handshake, &[&random.pick(&KEY_UPDATES)[..], &[24, 1, 0, 0]].concat()),
        10 => {
            let record = sealer.record(Handshake, &random.pick(&KEY_UPDATES));
            if random.chance(80) {
                sealer.renew();
            }
            record
        }
        11 => sealer.record(Handshake, b""),
        12 => sealer.padded(Handshake, &[24]),
        13 => sealer.record(Alert, &random.pick(&[[2, 40], [1, 90], [2, 0], [3, 3], [1, 80]])),
        14 => close_notify(sealer),
        15 => {
            let mut record = sealer.record(ApplicationData, b"quit\r\n");
            let at = random.below(record.len());
            record[at] ^= 1 << random.below(8);
            record
        }
        16 => sealer.record(ChangeCipherSpec, &[1]),
        _ => in_the_clear(random),
    }
}

fn close_notify(sealer: &mut Sealer) -> Vec<u8> {
    sealer.record(Alert, &[1, 0])
}

/// Returns a record without protection, or what is no record.
fn in_the_clear(random: &mut Random) -> Vec<u8> {
    let payload = match random.below(5) {
        0 => vec![24, 1, 0, 0],
        1 => vec![2, 40],
        2 => vec![1],
        3 => Vec::new(),
        _ => noise(random, 60),
    };
    if random.one_in(5) {
        return payload;
    }
    let length = payload.len() as u8 + u8::from(random.one_in(20));
    [&[random.pick(&[20, 21, 22, 23, 24]), 3, 3, 0, length][..], &payload].concat()
}

/// Returns all that a client sends after the server's part of the handshake.
fn script(flight: Flight, random: &mut Random) -> Vec<u8> {
    let Flight { finished, mut handshake, mut data } = flight;
    let mut bytes = Vec::new();
    if random.chance(30) {
        for _ in 0..1 + random.below(3) {
            bytes.extend(piece(&mut handshake, random));
        }
    }
    let cut = if random.chance(20) { random.below(finished.len()) } else { 0 };
    for part in [&finished[..cut], &finished[cut..]].into_iter().filter(|part| !part.is_empty()) {
        bytes.extend(handshake.record(Handshake, part));
    }
    for _ in 0..1 + random.below(7) {
        bytes.extend(piece(&mut data, random));
    }
    if random.chance(20) {
        bytes.extend(close_notify(&mut data));
    }
    bytes
}

/// Returns a ClientHello with other records before or after it, or cut into several.
fn disturbed(hello: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(3) {
        0 => [&in_the_clear(random)[..], hello].concat(),
        1 => [hello, &in_the_clear(random), &in_the_clear(random)].concat(),
        _ => {
            let mut bytes = Vec::new();
            for part in hello[5..].chunks(1 + random.below(200)) {
                bytes.extend([22, 3, 1, 0, part.len() as u8]);
                bytes.extend(part);
                if random.one_in(20) {
                    bytes.extend(in_the_clear(random));
                }
            }
            bytes
        }
    }
}

/// Sends bytes in up to four writes, and may end the connection within them.
fn send(tcp: &mut TcpStream, mut bytes: &[u8], random: &mut Random) {
    let writes = 1 + random.below(4);
    let end_after = random.chance(40).then(|| random.below(writes));
    for write in 0..writes {
        let is_last = write + 1 == writes;
        let (now, later) = bytes.split_at(if is_last { bytes.len() } else { random.below(1 + bytes.len()) });
        // The server may have ended the connection.
        let _ = tcp.write_all(now);
        bytes = later;
        if random.one_in(3) {
            thread::sleep(Duration::from_micros(random.below_u64(400)));
        }
        if end_after == Some(write) {
            if random.one_in(3) {
                let at_once = linger { l_onoff: 1, l_linger: 0 };
                setsockopt(tcp, sockopt::Linger, &at_once).expect("it is a socket");
            } else {
                let _ = tcp.shutdown(Shutdown::Write);
            }
            return;
        }
    }
}

/// Exchanges the first messages.
fn begin(tcp: &mut TcpStream, mut forger: Forger) -> Flight {
    tcp.write_all(&forger.output()).expect("the server receives");
    forger.flight(tcp)
}

/// Returns the end of a connection, which the client may keep for a while.
fn converse(place: &Place, config: &ClientConfig, random: &mut Random) -> TcpStream {
    let mut tcp = place.tcp();
    tcp.set_nodelay(true).expect("a socket option");
    let mut forger = Forger::new(config);
    if random.chance(15) {
        send(&mut tcp, &disturbed(&forger.output(), random), random);
        return tcp;
    }
    let flight = begin(&mut tcp, forger);
    send(&mut tcp, &script(flight, random), random);
    tcp
}

fn outlive(place: &mut Place, io: Driver) {
    let config = config(certificate(&place.certificates.ca));
    let mut kept = Vec::new();
    for seed in seeds(conversations()) {
        println!("{}, seed {seed}: BEANRING_TEST_SEED={seed} replays it", io.name());
        let mut random = Random::new(seed);
        let tcp = converse(place, &config, &mut random);
        if random.one_in(4) {
            kept.push(tcp);
        }
        if kept.len() == 20 {
            kept.clear();
        }
        place.expect_service();
    }
    drop(kept);
    place.await_stat("current-tls-connections", 0);
}

/// Two records in one write: what closes the connection, and an error.
#[test]
fn the_server_outlives_an_error_after_an_end() {
    const PART: &[u8] = &[24, 0, 0];
    const TOO_LONG: &[u8] = &[24, 1, 0, 0];
    let cases = [
        [(ApplicationData, &b"quit\r\n"[..]), (Handshake, TOO_LONG)],
        [(ApplicationData, b"GET / HTTP/1.1\r\n"), (Handshake, TOO_LONG)],
        [(ApplicationData, b"quit\r\n"), (Handshake, PART)],
        [(Handshake, PART), (ApplicationData, b"quit\r\n")],
        [(Handshake, PART), (Alert, &[1, 0])],
        [(Alert, &[1, 0]), (Handshake, TOO_LONG)],
        [(ApplicationData, b"quit\r\n"), (Alert, &[2, 40])],
    ];
    for io in drivers("errors after the end of TLS") {
        let mut place = place(io, &[]);
        let config = config(certificate(&place.certificates.ca));
        for case in cases {
            println!("{}: {case:?}", io.name());
            let mut tcp = place.tcp();
            let mut flight = begin(&mut tcp, Forger::new(&config));
            let mut bytes = flight.handshake.record(Handshake, &flight.finished);
            bytes.extend(case.into_iter().flat_map(|(typ, payload)| flight.data.record(typ, payload)));
            tcp.write_all(&bytes).expect("the server receives");
            place.server.settle();
            place.expect_service();
        }
        place.await_stat("current-tls-connections", 0);
    }
}

fn place(io: Driver, more: &[&str]) -> Place {
    let flags = driver::flags(io);
    Place::new(&flags.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
}

fn drivers(what: &str) -> impl Iterator<Item = Driver> {
    Driver::ALL.iter().copied().filter(move |&io| driver::is_allowed(io, what))
}

#[test]
fn the_server_outlives_any_records() {
    for io in drivers("records of TLS") {
        outlive(&mut place(io, &[]), io);
    }
}

#[test]
fn the_server_outlives_any_records_before_auth() {
    for io in drivers("records of TLS with users") {
        let scratch = Scratch::new("records");
        let users = scratch.join("users.toml");
        fs::write(&users, USERS).expect("there is space");
        fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).expect("the mode can be set");
        let mut place = place(io, &["--auth", users.to_str().expect("a name in UTF-8")]);
        place.control.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
        outlive(&mut place, io);
    }
}
