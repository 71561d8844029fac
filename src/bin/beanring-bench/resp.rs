//! Parses replies of redis: integers, and replies to BRPOP.

use crate::scan::{Reply, Scan, data, number};

/// The longest accepted header line.
const LINE_BYTES_MAX: usize = 64;

/// Parses the first reply.
pub fn scan(input: &[u8]) -> Scan<'_> {
    let whole = match input.first() {
        None => return Scan::Partial { need: 1 },
        Some(b':') => header(input, 0, b':').map(|(_, used)| Scan::Whole { reply: Reply::Pushed, used }),
        Some(b'*') => popped(input),
        Some(_) => return Scan::Nonsense,
    };
    whole.unwrap_or_else(|other| other)
}

fn popped(input: &[u8]) -> Result<Scan<'_>, Scan<'_>> {
    let (2, at) = header(input, 0, b'*')? else { return Err(Scan::Nonsense) };
    let (_, at) = bulk(input, at)?;
    let (value, used) = bulk(input, at)?;
    Ok(Scan::Whole { reply: Reply::Popped(value), used })
}

/// Parses `$bytes`, the bytes, CR LF. Returns the position behind them.
fn bulk(input: &[u8], at: usize) -> Result<(&[u8], usize), Scan<'_>> {
    let (bytes, at) = header(input, at, b'$')?;
    data(input, at, bytes)
}

/// Parses a line of a mark and a number. Returns the position behind it.
fn header(input: &[u8], at: usize, mark: u8) -> Result<(u64, usize), Scan<'_>> {
    let window = &input[at..input.len().min(at + LINE_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        let full = window.len() == LINE_BYTES_MAX;
        return Err(if full { Scan::Nonsense } else { Scan::Partial { need: input.len() + 1 } });
    };
    match &window[..=end] {
        [first, digits @ .., b'\r', b'\n'] if *first == mark => {
            number(digits).map(|value| (value, at + end + 1)).ok_or(Scan::Nonsense)
        }
        _ => Err(Scan::Nonsense),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POPPED: &[u8] = b"*2\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n";

    #[test]
    fn whole_replies() {
        assert_eq!(scan(b":12\r\n:13\r\n"), Scan::Whole { reply: Reply::Pushed, used: 5 });
        assert_eq!(scan(POPPED), Scan::Whole { reply: Reply::Popped(b"a\r\nb"), used: POPPED.len() });
    }

    #[test]
    fn every_prefix_is_partial() {
        for end in 0..POPPED.len() {
            let Scan::Partial { need } = scan(&POPPED[..end]) else { panic!("prefix {end}") };
            assert!(need > end && need <= POPPED.len());
        }
        assert_eq!(scan(b":1\r"), Scan::Partial { need: 4 });
    }

    #[test]
    fn nonsense() {
        for input in
            [&b"-ERR x\r\n"[..], b"+OK\r\n", b"*3\r\n", b"*-1\r\n", b":x\r\n", b":1\n", b"*2\r\n:1\r\n"]
        {
            assert_eq!(scan(input), Scan::Nonsense, "{:?}", String::from_utf8_lossy(input));
        }
        assert_eq!(scan(b"*2\r\n$1\r\nkk\r\n"), Scan::Nonsense);
    }
}
