//! A server in memory whose event-loop iterations a test makes one by one, and whose disk ends operations when the test says so.

use std::io::IoSlice;
use std::mem;

use beanring::io::wal_files::recover;
use beanring::queue::Engine;
use beanring::server::{Config, Effect, Entry, Event, Peer, PeerKind, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::values::ids::ConnId;
use beanring::wal::{Durability, LogReply, LogRequest, WalConfig};

use super::disk::Disk;
use super::http_client::Response;
use super::in_memory::LOAD_PIECE_BYTES;
use super::random::Random;

/// A server, and a driver that does only what the test asks for. It reports no end of input, and never cuts any.
pub struct Stepped {
    pub server: Server,
    pub now: Time,
    /// The most bytes of one send. At 0 no client reads.
    pub piece_bytes: usize,
    pub disk: Disk,
    pub random: Random,
    /// The server cannot continue.
    pub has_failed: bool,
    /// The number of iterations so far.
    pub turns: usize,
    ends: Vec<End>,
    /// Connections that the server has closed since the last [`Self::run`].
    closed: Vec<usize>,
}

struct End {
    conn: ConnId,
    received: Vec<u8>,
    is_paused: bool,
}

impl Stepped {
    pub fn new(config: Config) -> Self {
        Self::over(Server::new(config), Time::from_nanos(1), Disk::default())
    }

    /// Starts a server with a job log on a new disk.
    pub fn with_log(config: Config, durability: Durability, segment_bytes: u64) -> Self {
        let now = Time::from_nanos(1_000_000_000_000);
        Self::recovered(config, durability, segment_bytes, Disk::new(100, true), now)
    }

    /// Starts a server with the job log on this disk, and waits until it has prepared its segments.
    ///
    /// # Panics
    /// If it cannot be recovered from.
    pub fn recovered(
        config: Config,
        durability: Durability,
        segment_bytes: u64,
        disk: Disk,
        now: Time,
    ) -> Self {
        let mut engine = Engine::new(0);
        let destination = disk.destination();
        let wal = WalConfig { durability, segment_bytes, destination, keep_reservations: false };
        let wal = recover(&disk, wal, &mut engine, now).unwrap_or_else(|error| panic!("{error}"));
        let mut stepped = Self::over(Server::with_wal(config, engine, Some(wal)), now, disk);
        stepped.write();
        stepped
    }

    fn over(server: Server, now: Time, disk: Disk) -> Self {
        Self {
            server,
            now,
            piece_bytes: usize::MAX,
            disk,
            random: Random::new(1),
            has_failed: false,
            turns: 0,
            ends: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Opens a connection of a client.
    pub fn open(&mut self) -> usize {
        self.accept(Protocol::Beanstalk, None)
    }

    /// Opens a connection to the HTTP listener from this machine.
    pub fn open_http(&mut self) -> usize {
        self.open_http_from(Peer::new(PeerKind::Loopback, "peer"))
    }

    pub fn open_http_from(&mut self, peer: Peer) -> usize {
        self.accept(Protocol::Http, Some(peer))
    }

    fn accept(&mut self, protocol: Protocol, peer: Option<Peer>) -> usize {
        let conn = self.server.accept(self.now, protocol, Entry::Plain(peer));
        self.ends.push(End { conn, received: Vec::new(), is_paused: false });
        self.ends.len() - 1
    }

    /// Lets the server receive bytes, without an iteration.
    pub fn send(&mut self, end: usize, bytes: &[u8]) {
        self.server.handle(self.now, Event::Received { conn: self.ends[end].conn, bytes });
        self.carry_out();
    }

    /// Sends much, makes the iterations that it needs, and drops the replies.
    pub fn load(&mut self, end: usize, text: &str) {
        for piece in text.as_bytes().chunks(LOAD_PIECE_BYTES) {
            self.send(end, piece);
            self.run();
        }
        self.received(end).clear();
    }

    /// Closes a connection.
    pub fn close(&mut self, end: usize) {
        let conn = self.ends[end].conn;
        self.server.handle(self.now, Event::HungUp { conn });
        self.carry_out();
    }

    /// Makes one iteration.
    pub fn turn(&mut self) {
        self.turns += 1;
        self.server.turn(self.now);
        self.carry_out();
    }

    /// Whether the server has work left.
    pub fn is_busy(&self) -> bool {
        self.server.next_deadline().is_some_and(|deadline| deadline <= self.now)
    }

    /// Makes iterations until the server has nothing to do, or waits for the disk. Returns the connections that it has closed since the
    /// last call.
    pub fn run(&mut self) -> Vec<usize> {
        loop {
            self.turns += 1;
            self.server.turn(self.now);
            if !self.carry_out() && !self.is_busy() || self.has_failed {
                return mem::take(&mut self.closed);
            }
        }
    }

    /// Sends commands, and ends the operations of the disk. Returns the replies so far.
    pub fn command(&mut self, end: usize, text: &str) -> String {
        self.send(end, text.as_bytes());
        self.write();
        self.replies(end)
    }

    /// Lets time pass, and ends operations of the disk at once.
    pub fn pass(&mut self, span: Span) {
        let until = self.now + span;
        self.write();
        while let Some(at) = self.server.next_deadline().filter(|&at| at <= until && !self.has_failed) {
            self.now = self.now.max(at);
            self.write();
        }
        self.now = until;
    }

    /// Sends a request, and runs the server. Returns the response, if it is complete.
    pub fn ask(&mut self, http: usize, request: &[u8]) -> Option<Response> {
        self.send(http, request);
        self.run();
        self.server.check();
        self.response(http)
    }

    /// Returns the next response, if it is complete.
    pub fn response(&mut self, http: usize) -> Option<Response> {
        Response::take(self.received(http), true)
    }

    /// Ends all operations of the disk, and those that follow.
    pub fn write(&mut self) {
        self.run();
        while self.write_one() {}
        self.server.check();
    }

    /// Ends one operation of the disk. Returns false if there is none.
    pub fn write_one(&mut self) -> bool {
        let Some(outcome) = self.disk.finish_one(&mut self.random) else { return false };
        self.server.handle(self.now, Event::Log(LogReply::Files(outcome)));
        self.run();
        true
    }

    /// Carries out all effects. Returns whether one of them was progress: the server may ask again and again for a disk that is full.
    fn carry_out(&mut self) -> bool {
        let mut is_progress = false;
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Send(conn) => {
                    let end = self.end(conn);
                    while self.send_some(end) {
                        is_progress = true;
                    }
                }
                Effect::Pause(conn) | Effect::Resume(conn) => {
                    let end = self.end(conn);
                    self.ends[end].is_paused = matches!(effect, Effect::Pause(_));
                }
                Effect::Close(conn) => {
                    self.server.handle(self.now, Event::Closed { conn });
                    self.closed.push(self.end(conn));
                    is_progress = true;
                }
                Effect::Log => {
                    while let Some(LogRequest::Files(operation)) = self.server.poll_log_request(self.now) {
                        self.disk.begin(operation);
                        is_progress = true;
                    }
                }
                Effect::Fail => self.has_failed = true,
                Effect::LogClient(..) => {}
            }
        }
        is_progress
    }

    /// Sends a piece to a client. Returns false if there is none, or nothing is read.
    pub fn send_some(&mut self, end: usize) -> bool {
        let End { conn, received, .. } = &mut self.ends[end];
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        self.server.outgoing(*conn, &mut slices);
        let before = received.len();
        for slice in &slices {
            let rest = self.piece_bytes - (received.len() - before);
            received.extend_from_slice(&slice[..slice.len().min(rest)]);
        }
        let bytes = received.len() - before;
        if bytes > 0 {
            self.server.handle(self.now, Event::Sent { conn: *conn, bytes });
        }
        bytes > 0
    }

    fn end(&self, conn: ConnId) -> usize {
        self.ends.iter().position(|end| end.conn == conn).expect("it was opened")
    }

    /// The bytes that a client has received, which the test may take.
    pub fn received(&mut self, end: usize) -> &mut Vec<u8> {
        &mut self.ends[end].received
    }

    /// Takes the replies that a client has received.
    ///
    /// # Panics
    /// If they are not text.
    pub fn replies(&mut self, end: usize) -> String {
        String::from_utf8(mem::take(self.received(end))).expect("replies are text")
    }

    /// Whether the server wants no more input from a connection for now.
    pub fn is_paused(&self, end: usize) -> bool {
        self.ends[end].is_paused
    }
}
