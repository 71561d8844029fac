//! Random conversations with Debian's beanstalkd and with ours at once: the same bytes to both, and the
//! replies compared.
//!
//! `BEANRING_SEEDS` and `BEANRING_STEPS` say how much, `BEANRING_SEED` runs one seed alone.

mod generator;
mod pair;
mod reply;
mod run;
#[allow(dead_code)] // Each test program uses a part of it.
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, thread};

use run::{Trouble, run};
use support::live::reference;

const SEEDS_DEFAULT: u64 = 60;
const STEPS_DEFAULT: usize = 300;

/// Some seeds keep a core busy, others mostly sleep.
const AT_ONCE: usize = 6;

/// A difference is one that shows each time: the reference can lose a time-out (see `pair.rs`).
const TRIES_MAX: usize = 4;

/// A run in which the machine was late proves nothing.
const LATE_MAX: usize = 4;

#[test]
fn beanring_answers_as_the_reference() {
    compare_with_reference(Path::new(support::lines::PROGRAM), setting("BEANRING_SEEDS", SEEDS_DEFAULT));
}

/// What differs here is not settled by the protocol, and must not be generated.
#[test]
fn the_reference_answers_as_itself() {
    if let Some(program) = reference() {
        compare_with_reference(&program, setting("BEANRING_SEEDS", SEEDS_DEFAULT).div_ceil(6));
    }
}

fn compare_with_reference(program: &Path, seeds: u64) {
    let Some(reference) = reference() else {
        println!("skipped: differential test, because beanstalkd is not installed");
        return;
    };
    let steps = setting("BEANRING_STEPS", STEPS_DEFAULT as u64) as usize;
    let (first, seeds) = match env::var("BEANRING_SEED") {
        Ok(_) => (setting("BEANRING_SEED", 0), 1),
        Err(_) => (0, seeds),
    };
    let next = AtomicU64::new(first);
    let (late, doubtful) = (AtomicU64::new(0), AtomicU64::new(0));
    let differences = Mutex::new(Vec::new());
    let too_late = Mutex::new(Vec::new());
    let settle = |seed| {
        let (mut late_ones, mut differing) = (0, 0);
        loop {
            match run(&reference, program, seed, steps) {
                Ok(()) => return,
                Err(Trouble::Late) => {
                    late.fetch_add(1, Ordering::Relaxed);
                    late_ones += 1;
                    if late_ones == LATE_MAX {
                        too_late.lock().expect("no thread panicked with it").push(seed);
                        return;
                    }
                }
                Err(trouble @ Trouble::Difference { .. }) => {
                    differing += 1;
                    if differing == TRIES_MAX {
                        differences.lock().expect("no thread panicked with it").push((seed, trouble));
                        return;
                    }
                    println!("seed {seed}, difference {differing}: {}", trouble.what());
                    doubtful.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    settle(seed);
                }
            });
        }
    });
    // What the machine was too busy for, one at a time.
    let busy = std::mem::take(&mut *too_late.lock().expect("no thread panicked with it"));
    busy.into_iter().for_each(settle);
    for seed in too_late.into_inner().expect("no thread panicked with it") {
        println!(
            "skipped: seed {seed} of the comparison, because the machine was too busy to keep the times apart"
        );
    }
    let mut differences = differences.into_inner().expect("no thread panicked with it");
    differences.sort_by_key(|&(seed, _)| seed);
    for (seed, trouble) in &differences {
        println!("\nBEANRING_SEED={seed} BEANRING_STEPS={steps}\n{trouble}");
    }
    println!(
        "{seeds} seeds of {steps} steps, {} differ; repeated: {late:?} late, {doubtful:?} that differed once",
        differences.len()
    );
    assert!(differences.is_empty(), "{} of {seeds} seeds differ", differences.len());
}

fn setting(name: &str, default: u64) -> u64 {
    match env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")),
        Err(_) => default,
    }
}
