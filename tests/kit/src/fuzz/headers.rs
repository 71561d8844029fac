//! Headers of the PROXY protocol, of load balancers and of standbys: right ones, changed ones and bytes that are none, cut anywhere, and
//! then a command in the clear, over TLS or over HTTP. Only what comes after a right header is executed.

use beanring::server::{ClientAct, Config, HttpAccess, Protocol, Token};
use beanring::time::Span;
use beanring::transport::forwarded::{ClientAddress, Inbound, header};
use rustls::ContentType::{ApplicationData, Handshake};

use super::door::{Door, SECRET};
use super::input::Input;
use crate::config::config;
use crate::forge::Forger;
use crate::tunnel::forged_identity;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

const PUT: &[u8] = b"put 0 0 60 5\r\nhello\r\n";
const POST: &[u8] =
    b"POST /api/v1/tubes/a/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\n\
                      Content-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\nhello";
const TOKEN: &[u8] = b"0123456789abcdef";

/// Lines of version 1, which the server does not take, and beginnings of other protocols.
const OTHERS: [&[u8]; 6] = [
    b"PROXY TCP4 192.0.2.1 10.0.0.1 8080 11300\r\n",
    b"PROXY UNKNOWN\r\n",
    PUT,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n\r\n\0\r\nQUIT\r",
];

/// A header, and what the server must make of it.
struct Header {
    bytes: Vec<u8>,
    is_right: bool,
}

/// What a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    Balancer,
    Standby(Inbound),
}

/// Runs an input: several connections, one after the other.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let http_access = HttpAccess { token: Token::parse(TOKEN), allow_writes: true };
    let config = Config { http_access, ..config(100) };
    let mut door = Door::new(config, forged_identity().0);
    while !input.is_empty() && door.gates.len() < 4 {
        connect(&mut door, &mut input);
    }
    door.finish();
}

/// Makes a connection, and checks what the server has made of it.
fn connect(door: &mut Door, input: &mut Input<'_>) {
    let how = input.byte();
    let (has_tls, is_http) = (how & 1 != 0, how & 2 != 0);
    let sender = if how & 4 == 0 {
        Sender::Balancer
    } else {
        Sender::Standby(Inbound { has_tls, is_proxied: how & 8 != 0, is_watch: how & 0x30 == 0x30 })
    };
    let (at, is_http) = match sender {
        Sender::Balancer if is_http => (door.open_proxied(Protocol::Http, has_tls), true),
        Sender::Balancer => (door.open_proxied(Protocol::Beanstalk, has_tls), false),
        Sender::Standby(_) => (door.open_forwarded(), false),
    };
    let jobs = door.server().engine().jobs().len();
    let mut headers = vec![Header::read(sender, input)];
    if matches!(sender, Sender::Standby(Inbound { is_proxied: true, is_watch: false, .. })) {
        headers.push(Header::read(Sender::Balancer, input));
    }
    let is_right = headers.iter().all(|header| header.is_right);
    let mut bytes: Vec<u8> = headers.into_iter().flat_map(|header| header.bytes).collect();
    let command = if is_http { POST } else { PUT };
    let mut forger = has_tls.then(|| Forger::new(forged_identity().1));
    bytes.extend(forger.as_mut().map_or_else(|| command.to_vec(), Forger::output));
    let ends_early = deliver(door, at, &bytes, input);
    let mut is_whole = !ends_early;
    door.settle();
    if let Some(forger) = &mut forger
        && is_right
        && is_whole
        && !matches!(sender, Sender::Standby(Inbound { is_watch: true, .. }))
    {
        let said = std::mem::take(&mut door.gates[at].received);
        let mut flight = forger.flight(&said[..]);
        let finished = flight.handshake.record(Handshake, &flight.finished);
        let bytes = [finished, flight.data.record(ApplicationData, command)].concat();
        is_whole = !deliver(door, at, &bytes, input);
        door.settle();
    }
    let executed = door.server().engine().jobs().len() - jobs;
    let is_watch = matches!(sender, Sender::Standby(Inbound { is_watch: true, .. }));
    let expected = usize::from(is_right && is_whole && !is_watch);
    assert!(
        executed == expected || !is_whole && is_right,
        "{executed} jobs, {expected} expected: {sender:?}"
    );
    if !is_right {
        assert!(!door.gates[at].is_usable() || !is_whole_header(&bytes), "it is closed: {sender:?}");
    }
    let refusals = [ClientAct::WrongProxyHeader, ClientAct::WrongForwardSecret];
    let is_refused = door.gates[at].acts.iter().any(|act| refusals.contains(act));
    assert!(!is_refused || !is_right || !is_whole, "a right header is taken: {sender:?}");
}

/// Whether the server need not wait for more of it.
fn is_whole_header(bytes: &[u8]) -> bool {
    let [.., high, low] = bytes[..bytes.len().min(16)] else { return false };
    bytes.len() >= 16 + usize::from(u16::from_be_bytes([high, low]))
}

/// Has the server receive bytes in pieces, with other things in between. Returns whether the connection has ended before.
fn deliver(door: &mut Door, at: usize, bytes: &[u8], input: &mut Input<'_>) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(match input.below(8) {
            0..4 => rest.len(),
            4..6 => (1 + input.below(20)).min(rest.len()),
            _ => (1 + input.below(600)).min(rest.len()),
        });
        door.write(at, now);
        rest = later;
        match input.below(16) {
            0..6 => _ = door.receive(at, usize::MAX),
            6 => _ = door.receive(at, 1 + input.below(30)),
            7 => door.turn(),
            8 => door.settle(),
            9 if input.below(4) == 1 => {
                door.half_close(at);
                return true;
            }
            10 if input.below(4) == 1 => {
                door.hang_up(at);
                return true;
            }
            11 if input.below(4) == 1 => {
                door.pass(Span::from_secs(6));
                return true;
            }
            _ => {}
        }
    }
    false
}

impl Header {
    fn read(sender: Sender, input: &mut Input<'_>) -> Self {
        let mut header = match sender {
            Sender::Balancer => balancers(input),
            Sender::Standby(inbound) => standbys(inbound, input),
        };
        match input.below(12) {
            // What precedes a right header makes it a wrong one.
            0 => {
                let other = input.pick(&OTHERS);
                header = Self { bytes: [other, &header.bytes].concat(), is_right: false };
            }
            1 => {
                // A bit of the signature, the version or the family. Others may mean something too.
                let at = input.below(13);
                header.bytes[at] ^= 0x80 >> input.below(2);
                header.is_right = false;
            }
            2 => header = Self { bytes: input.pick(&OTHERS).to_vec(), is_right: false },
            _ => {}
        }
        header
    }
}

/// A header of version 2 by a load balancer.
fn balancers(input: &mut Input<'_>) -> Header {
    // Family and size of the addresses. Of a family that it does not know the server needs no address.
    let (family, size) = input.pick(&[(0x11, 12), (0x21, 36), (0x31, 216), (0x00, 0), (0x12, 12), (0x41, 0)]);
    let command = input.pick(&[0x21, 0x21, 0x20, 0x22, 0x11]);
    let short = if input.below(8) == 1 { 1 + input.below(4) } else { 0 };
    let mut rest: Vec<u8> = (0..size - short.min(size)).map(|_| input.byte()).collect();
    for _ in 0..input.below(4) {
        let length = if input.below(16) == 1 { input.below(3000) } else { input.below(40) };
        rest.extend([input.byte()].into_iter().chain((length as u16).to_be_bytes()));
        rest.extend(std::iter::repeat_n(input.byte(), length));
    }
    let is_known = matches!(command, 0x20 | 0x21) && family != 0x41;
    let bytes = [SIGNATURE, &[command, family], &(rest.len() as u16).to_be_bytes(), &rest].concat();
    Header { is_right: is_known && (size..=4096).contains(&rest.len()), bytes }
}

/// A header of a standby.
fn standbys(inbound: Inbound, input: &mut Input<'_>) -> Header {
    let address = |text: &str| text.parse().expect("it is an address");
    let client = match input.below(3) {
        0 => ClientAddress::Unix,
        1 => ClientAddress::Tcp(address("192.0.2.7:5555"), address("10.0.0.1:11300")),
        _ => ClientAddress::Tcp(address("[2001:db8::7]:5555"), address("[::1]:11300")),
    };
    let is_right = input.below(4) > 0;
    let secret = if is_right { SECRET.shown } else { input.word() };
    Header { bytes: header(client, inbound, secret), is_right: secret == SECRET.shown }
}
