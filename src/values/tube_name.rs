//! Tube names, checked when they are created.

use crate::values::limits::TUBE_NAME_BYTES_MAX;

/// A valid tube name, borrowed: 1 to 200 bytes of `A-Z a-z 0-9 - + / ; . $ _ ( )`, the first not `-`
/// (protocol.txt, "Names").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TubeName<'a>(&'a [u8]);

impl<'a> TubeName<'a> {
    /// The tube that every connection uses and watches at first. It always exists.
    pub const DEFAULT: TubeName<'static> = TubeName(b"default");

    /// Checks a name. Returns `None` if it is not valid.
    pub fn new(name: &'a [u8]) -> Option<Self> {
        let length_fits = (1..=TUBE_NAME_BYTES_MAX).contains(&name.len());
        (length_fits && name[0] != b'-' && name.iter().all(|&byte| IS_NAME_BYTE[byte as usize]))
            .then_some(Self(name))
    }

    /// A name that has been checked, as a part of a text that its owner keeps.
    #[inline]
    pub(crate) const fn checked_before(name: &'a [u8]) -> Self {
        debug_assert!(!name.is_empty());
        Self(name)
    }

    /// Splits `text` after its longest prefix of bytes that names may have.
    pub fn split_alphabet(text: &[u8]) -> (&[u8], &[u8]) {
        let end = text.iter().position(|&byte| !IS_NAME_BYTE[byte as usize]);
        text.split_at(end.unwrap_or(text.len()))
    }

    /// The bytes of the name.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The name as text; the alphabet is ASCII.
    pub fn as_str(self) -> &'a str {
        std::str::from_utf8(self.0).expect("a tube name is ASCII")
    }
}

const IS_NAME_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric()
            || matches!(byte as u8, b'-' | b'+' | b'/' | b';' | b'.' | b'$' | b'_' | b'(' | b')');
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &[u8], valid: bool) {
        assert_eq!(TubeName::new(name).is_some(), valid, "{:?}", String::from_utf8_lossy(name));
    }

    #[test]
    fn names_at_each_boundary() {
        check(b"", false);
        check(b"a", true);
        check(&[b'a'; 200], true);
        check(&[b'a'; 201], false);
        check(b"-a", false);
        check(b"a-", true);
        check(b"AZaz09-+/;.$_()", true);
        for bad in [b' ', b'\t', b'\0', b'*', b',', b':', b'@', b'[', b'{', b'\x7f', b'\x80', b'\r'] {
            check(&[b'a', bad], false);
        }
    }
}
