//! Splits input into lines, no matter how the network has cut it.

use std::mem;

use memchr::{memchr, memmem};

use super::announced::{Announced, Follows};
use crate::values::limits::{LINE_BYTES_LONG_MAX, LINE_BYTES_MAX};

/// A complete line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line<'a> {
    /// A line within its [limit](line_bytes_max). Its CR LF is removed here.
    Command(&'a [u8]),
    /// A longer line, which is discarded.
    TooLong {
        /// What follows it.
        follows: Follows,
    },
}

/// Splits the input of one connection into lines. A line within one input is borrowed from it. Only a line that is split over
/// several inputs is copied together. A CR or LF alone does not end a line.
///
/// ```text
///              no CR LF              too long, and no CR LF
///   Between ────────────▶ Within ─────────────────────────────▶ Discarding
///      ▲  ▲      CR LF      │                                        │
///      │  └─────────────────┘ Command or TooLong                     │
///      └─────────────────────────────────────────────────────────────┘ TooLong
///                                        CR LF
/// ```
///
/// Between lines the reader owns no heap memory, with one exception: a line that was copied together lives until the next
/// call of [`LineReader::next`], even one without input.
#[derive(Default)]
pub struct LineReader {
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Between,
    /// No line has begun, and the memory of one that was handed out is kept.
    HandedOut(Front),
    /// The beginning of a line.
    Within(Front),
    /// The rest of a line that is already too long.
    Discarding { after_cr: bool, announced: Announced },
}

impl LineReader {
    /// Returns a reader at the beginning of a line.
    pub const fn new() -> Self {
        Self { state: State::Between }
    }

    /// Takes the next complete line off the front of `input`. Returns `None` once `input` is used up, and keeps an incomplete
    /// line at its end for the next call.
    // Inlined: the usual line has come in one piece.
    #[inline(always)]
    pub fn next<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Option<Line<'a>> {
        if let State::Between = self.state {
            if input.is_empty() {
                return None;
            }
            let mut rest = *input;
            if let Ok(line) = take_line(&mut rest, false)
                && line.len() <= LINE_BYTES_MAX
            {
                *input = rest;
                return Some(Line::Command(without_crlf(line)));
            }
        }
        self.next_of_any(input)
    }

    /// Takes a line that is long, or comes in pieces.
    #[inline(never)]
    fn next_of_any<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Option<Line<'a>> {
        if input.is_empty() {
            if let State::HandedOut(_) = self.state {
                self.state = State::Between;
            }
            return None;
        }
        match mem::take(&mut self.state) {
            State::Between | State::HandedOut(_) => match take_line(input, false) {
                Ok(line) if line.len() <= LINE_BYTES_MAX || line.len() <= line_bytes_max(line) => {
                    Some(Line::Command(without_crlf(line)))
                }
                Ok(line) => Some(Line::TooLong { follows: Follows::line(line) }),
                Err(rest) => {
                    self.keep(None, rest);
                    None
                }
            },
            State::Within(front) => match take_line(input, front.as_bytes().ends_with(b"\r")) {
                Ok(line) if front.as_bytes().len() + line.len() <= front.bytes_max(line) => {
                    self.state = State::HandedOut(front.extended(line));
                    let State::HandedOut(front) = &self.state else { unreachable!("it was set") };
                    Some(Line::Command(without_crlf(front.as_bytes())))
                }
                Ok(line) => {
                    let announced = Announced::default().read(front.as_bytes()).read(line);
                    Some(Line::TooLong { follows: announced.follows() })
                }
                Err(rest) => {
                    self.keep(Some(front), rest);
                    None
                }
            },
            State::Discarding { after_cr, announced } => match take_line(input, after_cr) {
                Ok(rest) => Some(Line::TooLong { follows: announced.read(rest).follows() }),
                Err(rest) => {
                    let announced = announced.read(rest);
                    self.state = State::Discarding { after_cr: rest.ends_with(b"\r"), announced };
                    None
                }
            },
        }
    }

    /// Returns the line that `input` completes, without its CR LF. Returns `None` if it does not complete one, or one that is
    /// too long. Unlike [`LineReader::next`], this takes nothing off the input.
    #[cold]
    pub fn peek(&self, mut input: &[u8]) -> Option<Vec<u8>> {
        let front = match &self.state {
            State::Between | State::HandedOut(_) => &[],
            State::Within(front) => front.as_bytes(),
            State::Discarding { .. } => return None,
        };
        let line = [front, take_line(&mut input, front.ends_with(b"\r")).ok()?].concat();
        (line.len() <= line_bytes_max(&line)).then(|| without_crlf(&line).to_vec())
    }

    /// Returns whether the input so far has ended with a line.
    pub const fn is_empty(&self) -> bool {
        matches!(self.state, State::Between | State::HandedOut(_))
    }

    /// Returns whether it keeps memory for a line.
    pub const fn has_memory(&self) -> bool {
        matches!(self.state, State::HandedOut(_) | State::Within(_))
    }

    /// Returns whether it keeps [`LONG_FRONT_BYTES`] for a line that is longer than usual.
    #[inline]
    pub const fn is_long(&self) -> bool {
        matches!(self.state, State::HandedOut(Front::Long(_)) | State::Within(Front::Long(_)))
    }

    /// Keeps `rest`, which must not be empty, behind `front`.
    fn keep(&mut self, front: Option<Front>, rest: &[u8]) {
        let front = front.unwrap_or_default();
        self.state = if front.as_bytes().len() + rest.len() < front.bytes_max(rest) {
            State::Within(front.extended(rest))
        } else {
            let announced = Announced::default().read(front.as_bytes()).read(rest);
            State::Discarding { after_cr: rest.ends_with(b"\r"), announced }
        };
    }
}

/// Takes everything through the first CR LF off the front of `input`. Without a CR LF, takes all of `input` and returns it as
/// the error.
#[inline]
fn take_line<'a>(input: &mut &'a [u8], after_cr: bool) -> Result<&'a [u8], &'a [u8]> {
    let first = memchr(b'\n', input);
    let is_end = |lf: usize| if lf == 0 { after_cr } else { input[lf - 1] == b'\r' };
    let end = match first {
        Some(lf) if is_end(lf) => Some(lf + 1),
        Some(lf) => end_after(input, lf),
        None => None,
    };
    match end {
        Some(end) => {
            let (line, rest) = input.split_at(end);
            *input = rest;
            Ok(line)
        }
        None => Err(mem::take(input)),
    }
}

/// The end of the line, behind an LF alone. A client may send nothing else, and each costs as little as any other byte.
#[cold]
#[inline(never)]
fn end_after(input: &[u8], lf: usize) -> Option<usize> {
    memmem::find(&input[lf..], b"\r\n").map(|cr| lf + cr + 2)
}

fn without_crlf(line: &[u8]) -> &[u8] {
    &line[..line.len() - 2]
}

/// Lines that begin with one of these may be longer than others.
const LONG_WORDS: [&[u8]; 7] = [
    b"put ",
    b"delete-batch ",
    b"list-jobs ",
    b"move-job ",
    b"move-jobs ",
    b"tube-config ",
    b"schedule-put ",
];

/// Returns whether two pieces of a line, one after the other, begin with a word.
fn begin_with(front: &[u8], more: &[u8], word: &[u8]) -> bool {
    front.iter().chain(more).take(word.len()).eq(word)
}

/// Returns the length that a line with this beginning may have, with its CR LF.
pub fn line_bytes_max(line: &[u8]) -> usize {
    if LONG_WORDS.iter().any(|word| line.starts_with(word)) { LINE_BYTES_LONG_MAX } else { LINE_BYTES_MAX }
}

/// The beginning of an incomplete line.
enum Front {
    Short(Box<Bytes<LINE_BYTES_MAX>>),
    Long(Box<Bytes<LINE_BYTES_LONG_MAX>>),
}

/// Bytes of a line.
struct Bytes<const MAX: usize> {
    bytes: [u8; MAX],
    length: u16,
}

const _: () = assert!(LINE_BYTES_LONG_MAX <= u16::MAX as usize);

/// Memory of an incomplete line of usual length.
pub const FRONT_BYTES: usize = size_of::<Bytes<LINE_BYTES_MAX>>();

/// Memory of an incomplete line that is longer.
pub const LONG_FRONT_BYTES: usize = size_of::<Bytes<LINE_BYTES_LONG_MAX>>();

impl Front {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(front) => front.as_bytes(),
            Self::Long(front) => front.as_bytes(),
        }
    }

    /// Returns the length that the line may have if it continues with `more`.
    fn bytes_max(&self, more: &[u8]) -> usize {
        let is_long = LONG_WORDS.iter().any(|word| begin_with(self.as_bytes(), more, word));
        if is_long { LINE_BYTES_LONG_MAX } else { LINE_BYTES_MAX }
    }

    /// Appends `more`, which must fit.
    fn extended(self, more: &[u8]) -> Self {
        match self {
            Self::Short(mut front) if front.as_bytes().len() + more.len() <= LINE_BYTES_MAX => {
                front.push(more);
                Self::Short(front)
            }
            Self::Short(front) => {
                let mut long = Box::<Bytes<LINE_BYTES_LONG_MAX>>::default();
                long.push(front.as_bytes());
                long.push(more);
                Self::Long(long)
            }
            Self::Long(mut front) => {
                front.push(more);
                Self::Long(front)
            }
        }
    }
}

impl Default for Front {
    fn default() -> Self {
        Self::Short(Box::default())
    }
}

impl<const MAX: usize> Bytes<MAX> {
    fn push(&mut self, more: &[u8]) {
        let start = usize::from(self.length);
        self.bytes[start..][..more.len()].copy_from_slice(more);
        self.length += more.len() as u16;
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl<const MAX: usize> Default for Bytes<MAX> {
    fn default() -> Self {
        Self { bytes: [0; MAX], length: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::random::Random;

    /// A line that was read. `None` stands for one that is too long.
    type ReadLine = Option<Vec<u8>>;

    fn read(reader: &mut LineReader, mut input: &[u8], lines: &mut Vec<ReadLine>) {
        while let Some(line) = reader.next(&mut input) {
            lines.push(match line {
                Line::Command(line) => Some(line.to_vec()),
                Line::TooLong { .. } => None,
            });
        }
        assert!(input.is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_shows_what_follows() {
        for (word, bytes, follows) in [
            ("put-batch ", LINE_BYTES_MAX, Follows::Unknown),
            ("put-batch", LINE_BYTES_MAX, Follows::Unknown),
            ("put-batc ", LINE_BYTES_MAX, Follows::Commands),
            ("put 0 0 60 5 idp:", LINE_BYTES_LONG_MAX, Follows::Body(5)),
            ("put 0 ", LINE_BYTES_LONG_MAX, Follows::Commands),
        ] {
            let line = [word.as_bytes(), &vec![b'1'; bytes], b"\r\n"].concat();
            for cut in 0..line.len() {
                let (mut first, mut second) = line.split_at(cut);
                let mut reader = LineReader::new();
                assert_eq!(reader.next(&mut first), None, "{word} cut at {cut}");
                assert_eq!(reader.next(&mut second), Some(Line::TooLong { follows }), "{word} cut at {cut}");
            }
        }
    }

    #[test]
    fn memory_of_a_longer_line_is_given_back() {
        let mut reader = LineReader::new();
        let mut input = &[LONG_WORDS[0], &[b'1'; 400]].concat()[..];
        assert_eq!(reader.next(&mut input), None);
        assert!(reader.is_long());
        assert!(reader.next(&mut b"\r\n".as_slice()).is_some());
        assert!(reader.is_long(), "the line is handed out from there");
        assert_eq!(reader.next(&mut b"".as_slice()), None);
        assert!(!reader.is_long());
    }

    #[test]
    fn each_call_takes_one_line() {
        let mut input: &[u8] = b"t 0 0 1 3\r\nx\r\n\r\n";
        let mut reader = LineReader::new();
        assert_eq!(reader.next(&mut b"pu".as_slice()), None);
        assert!(!reader.is_empty());
        assert_eq!(reader.next(&mut input), Some(Line::Command(b"put 0 0 1 3")));
        assert!(reader.is_empty());
        assert_eq!(input, b"x\r\n\r\n");
    }

    #[test]
    fn a_reader_is_small() {
        assert!(size_of::<LineReader>() <= 24);
        const { assert!(FRONT_BYTES <= LINE_BYTES_MAX + 2) };
    }

    /// Returns the lines of `input`, and whether it ends with one.
    fn naive_lines(input: &[u8]) -> (Vec<ReadLine>, bool) {
        let mut lines = Vec::new();
        let mut line = Vec::new();
        for &byte in input {
            line.push(byte);
            if line.ends_with(b"\r\n") {
                let is_long = LONG_WORDS.iter().any(|word| line.starts_with(word));
                let fits = line.len() <= if is_long { LINE_BYTES_LONG_MAX } else { LINE_BYTES_MAX };
                lines.push(fits.then(|| line[..line.len() - 2].to_vec()));
                line.clear();
            }
        }
        (lines, line.is_empty())
    }

    #[test]
    fn any_split_gives_the_same_lines() {
        let mut random = Random::new();
        for _ in 0..3_000 {
            let mut input = Vec::new();
            for _ in 0..random.below(40) {
                match random.below(9) {
                    0 => input.push(b'\r'),
                    1 => input.push(b'\n'),
                    2..=4 => input.extend(b"\r\n"),
                    5 => input.extend(std::iter::repeat_n(b'x', LINE_BYTES_MAX - 5 + random.below(8))),
                    6 => {
                        let bytes =
                            random.pick(&[10, LINE_BYTES_MAX, LINE_BYTES_LONG_MAX]) - 5 + random.below(8);
                        let word = random.pick(&LONG_WORDS);
                        input.extend([b"\r\n", word].concat());
                        input.extend(std::iter::repeat_n(b'1', bytes.saturating_sub(word.len())));
                    }
                    _ => input.extend(std::iter::repeat_n(b'a', random.below(12))),
                }
            }

            let mut reader = LineReader::new();
            let mut lines = Vec::new();
            let mut rest = &input[..];
            let piece_max = random.pick(&[1, 3, 20, 300]);
            while !rest.is_empty() {
                let (piece, tail) = rest.split_at((1 + random.below(piece_max)).min(rest.len()));
                read(&mut reader, piece, &mut lines);
                rest = tail;
            }
            let actual = (lines, reader.is_empty());
            assert_eq!(actual, naive_lines(&input), "{:?}", input.escape_ascii().to_string());
        }
    }
}
