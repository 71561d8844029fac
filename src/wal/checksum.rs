//! CRC-32C backwards: from a checksum and the bytes to the seed that it began with. And masked, to be part of what another one covers.

/// The polynomial of CRC-32C with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const MASK_BITS: u32 = 15;

const MASK: u32 = 0x5bea_41c7;

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

/// Masks a checksum: the CRC of bytes that end with their own CRC is the same for all bytes.
pub const fn masked(crc: u32) -> u32 {
    crc.rotate_right(MASK_BITS).wrapping_add(MASK)
}

/// The checksum that was masked.
pub const fn unmasked(masked: u32) -> u32 {
    masked.wrapping_sub(MASK).rotate_left(MASK_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_found_again() {
        for seed in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            for bytes in [&b""[..], b"a", b"\0\0\0\0\0\0\0\0", b"a body of a job\r\n"] {
                let crc = crc32c::crc32c_append(seed, bytes);
                assert_eq!(seed_of(unmasked(masked(crc)), bytes), seed, "{seed:x} {bytes:?}");
            }
        }
    }
}
