//! Peers that begin something and never finish it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use beanring::server::Protocol;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::{client, sealed};
use rustls::ClientConnection;

use crate::doors::{Door, Entrance, balancer_header, hop_header};
use crate::floods::{CLIENTS, Flood, HTTP, Sends, Shares};
use crate::senders::{Actor, parts};
use crate::talk::put;
use crate::world::World;

/// The bytes that a dripping peer sends, one at a time, before it leaves and comes again.
const DRIPS: usize = 64;

/// A body that fits into the buffers of a socket.
const BODY_BYTES: usize = 30_000;

/// What a peer begins and does not finish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Line,
    Body,
    Batch,
    /// Replies, which the peer does not read.
    Replies,
    /// The first message of a TLS handshake.
    Hello,
    /// A TLS handshake after that.
    Handshake,
    Record,
    /// The header of a load balancer or of a standby.
    Header,
    Request,
    RequestBody,
    /// Responses, which the peer does not read.
    Responses,
}

/// What the peer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// It sends all but the last byte, and stays.
    Stays,
    /// It sends that, leaves, and comes again.
    Leaves,
    /// It sends one byte at a time, over TLS in a record each, and then leaves and comes again. A peer that reads, reads so.
    Drips,
}

/// A kind of peer.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    unit: Unit,
    habit: Habit,
}

/// Every kind of peer, as a flood of them.
pub fn floods() -> Vec<Flood> {
    let flood = |unit: Unit, habit: Habit| {
        let kind = if unit.protocol() == Protocol::Http { HTTP } else { CLIENTS };
        let name: &str = Box::leak(format!("{} {habit:?}", unit.name()).to_lowercase().into_boxed_str());
        // Commands whose replies are not read take turns.
        let shares = if unit.is_read() { Shares::Turns } else { Shares::Nothing };
        Flood { name, shares, sends: Sends::Unfinished(Peer { unit, habit }), ..kind }
    };
    let habits = [Habit::Stays, Habit::Leaves, Habit::Drips];
    Unit::ALL.iter().flat_map(|&unit| habits.map(|habit| flood(unit, habit))).collect()
}

impl Unit {
    const ALL: [Self; 11] = [
        Self::Line,
        Self::Body,
        Self::Batch,
        Self::Replies,
        Self::Hello,
        Self::Handshake,
        Self::Record,
        Self::Header,
        Self::Request,
        Self::RequestBody,
        Self::Responses,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Line => "a line:",
            Self::Body => "a body:",
            Self::Batch => "a batch:",
            Self::Replies => "replies:",
            Self::Hello => "a TLS hello:",
            Self::Handshake => "a TLS handshake:",
            Self::Record => "a TLS record:",
            Self::Header => "a header:",
            Self::Request => "a request:",
            Self::RequestBody => "a body over HTTP:",
            Self::Responses => "responses:",
        }
    }

    const fn protocol(self) -> Protocol {
        match self {
            Self::Request | Self::RequestBody | Self::Responses => Protocol::Http,
            _ => Protocol::Beanstalk,
        }
    }

    /// Whether the peer would have to read it.
    const fn is_read(self) -> bool {
        matches!(self, Self::Replies | Self::Responses)
    }

    /// What the peer sends of it after it has come in, or in the place of that.
    fn text(self, field: &str) -> Vec<u8> {
        let head = |request: &str| format!("{request} HTTP/1.1\r\nHost: localhost\r\n{field}");
        let body = "b".repeat(BODY_BYTES);
        let whole = match self {
            Self::Line => format!("delete-batch {}\r\n", "1 ".repeat(900)),
            Self::Body => format!("put 0 0 60 {BODY_BYTES}\r\n{body}\r\n"),
            Self::Batch => format!("put-batch 100\r\n{}", put(0, "").repeat(100)),
            Self::Replies => "stats\r\n".repeat(200),
            Self::Record => "x".repeat(1 << 14),
            Self::Request => format!("{}X: {}\r\n\r\n", head("GET /healthz"), "x".repeat(4000)),
            Self::RequestBody => {
                let fields =
                    format!("Content-Type: application/octet-stream\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
                head("POST /api/v1/tubes/load/jobs") + &fields + &body
            }
            Self::Responses => format!("{}\r\n", head("GET /metrics")).repeat(20),
            Self::Hello | Self::Handshake | Self::Header => String::new(),
        };
        whole.into_bytes()
    }
}

impl Peer {
    /// Whether there is such a peer at a door.
    pub fn exists_at(self, door: Door) -> bool {
        match self.unit {
            Unit::Hello | Unit::Handshake | Unit::Record => matches!(door, Door::Tls | Door::Forwarded),
            Unit::Header => matches!(door, Door::Proxied | Door::Forwarded),
            unit => door.carries(unit.protocol()),
        }
    }

    /// Begins.
    pub fn begin(self, world: &World) -> Begun {
        let entrance = world.door.entrance(&world.server, self.unit.protocol());
        let greeting = world.door.greeting().filter(|_| self.unit.protocol() == Protocol::Beanstalk);
        let mut begun = Begun {
            peer: self,
            entrance,
            greeting: greeting.unwrap_or_default(),
            field: world.door.field(),
            tcp: None,
            pieces: VecDeque::new(),
        };
        begun.begin_anew();
        begun
    }
}

/// A peer of such a kind.
pub struct Begun {
    peer: Peer,
    entrance: Entrance,
    greeting: String,
    field: String,
    tcp: Option<TcpStream>,
    /// What it still sends, as it is on the wire.
    pieces: VecDeque<Vec<u8>>,
}

impl Begun {
    /// Connects, unless the server refuses that: then it tries again later.
    fn begin_anew(&mut self) {
        let Ok((tcp, pieces)) = self.connect() else { return };
        (self.tcp, self.pieces) = (Some(tcp), pieces.into());
    }

    fn connect(&self) -> io::Result<(TcpStream, Vec<Vec<u8>>)> {
        let Peer { unit, .. } = self.peer;
        let entrance = &self.entrance;
        if let (Unit::Hello | Unit::Handshake, Some(config)) = (unit, &entrance.tls) {
            let (tcp, _) = parts(Stream::Tcp(entrance.reach()?));
            let hello = sealed(&mut client(config), &[]);
            let cut = usize::from(unit == Unit::Hello);
            return Ok((tcp, self.cut(&hello[..hello.len() - cut])));
        }
        if unit == Unit::Header {
            if entrance.tls.is_none() {
                let (tcp, _) = parts(Stream::Tcp(entrance.reach()?));
                // The longest that the server reads.
                let mut header = balancer_header(Protocol::Beanstalk);
                header[14..16].copy_from_slice(&4096_u16.to_be_bytes());
                header.resize(16 + 4095, 0);
                return Ok((tcp, self.cut(&header)));
            }
            let header = hop_header();
            let (tcp, tls) = parts(entrance.enter_without_introduction()?);
            return Ok((tcp, self.sealed(tls, &header[..header.len() - 1])));
        }
        let (tcp, tls) = parts(entrance.enter()?);
        let mut text = unit.text(&self.field);
        if unit == Unit::Record {
            let mut record = sealed(&mut tls.expect("the door has TLS"), &text);
            record.pop();
            return Ok((tcp, self.cut(&record)));
        }
        if !unit.is_read() {
            text.pop();
        }
        Ok((tcp, self.sealed(tls, &[self.greeting.as_bytes(), &text].concat())))
    }

    /// Cuts bytes into what the peer sends at once.
    fn cut(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        match self.peer.habit {
            Habit::Drips if !self.peer.unit.is_read() => {
                bytes.chunks(1).take(DRIPS).map(<[u8]>::to_vec).collect()
            }
            _ => vec![bytes.to_vec()],
        }
    }

    /// Cuts plaintext, and seals each piece.
    fn sealed(&self, tls: Option<Box<ClientConnection>>, bytes: &[u8]) -> Vec<Vec<u8>> {
        let pieces = self.cut(bytes);
        match tls {
            None => pieces,
            Some(mut tls) => pieces.iter().map(|piece| sealed(&mut tls, piece)).collect(),
        }
    }

    /// Sends and reads what it does. Returns false if the connection has ended.
    fn go_on(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let Peer { unit, habit } = self.peer;
        let Some(tcp) = &mut self.tcp else { return Ok(false) };
        if let Some(piece) = self.pieces.front_mut() {
            let bytes = tcp.write(piece)?;
            piece.drain(..bytes);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            return Ok(true);
        }
        if habit == Habit::Leaves || habit == Habit::Drips && !unit.is_read() {
            return Ok(false);
        }
        let most = match (unit.is_read(), habit) {
            (true, Habit::Stays) => return Ok(true),
            (true, _) => 1,
            (false, _) => buffer.len(),
        };
        tcp.read(&mut buffer[..most]).map(|bytes| bytes > 0)
    }
}

impl Actor for Begun {
    fn step(&mut self, buffer: &mut [u8]) {
        let goes_on = match self.go_on(buffer) {
            Err(error) => error.kind() == ErrorKind::WouldBlock,
            Ok(goes_on) => goes_on,
        };
        if !goes_on {
            // With a RST: its port is free at once.
            if let Some(tcp) = self.tcp.take() {
                Stream::Tcp(tcp).reset();
            }
            self.begin_anew();
        }
    }
}
