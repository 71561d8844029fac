//! Conversations through the driver with a fake kernel, which completes requests late, in pieces, in any order, and in every other
//! way that a real one may.

mod requests;

use std::cmp::Reverse;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use nix::errno::Errno;

use super::UringDriver;
use super::connection::{ReceiveRequest, WatchRequest};
use super::fake::{FakeRing, Request, Socket, Work};
use super::ring::{Ring, Token};
use crate::io::Resources;
use crate::io::clock::Clock;
use crate::io::host::ProcessFiles;
use crate::io::shell::{Backend, InputState, Shell};
use crate::io::signal::Signals;
use crate::io::socket::{Address, Listener};
use crate::io::watched_files::WatchedFiles;
use crate::server::{Config, Event, Server};
use crate::time::{Span, Time};
use crate::values::ids::ConnId;
use crate::values::limits::JOB_BYTES_DEFAULT;
use beanring_testkit::conversation::Conversation;
use beanring_testkit::peer::{Patience, Peer, Received};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::runner::{Dialect, run};

/// The size of a chunk of the arena.
const CHUNK_BYTES: u64 = 2 * 1024 * 1024;

/// The reply to `pick`.
const UNKNOWN_COMMAND: &[u8] = b"UNKNOWN_COMMAND\r\n";

/// Iterations in which the driver must come to rest.
const ITERATIONS_MAX: usize = 1_000_000;

/// A [`Peer`] in virtual time.
struct Simulated {
    driver: UringDriver<Server, FakeRing>,
    now: Time,
    /// When the driver needs its next iteration.
    deadline: Option<Time>,
    /// The delay of that iteration.
    lateness: Span,
    ends: Vec<End>,
    seed: u64,
}

/// A connection, by the descriptor that the driver was given.
struct End {
    fd: RawFd,
    /// What the descriptor refers to while it is open. After a close its number may be reused, and a process that is being started
    /// may have a copy.
    identity: PathBuf,
    /// The socket as it was when the driver closed it.
    closed: Option<Socket>,
}

impl End {
    fn is_open(&self) -> bool {
        self.closed.is_none() && identity(self.fd).is_ok_and(|found| found == self.identity)
    }
}

fn identity(fd: RawFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{fd}"))
}

fn config(max_job_bytes: u32) -> Config {
    beanring_testkit::server_config!(max_job_bytes)
}

impl Simulated {
    fn start(seed: u64) -> Self {
        Self::with(config(JOB_BYTES_DEFAULT), seed)
    }

    fn with(config: Config, seed: u64) -> Self {
        // Registered chunks count whole and are not freed, which is too much for a low memory limit.
        let registered_bytes_max = if config.max_memory_bytes.is_some() { 0 } else { 2 * CHUNK_BYTES };
        let server = Server::new(config);
        let nowhere = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
        let listeners = vec![Listener::open(&nowhere).expect("a port is free")];
        let signals = Signals::block().expect("signals are blocked");
        let resources = Resources {
            listeners,
            signals,
            clock: Clock::start(),
            disk: None,
            database: None,
            forwarding: None,
            connections_max: None,
            keepalive: None,
            registered_bytes_max,
            process: ProcessFiles::default(),
            watched_files: WatchedFiles::default(),
        };
        let mut driver = UringDriver::new(server, FakeRing::new(seed), resources, Time::ZERO);
        // The memory limits of conversations are for the core alone, without the buffers of a driver.
        driver.shell.set_memory(0);
        driver.shell.ignore_system_clock();
        Self { driver, now: Time::ZERO, deadline: None, lateness: Span::ZERO, ends: Vec::new(), seed }
    }

    fn socket(&mut self, conn: usize) -> &mut Socket {
        let End { fd, closed, .. } = &mut self.ends[conn];
        closed.as_mut().or_else(|| self.driver.ring.sockets.get_mut(fd)).expect("the socket exists")
    }

    fn is_closed(&self, conn: usize) -> bool {
        !self.ends[conn].is_open()
    }

    /// Runs iterations until nothing is left to do now.
    fn settle(&mut self) {
        for _ in 0..ITERATIONS_MAX {
            self.driver.ring.enter(Some(Span::ZERO)).expect("the fake ring does not fail");
            let timeout = self.driver.iterate(self.now).expect("the driver does not fail");
            self.deadline = timeout.map(|timeout| self.now + timeout);
            self.check_requests();
            self.check_closed();
            if timeout != Some(Span::ZERO) && self.driver.ring.is_at_rest() {
                self.driver.ring.check_waits();
                let stalled_until = self.driver.stalled_until();
                match stalled_until {
                    Some(until) if self.has_room_for_stalled() => self.now = self.now.max(until),
                    _ => return,
                }
            }
        }
        panic!("the driver does not come to rest");
    }

    /// Whether a stalled send would find room.
    fn has_room_for_stalled(&mut self) -> bool {
        let UringDriver { stalled, shell: Shell { connections, .. }, ring, .. } = &mut self.driver;
        stalled.iter().any(|&Reverse((_, conn))| {
            let connection = connections.get_mut(ConnId::from_u64(conn));
            connection.is_some_and(|one| ring.can_send(one.fd()))
        })
    }

    /// Checks that the ring has a request, or its completion, for everything that the driver waits for.
    fn check_requests(&mut self) {
        let UringDriver { shell: Shell { connections, listeners, .. }, ring, .. } = &mut self.driver;
        let is_under_way = |token: Token| {
            ring.requests.iter().any(|request| request.token == token)
                || ring.completions.iter().any(|completion| completion.token == token)
        };
        for slot in 0..connections.slots() as u32 {
            let Some((_, connection)) = connections.at_slot(slot) else { continue };
            assert!(!connection.lacks_request(), "{:?} without a request", connection.input);
            let receives = connection.receive != ReceiveRequest::None;
            assert!(!receives || is_under_way(Token::Receive(slot)), "{:?} is lost", connection.receive);
            let watches = connection.watch != WatchRequest::None;
            assert!(!watches || is_under_way(Token::Watch(slot)), "{:?} is lost", connection.watch);
            assert!(!connection.is_sending || is_under_way(Token::Send(slot)), "a send is lost");
        }
        for (number, listening) in listeners.iter().enumerate() {
            let is_lost = listening.is_watched && !is_under_way(Token::Listener(number as u32));
            assert!(!is_lost, "the watch of a listener is lost");
        }
        assert_eq!(self.driver.shell.unwatched().count(), 0, "every listener is watched");
    }

    /// A connection stays open as long as a request refers to it.
    fn check_closed(&mut self) {
        let ring = &mut self.driver.ring;
        for end in self.ends.iter_mut().filter(|end| end.closed.is_none() && !end.is_open()) {
            let mut requests = ring.requests.iter();
            assert!(requests.all(|request| request.fd != end.fd), "a request outlives its connection");
            end.closed = ring.sockets.remove(&end.fd);
        }
    }

    fn check(&mut self) {
        self.driver.shell.server.check();
        let engine = self.driver.shell.server.engine();
        let no_jobs = engine.jobs().is_empty();
        let slots = engine.body_count();
        let all_closed = (0..self.ends.len()).all(|conn| self.is_closed(conn));
        if all_closed {
            let is_own = |work: &Work| matches!(work, Work::Wait | Work::WatchListener);
            let left = self.driver.ring.requests.iter().filter(|request| !is_own(&request.work));
            assert_eq!(left.count(), 0, "no request outlives its connection");
            assert!(self.driver.ring.buffers.iter().all(Option::is_none), "all buffers are given back");
            assert!(!no_jobs || slots == 0, "every body is freed");
        }
    }
}

impl Simulated {
    /// Returns what a connection has received and receives now.
    fn read(&mut self, conn: usize) -> Vec<u8> {
        let mut output = Vec::new();
        while let Received::Bytes(bytes) = self.receive(conn, Patience::Reply) {
            output.extend(bytes);
        }
        output
    }

    /// Checks that a connection gets a reply.
    fn assert_serves(&mut self, conn: usize) {
        self.send(conn, b"pick\r\n");
        assert_eq!(self.read(conn), UNKNOWN_COMMAND, "seed {}", self.seed);
    }

    /// Has all peers close.
    fn close_all(&mut self) {
        for conn in 0..self.ends.len() {
            if !self.is_closed(conn) {
                self.close(conn);
            }
            assert!(self.is_closed(conn), "seed {}", self.seed);
        }
    }

    /// Makes a connection that the driver has not accepted yet.
    fn connect(&mut self) -> usize {
        let socket = UnixDatagram::unbound().expect("a descriptor is free");
        let identity = identity(socket.as_raw_fd()).expect("the connection is open");
        let fd = socket.into_raw_fd();
        self.driver.ring.connect(fd);
        self.ends.push(End { fd, identity, closed: None });
        self.ends.len() - 1
    }
}

impl Peer for Simulated {
    fn open(&mut self) -> usize {
        let conn = self.connect();
        self.settle();
        conn
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        if !self.is_closed(conn) {
            self.socket(conn).input.extend(bytes);
        }
        self.settle();
        self.check();
    }

    fn receive(&mut self, conn: usize, _: Patience) -> Received {
        match std::mem::take(&mut self.socket(conn).output) {
            bytes if !bytes.is_empty() => {
                self.settle();
                Received::Bytes(bytes)
            }
            _ if self.is_closed(conn) => Received::Closed,
            _ => Received::Silence,
        }
    }

    fn advance(&mut self, span: Duration) {
        let target = self.now + Span::from_nanos(span.as_nanos() as u64);
        while let Some(deadline) = self.deadline.filter(|&deadline| deadline <= target) {
            self.now = deadline.max(self.now) + self.lateness;
            self.settle();
        }
        self.now = target;
        self.settle();
    }

    fn half_close(&mut self, conn: usize) {
        self.socket(conn).input_ended = true;
        self.settle();
    }

    fn close(&mut self, conn: usize) {
        let is_reset = self.driver.ring.one_in(2);
        let socket = self.socket(conn);
        (socket.input_ended, socket.is_deaf) = (true, true);
        socket.is_broken |= is_reset;
        self.settle();
        self.check();
    }

    fn drain(&mut self) {
        self.driver.shell.handle(Event::Drain);
        self.settle();
    }
}

#[test]
fn conversations_with_the_fake_kernel() {
    let conversations = Conversation::all();
    let (mut zero_copy_sends, mut registered_bytes) = (0, 0);
    for seed in seeds(20) {
        for conversation in &conversations {
            let config = Config {
                max_memory_bytes: conversation.max_memory,
                allow_foreign_protocols: conversation.allow_foreign_protocols,
                sub_second: conversation.sub_second,
                ..config(conversation.max_job_size.unwrap_or(JOB_BYTES_DEFAULT))
            };
            let mut peer = Simulated::with(config, seed);
            if let Err(failure) = run(conversation, &mut peer, Dialect::Quoted) {
                panic!("seed {seed}\n{failure}");
            }
            peer.close_all();
            zero_copy_sends += peer.driver.shell.counts.kept().zero_copy_sends;
            registered_bytes += peer.driver.shell.counts.kept().registered_bytes;
        }
    }
    assert!(zero_copy_sends > 0 && registered_bytes > 0, "large bodies are among what is sent");
}

#[test]
fn a_large_body_is_received_to_its_place() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        peer.driver.ring.is_steady = seed.is_multiple_of(2);
        let conn = peer.open();
        let body: Vec<u8> = (0..60_000).map(|at| b'a' + (at % 23) as u8).collect();
        for number in 1..4 {
            let command = b"put 0 0 60 60000\r\n";
            peer.send(conn, command);
            for piece in body.chunks(10_000) {
                peer.send(conn, piece);
            }
            peer.send(conn, format!("\r\npeek {number}\r\n").as_bytes());
            let output = peer.read(conn);
            let expected = format!("INSERTED {number}\r\nFOUND {number} 60000\r\n");
            let expected = [expected.as_bytes(), &body, b"\r\n"].concat();
            assert!(output == expected, "seed {seed}: the body is unaltered");
            // The first piece comes before the place is known, and the last one is too small.
            let direct = std::mem::take(&mut peer.socket(conn).direct);
            assert!(direct >= 40_000, "seed {seed}: {direct} bytes were received to their place");
        }
    }
}

#[test]
fn the_end_of_a_paused_connection_is_detected() {
    for seed in seeds(20) {
        for is_reset in [false, true] {
            let mut peer = Simulated::start(seed);
            peer.driver.ring.is_steady = seed.is_multiple_of(2);
            let conn = peer.open();
            peer.send(conn, &[b"reserve\r\n", &b"pick\r\n".repeat(5_000)[..]].concat());
            let before = peer.socket(conn).input.len();
            let more = b"pick\r\n".repeat(5_000);
            peer.send(conn, &more);
            assert_eq!(peer.socket(conn).input.len(), before + more.len(), "seed {seed}: it is paused");
            if is_reset {
                peer.socket(conn).is_broken = true;
                peer.settle();
                assert!(peer.is_closed(conn), "seed {seed}: the break is detected");
            } else {
                peer.half_close(conn);
                let output = peer.read(conn);
                assert!(peer.is_closed(conn), "seed {seed}");
                let expected = [&b"TIMED_OUT\r\n"[..], &b"UNKNOWN_COMMAND\r\n".repeat(10_000)].concat();
                assert!(output == expected, "seed {seed}: {} bytes", output.len());
            }
            peer.check();
        }
    }
}

#[test]
fn a_break_after_the_end_of_the_input_is_detected() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        let conn = peer.open();
        peer.socket(conn).window = 1_000;
        peer.send(conn, &b"pick\r\n".repeat(100_000));
        peer.half_close(conn);
        assert!(!peer.is_closed(conn), "seed {seed}: replies are left");
        peer.socket(conn).is_broken = true;
        peer.settle();
        assert!(peer.is_closed(conn), "seed {seed}");
        peer.check();
    }
}

#[test]
fn large_bodies_are_copied_if_the_kernel_refuses_zero_copy_sends() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        peer.driver.ring.refuses_zero_copy = true;
        let body = vec![b'b'; 40_000];
        let found = [b"FOUND 1 40000\r\n", &body[..], b"\r\n"].concat();
        for number in 0..3 {
            let conn = peer.open();
            (peer.socket(conn).is_remote, peer.socket(conn).window) = (true, 1_000_000);
            if number == 0 {
                peer.send(conn, &[b"put 0 0 60 40000\r\n", &body[..], b"\r\n"].concat());
                assert_eq!(peer.read(conn), b"INSERTED 1\r\n");
            }
            peer.send(conn, &b"peek 1\r\n".repeat(2));
            let output = peer.read(conn);
            assert!(output == found.repeat(2), "seed {seed}: {} bytes came", output.len());
        }
        assert_eq!(peer.driver.shell.counts.kept().zero_copy_sends, 0, "seed {seed}");
    }
}

/// Memory may be short for a send without a copy when the notification of the one before says that the kernel copies anyway.
#[test]
fn a_send_without_a_copy_for_which_memory_is_short_is_repeated_with_one() {
    for seed in seeds(3000) {
        let mut peer = Simulated::start(seed);
        let body = vec![b'b'; 40_000];
        let found = [b"FOUND 1 40000\r\n", &body[..], b"\r\n"].concat();
        let conn = peer.open();
        (peer.socket(conn).is_remote, peer.socket(conn).window) = (true, 10_000_000);
        peer.send(conn, &[b"put 0 0 60 40000\r\n", &body[..], b"\r\n"].concat());
        assert_eq!(peer.read(conn), b"INSERTED 1\r\n");
        peer.send(conn, &b"peek 1\r\n".repeat(20));
        let output = peer.read(conn);
        assert!(output == found.repeat(20), "seed {seed}: {} bytes came", output.len());
    }
}

/// Even while a send to a peer that does not read is in flight.
#[test]
fn a_failed_receive_closes_the_connection() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        peer.driver.ring.is_steady = true;
        let conn = peer.open();
        peer.socket(conn).window = 100;
        peer.send(conn, &b"pick\r\n".repeat(100));
        assert!(peer.driver.ring.requests.iter().any(Request::is_send), "seed {seed}: a send waits");
        peer.socket(conn).receives_fail = Some(Errno::ENOMEM);
        peer.settle();
        assert!(peer.is_closed(conn), "seed {seed}");
        peer.check();
    }
}

#[test]
fn a_cancelled_watch_reports_nothing() {
    for seed in seeds(100) {
        let mut peer = Simulated::start(seed);
        let conn = peer.open();
        let id = peer.driver.shell.connections.at_slot(0).expect("the connection is open").0;
        for _ in 0..5 {
            peer.driver.pause(id);
            peer.driver.resume(id);
            peer.driver.pause(id);
            peer.settle();
            let (_, connection) = peer.driver.shell.connections.at_slot(0).expect("the connection is open");
            assert_eq!(connection.input, InputState::Paused, "seed {seed}");
            peer.driver.resume(id);
        }
        peer.assert_serves(conn);
    }
}

/// The input of a client, and the expected replies with `#` in place of job ids.
#[derive(Default)]
struct Script {
    input: Vec<u8>,
    answers: Vec<u8>,
}

impl Script {
    fn random(conn: usize, random: &mut Random) -> Self {
        let mut script = Self::default();
        script.say(
            format!("use t{conn}\r\nwatch t{conn}\r\nignore default\r\n").as_bytes(),
            format!("USING t{conn}\r\nWATCHING 2\r\nWATCHING 1\r\n").as_bytes(),
        );
        for _ in 0..random.below(30) {
            match random.below(8) {
                0..4 => {
                    let bytes = [10, 5_000, 12_000, 60_000][random.below(4)];
                    let first = random.next() as usize;
                    let body: Vec<u8> = (0..bytes).map(|at| b'a' + ((first ^ at) % 26) as u8).collect();
                    let put = format!("put 0 0 1000000 {bytes}\r\n");
                    let reserved = format!("INSERTED #\r\nRESERVED # {bytes}\r\n");
                    script.say(
                        &[put.as_bytes(), &body, b"\r\nreserve-with-timeout 0\r\n"].concat(),
                        &[reserved.as_bytes(), &body, b"\r\n"].concat(),
                    );
                }
                4 => script.say(b"reserve-with-timeout 1\r\n", b"TIMED_OUT\r\n"),
                5 => {
                    let count = random.below(5_000);
                    script.say(&b"pick\r\n".repeat(count), &b"UNKNOWN_COMMAND\r\n".repeat(count));
                }
                _ => {
                    let found = [b"FOUND #", &b" 20000\r\n"[..], &[b'1'; 20_000], b"\r\n"].concat();
                    let count = 1 + random.below(10);
                    script.say(&b"peek 1\r\n".repeat(count), &found.repeat(count));
                }
            }
        }
        // The end of the input ends this wait.
        script.say(b"reserve\r\n", b"TIMED_OUT\r\n");
        let count = random.below(10_000);
        script.say(&b"pick\r\n".repeat(count), &b"UNKNOWN_COMMAND\r\n".repeat(count));
        script
    }

    fn say(&mut self, command: &[u8], answer: &[u8]) {
        self.input.extend_from_slice(command);
        self.answers.extend_from_slice(answer);
    }

    fn is_answered_by(&self, output: &[u8]) -> bool {
        let mut rest = output;
        self.answers.iter().all(|&expected| {
            if expected == b'#' {
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                rest = &rest[digits..];
                return digits > 0;
            }
            let first = rest.split_off_first();
            first == Some(&expected)
        }) && rest.is_empty()
    }
}

/// Clients pipeline, read at random times, and some of them vanish: the others get every reply.
#[test]
fn floods_are_answered_while_clients_vanish() {
    const CLIENTS: usize = 5;
    const HONEST: usize = 2;
    for seed in seeds(6) {
        let mut random = Random::new(seed);
        let mut peer = Simulated::start(seed);
        let first = peer.open();
        let put = [b"put 0 0 60 20000\r\n", &[b'1'; 20_000][..], b"\r\n"].concat();
        peer.send(first, &put);
        let conns: Vec<usize> = (0..CLIENTS).map(|_| peer.open()).collect();
        let scripts: Vec<Script> = conns.iter().map(|&conn| Script::random(conn, &mut random)).collect();
        let mut sent = [0; CLIENTS];
        let mut outputs = vec![Vec::new(); CLIENTS];
        while (0..HONEST).any(|client| sent[client] <= scripts[client].input.len()) {
            let client = random.below(CLIENTS);
            let conn = conns[client];
            if peer.is_closed(conn) {
                sent[client] = usize::MAX;
                continue;
            }
            match random.below(8) {
                0 if client >= HONEST && random.below(4) == 0 => peer.close(conn),
                0..4 => {
                    let rest = scripts[client].input.get(sent[client]..).unwrap_or_default();
                    let most = [100, 10_000, 1_000_000][random.below(3)];
                    let share = random.below(most);
                    let count = rest.len().min(share);
                    peer.socket(conn).input.extend(&rest[..count]);
                    sent[client] += count;
                    if sent[client] == scripts[client].input.len() {
                        peer.socket(conn).input_ended = true;
                        sent[client] += 1;
                    }
                }
                4 => peer.advance(Duration::from_millis(300)),
                5 => peer.settle(),
                _ => {
                    if let Received::Bytes(bytes) = peer.receive(conn, Patience::Quiet) {
                        outputs[client].extend(bytes);
                    }
                }
            }
        }
        peer.settle();
        for client in 0..HONEST {
            let conn = conns[client];
            // Each reserve that is left waits for a second.
            for _ in 0..10_000 {
                match peer.receive(conn, Patience::Reply) {
                    Received::Bytes(bytes) => outputs[client].extend(bytes),
                    Received::Silence => peer.advance(Duration::from_secs(1)),
                    Received::Closed => break,
                }
            }
            assert!(peer.is_closed(conn), "seed {seed}: the end of the input closes the connection");
            assert!(scripts[client].is_answered_by(&outputs[client]), "seed {seed}: client {client}");
        }
        peer.close_all();
        let engine = peer.driver.shell.server.engine();
        assert_eq!(engine.body_count(), engine.jobs().len(), "seed {seed}: one body per job");
    }
}
