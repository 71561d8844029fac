//! A deterministic simulation of the whole server with clients, network, disk and clock. A seed chooses among all possible
//! events, and a checker knows the replies that each client must get.
//!
//! A seed that fails is shortened to a script. A script in `scripts/` is a test.

pub mod action;
mod checker;
mod generate;
mod history;
mod names;
mod observed;
mod report;
mod script;
pub mod world;

use beanring_testkit::repository;

use self::generate::Generator;
use self::script::Script;
use self::world::World;
use super::seeds::{caught, run_seeds};

const SEEDS_DEFAULT: u64 = 100;
const ACTIONS: usize = 500;
/// Maximum number of shorter scripts to try.
const TRIES: usize = 3_000;

/// Runs a seed. Returns the script of its actions, and the failure if there was one.
fn run(seed: u64) -> (Script, Result<(), String>) {
    let (mut generator, setting) = Generator::new(seed);
    let mut actions = Vec::new();
    let result = caught(|| {
        let mut world = World::new(setting);
        for _ in 0..ACTIONS {
            let action = generator.next(&world);
            actions.push(action.clone());
            world.apply(&action);
        }
        world.apply(&action::Action::Settle);
    });
    (Script { setting, actions }, result)
}

/// Prints a short script that fails as the seed does.
fn explain(seed: u64) {
    let (script, _) = run(seed);
    let length = script.actions.len();
    let short = script.shrink(TRIES);
    println!("a script of {} of its {length} actions fails too:\n\n{}", short.actions.len(), short.text());
}

#[test]
fn seeds_are_clean() {
    run_seeds(SEEDS_DEFAULT, |seed| run(seed).1, explain);
}

/// Replays scripts of failures that are fixed.
#[test]
fn kept_scripts_are_clean() {
    let directory = repository().join("tests/simulation/server/scripts");
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
