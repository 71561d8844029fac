//! Points in time and spans of time, in nanoseconds. There is no clock here: drivers read the clock and pass `now`.

mod seconds;

use std::ops::Add;

pub use self::seconds::Seconds;

/// A point in time: nanoseconds of a monotonic clock that starts at the time since 1970. So the times in a job log mean
/// something to the next process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time(u64);

/// A span of time in nanoseconds. The longest span of the protocol, 2^32 - 1 seconds, fits into it four times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Span(u64);

impl Time {
    /// The earliest point in time.
    pub const ZERO: Self = Self(0);

    /// The point `ns` nanoseconds after zero.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to this point, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The point `span` before this one, or zero if that would be earlier.
    pub const fn back(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// The first multiple of `step` at or after this point.
    ///
    /// # Panics
    /// If `step` is zero.
    pub const fn round_up(self, step: Span) -> Self {
        Self(self.0.div_ceil(step.0).saturating_mul(step.0))
    }
}

impl Add<Span> for Time {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);

    /// A span of whole seconds, as the protocol counts them.
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds as u64 * 1_000_000_000)
    }

    /// A span of milliseconds.
    pub const fn from_millis(milliseconds: u32) -> Self {
        Self(milliseconds as u64 * 1_000_000)
    }

    /// A span of nanoseconds.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// The span in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The whole seconds of the span.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }
}
