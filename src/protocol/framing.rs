//! Cutting input into lines, however it was split on its way.

use std::mem;

use memchr::memchr_iter;

use crate::limits::LINE_BYTES_MAX;

/// A line that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line<'a> {
    /// A line of at most [`LINE_BYTES_MAX`] bytes, here without its CR LF.
    Command(&'a [u8]),
    /// A longer one, discarded.
    TooLong,
}

/// Cuts one connection's input into lines. A line within one input is borrowed from it; only one that
/// is split over several is put together here. Only CR LF ends a line, not a CR or LF alone.
///
/// ```text
///              no CR LF              224 bytes and no CR LF
///   Between ────────────▶ Within ─────────────────────────────▶ Discarding
///      ▲  ▲      CR LF      │                                        │
///      │  └─────────────────┘ Command or TooLong                     │
///      └─────────────────────────────────────────────────────────────┘ TooLong
///                                        CR LF
/// ```
///
/// Between lines it owns no heap memory, except that a line put together here lives until the next call.
#[derive(Default)]
pub struct LineReader {
    state: State,
    handed_out: Option<Box<Front>>,
}

#[derive(Default)]
enum State {
    #[default]
    Between,
    /// The line so far.
    Within(Box<Front>),
    /// The line is too long already.
    Discarding { after_cr: bool },
}

impl LineReader {
    /// A reader at the start of a line.
    pub const fn new() -> Self {
        Self { state: State::Between, handed_out: None }
    }

    /// Takes the next whole line off the front of `input`; `None` when `input` is used up. The line
    /// that it ended within is kept for the next call.
    pub fn next<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Option<Line<'a>> {
        self.handed_out = None;
        if input.is_empty() {
            return None;
        }
        match mem::take(&mut self.state) {
            State::Between => match take_line(input, false) {
                Ok(line) if line.len() <= LINE_BYTES_MAX => Some(Line::Command(without_crlf(line))),
                Ok(_) => Some(Line::TooLong),
                Err(rest) => {
                    self.keep(None, rest);
                    None
                }
            },
            State::Within(mut front) => match take_line(input, front.ends_in_cr()) {
                Ok(line) if front.has_room_for(line) => {
                    front.push(line);
                    let front = self.handed_out.insert(front);
                    Some(Line::Command(without_crlf(front.as_bytes())))
                }
                Ok(_) => Some(Line::TooLong),
                Err(rest) => {
                    self.keep(Some(front), rest);
                    None
                }
            },
            State::Discarding { after_cr } => match take_line(input, after_cr) {
                Ok(_) => Some(Line::TooLong),
                Err(rest) => {
                    self.state = State::Discarding { after_cr: rest.ends_with(b"\r") };
                    None
                }
            },
        }
    }

    /// Whether the input so far ended where a line ends.
    pub const fn is_empty(&self) -> bool {
        matches!(self.state, State::Between)
    }

    /// Keeps `rest`, which is not empty, after `front`.
    fn keep(&mut self, front: Option<Box<Front>>, rest: &[u8]) {
        let kept_bytes = front.as_ref().map_or(0, |front| front.as_bytes().len());
        self.state = if kept_bytes + rest.len() < LINE_BYTES_MAX {
            let mut front = front.unwrap_or_default();
            front.push(rest);
            State::Within(front)
        } else {
            State::Discarding { after_cr: rest.ends_with(b"\r") }
        };
    }
}

/// Takes all up to the first CR LF off the front of `input`, and that too. Without one: all of `input`,
/// as an error.
#[inline]
fn take_line<'a>(input: &mut &'a [u8], after_cr: bool) -> Result<&'a [u8], &'a [u8]> {
    let is_after_cr = |&lf: &usize| if lf == 0 { after_cr } else { input[lf - 1] == b'\r' };
    match memchr_iter(b'\n', input).find(is_after_cr) {
        Some(lf) => {
            let (line, rest) = input.split_at(lf + 1);
            *input = rest;
            Ok(line)
        }
        None => Err(mem::take(input)),
    }
}

fn without_crlf(line: &[u8]) -> &[u8] {
    &line[..line.len() - 2]
}

/// The front of a line.
struct Front {
    bytes: [u8; LINE_BYTES_MAX],
    length: u8,
}

const _: () = assert!(LINE_BYTES_MAX <= u8::MAX as usize);

impl Front {
    fn push(&mut self, more: &[u8]) {
        let start = usize::from(self.length);
        self.bytes[start..][..more.len()].copy_from_slice(more);
        self.length += more.len() as u8;
    }

    fn has_room_for(&self, more: &[u8]) -> bool {
        more.len() <= LINE_BYTES_MAX - usize::from(self.length)
    }

    fn ends_in_cr(&self) -> bool {
        self.as_bytes().ends_with(b"\r")
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Default for Front {
    fn default() -> Self {
        Self { bytes: [0; LINE_BYTES_MAX], length: 0 }
    }
}
