//! The fixed fields of records, little-endian.

use crate::queue::{Counts, LoggedState, PackedCounts, PersistedState};
use crate::time::{Seconds, Time};
use crate::values::limits::BURIALS_MAX;

/// The bits of a number of milliseconds below 1,000.
pub(super) const MILLIS_MASK: u32 = 0x3ff;

/// The bits of what [`state_word`] returns.
pub(super) const STATE_MASK: u32 = MILLIS_MASK << 4 | 0xf;

/// The kind of a persisted state in 4 bits, and the milliseconds of its delay beyond whole seconds in 10 bits.
pub(super) fn state_word(state: &PersistedState) -> u32 {
    let kind = match state.state {
        LoggedState::Ready => 0,
        LoggedState::Delayed(_) => 1,
        LoggedState::Buried(_) => 2,
        LoggedState::Held(_) => 3,
        LoggedState::Reserved(_) => 4,
    };
    // mutant fraction-lost-by-a-restart: u32::from(state.delay.millis()) << 4 | kind => kind
    u32::from(state.delay.millis()) << 4 | kind
}

/// Fixed fields, one after another.
pub(super) struct Fields<const N: usize> {
    pub bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Fields<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Fields<N> {
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// All of a persisted state but what [`state_word`] encodes: 36 bytes.
    pub fn state(&mut self, state: &PersistedState) -> &mut Self {
        let order = match state.state {
            LoggedState::Ready => 0,
            LoggedState::Delayed(until) | LoggedState::Held(until) | LoggedState::Reserved(until) => {
                until.as_nanos()
            }
            LoggedState::Buried(order) => order,
        };
        self.u64(order).u32(state.pri).u32(state.delay.as_whole());
        PackedCounts::of(&state.counts).numbers().into_iter().for_each(|count| {
            self.u32(count);
        });
        self
    }
}

/// The inverse of [`Fields`].
pub(super) struct Reader<'a>(pub &'a [u8]);

pub(super) struct RawState {
    order: u64,
    pri: u32,
    delay: u32,
    counts: Counts,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("fixed fields have a fixed length");
        self.0 = rest;
        *first
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub fn state(&mut self) -> RawState {
        let (order, pri, delay) = (self.u64(), self.u32(), self.u32());
        let counts = PackedCounts::of_numbers([(); 5].map(|()| self.u32())).get();
        RawState { order, pri, delay, counts }
    }
}

impl RawState {
    pub fn state(self, word: u32) -> Option<PersistedState> {
        let delay = Seconds::new(self.delay, (word >> 4 & MILLIS_MASK) as u16)?;
        let state = match word & !(MILLIS_MASK << 4) {
            0 => LoggedState::Ready,
            1 => LoggedState::Delayed(Time::from_nanos(self.order)),
            2 if self.order <= BURIALS_MAX => LoggedState::Buried(self.order),
            3 => LoggedState::Held(Time::from_nanos(self.order)),
            4 => LoggedState::Reserved(Time::from_nanos(self.order)),
            _ => return None,
        };
        Some(PersistedState { pri: self.pri, delay, state, counts: self.counts })
    }
}
