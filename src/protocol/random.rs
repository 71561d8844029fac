//! Random numbers for tests.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Marsaglia's xorshift64.
pub struct Random(u64);

impl Random {
    /// Seeds the generator from the environment variable `SEED`, or else at random. Prints the seed, which a failed test
    /// shows.
    pub fn new() -> Self {
        let seed = match std::env::var("SEED") {
            Ok(seed) => seed.parse().expect("SEED is a number"),
            Err(_) => RandomState::new().hash_one(()),
        };
        println!("SEED={seed}");
        // A state of zero would never change.
        Self(seed.max(1))
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// Returns one of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
