//! The bare core as a [`Peer`]: no network, no clock, and every way for input and output to be cut.

use std::io::IoSlice;
use std::time::Duration;

use beanring::ids::ConnId;
use beanring::server::{Config, DriverStats, Effect, Event, Protocol, Server, Service};
use beanring::time::{Span, Time};

use super::peer::{Patience, Peer, Received};
use super::random::Random;

/// How input reaches the server and output leaves it.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// As it was sent.
    Whole,
    /// One byte at a time.
    EveryByte,
    /// In random pieces, sometimes straight to where a body belongs, with sends that take a random part
    /// and may have to wait.
    Random {
        /// Replays the same cuts.
        seed: u64,
    },
}

/// Random pieces are up to this long, so that a large body comes in several.
const PIECE_BYTES_MAX: usize = 20_000;

/// A server and its driver in one.
pub struct InMemoryServer {
    server: Server,
    now: Time,
    ends: Vec<End>,
    random: Option<Random>,
    piece_bytes_max: usize,
}

/// One connection, seen from the driver.
struct End {
    conn: ConnId,
    received: Vec<u8>,
    /// Sent by the client while the server did not want to receive.
    held_back: Vec<u8>,
    is_paused: bool,
    input_ended: bool,
    told_end: bool,
    wants_send: bool,
    is_closed: bool,
}

impl InMemoryServer {
    /// A server that is configured like this.
    pub fn with(config: Config, cut: Cut) -> Self {
        Self {
            server: Server::new(config),
            now: Time::ZERO,
            ends: Vec::new(),
            random: match cut {
                Cut::Random { seed } => Some(Random::new(seed)),
                _ => None,
            },
            piece_bytes_max: if matches!(cut, Cut::EveryByte) { 1 } else { usize::MAX },
        }
    }

    /// Asserts that the queue is sound and that no slot is left when no job is.
    pub fn check(&self) {
        self.server.check();
        let engine = self.server.engine();
        if engine.jobs().is_empty() && self.ends.iter().all(|end| end.is_closed) {
            assert_eq!(engine.bodies().usage().slots, 0, "every body is given back");
        }
    }

    /// The memory that the server counts, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.server.memory_bytes()
    }

    fn feed(&mut self, number: usize) {
        while !self.ends[number].held_back.is_empty() && !self.ends[number].is_paused {
            let End { conn, is_closed, .. } = self.ends[number];
            let mut piece = std::mem::take(&mut self.ends[number].held_back);
            if is_closed {
                return;
            }
            let mut length = piece.len().min(self.piece_bytes_max);
            if let Some(random) = &mut self.random {
                let most = 1 + random.below(PIECE_BYTES_MAX);
                length = 1 + random.below(length.min(most));
            }
            self.ends[number].held_back = piece.split_off(length);
            self.deliver(conn, &piece);
            self.settle();
        }
        let end = &mut self.ends[number];
        if end.input_ended && !end.held_back.is_empty() && !end.is_closed {
            let conn = end.conn;
            self.server.handle(self.now, Event::InputEnding { conn });
            self.settle();
        }
        let end = &mut self.ends[number];
        if end.input_ended && !end.told_end && end.held_back.is_empty() && !end.is_closed {
            end.told_end = true;
            let conn = end.conn;
            self.server.handle(self.now, Event::InputEnded { conn });
            self.settle();
        }
    }

    fn deliver(&mut self, conn: ConnId, piece: &[u8]) {
        let go_direct = self.random.as_mut().is_none_or(|random| random.below(2) == 0);
        let mut rest = piece;
        if let Some(place) = self.server.direct(conn).filter(|_| go_direct) {
            let (body, after) = piece.split_at(piece.len().min(place.len()));
            place[..body.len()].copy_from_slice(body);
            rest = after;
            self.server.handle(self.now, Event::ReceivedDirect { conn, bytes: body.len() });
        }
        if !rest.is_empty() {
            self.server.handle(self.now, Event::Received { conn, bytes: rest });
        }
    }

    /// Carries out effects and lets the server work until nothing is left to do now.
    fn settle(&mut self) {
        loop {
            while let Some(effect) = self.server.next_effect() {
                self.carry_out(effect);
            }
            self.server.turn(self.now);
            let mut sent = false;
            for number in 0..self.ends.len() {
                sent |= self.ends[number].wants_send && self.send(number);
            }
            let is_due = self.server.next_deadline().is_some_and(|deadline| deadline <= self.now);
            match self.server.next_effect() {
                Some(effect) => self.carry_out(effect),
                None if !sent && !is_due => return,
                None => {}
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        if effect == Effect::SampleStats {
            return self.server.handle(self.now, Event::StatsSampled(DriverStats::default()));
        }
        let (Effect::Send(conn) | Effect::Pause(conn) | Effect::Resume(conn) | Effect::Close(conn)) = effect
        else {
            panic!("there is no log");
        };
        let number = self.ends.iter().position(|end| end.conn == conn).expect("it was opened");
        let end = &mut self.ends[number];
        match effect {
            Effect::Send(_) => end.wants_send = true,
            Effect::Pause(_) => end.is_paused = true,
            Effect::Resume(_) => {
                end.is_paused = false;
                self.feed(number);
            }
            Effect::SampleStats | Effect::Disk | Effect::Fail => unreachable!("seen above"),
            Effect::Close(_) => {
                end.is_closed = true;
                end.wants_send = false;
                self.server.handle(self.now, Event::Closed { conn });
            }
        }
    }

    /// Sends a part of what is there. False if there was nothing.
    fn send(&mut self, number: usize) -> bool {
        let conn = self.ends[number].conn;
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        self.server.outgoing(conn, &mut slices);
        let offered: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        if offered.is_empty() {
            self.ends[number].wants_send = false;
            return false;
        }
        let count = self.random.as_mut().map_or(offered.len(), |random| 1 + random.below(offered.len()));
        self.ends[number].received.extend_from_slice(&offered[..count]);
        self.server.handle(self.now, Event::Sent { conn, bytes: count });
        true
    }
}

impl Peer for InMemoryServer {
    fn open(&mut self) -> usize {
        self.ends.push(End {
            conn: self.server.accept(Protocol::Beanstalk),
            received: Vec::new(),
            held_back: Vec::new(),
            is_paused: false,
            input_ended: false,
            told_end: false,
            wants_send: false,
            is_closed: false,
        });
        self.settle();
        self.ends.len() - 1
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        self.ends[conn].held_back.extend_from_slice(bytes);
        self.feed(conn);
        self.check();
    }

    fn receive(&mut self, conn: usize, _: Patience) -> Received {
        let end = &mut self.ends[conn];
        match std::mem::take(&mut end.received) {
            bytes if !bytes.is_empty() => Received::Bytes(bytes),
            _ if end.is_closed => Received::Closed,
            _ => Received::Silence,
        }
    }

    fn advance(&mut self, span: Duration) {
        let target = self.now + Span::from_nanos(span.as_nanos() as u64);
        while let Some(deadline) = self.server.next_deadline().filter(|&deadline| deadline <= target) {
            self.now = deadline.max(self.now);
            self.settle();
        }
        self.now = target;
        self.settle();
        self.check();
    }

    fn half_close(&mut self, conn: usize) {
        self.ends[conn].input_ended = true;
        self.feed(conn);
        self.check();
    }

    fn close(&mut self, conn: usize) {
        let End { conn, is_closed, .. } = self.ends[conn];
        if !is_closed {
            self.server.handle(self.now, Event::HungUp { conn });
            self.settle();
        }
        self.check();
    }

    fn drain(&mut self) {
        self.server.handle(self.now, Event::Drain);
        self.settle();
    }
}
