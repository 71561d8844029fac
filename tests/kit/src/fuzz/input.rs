//! A fuzzer's input, read as a small language: a byte selects an action, and those behind it are its arguments.

/// The bytes that are not read yet. All bytes beyond their end are zero.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Returns a number below `bound`, which is 1 to 65,536.
    pub fn below(&mut self, bound: usize) -> usize {
        let number = if bound <= 256 { usize::from(self.byte()) } else { usize::from(self.half()) };
        number % bound
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns `count` bytes, or all that are left.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }
}

/// Returns bytes that depend only on `seed` and `length`. No part of them occurs in another such sequence.
pub fn filler(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = seed;
    while bytes.len() < length {
        word = beanring::intrusive::mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15));
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
