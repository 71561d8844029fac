//! Parses replies of a beanstalk server without allocation and without state. An incomplete reply is parsed again when
//! more bytes have arrived; the result says how many that must be.

use beanring::values::limits::JOB_BYTES_MAX;

/// The longest accepted reply line: the longest of the protocol (`USING` and a name), with a margin.
const LINE_BYTES_MAX: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply<'a> {
    /// `INSERTED id`
    Inserted(u64),
    /// `RESERVED id bytes` and the body.
    Reserved {
        id: u64,
        /// The body without CR LF.
        body: &'a [u8],
    },
    /// `OK bytes` and the data.
    Ok(&'a [u8]),
    /// `USING tube`
    Using,
    /// `WATCHING count`
    Watching,
    /// Of redis: `:length`, to LPUSH.
    Pushed,
    /// Of redis: an array of a key and this value, to BRPOP.
    Popped(&'a [u8]),
    /// A reply of one word, or of a word and a number that is not used: one of [`WORDS`].
    Word(&'static str),
}

/// The replies without data.
const WORDS: [&str; 13] = [
    "DELETED",
    "BURIED",
    "NOT_FOUND",
    "NOT_IGNORED",
    "TIMED_OUT",
    "DEADLINE_SOON",
    "JOB_TOO_BIG",
    "DRAINING",
    "OUT_OF_MEMORY",
    "INTERNAL_ERROR",
    "BAD_FORMAT",
    "UNKNOWN_COMMAND",
    "EXPECTED_CRLF",
];

/// Returns whether a reply of one word means that the operation has failed.
pub fn is_refusal(word: &str) -> bool {
    word != "DELETED"
}

/// The parsed start of the received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan<'a> {
    /// A complete reply of `used` bytes.
    Whole { reply: Reply<'a>, used: usize },
    /// Incomplete: at least `need` bytes are required.
    Partial { need: usize },
    /// Not a reply of this protocol.
    Nonsense,
}

/// Parses the first reply.
pub fn scan(input: &[u8]) -> Scan<'_> {
    whole(input).unwrap_or_else(|other| other)
}

fn whole(input: &[u8]) -> Result<Scan<'_>, Scan<'_>> {
    let line = line(input)?;
    let used = line.len() + 2;
    let number = |digits: &[u8]| number(digits).ok_or(Scan::Nonsense);
    let mut words = line.splitn(2, |&byte| byte == b' ');
    let (reply, used) = match (words.next().unwrap_or_default(), words.next()) {
        (b"INSERTED", Some(id)) => (Reply::Inserted(number(id)?), used),
        (b"RESERVED", Some(rest)) => {
            let space = rest.iter().position(|&byte| byte == b' ').ok_or(Scan::Nonsense)?;
            let id = number(&rest[..space])?;
            let (body, used) = data(input, used, number(&rest[space + 1..])?)?;
            (Reply::Reserved { id, body }, used)
        }
        (b"OK", Some(bytes)) => {
            let (data, used) = data(input, used, number(bytes)?)?;
            (Reply::Ok(data), used)
        }
        (b"USING", Some(_)) => (Reply::Using, used),
        (b"WATCHING", Some(count)) => number(count).map(|_| (Reply::Watching, used))?,
        (b"BURIED", Some(id)) => number(id).map(|_| (Reply::Word("BURIED"), used))?,
        (word, None) => {
            let known = WORDS.iter().find(|known| known.as_bytes() == word);
            (Reply::Word(known.ok_or(Scan::Nonsense)?), used)
        }
        _ => return Err(Scan::Nonsense),
    };
    Ok(Scan::Whole { reply, used })
}

/// Returns the first line without its CR LF.
fn line(input: &[u8]) -> Result<&[u8], Scan<'_>> {
    let window = &input[..input.len().min(LINE_BYTES_MAX)];
    match memchr::memchr(b'\n', window) {
        Some(end) if end > 0 && window[end - 1] == b'\r' => Ok(&window[..end - 1]),
        Some(_) => Err(Scan::Nonsense),
        None if window.len() == LINE_BYTES_MAX => Err(Scan::Nonsense),
        None => Err(Scan::Partial { need: input.len() + 1 }),
    }
}

/// Returns the data of this size at a position, and the position behind its CR LF.
pub fn data(input: &[u8], at: usize, bytes: u64) -> Result<(&[u8], usize), Scan<'_>> {
    if bytes > u64::from(JOB_BYTES_MAX) {
        return Err(Scan::Nonsense);
    }
    let end = at + bytes as usize;
    match input.get(end..end + 2) {
        None => Err(Scan::Partial { need: end + 2 }),
        Some(b"\r\n") => Ok((&input[at..end], end + 2)),
        Some(_) => Err(Scan::Nonsense),
    }
}

/// Parses a decimal number of at most 64 bits.
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"INSERTED 7\r\nRESERVED 18446744073709551615 5\r\na\r\nbc\r\nDELETED\r\nUSING a.b\r\n\
        WATCHING 2\r\nOK 4\r\n---\n\r\nRESERVED 1 0\r\n\r\nNOT_FOUND\r\nBURIED 3\r\nBURIED\r\n";

    fn expected() -> Vec<Reply<'static>> {
        vec![
            Reply::Inserted(7),
            Reply::Reserved { id: u64::MAX, body: b"a\r\nbc" },
            Reply::Word("DELETED"),
            Reply::Using,
            Reply::Watching,
            Reply::Ok(b"---\n"),
            Reply::Reserved { id: 1, body: b"" },
            Reply::Word("NOT_FOUND"),
            Reply::Word("BURIED"),
            Reply::Word("BURIED"),
        ]
    }

    #[test]
    fn every_split_gives_the_same_replies() {
        for first in 0..=STREAM.len() {
            for second in first..=STREAM.len() {
                let mut at = 0;
                let mut found = Vec::new();
                for end in [first, second, STREAM.len()] {
                    loop {
                        match scan(&STREAM[at..end]) {
                            Scan::Whole { reply, used } => {
                                found.push(reply);
                                at += used;
                            }
                            Scan::Partial { need } => {
                                assert!(need > end - at, "asks for what it has");
                                break;
                            }
                            Scan::Nonsense => panic!("nonsense at {at}, split {first} {second}"),
                        }
                    }
                }
                assert_eq!(found, expected(), "split {first} {second}");
            }
        }
    }

    #[test]
    fn a_body_says_how_much_it_needs() {
        assert_eq!(scan(b"RESERVED 1 1000\r\nx"), Scan::Partial { need: 17 + 1002 });
    }

    #[test]
    fn nonsense() {
        let check = |input: &[u8]| {
            assert_eq!(scan(input), Scan::Nonsense, "{:?}", String::from_utf8_lossy(input));
        };
        check(b"HTTP/1.1 400 Bad Request\r\n");
        check(b"INSERTED\r\n");
        check(b"INSERTED x\r\n");
        check(b"INSERTED 18446744073709551616\r\n");
        check(b"DELETED\n");
        check(b"\r\n");
        check(b"\n");
        check(b"RESERVED 1\r\n");
        check(b"RESERVED 1 2 3\r\n");
        check(b"RESERVED 1 99999999999\r\n");
        check(b"RESERVED 1 1\r\nabcd");
        check(&[b'x'; LINE_BYTES_MAX]);
    }
}
