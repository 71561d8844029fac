//! Tags of a `put`: what a producer says about a job besides its numbers.

use std::num::NonZeroU32;

use memchr::memchr;

use crate::values::tube_name::TubeName;

/// The tags of a job as the producer wrote them: at most one of each kind, with one space between two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags<'a>(&'a [u8]);

/// The tag `idp:<key>[:<ttl>]`: a tube has one job of this key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idp<'a> {
    /// The key, which follows the rule of tube names.
    pub key: TubeName<'a>,
    /// Seconds for which the key is kept after the deletion of the job.
    pub ttl: u32,
}

/// The tag `con:<key>[:<n>]`: clients reserve at most `n` jobs of this key at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Con<'a> {
    /// The key, which follows the rule of tube names.
    pub key: TubeName<'a>,
    /// The limit.
    pub limit: NonZeroU32,
}

/// The kinds of tags, with their colons. A set of kinds has the bit of each.
const KINDS: [&[u8; 4]; 4] = [IDP, CON, GRP, AFT];
const IDP: &[u8; 4] = b"idp:";
const CON: &[u8; 4] = b"con:";
const GRP: &[u8; 4] = b"grp:";
const AFT: &[u8; 4] = b"aft:";

impl<'a> Tags<'a> {
    /// No tags.
    pub const NONE: Tags<'static> = Tags(b"");

    /// Checks tags that stand behind each other with one space between two. Returns `None` if there is none, a word is no
    /// tag, a kind of tag occurs twice, or a member of a group would wait for that group.
    pub fn new(text: &'a [u8]) -> Option<Self> {
        let mut kinds = 0;
        for word in text.split(|&byte| byte == b' ') {
            let kind = checked_kind(word)?;
            if kinds & kind > 0 {
                return None;
            }
            kinds |= kind;
        }
        let tags = Self(text);
        let waits_for_itself = tags.grp().is_some() && tags.grp() == tags.aft();
        (!waits_for_itself).then_some(tags)
    }

    /// Checks what follows the last number of a `put`: nothing, or a space before each tag.
    #[inline]
    pub fn of_put(rest: &'a [u8]) -> Option<Self> {
        if rest.is_empty() { Some(Tags::NONE) } else { rest.strip_prefix(b" ").and_then(Self::new) }
    }

    /// Tags that have been checked, in a text that its owner keeps.
    #[inline]
    pub(crate) const fn checked_before(text: &'a [u8]) -> Self {
        Self(text)
    }

    /// Returns true if there are no tags.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The tags as text, which is ASCII.
    pub fn as_str(self) -> &'a str {
        str::from_utf8(self.0).expect("tags are ASCII")
    }

    /// The bytes of the text.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The tag `idp`.
    pub fn idp(self) -> Option<Idp<'a>> {
        let (key, ttl) = split_colon(self.value(IDP)?);
        Some(Idp { key: TubeName::checked_before(key), ttl: ttl.map_or(Some(0), parse_number)? })
    }

    /// The tag `con`.
    pub fn con(self) -> Option<Con<'a>> {
        let (key, limit) = split_colon(self.value(CON)?);
        let limit = NonZeroU32::new(limit.map_or(Some(1), parse_number)?)?;
        Some(Con { key: TubeName::checked_before(key), limit })
    }

    /// The tag `grp:<name>`: the job is a member of this group.
    pub fn grp(self) -> Option<TubeName<'a>> {
        self.value(GRP).map(TubeName::checked_before)
    }

    /// The tag `aft:<name>`: the job is held until all members of this group are deleted.
    pub fn aft(self) -> Option<TubeName<'a>> {
        self.value(AFT).map(TubeName::checked_before)
    }

    /// The kinds of the tags, and what stands behind their colons.
    pub fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.as_str().split(' ').filter_map(|word| word.split_once(':'))
    }

    /// What stands behind the colon of the tag of this kind.
    #[inline]
    fn value(self, kind: &[u8; 4]) -> Option<&'a [u8]> {
        let mut rest = self.0;
        loop {
            if let Some(rest) = rest.strip_prefix(kind) {
                return Some(&rest[..memchr(b' ', rest).unwrap_or(rest.len())]);
            }
            rest = &rest[memchr(b' ', rest)? + 1..];
        }
    }
}

/// The kind of the tag that a word is, as a set of one.
fn checked_kind(word: &[u8]) -> Option<u8> {
    let (kind, rest) = word.split_first_chunk::<4>()?;
    let at = KINDS.iter().position(|&known| known == kind)?;
    let (key, number) = split_colon(rest);
    TubeName::new(key)?;
    let is_valid = match KINDS[at] {
        IDP => number.is_none_or(|digits| parse_number(digits).is_some()),
        CON => number.is_none_or(|digits| parse_number(digits).is_some_and(|limit| limit > 0)),
        _ => number.is_none(),
    };
    is_valid.then_some(1 << at)
}

/// Splits a text at its first colon.
fn split_colon(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|&byte| byte == b':') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

fn parse_number(digits: &[u8]) -> Option<u32> {
    let is_decimal = digits.iter().all(u8::is_ascii_digit);
    str::from_utf8(digits).ok().filter(|_| is_decimal)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rest: &str, expect: Option<Option<(&str, u32)>>) {
        let tags = Tags::of_put(rest.as_bytes());
        let idp = tags.map(|tags| tags.idp().map(|idp| (idp.key.as_str(), idp.ttl)));
        assert_eq!(idp, expect, "{rest:?}");
        if let Some(tags) = tags.filter(|tags| !tags.is_empty()) {
            assert_eq!(Tags::new(tags.as_bytes()), Some(tags), "the text is parsed again");
            assert_eq!(tags.as_str(), &rest[1..]);
        }
    }

    #[test]
    fn limits_of_a_key_are_positive() {
        let limit = |text: &str| Tags::new(text.as_bytes()).map(|tags| tags.con().unwrap().limit.get());
        assert_eq!(limit("con:a"), Some(1));
        assert_eq!(limit("con:a:1"), Some(1));
        assert_eq!(limit("con:a:4294967295"), Some(u32::MAX));
        for wrong in ["con:a:0", "con:a:", "con:a:4294967296", "con:", "con", "con:a con:b"] {
            assert_eq!(limit(wrong), None, "{wrong}");
        }
        let both = Tags::new(b"con:a:2 idp:b:3").unwrap();
        assert_eq!(Some(both), Tags::of_put(b" con:a:2 idp:b:3"));
        assert_eq!((both.con().unwrap().key.as_str(), both.idp().unwrap().key.as_str()), ("a", "b"));
        assert_eq!(both.pairs().collect::<Vec<_>>(), [("con", "a:2"), ("idp", "b:3")]);
        assert_eq!(Tags::NONE.pairs().count(), 0);
    }

    #[test]
    fn tags_at_each_boundary() {
        let longest = "k".repeat(200);
        check("", Some(None));
        check(" idp:a", Some(Some(("a", 0))));
        check(" idp:a:0", Some(Some(("a", 0))));
        check(" idp:a/b;(c)$_.+-:4294967295", Some(Some(("a/b;(c)$_.+-", u32::MAX))));
        check(" idp:a:007", Some(Some(("a", 7))));
        check(&format!(" idp:{longest}:1"), Some(Some((&longest, 1))));
        check(&format!(" idp:{longest}k"), None);
        let wrong = [
            " ",
            "  ",
            "idp:a",
            "  idp:a",
            " idp:a ",
            " idp",
            " idp:",
            " idp::1",
            " idp:a:",
            " idp:a:4294967296",
            " idp:a:-1",
            " idp:a:+1",
            " idp:a: 1",
            " idp:a:1:2",
            " idp:-a",
            " idp:a\n",
            " idp:a\0",
            " idp:\u{e9}",
            " IDP:a",
            " idpx:a",
            " id:a",
            " x",
            " x:a",
            " idp:a idp:b",
            " idp:a x:b",
            " idp:a  idp:b",
        ];
        wrong.into_iter().for_each(|rest| check(rest, None));
    }
}
