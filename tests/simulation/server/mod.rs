//! A deterministic simulation of the whole server with clients, network, disk and clock. A seed chooses among all possible
//! events, and a checker knows the replies that each client must get.
//!
//! `BEANRING_TEST_SEEDS` sets the number of seeds and `BEANRING_TEST_FROM` the first one. `BEANRING_TEST_SECONDS` runs seeds for a time
//! instead, and `BEANRING_TEST_SEED` replays one. A seed that fails is shortened to a script. A script in `scripts/` is a test.

mod action;
mod checker;
mod generate;
mod history;
mod names;
mod observed;
mod report;
mod script;
mod world;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use self::generate::Generator;
use self::script::{Script, message};
use self::world::World;

const SEEDS_DEFAULT: u64 = 100;
const ACTIONS: usize = 500;
/// Maximum number of shorter scripts to try.
const TRIES: usize = 3_000;

/// Runs a seed. Returns the script of its actions, and the failure if there was one.
fn run(seed: u64) -> (Script, Result<(), String>) {
    let (mut generator, setting) = Generator::new(seed);
    let mut actions = Vec::new();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(setting);
        for _ in 0..ACTIONS {
            let action = generator.next(&world);
            actions.push(action.clone());
            world.apply(&action);
        }
        world.apply(&action::Action::Settle);
    }));
    (Script { setting, actions }, result.map_err(|panic| message(&*panic)))
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
    let mut seeds = first..first + count;
    if patience.is_some() {
        seeds.end = u64::MAX;
    }
    for seed in seeds {
        if patience.is_some_and(|patience| began.elapsed() >= patience) {
            println!("{} seeds from {first}, none failed", seed - first);
            return;
        }
        let (script, result) = run(seed);
        if let Err(message) = result {
            let tls = if script.setting.tls { ", over TLS" } else { "" };
            println!("seed {seed}{tls} fails after {} seeds: {message}", seed - first);
            let length = script.actions.len();
            let short = script.shrink(TRIES);
            println!(
                "a script of {} of its {length} actions fails too:\n\n{}",
                short.actions.len(),
                short.text()
            );
            panic!("BEANRING_TEST_SEED={seed} replays it: {message}");
        }
    }
    println!("{count} seeds from {first}, none failed");
}

/// Replays scripts of failures that are fixed.
#[test]
fn kept_scripts_are_clean() {
    let directory = world::kept_scripts();
    let mut count = 0;
    for entry in std::fs::read_dir(directory).expect("the directory of scripts exists") {
        let path = entry.expect("the entry is readable").path();
        let text = std::fs::read_to_string(&path).expect("the script is readable");
        println!("{}", path.display());
        Script::parse(&text).play();
        count += 1;
    }
    assert!(count > 0);
}
