//! Bodies that know what they are: their number, a hash, and bytes that follow from the number.

use super::Fault;
use beanring_testkit::random::Random;

/// Number and hash.
pub const HEAD_BYTES: usize = 12;

/// The body of this number, of `bytes` bytes.
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

/// The number of a body that is as it was made.
pub fn number(id: u64, body: &[u8]) -> Result<u64, Fault> {
    let head = body.get(..HEAD_BYTES).ok_or(Fault::Altered { id })?;
    let (number, hash) = head.split_at(8);
    let of_rest = crc32c::crc32c_append(crc32c::crc32c(&[number, &[0; 4]].concat()), &body[HEAD_BYTES..]);
    if of_rest.to_le_bytes() == hash {
        Ok(u64::from_le_bytes(number.try_into().expect("it was split there")))
    } else {
        Err(Fault::Altered { id })
    }
}
