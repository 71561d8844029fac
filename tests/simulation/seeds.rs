//! Runs of many seeds.
//!
//! `BEANRING_TEST_SEEDS` sets the number of seeds and `BEANRING_TEST_FROM` the first one. `BEANRING_TEST_SECONDS` runs seeds for a time
//! instead, and `BEANRING_TEST_SEED` replays one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use beanring_testkit::random::number;

/// Returns the result of a call, or the message of its panic.
pub fn caught<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or(panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or("a panic".to_owned())
    })
}

/// Runs the seeds that the environment asks for. Prints the first one that fails, and what `explain` knows of it.
pub fn run_seeds(default: u64, mut run: impl FnMut(u64) -> Result<(), String>, explain: impl FnOnce(u64)) {
    let one = number("BEANRING_TEST_SEED");
    let first = one.or(number("BEANRING_TEST_FROM")).unwrap_or(0);
    let count = if one.is_some() { 1 } else { number("BEANRING_TEST_SEEDS").unwrap_or(default) };
    let patience = number("BEANRING_TEST_SECONDS").map(Duration::from_secs);
    let began = Instant::now();
    let end = if patience.is_some() { u64::MAX } else { first + count };
    let mut seeds = 0;
    for seed in (first..end).take_while(|_| patience.is_none_or(|patience| began.elapsed() < patience)) {
        if let Err(message) = run(seed) {
            println!("seed {seed} fails after {seeds} seeds: {message}");
            explain(seed);
            panic!("BEANRING_TEST_SEED={seed} replays it: {message}");
        }
        seeds += 1;
    }
    println!("{seeds} seeds from {first}, none failed");
}
