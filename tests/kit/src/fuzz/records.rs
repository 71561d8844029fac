//! Records that no library would send, during the handshake and after it: any of them in one write, cut anywhere, with every end of the
//! connection in between.

use beanring::server::{Config, Protocol};
use beanring::time::Span;
use rustls::ClientConfig;
use rustls::ContentType::{self, Alert, ApplicationData, ChangeCipherSpec, Handshake};

use super::door::Door;
use super::input::{Input, filler};
use crate::config::config;
use crate::forge::{Flight, Forger};
use crate::tunnel::forged_identity;

/// Lines that end a connection, some that do not, and first lines of other protocols.
const LINES: [&[u8]; 16] = [
    b"quit\r\n",
    b"put 0 0 60 5\r\nhello\r\n",
    b"put 0 0 60 5\r\nhello\r\nquit\r\n",
    b"put 0 0 60 9000\r\n",
    b"put 0 0 60 99999999\r\n",
    b"list-tube-used\r\n",
    b"reserve\r\n",
    b"reserve-with-timeout 0\r\nbury 1 1\r\n",
    b"put-batch 3\r\nput 0 0 60 5\r\nhello\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
    b"no such command\r\n",
    b"put 0 0 60 5\r\nhel",
    b"peek 1\r\npeek 1\r\npeek 1\r\n",
    b"stats\r\nlist-tubes\r\n",
    b"wait-job 1 9\r\n",
];

const REQUESTS: [&[u8]; 6] = [
    b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /readyz HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /api/v1/tubes/a/jobs HTTP/1.1\r\nHost: a\r\nContent-Type: application/octet-stream\r\nContent-Length: 5\r\n\r\nhello",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET /api/v1/tubes HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"quit\r\n",
];

/// Handshake messages: key updates, and headers of messages that do not end.
const MESSAGES: [&[u8]; 8] = [
    &[24, 0, 0, 1, 0],
    &[24, 0, 0, 1, 1],
    &[24, 1, 0, 0],
    &[24, 0, 0xff, 0xff],
    &[11, 0, 1, 0],
    &[1, 0, 0, 40],
    &[24, 0, 0, 1, 0, 24, 0, 0],
    &[4, 0, 0, 0],
];

const ALERTS: [[u8; 2]; 5] = [[1, 0], [2, 40], [1, 90], [2, 0], [3, 3]];

const JOB_BYTES_MAX: u32 = 20_000;

/// A client and its server.
struct Attack {
    door: Door,
    protocol: Protocol,
    writer: Writer,
}

/// What a client has written and not sent.
pub struct Writer {
    lines: &'static [&'static [u8]],
    /// None before the server's part of the handshake, and if that was disturbed.
    keys: Option<Keys>,
    pub unsent: Vec<u8>,
    /// The jobs that the records so far can have put.
    jobs_max: usize,
}

struct Keys {
    flight: Flight,
    has_finished: bool,
}

/// Runs an input. The first byte selects the protocol and where the records begin. Each further one is an action.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (identity, clients) = forged_identity();
    let start = input.byte();
    let protocol = if start & 1 == 0 { Protocol::Beanstalk } else { Protocol::Http };
    let limit = (start & 2 != 0).then_some(2 << 20);
    let config = Config { max_memory_bytes: limit, ..config(JOB_BYTES_MAX) };
    let lines = if protocol == Protocol::Http { &REQUESTS[..] } else { &LINES[..] };
    let mut attack = Attack { door: Door::new(config, identity), protocol, writer: Writer::new(lines) };
    attack.connect(clients, start >> 2, &mut input);
    while !input.is_empty() {
        attack.act(&mut input);
        let jobs = attack.door.server().engine().jobs().len();
        let most = attack.writer.jobs_max;
        assert!(jobs <= most, "{jobs} jobs of {most} puts");
    }
    attack.door.finish();
}

impl Attack {
    /// Begins the handshake, and disturbs it or not.
    fn connect(&mut self, clients: &ClientConfig, how: u8, input: &mut Input<'_>) {
        self.door.open_tls(self.protocol);
        let mut forger = Forger::new(clients);
        let hello = forger.output();
        if how.is_multiple_of(4) {
            let disturbed = disturbed(&hello, input);
            return self.writer.unsent.extend(disturbed);
        }
        self.door.write(0, &hello);
        self.door.settle();
        let said = std::mem::take(&mut self.door.gates[0].received);
        self.writer.begin(forger.flight(&said[..]));
        if how % 4 > 1 {
            self.writer.finish_handshake(0);
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(24) {
            0..9 => self.writer.record(input),
            9 => self.writer.finish_handshake(input.below(64)),
            10 => self.writer.unsent.extend(in_the_clear(input)),
            11 => self.writer.break_record(input),
            12 | 13 => self.write(usize::MAX),
            14 => self.write(usize::from(input.half())),
            15 => _ = self.door.receive(0, usize::MAX),
            16 => _ = self.door.receive(0, 1 + input.below(64)),
            17 => _ = self.door.begin_send(0),
            18 => _ = self.door.end_send(0, 1 + usize::from(input.half())),
            19 => self.door.turn(),
            20 => self.door.settle(),
            21 if input.below(4) == 0 => self.door.half_close(0),
            22 if input.below(8) == 0 => self.door.hang_up(0),
            23 => self.door.pass(Span::from_millis(u32::from(input.half()))),
            _ => self.door.turn(),
        }
    }

    /// Sends bytes in one write.
    fn write(&mut self, bytes: usize) {
        let bytes: Vec<u8> = self.writer.unsent.drain(..bytes.min(self.writer.unsent.len())).collect();
        self.door.write(0, &bytes);
    }
}

impl Writer {
    /// A client that sends some of these lines.
    pub const fn new(lines: &'static [&'static [u8]]) -> Self {
        Self { lines, keys: None, unsent: Vec::new(), jobs_max: 0 }
    }

    /// Goes on after the server's part of the handshake.
    pub fn begin(&mut self, flight: Flight) {
        self.keys = Some(Keys { flight, has_finished: false });
    }

    /// Appends a record with the present key.
    pub fn record(&mut self, input: &mut Input<'_>) {
        let (typ, payload) = self.payload(input);
        // A line may come in pieces, so each letter counts that begins a put, in lower case or in upper case for HTTP.
        self.jobs_max += payload.iter().filter(|byte| byte.eq_ignore_ascii_case(&b'p')).count();
        let Some(Keys { flight, has_finished }) = &mut self.keys else { return };
        let sealer = if *has_finished { &mut flight.data } else { &mut flight.handshake };
        let record = match input.below(8) {
            0 if payload.len() < 16_000 => sealer.padded(typ, &payload),
            _ => sealer.record(typ, &payload),
        };
        if typ == Handshake && payload.starts_with(&[24, 0, 0, 1]) && input.below(4) > 0 {
            sealer.renew();
        }
        self.unsent.extend(record);
    }

    fn payload(&self, input: &mut Input<'_>) -> (ContentType, Vec<u8>) {
        match input.below(16) {
            0..6 => {
                let count = 1 + input.below(4);
                (ApplicationData, (0..count).map(|_| input.pick(self.lines)).collect::<Vec<_>>().concat())
            }
            6 => {
                let length = input.below(64);
                (ApplicationData, input.bytes(length).to_vec())
            }
            7 => (ApplicationData, filler(1, usize::from(input.half()) % 16_385)),
            8 => (ApplicationData, Vec::new()),
            9..12 => {
                let message = input.pick(&MESSAGES);
                let cut = input.below(message.len());
                (Handshake, message[..message.len() - cut].to_vec())
            }
            12 => {
                let length = input.below(64);
                (Handshake, input.bytes(length).to_vec())
            }
            13 => (Alert, input.pick(&ALERTS).to_vec()),
            14 => (ChangeCipherSpec, vec![1]),
            _ => (ContentType::from(input.byte()), vec![input.byte()]),
        }
    }

    /// Appends the message that ends the handshake, in two records if `cut` is not 0.
    pub fn finish_handshake(&mut self, cut: usize) {
        let Some(Keys { flight: Flight { finished, handshake, .. }, has_finished }) = &mut self.keys else {
            return;
        };
        if std::mem::replace(has_finished, true) {
            return;
        }
        let (first, second) = finished.split_at(cut.min(finished.len() - 1));
        for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
            self.unsent.extend(handshake.record(Handshake, part));
        }
    }

    /// Changes, cuts or repeats what is not sent.
    pub fn break_record(&mut self, input: &mut Input<'_>) {
        let bytes = self.unsent.len();
        if bytes == 0 {
            return;
        }
        let at = usize::from(input.half()) % bytes;
        match input.below(4) {
            0 => self.unsent[at] ^= 1 << input.below(8),
            1 => self.unsent.truncate(at),
            2 => _ = self.unsent.drain(..at),
            _ if bytes < 40_000 => self.unsent.extend_from_within(at..),
            _ => {}
        }
    }
}

/// Returns a ClientHello with other records before or after it, or cut into several.
pub fn disturbed(hello: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    match input.below(4) {
        0 => [&in_the_clear(input)[..], hello].concat(),
        1 => [hello, &in_the_clear(input), &in_the_clear(input)].concat(),
        2 => in_the_clear(input),
        _ => {
            let mut bytes = Vec::new();
            for part in hello[5..].chunks(1 + input.below(200)) {
                bytes.extend([22, 3, 1, 0, part.len() as u8]);
                bytes.extend(part);
                if input.below(8) == 1 {
                    bytes.extend(in_the_clear(input));
                }
            }
            bytes
        }
    }
}

/// Returns a record without protection, or what is no record.
fn in_the_clear(input: &mut Input<'_>) -> Vec<u8> {
    let payload = match input.below(6) {
        0 => vec![24, 1, 0, 0],
        1 => vec![2, 40],
        2 => vec![1],
        3 => Vec::new(),
        4 => filler(2, usize::from(input.half()) % 16_700),
        _ => {
            let length = input.below(64);
            input.bytes(length).to_vec()
        }
    };
    let length = payload.len() as u16 + u16::from(input.below(16) == 1);
    match input.below(8) {
        0 => payload,
        _ => [&[20 + input.below(6) as u8, 3, 3][..], &length.to_be_bytes(), &payload].concat(),
    }
}
