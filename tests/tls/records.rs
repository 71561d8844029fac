//! Conversations of several records per write, cut anywhere and ended anywhere: the server outlives all of them.

use std::env;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::driver;
use beanring_testkit::forge::Flight;
use beanring_testkit::fuzz::input::Input;
use beanring_testkit::fuzz::records::{Writer, disturbed};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::scratch::{Scratch, secret};
use beanring_testkit::tls_stream::{client, sealed};
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ContentType::{Alert, ApplicationData, Handshake};

use super::place::Place;

/// Every command line that ends a connection, some that do not, and first lines of other protocols.
const LINES: [&[u8]; 12] = [
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

const USERS: &str = "[users.root]\ntoken = \"root-root-root-root\"\nproduce = [\"*\"]\nconsume = [\"*\"]\n\
                     inspect = [\"*\"]\nadmin = [\"*\"]\n";

/// The number of conversations under each driver: `BEANRING_TEST_CONVERSATIONS`.
fn conversations() -> u64 {
    env::var("BEANRING_TEST_CONVERSATIONS").map_or(400, |text| text.parse().expect("it is a number"))
}

/// Returns all that a client sends after the server's part of the handshake.
fn script(flight: Flight, random: &mut Random, input: &mut Input<'_>) -> Vec<u8> {
    let mut writer = Writer::new(&LINES);
    writer.begin(flight);
    if random.chance(30) {
        (0..1 + random.below(3)).for_each(|_| writer.record(input));
    }
    writer.finish_handshake(if random.chance(20) { random.below(40) } else { 0 });
    (0..1 + random.below(7)).for_each(|_| writer.record(input));
    if random.one_in(10) {
        writer.break_record(input);
    }
    writer.unsent
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

/// Returns the end of a connection, which the client may keep for a while.
fn converse(place: &Place, random: &mut Random) -> TcpStream {
    let noise: Vec<u8> = (0..1000).map(|_| random.next() as u8).collect();
    let mut input = Input::new(&noise);
    let mut tcp = place.tcp();
    tcp.set_nodelay(true).expect("a socket option");
    let bytes = match random.chance(15) {
        true => disturbed(&sealed(&mut client(&place.trusting), b""), &mut input),
        false => script(place.flight(&mut tcp), random, &mut input),
    };
    send(&mut tcp, &bytes, random);
    tcp
}

fn outlive(place: &mut Place, io: Driver) {
    let mut kept = Vec::new();
    for seed in seeds(conversations()) {
        println!("{}, seed {seed}: BEANRING_TEST_SEED={seed} replays it", io.name());
        let mut random = Random::new(seed);
        let tcp = converse(place, &mut random);
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
    for io in driver::allowed("errors after the end of TLS") {
        let mut place = Place::under(io, &[]);
        for case in cases {
            println!("{}: {case:?}", io.name());
            let mut tcp = place.tcp();
            let mut flight = place.flight(&mut tcp);
            let mut bytes = flight.handshake.record(Handshake, &flight.finished);
            bytes.extend(case.into_iter().flat_map(|(typ, payload)| flight.data.record(typ, payload)));
            tcp.write_all(&bytes).expect("the server receives");
            place.server.settle();
            place.expect_service();
        }
        place.await_stat("current-tls-connections", 0);
    }
}

#[test]
fn the_server_outlives_any_records() {
    for io in driver::allowed("records of TLS") {
        outlive(&mut Place::under(io, &[]), io);
    }
}

#[test]
fn the_server_outlives_any_records_before_auth() {
    for io in driver::allowed("records of TLS with users") {
        let scratch = Scratch::new("records");
        let users = scratch.join("users.toml");
        secret(&users, USERS);
        let mut place = Place::under(io, &["--auth", users.to_str().expect("a name in UTF-8")]);
        place.control.expect("auth root-root-root-root\r\n", "AUTHENTICATED");
        outlive(&mut place, io);
    }
}
