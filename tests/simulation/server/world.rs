//! A server with simulated clients, network, disk and clock, which performs one action at a time.

use beanring::io::wal_files::{RecoveryError, Storage, recover};
use beanring::queue::Engine;
use beanring::server::{Config, Effect, Entry, Event, Protocol, Server, handle};
use beanring::time::{Span, Time};
use beanring::wal::segment::HEADER_BYTES;
use beanring::wal::{Durability, LogReply, LogRequest, WalConfig, is_full};

use super::action::Action;
use super::checker::Checker;
use super::history::Promise;
use super::observed::Steps;
use beanring_testkit::config::config;
use beanring_testkit::connection::{Connection, ConnectionState};
use beanring_testkit::disk::{Crash, Disk};
#[cfg(feature = "tls")]
use beanring_testkit::in_memory::Cut;
use beanring_testkit::random::Random;
#[cfg(feature = "tls")]
use beanring_testkit::tunnel::Tunnel;
use beanring_testkit::under_test::UnderTest;

pub const SEGMENT_BYTES: u64 = 64 * 1024;
pub const MAX_JOB_BYTES: u32 = 30_000;
/// The sync interval of `-f MS`.
pub const INTERVAL: Span = Span::from_millis(50);
/// The longest time of a disk operation, not counting those before it.
const DISK_SPAN: Span = Span::from_millis(8);
/// The longest time of a sync: at most five operations, including itself.
const SYNC_SPAN: Span = Span::from_millis(40);
/// With space for this many segments a lack of space soon ends.
const AMPLE_SEGMENTS: usize = 100;
/// The longest time until a server notices new space.
const PUTS_AGAIN_WITHIN: Span = Span::from_secs(2);
/// More iterations than any moment needs.
const SPINS_MAX: usize = 10_000;

/// The fixed parameters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// `None` runs without a job log.
    pub durability: Option<Durability>,
    /// The job log goes across a network.
    pub network: bool,
    /// Initial disk space, in segments.
    pub space: usize,
    /// The memory limit, in bytes.
    pub memory: Option<u64>,
    /// The server accepts fractions of a second.
    pub sub_second: bool,
    /// Clients reach the server over TLS.
    pub tls: bool,
    /// Reservations survive a restart.
    pub keep_reservations: bool,
    /// Each write takes new space on the disk.
    pub copies_on_write: bool,
    /// A start finds copies of the files that lack zeros at their ends.
    pub lacks_zeros: bool,
}

impl Setting {
    pub const WITHOUT_LOG: Self = Self {
        durability: None,
        network: false,
        space: 100,
        memory: None,
        sub_second: false,
        tls: false,
        keep_reservations: false,
        copies_on_write: false,
        lacks_zeros: false,
    };

    fn config(&self) -> Config {
        Config { max_memory_bytes: self.memory, sub_second: self.sub_second, ..config(MAX_JOB_BYTES) }
    }
}

pub struct World {
    pub setting: Setting,
    pub server: Box<dyn UnderTest>,
    steps: Steps,
    pub disk: Disk,
    disk_due: Time,
    pub now: Time,
    pub links: Vec<Connection>,
    pub checker: Checker,
    /// The job log cannot be written any more.
    pub has_failed: bool,
    is_stopping: bool,
    /// The time since when the disk has had ample space.
    ample_space_since: Option<Time>,
}

impl World {
    pub fn new(setting: Setting) -> Self {
        let now = Time::from_nanos(1_000_000_000_000);
        let new_disk = if setting.network { Disk::network } else { Disk::new };
        let mut disk = new_disk(setting.space, setting.copies_on_write);
        let steps = Steps::default();
        let server = start(setting, &mut disk, &steps, now);
        let record_bytes_max = setting.durability.map(|_| (SEGMENT_BYTES - HEADER_BYTES) as usize);
        let mut checker = Checker::new(MAX_JOB_BYTES, setting.memory.is_some(), record_bytes_max);
        checker.totals.sub_second = setting.sub_second;
        checker.may_stall = setting.copies_on_write;
        checker.model.now = now;
        checker.model.keeps_reservations = setting.keep_reservations;
        let links = Vec::new();
        Self {
            setting,
            server,
            steps,
            disk,
            disk_due: now,
            now,
            links,
            checker,
            has_failed: false,
            is_stopping: false,
            ample_space_since: None,
        }
    }

    /// Performs one action.
    ///
    /// # Panics
    /// If the server violates the model or an invariant.
    pub fn apply(&mut self, action: &Action) {
        if self.has_failed && !action.is_possible_after_failure() {
            return;
        }
        self.catch_up();
        if self.ample_space_since.is_some_and(|since| since + PUTS_AGAIN_WITHIN <= self.now) {
            self.checker.may_be_short = self.checker.has_memory_limit;
        }
        match *action {
            Action::Connect => self.connect(),
            Action::Send { client, ref bytes } => {
                if let Some(link) =
                    self.links.get_mut(client).filter(|link| link.is_open() && !link.is_half_closed)
                {
                    link.unreceived.extend_from_slice(bytes);
                    self.checker.sent(client, bytes);
                }
            }
            Action::Deliver { client, bytes, direct } => self.deliver(client, bytes, direct),
            Action::Transmit { client, bytes } => self.transmit(client, bytes),
            Action::HalfClose { client } => {
                if let Some(link) = self.links.get_mut(client).filter(|link| link.is_open()) {
                    link.is_half_closed = true;
                    self.report_input_end(client);
                }
            }
            Action::Break { client } => {
                if let Some(link) = self.links.get_mut(client).filter(|link| link.is_open()) {
                    link.unreceived.clear();
                    let conn = link.conn;
                    handle(&mut *self.server, self.now, Event::HungUp { conn });
                    self.process_outputs();
                }
            }
            Action::Turn => self.turn(),
            Action::Disk { seed } => self.finish_disk_operation(&mut Random::new(seed)),
            Action::Pass { ns } => self.pass(Span::from_nanos(ns)),
            Action::Settle => self.settle(),
            Action::Drain => {
                handle(&mut *self.server, self.now, Event::Drain);
                self.checker.totals.draining = true;
                self.process_outputs();
            }
            Action::Space { segments } => {
                self.disk.room = segments;
                self.ample_space_since = (segments >= AMPLE_SEGMENTS).then_some(self.now);
            }
            Action::Fail => self.disk.fails_at = Some(self.disk.ended),
            Action::Stop => self.stop(),
            Action::Kill { seed } => self.restart(Crash::Killed, &mut Random::new(seed)),
            Action::PowerCut { seed } => self.restart(Crash::PowerLoss, &mut Random::new(seed)),
        }
    }

    /// Whether commands and timers must wait for the job log.
    fn must_wait(&self) -> bool {
        self.server.server().wal().is_some_and(|wal| wal.must_wait())
    }

    /// Runs an iteration if a deadline has passed: a late driver does that before it reports events.
    fn catch_up(&mut self) {
        let is_late = self.checker.model.next_due().is_some_and(|due| due < self.now);
        if is_late && !self.must_wait() {
            self.turn();
        }
    }

    fn connect(&mut self) {
        let conn = self.server.accept(self.now, Protocol::Beanstalk, Entry::Plain(None));
        let clients = self.server.server().engine().clients();
        let key =
            clients.iter().find(|(_, client)| client.conn == conn).expect("the client is in the queue").0;
        self.checker.connected(conn.slot, key);
        self.links.push(Connection::new(conn));
        self.process_outputs();
        while self.server.is_shaking_hands() {
            self.turn();
        }
    }

    fn deliver(&mut self, client: usize, bytes: usize, direct: bool) {
        let Some(link) = self.links.get_mut(client).filter(|link| link.is_open()) else { return };
        if !link.is_paused && !link.unreceived.is_empty() && bytes > 0 {
            let received = link.receive(bytes, direct, &mut *self.server, self.now);
            self.checker.clients[client].arrived += received.len();
            self.process_outputs();
        }
        self.report_input_end(client);
    }

    fn report_input_end(&mut self, client: usize) {
        let link = &mut self.links[client];
        if let Some(event) = link.is_open().then(|| link.end_of_input()).flatten() {
            handle(&mut *self.server, self.now, event);
            self.checker.model.now = self.now;
            self.checker.input_ending(client);
            self.process_outputs();
        }
    }

    fn transmit(&mut self, client: usize, bytes: usize) {
        let Some(link) = self.links.get_mut(client) else { return };
        if link.is_sending() {
            let sent = link.end_send(bytes, &mut *self.server);
            if link.is_open() {
                handle(&mut *self.server, self.now, Event::Sent { conn: link.conn, bytes: sent.len() });
            }
            link.close(&mut *self.server, self.now);
            self.process_outputs();
        } else if link.wants_send && link.is_open() {
            let shown = link.begin_send(&mut *self.server);
            self.checker.received(client, &shown);
        }
    }

    pub fn turn(&mut self) {
        let must_wait = self.must_wait();
        self.server.turn(self.now);
        if !must_wait {
            self.checker.learn_keys(self.server.server().engine());
            self.checker.model.now = self.now;
            // The server continues long commands before it handles what is due.
            if let Some(step) = self.steps.take_changes() {
                self.checker.observed(step);
            }
            self.checker.pass(self.now);
        }
        self.process_outputs();
    }

    fn finish_disk_operation(&mut self, random: &mut Random) {
        if let Some(outcome) = self.disk.finish_one(random) {
            let is_failing = self.disk.fails_at.is_some_and(|at| at < self.disk.ended);
            self.checker.has_failed |= is_failing;
            let was_full = self.disk.was_full.take();
            self.checker.may_be_short |= was_full;
            self.checker.has_been_short |= was_full;
            if was_full {
                self.ample_space_since = None;
            }
            handle(&mut *self.server, self.now, Event::Log(LogReply::Files(outcome)));
            self.disk_due = self.now + DISK_SPAN;
            self.process_outputs();
        }
    }

    /// Checks what the server has done, and carries out its effects.
    fn process_outputs(&mut self) {
        self.checker.model.now = self.now;
        loop {
            while let Some(step) = self.steps.take_next() {
                self.checker.observed(step);
            }
            self.checker.learn_keys(self.server.server().engine());
            let Some(effect) = self.server.poll_effect() else { return };
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(conn) | Effect::Pause(conn) | Effect::Resume(conn) | Effect::Close(conn) => {
                let link = self.links.iter_mut().rfind(|link| link.conn == conn).expect("it was connected");
                link.apply(&effect);
                link.close(&mut *self.server, self.now);
            }
            Effect::Log => {
                while let Some(LogRequest::Files(operation)) = self.server.poll_log_request(self.now) {
                    if !self.disk.is_busy() {
                        self.disk_due = self.now + DISK_SPAN;
                    }
                    self.disk.begin(operation);
                }
            }
            Effect::LogClient(..) => {}
            Effect::Fail => {
                let is_stopped_without_space = self.is_stopping && self.checker.has_been_short;
                let may_fail = self.checker.has_failed || is_stopped_without_space;
                assert!(may_fail, "the server fails only with its disk");
                self.has_failed = true;
            }
        }
    }

    /// Lets time pass. The driver meets every deadline, except while the server waits for the disk.
    fn pass(&mut self, span: Span) {
        let until = self.now + span;
        let mut random = Random::new(span.as_nanos());
        self.turn();
        for _ in 0..SPINS_MAX {
            if self.has_failed {
                return;
            }
            let model = &self.checker.model;
            let due = model.next_due().filter(|&due| due <= until);
            if due.is_some() && self.must_wait() && !model.is_calm(until) {
                if !self.disk.is_busy() {
                    return;
                }
                self.finish_disk_operation(&mut random);
                self.turn();
                continue;
            }
            let disk = self.disk.is_busy().then_some(self.disk_due).filter(|&at| at <= until);
            let deadline = self.server.next_deadline().filter(|&at| at <= until);
            match (disk, deadline) {
                (Some(at), deadline) if deadline.is_none_or(|deadline| at <= deadline) => {
                    self.now = self.now.max(at);
                    self.finish_disk_operation(&mut random);
                    self.turn();
                }
                (_, Some(at)) => {
                    self.now = self.now.max(at);
                    self.turn();
                }
                _ => {
                    self.now = until;
                    return self.turn();
                }
            }
        }
        panic!("the server always has work and makes no progress");
    }

    /// Delivers everything in transit, sends everything that may leave, and finishes the disk operations.
    fn settle(&mut self) {
        for spin in 0.. {
            assert!(spin < SPINS_MAX, "the server always has work and makes no progress");
            // At least one iteration follows the last event.
            let mut is_done = spin > 0;
            for client in 0..self.links.len() {
                while self.links[client].has_input() {
                    is_done = false;
                    self.deliver(client, usize::MAX, spin % 2 == 0);
                }
                let link = &self.links[client];
                if link.is_sending() || link.wants_send && link.is_open() {
                    is_done = false;
                    self.transmit(client, usize::MAX);
                }
            }
            if self.disk.is_busy() {
                is_done = false;
                self.finish_disk_operation(&mut Random::new(spin as u64));
            }
            if self.has_failed {
                return;
            }
            let is_due = self.server.next_deadline().is_some_and(|at| at <= self.now);
            if is_done && !is_due {
                break;
            }
            self.turn();
        }
        self.compare();
    }

    fn compare(&mut self) {
        let model = &self.checker.model;
        let (due, deadline) = (model.next_due(), self.server.next_deadline());
        let is_known = due.is_none() || deadline.is_some_and(|at| Some(at) <= due);
        assert!(is_known || self.must_wait(), "{due:?} is before {deadline:?}");
        self.checker.compare(self.server.server().engine());
        self.server.server().check();
        let must_wait = self.must_wait();
        assert!(!must_wait || deadline.is_some(), "the log waits without a deadline");
        for client in (0..self.links.len()).filter(|&client| self.links[client].is_open()) {
            self.checker.assert_all_received(client, must_wait);
            assert!(must_wait || self.checker.all_served(client), "client {client} is not served");
        }
        if self.links.iter().all(|link| link.state == ConnectionState::Closed) {
            let engine = self.server.server().engine();
            assert_eq!(engine.body_count(), engine.jobs().len(), "every other body is freed");
        }
    }

    /// Stops the server cleanly, and starts a new one.
    fn stop(&mut self) {
        self.settle();
        if self.has_failed {
            return self.restart(Crash::Killed, &mut Random::new(0));
        }
        self.is_stopping = true;
        handle(&mut *self.server, self.now, Event::Stop);
        self.process_outputs();
        for spin in 0..SPINS_MAX {
            self.turn();
            self.finish_disk_operation(&mut Random::new(spin as u64));
            if self.has_failed {
                return self.restart(Crash::Killed, &mut Random::new(0));
            }
            if self.disk.is_busy() {
                continue;
            }
            if self.server.status().is_settled {
                break;
            }
            // A disk that had no space is tried again after a pause.
            self.now = self.server.next_deadline().map_or(self.now, |at| self.now.max(at));
        }
        assert!(self.server.status().is_settled, "a stop ends");
        let is_synced = self.setting.durability != Some(Durability::Never);
        let crash = if is_synced { Crash::PowerLoss } else { Crash::Killed };
        self.start_again(crash, Promise::All, &mut Random::new(0));
    }

    fn restart(&mut self, crash: Crash, random: &mut Random) {
        let promise = match (self.setting.durability, crash) {
            (None, _) => return,
            (Some(Durability::Always), _) => Promise::Replied,
            // A failed sync may lose what was written before it.
            (_, Crash::Killed) if !self.checker.has_failed => Promise::Replied,
            (Some(Durability::Within(span)), _) => {
                let time = self.now.back(span).back(SYNC_SPAN);
                // A change whose write waits for space has no reply.
                if self.setting.copies_on_write { Promise::RepliedBy(time) } else { Promise::Until(time) }
            }
            (Some(Durability::Never), _) => Promise::None,
        };
        self.checker.ends();
        self.start_again(crash, promise, random);
    }

    fn start_again(&mut self, crash: Crash, promise: Promise, random: &mut Random) {
        if self.setting.durability.is_none() {
            return;
        }
        self.disk.crash(crash, random);
        if self.setting.lacks_zeros {
            self.disk.lose_zeros(random);
        }
        // An operator may add or remove a flag.
        self.setting.sub_second ^= random.below(4) == 0;
        self.setting.keep_reservations ^= random.below(8) == 0;
        self.server = start(self.setting, &mut self.disk, &self.steps, self.now);
        self.disk.was_full.set(false);
        self.disk_due = self.now;
        self.links.clear();
        (self.has_failed, self.is_stopping, self.ample_space_since) = (false, false, None);
        self.steps.clear();
        let keeps_reservations = self.setting.keep_reservations;
        self.checker.restarted(self.server.server().engine(), promise, keeps_reservations, self.now);
        self.checker.totals.sub_second = self.setting.sub_second;
        self.server.server().check();
        self.process_outputs();
    }
}

/// Starts a server from what is on the disk.
fn start(setting: Setting, disk: &mut Disk, steps: &Steps, now: Time) -> Box<dyn UnderTest> {
    let mut server = match setting.durability {
        Some(durability) => recovered(setting, durability, disk, now),
        None => Server::new(setting.config()),
    };
    server.observe(Box::new(steps.clone()));
    #[cfg(feature = "tls")]
    if setting.tls {
        return Box::new(Tunnel::new(server, Cut::Random { seed: setting.space as u64 }));
    }
    Box::new(server)
}

/// Recovers from what is on the disk. If there is no space for that, another process frees some.
fn recovered(setting: Setting, durability: Durability, disk: &mut Disk, now: Time) -> Server {
    let keep_reservations = setting.keep_reservations;
    let destination = disk.destination();
    let wal = WalConfig { durability, segment_bytes: SEGMENT_BYTES, destination, keep_reservations };
    let attempt = |disk: &Disk| {
        let mut engine = Engine::new(0);
        recover(disk, wal, &mut engine, now).map(|log| (engine, log))
    };
    let (engine, log) = attempt(disk).unwrap_or_else(|error| {
        let is_full = match &error {
            RecoveryError::Io(_, error) => is_full(error),
            error => matches!(error, RecoveryError::NoSpace { .. }),
        };
        assert!(is_full, "{error}");
        let segments = disk.list().expect("the disk can be read").len();
        let room = std::mem::replace(&mut disk.room, segments + 1);
        let recovered = attempt(disk).unwrap_or_else(|error| panic!("{error}"));
        disk.room = room;
        recovered
    });
    Server::with_wal(setting.config(), engine, Some(log))
}
