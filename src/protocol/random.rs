//! Random input for tests.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Marsaglia's xorshift64.
pub struct Random(u64);

impl Random {
    /// Starts from the environment's `SEED`, or else from a new one. Prints it, which a failed test shows.
    pub fn new() -> Self {
        let seed = match std::env::var("SEED") {
            Ok(seed) => seed.parse().expect("SEED is a number"),
            Err(_) => RandomState::new().hash_one(()),
        };
        println!("SEED={seed}");
        // From zero it would never leave zero.
        Self(seed.max(1))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
