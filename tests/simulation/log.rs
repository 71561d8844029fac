//! The world of [`server`](super::server) with a disk and a power that fail at any moment. The disk may be a store across a network,
//! which takes several writes at a time. Clients only put jobs and change their states: the job log has much to do.

use beanring::queue::JobState;
use beanring::wal::Durability;
use beanring_testkit::disk::Crash;
use beanring_testkit::naive::{Conn, Model};
use beanring_testkit::random::{Random, seeds};

use super::seeds::caught;
use super::server::action::Action;
use super::server::world::{INTERVAL, SEGMENT_BYTES, Setting, World};

const CLIENTS: usize = 3;
/// Actions of a life at most.
const STEPS: usize = 600;
const ALWAYS: Setting = Setting { durability: Some(Durability::Always), ..Setting::WITHOUT_LOG };
const WITHIN: Setting = Setting { durability: Some(Durability::Within(INTERVAL)), ..ALWAYS };
const NEVER: Setting = Setting { durability: Some(Durability::Never), ..ALWAYS };
const NETWORK: Setting = Setting { network: true, ..ALWAYS };
const MODES: [Setting; 4] = [ALWAYS, WITHIN, NEVER, NETWORK];

/// A run of a few lives.
struct Run {
    setting: Setting,
    /// How each life ends.
    crashes: [Crash; 4],
    /// The fault in the second life.
    fault: Fault,
}

/// What a run shows of itself.
struct Lived {
    /// Whether the fault came.
    has_come: bool,
    /// Old segments that had left by the end of the second life.
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
    fn new(setting: Setting, crash: Crash, space: usize) -> Self {
        Self { setting: Setting { space, ..setting }, crashes: [crash; 4], fault: Fault::None }
    }

    fn live(&self, seed: u64) -> Lived {
        let &Self { setting, crashes, fault } = self;
        let mut random = Random::new(seed);
        let mut world = World::new(setting);
        let (mut has_come, mut retired) = (false, 0);
        for (life, crash) in crashes.into_iter().enumerate() {
            let fault = if life == 1 { fault } else { Fault::None };
            match fault {
                Fault::None => {}
                Fault::CrashAt(at) => world.disk.stalls_at = Some(world.disk.ended + at),
                Fault::FailAt(at) => world.disk.fails_at = Some(world.disk.ended + at),
            }
            (0..CLIENTS).for_each(|_| world.apply(&Action::Connect));
            let steps = match (fault, self.fault) {
                (Fault::None, Fault::None) => random.below(STEPS),
                // What comes after the fault shows itself soon.
                (Fault::None, _) if life > 1 => random.below(STEPS / 4),
                (Fault::None, _) => random.below(STEPS),
                _ => STEPS,
            };
            let is_over = (0..steps).any(|_| {
                step(&mut world, &mut random);
                world.has_failed || world.disk.is_stalled()
            });
            has_come |= is_over;
            if life == 1 {
                retired = world.disk.retired.take();
            }
            // Each start may have needed one more segment.
            assert!(world.disk.bytes() as u64 <= (setting.space as u64 + 4) * SEGMENT_BYTES);
            let seed = random.next();
            world.apply(&match crash {
                Crash::Killed => Action::Kill { seed },
                Crash::PowerLoss => Action::PowerCut { seed },
            });
        }
        let (refused, writes_at_once) = (world.disk.refused_writes, world.disk.writes_at_once);
        Lived { has_come, retired, refused, writes_at_once }
    }
}

/// Does one of the things that may happen next. Replies leave at once.
fn step(world: &mut World, random: &mut Random) {
    let action = match random.below(10) {
        0..5 => {
            let client = random.below(CLIENTS);
            if world.links[client].unreceived.is_empty() {
                let bytes = command(&world.checker.model, client as Conn, random).into_bytes();
                world.apply(&Action::Send { client, bytes });
            }
            Action::Deliver { client, bytes: usize::MAX, direct: random.chance(50) }
        }
        5..7 => Action::Disk { seed: random.next() },
        7 => Action::Pass { ns: (1 + random.below_u64(30)) * 1_000_000 },
        _ => Action::Turn,
    };
    world.apply(&action);
    for client in 0..world.links.len() {
        while world.links[client].is_open()
            && (world.links[client].wants_send || world.links[client].is_sending())
        {
            world.apply(&Action::Transmit { client, bytes: usize::MAX });
        }
    }
}

/// Returns a put, or a command about a job.
fn command(model: &Model, client: Conn, random: &mut Random) -> String {
    let (pri, delay) = (random.below(5), random.pick(&[0, 0, 100_000]));
    let count = model.jobs.len();
    if count <= 5 || random.chance(40) {
        let (length, fill) = (random.pick(&[20, 200, 3_000, 15_000]), random.next().to_string());
        let body = fill.repeat(1 + length / fill.len());
        let body = &body[..length];
        return format!("put {pri} {delay} 3600 {length}\r\n{body}\r\n");
    }
    let job = &model.jobs[random.below(count)];
    let (id, is_held) = (job.id, job.is_held_by(client));
    match random.below(8) {
        _ if job.state() != JobState::Reserved && random.below(3) > 0 => format!("reserve-job {id}\r\n"),
        0..2 if is_held => format!("release {id} {pri} {delay}\r\n"),
        2..4 if is_held => format!("bury {id} {pri}\r\n"),
        4 => format!("kick-job {id}\r\n"),
        _ => format!("delete {id}\r\n"),
    }
}

/// Runs all seeds, and prints the one that fails. Returns how many writes found no space.
fn all_lives(run: &Run) -> usize {
    let mut writes_at_once = 0;
    let lives = seeds(30).map(|seed| {
        let lived = caught(|| run.live(seed));
        let lived =
            lived.unwrap_or_else(|message| panic!("BEANRING_TEST_SEED={seed}, {:?}: {message}", run.setting));
        writes_at_once = writes_at_once.max(lived.writes_at_once);
        lived.refused
    });
    let refused = lives.sum();
    let most = if run.setting.network { 4 } else { 1 };
    assert!(writes_at_once == most || seeds(30) != (0..30), "{writes_at_once} writes in flight, not {most}");
    refused
}

#[test]
fn power_fails_and_every_change_waits_for_the_disk() {
    all_lives(&Run::new(ALWAYS, Crash::PowerLoss, 100));
}

#[test]
fn power_fails_and_changes_are_synced_soon() {
    all_lives(&Run::new(WITHIN, Crash::PowerLoss, 100));
}

#[test]
fn power_fails_and_changes_are_never_synced() {
    all_lives(&Run::new(NEVER, Crash::PowerLoss, 100));
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
            all_lives(&Run::new(Setting { lacks_zeros: true, ..mode }, crash, 100));
        }
    }
}

#[test]
fn the_disk_is_small() {
    for (mode, crash) in [(ALWAYS, Crash::PowerLoss), (NEVER, Crash::Killed), (NETWORK, Crash::Killed)] {
        all_lives(&Run::new(mode, crash, 5));
    }
}

/// On btrfs and zfs, space that was written before does not guarantee the next write.
#[test]
fn a_small_disk_takes_new_space_for_each_write() {
    for mode in MODES {
        for crash in [Crash::PowerLoss, Crash::Killed] {
            let refused = all_lives(&Run::new(Setting { copies_on_write: true, ..mode }, crash, 6));
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
                let lived = caught(|| run.live(seed)).unwrap_or_else(|message| {
                    panic!("BEANRING_TEST_SEED={seed}, operation {at}, {mode:?}: {message}")
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
