//! Who may use the API. The order of the checks is that of docs/SECURITY.md: the token, or else the address of the peer;
//! then, for a request that changes something, where a browser has it from.

use std::fmt;
use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::request::Request;
use super::response::{ErrorKind, ErrorResponse};
use crate::server::{Rights, User, Users};

/// The peer of an HTTP connection, as its driver knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// From where it connects.
    pub kind: PeerKind,
    /// Its address, for log lines.
    pub name: String,
    /// Whose share of the connections it takes.
    pub origin: Origin,
}

/// Whose share of the connections a peer takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// A number of its address: of all 128 bits, or for IPv6 of the 64 that are the same for a whole network. All peers of UNIX
    /// sockets have the same.
    pub network: u128,
    /// From this machine: over a UNIX socket, from loopback, or from the address that it has connected to.
    pub is_local: bool,
}

/// From where a peer connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerKind {
    /// Over a UNIX socket, whose file decides who may connect.
    Unix,
    /// From this machine.
    Loopback,
    /// From elsewhere, or from an address that is not known.
    Network,
}

/// Who may use the API.
#[derive(Clone, Default, Debug)]
pub struct HttpAccess {
    /// Every request needs it (`--http-token`).
    pub token: Option<Token>,
    /// Without a token, peers on this machine may change jobs and tubes (`--http-allow-writes`).
    pub allow_writes: bool,
}

/// The secret of `--http-token`.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl Token {
    /// The least number of bytes: too many to guess.
    pub const BYTES_MIN: usize = 16;
    /// The largest number of bytes.
    pub const BYTES_MAX: usize = 256;

    /// Reads a token from the content of a file, without the white space around it. Returns `None` unless it consists of 16
    /// to 256 bytes of visible ASCII.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let token = content.trim_ascii();
        let length_fits = (Self::BYTES_MIN..=Self::BYTES_MAX).contains(&token.len());
        // Bounded by BYTES_MAX: the bytes of one token.
        (length_fits && token.iter().all(u8::is_ascii_graphic)).then(|| Self(token.into()))
    }

    /// The secret.
    pub(in crate::server) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty, which no token is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the same time for all tokens of one length.
    fn is(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Token {}

/// Does not show the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Peer {
    /// A peer of this kind without an address of its own.
    pub fn new(kind: PeerKind, name: impl Into<String>) -> Self {
        let origin = Origin { network: 0, is_local: kind != PeerKind::Network };
        Self { kind, name: name.into(), origin }
    }

    /// A peer whose address is not known.
    pub fn unknown() -> Self {
        Self::new(PeerKind::Network, "unknown")
    }
}

/// The user of a request, by its token. Without one, the user of the connection's certificate, if there still is one, or a
/// client that has not authenticated.
pub(super) fn user_of(
    users: &Users,
    request: &Request,
    certified: Option<&User>,
) -> Result<Arc<User>, ErrorResponse> {
    match request.fields.authorization.as_deref().and_then(bearer) {
        Some(given) => users
            .by_token(given.as_bytes())
            .map(Arc::clone)
            .ok_or_else(|| unauthorized("the token is wrong: send that of a user in the file of --auth")),
        None => {
            let certified = certified.and_then(|user| users.again(user));
            Ok(Arc::clone(certified.unwrap_or(users.anonymous())))
        }
    }
}

/// The user of a request to the API. One that may do nothing without a token is asked for it.
pub(super) fn check_user(
    users: &Users,
    request: &Request,
    certified: Option<&User>,
) -> Result<Arc<User>, ErrorResponse> {
    let user = user_of(users, request, certified)?;
    if user.name.is_none() && user.grants.somewhere() == Rights::NONE {
        return Err(unauthorized(
            "a token is needed: send Authorization: Bearer TOKEN with that of a user in the file of --auth",
        ));
    }
    Ok(user)
}

impl HttpAccess {
    /// Whether a peer that may read may also write.
    pub(super) const fn may_write(&self) -> bool {
        self.token.is_some() || self.allow_writes
    }

    /// Checks that the peer may use the API at all.
    pub(super) fn check_read(&self, peer: &Peer, request: &Request) -> Result<(), ErrorResponse> {
        match &self.token {
            Some(token) => match request.fields.authorization.as_deref().and_then(bearer) {
                Some(given) if token.is(given.as_bytes()) => Ok(()),
                Some(_) => Err(unauthorized("the token is wrong: send the one in the file of --http-token")),
                None => Err(unauthorized(
                    "a token is needed: send Authorization: Bearer TOKEN with the one in the file of --http-token",
                )),
            },
            None if peer.kind == PeerKind::Network => Err(forbidden(
                "without --http-token only clients on this machine may use the API: start the server with --http-token FILE",
            )),
            None => Ok(()),
        }
    }

    /// Checks that the peer, which may read, may also write, and that no page of another site has a browser do it.
    pub(super) fn check_write(&self, request: &Request) -> Result<(), ErrorResponse> {
        if !self.may_write() {
            return Err(forbidden(
                "the API is read-only: start the server with --http-token FILE, or with --http-allow-writes for clients on this machine",
            ));
        }
        Self::check_origin(request)
    }

    /// Checks that no page of another site has a browser send a request. It could not read the response, but learns from a frame whether
    /// there is one, and could have the body of a job downloaded.
    pub(super) fn check_site(request: &Request) -> Result<(), ErrorResponse> {
        match request.fields.fetch_site.as_deref() {
            Some("cross-site" | "same-site") => Err(foreign()),
            _ => Ok(()),
        }
    }

    /// Checks that no page of another site has a browser send a request that changes something: old browsers name the origin only.
    pub(super) fn check_origin(request: &Request) -> Result<(), ErrorResponse> {
        let is_own = |origin: &str| {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            authority.is_some_and(|origin| {
                request.authority.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(origin))
            })
        };
        let is_foreign = request.fields.origin.as_deref().is_some_and(|origin| !is_own(origin));
        if is_foreign { Err(foreign()) } else { Ok(()) }
    }
}

fn foreign() -> ErrorResponse {
    forbidden("a page of another site has sent this request: use the console of this server, or a program")
}

fn unauthorized(message: &'static str) -> ErrorResponse {
    ErrorResponse::new(ErrorKind::Unauthorized, message)
}

fn forbidden(message: &'static str) -> ErrorResponse {
    ErrorResponse::new(ErrorKind::Forbidden, message)
}

/// The token of an `Authorization` field.
fn bearer(field: &str) -> Option<&str> {
    let (scheme, token) = field.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_at_each_boundary() {
        for (content, is_token) in [
            ("a".repeat(15), false),
            ("a".repeat(16), true),
            (format!(" \t{}\r\n", "~".repeat(256)), true),
            ("a".repeat(257), false),
            (format!("{} b", "a".repeat(16)), false),
            (format!("{}\u{e4}", "a".repeat(16)), false),
            (String::new(), false),
        ] {
            assert_eq!(Token::parse(content.as_bytes()).is_some(), is_token, "{content:?}");
        }
        let token = Token::parse(b"0123456789abcdef\n").expect("it is one");
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn only_bearer_tokens_are_found() {
        for (field, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("abc", None),
            ("Bearer", None),
        ] {
            assert_eq!(bearer(field), token, "{field}");
        }
    }
}
