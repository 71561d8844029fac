//! A server whose disk and power fail at any moment, in virtual time. The disk may be a store across a network, which takes several
//! writes at a time. Acknowledged changes survive.

mod expected;

use std::collections::VecDeque;

use beanring::io::wal_files::{RecoveryError, recover};
use beanring::queue::Engine;
use beanring::server::{Effect, Event, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::values::ids::ConnId;
use beanring::wal::{Durability, WalConfig, is_full};

use self::expected::{Command, Expected};
use beanring_testkit::config::config;
use beanring_testkit::connection::send_all;
use beanring_testkit::disk::{Crash, Disk};
use beanring_testkit::random::{Random, seeds};

const SEGMENT_BYTES: u64 = 64 * 1024;
const CONNECTIONS: usize = 3;
const INTERVAL: Span = Span::from_millis(50);
const MODES: [Mode; 4] = [
    Mode::Directory(Durability::Always),
    Mode::Directory(Durability::Within(INTERVAL)),
    Mode::Directory(Durability::Never),
    Mode::Network,
];
/// The maximum duration of a disk operation.
const DISK_SPAN: Span = Span::from_millis(8);
/// The maximum duration of a sync: it may wait for up to four other operations.
const SYNC_SPAN: Span = Span::from_millis(40);

/// Where the job log goes.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Directory(Durability),
    Network,
}

/// A server with its clients and its disk.
struct Simulation {
    server: Server,
    disk: Disk,
    disk_due: Time,
    now: Time,
    random: Random,
    conns: Vec<ConnId>,
    /// Commands without a reply, by connection.
    unanswered: Vec<VecDeque<Command>>,
    replies: Vec<Vec<u8>>,
    expected: Expected,
    durability: Durability,
    /// Whether the disk has failed, which ends the server.
    has_failed: bool,
}

impl Simulation {
    /// Recovers from the disk.
    fn start(mut disk: Disk, durability: Durability, now: Time, random: Random, expected: Expected) -> Self {
        let mut engine = Engine::new(0);
        let log_config = WalConfig {
            durability,
            segment_bytes: SEGMENT_BYTES,
            destination: disk.destination(),
            keep_reservations: false,
        };
        let log = recover(&disk, log_config, &mut engine, now).unwrap_or_else(|error| {
            let is_full = match &error {
                RecoveryError::Io(_, error) => is_full(error),
                RecoveryError::NoSpace { .. } => true,
                _ => false,
            };
            assert!(is_full, "{error}");
            // Another process frees some space.
            disk.room += 1;
            engine = Engine::new(0);
            recover(&disk, log_config, &mut engine, now).unwrap_or_else(|error| panic!("{error}"))
        });
        let mut server = Server::with_wal(config(65_535), engine, Some(log));
        let conns = (0..CONNECTIONS).map(|_| server.accept(Protocol::Beanstalk)).collect();
        let unanswered = vec![VecDeque::new(); CONNECTIONS];
        let replies = vec![Vec::new(); CONNECTIONS];
        Self {
            server,
            disk,
            disk_due: now,
            now,
            random,
            conns,
            unanswered,
            replies,
            expected,
            durability,
            has_failed: false,
        }
    }

    /// Does one of the things that may happen next.
    fn step(&mut self) {
        match self.random.below(10) {
            0..5 => {
                let client = self.random.below(CONNECTIONS);
                if self.unanswered[client].len() < 20 {
                    self.send_command(client);
                }
            }
            5..7 => self.finish_operation(),
            7 => {
                let ms = 1 + self.random.below(30) as u32;
                self.advance(Span::from_millis(ms));
            }
            _ => self.turn(),
        }
    }

    fn send_command(&mut self, client: usize) {
        let command = self.expected.next_command(client, &mut self.random);
        let text = command.text();
        self.expected.sent(&command);
        self.unanswered[client].push_back(command);
        self.server.handle(self.now, Event::Received { conn: self.conns[client], bytes: &text });
        self.carry_out();
    }

    /// Advances the time. No disk operation exceeds its maximum duration.
    fn advance(&mut self, span: Span) {
        let until = self.now + span;
        let mut spins = 0;
        loop {
            let disk = self.disk.is_busy().then_some(self.disk_due);
            let deadline = self.server.next_deadline().map(|at| at.max(self.now));
            match (disk, deadline) {
                (Some(at), _) if at <= until && deadline.is_none_or(|deadline| at <= deadline) => {
                    self.now = self.now.max(at);
                    self.finish_operation();
                }
                (_, Some(at)) if at <= until => {
                    spins = if at > self.now { 0 } else { spins + 1 };
                    assert!(spins < 100, "the server has operations and none ends");
                    self.now = at;
                }
                _ => break,
            }
            self.turn();
            if self.has_failed || self.disk.is_stalled() {
                return;
            }
        }
        self.now = until;
        self.turn();
    }

    fn finish_operation(&mut self) {
        if let Some(outcome) = self.disk.finish_one(&mut self.random) {
            self.server.handle(self.now, Event::Disk(outcome));
            self.disk_due = self.now + DISK_SPAN;
            self.carry_out();
        }
    }

    fn turn(&mut self) {
        self.server.turn(self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Send(conn) => self.send(conn),
                Effect::Disk => {
                    while let Some(operation) = self.server.disk(self.now) {
                        if !self.disk.is_busy() {
                            self.disk_due = self.now + DISK_SPAN;
                        }
                        self.disk.begin(operation);
                    }
                }
                Effect::Pause(_) | Effect::Resume(_) | Effect::LogClient(..) => {}
                Effect::Close(_) if self.has_failed => {}
                Effect::Fail if self.disk.fails_at.is_some() => self.has_failed = true,
                Effect::Close(_) | Effect::Fail => panic!("nothing breaks"),
            }
        }
    }

    fn send(&mut self, conn: ConnId) {
        let client = self.conns.iter().position(|&known| known == conn).expect("the connection is known");
        self.replies[client].extend(send_all(&mut self.server, conn, self.now));
        while let Some(command) = self.unanswered[client].front() {
            if self.disk.fails_at.is_some() && self.replies[client].starts_with(b"INTERNAL_ERROR\r\n") {
                break;
            }
            let Some(used) = command.reply_bytes(&self.replies[client]) else { break };
            let reply: Vec<u8> = self.replies[client].drain(..used).collect();
            let command = self.unanswered[client].pop_front().expect("a reply belongs to a command");
            self.expected.answered(&command, &reply, client, self.now);
        }
    }

    /// Ends the process or the power now, and compares what recovery finds.
    fn crash(mut self, crash: Crash) -> (Disk, Expected, Random, Time) {
        self.disk.crash(crash, &mut self.random);
        let committed_until = match (self.durability, crash) {
            (Durability::Always, _) => self.now,
            // A failed sync may undo what was written.
            (_, Crash::Killed) if !self.has_failed => self.now,
            (Durability::Within(span), _) => self.now.back(span).back(SYNC_SPAN),
            (Durability::Never, _) => Time::ZERO,
        };
        self.expected.forget_after(committed_until, self.unanswered.into_iter().flatten());
        (self.disk, self.expected, self.random, self.now)
    }

    fn compare(&mut self) {
        let engine = self.server.engine();
        engine.check();
        let upcoming = engine.upcoming_id();
        let found = engine.jobs().iter().map(|(key, job)| {
            (
                job.id,
                (
                    engine.body(key).to_vec(),
                    engine.persisted_state(key),
                    engine.tube_of(key).as_str().to_owned(),
                ),
            )
        });
        self.expected.compare(found.collect(), upcoming);
    }
}

/// A run of a few lives, each of which ends with a crash.
struct Run {
    mode: Mode,
    /// How each life ends.
    crashes: [Crash; 4],
    /// Segments that there is space for.
    room: usize,
    /// Whether each write takes new space.
    copies_on_write: bool,
    /// The fault in the second life.
    fault: Fault,
    /// Whether each life after the first begins with copies of the files that lack zeros at their ends.
    lacks_zeros: bool,
}

/// What a run shows of itself.
struct Lived {
    /// Whether the fault came.
    has_come: bool,
    /// Old segments that had left by then.
    retired: usize,
    /// Writes that found no space.
    refused: usize,
    /// The largest number of writes in flight.
    writes_at_once: usize,
}

/// A fault, at a disk operation counted from the start of the life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// No fault: the crash comes at a random time.
    None,
    /// The crash comes after this operation.
    CrashAt(usize),
    /// The operation after this one fails.
    FailAt(usize),
}

impl Run {
    fn new(mode: Mode, crash: Crash, room: usize) -> Self {
        let (copies_on_write, fault, lacks_zeros) = (false, Fault::None, false);
        Self { mode, crashes: [crash; 4], room, copies_on_write, fault, lacks_zeros }
    }

    fn live(&self, seed: u64) -> Lived {
        let &Self { mode, crashes, room, copies_on_write, fault, lacks_zeros } = self;
        let (durability, mut disk) = match mode {
            Mode::Directory(durability) => (durability, Disk::new(room, copies_on_write)),
            Mode::Network => (Durability::Always, Disk::network(room, copies_on_write)),
        };
        let mut random = Random::new(seed);
        let mut expected = Expected::default();
        let mut now = Time::from_nanos(1_000_000_000_000);
        let (mut has_come, mut retired) = (false, 0);
        for (life, crash) in crashes.into_iter().enumerate() {
            let fault = if life == 1 { fault } else { Fault::None };
            let mut simulation = Simulation::start(disk, durability, now, random, expected);
            simulation.compare();
            simulation.disk.ended = 0;
            match fault {
                Fault::None => {}
                Fault::CrashAt(at) => simulation.disk.stalls_at = Some(at),
                Fault::FailAt(at) => simulation.disk.fails_at = Some(at),
            }
            let steps = if fault == Fault::None { simulation.random.below(600) } else { 600 };
            for _ in 0..steps {
                simulation.step();
                if simulation.has_failed || simulation.disk.is_stalled() {
                    has_come = true;
                    break;
                }
            }
            if life == 1 {
                retired = simulation.disk.retired.take();
            }
            let bytes = simulation.disk.bytes() as u64;
            // Each start may have needed one more segment.
            assert!(bytes <= (room as u64 + 4) * SEGMENT_BYTES);
            (disk, expected, random, now) = simulation.crash(crash);
            if lacks_zeros {
                disk.lose_zeros(&mut random);
            }
        }
        let (refused, writes_at_once) = (disk.refused_writes, disk.writes_at_once);
        Simulation::start(disk, durability, now, random, expected).compare();
        Lived { has_come, retired, refused, writes_at_once }
    }
}

/// Runs all seeds, and prints the one that fails. Returns how many writes found no space.
fn all_lives(run: &Run) -> usize {
    let mut writes_at_once = 0;
    let lives = seeds(30).map(|seed| {
        let lived = std::panic::catch_unwind(|| run.live(seed)).unwrap_or_else(|panic| {
            println!("BEANRING_TEST_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        writes_at_once = writes_at_once.max(lived.writes_at_once);
        lived.refused
    });
    let refused = lives.sum();
    let most = if matches!(run.mode, Mode::Network) { 4 } else { 1 };
    assert!(writes_at_once == most || seeds(30) != (0..30), "{writes_at_once} writes in flight, not {most}");
    refused
}

#[test]
fn power_fails_and_every_change_waits_for_the_disk() {
    all_lives(&Run::new(Mode::Directory(Durability::Always), Crash::PowerLoss, 100));
}

#[test]
fn power_fails_and_changes_are_synced_soon() {
    all_lives(&Run::new(Mode::Directory(Durability::Within(INTERVAL)), Crash::PowerLoss, 100));
}

#[test]
fn power_fails_and_changes_are_never_synced() {
    all_lives(&Run::new(Mode::Directory(Durability::Never), Crash::PowerLoss, 100));
}

#[test]
fn the_process_is_killed() {
    for mode in MODES {
        all_lives(&Run::new(mode, Crash::Killed, 100));
    }
}

/// A copy of a file may lack zeros at its end, and they may complete its last record.
#[test]
fn files_lack_zeros() {
    for mode in MODES {
        for crash in [Crash::PowerLoss, Crash::Killed] {
            all_lives(&Run { lacks_zeros: true, ..Run::new(mode, crash, 100) });
        }
    }
}

#[test]
fn the_disk_is_small() {
    all_lives(&Run::new(Mode::Directory(Durability::Always), Crash::PowerLoss, 5));
    all_lives(&Run::new(Mode::Directory(Durability::Never), Crash::Killed, 5));
    all_lives(&Run::new(Mode::Network, Crash::Killed, 5));
}

/// On btrfs and zfs, space that was written before does not guarantee the next write.
#[test]
fn a_small_disk_takes_new_space_for_each_write() {
    for mode in MODES {
        for crash in [Crash::PowerLoss, Crash::Killed] {
            let run = Run { copies_on_write: true, ..Run::new(mode, crash, 6) };
            let refused = all_lives(&run);
            println!("{mode:?}, {crash:?}: {refused} writes found no space");
            assert!(refused > 0);
        }
    }
}

/// Puts the fault at each operation, until a run ends before it. Asserts that old segments have left.
fn at_every_operation(crashes: [Crash; 4], fault: fn(usize) -> Fault) {
    for mode in MODES {
        let mut has_compacted = false;
        for seed in seeds(2) {
            let mut most = 0;
            let runs = (0..).take_while(|&at| {
                let run = Run { crashes, fault: fault(at), ..Run::new(mode, Crash::Killed, 5) };
                let lived = std::panic::catch_unwind(|| run.live(seed)).unwrap_or_else(|panic| {
                    println!("BEANRING_TEST_SEED={seed}, operation {at}, {mode:?}");
                    std::panic::resume_unwind(panic)
                });
                most = most.max(lived.retired);
                lived.has_come
            });
            let runs = runs.count();
            println!("{mode:?}, seed {seed}: {runs} operations, {most} old segments left");
            has_compacted |= runs > 30 && most > 1;
        }
        assert!(has_compacted, "compaction has freed segments");
    }
}

#[test]
fn the_crash_comes_at_every_operation() {
    at_every_operation([Crash::PowerLoss; 4], Fault::CrashAt);
    at_every_operation([Crash::Killed; 4], Fault::CrashAt);
}

#[test]
fn every_operation_fails() {
    at_every_operation([Crash::PowerLoss; 4], Fault::FailAt);
    at_every_operation([Crash::Killed; 4], Fault::FailAt);
}

/// systemd restarts the server, which reads what the page cache still has. Then the power fails.
#[test]
fn every_operation_fails_before_a_restart_and_a_power_failure() {
    at_every_operation([Crash::Killed, Crash::Killed, Crash::PowerLoss, Crash::PowerLoss], Fault::FailAt);
}
