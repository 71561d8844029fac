//! Replies of the protocol, and how much of them the client reads.

use std::io::{self, BufRead, ErrorKind, Read};

use memchr::memmem;

use super::untrusted::integer;
use super::{ClientError, Refusal, Untrusted};
use crate::server::rights_needed;
use crate::values::ids::JobId;
use crate::values::limits::JOB_BYTES_MAX;

/// The longest line of a reply. The longest that a server has is `USING` with a name of 200 bytes.
const LINE_BYTES_MAX: u64 = 4 * 1024;

/// The most statistics. The groups of `stats-group` are the longest: 100 names of 200 bytes, 21 KB. `stats` has some 150 lines of
/// 60 bytes: 9 KB.
const STATISTICS_BYTES_MAX: u64 = 256 * 1024;

/// The longest list. `list-tubes` has a line of at most 205 bytes for each tube: with the default `--max-tubes`, 100,000, that is
/// 20 MB. This is enough for 300,000 tubes with the longest names, and 2 million with names of 30 bytes.
const LIST_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What may follow the line of a reply. The command decides it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follows {
    /// No data.
    Nothing,
    /// Statistics of one thing.
    Statistics,
    /// A list of tubes or jobs.
    List,
    /// The body of a job.
    Job,
}

/// A reply: its line without the CR LF, and the data that follows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    line: Untrusted,
    data: Option<Untrusted>,
    /// The rights that the command needs, if the server has refused it for one.
    rights: Option<String>,
}

/// Why a reply cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The connection has ended, or does not go on in time.
    Io(io::Error),
    /// The line is no reply of the protocol.
    Foreign(Untrusted),
    /// The command has another reply than this line.
    Unexpected(Untrusted),
    /// More data is announced than the command can have.
    TooLong {
        /// What is announced.
        bytes: u64,
        /// The most that is read.
        bytes_max: u64,
    },
}

impl Follows {
    /// The most bytes that are read behind the line.
    pub const fn bytes_max(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Statistics => STATISTICS_BYTES_MAX,
            Self::List => LIST_BYTES_MAX,
            Self::Job => JOB_BYTES_MAX as u64,
        }
    }

    /// Whether the word of a reply announces such data.
    fn is_announced_by(self, word: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Statistics | Self::List => word == "OK",
            Self::Job => matches!(word, "RESERVED" | "FOUND"),
        }
    }
}

impl Reply {
    /// Reads a reply.
    ///
    /// # Errors
    /// If the input ends, or is not a reply to a command that `follows` belongs to.
    pub fn read(input: &mut impl BufRead, follows: Follows) -> Result<Self, ReadError> {
        let (mut reply, bytes) = Self::parse(line(input)?)?;
        let Some(bytes) = bytes else { return Ok(reply) };
        if !follows.is_announced_by(reply.word()) {
            return Err(ReadError::Unexpected(reply.line));
        }
        let bytes_max = follows.bytes_max();
        if bytes > bytes_max {
            return Err(ReadError::TooLong { bytes, bytes_max });
        }
        let mut data = Vec::new();
        input.by_ref().take(bytes + 2).read_to_end(&mut data).map_err(ReadError::Io)?;
        if data.len() as u64 != bytes + 2 {
            return Err(ReadError::Io(ErrorKind::UnexpectedEof.into()));
        }
        if !data.ends_with(b"\r\n") {
            return Err(ReadError::Foreign(reply.line));
        }
        data.truncate(bytes as usize);
        reply.data = Some(data.into());
        Ok(reply)
    }

    /// Reads a line. Returns also the number of bytes that follow it.
    fn parse(line: Vec<u8>) -> Result<(Self, Option<u64>), ReadError> {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let bytes = match words[..] {
            [b"OK", bytes] | [b"RESERVED" | b"FOUND", _, bytes] => Some(integer(bytes)),
            [b"OK" | b"RESERVED" | b"FOUND", ..] => Some(None),
            _ => None,
        };
        let reply = Self { line: line.into(), data: None, rights: None };
        match bytes {
            Some(None) => Err(ReadError::Foreign(reply.line)),
            None if reply.word().is_empty() => Err(ReadError::Foreign(reply.line)),
            bytes => Ok((reply, bytes.flatten())),
        }
    }

    /// The line.
    pub const fn line(&self) -> &Untrusted {
        &self.line
    }

    /// Remembers the command: a server that forbids it does not say which right is missing.
    pub fn note_command(&mut self, line: &[u8]) {
        if self.word() == "FORBIDDEN" {
            self.rights = rights_needed(line);
        }
    }

    /// Returns why the server does not do what it was asked for.
    pub fn refusal(&self, subject: impl Into<String>) -> Refusal {
        let refusal = Refusal::new(subject, &self.line);
        match &self.rights {
            Some(rights) => {
                refusal.meaning("FORBIDDEN", format!("you need the right {rights}; see the server's --auth"))
            }
            None => refusal,
        }
    }

    /// The first word.
    pub fn word(&self) -> &str {
        self.line.word()
    }

    /// The number after the first word: the id of a job, or a count.
    pub fn number(&self) -> Option<u64> {
        integer(self.line.bytes().split(|&byte| byte == b' ').nth(1)?)
    }

    /// Returns the number of a reply that must have one.
    ///
    /// # Errors
    /// If it has none.
    pub fn count(&self) -> Result<u64, ClientError> {
        self.number().ok_or_else(|| ClientError::Unreadable(self.line.clone()))
    }

    /// The data behind the line.
    pub const fn data(&self) -> Option<&Untrusted> {
        self.data.as_ref()
    }

    /// Returns nothing if the reply begins with this word.
    ///
    /// # Errors
    /// If it is another reply.
    pub fn expect(self, word: &str, subject: &str) -> Result<Self, Refusal> {
        if self.word() == word { Ok(self) } else { Err(self.refusal(subject)) }
    }

    /// Returns the data of `OK`.
    ///
    /// # Errors
    /// If it is another reply.
    pub fn into_ok(self, subject: &str) -> Result<Untrusted, Refusal> {
        self.expect("OK", subject).map(|reply| reply.data.unwrap_or_default())
    }

    /// Returns the job of `RESERVED` or `FOUND`.
    ///
    /// # Errors
    /// If it is another reply.
    pub fn into_job(self, subject: &str) -> Result<(JobId, Untrusted), Refusal> {
        match (self.word(), self.number()) {
            ("RESERVED" | "FOUND", Some(id)) => Ok((JobId(id), self.data.unwrap_or_default())),
            _ => Err(self.refusal(subject)),
        }
    }
}

/// Reads a line. Returns it without its CR LF.
fn line(input: &mut impl BufRead) -> Result<Vec<u8>, ReadError> {
    let mut line = Vec::new();
    input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(ReadError::Io)?;
    if line.ends_with(b"\r\n") {
        line.truncate(line.len() - 2);
        return Ok(line);
    }
    if line.len() as u64 == LINE_BYTES_MAX || line.ends_with(b"\n") {
        return Err(ReadError::Foreign(line.into()));
    }
    Err(ReadError::Io(ErrorKind::UnexpectedEof.into()))
}

/// Returns the lines of a document. Its first line is `---`.
///
/// # Errors
/// If the first line is something else.
pub fn document(data: &Untrusted) -> Result<impl Iterator<Item = &[u8]>, ClientError> {
    let bytes = data.bytes();
    let mut lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|&byte| byte == b'\n');
    if lines.next() == Some(b"---") { Ok(lines) } else { Err(ClientError::Unreadable(data.clone())) }
}

/// Reads the data of a list: the line `---`, and a line `- ITEM` for each item.
///
/// # Errors
/// If a line is something else.
pub fn items<T>(data: &Untrusted, item: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, ClientError> {
    let all = document(data)?.map(|line| item(line.strip_prefix(b"- ")?)).collect::<Option<_>>();
    all.ok_or_else(|| ClientError::Unreadable(data.clone()))
}

/// Returns the parts of a text between separators.
pub fn split<'a>(text: &'a [u8], separator: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(at) = memmem::find(text, separator) else { return rest.take() };
        rest = Some(&text[at + separator.len()..]);
        Some(&text[..at])
    })
}

/// A name without its quotes.
pub fn unquoted(name: &[u8]) -> &[u8] {
    name.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_replies() {
        let parse = |line: &str| Reply::parse(line.as_bytes().to_vec());
        for (line, expected) in [("OK 5", 5), ("RESERVED 7 0", 0), ("FOUND 18446744073709551615 12", 12)] {
            assert!(matches!(parse(line), Ok((_, Some(bytes))) if bytes == expected), "{line}");
        }
        for line in ["INSERTED 7", "NOT_FOUND", "KICKED 3", "BURIED"] {
            assert!(matches!(parse(line), Ok((_, None))), "{line}");
        }
        for line in ["", "HTTP/1.1 400 Bad Request", "+OK", "OK", "OK x", "OK -1", "FOUND 7", "ok 5", " OK 5"]
        {
            assert!(matches!(parse(line), Err(ReadError::Foreign(_))), "{line}");
        }
    }

    #[test]
    fn lists_of_replies() {
        let names = |data: &str| items(&data.into(), |name| Some(Untrusted::from(name))).ok();
        assert_eq!(names("---\n- a\n- b\n"), Some(vec!["a".into(), "b".into()]));
        assert_eq!(names("---\n"), Some(Vec::new()));
        for data in ["", "hello", "- a\n", "---\nhello\n", "---\na: 1\n"] {
            assert_eq!(names(data), None, "{data}");
        }
    }

    #[test]
    fn data_is_that_of_the_command_and_has_a_bound() {
        let read = |text: &str, follows| Reply::read(&mut text.as_bytes(), follows);
        for follows in [Follows::Statistics, Follows::List] {
            let reply = read("OK 3\r\nabc\r\n", follows).expect("a reply");
            assert_eq!(reply.into_ok("").expect("data"), "abc");
            let unexpected = read("FOUND 1 3\r\nabc\r\n", follows);
            assert!(matches!(unexpected, Err(ReadError::Unexpected(_))), "{unexpected:?}");
        }
        assert!(read("RESERVED 1 3\r\nabc\r\n", Follows::Job).is_ok());
        for follows in [Follows::Nothing, Follows::Job] {
            assert!(matches!(read("OK 3\r\nabc\r\n", follows), Err(ReadError::Unexpected(_))));
        }
        for follows in [Follows::Nothing, Follows::Statistics, Follows::List, Follows::Job] {
            assert_eq!(read("NOT_FOUND\r\n", follows).expect("a reply").word(), "NOT_FOUND");
            let word = if follows == Follows::Job { "RESERVED 1" } else { "OK" };
            if follows != Follows::Nothing {
                // Without the data: the number alone decides.
                let bytes_max = follows.bytes_max();
                let result = read(&format!("{word} {}\r\n", bytes_max + 1), follows);
                assert!(matches!(result, Err(ReadError::TooLong { .. })), "{result:?}");
                let result = read(&format!("{word} {bytes_max}\r\n"), follows);
                assert!(matches!(result, Err(ReadError::Io(_))), "{result:?}");
            }
        }
        let endless = "A".repeat(2 * LINE_BYTES_MAX as usize);
        let result = read(&endless, Follows::Nothing);
        assert!(
            matches!(result, Err(ReadError::Foreign(line)) if line.bytes().len() as u64 == LINE_BYTES_MAX)
        );
    }

    #[test]
    fn numbers_of_replies() {
        let (reply, _) = Reply::parse(b"INSERTED 18446744073709551615".to_vec()).expect("it is complete");
        assert_eq!(reply.number(), Some(u64::MAX));
        assert!(reply.clone().expect("INSERTED", "put").is_ok());
        let refusal = reply.expect("DELETED", "job 7").unwrap_err();
        assert_eq!(refusal.to_string(), "job 7: INSERTED 18446744073709551615");
    }
}
