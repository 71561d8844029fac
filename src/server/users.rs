//! The users of `--auth`, and the rights of each.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::BitOr;
use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::Token;
use crate::values::budget::Cost;
use crate::values::limits::{ALLOCATION_BYTES, TUBE_NAME_BYTES_MAX};
use crate::values::tube_name::TubeName;

/// A set of rights on a tube.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rights(u8);

impl Rights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// To put jobs.
    pub const PRODUCE: Self = Self(1);
    /// To reserve jobs, and to delete, release, bury and touch them.
    pub const CONSUME: Self = Self(2);
    /// To see jobs and statistics.
    pub const INSPECT: Self = Self(4);
    /// To kick, flush, move and delete jobs, and to pause and configure tubes. On all tubes, to drain. Over HTTP also to bury and
    /// release jobs.
    pub const ADMIN: Self = Self(8);
    /// To name the keys of these names that jobs of several tubes share. It is no right on a tube.
    pub const KEYS: Self = Self(16);

    /// The rights of which one on the name of a key permits to name it.
    pub const NAME_KEY: Self = Self::PRODUCE.or(Self::CONSUME).or(Self::KEYS);

    /// Each right on tubes, with its word in the file.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::PRODUCE, "produce"),
        (Self::CONSUME, "consume"),
        (Self::INSPECT, "inspect"),
        (Self::ADMIN, "admin"),
    ];

    /// Whether the sets have a right in common.
    #[inline]
    pub const fn has_any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// The rights in either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The words of the rights, one of which is enough.
impl fmt::Display for Rights {
    // Bounded by Rights::ALL: the four rights, and KEYS.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words =
            Self::ALL.into_iter().chain([(Self::KEYS, "keys")]).filter(|(right, _)| self.has_any(*right));
        for (at, (_, word)) in words.enumerate() {
            f.write_str(if at == 0 { "" } else { " or " })?;
            f.write_str(word)?;
        }
        Ok(())
    }
}

impl BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.or(other)
    }
}

/// A tube by its name, or all tubes whose names begin alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    text: Box<[u8]>,
    is_prefix: bool,
}

impl Pattern {
    /// Reads `mail` or `mail.*`. `*` stands for all tubes. Returns `None` if no tube can have such a name.
    pub fn parse(text: &str) -> Option<Self> {
        let prefix = text.strip_suffix('*');
        let name = prefix.unwrap_or(text).as_bytes();
        let is_valid = TubeName::new(name).is_some() || name.is_empty() && prefix.is_some();
        (is_valid && name.len() <= TUBE_NAME_BYTES_MAX)
            .then(|| Self { text: name.into(), is_prefix: prefix.is_some() })
    }

    fn matches(&self, tube: &[u8]) -> bool {
        if self.is_prefix { tube.starts_with(&self.text) } else { *tube == *self.text }
    }

    fn is_everything(&self) -> bool {
        self.is_prefix && self.text.is_empty()
    }
}

/// The tubes on which a user has each right.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Grants {
    patterns: Vec<(Rights, Pattern)>,
    everywhere: Rights,
    somewhere: Rights,
}

impl Grants {
    /// Gives a right on the tubes of a pattern, or on the keys.
    pub fn add(&mut self, right: Rights, pattern: Pattern) {
        if right != Rights::KEYS {
            self.somewhere = self.somewhere | right;
        }
        if pattern.is_everything() {
            self.everywhere = self.everywhere | right;
        }
        self.patterns.push((right, pattern));
    }

    /// The rights on a tube, which need not exist.
    pub fn on(&self, tube: TubeName<'_>) -> Rights {
        let name = tube.as_bytes();
        // Bounded by LIST_MAX: the patterns of one user, 64 for each right.
        let matching = self.patterns.iter().filter(|(_, pattern)| pattern.matches(name));
        matching.fold(self.everywhere, |rights, (right, _)| rights | *right)
    }

    /// The price of a comparison of a tube with all patterns.
    pub(super) const fn cost(&self) -> Cost {
        Cost::patterns(self.patterns.len())
    }

    /// Whether one of these rights is one on a tube. Looks only at their patterns, and not beyond the first that matches.
    fn has_any_on(&self, tube: TubeName<'_>, rights: Rights) -> bool {
        let name = tube.as_bytes();
        // Bounded by LIST_MAX: the patterns of one user, 64 for each right.
        self.patterns.iter().any(|(right, pattern)| right.has_any(rights) && pattern.matches(name))
    }

    /// The rights on all tubes, also on those that do not exist yet.
    #[inline]
    pub const fn everywhere(&self) -> Rights {
        self.everywhere
    }

    /// The rights on at least one pattern.
    pub const fn somewhere(&self) -> Rights {
        self.somewhere
    }

    fn memory_bytes(&self) -> usize {
        // Bounded by LIST_MAX: the patterns of one user, once for each file.
        let texts = self.patterns.iter().map(|(_, pattern)| pattern.text.len() + ALLOCATION_BYTES);
        self.patterns.capacity() * size_of::<(Rights, Pattern)>() + texts.sum::<usize>()
    }
}

/// Who a client is, and what it may do.
#[derive(Clone, Debug)]
pub struct User {
    /// `None` for clients that have not authenticated.
    pub name: Option<Box<str>>,
    /// The token that proves to be this user.
    pub token: Option<Token>,
    /// The names in certificates that prove to be this user.
    pub certificate: Vec<Box<str>>,
    /// The rights.
    pub grants: Grants,
}

impl User {
    /// A client that has not authenticated.
    pub const fn anonymous(grants: Grants) -> Self {
        Self { name: None, token: None, certificate: Vec::new(), grants }
    }

    /// Whether the user has one of these rights on a tube.
    #[inline]
    pub fn may(&self, rights: Rights, tube: TubeName<'_>) -> bool {
        self.grants.everywhere.has_any(rights) || self.grants.has_any_on(tube, rights)
    }

    /// The price of one call of [`may`](Self::may).
    pub(super) const fn cost_of(&self, rights: Rights) -> Cost {
        if self.grants.everywhere.has_any(rights) { Cost::NOTHING } else { self.grants.cost() }
    }

    fn memory_bytes(&self) -> usize {
        // Bounded by LIST_MAX: the names of one user, once for each file.
        let names = self.certificate.iter().map(|name| name.len() + size_of::<Box<str>>() + ALLOCATION_BYTES);
        let own = size_of::<Self>() + size_of::<Arc<Self>>() + 4 * ALLOCATION_BYTES;
        own + names.sum::<usize>()
            + self.name.as_ref().map_or(0, |name| name.len())
            + self.token.as_ref().map_or(0, Token::len)
            + self.grants.memory_bytes()
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_deref().unwrap_or("anonymous"))
    }
}

/// The users of a server, in the order of the file.
#[derive(Clone, Debug)]
pub struct Users {
    users: Vec<Arc<User>>,
    anonymous: Arc<User>,
    index: Index,
    bytes: usize,
}

/// Finds users by what their clients send. Values are positions in the list of users.
#[derive(Clone, Default, Debug)]
struct Index {
    by_name: HashMap<Box<str>, u32>,
    /// By the names in certificates, in lower case. The first user of the file that has a name is the one.
    by_certificate: HashMap<Box<str>, u32>,
    /// The keyed hashes of the tokens, in their order. Without the random key nobody can choose a token by its hash, so the time
    /// of a search tells nothing about a token.
    by_token: Vec<(u64, u32)>,
    key: RandomState,
}

impl Users {
    /// The most users of a server.
    pub const MAX: usize = 256;

    /// Returns the users, and what clients may do that have not authenticated. At most [`MAX`](Self::MAX) are counted on.
    pub fn new(users: Vec<User>, anonymous: Grants) -> Self {
        let index = Index::of(&users);
        let anonymous = User::anonymous(anonymous);
        // Bounded by Users::MAX: once for each file.
        let bytes = users.iter().chain([&anonymous]).map(User::memory_bytes).sum::<usize>() + index.bytes();
        Self {
            users: users.into_iter().map(Arc::new).collect(),
            anonymous: Arc::new(anonymous),
            index,
            bytes,
        }
    }

    /// The number of users.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there are no users, so that only anonymous clients may do anything.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Whether nobody has a right, so that every client is refused.
    pub fn are_without_rights(&self) -> bool {
        // Bounded by Users::MAX: at the start and once for each file.
        self.users.iter().chain([&self.anonymous]).all(|user| user.grants.somewhere() == Rights::NONE)
    }

    /// Whether clients that have not authenticated may do everything with jobs, so that the users protect nothing.
    pub fn need_no_token(&self) -> bool {
        let everywhere = self.anonymous.grants.everywhere();
        everywhere.has_any(Rights::PRODUCE)
            && everywhere.has_any(Rights::CONSUME)
            && everywhere.has_any(Rights::ADMIN)
    }

    /// The first user who can authenticate only by a certificate.
    pub fn first_without_token(&self) -> Option<&User> {
        // Bounded by Users::MAX: at the start.
        self.users.iter().find(|user| user.token.is_none()).map(|user| &**user)
    }

    /// The user that a client is before it authenticates.
    pub(super) const fn anonymous(&self) -> &Arc<User> {
        &self.anonymous
    }

    /// The user of this token. The hash decides which token it is compared with, and the comparison takes the same time for all
    /// tokens of one length.
    pub(super) fn by_token(&self, token: &[u8]) -> Option<&Arc<User>> {
        let Index { by_token, key, .. } = &self.index;
        let hash = key.hash_one(token);
        let first = by_token.partition_point(|&(other, _)| other < hash);
        // Bounded by Users::MAX: tokens with the same 64 bits of hash, so at most one in practice.
        let mut same = by_token[first..].iter().take_while(|&&(other, _)| other == hash);
        same.find_map(|&(_, at)| {
            let user = &self.users[at as usize];
            let own = user.token.as_ref()?;
            bool::from(own.as_bytes().ct_eq(token)).then_some(user)
        })
    }

    /// The first user that has one of these names of a certificate.
    pub(super) fn by_certificate(&self, names: &[String]) -> Option<&Arc<User>> {
        // Bounded by CHAIN_BYTES_MAX: the names in one certificate.
        let found =
            names.iter().filter_map(|name| self.index.by_certificate.get(&*name.to_ascii_lowercase()));
        found.min().map(|&at| &self.users[at as usize])
    }

    /// The user that has this name now. Without a name, the anonymous one.
    pub(super) fn again(&self, user: &User) -> Option<&Arc<User>> {
        match &user.name {
            None => Some(&self.anonymous),
            Some(name) => self.index.by_name.get(name).map(|&at| &self.users[at as usize]),
        }
    }

    /// The memory that they take, in bytes.
    pub(super) const fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

impl Index {
    // Bounded by Users::MAX: once for each file, with LIST_MAX names of certificates each.
    fn of(users: &[User]) -> Self {
        let mut index = Self::default();
        for (at, user) in (0..).zip(users) {
            if let Some(name) = &user.name {
                index.by_name.entry(name.clone()).or_insert(at);
            }
            for name in &user.certificate {
                index.by_certificate.entry(name.to_ascii_lowercase().into()).or_insert(at);
            }
            if let Some(token) = &user.token {
                index.by_token.push((index.key.hash_one(token.as_bytes()), at));
            }
        }
        index.by_token.sort_unstable();
        index
    }

    // Bounded by Users::MAX: once for each file, with LIST_MAX names of certificates each.
    fn bytes(&self) -> usize {
        let entry = size_of::<(Box<str>, u32)>() + 1;
        let tables = [&self.by_name, &self.by_certificate];
        let texts = tables.iter().flat_map(|table| table.keys()).map(|name| name.len() + ALLOCATION_BYTES);
        let slots = tables.iter().map(|table| table.capacity() * entry * 8 / 7).sum::<usize>();
        slots + texts.sum::<usize>() + self.by_token.capacity() * size_of::<(u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tube(name: &str) -> TubeName<'_> {
        TubeName::new(name.as_bytes()).expect("a valid name")
    }

    #[test]
    fn patterns_match_names_and_prefixes() {
        for (pattern, name, expected) in [
            ("mail", "mail", true),
            ("mail", "mail.x", false),
            ("mail.*", "mail.x", true),
            ("mail.*", "mail.", true),
            ("mail.*", "mail", false),
            ("*", "anything", true),
        ] {
            let pattern = Pattern::parse(pattern).expect("it is one");
            assert_eq!(pattern.matches(name.as_bytes()), expected, "{pattern:?} {name}");
        }
        for wrong in ["", "a b", "*x", "a*b", "**", "-a", &"a".repeat(201)] {
            assert_eq!(Pattern::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn rights_of_several_patterns_add_up() {
        let mut grants = Grants::default();
        assert_eq!(grants.on(tube("a")), Rights::NONE);
        grants.add(Rights::PRODUCE, Pattern::parse("a*").expect("a pattern"));
        grants.add(Rights::CONSUME, Pattern::parse("ab").expect("a pattern"));
        grants.add(Rights::INSPECT, Pattern::parse("*").expect("a pattern"));
        assert_eq!(grants.on(tube("ab")), Rights::PRODUCE | Rights::CONSUME | Rights::INSPECT);
        assert_eq!(grants.on(tube("b")), Rights::INSPECT);
        assert_eq!(grants.everywhere(), Rights::INSPECT);
        assert!(!grants.somewhere().has_any(Rights::ADMIN));
    }

    #[test]
    fn a_token_belongs_to_one_user() {
        let user = |name: &str, token: &str, certificate: &str| User {
            name: Some(name.into()),
            token: Token::parse(token.as_bytes()),
            certificate: vec![certificate.into()],
            grants: Grants::default(),
        };
        let users = Users::new(
            vec![
                user("one", "0123456789abcdef", "one.example"),
                user("two", "fedcba9876543210", "TWO.example"),
            ],
            Grants::default(),
        );
        let name = |token: &str| users.by_token(token.as_bytes()).map(|user| user.to_string());
        assert_eq!(name("0123456789abcdef").as_deref(), Some("one"));
        assert_eq!(name("fedcba9876543210").as_deref(), Some("two"));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
        let by = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            users.by_certificate(&names).map(|user| user.to_string())
        };
        assert_eq!(by(&["x.example", "two.example"]).as_deref(), Some("two"));
        assert_eq!(
            by(&["two.example", "one.example"]).as_deref(),
            Some("one"),
            "the order of the file counts"
        );
        assert_eq!(by(&[]), None);
        assert!(!format!("{users:?}").contains("0123456789abcdef"));
    }
}
