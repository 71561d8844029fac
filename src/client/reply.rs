//! Replies of the protocol.

use super::error::{ClientError, Refusal};
use crate::ids::JobId;

/// A reply: its line without the CR LF, and the data that follows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
}

/// What a line of a reply is.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Parsed {
    /// The whole reply.
    Complete(Reply),
    /// This line, and this number of bytes that follow it.
    NeedsData { line: Vec<u8>, bytes: u64 },
    /// No reply of the protocol.
    Foreign(Vec<u8>),
}

impl Reply {
    pub(super) fn parse(line: Vec<u8>) -> Parsed {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let is_word = |word: &[u8]| {
            !word.is_empty() && word.iter().all(|&byte| byte.is_ascii_uppercase() || byte == b'_')
        };
        let bytes = match words[..] {
            [b"OK", bytes] | [b"RESERVED" | b"FOUND", _, bytes] => Some(number(bytes)),
            [b"OK" | b"RESERVED" | b"FOUND", ..] => Some(None),
            _ => None,
        };
        match bytes {
            Some(Some(bytes)) => Parsed::NeedsData { line, bytes },
            None if is_word(words[0]) => Parsed::Complete(Self { line, data: None }),
            _ => Parsed::Foreign(line),
        }
    }

    pub(super) const fn with_data(line: Vec<u8>, data: Vec<u8>) -> Self {
        Self { line, data: Some(data) }
    }

    /// The line.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// The first word.
    pub fn word(&self) -> &str {
        let word = self.line.split(|&byte| byte == b' ').next().unwrap_or_default();
        str::from_utf8(word).unwrap_or_default()
    }

    /// The number after the first word: the id of a job, or a count.
    pub fn number(&self) -> Option<u64> {
        number(self.line.split(|&byte| byte == b' ').nth(1)?)
    }

    /// Returns the number of a reply that must have one.
    ///
    /// # Errors
    /// If it has none.
    pub fn count(&self) -> Result<u64, ClientError> {
        self.number().ok_or_else(|| ClientError::Unreadable(self.line.clone()))
    }

    /// The data behind the line.
    pub fn data(&self) -> Option<&[u8]> {
        self.data.as_deref()
    }

    /// Returns nothing if the reply begins with this word.
    ///
    /// # Errors
    /// If it is another reply.
    pub fn expect(self, word: &str, subject: &str) -> Result<Self, Refusal> {
        if self.word() == word { Ok(self) } else { Err(Refusal::new(subject, &self.line)) }
    }

    /// Returns the data of `OK`.
    ///
    /// # Errors
    /// If it is another reply.
    pub fn into_ok(self, subject: &str) -> Result<Vec<u8>, Refusal> {
        self.expect("OK", subject).map(|reply| reply.data.unwrap_or_default())
    }

    /// Returns the job of `RESERVED` or `FOUND`.
    ///
    /// # Errors
    /// If it is another reply.
    pub fn into_job(self, subject: &str) -> Result<(JobId, Vec<u8>), Refusal> {
        match (self.word(), self.number()) {
            ("RESERVED" | "FOUND", Some(id)) => Ok((JobId(id), self.data.unwrap_or_default())),
            _ => Err(Refusal::new(subject, &self.line)),
        }
    }
}

/// Reads the data of a list: the line `---`, and a line `- ITEM` for each item.
///
/// # Errors
/// If a line is something else.
pub(super) fn items<T>(data: &[u8], item: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, ClientError> {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let all = if lines.next() == Some("---") {
        lines.map(|line| item(line.strip_prefix("- ")?)).collect()
    } else {
        None
    };
    all.ok_or_else(|| ClientError::Unreadable(data.to_vec()))
}

fn number(text: &[u8]) -> Option<u64> {
    let is_number = text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_replies() {
        let parse = |line: &str| Reply::parse(line.as_bytes().to_vec());
        for (line, expected) in [("OK 5", 5), ("RESERVED 7 0", 0), ("FOUND 18446744073709551615 12", 12)] {
            assert!(matches!(parse(line), Parsed::NeedsData { bytes, .. } if bytes == expected), "{line}");
        }
        for line in ["INSERTED 7", "NOT_FOUND", "KICKED 3", "BURIED"] {
            assert!(matches!(parse(line), Parsed::Complete(_)), "{line}");
        }
        for line in ["", "HTTP/1.1 400 Bad Request", "+OK", "OK", "OK x", "OK -1", "FOUND 7", "ok 5", " OK 5"]
        {
            assert!(matches!(parse(line), Parsed::Foreign(_)), "{line}");
        }
    }

    #[test]
    fn lists_of_replies() {
        let names = |data: &str| items(data.as_bytes(), |name| Some(name.to_owned())).ok();
        assert_eq!(names("---\n- a\n- b\n"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names("---\n"), Some(Vec::new()));
        for data in ["", "hello", "- a\n", "---\nhello\n", "---\na: 1\n"] {
            assert_eq!(names(data), None, "{data}");
        }
    }

    #[test]
    fn numbers_of_replies() {
        let Parsed::Complete(reply) = Reply::parse(b"INSERTED 18446744073709551615".to_vec()) else {
            panic!("it is complete")
        };
        assert_eq!(reply.number(), Some(u64::MAX));
        assert!(reply.clone().expect("INSERTED", "put").is_ok());
        let refusal = reply.expect("DELETED", "job 7").unwrap_err();
        assert_eq!(refusal.to_string(), "job 7: INSERTED 18446744073709551615");
    }
}
