//! The heads of HTTP responses, and the responses that are an error.

use std::borrow::Cow;
use std::io::Write;

use super::object::json;
use super::request::{Request, Version};
use crate::server::Rights;

pub(super) const JSON_TYPE: &str = "application/json";
pub(super) const PLAIN_TYPE: &str = "text/plain; charset=utf-8";

/// Fields of every response: no other site may read it.
const GUARDS: &str = "X-Content-Type-Options: nosniff\r\n\
    Cross-Origin-Opener-Policy: same-origin\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n";

/// What a browser may do with a response.
pub(super) struct Rules<'a> {
    /// The field `Cache-Control`.
    pub caching: &'a str,
    /// The field `Content-Security-Policy`.
    pub policy: &'a str,
}

/// A response that is no page of the console.
pub(super) const DATA: Rules<'static> = Rules {
    caching: "no-store",
    policy: "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
};

/// What an error of the API is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(super) enum ErrorKind {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Conflict,
    LengthRequired,
    TooLarge,
    Misdirected,
    HeadTooLarge,
    UnsupportedMediaType,
    Internal,
    Draining,
    Standby,
    OutOfMemory,
}

/// Why the API refuses a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ErrorResponse {
    pub kind: ErrorKind,
    /// What to do.
    pub message: Cow<'static, str>,
    /// The methods that the target has.
    pub allow: Option<String>,
    /// The rights of which the user lacks all, where one is enough.
    pub missing: Rights,
}

/// The status of a response, and the further fields of its head.
pub(super) struct Head<'a> {
    pub status: &'a str,
    /// None of a response without a body.
    pub content_type: Option<&'a str>,
    /// The length of the body. `None` sends it in chunks, or ends it with the connection.
    pub body_bytes: Option<u64>,
    /// More fields, each with its CR LF.
    pub fields: &'a str,
}

impl ErrorKind {
    /// The status line, and the word in the body.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::BadRequest => ("400 Bad Request", "bad-request"),
            Self::Unauthorized => ("401 Unauthorized", "unauthorized"),
            Self::Forbidden => ("403 Forbidden", "forbidden"),
            Self::NotFound => ("404 Not Found", "not-found"),
            Self::MethodNotAllowed => ("405 Method Not Allowed", "method-not-allowed"),
            Self::Conflict => ("409 Conflict", "conflict"),
            Self::LengthRequired => ("411 Length Required", "bad-request"),
            Self::Misdirected => ("421 Misdirected Request", "misdirected-request"),
            Self::HeadTooLarge => ("431 Request Header Fields Too Large", "too-large"),
            Self::TooLarge => ("413 Content Too Large", "too-large"),
            Self::UnsupportedMediaType => ("415 Unsupported Media Type", "unsupported-media-type"),
            Self::Internal => ("500 Internal Server Error", "internal"),
            Self::Draining => ("503 Service Unavailable", "draining"),
            Self::Standby => ("503 Service Unavailable", "standby"),
            Self::OutOfMemory => ("507 Insufficient Storage", "out-of-memory"),
        }
    }
}

impl ErrorResponse {
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), allow: None, missing: Rights::NONE }
    }

    /// Returns the status line, and the body of the response.
    pub fn parts(&self) -> (&'static str, Vec<u8>) {
        let (status, error) = self.kind.words();
        let missing = Rights::ALL.into_iter().filter(|(right, _)| self.missing.has_any(*right));
        let missing: Vec<&str> = missing.map(|(_, word)| word).collect();
        let body = json(|object| {
            object.member("error", error);
            object.member("message", &self.message);
            object.if_some("missing_rights", Some(missing).filter(|words| !words.is_empty()));
        });
        (status, body)
    }

    /// Appends the response.
    pub fn write(&self, request: &Request, out: &mut Vec<u8>) {
        let (status, body) = self.parts();
        let fields = match (self.kind, &self.allow) {
            (ErrorKind::Unauthorized, _) => "WWW-Authenticate: Bearer\r\n".to_owned(),
            (_, Some(methods)) => format!("Allow: {methods}\r\n"),
            _ => String::new(),
        };
        write_whole(request, out, status, JSON_TYPE, &fields, &body);
    }
}

/// The answer to a request that is not as it must be.
pub(super) fn bad(message: impl Into<Cow<'static, str>>) -> ErrorResponse {
    ErrorResponse::new(ErrorKind::BadRequest, message)
}

impl Head<'_> {
    /// Appends the head of a response that is data.
    pub fn write(&self, request: &Request, out: &mut Vec<u8>) {
        self.write_with(&DATA, request.version, request.keeps_alive, out);
    }

    /// Appends the head.
    pub fn write_with(&self, rules: &Rules<'_>, version: Version, keeps_alive: bool, out: &mut Vec<u8>) {
        let Rules { caching, policy } = rules;
        let Self { status, content_type, body_bytes, fields } = self;
        let content_type = match content_type {
            None => String::new(),
            Some(content_type) => format!("Content-Type: {content_type}\r\n"),
        };
        let length = match (body_bytes, version) {
            (Some(bytes), _) => format!("Content-Length: {bytes}\r\n"),
            (None, Version::Http11) => "Transfer-Encoding: chunked\r\n".to_owned(),
            (None, Version::Http10) => String::new(),
        };
        let close = if keeps_alive { "" } else { "Connection: close\r\n" };
        write!(
            out,
            "HTTP/1.1 {status}\r\n{content_type}{length}Cache-Control: {caching}\r\n\
             Content-Security-Policy: {policy}\r\n{GUARDS}{fields}{close}\r\n"
        )
        .expect("writing to a Vec cannot fail");
    }
}

/// Appends a whole response. The body is left out in the response to a `HEAD`.
pub(super) fn write_whole(
    request: &Request,
    out: &mut Vec<u8>,
    status: &str,
    content_type: &str,
    fields: &str,
    body: &[u8],
) {
    let content_type = Some(content_type);
    Head { status, content_type, body_bytes: Some(body.len() as u64), fields }.write(request, out);
    if request.method != "HEAD" {
        out.extend_from_slice(body);
    }
}
