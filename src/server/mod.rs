//! The server without its I/O: events in, effects out, the next deadline.
//!
//! [`Server`] finds the session that an event names, once, and hands it to `Core`, which is everything but the table of
//! sessions.

mod access;
mod beanstalk;
mod check;
mod client_state;
mod closing;
mod commit_gate;
mod config;
mod connections;
mod event;
mod execute;
mod forward_counts;
mod full_disk;
mod http;
mod iteration;
mod log;
mod memory;
mod metric_catalog;
mod metrics;
mod outcome;
mod put_batch;
mod put_refusals;
mod puts;
mod ready;
mod replica;
mod rights;
mod schedules;
mod service;
mod tls_counts;
mod trace;
mod users;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::IoSlice;
use std::rc::Rc;

pub use closing::{ClosingWatch, SendProgress, Standing};
pub use config::{Config, CpuUsage, DriverCounts, DriverStats, HostFacts, ProcessUsage};
pub use event::{ClientAct, Effect, Event};
pub use forward_counts::ForwardCounts;
pub use http::{Hosts, HttpAccess, Origin, Peer, PeerKind, Token};
pub use replica::ServerRole;
pub use rights::rights_needed;
pub use service::{
    Certificate, CertificatePart, CertificatePem, ConnNames, Entry, IoVecs, Priced, Protocol, Service,
    Status, Update, handle,
};
pub use tls_counts::{HandshakeFailure, TlsCounts, increment};
pub use trace::{Observation, Observer};
pub use users::{Grants, Pattern, Rights, User, Users};

use self::access::Access;
use self::beanstalk::Session;
use self::commit_gate::{Buffers, CommitGate};
use self::connections::Connections;
use self::http::HttpShare;
use self::log::Log;
use self::memory::MemoryGauge;
use self::metrics::{Count, Counts, OuterCounts};
use self::put_batch::Batches;
use self::puts::Puts;
use self::ready::Ready;
use self::replica::Replica;
use self::trace::Reporter;
use crate::bodies::Bodies;
use crate::protocol::foreign::Opening;
use crate::queue::Engine;
use crate::time::Time;
use crate::values::account::Account;
use crate::values::budget::{Budget, Cost};
use crate::values::ids::ConnId;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::Rule;
use crate::wal::{Durability, LogReply, LogRequest, Wal};

/// Under `--max-memory`, the share of it that may be kept for reuse while nothing uses it. It bounds how far memory may
/// pass the limit for a moment, when memory of one kind is given back for another.
const MEMORY_KEPT_SHARE: usize = 16;

/// The server. A driver feeds it and carries out its effects: see [`Service`].
pub struct Server {
    core: Core,
    connections: Connections,
}

/// Everything but the table of connections. A command may touch all of it, and its own session.
///
/// A part has private fields, and its methods take what else they touch as arguments. An `impl Core` is for work on several parts.
struct Core {
    config: Config,
    engine: Engine,
    log: Log,
    gate: CommitGate,
    effects: VecDeque<Effect>,
    ready: Ready,
    memory: MemoryGauge,
    buffers: Buffers,
    puts: Puts,
    batches: Batches,
    http: HttpShare,
    access: Access,
    closing: ClosingWatch,
    counts: Counts,
    outer_counts: OuterCounts,
    reporter: Reporter,
}

impl Server {
    /// Returns a server without connections or jobs, which keeps jobs in memory only.
    pub fn new(config: Config) -> Self {
        let engine = Engine::new(config.seed);
        Self::with_wal(config, engine, None)
    }

    /// Returns a server without connections, with the jobs of `engine`, and with the job log that records their changes.
    pub fn with_wal(config: Config, engine: Engine, wal: Option<Wal>) -> Self {
        let mut server = Self::with_engine(config, engine);
        let core = &mut server.core;
        if let Some(wal) = wal {
            core.log.begin(wal, &mut core.engine);
        }
        core.begin_configuring();
        server
    }

    /// A server that records no changes, and whose schedules of the configuration file are still to be put.
    fn with_engine(config: Config, engine: Engine) -> Self {
        let mut core = Core::new(config, engine);
        core.prepare_engine();
        core.count_users();
        core.set_rules(core.config.started);
        Self { core, connections: Connections::default() }
    }

    /// Reports every step from now on to `observer`.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.core.reporter.begin(observer);
    }

    /// Shows these counts of TLS from now on.
    pub fn show_tls(&mut self, counts: Rc<TlsCounts>) {
        self.core.outer_counts.show_tls(counts);
    }

    /// Returns the queue.
    pub fn engine(&self) -> &Engine {
        &self.core.engine
    }

    /// Returns the job log, if there is one.
    pub fn wal(&self) -> Option<&Wal> {
        self.core.log.wal()
    }

    /// Handles an event: see [`handle`].
    #[inline(always)]
    pub fn handle(&mut self, now: Time, event: Event<'_>) {
        handle(self, now, event);
    }

    /// Warns if recovered jobs leave no room for new ones, or if not all of the recovered idempotency keys are kept.
    pub fn warn_of_recovered(&self) {
        self.core.warn_of_recovered();
    }

    /// Returns the memory that jobs, connections and buffers take, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.core.memory_bytes()
    }
}

impl Service for Server {
    type Identity = Infallible;

    fn accept(&mut self, now: Time, protocol: Protocol, entry: Entry) -> ConnId {
        self.budget().charge_arrival(Cost::ACCEPT);
        let Entry::Plain(peer) = entry else { unreachable!("TLS and headers are for a transport") };
        match protocol {
            Protocol::Beanstalk => self.open_client(),
            Protocol::Http => self.open_http(peer, now),
        }
    }

    fn handle_event(&mut self, now: Time, event: Priced<'_>) {
        // It alone is moved: the others would be copied.
        if matches!(event.event(), Event::Log(_)) {
            let Event::Log(reply) = event.into_event() else { unreachable!("it is one") };
            self.log_replied(reply, now);
            return self.deliver_notices(now);
        }
        let event = event.event();
        let Self { core, connections } = self;
        match *event {
            // A standby accepts no jobs by itself, and nobody could end its drain mode.
            Event::Drain => _ = !core.log.is_followed() && core.puts.set_draining(true),
            Event::Stop => core.log.stop(),
            Event::Log(_) => {}
            Event::OuterMemory(bytes) => core.memory.set_outer(bytes),
            Event::SystemClock(system) => self.take_system_time(system, now),
            Event::Peer { conn, peer } => self.admit_http(conn, peer.clone(), now),
            Event::Certified { conn, names } => self.access_by_certificate(conn, names),
            Event::Received { conn, .. }
            | Event::ReceivedDirect { conn, .. }
            | Event::InputEnding { conn }
            | Event::InputEnded { conn }
            | Event::Sent { conn, .. }
            | Event::HungUp { conn }
            | Event::Closed { conn } => {
                core.log.check_lease(&mut core.effects, now);
                if conn.is_http() {
                    return self.handle_http(conn, event, now);
                }
                core.handle_client(connections.client(conn), event, now);
                if matches!(event, Event::Closed { .. }) {
                    self.remove_client(conn);
                }
            }
        }
        self.deliver_notices(now);
    }

    fn update(&mut self, _: Time, update: Update<Infallible>) -> Option<Users> {
        match update {
            Update::Counts(counts) => self.core.outer_counts.show_driver(counts),
            Update::Users(Some(users)) => return self.take_users(users),
            Update::Users(None) => self.core.access.reload_failures += 1,
            Update::Certificate(_) | Update::LinkSecret(_) => {}
        }
        None
    }

    fn turn(&mut self, now: Time) {
        self.iterate(now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.core.effects.pop_front()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.core.next_deadline()
    }

    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]> {
        let Self { core, connections } = self;
        core.direct_place(connections.find(conn)?)
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        let Self { core, connections } = self;
        core.replies_to_send(connections.output(conn), slices);
    }

    fn poll_log_request(&mut self, now: Time) -> Option<LogRequest> {
        let request = self.core.log.next_request(&mut self.core.engine, now);
        let is_in_files = self.core.log.replica().is_none();
        if is_in_files && self.core.log.wal().is_some_and(|wal| wal.failure().is_some()) {
            self.fail(now);
        }
        request
    }

    fn names(&self, conn: ConnId) -> ConnNames<'_> {
        let user = self.connections.user(conn).and_then(|user| user.name.as_deref());
        ConnNames { number: self.connections.number(conn), peer: None, user }
    }

    fn status(&self) -> Status {
        let Core { log, puts, .. } = &self.core;
        Status {
            role: log.role(),
            leader_token: log.replica().and_then(Replica::leader_token),
            is_draining: puts.is_draining(),
            is_settled: log.is_settled() && !self.core.can_release(),
            failure: self.core.failure(),
        }
    }

    #[inline]
    fn budget(&mut self) -> &mut Budget {
        self.core.engine.budget()
    }

    fn account(&self) -> Rc<Account> {
        Rc::clone(self.core.memory.account())
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        Some(self.core.engine.bodies_mut())
    }
}

impl Server {
    /// The place of the job log has answered.
    // Not a part of the function that handles all events, which would get its frame.
    #[inline(never)]
    fn log_replied(&mut self, reply: LogReply, now: Time) {
        match reply {
            LogReply::Files(outcome) => self.disk_completed(outcome, now),
            LogReply::Database(reply) => self.database_replied(*reply, now),
        }
    }

    fn open_client(&mut self) -> ConnId {
        let Self { core, connections } = self;
        let opening = (!core.config.allow_foreign_protocols).then(Opening::new);
        let conn = connections
            .open_client(|conn, number| Session::new(conn, number, core.engine.connect(conn), opening));
        core.counts.add(Count::Connected, 1);
        self.begin_access(conn);
        self.count_tables();
        conn
    }
}

impl Core {
    fn new(config: Config, engine: Engine) -> Self {
        let log = Log::new(engine.jobs().len());
        let access = Access::new(config.users.clone());
        let memory = MemoryGauge::new(config.max_memory_bytes);
        Self {
            config,
            engine,
            log,
            gate: CommitGate::default(),
            effects: VecDeque::new(),
            ready: Ready::default(),
            buffers: Buffers::new(Rc::clone(memory.account())),
            memory,
            puts: Puts::new(),
            batches: Batches::new(),
            http: HttpShare::new(),
            access,
            closing: ClosingWatch::default(),
            counts: Counts::new(),
            outer_counts: OuterCounts::default(),
            reporter: Reporter::default(),
        }
    }

    /// Gives the queue the limits of the configuration.
    fn prepare_engine(&mut self) {
        let Self { config, engine, .. } = self;
        engine.record_changes(false);
        if let Some(max) = config.max_memory_bytes {
            engine.bodies_mut().keep_at_most(max as usize / MEMORY_KEPT_SHARE);
        }
        engine.set_tube_limits(config.tube_limits());
        engine.set_key_share(config.max_memory_bytes);
    }

    /// Sets the rules of tubes of the configuration. A job log does not record them.
    // Bounded by RULED_TUBES_MAX: the rules of the configuration, before the first command.
    fn set_rules(&mut self, now: Time) {
        for (name, rules) in &self.config.tube_rules {
            let tube = TubeName::new(name.as_bytes()).expect("the name was checked");
            for (key, value) in rules.iter() {
                self.engine.restore_rule(
                    tube,
                    Rule::new(tube, key, value).expect("the rule was checked"),
                    now,
                );
            }
        }
    }

    /// Becomes the leader with the jobs that were followed.
    fn lead(&mut self, now: Time) {
        let wal = self.log.lead(&mut self.engine, now);
        self.set_rules(now);
        self.log.begin(wal, &mut self.engine);
        self.begin_configuring();
        self.log.check_lease(&mut self.effects, now);
        self.warn_of_recovered();
    }

    /// Forgets the jobs that were followed. Nothing refers to them: a standby has no clients.
    fn forget_jobs(&mut self) {
        let mut engine = Engine::new(self.config.seed);
        engine.keep_system_clock(&self.engine);
        self.engine = engine;
        self.prepare_engine();
    }

    /// Why the server cannot continue, if it cannot.
    // docs/RUNBOOK.md lists these messages.
    fn failure(&self) -> Option<String> {
        let replica = self.log.replica();
        if let Some(end) = replica.and_then(|replica| replica.end_without_database(&self.gate)) {
            return Some(end);
        }
        let wal = self.log.wal()?;
        let error = wal.failure()?;
        let lost = match wal.durability() {
            Durability::Always => "changes without a reply are lost",
            Durability::Within(_) => {
                "changes without a reply are lost, and with -f MS those since the last sync may be lost"
            }
            Durability::Never => {
                "changes without a reply are lost, and with -F those that are not on disk yet may be lost"
            }
        };
        Some(format!("cannot write the job log: {error}; {lost}"))
    }

    /// Charges for work that is not interrupted.
    #[inline(always)]
    const fn charge(&mut self, cost: Cost) {
        self.engine.budget().charge(cost);
    }

    /// Records in the job log what has happened to the queue.
    #[inline(always)]
    fn record_changes(&mut self, now: Time) {
        self.log.record_changes(&mut self.engine, now);
    }
}
