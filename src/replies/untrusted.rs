//! Text that a server has sent. It is printed escaped, or not at all.

use std::fmt;
use std::str::Utf8Error;

use serde::{Serialize, Serializer};

use super::{escaped, escaped_lines};
use crate::values::tube_name::TubeName;

/// Bytes of a reply. Their `Display` is [`escaped`], and there is no way to a `str` but a tube name that the protocol allows.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Untrusted(Vec<u8>);

impl Untrusted {
    /// No byte.
    pub const EMPTY: &Self = &Self(Vec::new());

    /// The bytes, for comparisons, for pipes, and for commands to the same server.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is no byte.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text for people in several lines: LF and tabs stay.
    pub fn lines(&self) -> String {
        escaped_lines(&self.0)
    }

    /// The first word, if it has only letters in upper case and `_`. An empty text otherwise.
    pub fn word(&self) -> &str {
        let word = self.0.split(|&byte| byte == b' ').next().unwrap_or_default();
        let is_word = word.iter().all(|&byte| byte.is_ascii_uppercase() || byte == b'_');
        str::from_utf8(word).ok().filter(|_| is_word).unwrap_or_default()
    }

    /// The text as the name of a tube, if the protocol allows it. Such a name has only printable ASCII characters.
    pub fn tube_name(&self) -> Option<&str> {
        TubeName::new(&self.0).map(TubeName::as_str)
    }

    /// The first bytes, at most this number.
    #[must_use]
    pub fn beginning(&self, bytes: usize) -> Self {
        Self(self.0[..self.0.len().min(bytes)].to_vec())
    }

    /// The text with ASCII letters in lower case.
    #[must_use]
    pub fn to_lowercase(&self) -> Self {
        Self(self.0.to_ascii_lowercase())
    }

    /// Returns nothing if the bytes are UTF-8.
    ///
    /// # Errors
    /// If they are not.
    pub fn check_utf8(&self) -> Result<(), Utf8Error> {
        str::from_utf8(&self.0).map(drop)
    }
}

/// Reads a number of decimal digits.
pub fn integer(text: &[u8]) -> Option<u64> {
    let is_number = text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// Reads a number of decimal digits with a decimal point.
pub fn decimal(text: &[u8]) -> Option<f64> {
    let is_number = text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

impl From<Vec<u8>> for Untrusted {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Untrusted {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<&str> for Untrusted {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Untrusted {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Untrusted {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.0))
    }
}

impl fmt::Debug for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for Untrusted {
    /// The text itself, for [`json`](super::escape::json), which escapes it. Bytes that are not UTF-8 become U+FFFD.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn it_is_shown_escaped() {
        let text = Untrusted::from("a\x1b]0;x\x07\u{9b}\u{202e}");
        let shown = "a\\x1b]0;x\\x07\\u{9b}\\u{202e}";
        assert_eq!((text.to_string(), format!("{text:?}")), (shown.to_owned(), format!("\"{shown}\"")));
        assert_eq!((text.word(), text.tube_name()), ("", None));
        assert_eq!(Untrusted::from("NOT_FOUND \x1b").word(), "NOT_FOUND");
        assert_eq!(
            ["a;b", "a\rb"].map(Untrusted::from).each_ref().map(Untrusted::tube_name),
            [Some("a;b"), None]
        );
    }

    #[test]
    fn numbers() {
        assert_eq!([&b"7"[..], b"", b"-1", b"+1", b"1 "].map(integer), [Some(7), None, None, None, None]);
        assert_eq!([&b"7.5"[..], b".", b"1e3", b"inf"].map(decimal), [Some(7.5), None, None, None]);
    }

    /// The type cannot see bytes that become a `str` elsewhere.
    #[test]
    fn bytes_become_text_only_here() {
        fn check(directory: &Path) {
            for entry in fs::read_dir(directory).expect("it is there") {
                let path = entry.expect("it is there").path();
                if path.is_dir() {
                    check(&path);
                } else if !path.ends_with("untrusted.rs") && !path.ends_with("escape.rs") {
                    let source = fs::read_to_string(&path).expect("it is text");
                    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                    for maker in ["from_utf8", "from_utf8_lossy", "utf8_chunks", "serde_json::to_"] {
                        assert!(!code.contains(maker), "{}: {maker}", path.display());
                    }
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        check(&root.join("src/replies"));
        check(&root.join("src/bin/beanring/client"));
    }
}
