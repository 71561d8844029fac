//! A deterministic simulation of servers whose job log is in a database: their clocks, pauses and deaths, their clients, and a
//! database that fails over. A seed chooses among everything that may happen, and a checker compares what clients have seen with
//! what each later leader knows.
//!
//! With `BEANRING_TEST_TRACE` a seed prints what happens. For a seed that fails, the fewest kinds of faults are searched with which
//! it fails too.

mod checker;
mod chunks;
mod database;
mod holds;
mod naive;
mod roles;
mod world;

use beanring_testkit::random::{Random, number};

use self::world::{Fault, MS, Setting, World};
use super::seeds::{caught, run_seeds};

const SEEDS_DEFAULT: u64 = 300;

fn setting(seed: u64) -> Setting {
    let mut random = Random::new(seed);
    let is_large = random.one_in(30);
    let faults = match random.below(4) {
        0 => 1 << random.below(Fault::ALL.len()) | 1 << random.below(Fault::ALL.len()),
        1 => random.next() as u32 & random.next() as u32,
        _ => random.next() as u32,
    };
    let damage = Fault::Flip.bit() | Fault::Vanish.bit();
    let faults = if random.one_in(5) { faults } else { faults & !damage };
    Setting {
        seed,
        servers: 2 + random.below(2),
        hides: random.chance(50),
        clocks_apart_ms: random.pick(&[1, 50, 60_000]),
        lease_ms: random.pick(&[100, 200, 200, 400, 1000]),
        segment_bytes: if is_large { 4 * 1024 * 1024 } else { 64 * 1024 },
        body_bytes_max: if is_large { 1_300_000 } else { random.pick(&[100, 3000, 3000, 20_000]) },
        span_ms: if is_large { 1500 } else { random.pick(&[800, 1200, 1200, 2000, 4000]) },
        faults: number("BEANRING_TEST_FAULTS")
            .map_or(faults & ((1 << Fault::ALL.len()) - 1), |faults| faults as u32),
        fault_every_ms: random.pick(&[20, 50, 100, 200]),
        command_every_ms: if is_large { 30 } else { random.pick(&[3, 8, 20, 20, 50]) },
        leases_differ: random.one_in(3),
        reads: random.one_in(4),
    }
}

/// Returns the numbers of acknowledged jobs and of terms of leaders.
fn run(setting: Setting) -> Result<(u64, u64), String> {
    caught(|| {
        let mut world = World::new(setting);
        world.run_until(setting.span_ms * MS);
        world.heal();
        (world.checker.inserted, world.leads)
    })
}

/// Prints the kinds of faults without which the seed does not fail.
fn explain(seed: u64) {
    let mut short = setting(seed);
    for fault in Fault::ALL {
        let fewer = Setting { faults: short.faults & !fault.bit(), ..short };
        if fewer.faults != short.faults && run(fewer).is_err() {
            short = fewer;
        }
    }
    let faults: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| short.faults & fault.bit() != 0).collect();
    println!("it fails with these faults too, BEANRING_TEST_FAULTS={}: {faults:?}", short.faults);
}

#[test]
fn seeds_are_clean() {
    let (mut inserted, mut leads) = (0, 0);
    let run =
        |seed| run(setting(seed)).map(|(jobs, terms)| (inserted, leads) = (inserted + jobs, leads + terms));
    run_seeds(SEEDS_DEFAULT, run, explain);
    println!("{inserted} acknowledged jobs, {leads} terms of leaders");
}
