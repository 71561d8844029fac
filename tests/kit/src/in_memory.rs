//! The server without network and clock as a [`Peer`], with input and output cut in every way.

use std::time::Duration;

use beanring::server::{
    Config, Effect, Entry, Event, Peer as HttpPeer, PeerKind, Protocol, Server, Update, Users, handle,
};
use beanring::time::{Span, Time};

use super::connection::{Connection, ConnectionState, outgoing};
use super::peer::{Patience, Peer, Received};
use super::random::Random;
use super::statistics;
use super::under_test::UnderTest;

/// How input and output are cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// Into single bytes.
    EveryByte,
    /// Into random pieces, some of which are received straight into a body. Sends take a random part and may have to
    /// wait.
    Random {
        /// Replays the same cuts.
        seed: u64,
    },
}

/// The largest random piece in bytes, so that a large body needs several.
const PIECE_BYTES_MAX: usize = 20_000;

/// What [`InMemoryServer::load`] sends at once.
pub const LOAD_PIECE_BYTES: usize = 16 * 1024;

/// A server and its driver in virtual time.
pub struct InMemoryServer<S = Server> {
    server: S,
    now: Time,
    ends: Vec<End>,
    random: Option<Random>,
    piece_bytes_max: usize,
    is_checked: bool,
}

struct End {
    connection: Connection,
    /// Bytes that the client has received and the test has not read.
    received: Vec<u8>,
    /// The client reads nothing.
    is_blocked: bool,
}

impl InMemoryServer {
    pub fn with(config: Config, cut: Cut) -> Self {
        Self::over(Server::new(config), cut)
    }
}

impl<S: UnderTest> InMemoryServer<S> {
    /// Drives a server that may be behind TLS.
    pub fn over(server: S, cut: Cut) -> Self {
        Self {
            server,
            now: Time::ZERO,
            ends: Vec::new(),
            random: match cut {
                Cut::Random { seed } => Some(Random::new(seed)),
                _ => None,
            },
            piece_bytes_max: if matches!(cut, Cut::EveryByte) { 1 } else { usize::MAX },
            is_checked: true,
        }
    }

    /// Leaves out the check after each command: it takes long with very many tubes or jobs.
    pub fn unchecked(self) -> Self {
        Self { is_checked: false, ..self }
    }

    pub fn server(&self) -> &Server {
        self.server.server()
    }

    /// Asserts that the server is consistent, and that no body is left when all connections and jobs are gone.
    pub fn check(&self) {
        let server = self.server.server();
        server.check();
        let engine = server.engine();
        let is_closed = |end: &End| end.connection.state == ConnectionState::Closed;
        if engine.jobs().is_empty() && self.ends.iter().all(is_closed) {
            assert_eq!(engine.body_count(), 0, "every body is freed");
        }
    }

    fn check_often(&self) {
        if self.is_checked {
            self.check();
        }
    }

    /// Takes what the client has received since it was last taken.
    pub fn take(&mut self, conn: usize) -> String {
        String::from_utf8(std::mem::take(&mut self.ends[conn].received)).expect("the replies are text")
    }

    /// Counts how often a text occurs in what clients have received since it was last taken.
    pub fn received(&self, text: &str) -> usize {
        self.ends.iter().map(|end| String::from_utf8_lossy(&end.received).matches(text).count()).sum()
    }

    /// Returns a number of `stats`.
    pub fn stat(&mut self, conn: usize, key: &str) -> u64 {
        statistics::number(&self.ask(conn, "stats\r\n"), key)
    }

    // Single steps.

    /// Has the server receive a text at once, and carries out the effects, without an event-loop iteration.
    pub fn receive_at_once(&mut self, conn: usize, text: &str) {
        let conn = self.ends[conn].connection.conn;
        self.handle(Event::Received { conn, bytes: text.as_bytes() });
    }

    /// Has the server receive the end of the input, without an event-loop iteration.
    pub fn end_input_at_once(&mut self, conn: usize) {
        let conn = self.ends[conn].connection.conn;
        self.handle(Event::InputEnded { conn });
    }

    fn handle(&mut self, event: Event<'_>) {
        handle(&mut self.server, self.now, event);
        self.exchange();
    }

    /// Runs one event-loop iteration.
    pub fn turn(&mut self) {
        self.server.turn(self.now);
        self.exchange();
    }

    /// Carries out all effects, and sends everything.
    fn exchange(&mut self) {
        self.carry_out();
        while self.send_to_all() {
            self.carry_out();
        }
    }

    /// Whether the server has something to do now.
    pub fn is_busy(&self) -> bool {
        self.server.next_deadline().is_some_and(|deadline| deadline <= self.now)
    }

    // Other clients.

    /// Opens a connection to the HTTP listener, from such a peer.
    pub fn open_http(&mut self, kind: PeerKind) -> usize {
        let entry = Entry::Plain(Some(HttpPeer::new(kind, "peer")));
        let conn = self.server.accept(self.now, Protocol::Http, entry);
        self.ends.push(End { connection: Connection::new(conn), received: Vec::new(), is_blocked: false });
        self.settle();
        self.ends.len() - 1
    }

    /// Opens a connection whose client has proved by a certificate to have these names.
    pub fn open_certified(&mut self, protocol: Protocol, names: &[&str]) -> usize {
        let connection = Connection::new(self.server.accept(self.now, protocol, Entry::Plain(None)));
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        handle(&mut self.server, self.now, Event::Certified { conn: connection.conn, names: &names });
        self.ends.push(End { connection, received: Vec::new(), is_blocked: false });
        self.settle();
        self.ends.len() - 1
    }

    /// Sends a text. Returns what comes at once, as [`Self::reply`] does.
    pub fn ask(&mut self, conn: usize, text: &str) -> String {
        self.send(conn, text.as_bytes());
        self.reply(conn)
    }

    /// Returns what has come: nothing if the client waits, `closed` if the server has closed the connection.
    pub fn reply(&mut self, conn: usize) -> String {
        match self.receive(conn, Patience::Quiet) {
            Received::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Received::Silence => String::new(),
            Received::Closed => "closed".to_owned(),
        }
    }

    /// Sends a text, and asserts what comes at once.
    pub fn expect(&mut self, conn: usize, text: &str, expected: &str) {
        assert_eq!(self.ask(conn, text), expected, "{text}");
    }

    /// Sends much, drops the replies, and checks the server once. [`Peer::send`] checks it each time.
    pub fn load(&mut self, conn: usize, text: &str) {
        for piece in text.as_bytes().chunks(LOAD_PIECE_BYTES) {
            self.ends[conn].connection.unreceived.extend_from_slice(piece);
            self.feed(conn);
            self.ends[conn].received.clear();
        }
        self.check();
    }

    /// Gives the server other users. Their connections have not followed yet.
    pub fn replace_users_at_once(&mut self, users: Users) {
        self.server.update(self.now, Update::Users(Some(users)));
    }

    /// Gives the server other users, and lets it work until their connections have followed.
    pub fn replace_users(&mut self, users: Users) {
        self.replace_users_at_once(users);
        self.settle();
        self.check();
    }

    /// Lets the client of a connection read nothing from now on, or again.
    pub fn block(&mut self, conn: usize, is_blocked: bool) {
        self.ends[conn].is_blocked = is_blocked;
        self.settle();
    }

    /// Lets a client that reads nothing read this many pieces.
    pub fn send_pieces(&mut self, conn: usize, count: usize) {
        for _ in 0..count {
            self.ends[conn].is_blocked = false;
            self.send_some(conn);
            self.ends[conn].is_blocked = true;
        }
        self.settle();
    }

    /// Whether the server wants no more input from a connection for now.
    pub fn is_paused(&self, conn: usize) -> bool {
        self.ends[conn].connection.is_paused
    }

    /// Returns the memory that the server counts, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.server.server().memory_bytes()
    }

    /// Receives what the client has sent, as far as the server wants it, and reports the end of the input.
    fn feed(&mut self, number: usize) {
        loop {
            let connection = &self.ends[number].connection;
            if connection.unreceived.is_empty() || connection.is_paused || !connection.is_open() {
                break;
            }
            let mut bytes = connection.unreceived.len().min(self.piece_bytes_max);
            let mut direct = true;
            if let Some(random) = &mut self.random {
                let most = 1 + random.below(PIECE_BYTES_MAX);
                bytes = 1 + random.below(bytes.min(most));
                direct = random.below(2) == 0;
            }
            let Self { server, ends, now, .. } = self;
            ends[number].connection.receive(bytes, direct, server, *now);
            self.settle();
        }
        while let Some(event) = self.end_of_input(number) {
            handle(&mut self.server, self.now, event);
            self.settle();
        }
    }

    fn end_of_input(&mut self, number: usize) -> Option<Event<'static>> {
        let connection = &mut self.ends[number].connection;
        connection.is_open().then(|| connection.end_of_input()).flatten()
    }

    /// Carries out effects and runs the server until nothing is left to do now.
    fn settle(&mut self) {
        loop {
            self.carry_out();
            self.server.turn(self.now);
            let sent = self.send_to_all();
            let is_due = self.is_busy();
            if !self.carry_out() && !sent && !is_due {
                return;
            }
        }
    }

    fn send_to_all(&mut self) -> bool {
        (0..self.ends.len()).fold(false, |sent, number| self.send_some(number) | sent)
    }

    /// Carries out all effects. Returns whether there was one.
    fn carry_out(&mut self) -> bool {
        let mut had_effect = false;
        while let Some(effect) = self.server.poll_effect() {
            had_effect = true;
            let conn = match effect {
                Effect::Send(conn) | Effect::Pause(conn) | Effect::Resume(conn) | Effect::Close(conn) => conn,
                Effect::LogClient(..) => continue,
                Effect::Log | Effect::Fail => panic!("{effect:?} of a server without a job log"),
            };
            let Self { server, ends, now, .. } = self;
            let number = ends.iter().position(|end| end.connection.conn == conn).expect("it was opened");
            ends[number].connection.apply(&effect);
            ends[number].connection.close(server, *now);
            if matches!(effect, Effect::Resume(_)) {
                self.feed(number);
            }
        }
        had_effect
    }

    /// Sends a part of the output. Returns false if there is none.
    fn send_some(&mut self, number: usize) -> bool {
        let Self { server, ends, now, random, .. } = self;
        let End { connection, received, is_blocked } = &mut ends[number];
        if !connection.wants_send || *is_blocked {
            return false;
        }
        let offered = outgoing(server, connection.conn).len();
        connection.begin_send(server);
        if !connection.is_sending() {
            return false;
        }
        let bytes_max = random.as_mut().map_or(offered, |random| 1 + random.below(offered));
        let sent = connection.end_send(bytes_max, server);
        handle(server, *now, Event::Sent { conn: connection.conn, bytes: sent.len() });
        received.extend(sent);
        true
    }
}

impl<S: UnderTest> Peer for InMemoryServer<S> {
    fn open(&mut self) -> usize {
        let connection =
            Connection::new(self.server.accept(self.now, Protocol::Beanstalk, Entry::Plain(None)));
        self.ends.push(End { connection, received: Vec::new(), is_blocked: false });
        self.settle();
        self.ends.len() - 1
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        self.ends[conn].connection.unreceived.extend_from_slice(bytes);
        self.feed(conn);
        self.check_often();
    }

    fn receive(&mut self, conn: usize, _: Patience) -> Received {
        let end = &mut self.ends[conn];
        match std::mem::take(&mut end.received) {
            bytes if !bytes.is_empty() => Received::Bytes(bytes),
            _ if end.connection.is_open() => Received::Silence,
            _ => Received::Closed,
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
        self.check_often();
    }

    fn half_close(&mut self, conn: usize) {
        self.ends[conn].connection.is_half_closed = true;
        self.feed(conn);
        self.check_often();
    }

    fn close(&mut self, conn: usize) {
        let connection = &self.ends[conn].connection;
        if connection.is_open() {
            handle(&mut self.server, self.now, Event::HungUp { conn: connection.conn });
            self.settle();
        }
        self.check_often();
    }

    fn drain(&mut self) {
        handle(&mut self.server, self.now, Event::Drain);
        self.settle();
    }
}
