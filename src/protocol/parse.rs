//! A command line to a [`Command`].

use memchr::memchr;

use crate::ids::JobId;
use crate::protocol::command::{Command, PutArgs};
use crate::tube_name::TubeName;

/// Why a line is not a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// A known word with wrong arguments, or a NUL in the line.
    BadFormat,
    /// No word of the protocol.
    UnknownCommand,
}

/// The longest `reserve-with-timeout`: the reference keeps it in an `int`.
const TIMEOUT_SECONDS_MAX: u32 = i32::MAX as u32;

/// A number of so many digits fits 64 bits, whatever they are.
const DIGITS_SAFE: usize = u64::MAX.ilog10() as usize;

/// Understands one command line without its CR LF.
pub fn parse(line: &[u8]) -> Result<Command<'_>, ParseError> {
    let verdict = parse_words(line);
    // Of all other lines every byte has been looked at, and a NUL found wrong.
    let has_unread_part = matches!(
        verdict,
        Err(ParseError::UnknownCommand) | Ok(Command::Quit | Command::Put(PutArgs { trailing: true, .. }))
    );
    if has_unread_part && memchr(0, line).is_some() { Err(ParseError::BadFormat) } else { verdict }
}

/// Words are matched as prefixes, so a longer one comes before its own prefix. Apart from that the
/// frequent ones come first: a test for a word is one compare of a constant.
#[inline]
fn parse_words(line: &[u8]) -> Result<Command<'_>, ParseError> {
    let after = |word: &[u8]| line.strip_prefix(word).map(Args);

    if let Some(args) = after(b"put ") {
        put(args).map(Command::Put)
    } else if let Some(args) = after(b"delete ") {
        args.only_id().map(Command::Delete)
    } else if let Some(args) = after(b"reserve-with-timeout ") {
        reserve_with_timeout(args)
    } else if let Some(args) = after(b"reserve-job ") {
        args.only_id().map(Command::ReserveJob)
    } else if let Some(args) = after(b"reserve") {
        args.end(Command::Reserve)
    } else if let Some(args) = after(b"release ") {
        release(args)
    } else if let Some(args) = after(b"bury ") {
        bury(args)
    } else if let Some(args) = after(b"touch ") {
        args.only_id().map(Command::Touch)
    } else if let Some(args) = after(b"use ") {
        args.only_name().map(Command::Use)
    } else if let Some(args) = after(b"watch ") {
        args.only_name().map(Command::Watch)
    } else if let Some(args) = after(b"ignore ") {
        args.only_name().map(Command::Ignore)
    } else if let Some(args) = after(b"peek ") {
        args.only_id().map(Command::Peek)
    } else if let Some(args) = after(b"peek-ready") {
        args.end(Command::PeekReady)
    } else if let Some(args) = after(b"peek-delayed") {
        args.end(Command::PeekDelayed)
    } else if let Some(args) = after(b"peek-buried") {
        args.end(Command::PeekBuried)
    } else if let Some(args) = after(b"kick ") {
        kick(args)
    } else if let Some(args) = after(b"kick-job ") {
        args.only_id().map(Command::KickJob)
    } else if let Some(args) = after(b"stats-job ") {
        args.only_id().map(Command::StatsJob)
    } else if let Some(args) = after(b"stats-tube ") {
        args.only_name().map(Command::StatsTube)
    } else if let Some(args) = after(b"stats") {
        args.end(Command::Stats)
    } else if let Some(args) = after(b"list-tubes-watched") {
        args.end(Command::ListTubesWatched)
    } else if let Some(args) = after(b"list-tube-used") {
        args.end(Command::ListTubeUsed)
    } else if let Some(args) = after(b"list-tubes") {
        args.end(Command::ListTubes)
    } else if let Some(args) = after(b"pause-tube") {
        pause_tube(args)
    } else if after(b"quit").is_some() {
        // The reference quits whatever follows the word.
        Ok(Command::Quit)
    } else {
        Err(ParseError::UnknownCommand)
    }
}

fn put(mut args: Args<'_>) -> Result<PutArgs, ParseError> {
    Ok(PutArgs {
        pri: args.u32()?,
        delay: args.u32()?,
        ttr: args.u32()?,
        bytes: args.u32()?,
        trailing: !args.0.is_empty(),
    })
}

fn reserve_with_timeout(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let seconds = args.u32()?;
    if seconds > TIMEOUT_SECONDS_MAX {
        return Err(ParseError::BadFormat);
    }
    args.end(Command::ReserveWithTimeout { seconds })
}

fn release(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let command = Command::Release { id: args.id()?, pri: args.u32()?, delay: args.u32()? };
    args.end(command)
}

fn bury(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let command = Command::Bury { id: args.id()?, pri: args.u32()? };
    args.end(command)
}

fn kick(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    let bound = args.u32()?;
    args.end(Command::Kick { bound })
}

/// The one command whose name may have spaces before it, or none: the reference's word has no space
/// at its end.
fn pause_tube(mut args: Args<'_>) -> Result<Command<'_>, ParseError> {
    args.skip_spaces();
    let (name, rest) = TubeName::split_alphabet(args.0);
    if name.is_empty() {
        return Err(ParseError::BadFormat);
    }
    let mut args = Args(rest);
    let seconds = args.u32()?;
    args.end(Command::PauseTube { tube: TubeName::new(name), seconds })
}

/// What is left of a line after its word.
struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    /// The next decimal number. No space need stand before it or after it: what is not a digit ends
    /// it, and is wrong for whoever reads on.
    #[inline]
    fn u64(&mut self) -> Result<u64, ParseError> {
        self.skip_spaces();
        let mut value = 0u64;
        let mut length = 0;
        while let Some(digit) = self.0.get(length).and_then(|&byte| digit(byte)) {
            value = value.wrapping_mul(10).wrapping_add(digit);
            length += 1;
        }
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        match length {
            0 => Err(ParseError::BadFormat),
            1..=DIGITS_SAFE => Ok(value),
            _ => checked_u64(digits).ok_or(ParseError::BadFormat),
        }
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, ParseError> {
        self.u64()?.try_into().map_err(|_| ParseError::BadFormat)
    }

    #[inline]
    fn id(&mut self) -> Result<JobId, ParseError> {
        self.u64().map(JobId)
    }

    #[inline]
    fn skip_spaces(&mut self) {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    fn only_id(mut self) -> Result<JobId, ParseError> {
        let id = self.id()?;
        self.end(id)
    }

    /// Everything that is left as a name: unlike before a number, a space before it is wrong.
    fn only_name(self) -> Result<TubeName<'a>, ParseError> {
        TubeName::new(self.0).ok_or(ParseError::BadFormat)
    }

    /// `value`, if nothing is left.
    fn end<T>(self, value: T) -> Result<T, ParseError> {
        if self.0.is_empty() { Ok(value) } else { Err(ParseError::BadFormat) }
    }
}

/// The value of a digit.
#[inline]
fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

/// The value of digits that may be too many for 64 bits; leading zeros are not.
#[cold]
fn checked_u64(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, &byte| value.checked_mul(10)?.checked_add(digit(byte)?))
}
