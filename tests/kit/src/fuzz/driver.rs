//! A driver without a kernel: it does one thing at a time, as an input says, and holds the server to what drivers
//! rely on.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use beanring::ids::ConnId;
use beanring::limits::{LOG_FILE_BYTES_DEFAULT, METRICS_PREFIX_DEFAULT};
use beanring::queue::Engine;
use beanring::server::{Config, DriverStats, Effect, Event, HostFacts, Hosts, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::wal::{self, Durability, Operation};

use super::dialogue::{Book, Dialogue};
use super::log_decoder;
use super::made_log::{BEGIN, Files, begin, carry_out, jobs_of};

/// Of a log: room for a job of the usual largest size.
const SEGMENT_BYTES: u64 = 128 * 1024;

/// A server with its connections.
pub struct Driver {
    pub server: Server,
    pub now: Time,
    pub ends: Vec<End>,
    pub book: Book,
    numbers: BTreeMap<u64, usize>,
    disk: Option<Disk>,
}

/// The disk of a server with a log.
#[derive(Default)]
struct Disk {
    files: Files,
    under_way: VecDeque<Operation>,
}

/// One connection, from both sides.
pub struct End {
    conn: ConnId,
    pub dialogue: Dialogue,
    /// Sent by the client, and not received.
    pub on_its_way: Vec<u8>,
    /// The client takes what it is sent.
    pub reads: bool,
    /// The client sends nothing more.
    has_ended: bool,
    /// The client has broken the connection.
    pub is_broken: bool,
    told_ending: bool,
    told_ended: bool,
    is_paused: bool,
    wants_send: bool,
    /// A send that the kernel has been given.
    flight: Option<Flight>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Open,
    /// The server wants it closed.
    Closing,
    Closed,
}

/// What was shown, and where it was in memory.
struct Flight {
    bytes: Vec<u8>,
    places: Vec<(*const u8, usize)>,
}

impl Driver {
    /// With a log if a durability is given.
    pub fn new(max_job_bytes: u32, durability: Option<Durability>) -> Self {
        let mut engine = Engine::new(0);
        let mut disk = None;
        let log = durability.map(|durability| {
            let (log, files) = begin(wal::Config { durability, segment_bytes: SEGMENT_BYTES }, &mut engine);
            disk = Some(Disk { files, ..Disk::default() });
            log
        });
        let job_bytes_logged = disk.as_ref().map(|_| SEGMENT_BYTES as usize);
        Self {
            server: Server::with_log(config(max_job_bytes), engine, log),
            now: BEGIN,
            ends: Vec::new(),
            book: Book::new(max_job_bytes, job_bytes_logged),
            numbers: BTreeMap::new(),
            disk,
        }
    }

    pub fn connect(&mut self) -> usize {
        let conn = self.server.accept(Protocol::Beanstalk);
        let before = self.numbers.insert(conn.to_u64(), self.ends.len());
        assert!(before.is_none(), "the name of a connection is new");
        self.ends.push(End {
            conn,
            dialogue: Dialogue::new(),
            on_its_way: Vec::new(),
            reads: true,
            has_ended: false,
            is_broken: false,
            told_ending: false,
            told_ended: false,
            is_paused: false,
            wants_send: false,
            flight: None,
            stage: Stage::Open,
        });
        self.carry_out();
        self.ends.len() - 1
    }

    /// The client sends.
    pub fn send(&mut self, at: usize, bytes: &[u8]) {
        let end = &mut self.ends[at];
        if !end.has_ended && !end.is_broken {
            end.on_its_way.extend_from_slice(bytes);
        }
    }

    pub fn half_close(&mut self, at: usize) {
        self.ends[at].has_ended = true;
        self.tell_end(at);
    }

    pub fn hang_up(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if end.stage != Stage::Closed && !end.is_broken {
            end.is_broken = true;
            let conn = end.conn;
            self.handle(Event::HungUp { conn });
        }
    }

    /// Receives up to so many bytes, straight to where a body belongs if that is wanted and possible.
    pub fn receive(&mut self, at: usize, count: usize, directly: bool) -> bool {
        let end = &mut self.ends[at];
        let count = count.min(end.on_its_way.len());
        if end.stage != Stage::Open || end.is_broken || end.is_paused || count == 0 {
            return false;
        }
        let conn = end.conn;
        let mut piece: Vec<u8> = end.on_its_way.drain(..count).collect();
        let mut place = None;
        if directly && let Some(direct) = self.server.direct(conn) {
            let length = piece.len().min(direct.len());
            direct[..length].copy_from_slice(&piece[..length]);
            place = Some(length);
        }
        if let Some(length) = place {
            // The rest comes with the next receive.
            let rest = piece.split_off(length);
            self.ends[at].on_its_way.splice(..0, rest);
        }
        self.ends[at].dialogue.server_received(&piece, &mut self.book);
        self.handle(match place {
            Some(bytes) => Event::ReceivedDirect { conn, bytes },
            None => Event::Received { conn, bytes: &piece },
        });
        self.tell_end(at);
        true
    }

    fn tell_end(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let conn = end.conn;
        if !end.has_ended || end.stage != Stage::Open || end.is_broken {
            return false;
        }
        if end.on_its_way.is_empty() && !end.told_ended {
            (end.told_ending, end.told_ended) = (true, true);
            self.handle(Event::InputEnded { conn });
            return true;
        }
        if end.is_paused && !end.told_ending {
            end.told_ending = true;
            self.handle(Event::InputEnding { conn });
            return true;
        }
        false
    }

    /// Gives the kernel what there is to send.
    pub fn begin_send(&mut self, at: usize) -> bool {
        let Self { server, ends, .. } = self;
        let end = &mut ends[at];
        if !end.wants_send || end.flight.is_some() || end.stage != Stage::Open || end.is_broken || !end.reads
        {
            return false;
        }
        let flight = Flight::of(server, end.conn);
        if flight.bytes.is_empty() {
            end.wants_send = false;
            return false;
        }
        end.flight = Some(flight);
        true
    }

    /// The kernel has sent up to so many bytes of it.
    pub fn end_send(&mut self, at: usize, count: usize) -> bool {
        let end = &mut self.ends[at];
        let Some(flight) = end.flight.take() else { return false };
        let conn = end.conn;
        flight.assert_unchanged(&mut self.server, conn);
        let end = &mut self.ends[at];
        let count = count.clamp(1, flight.bytes.len());
        if !end.is_broken {
            let may_time_out = end.told_ending;
            end.dialogue.client_received(&flight.bytes[..count], may_time_out, &mut self.book);
        }
        self.handle(Event::Sent { conn, bytes: count });
        true
    }

    /// Closes what the server wants closed, when the kernel is done with it.
    pub fn close(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        if end.stage != Stage::Closing {
            return false;
        }
        if let Some(flight) = self.ends[at].flight.take() {
            let conn = self.ends[at].conn;
            flight.assert_unchanged(&mut self.server, conn);
        }
        let end = &mut self.ends[at];
        end.stage = Stage::Closed;
        let conn = end.conn;
        self.handle(Event::Closed { conn });
        true
    }

    /// The disk has done one of the things that it was told.
    pub fn end_disk(&mut self, at: usize) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let Some(operation) = disk.under_way.remove(at % disk.under_way.len().max(1)) else { return false };
        let outcome = carry_out(operation, &mut disk.files);
        self.handle(Event::Disk(outcome));
        true
    }

    /// Asserts that a server that is killed now comes back with all jobs that clients know of.
    pub fn check_files(&self) {
        if let Some(disk) = &self.disk {
            let (jobs, next_id) = log_decoder::read(&disk.files, self.now);
            self.book.check_kept(&jobs, next_id);
        }
    }

    pub fn drain(&mut self) {
        self.book.is_draining = true;
        self.handle(Event::Drain);
    }

    pub fn turn(&mut self) {
        self.server.turn(self.now);
        self.carry_out();
    }

    /// Time passes, and nobody looks at the clock meanwhile.
    pub fn pass(&mut self, span: Span) {
        self.now = self.now + span;
    }

    /// Everything goes its way until nothing is left to be done now.
    pub fn settle(&mut self) {
        let mut quiet_rounds = 0;
        for round in 0.. {
            assert!(round < 100_000, "there is always something to do");
            let mut goes_on = false;
            for at in 0..self.ends.len() {
                goes_on |= self.receive(at, usize::MAX, true);
                goes_on |= self.tell_end(at);
                goes_on |= self.begin_send(at);
                goes_on |= self.end_send(at, usize::MAX);
                goes_on |= self.close(at);
            }
            goes_on |= self.end_disk(0);
            self.turn();
            goes_on |= self.server.next_deadline().is_some_and(|deadline| deadline <= self.now);
            quiet_rounds = if goes_on { 0 } else { quiet_rounds + 1 };
            // What the last turn has asked for shows in the round behind it.
            if quiet_rounds == 2 {
                break;
            }
        }
    }

    /// Everybody leaves after the last reply.
    pub fn finish(&mut self) {
        self.ends.iter_mut().for_each(|end| end.reads = true);
        self.settle();
        for end in self.ends.iter().filter(|end| end.stage == Stage::Open && !end.is_broken) {
            end.dialogue.check_answered(!end.told_ending);
        }
        for at in 0..self.ends.len() {
            self.half_close(at);
        }
        self.settle();
        for end in &self.ends {
            assert_eq!(end.stage, Stage::Closed, "a connection without input ends");
            if !end.is_broken {
                end.dialogue.check_answered(false);
            }
        }
        if let Some(disk) = &self.disk {
            let (jobs, _) = log_decoder::read(&disk.files, self.now);
            assert_eq!(jobs, jobs_of(self.server.engine()), "the log has what is in the queue");
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        self.server.handle(self.now, event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            let conn = match effect {
                Effect::Send(conn) | Effect::Pause(conn) | Effect::Resume(conn) | Effect::Close(conn) => conn,
                Effect::SampleStats => {
                    self.server.handle(self.now, Event::StatsSampled(DriverStats::default()));
                    continue;
                }
                Effect::Disk => {
                    self.begin_disk();
                    continue;
                }
                Effect::Fail => panic!("nothing breaks"),
            };
            let end = &mut self.ends[self.numbers[&conn.to_u64()]];
            assert_eq!(end.stage, Stage::Open, "closing is the last effect");
            match effect {
                Effect::Send(_) => end.wants_send = true,
                Effect::Pause(_) => end.is_paused = true,
                Effect::Resume(_) => end.is_paused = false,
                _ => (end.stage, end.wants_send) = (Stage::Closing, false),
            }
        }
    }

    fn begin_disk(&mut self) {
        let disk = self.disk.as_mut().expect("only a log asks for the disk");
        while let Some(operation) = self.server.disk(self.now) {
            disk.under_way.push_back(operation);
        }
        assert!(disk.under_way.len() <= 3, "one of each kind is under way");
    }
}

impl Flight {
    fn of(server: &mut Server, conn: ConnId) -> Self {
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        server.outgoing(conn, &mut slices);
        Self {
            bytes: slices.iter().flat_map(|slice| slice.iter().copied()).collect(),
            places: slices.iter().map(|slice| (slice.as_ptr(), slice.len())).collect(),
        }
    }

    /// What was shown is still there, and at its place.
    fn assert_unchanged(&self, server: &mut Server, conn: ConnId) {
        let now = Self::of(server, conn);
        assert!(now.bytes.starts_with(&self.bytes), "what is being sent has changed");
        let is_there =
            |(&(before, length), &(now, now_length)): (&(*const u8, usize), &(*const u8, usize))| {
                before == now && length <= now_length
            };
        let is_kept =
            self.places.len() <= now.places.len() && self.places.iter().zip(&now.places).all(is_there);
        assert!(is_kept, "what is being sent has moved");
    }
}

pub fn config(max_job_bytes: u32) -> Config {
    Config {
        max_job_bytes,
        max_memory_bytes: None,
        max_connections: None,
        max_tubes: None,
        max_watches: None,
        log_file_bytes: LOG_FILE_BYTES_DEFAULT,
        allow_foreign_requests: false,
        http_hosts: Hosts::any(),
        metrics_prefix: METRICS_PREFIX_DEFAULT.to_owned(),
        started: Time::ZERO,
        seed: 0,
        host: HostFacts {
            pid: 1,
            version: "1".to_owned(),
            id: "0123456789abcdef".to_owned(),
            hostname: "host".to_owned(),
            os: "#1".to_owned(),
            platform: "x86_64".to_owned(),
            driver: "fuzz",
            memory_bytes: 0,
        },
    }
}
