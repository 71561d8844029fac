//! Patterns of conversation files: escapes for any byte, repetitions, and placeholders.

/// Bytes with placeholders.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern(Vec<Token>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Bytes(Vec<u8>),
    /// One digit or more.
    Num,
    /// Any bytes but CR and LF, up to the next byte of the pattern.
    Any,
}

/// How a pattern compares with the bytes received so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The first `bytes` bytes match.
    Match { bytes: usize },
    /// All bytes so far match a part of the pattern.
    Incomplete,
    /// The byte at this index does not match.
    Mismatch { at: usize },
}

impl Pattern {
    /// Parses `text`, in which a backslash and `{` are special; see `tests/conversations/README.md`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pattern = Self(Vec::new());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            match first {
                '{' => {
                    let (inside, after) =
                        rest[1..].split_once('}').ok_or_else(|| format!("no closing brace after {rest}"))?;
                    match inside {
                        "num" => pattern.0.push(Token::Num),
                        "any" => pattern.0.push(Token::Any),
                        _ => pattern.push_bytes(&repeated(inside)?),
                    }
                    rest = after;
                }
                '\\' => {
                    let (byte, after) = escaped(&rest[1..])?;
                    pattern.push_bytes(&[byte]);
                    rest = after;
                }
                plain => {
                    let (head, after) = rest.split_at(plain.len_utf8());
                    pattern.push_bytes(head.as_bytes());
                    rest = after;
                }
            }
        }
        Ok(pattern)
    }

    /// Appends literal bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(Token::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.0.push(Token::Bytes(bytes.to_vec())),
        }
    }

    /// Returns the bytes, if there are no placeholders.
    pub fn literal(&self) -> Option<Vec<u8>> {
        match self.0.as_slice() {
            [] => Some(Vec::new()),
            [Token::Bytes(bytes)] => Some(bytes.clone()),
            _ => None,
        }
    }

    /// Compares the pattern with the start of `input`.
    pub fn compare(&self, input: &[u8]) -> Outcome {
        let mut at = 0;
        for (i, token) in self.0.iter().enumerate() {
            let rest = &input[at..];
            let length = match token {
                Token::Bytes(bytes) => {
                    let same = bytes.iter().zip(rest).take_while(|(a, b)| a == b).count();
                    match same {
                        same if same == bytes.len() => same,
                        same if same == rest.len() => return Outcome::Incomplete,
                        same => return Outcome::Mismatch { at: at + same },
                    }
                }
                Token::Num => match rest.iter().position(|byte| !byte.is_ascii_digit()) {
                    Some(0) => return Outcome::Mismatch { at },
                    Some(digits) => digits,
                    None => return Outcome::Incomplete,
                },
                Token::Any => {
                    let stop = match self.0.get(i + 1) {
                        Some(Token::Bytes(bytes)) => bytes[0],
                        _ => b'\r',
                    };
                    match rest.iter().position(|&byte| byte == stop || byte == b'\r' || byte == b'\n') {
                        Some(length) => length,
                        None => return Outcome::Incomplete,
                    }
                }
            };
            at += length;
        }
        Outcome::Match { bytes: at }
    }
}

/// Renders bytes as one readable line, with the escapes of a conversation file.
pub fn show(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 400;
    let mut text = String::new();
    for &byte in bytes.iter().take(SHOWN_MAX) {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(byte as char),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    if bytes.len() > SHOWN_MAX {
        text.push_str(&format!("... ({} bytes)", bytes.len()));
    }
    text
}

fn escaped(text: &str) -> Result<(u8, &str), String> {
    let wrong = || format!("unknown escape \\{text}");
    let kind = text.chars().next().ok_or_else(wrong)?;
    let after = &text[kind.len_utf8()..];
    Ok(match kind {
        'r' => (b'\r', after),
        'n' => (b'\n', after),
        't' => (b'\t', after),
        '0' => (b'\0', after),
        '\\' | '{' | '}' => (kind as u8, after),
        'x' => {
            let digits = after.get(..2).ok_or_else(wrong)?;
            (u8::from_str_radix(digits, 16).map_err(|_| wrong())?, &after[2..])
        }
        _ => return Err(wrong()),
    })
}

/// Parses `unit*count`. The unit is plain or escaped bytes.
fn repeated(text: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("neither {{num}} nor {{any}} nor {{bytes*count}}: {{{text}}}");
    let (unit, count) = text.rsplit_once('*').ok_or_else(wrong)?;
    let count: usize = count.parse().map_err(|_| wrong())?;
    let unit = Pattern::parse(unit)?.literal().filter(|unit| !unit.is_empty()).ok_or_else(wrong)?;
    Ok(unit.repeat(count))
}
