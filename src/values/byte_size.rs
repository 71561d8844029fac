//! Numbers of bytes as a reader sees them.

use std::fmt;

/// A number of bytes, shown in the largest unit that it is a multiple of: `512 MiB`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match largest_unit(self.0) {
            (number, Some('k')) => write!(f, "{number} KiB"),
            (number, Some('m')) => write!(f, "{number} MiB"),
            (number, Some(_)) => write!(f, "{number} GiB"),
            (number, None) => write!(f, "{number} bytes"),
        }
    }
}

/// Returns the size in the largest unit that leaves a whole number, with the letter of the unit: `k`, `m`, `g`, or none for
/// bytes.
pub fn largest_unit(bytes: u64) -> (u64, Option<char>) {
    let units = [(30, 'g'), (20, 'm'), (10, 'k')];
    let fits = |(shift, _): &(u32, char)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    units.into_iter().find(fits).map_or((bytes, None), |(shift, unit)| (bytes >> shift, Some(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (65_535, "65535 bytes"),
            (65_536, "64 KiB"),
            (1_048_577, "1048577 bytes"),
            (512 << 20, "512 MiB"),
            (3 << 30, "3 GiB"),
            (1 << 40, "1024 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), expected);
        }
    }
}
