//! Who still needs a large body.

/// The owner of the slot, and those who have pinned it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readers {
    pins: u32,
    freed: bool,
}

impl Readers {
    /// The owner alone.
    pub const OWNER: Self = Self { pins: 0, freed: false };

    pub fn pin(&mut self) {
        assert!(!self.freed, "only an owner has a slot to pin");
        self.pins = self.pins.checked_add(1).expect("fewer pins than 2^32");
    }

    /// Whether that was the last reader.
    pub fn unpin(&mut self) -> bool {
        self.pins = self.pins.checked_sub(1).expect("a pin is given back once");
        self.freed && self.pins == 0
    }

    /// The owner leaves. Whether that was the last reader.
    pub fn free(&mut self) -> bool {
        assert!(!self.freed, "a slot is freed once");
        self.freed = true;
        self.pins == 0
    }

    pub fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// # Panics
    /// If nobody is left.
    pub fn check(&self) {
        assert!(self.pins > 0 || !self.freed, "a body without readers is given back at once");
    }
}
