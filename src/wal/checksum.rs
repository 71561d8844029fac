//! CRC-32C backwards: from a checksum and the bytes to the seed that it began with.

/// The polynomial of CRC-32C with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Returns the seed from which `bytes` have this checksum, as `crc32c_append` computes it.
pub fn seed_of(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().rev().fold(!crc, |state, &byte| {
        let undo = |state: u32| match state >> 31 {
            0 => state << 1,
            _ => (state ^ POLYNOMIAL) << 1 | 1,
        };
        (0..u8::BITS).fold(state, |state, _| undo(state)) ^ u32::from(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_found_again() {
        for seed in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            for bytes in [&b""[..], b"a", b"\0\0\0\0\0\0\0\0", b"a body of a job\r\n"] {
                assert_eq!(seed_of(crc32c::crc32c_append(seed, bytes), bytes), seed, "{seed:x} {bytes:?}");
            }
        }
    }
}
