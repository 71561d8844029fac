//! A deterministic simulation of servers whose job log is in a database: their clocks, pauses and deaths, their clients, and a
//! database that fails over. A seed chooses among everything that may happen, and a checker compares what clients have seen with
//! what each later leader knows.
//!
//! `BEANRING_TEST_SEEDS` sets the number of seeds and `BEANRING_TEST_FROM` the first one. `BEANRING_TEST_SECONDS` runs seeds for a time
//! instead, and `BEANRING_TEST_SEED` replays one; with `BEANRING_TEST_TRACE` it prints what happens. For a seed that fails, the
//! fewest kinds of faults are searched with which it fails too.

mod checker;
mod chunks;
mod database;
mod holds;
mod naive;
mod world;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use beanring_testkit::random::Random;

use self::world::{Fault, MS, Setting, World};

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
        faults: faults & ((1 << Fault::ALL.len()) - 1),
        fault_every_ms: random.pick(&[20, 50, 100, 200]),
        command_every_ms: if is_large { 30 } else { random.pick(&[3, 8, 20, 20, 50]) },
        leases_differ: random.one_in(3),
    }
}

fn run(setting: Setting) -> Result<(u64, u64), String> {
    catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(setting);
        world.run_until(setting.span_ms * MS);
        world.heal();
        (world.checker.inserted, world.leads)
    }))
    .map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or(panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
    })
}

/// Leaves out kinds of faults as long as it fails.
fn shrink(mut setting: Setting) -> Setting {
    for fault in Fault::ALL {
        let fewer = Setting { faults: setting.faults & !fault.bit(), ..setting };
        if fewer.faults != setting.faults && run(fewer).is_err() {
            setting = fewer;
        }
    }
    setting
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Runs the seeds that the environment asks for.
#[test]
fn seeds_are_clean() {
    let one = number("BEANRING_TEST_SEED");
    let first = one.or(number("BEANRING_TEST_FROM")).unwrap_or(0);
    let count = if one.is_some() { 1 } else { number("BEANRING_TEST_SEEDS").unwrap_or(SEEDS_DEFAULT) };
    let patience = number("BEANRING_TEST_SECONDS").map(Duration::from_secs);
    let began = Instant::now();
    let end = if patience.is_some() { u64::MAX } else { first + count };
    let (mut inserted, mut leads, mut seeds) = (0, 0, 0);
    for seed in first..end {
        if patience.is_some_and(|patience| began.elapsed() >= patience) {
            break;
        }
        let mut setting = setting(seed);
        if let Some(faults) = number("BEANRING_TEST_FAULTS") {
            setting.faults = faults as u32;
        }
        match run(setting) {
            Ok((jobs, terms)) => (inserted, leads, seeds) = (inserted + jobs, leads + terms, seeds + 1),
            Err(message) => {
                println!("seed {seed} fails after {} seeds: {message}", seed - first);
                if one.is_none() {
                    let short = shrink(setting);
                    let faults: Vec<Fault> =
                        Fault::ALL.into_iter().filter(|fault| short.faults & fault.bit() != 0).collect();
                    println!(
                        "it fails with these faults too, BEANRING_TEST_FAULTS={}: {faults:?}",
                        short.faults
                    );
                }
                panic!("BEANRING_TEST_SEED={seed} replays it: {message}");
            }
        }
    }
    println!(
        "{seeds} seeds from {first}, none failed: {inserted} acknowledged jobs, {leads} terms of leaders"
    );
}
