//! Parses replies of redis: integers, and replies to BRPOP.

use crate::scan::number;

/// The longest accepted header line.
const LINE_BYTES_MAX: usize = 64;

/// A reply, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resp<'a> {
    /// `:n`, of this length.
    Integer { used: usize },
    /// An array of a key and a value.
    Popped {
        value: &'a [u8],
        /// The length with all headers.
        used: usize,
    },
    /// Incomplete: at least `need` bytes are required.
    Partial { need: usize },
    /// An error, or an unexpected reply.
    Nonsense,
}

/// Parses the first reply.
pub fn scan(input: &[u8]) -> Resp<'_> {
    match input.first() {
        None => Resp::Partial { need: 1 },
        Some(b':') => match header(input, 0, b':') {
            Ok((_, used)) => Resp::Integer { used },
            Err(other) => other,
        },
        Some(b'*') => popped(input).unwrap_or_else(|other| other),
        Some(_) => Resp::Nonsense,
    }
}

fn popped(input: &[u8]) -> Result<Resp<'_>, Resp<'_>> {
    let (2, at) = header(input, 0, b'*')? else { return Err(Resp::Nonsense) };
    let (_, at) = bulk(input, at)?;
    let (value, used) = bulk(input, at)?;
    Ok(Resp::Popped { value, used })
}

/// Parses `$bytes`, the bytes, CR LF. Returns the position behind them.
fn bulk(input: &[u8], at: usize) -> Result<(&[u8], usize), Resp<'_>> {
    let (bytes, at) = header(input, at, b'$')?;
    if bytes > u64::from(beanring::values::limits::JOB_BYTES_MAX) {
        return Err(Resp::Nonsense);
    }
    let end = at + bytes as usize;
    if input.len() < end + 2 {
        return Err(Resp::Partial { need: end + 2 });
    }
    if &input[end..end + 2] != b"\r\n" {
        return Err(Resp::Nonsense);
    }
    Ok((&input[at..end], end + 2))
}

/// Parses a line of a mark and a number. Returns the position behind it.
fn header(input: &[u8], at: usize, mark: u8) -> Result<(u64, usize), Resp<'_>> {
    let window = &input[at..input.len().min(at + LINE_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        let full = window.len() == LINE_BYTES_MAX;
        return Err(if full { Resp::Nonsense } else { Resp::Partial { need: input.len() + 1 } });
    };
    match &window[..=end] {
        [first, digits @ .., b'\r', b'\n'] if *first == mark => {
            number(digits).map(|value| (value, at + end + 1)).ok_or(Resp::Nonsense)
        }
        _ => Err(Resp::Nonsense),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POPPED: &[u8] = b"*2\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n";

    #[test]
    fn whole_replies() {
        assert_eq!(scan(b":12\r\n:13\r\n"), Resp::Integer { used: 5 });
        assert_eq!(scan(POPPED), Resp::Popped { value: b"a\r\nb", used: POPPED.len() });
    }

    #[test]
    fn every_prefix_is_partial() {
        for end in 0..POPPED.len() {
            let Resp::Partial { need } = scan(&POPPED[..end]) else { panic!("prefix {end}") };
            assert!(need > end && need <= POPPED.len());
        }
        assert_eq!(scan(b":1\r"), Resp::Partial { need: 4 });
    }

    #[test]
    fn nonsense() {
        for input in
            [&b"-ERR x\r\n"[..], b"+OK\r\n", b"*3\r\n", b"*-1\r\n", b":x\r\n", b":1\n", b"*2\r\n:1\r\n"]
        {
            assert_eq!(scan(input), Resp::Nonsense, "{:?}", String::from_utf8_lossy(input));
        }
        assert_eq!(scan(b"*2\r\n$1\r\nkk\r\n"), Resp::Nonsense);
    }
}
