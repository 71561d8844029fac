//! Random numbers that are replayed by their seed.

use std::env;
use std::ops::Range;

/// The SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        beanring::intrusive::mix(self.0)
    }

    /// Returns a number below `bound`, which is not 0.
    pub const fn below(&mut self, bound: usize) -> usize {
        self.below_u64(bound as u64) as usize
    }

    /// Returns a number below `bound`, which is not 0.
    pub const fn below_u64(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns true `percent` times in 100.
    pub const fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns true once in `bound` times.
    pub const fn one_in(&mut self, bound: u64) -> bool {
        self.below_u64(bound) == 0
    }

    /// Returns one of the choices, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Returns the number in a variable of the environment.
pub fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Returns the seeds of a random test: the one in `BEANRING_TEST_SEED`, or as many as in `BEANRING_TEST_SEEDS`, or `default` of
/// them.
pub fn seeds(default: u64) -> Range<u64> {
    match number("BEANRING_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let seeds = number("BEANRING_TEST_SEEDS").unwrap_or(default);
            assert!(seeds > 0, "BEANRING_TEST_SEEDS=0 would test nothing");
            0..seeds
        }
    }
}
