//! Servers, clients, clocks and connections around the database. Everything that happens is an event at a point of true time.

mod clients;
mod faults;
mod processes;
mod requests;

use std::collections::{BTreeMap, BTreeSet};

pub use self::faults::Fault;
use beanring::server::{Effect, Server, ServerRole, Service, Status};
use beanring::time::Time;
use beanring::wal::LogRequest;
use beanring::wal::replica::{ChunkHeader, DatabaseReply, Kind, Request};
use beanring_testkit::connection::Connection;
use beanring_testkit::random::Random;

use super::checker::{Checker, Command};
use super::database::{Node, Process};

pub const MS: u64 = 1_000_000;
/// Clocks of servers begin here, with an offset.
const CLOCK_BEGIN: u64 = 1_000_000_000_000_000;
/// Iterations of a server for which there is no reason outside of it.
const SPINS_MAX: u32 = 300;
/// How many times less often clients send something while the servers only wait.
const CALM: u64 = 15;

/// The fixed parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub seed: u64,
    pub servers: usize,
    /// Reads find what a transaction did only after its wait for the replication.
    pub hides: bool,
    /// How far the clocks of two servers are apart at the beginning.
    pub clocks_apart_ms: u64,
    /// The shortest lease of a server.
    pub lease_ms: u32,
    /// Servers may have longer leases than others.
    pub leases_differ: bool,
    pub segment_bytes: u64,
    pub body_bytes_max: usize,
    /// How long faults occur.
    pub span_ms: u64,
    /// Which faults may occur, by their numbers.
    pub faults: u32,
    /// The average time between two faults.
    pub fault_every_ms: u64,
    pub command_every_ms: u64,
    /// Most commands change nothing: a leader that has been superseded does not notice by an append.
    pub reads: bool,
}

enum Happening {
    Arrive(u64),
    /// The network has repeated a request.
    ArriveAgain(Process, usize, Request),
    Answer(u64, DatabaseReply),
    Replicate(usize),
    Unlock(usize, u64, Process),
    Wake(Process),
    Resume(Process),
    Reconnect(Process),
    Start(usize),
    EndOfCut(usize),
    LeaveOldPrimary(Process),
    Stop(Process),
    Kill(Process),
    Deliver(Process, usize),
    Transmit(Process, usize),
    Commands,
    Fault,
    EndOfFull,
    EndOfStall,
}

/// A request in flight.
struct InFlight {
    process: Process,
    node: usize,
    link: u64,
    request: Request,
    sent_at: u64,
    is_answered: bool,
    /// The number of changes that must be replicated first.
    waits_for: Option<(u64, DatabaseReply)>,
}

/// What one server, its process and its driver are.
#[derive(Default)]
struct Host {
    server: Option<Server>,
    life: u64,
    token: u64,
    lease_ms: u32,
    offset: u64,
    rate_ppm: i64,
    paused_at: Option<u64>,
    /// Happenings during a pause, in their order.
    backlog: Vec<Happening>,
    /// The time of an iteration whose effects are not all carried out, by its clock and truly.
    iteration: (Time, u64),
    has_effects: bool,
    connections: Vec<(Connection, Client)>,
    /// The node of its session with the database, unless it is cut off.
    node: Option<usize>,
    link: u64,
    is_cut: bool,
    /// Requests that wait for a session.
    queued: Vec<u64>,
    /// The epoch whose lock it holds.
    held: Option<u64>,
    /// Until when replies may leave.
    bound: u64,
    /// Until when they could, if the replies to all requests that were carried out arrived.
    bound_max: u64,
    is_stopping: bool,
    was_serving: bool,
    spins: u32,
    wake_at: Option<u64>,
    /// The last position that it has read.
    read_upto: u64,
}

/// The other end of a connection.
#[derive(Default)]
struct Client {
    number: usize,
    commands: std::collections::VecDeque<Command>,
    received: Vec<u8>,
    holds: Vec<u64>,
    is_gone: bool,
}

/// A chunk that was changed or removed.
struct Broken {
    position: u64,
    chunk: Option<bytes::Bytes>,
    /// Processes that have read past it.
    know: Vec<Process>,
}

pub struct World {
    pub setting: Setting,
    pub random: Random,
    pub now: u64,
    happenings: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    hosts: Vec<Host>,
    nodes: Vec<Node>,
    requests: BTreeMap<u64, InFlight>,
    next_request: u64,
    pub checker: Checker,
    clients: usize,
    puts: u64,
    is_stalled: bool,
    /// No fault occurs any more.
    is_healed: bool,
    /// The servers only wait: clients send little.
    is_calm: bool,
    /// Clients send nothing any more.
    is_quiet: bool,
    is_replicating: Vec<bool>,
    broken: Option<Broken>,
    /// The leader of each epoch.
    leaders: BTreeMap<u64, Process>,
    /// The servers that have led since the checker has seen the last leader, and that one.
    led: BTreeSet<usize>,
    /// Epochs whose leader was without its lock for a time.
    unlocked: BTreeSet<u64>,
    pub leads: u64,
    pub trace: bool,
}

impl World {
    pub fn new(setting: Setting) -> Self {
        let mut random = Random::new(setting.seed ^ 0x7265_706c);
        let hosts = (0..setting.servers)
            .map(|_| Host {
                lease_ms: setting.lease_ms * if setting.leases_differ { random.pick(&[1, 2, 4]) } else { 1 },
                offset: random.below_u64(setting.clocks_apart_ms * MS),
                rate_ppm: random.below_u64(100_001) as i64 - 50_000,
                ..Host::default()
            })
            .collect();
        let mut world = Self {
            setting,
            random,
            now: 0,
            happenings: BTreeMap::new(),
            sequence: 0,
            hosts,
            nodes: vec![Node::new(setting.hides)],
            requests: BTreeMap::new(),
            next_request: 0,
            checker: Checker::default(),
            clients: 0,
            puts: 0,
            is_stalled: false,
            is_healed: false,
            is_calm: false,
            is_quiet: false,
            is_replicating: vec![false],
            broken: None,
            leaders: BTreeMap::new(),
            unlocked: BTreeSet::new(),
            led: BTreeSet::new(),
            leads: 0,
            trace: std::env::var_os("BEANRING_TEST_TRACE").is_some(),
        };
        for host in 0..setting.servers {
            let at = world.random.below_u64(200 * MS);
            world.plan(at, Happening::Start(host));
        }
        world.plan(10 * MS, Happening::Commands);
        world.plan(200 * MS, Happening::Fault);
        world
    }

    fn plan(&mut self, at: u64, happening: Happening) {
        self.sequence += 1;
        self.happenings.insert((at.max(self.now), self.sequence), happening);
    }

    fn after(&mut self, span: u64, happening: Happening) {
        self.plan(self.now + span, happening);
    }

    /// Plans something at a random time before this one.
    fn within(&mut self, most: u64, happening: Happening) {
        let span = self.random.below_u64(most);
        self.after(span, happening);
    }

    /// A time that is mostly short.
    fn delay(&mut self) -> u64 {
        match self.random.below(20) {
            0 => self.random.below_u64(30 * MS),
            1 if !self.is_healed => self.random.below_u64(300 * MS),
            _ => self.random.below_u64(2 * MS),
        }
    }

    fn allows(&self, fault: Fault) -> bool {
        !self.is_healed && self.setting.faults & fault.bit() != 0
    }

    /// Whether a fault of this kind happens to one of `bound` requests.
    fn strikes(&mut self, fault: Fault, bound: u64) -> bool {
        self.allows(fault) && self.random.one_in(bound)
    }

    /// The servers that lead, as far as they know.
    fn leaders(&self) -> Vec<usize> {
        let leads = |server: &Server| server.status().role == ServerRole::Serving;
        (0..self.hosts.len()).filter(|&host| self.hosts[host].server.as_ref().is_some_and(leads)).collect()
    }

    fn primary(&self) -> usize {
        self.nodes.len() - 1
    }

    fn is_alive(&self, process: Process) -> bool {
        let host = &self.hosts[process.0];
        host.life == process.1 && host.server.is_some()
    }

    fn process(&self, host: usize) -> Process {
        (host, self.hosts[host].life)
    }

    fn clock(&self, host: usize, at: u64) -> Time {
        let Host { offset, rate_ppm, .. } = self.hosts[host];
        let run = at as i128 * (1_000_000 + i128::from(rate_ppm)) / 1_000_000;
        Time::from_nanos(CLOCK_BEGIN + offset + run as u64)
    }

    /// When the clock of a host shows this time.
    fn true_time(&self, host: usize, at: Time) -> u64 {
        let Host { offset, rate_ppm, .. } = self.hosts[host];
        let run = i128::from(at.as_nanos()) - i128::from(CLOCK_BEGIN + offset);
        (run.max(0) * 1_000_000 / (1_000_000 + i128::from(rate_ppm))) as u64 + 1
    }

    /// The longest lease of a server.
    fn lease_ns(&self) -> u64 {
        let leases = self.hosts.iter().map(|host| u64::from(host.lease_ms) * MS);
        leases.max().expect("there are servers")
    }

    /// The longest time of a lease of a server by its clock.
    fn lease_with_drift(&self, host: usize) -> u64 {
        u64::from(self.hosts[host].lease_ms) * MS / 1000 * 1053
    }

    /// Whether no epoch has begun after that of this server.
    fn is_current(&self, host: usize) -> bool {
        // A process adds the number of its claim to its token.
        let leader = self.nodes[self.primary()].visible.leader.token;
        (self.hosts[host].token..self.hosts[host].token + 1000).contains(&leader)
    }

    /// Whether the leader has said that it leaves.
    fn has_left(&self, node: usize) -> bool {
        let last = self.nodes[node].visible.chunks.last_key_value();
        last.and_then(|(_, chunk)| ChunkHeader::decode(chunk).ok())
            .is_some_and(|(header, _)| header.kind == Kind::Farewell)
    }

    /// Whether the log has a damaged chunk that a process has not read past before.
    fn is_unread(&self, process: Process) -> bool {
        let state = &self.nodes[self.primary()].visible;
        self.broken.as_ref().is_some_and(|broken| {
            let is_there =
                state.begin <= broken.position && state.chunks.get(&broken.position) == broken.chunk.as_ref();
            is_there && !broken.know.contains(&process)
        })
    }

    /// An epoch is ended because its leader was silent: then the lease of that one is over.
    fn check_silence(&self, epoch: u64) {
        let Some(&leader) = self.leaders.get(&epoch).filter(|_| !self.unlocked.contains(&epoch)) else {
            return;
        };
        let Host { life, bound_max, .. } = self.hosts[leader.0];
        assert!(
            life != leader.1 || bound_max <= self.now,
            "epoch {epoch} is ended {} us before the lease of its leader",
            (bound_max - self.now) / 1000
        );
    }

    pub fn log(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3} {}", self.now as f64 / MS as f64, text());
        }
    }

    /// Runs until this time.
    pub fn run_until(&mut self, until: u64) {
        while let Some(entry) = self.happenings.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((at, _), happening) = entry.remove_entry();
            self.now = at;
            self.happen(happening);
        }
        self.now = until;
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive(id) => self.arrive(id),
            Happening::ArriveAgain(process, node, request) => self.arrive_again(process, node, request),
            Happening::Answer(id, reply) => self.answer(id, reply),
            Happening::Replicate(node) => self.replicate(node),
            Happening::Unlock(node, epoch, process) => {
                if self.nodes[node].locks.get(&epoch) == Some(&process) {
                    self.unlocked.insert(epoch);
                    self.nodes[node].locks.remove(&epoch);
                    self.end_watches();
                }
            }
            Happening::Resume(process) => self.resume(process),
            Happening::Reconnect(process) => self.reconnect(process),
            Happening::Start(host) => self.start(host),
            Happening::EndOfCut(host) => {
                self.hosts[host].is_cut = false;
                let process = self.process(host);
                self.reconnect(process);
            }
            Happening::LeaveOldPrimary(process) => {
                let primary = self.primary();
                let (host, _) = process;
                if self.is_alive(process) && self.hosts[host].node.is_some_and(|node| node != primary) {
                    self.drop_session(host, 0);
                    self.within(100 * MS, Happening::Reconnect(process));
                }
            }
            Happening::Kill(process) => {
                if self.is_alive(process) {
                    self.end_process(process.0, 20 * MS);
                    self.start_later(process.0);
                }
            }
            Happening::Commands => {
                let every_ms = self.setting.command_every_ms * if self.is_calm { CALM } else { 1 };
                self.within(2 * every_ms * MS, Happening::Commands);
                if !self.is_quiet {
                    self.commands();
                }
            }
            Happening::Fault => {
                self.within(2 * self.setting.fault_every_ms * MS, Happening::Fault);
                if !self.is_healed {
                    self.fault();
                }
            }
            Happening::EndOfFull => self.nodes.iter_mut().for_each(|node| node.is_full = false),
            Happening::EndOfStall => self.is_stalled = false,
            Happening::Wake(process)
            | Happening::Stop(process)
            | Happening::Deliver(process, _)
            | Happening::Transmit(process, _) => {
                self.reach(process, happening);
            }
        }
    }

    /// Something happens to a process, unless it is paused.
    fn reach(&mut self, process: Process, happening: Happening) {
        if !self.is_alive(process) {
            return;
        }
        if self.hosts[process.0].paused_at.is_some() {
            return self.hosts[process.0].backlog.push(happening);
        }
        let now = self.now;
        self.iterate(process.0, happening, now);
    }

    /// One event-loop iteration. The clock was read at the time `read_at`.
    fn iterate(&mut self, host: usize, happening: Happening, read_at: u64) {
        let now = self.clock(host, read_at);
        self.hosts[host].iteration = (now, read_at);
        if let Some(server) = &mut self.hosts[host].server
            && server.next_deadline().is_some_and(|deadline| deadline <= now)
        {
            // A late driver does this before it reports events.
            server.turn(now);
        }
        match happening {
            Happening::Answer(id, reply) => self.take_reply(host, id, reply, now),
            Happening::Deliver(_, connection) => self.deliver(host, connection, now),
            Happening::Transmit(_, connection) => self.transmit(host, connection),
            Happening::Wake(_) => self.hosts[host].wake_at = None,
            Happening::Stop(_) => self.send_stop(host),
            _ => unreachable!("it does not happen to a process"),
        }
        if self.hosts[host].server.is_some() {
            self.carry_out(host, true);
        }
    }

    /// Carries out the effects, then runs the turn of the iteration and its effects.
    fn carry_out(&mut self, host: usize, mut has_turn: bool) {
        let (now, _) = self.hosts[host].iteration;
        loop {
            if self.random.one_in(400) && self.allows(Fault::Pause) {
                self.pause(host, true);
                return;
            }
            let Some(server) = &mut self.hosts[host].server else { return };
            let Some(effect) = server.poll_effect() else {
                if !std::mem::take(&mut has_turn) {
                    break;
                }
                server.turn(now);
                continue;
            };
            self.effect(host, effect, now);
        }
        self.after_iteration(host);
    }

    fn after_iteration(&mut self, host: usize) {
        let Some(server) = &self.hosts[host].server else { return };
        match server.status().role {
            ServerRole::Ended(end) => {
                self.log(|| format!("server {host} has ended: {end}"));
                self.end_process(host, 5 * MS);
                let at = self.now + self.random.below_u64(20 * MS);
                return self.plan(at, Happening::Start(host));
            }
            ServerRole::Serving if !self.hosts[host].was_serving => {
                self.hosts[host].was_serving = true;
                self.log(|| format!("server {host} leads"));
                // A process may learn that it leads after another one has replaced it.
                self.led.insert(host);
                if self.is_current(host) {
                    self.leads += 1;
                    let before =
                        self.led.iter().map(|&led| self.clock(led, self.now)).max().expect("one leads");
                    self.led = BTreeSet::from([host]);
                    let Host { server, iteration, .. } = &self.hosts[host];
                    self.checker.leads(server.as_ref().expect("it runs").engine(), iteration.0, before);
                }
            }
            _ => {}
        }
        let server = self.hosts[host].server.as_ref().expect("it runs");
        // It ends also without the database.
        let Status { is_settled, failure, .. } = server.status();
        if self.hosts[host].is_stopping && (is_settled || failure.is_some()) {
            self.log(|| format!("server {host} has stopped"));
            self.end_process(host, 5 * MS);
            return self.start_later(host);
        }
        let Some(deadline) = server.next_deadline() else { return };
        let at = self.true_time(host, deadline);
        if at <= self.now {
            self.hosts[host].spins += 1;
            assert!(
                self.hosts[host].spins < SPINS_MAX,
                "server {host} always has work and makes no progress at {} ms",
                self.now / MS
            );
        } else {
            self.hosts[host].spins = 0;
        }
        let at = at.max(self.now + 1000);
        if self.hosts[host].wake_at.is_none_or(|wake| at < wake) {
            self.hosts[host].wake_at = Some(at);
            let process = self.process(host);
            self.plan(at, Happening::Wake(process));
        }
    }

    fn effect(&mut self, host: usize, effect: Effect, now: Time) {
        match effect {
            Effect::Log => {
                while let Some(asked) =
                    self.hosts[host].server.as_mut().and_then(|server| server.poll_log_request(now))
                {
                    let LogRequest::Database(request) = asked else { panic!("{asked:?}") };
                    self.begin(host, *request);
                    if self.random.one_in(400) && self.allows(Fault::Pause) {
                        return self.pause(host, true);
                    }
                }
            }
            Effect::Send(conn) => {
                let index = self.connection(host, conn);
                self.hosts[host].connections[index].0.apply(&effect);
                let process = self.process(host);
                if self.random.one_in(10) {
                    self.within(50 * MS, Happening::Transmit(process, index));
                } else {
                    self.transmit(host, index);
                }
            }
            Effect::Pause(conn) | Effect::Resume(conn) | Effect::Close(conn) => {
                let index = self.connection(host, conn);
                let Host { connections, server, .. } = &mut self.hosts[host];
                let server = server.as_mut().expect("it runs");
                connections[index].0.apply(&effect);
                connections[index].0.close(server, now);
                if matches!(effect, Effect::Resume(_)) {
                    let process = self.process(host);
                    self.after(0, Happening::Deliver(process, index));
                }
            }
            Effect::LogClient(..) | Effect::Fail => {}
        }
    }

    fn connection(&self, host: usize, conn: beanring::values::ids::ConnId) -> usize {
        let connections = &self.hosts[host].connections;
        connections.iter().rposition(|(connection, _)| connection.conn == conn).expect("it is connected")
    }
}
