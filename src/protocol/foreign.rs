//! Recognizes requests of other protocols by the first line of a connection. A web page can make a browser send a request to
//! any port, and lines of its body would be served as commands.

use memchr::memmem;

/// A protocol that the server does not speak on this connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// An HTTP request.
    Http,
    /// A TLS handshake.
    Tls,
    /// A header of the PROXY protocol, version 1 or 2.
    Proxy,
}

/// The result of reading the first line of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not a request of a known protocol.
    Native,
    /// A request that must not be served.
    Foreign(Foreign),
    /// The line has ended as an HTTP request does. It must not be served either, unless it is a command: the last word of
    /// `move-job 3 HTTP/1.1` is the name of a tube.
    RequestLine,
}

/// The first line of a connection so far. It may arrive in any pieces and have any length.
///
/// ```text
///             token          space            anything             CR LF
///   Method ----------------------> Target ------------------------------> Native
///     | known method and a space     | ` HTTP/1.1` and CR LF
///     v                              v
///   Foreign                      RequestLine
/// ```
///
/// A word of more than 255 bytes is no method: `Native`. An empty line decides nothing: it may begin a PROXY header, version 2.
#[derive(Clone, Copy, Default, Debug)]
pub struct Opening {
    state: State,
    /// Bytes of the method so far.
    count: u8,
    /// How much of [`VERSION`] the line so far ends with.
    matched: u8,
    after_cr: bool,
    /// The last eight bytes of the method.
    word: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    Method,
    Target,
    /// Within the signature of a PROXY header, version 2.
    Signature,
}

/// The end of a request line. `0` stands for any digit.
const VERSION: &[u8] = b" HTTP/0.0\r\n";

/// Methods that identify a request, whatever ends the line: those of RFC 9110, `PATCH`, and that of the HTTP/2 preface.
const METHODS: [u64; 10] = [
    word(b"GET"),
    word(b"HEAD"),
    word(b"POST"),
    word(b"PUT"),
    word(b"DELETE"),
    word(b"CONNECT"),
    word(b"OPTIONS"),
    word(b"TRACE"),
    word(b"PATCH"),
    word(b"PRI"),
];

/// The first bytes of a PROXY header, version 2. Its first line is empty, and so is the second one.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The first word of version 1 of the PROXY protocol.
const PROXY: u64 = word(b"PROXY");

const METHOD_BYTES_MAX: u8 = 8;

/// A first word is read up to this length.
const WORD_BYTES_MAX: u8 = 255;

/// The record type of a TLS handshake, and the major version, which has never changed.
const TLS: [u8; 2] = [0x16, 0x03];

impl Opening {
    /// Returns an empty line.
    pub const fn new() -> Self {
        Self { state: State::Method, count: 0, matched: 0, after_cr: false, word: 0 }
    }

    /// Reads the next piece of input, up to the end of the first line, or of the signature. Returns `None` while the line decides nothing.
    pub fn feed(&mut self, mut input: &[u8]) -> Option<Verdict> {
        while self.state != State::Target {
            let (&byte, rest) = input.split_first()?;
            input = rest;
            if let Some(verdict) = self.push(byte) {
                return Some(verdict);
            }
        }
        self.seek_end(input)
    }

    /// Reads a byte of the method.
    fn push(&mut self, byte: u8) -> Option<Verdict> {
        let position = self.count;
        if position == WORD_BYTES_MAX {
            return Some(Verdict::Native);
        }
        self.count += 1;
        if self.state == State::Signature || position == 0 && byte == SIGNATURE[0] {
            self.state = State::Signature;
            return self.push_signature(byte);
        }
        match byte {
            _ if position == 1 && [self.word as u8, byte] == TLS => {
                return Some(Verdict::Foreign(Foreign::Tls));
            }
            b' ' if position > 0 => {
                if position <= METHOD_BYTES_MAX && METHODS.contains(&self.word) {
                    return Some(Verdict::Foreign(Foreign::Http));
                }
                if self.word == PROXY {
                    return Some(Verdict::Foreign(Foreign::Proxy));
                }
                self.state = State::Target;
            }
            _ if is_token(byte) || (position == 0 && byte == TLS[0]) => {
                self.word = self.word << 8 | u64::from(byte);
            }
            _ => return Some(Verdict::Native),
        }
        None
    }

    /// Reads a byte that continues the signature, or does not.
    fn push_signature(&self, byte: u8) -> Option<Verdict> {
        let read = usize::from(self.count);
        match SIGNATURE[read - 1] == byte {
            true if read == SIGNATURE.len() => Some(Verdict::Foreign(Foreign::Proxy)),
            true => None,
            false => Some(Verdict::Native),
        }
    }

    /// Looks for the end of the line. Only what is before the end, and the last bytes of a piece, is read byte by byte.
    fn seek_end(&mut self, input: &[u8]) -> Option<Verdict> {
        let end = match input {
            [b'\n', ..] if self.after_cr => Some(1),
            _ => memmem::find(input, b"\r\n").map(|cr| cr + 2),
        };
        let piece = &input[..end.unwrap_or(input.len())];
        if let Some(&last) = piece.last() {
            self.after_cr = last == b'\r';
        }
        let tail = &piece[piece.len().saturating_sub(VERSION.len())..];
        if tail.len() < piece.len() {
            self.matched = 0;
        }
        for &byte in tail {
            self.matched = match VERSION.get(usize::from(self.matched)) {
                Some(b'0') if byte.is_ascii_digit() => self.matched + 1,
                Some(&expected) if byte == expected => self.matched + 1,
                _ => u8::from(byte == VERSION[0]),
            };
        }
        match end {
            Some(_) if usize::from(self.matched) == VERSION.len() => Some(Verdict::RequestLine),
            Some(_) => Some(Verdict::Native),
            None => None,
        }
    }
}

/// Whether a method may contain `byte` (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

const fn word(text: &[u8]) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < text.len() {
        word = word << 8 | text[at] as u64;
        at += 1;
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the verdict on `input` in pieces of `piece` bytes.
    fn verdict(input: &[u8], piece: usize) -> Option<Verdict> {
        let mut opening = Opening::new();
        input.chunks(piece).find_map(|piece| opening.feed(piece))
    }

    fn check(input: &[u8], expected: Option<Verdict>) {
        for piece in [1, 2, 3, 7, 1000] {
            assert_eq!(verdict(input, piece), expected, "{} in {piece}s", input.escape_ascii());
        }
    }

    #[test]
    fn requests_of_other_protocols_are_recognized() {
        let http = Some(Verdict::Foreign(Foreign::Http));
        for line in [
            "GET ",
            "POST / HTTP/1.1\r\n",
            "HEAD /",
            "PUT /x",
            "DELETE /",
            "CONNECT host:1",
            "OPTIONS *",
            "TRACE ",
            "PATCH ",
            "PRI * HTTP/2.0\r\n",
        ] {
            check(line.as_bytes(), http);
        }
        for line in [
            "PROPFIND /a HTTP/1.1\r\n",
            "delete / HTTP/1.0\r\n",
            "put 0 0 60 1 HTTP/1.1\r\n",
            "a  HTTP/ HTTP/1.1\r\n",
            "a b HTTP/1. HTTP/1.1\r\n",
            "a b\r HTTP/1.1\r\n",
            "methodoflength15 / HTTP/1.1\r\n",
            "a \n\n HTTP/1.1\r\n",
            "move-job 3 HTTP/1.1\r\n",
        ] {
            check(line.as_bytes(), Some(Verdict::RequestLine));
        }
        let long = format!("search /{} HTTP/1.1\r\n", "x".repeat(100_000));
        check(long.as_bytes(), Some(Verdict::RequestLine));
        check(b"\x16\x03", Some(Verdict::Foreign(Foreign::Tls)));
        check(b"\x16\x03\x01\x02\0", Some(Verdict::Foreign(Foreign::Tls)));
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nstats\r\n", Some(Verdict::Foreign(Foreign::Proxy)));
        check(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0cstats\r\n", Some(Verdict::Foreign(Foreign::Proxy)));
    }

    #[test]
    fn commands_are_not_taken_for_requests() {
        let native = Some(Verdict::Native);
        for line in [
            "\r\nput 0 0 60 1\r\n",
            "\r\n\r\n\0\r\nQUITE",
            " \r\n",
            " GET / HTTP/1.1\r\n",
            "GET\r\n",
            "GETS x\r\n",
            "XPOST /\r\n",
            "XXXXXXXXGET /\r\n",
            "XXXPROXY a\r\n",
            "PROXY\r\n",
            "get /\r\n",
            "put 0 0 60 1\r\n",
            "use HTTP/1.1\r\n",
            "use GET\r\n",
            "use a\r\nGET / HTTP/1.1\r\n",
            "use a HTTP/1.1 \r\n",
            "use a HTTP/1.1\r\r\n",
            "use a HTTP/11\r\n",
            "list-tubes\r\nPOST / HTTP/1.1\r\n",
            "\x16\r\n",
            "\x16GET \r\n",
            "a\x16\x03\r\n",
        ] {
            check(line.as_bytes(), native);
        }
        let word = "x".repeat(usize::from(WORD_BYTES_MAX) + 1);
        check(word.as_bytes(), native);
        check(&word.as_bytes()[1..], None);
        for part in [
            "",
            "\r\n",
            "\r\n\r\n\0\r\nQUIT",
            "GET",
            "use",
            "use a HTTP/1.1",
            "use a HTTP/1.1\r",
            "a b\n",
            "\x16",
        ] {
            check(part.as_bytes(), None);
        }
    }
}
