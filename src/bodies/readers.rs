//! The readers of a large body.

/// The owner of the slot, and the pins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readers {
    pins: u32,
    freed: bool,
}

impl Readers {
    /// The owner and no pins.
    pub const OWNER: Self = Self { pins: 0, freed: false };

    pub fn pin(&mut self) {
        assert!(!self.freed, "the owner pins a slot before it frees it");
        self.pins = self.pins.checked_add(1).expect("fewer pins than 2^32");
    }

    /// Removes a pin. Returns true if it was the last reader.
    pub fn unpin(&mut self) -> bool {
        self.pins = self.pins.checked_sub(1).expect("a pin is removed once");
        self.freed && self.pins == 0
    }

    /// Removes the owner. Returns true if it was the last reader.
    pub fn free(&mut self) -> bool {
        assert!(!self.freed, "a slot is freed once");
        self.freed = true;
        self.pins == 0
    }

    pub fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// # Panics
    /// If there are no readers.
    pub fn check(&self) {
        assert!(self.pins > 0 || !self.freed, "a body without readers is freed at once");
    }
}
