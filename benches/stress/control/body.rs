//! Job bodies that can be verified: a number, a hash, and bytes derived from the number.

use super::Violation;
use beanring_testkit::random::Random;

/// Size of the number and the hash.
pub const HEAD_BYTES: usize = 12;

/// Returns the body of a number, `bytes` long.
pub fn make(number: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(number);
    let mut body = Vec::with_capacity(bytes.max(HEAD_BYTES) + 8);
    body.extend_from_slice(&number.to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    while body.len() < bytes {
        body.extend_from_slice(&random.next().to_le_bytes());
    }
    body.truncate(bytes.max(HEAD_BYTES));
    let hash = crc32c::crc32c(&body);
    body[8..HEAD_BYTES].copy_from_slice(&hash.to_le_bytes());
    body
}

/// Returns the number of a body, or none if the body was altered.
pub fn number(id: u64, body: &[u8]) -> Result<u64, Violation> {
    let head = body.get(..HEAD_BYTES).ok_or(Violation::Altered { id })?;
    let (number, hash) = head.split_at(8);
    let of_rest = crc32c::crc32c_append(crc32c::crc32c(&[number, &[0; 4]].concat()), &body[HEAD_BYTES..]);
    if of_rest.to_le_bytes() == hash {
        Ok(u64::from_le_bytes(number.try_into().expect("it was split there")))
    } else {
        Err(Violation::Altered { id })
    }
}
