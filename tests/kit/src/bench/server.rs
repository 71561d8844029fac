//! The server without a kernel, from received bytes to sent bytes. What its job log writes is durable at once, and nowhere.

use std::io::IoSlice;

use beanring::io::wal_files::recover;
use beanring::queue::Engine;
use beanring::server::{Effect, Entry, Event, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::values::ids::ConnId;
use beanring::values::limits::JOB_BYTES_DEFAULT;
use beanring::wal::{Destination, DiskOperation, DiskOutcome, Durability, LogReply, LogRequest, WalConfig};

use crate::config::config;
use crate::disk::Disk;

const SEGMENT_BYTES: u64 = 10 * 1024 * 1024;

/// A server with its driver and its clock.
pub struct Rig {
    server: Server,
    now: Time,
    replies: Vec<u8>,
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

impl Rig {
    /// A server without a job log.
    pub fn new() -> Self {
        Self::with(Server::new(config(JOB_BYTES_DEFAULT)))
    }

    /// A server whose replies wait until the job log is durable.
    pub fn durable() -> Self {
        let mut engine = Engine::new(0);
        let disk = Disk::new(usize::MAX, false);
        let wal_config = WalConfig {
            durability: Durability::Always,
            segment_bytes: SEGMENT_BYTES,
            destination: Destination::Directory,
            keep_reservations: false,
        };
        let wal = recover(&disk, wal_config, &mut engine, Time::ZERO).expect("the disk is empty");
        Self::with(Server::with_wal(config(JOB_BYTES_DEFAULT), engine, Some(wal)))
    }

    fn with(server: Server) -> Self {
        Self { server, now: Time::from_nanos(1_000_000_000_000), replies: Vec::new() }
    }

    /// Opens a connection that uses and watches `default`.
    pub fn connect(&mut self) -> ConnId {
        self.server.accept(self.now, Protocol::Beanstalk, Entry::Plain(None))
    }

    /// Opens a connection that uses and watches only this tube.
    pub fn connect_to(&mut self, tube: &str) -> ConnId {
        let conn = self.connect();
        self.turn(conn, format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n").as_bytes());
        conn
    }

    /// Runs the event-loop iteration of a connection that has sent this, and further ones while work is left. Returns what the
    /// connection receives. A microsecond passes.
    pub fn turn(&mut self, conn: ConnId, input: &[u8]) -> &[u8] {
        self.now = self.now + Span::from_nanos(1000);
        self.replies.clear();
        self.server.handle(self.now, Event::Received { conn, bytes: input });
        self.carry_out(conn);
        loop {
            self.server.turn(self.now);
            self.carry_out(conn);
            if self.server.next_deadline().is_none_or(|at| at > self.now) {
                return &self.replies;
            }
        }
    }

    /// As [`turn`](Self::turn), and asserts how the replies begin.
    pub fn expect(&mut self, conn: ConnId, input: &[u8], begin: &[u8]) {
        let replies = self.turn(conn, input);
        assert!(replies.starts_with(begin), "{}", replies.escape_ascii());
    }

    fn carry_out(&mut self, conn: ConnId) {
        while let Some(effect) = self.server.poll_effect() {
            if effect == Effect::Log {
                while let Some(LogRequest::Files(operation)) = self.server.poll_log_request(self.now) {
                    self.server.handle(self.now, Event::Log(LogReply::Files(success(operation))));
                }
            } else {
                assert_eq!(effect, Effect::Send(conn));
                self.send(conn);
            }
        }
    }

    fn send(&mut self, conn: ConnId) {
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        self.server.outgoing(conn, &mut slices);
        slices.iter().for_each(|slice| self.replies.extend_from_slice(slice));
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        self.server.handle(self.now, Event::Sent { conn, bytes });
    }
}

/// Ends an operation of the job log without carrying it out.
fn success(operation: DiskOperation) -> DiskOutcome {
    match operation {
        DiskOperation::Write { batch, .. } => DiskOutcome::Written(batch, Ok(())),
        DiskOperation::Sync(_) => DiskOutcome::Synced(Ok(())),
        DiskOperation::Arrange(arrangement) => DiskOutcome::Arranged(arrangement, Ok(())),
    }
}
