//! CRC-32C backwards: from a checksum and the bytes to the seed that it began with. And the hash in the head of a record.

/// The polynomial of CRC-32C with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// From the digits of pi; the factor is odd.
const HASH_BEGIN: u64 = 0x243f_6a88_85a3_08d3;
const HASH_FACTOR: u64 = 0x1319_8a2e_0370_7345;

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

/// The hash of a head of three words. The CRC of so few bytes costs several times as many instructions.
pub fn head_hash(head: &[u8; 24]) -> u32 {
    let words = head.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let hash = words.fold(HASH_BEGIN, |hash, word| {
        let product = u128::from(hash ^ word) * u128::from(HASH_FACTOR);
        (product >> 64) as u64 ^ product as u64
    });
    (hash >> 32) as u32 ^ hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_found_again() {
        for seed in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            for bytes in [&b""[..], b"a", b"\0\0\0\0\0\0\0\0", b"a body of a job\r\n"] {
                let crc = crc32c::crc32c_append(seed, bytes);
                assert_eq!(seed_of(crc, bytes), seed, "{seed:x} {bytes:?}");
            }
        }
    }

    #[test]
    fn each_bit_of_a_head_changes_half_of_its_hash() {
        let head: [u8; 24] = std::array::from_fn(|at| at as u8 * 11);
        let mut changed = 0;
        for bit in 0..24 * 8 {
            let mut other = head;
            other[bit / 8] ^= 1 << (bit % 8);
            let differences = (head_hash(&head) ^ head_hash(&other)).count_ones();
            assert!(differences > 3, "bit {bit}: {differences}");
            changed += differences;
        }
        assert!((14..=18).contains(&(changed / (24 * 8))), "{changed}");
    }
}
