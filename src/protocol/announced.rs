//! What follows a refused line: the body of a `put` or a `schedule-put`, or the text of a `job-note`, whatever else is wrong with its line, or bytes without
//! a known end.

/// What the bytes after a line are that is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follows {
    /// The next command.
    Commands,
    /// A body or a text of this many bytes and a CR LF. None of it may be taken for a command.
    Body(u32),
    /// Jobs of a `put-batch`, or a body beyond 32 bits. Where they end is unknown, and none of it may be taken for a command.
    Unknown,
}

impl Follows {
    /// Returns what follows a line, given without its CR LF.
    pub fn line(line: &[u8]) -> Self {
        Announced::default().read(line).follows()
    }
}

/// The word of the command that jobs follow. The one that a body follows begins alike.
pub const BATCH_WORD: &[u8] = b"put-batch";

const PUT_BYTES: usize = b"put".len();

/// The words of other commands with a body or a text, and how many arguments each has up to the number of bytes. They begin with different
/// letters.
const OTHER_WORDS: [(&[u8], usize); 2] = [(b"job-note", 2), (b"schedule-put", 5)];

/// The arguments of a `put` up to the number of bytes.
const PUT_ARGUMENTS: usize = 4;

/// Reads a line piece by piece, up to the number of bytes that it announces: the digits at the beginning of the fourth argument of
/// a `put`, the second one of a `job-note`, or the fifth one of a `schedule-put`. The other arguments may be anything but a space.
#[derive(Clone, Copy, Debug)]
pub struct Announced(At);

#[derive(Clone, Copy, Debug)]
enum At {
    /// In the word `put` or `put-batch`, after this many bytes of it.
    Word(usize),
    /// In this one of the other words, after this many bytes of it.
    OtherWord(u8, u8),
    /// Before an argument. It is one of this many that are left, the last of which is the number.
    Gap(usize),
    /// In an argument that is passed over. This many are left behind it.
    Argument(usize),
    /// In the number of bytes, which is this so far.
    Digits(u64),
    /// After the last byte that matters.
    End(Follows),
}

impl Default for Announced {
    fn default() -> Self {
        Self(At::Word(0))
    }
}

impl Announced {
    /// Reads the next piece of the line.
    #[must_use]
    pub fn read(mut self, piece: &[u8]) -> Self {
        // Bounded by RECEIVE_BYTES_MAX: the bytes of one receive.
        for &byte in piece {
            self.0 = match (self.0, byte) {
                (At::Word(0), b'j') => At::OtherWord(0, 1),
                (At::Word(0), b's') => At::OtherWord(1, 1),
                (At::OtherWord(word, at), _) => {
                    let (text, arguments) = OTHER_WORDS[usize::from(word)];
                    match text.get(usize::from(at)) {
                        None if byte == b' ' => At::Gap(arguments),
                        Some(&expected) if byte == expected => At::OtherWord(word, at + 1),
                        _ => At::End(Follows::Commands),
                    }
                }
                (At::Word(PUT_BYTES), b' ') => At::Gap(PUT_ARGUMENTS),
                (At::Word(at), _) if byte != BATCH_WORD[at] => At::End(Follows::Commands),
                (At::Word(at), _) if at + 1 == BATCH_WORD.len() => At::End(Follows::Unknown),
                (At::Word(at), _) => At::Word(at + 1),
                (At::Gap(left), b' ') => At::Gap(left),
                (At::Gap(1), b'0'..=b'9') => At::Digits((byte - b'0').into()),
                (At::Gap(1), _) => At::End(Follows::Commands),
                (At::Gap(left), _) => At::Argument(left - 1),
                (At::Argument(left), b' ') => At::Gap(left),
                (At::Argument(left), _) => At::Argument(left),
                (At::Digits(bytes), b'0'..=b'9') => {
                    At::Digits(bytes.saturating_mul(10).saturating_add((byte - b'0').into()))
                }
                (At::Digits(bytes), _) => At::End(body(bytes)),
                (At::End(_), _) => break,
            };
        }
        self
    }

    /// Returns what follows the line, which has ended.
    pub fn follows(self) -> Follows {
        match self.0 {
            At::Digits(bytes) => body(bytes),
            At::End(follows) => follows,
            At::Word(_) | At::OtherWord(..) | At::Gap(_) | At::Argument(_) => Follows::Commands,
        }
    }
}

fn body(bytes: u64) -> Follows {
    u32::try_from(bytes).map_or(Follows::Unknown, Follows::Body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::parse::{parse, parse_decimals};
    use crate::protocol::{command::Command, random::Random};

    fn check(line: &str, expect: Follows) {
        assert_eq!(Follows::line(line.as_bytes()), expect, "{line:?}");
        // Bounded by the line of a test.
        for cut in 0..line.len() {
            let (first, second) = line.as_bytes().split_at(cut);
            assert_eq!(
                Announced::default().read(first).read(second).follows(),
                expect,
                "{line:?} cut at {cut}"
            );
        }
        assert_eq!(Announced::default().read(line.as_bytes()).read(b"\r\n").follows(), expect, "{line:?}");
    }

    #[test]
    fn the_fourth_argument_of_a_put_announces_its_body() {
        for line in [
            "put 0 0 60 8",
            "put   0  0 60   8",
            "put x 0 60 8",
            "put -1 0 60 8",
            "put 0 -1 60 8",
            "put 0 0.5 60 8",
            "put 4294967296 99999999999999999999 60 8",
            "put 0 0 60 8 ",
            "put 0 0 60 8 trailing",
            "put 0 0 60 8 9",
            "put 0 0 60 8x",
            "put 0 0 60 8.5",
            "put 0 0 60 0008 idp:",
            "put 0 0 60 8\0",
            "put \t \r \n 8",
        ] {
            check(line, Follows::Body(8));
        }
        check("put 0 0 60 4294967295", Follows::Body(u32::MAX));
    }

    #[test]
    fn the_second_argument_of_a_note_announces_its_text() {
        for line in ["job-note 7 8", "job-note   x   8", "job-note -1 8 ", "job-note 7 8 9", "job-note 7 8x"]
        {
            check(line, Follows::Body(8));
        }
        for line in
            ["job-note", "job-note ", "job-note 7", "job-notes 7 8", "job-not 7 8", "job-note 7 x8", "jo"]
        {
            check(line, Follows::Commands);
        }
        check("job-note 7 4294967296", Follows::Unknown);
    }

    #[test]
    fn the_fifth_argument_of_a_schedule_announces_its_body() {
        for line in [
            "schedule-put n 0 0 60 8 mail * * * * *",
            "schedule-put  -  x -1  60   8",
            "schedule-put n 0 0 60 8x",
            "schedule-put n 0 0 60 8 ",
        ] {
            check(line, Follows::Body(8));
        }
        for line in [
            "s",
            "schedule-put",
            "schedule-put ",
            "schedule-put n 0 0 60",
            "schedule-puts n 0 0 60 8",
            "schedule-delete n 0 0 60 8",
            "schedule-put n 0 0 8",
            "stats-job 1 2 3 4 5",
        ] {
            check(line, Follows::Commands);
        }
        check("schedule-put n 0 0 60 4294967296", Follows::Unknown);
    }

    #[test]
    fn a_body_beyond_32_bits_has_no_known_end() {
        for bytes in
            ["4294967296", "18446744073709551615", "18446744073709551616", "99999999999999999999999999"]
        {
            check(&format!("put 0 0 60 {bytes}"), Follows::Unknown);
            check(&format!("put 0 -1 60 {bytes} idp:"), Follows::Unknown);
        }
    }

    #[test]
    fn other_lines_announce_nothing() {
        for line in [
            "",
            "pu",
            "put",
            "put ",
            "put\t0 0 60 8",
            "PUT 0 0 60 8",
            " put 0 0 60 8",
            "puts 0 0 60 8",
            "put 0 0 60",
            "put 0 0 60 ",
            "put 0 0 8",
            "put 0,0,60,8",
            "put 0 0 60 -1",
            "put 0 0 60 x8",
            "put 0 0 60 +8",
            "put-batc 1 2 3 4",
            "delete 1 2 3 4",
        ] {
            check(line, Follows::Commands);
        }
        for line in ["put-batch", "put-batch 5", "put-batches 1 2 3 4"] {
            check(line, Follows::Unknown);
        }
    }

    #[test]
    fn every_put_that_is_parsed_announces_its_body() {
        let mut random = Random::new();
        for _ in 0..20_000 {
            let mut line = b"put 10 2.5 60 40 idp:k".to_vec();
            for _ in 0..random.below(4) {
                let at = random.below(line.len() + 1);
                match random.below(2) {
                    0 => line.insert(at, random.pick(b" 059-x:.\0\r\n")),
                    _ if at < line.len() => _ = line.remove(at),
                    _ => {}
                }
            }
            for parsed in [parse(&line), parse_decimals(&line)] {
                if let Ok(Command::Put { args, .. }) = parsed {
                    assert_eq!(Follows::line(&line), Follows::Body(args.bytes), "{}", line.escape_ascii());
                }
            }
        }
    }
}
