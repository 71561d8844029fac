//! Job bodies that can be verified: a stamp with a checksum, then a pattern derived from a seed.

use itoa::Buffer;

/// The seed of bodies and of every choice.
pub const SEED: u64 = 1;

/// The TTR of all jobs, longer than any run.
const TTR_S: u32 = 86_400;

/// A body of at least this size carries a [`Stamp`]; a shorter one is pattern only.
pub const STAMP_BYTES: usize = 16;

/// The data of a put in its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// The time of the put, or the time when it was due, in nanoseconds of the run's clock.
    pub start_ns: u64,
    /// The connection that put it.
    pub producer: u32,
}

/// An error in a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BodyFault {
    #[error("a body has another length than was put")]
    Length,
    #[error("a body has other bytes than were put")]
    Bytes,
}

/// Creates and checks bodies. It copies and stamps a prepared command.
pub struct Bodies {
    /// The command up to the body, the body, CR LF.
    command: Vec<u8>,
    body_at: usize,
    body_bytes: usize,
}

impl Bodies {
    /// Prepares bodies of `body_bytes` for a command that begins with `head`.
    pub fn new(head: &[u8], body_bytes: usize) -> Bodies {
        let mut command = Vec::with_capacity(head.len() + body_bytes + 2);
        command.extend_from_slice(head);
        let mut random = Random::new(SEED);
        command.extend((0..body_bytes).map(|_| b'a' + (random.next() % 26) as u8));
        command.extend_from_slice(b"\r\n");
        Bodies { command, body_at: head.len(), body_bytes }
    }

    /// Prepares bodies for beanstalk's `put`.
    pub fn for_put(body_bytes: usize) -> Bodies {
        let head = format!("put 1024 0 {TTR_S} {body_bytes}\r\n");
        Bodies::new(head.as_bytes(), body_bytes)
    }

    /// Appends the command.
    pub fn put(&self, stamp: Stamp, out: &mut Vec<u8>) {
        let at = out.len() + self.body_at;
        out.extend_from_slice(&self.command);
        if self.body_bytes >= STAMP_BYTES {
            out[at..at + 8].copy_from_slice(&stamp.start_ns.to_le_bytes());
            out[at + 8..at + 12].copy_from_slice(&stamp.producer.to_le_bytes());
            out[at + 12..at + 16].copy_from_slice(&check_of(stamp).to_le_bytes());
        }
    }

    /// Checks `body` and returns its stamp, if it has one.
    pub fn check(&self, body: &[u8]) -> Result<Stamp, BodyFault> {
        if body.len() != self.body_bytes {
            return Err(BodyFault::Length);
        }
        let pattern = &self.command[self.body_at..self.body_at + self.body_bytes];
        let Some((head, rest)) = body.split_first_chunk::<STAMP_BYTES>() else {
            return if body == pattern { Ok(Stamp::default()) } else { Err(BodyFault::Bytes) };
        };
        let [start, tail] = [&head[..8], &head[8..]];
        let stamp = Stamp {
            start_ns: u64::from_le_bytes(start.try_into().expect("8 bytes")),
            producer: u32::from_le_bytes(tail[..4].try_into().expect("4 bytes")),
        };
        let check = u32::from_le_bytes(tail[4..].try_into().expect("4 bytes"));
        if check == check_of(stamp) && *rest == pattern[STAMP_BYTES..] {
            Ok(stamp)
        } else {
            Err(BodyFault::Bytes)
        }
    }
}

fn check_of(stamp: Stamp) -> u32 {
    (mix(stamp.start_ns ^ mix(SEED ^ u64::from(stamp.producer))) >> 32) as u32
}

/// Appends a number in decimal.
pub fn push_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(Buffer::new().format(number).as_bytes());
}

/// The SplitMix64 generator: the same seed gives the same run.
pub struct Random(u64);

impl Random {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_comes_back_as_it_was_put() {
        for body_bytes in [0, 1, 15, 16, 17, 64, 1000] {
            let bodies = Bodies::for_put(body_bytes);
            let stamp = Stamp { start_ns: 123_456_789, producer: 42 };
            let mut out = b"before".to_vec();
            bodies.put(stamp, &mut out);
            let head = format!("beforeput 1024 0 86400 {body_bytes}\r\n");
            assert!(out.starts_with(head.as_bytes()) && out.ends_with(b"\r\n"));
            let body = &out[head.len()..out.len() - 2];
            let expected = if body_bytes >= STAMP_BYTES { stamp } else { Stamp::default() };
            assert_eq!(bodies.check(body), Ok(expected));
        }
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let bodies = Bodies::for_put(40);
        let mut out = Vec::new();
        bodies.put(Stamp { start_ns: 5, producer: 1 }, &mut out);
        let body = &mut out[bodies.body_at..bodies.body_at + 40];
        for bit in 0..40 * 8 {
            body[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(bodies.check(body), Err(BodyFault::Bytes), "bit {bit}");
            body[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(bodies.check(&body[1..]), Err(BodyFault::Length));
    }
}
