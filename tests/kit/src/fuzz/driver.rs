//! A driver without a kernel. It does one thing at a time, as the input directs, and checks what drivers rely on.

use std::collections::{BTreeMap, VecDeque};

use beanring::queue::Engine;
use beanring::server::{Config, Effect, Entry, Event, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::wal::{self, DiskOperation, Durability, LogReply, LogRequest};

use super::super::config::config;
use super::super::connection::{Connection, ConnectionState, outgoing};
use super::dialogue::{Book, Dialogue};
use super::log_decoder;
use super::made_log::{BEGIN, Files, begin, carry_out, jobs_of, kept_keys_of};

/// Segments hold a job of the default size limit.
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

/// The disk of a server with a job log.
#[derive(Default)]
struct Disk {
    files: Files,
    under_way: VecDeque<DiskOperation>,
}

/// One connection, from both sides.
pub struct End {
    connection: Connection,
    pub dialogue: Dialogue,
    /// The client receives.
    pub reads: bool,
    /// The client has reset the connection.
    pub is_broken: bool,
    /// The server has closed it before all replies were sent.
    is_cut: bool,
}

impl End {
    /// Returns whether the driver may still receive and send on this connection.
    fn is_usable(&self) -> bool {
        self.connection.is_open() && !self.is_broken
    }
}

impl Driver {
    /// Creates a server, with a job log if a durability is given.
    pub fn new(max_job_bytes: u32, durability: Option<Durability>) -> Self {
        let mut engine = Engine::new(0);
        let mut disk = None;
        let log = durability.map(|durability| {
            let (log, files) = begin(
                wal::WalConfig {
                    durability,
                    segment_bytes: SEGMENT_BYTES,
                    destination: wal::Destination::Directory,
                    keep_reservations: false,
                },
                &mut engine,
            );
            disk = Some(Disk { files, ..Disk::default() });
            log
        });
        let job_bytes_logged = disk.as_ref().map(|_| SEGMENT_BYTES as usize);
        Self {
            server: Server::with_wal(Config { sub_second: true, ..config(max_job_bytes) }, engine, log),
            now: BEGIN,
            ends: Vec::new(),
            book: Book::new(max_job_bytes, job_bytes_logged),
            numbers: BTreeMap::new(),
            disk,
        }
    }

    pub fn connect(&mut self) -> usize {
        let conn = self.server.accept(self.now, Protocol::Beanstalk, Entry::Plain(None));
        let before = self.numbers.insert(conn.to_u64(), self.ends.len());
        assert!(before.is_none(), "the name of a connection is new");
        self.ends.push(End {
            connection: Connection::new(conn),
            dialogue: Dialogue::new(),
            reads: true,
            is_broken: false,
            is_cut: false,
        });
        self.carry_out();
        self.ends.len() - 1
    }

    /// The client sends `bytes`.
    pub fn send(&mut self, at: usize, bytes: &[u8]) {
        let end = &mut self.ends[at];
        if !end.connection.is_half_closed && !end.is_broken {
            end.connection.unreceived.extend_from_slice(bytes);
        }
    }

    pub fn half_close(&mut self, at: usize) {
        self.ends[at].connection.is_half_closed = true;
        self.report_end_of_input(at);
    }

    pub fn hang_up(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if end.connection.state != ConnectionState::Closed && !end.is_broken {
            end.is_broken = true;
            let conn = end.connection.conn;
            self.handle(Event::HungUp { conn });
        }
    }

    /// Receives up to `bytes`; with `direct`, into the place that the server names for a body.
    pub fn receive(&mut self, at: usize, bytes: usize, direct: bool) -> bool {
        let Self { server, ends, book, now, .. } = self;
        let end = &mut ends[at];
        if !end.is_usable() || end.connection.is_paused || end.connection.unreceived.is_empty() || bytes == 0
        {
            return false;
        }
        let received = end.connection.receive(bytes, direct, server, *now);
        end.dialogue.server_received(&received, book);
        self.carry_out();
        self.report_end_of_input(at);
        true
    }

    fn report_end_of_input(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let Some(event) = end.is_usable().then(|| end.connection.end_of_input()).flatten() else {
            return false;
        };
        self.handle(event);
        true
    }

    /// Begins to send what the server shows.
    pub fn begin_send(&mut self, at: usize) -> bool {
        let Self { server, ends, .. } = self;
        let end = &mut ends[at];
        if !end.connection.wants_send || end.connection.is_sending() || !end.is_usable() || !end.reads {
            return false;
        }
        end.connection.begin_send(server);
        end.connection.is_sending()
    }

    /// Ends the send in flight after at most `bytes_max` bytes.
    pub fn end_send(&mut self, at: usize, bytes_max: usize) -> bool {
        let Self { server, ends, book, .. } = self;
        let End { connection, dialogue, is_broken, .. } = &mut ends[at];
        if !connection.is_sending() {
            return false;
        }
        let sent = connection.end_send(bytes_max, server);
        if !*is_broken {
            dialogue.client_received(&sent, connection.has_reported_ending(), book);
        }
        let conn = connection.conn;
        self.handle(Event::Sent { conn, bytes: sent.len() });
        true
    }

    /// Closes the connection if the server wants it closed.
    pub fn close(&mut self, at: usize) -> bool {
        let Self { server, ends, now, .. } = self;
        let connection = &mut ends[at].connection;
        if connection.state != ConnectionState::Closing {
            return false;
        }
        if connection.is_sending() {
            connection.end_send(usize::MAX, server);
        }
        connection.close(server, *now);
        self.carry_out();
        true
    }

    /// Completes one disk operation.
    pub fn end_disk(&mut self, at: usize) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let Some(operation) = disk.under_way.remove(at % disk.under_way.len().max(1)) else { return false };
        let outcome = carry_out(operation, &mut disk.files);
        self.handle(Event::Log(LogReply::Files(outcome)));
        true
    }

    /// Asserts that a server that is killed now recovers all jobs that clients know.
    pub fn check_files(&self) {
        if let Some(disk) = &self.disk {
            let (jobs, _, next_id) = log_decoder::read(&disk.files, self.now);
            self.book.check_kept(&jobs, next_id);
        }
    }

    pub fn drain(&mut self) {
        self.book.is_draining = true;
        self.handle(Event::Drain);
    }

    pub fn iterate(&mut self) {
        self.server.turn(self.now);
        self.carry_out();
    }

    /// Advances the clock without an event-loop iteration.
    pub fn pass(&mut self, span: Span) {
        self.now = self.now + span;
    }

    /// Delivers, sends and completes everything until nothing is left to do now.
    pub fn settle(&mut self) {
        let mut idle_rounds = 0;
        for round in 0.. {
            assert!(round < 100_000, "there is always something to do");
            let mut is_busy = false;
            for at in 0..self.ends.len() {
                is_busy |= self.receive(at, usize::MAX, true);
                is_busy |= self.report_end_of_input(at);
                is_busy |= self.begin_send(at);
                is_busy |= self.end_send(at, usize::MAX);
                is_busy |= self.close(at);
            }
            is_busy |= self.end_disk(0);
            self.iterate();
            is_busy |= self.server.next_deadline().is_some_and(|deadline| deadline <= self.now);
            idle_rounds = if is_busy { 0 } else { idle_rounds + 1 };
            // Effects of the last iteration show in the next round.
            if idle_rounds == 2 {
                break;
            }
        }
    }

    /// Disconnects all clients after their last reply.
    pub fn finish(&mut self) {
        self.ends.iter_mut().for_each(|end| end.reads = true);
        self.settle();
        for end in self.ends.iter().filter(|end| end.is_usable()) {
            end.dialogue.check_answered(!end.connection.has_reported_ending());
        }
        for at in 0..self.ends.len() {
            self.half_close(at);
        }
        self.settle();
        for end in &self.ends {
            assert_eq!(end.connection.state, ConnectionState::Closed, "a connection without input ends");
            if !end.is_broken && !end.is_cut {
                end.dialogue.check_answered(false);
            }
        }
        if let Some(disk) = &self.disk {
            let (jobs, kept_keys, _) = log_decoder::read(&disk.files, self.now);
            let engine = self.server.engine();
            assert_eq!(jobs, jobs_of(engine), "the log has what is in the queue");
            assert_eq!(kept_keys, kept_keys_of(engine), "the log has the kept keys");
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        self.server.handle(self.now, event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Close(conn) => {
                    // The server closes a connection at last that has replies left which its client does not read.
                    let is_cut = !outgoing(&mut self.server, conn).is_empty();
                    let end = &mut self.ends[self.numbers[&conn.to_u64()]];
                    end.is_cut = is_cut;
                    end.connection.apply(&effect);
                }
                Effect::Send(conn) | Effect::Pause(conn) | Effect::Resume(conn) => {
                    self.ends[self.numbers[&conn.to_u64()]].connection.apply(&effect);
                }
                Effect::LogClient(..) => {}
                Effect::Log => self.begin_disk(),
                Effect::Fail => panic!("the disk never fails"),
            }
        }
    }

    fn begin_disk(&mut self) {
        let disk = self.disk.as_mut().expect("only a log asks for the disk");
        while let Some(LogRequest::Files(operation)) = self.server.poll_log_request(self.now) {
            disk.under_way.push_back(operation);
        }
        assert!(disk.under_way.len() <= 3, "one of each kind is under way");
    }
}
