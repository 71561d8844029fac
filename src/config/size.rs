//! Sizes in bytes: `65536`, `64k`, `10m`, `2g`, `512MiB`; times in seconds: `90`, `90s`, `10m`, `2h`, `1d`.

use std::fmt;

use crate::values::byte_size::largest_unit;

/// Why a text is not a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeError {
    /// Not a number with a unit.
    NotASize,
    /// More than 2^64 bytes.
    TooLarge,
    /// A unit whose powers may be of 1000 or of 1024: KB, MB or GB. It has the first letter of the unit.
    Ambiguous(char),
}

/// The units, in lower case, and their bytes.
const UNITS: [(&str, u64); 7] = [
    ("", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
];

/// Parses a size.
///
/// # Errors
/// If the text is not a size.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    if number.is_empty() {
        return Err(SizeError::NotASize);
    }
    if let "kb" | "mb" | "gb" = &*unit {
        return Err(SizeError::Ambiguous(char::from(unit.as_bytes()[0])));
    }
    let &(_, bytes) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(SizeError::NotASize)?;
    let number = number.parse::<u64>().map_err(|_| SizeError::TooLarge)?;
    number.checked_mul(bytes).ok_or(SizeError::TooLarge)
}

/// A number of bytes, written with the largest unit that leaves a whole number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match largest_unit(self.0) {
            (number, Some(unit)) => write!(f, "{number}{unit}"),
            (number, None) => write!(f, "{number}"),
        }
    }
}

/// Parses a number of seconds, or of another unit.
///
/// # Errors
/// If the text is something else, or the time too long.
pub fn seconds(text: &str) -> Result<u32, String> {
    let unit = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let (number, factor) = unit
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    // `parse` accepts a sign.
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("must be a whole number of seconds, or a time such as 90s, 10m, 2h or 1d".to_owned());
    }
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor));
    seconds.ok_or_else(|| format!("must be at most {} s, {} days", u32::MAX, u32::MAX / 86_400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_what_is_none() {
        for (text, result) in [
            ("0", Ok(0)),
            ("65536", Ok(65_536)),
            ("64k", Ok(65_536)),
            ("64K", Ok(65_536)),
            ("1KiB", Ok(1024)),
            ("1m", Ok(1 << 20)),
            ("512MiB", Ok(512 << 20)),
            ("512mib", Ok(512 << 20)),
            ("2G", Ok(2 << 30)),
            ("2GiB", Ok(2 << 30)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(SizeError::TooLarge)),
            ("17179869184g", Err(SizeError::TooLarge)),
            ("1MB", Err(SizeError::Ambiguous('m'))),
            ("1kb", Err(SizeError::Ambiguous('k'))),
            ("", Err(SizeError::NotASize)),
            ("m", Err(SizeError::NotASize)),
            ("1t", Err(SizeError::NotASize)),
            ("1 m", Err(SizeError::NotASize)),
            ("1.5g", Err(SizeError::NotASize)),
            ("-1", Err(SizeError::NotASize)),
            ("+1", Err(SizeError::NotASize)),
            ("1é", Err(SizeError::NotASize)),
        ] {
            assert_eq!(parse(text), result, "{text}");
        }
    }

    #[test]
    fn sizes_are_printed_with_their_unit() {
        for (bytes, text) in [
            (0, "0"),
            (65_535, "65535"),
            (65_536, "64k"),
            (10 << 20, "10m"),
            (1 << 40, "1024g"),
            (69_632, "68k"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
