//! The head check of a record, by docs/internals/LOG.md and without the code of the server.

/// Writes the check into the last four bytes of a head. `seed` is what the checksums of the segment begin with.
pub fn check(head: &mut [u8; 32], seed: u32) {
    let mut hash: u64 = 0x243f_6a88_85a3_08d3;
    for at in [4, 12, 20] {
        let word = u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let product = u128::from(hash ^ word) * 0x1319_8a2e_0370_7345;
        hash = (product >> 64) as u64 ^ product as u64;
    }
    let check = ((hash >> 32) as u32 ^ hash as u32).wrapping_add(seed);
    head[28..].copy_from_slice(&check.to_le_bytes());
}
