//! A server whose disk and power fail at any moment, in virtual time: what was acknowledged is there afterwards.

mod expected;

use std::collections::VecDeque;

use beanring::ids::ConnId;
use beanring::io::wal_files::{RecoveryError, recover};
use beanring::queue::Engine;
use beanring::server::{DriverStats, Effect, Event, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::wal::{Config, Durability, is_full};

use self::expected::{Command, Expected};
use beanring_testkit::config::config;
use beanring_testkit::connection::send_all;
use beanring_testkit::disk::{Crash, Disk};
use beanring_testkit::random::{Random, seeds};

const SEGMENT_BYTES: u64 = 64 * 1024;
const CONNECTIONS: usize = 3;
const INTERVAL: Span = Span::from_millis(50);
const MODES: [Durability; 3] = [Durability::Always, Durability::Within(INTERVAL), Durability::Never];
/// The longest that an operation of the disk takes.
const DISK_SPAN: Span = Span::from_millis(8);
/// A sync may wait for other operations, five at most with itself.
const SYNC_SPAN: Span = Span::from_millis(40);

/// A server with its clients and its disk.
struct Simulation {
    server: Server,
    disk: Disk,
    disk_due: Time,
    now: Time,
    random: Random,
    conns: Vec<ConnId>,
    /// Commands without an answer, by connection.
    asked: Vec<VecDeque<Command>>,
    replies: Vec<Vec<u8>>,
    expected: Expected,
    durability: Durability,
    /// The disk has failed, and the server with it.
    has_failed: bool,
}

impl Simulation {
    /// Starts on what is on the disk.
    fn start(mut disk: Disk, durability: Durability, now: Time, random: Random, expected: Expected) -> Self {
        let mut engine = Engine::new(0);
        let log_config = Config { durability, segment_bytes: SEGMENT_BYTES };
        let log = recover(&disk, log_config, &mut engine, now).unwrap_or_else(|error| {
            let is_full = match &error {
                RecoveryError::Io(_, error) => is_full(error),
                RecoveryError::NoSpace(_) => true,
                _ => false,
            };
            assert!(is_full, "{error}");
            // Somebody makes some space.
            disk.room += 1;
            engine = Engine::new(0);
            recover(&disk, log_config, &mut engine, now).unwrap_or_else(|error| panic!("{error}"))
        });
        let mut server = Server::with_log(config(65_535), engine, Some(log));
        let conns = (0..CONNECTIONS).map(|_| server.accept(Protocol::Beanstalk)).collect();
        let asked = vec![VecDeque::new(); CONNECTIONS];
        let replies = vec![Vec::new(); CONNECTIONS];
        Self {
            server,
            disk,
            disk_due: now,
            now,
            random,
            conns,
            asked,
            replies,
            expected,
            durability,
            has_failed: false,
        }
    }

    /// Does one thing that may happen next.
    fn step(&mut self) {
        match self.random.below(10) {
            0..5 => {
                let client = self.random.below(CONNECTIONS);
                if self.asked[client].len() < 20 {
                    self.ask(client);
                }
            }
            5..7 => self.disk_goes_on(),
            7 => {
                let ms = 1 + self.random.below(30) as u32;
                self.advance(Span::from_millis(ms));
            }
            _ => self.turn(),
        }
    }

    fn ask(&mut self, client: usize) {
        let command = self.expected.next_command(client, &mut self.random);
        let text = command.text();
        self.expected.ask(&command);
        self.asked[client].push_back(command);
        self.server.handle(self.now, Event::Received { conn: self.conns[client], bytes: &text });
        self.carry_out();
    }

    /// Time passes, and no operation of the disk takes too long.
    fn advance(&mut self, span: Span) {
        let until = self.now + span;
        let mut spins = 0;
        loop {
            let disk = self.disk.is_busy().then_some(self.disk_due);
            let deadline = self.server.next_deadline().map(|at| at.max(self.now));
            match (disk, deadline) {
                (Some(at), _) if at <= until && deadline.is_none_or(|deadline| at <= deadline) => {
                    self.now = self.now.max(at);
                    self.disk_goes_on();
                }
                (_, Some(at)) if at <= until => {
                    spins = if at > self.now { 0 } else { spins + 1 };
                    assert!(spins < 100, "there is always something to do, and nothing is done");
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

    fn disk_goes_on(&mut self) {
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
                Effect::SampleStats => {
                    self.server.handle(self.now, Event::StatsSampled(DriverStats::default()));
                }
                Effect::Pause(_) | Effect::Resume(_) => {}
                Effect::Close(_) if self.has_failed => {}
                Effect::Fail if self.disk.fails_at.is_some() => self.has_failed = true,
                Effect::Close(_) | Effect::Fail => panic!("nothing breaks"),
            }
        }
    }

    fn send(&mut self, conn: ConnId) {
        let client = self.conns.iter().position(|&known| known == conn).expect("it was connected");
        self.replies[client].extend(send_all(&mut self.server, conn, self.now));
        while let Some(command) = self.asked[client].front() {
            if self.disk.fails_at.is_some() && self.replies[client].starts_with(b"INTERNAL_ERROR\r\n") {
                break;
            }
            let Some(used) = command.reply_bytes(&self.replies[client]) else { break };
            let reply: Vec<u8> = self.replies[client].drain(..used).collect();
            let command = self.asked[client].pop_front().expect("it was there");
            self.expected.answered(&command, &reply, client, self.now);
        }
    }

    /// Ends everything at this moment, and compares what comes back.
    fn crash(mut self, crash: Crash) -> (Disk, Expected, Random, Time) {
        self.disk.crash(crash, &mut self.random);
        let safe_until = match (self.durability, crash) {
            (Durability::Always, _) => self.now,
            // A sync that fails may take back what was written.
            (_, Crash::Killed) if !self.has_failed => self.now,
            (Durability::Within(span), _) => self.now.back(span).back(SYNC_SPAN),
            (Durability::Never, _) => Time::ZERO,
        };
        self.expected.forget_after(safe_until, self.asked.into_iter().flatten());
        (self.disk, self.expected, self.random, self.now)
    }

    fn compare(&mut self) {
        let engine = self.server.engine();
        engine.check();
        let upcoming = engine.upcoming_id();
        let found = engine.jobs().iter().map(|(key, job)| {
            (job.id, (engine.body(key).to_vec(), engine.kept(key), engine.tube_of(key).as_str().to_owned()))
        });
        self.expected.compare(found.collect(), upcoming);
    }
}

/// A run of a few lives, each of which ends by a crash.
struct Run {
    durability: Durability,
    /// How each life ends: its trouble, and those after the last.
    crashes: [Crash; 4],
    /// Segments that there is space for.
    room: usize,
    /// Each write takes new space.
    copies_on_write: bool,
    /// What happens to the disk in the second life.
    trouble: Trouble,
}

/// When something goes wrong: after so many operations of the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Not at all; the crash comes at any time.
    None,
    /// The crash comes then.
    CrashAt(usize),
    /// The next one fails.
    FailAt(usize),
}

impl Run {
    fn new(durability: Durability, crash: Crash, room: usize) -> Self {
        Self { durability, crashes: [crash; 4], room, copies_on_write: false, trouble: Trouble::None }
    }

    /// Whether the trouble came, how many old segments had gone by then, and how many writes found no space.
    fn live(&self, seed: u64) -> (bool, usize, usize) {
        let &Self { durability, crashes, room, copies_on_write, trouble } = self;
        let mut disk = Disk::new(room, copies_on_write);
        let mut random = Random::new(seed);
        let mut expected = Expected::default();
        let mut now = Time::from_nanos(1_000_000_000_000);
        let (mut has_come, mut retired) = (false, 0);
        for (life, crash) in crashes.into_iter().enumerate() {
            let trouble = if life == 1 { trouble } else { Trouble::None };
            let mut simulation = Simulation::start(disk, durability, now, random, expected);
            simulation.compare();
            simulation.disk.ended = 0;
            match trouble {
                Trouble::None => {}
                Trouble::CrashAt(at) => simulation.disk.stalls_at = Some(at),
                Trouble::FailAt(at) => simulation.disk.fails_at = Some(at),
            }
            let steps = if trouble == Trouble::None { simulation.random.below(600) } else { 600 };
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
            // Each start may have needed one more.
            assert!(bytes <= (room as u64 + 4) * SEGMENT_BYTES);
            (disk, expected, random, now) = simulation.crash(crash);
        }
        let refused = disk.refused_writes;
        Simulation::start(disk, durability, now, random, expected).compare();
        (has_come, retired, refused)
    }
}

/// Runs all seeds; says which one fails. How many writes found no space.
fn all_lives(run: &Run) -> usize {
    let lives = seeds(30).map(|seed| {
        let run = std::panic::catch_unwind(|| run.live(seed));
        let (_, _, refused) = run.unwrap_or_else(|panic| {
            println!("BEANRING_SEED={seed}");
            std::panic::resume_unwind(panic)
        });
        refused
    });
    lives.sum()
}

#[test]
fn power_fails_and_every_change_waits_for_the_disk() {
    all_lives(&Run::new(Durability::Always, Crash::PowerLoss, 100));
}

#[test]
fn power_fails_and_changes_are_synced_soon() {
    all_lives(&Run::new(Durability::Within(INTERVAL), Crash::PowerLoss, 100));
}

#[test]
fn power_fails_and_nothing_was_promised() {
    all_lives(&Run::new(Durability::Never, Crash::PowerLoss, 100));
}

#[test]
fn the_process_is_killed() {
    for durability in MODES {
        all_lives(&Run::new(durability, Crash::Killed, 100));
    }
}

#[test]
fn the_disk_is_small() {
    all_lives(&Run::new(Durability::Always, Crash::PowerLoss, 5));
    all_lives(&Run::new(Durability::Never, Crash::Killed, 5));
}

/// As on btrfs and zfs: space that was written before is no promise for the next write.
#[test]
fn a_small_disk_takes_new_space_for_each_write() {
    for durability in MODES {
        for crash in [Crash::PowerLoss, Crash::Killed] {
            let run = Run { copies_on_write: true, ..Run::new(durability, crash, 6) };
            let refused = all_lives(&run);
            println!("{durability:?}, {crash:?}: {refused} writes found no space");
            assert!(refused > 0);
        }
    }
}

/// Runs until the trouble comes too late to come at all; how many old segments have gone at most.
fn at_every_operation(crashes: [Crash; 4], trouble: fn(usize) -> Trouble) {
    for durability in MODES {
        let mut have_moved = false;
        for seed in seeds(2) {
            let mut most = 0;
            let runs = (0..).take_while(|&at| {
                let run = Run { crashes, trouble: trouble(at), ..Run::new(durability, Crash::Killed, 5) };
                let (has_come, retired, _) =
                    std::panic::catch_unwind(|| run.live(seed)).unwrap_or_else(|panic| {
                        println!("BEANRING_SEED={seed}, operation {at}, {durability:?}");
                        std::panic::resume_unwind(panic)
                    });
                most = most.max(retired);
                has_come
            });
            let runs = runs.count();
            println!("{durability:?}, seed {seed}: {runs} operations, {most} old segments went");
            have_moved |= runs > 30 && most > 1;
        }
        assert!(have_moved, "jobs were moved");
    }
}

#[test]
fn the_end_comes_at_every_operation() {
    at_every_operation([Crash::PowerLoss; 4], Trouble::CrashAt);
    at_every_operation([Crash::Killed; 4], Trouble::CrashAt);
}

#[test]
fn every_operation_fails() {
    at_every_operation([Crash::PowerLoss; 4], Trouble::FailAt);
    at_every_operation([Crash::Killed; 4], Trouble::FailAt);
}

/// A service manager starts the server again on what the page cache still has, and the power fails later.
#[test]
fn every_operation_fails_before_a_restart_and_a_power_failure() {
    at_every_operation([Crash::Killed, Crash::Killed, Crash::PowerLoss, Crash::PowerLoss], Trouble::FailAt);
}
