//! The head of an HTTP request. Its body, if it has one, follows with a stated length.

use super::host::Host;
use super::target::is_of_api;
use crate::values::limits::HTTP_HEAD_BYTES_MAX;

/// HTTP/1.0 ends a response of unknown length with the connection, HTTP/1.1 sends it in chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    Http10,
    Http11,
}

/// The head of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub method: String,
    /// Without the query, and still percent-encoded.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
    pub version: Version,
    /// The host that the client addresses, without a port. HTTP/1.0 need not name one.
    pub host: Option<Host>,
    /// The host with its port, as the client wrote it.
    pub authority: Option<String>,
    /// The client may send another request over the connection.
    pub keeps_alive: bool,
    /// The length of the body, if it is stated.
    pub body_bytes: Option<u64>,
    /// The client sends the body only after an interim response.
    pub expects_continue: bool,
    pub fields: Fields,
}

/// Header fields that decide about access and about the response, as the client wrote them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Fields {
    pub authorization: Option<String>,
    pub content_type: Option<String>,
    pub origin: Option<String>,
    pub fetch_site: Option<String>,
    pub if_none_match: Option<String>,
}

/// The beginning of the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Parsed {
    /// An incomplete head.
    Partial,
    /// Malformed input.
    Bad,
    /// The head is longer than any that a client needs.
    TooLong,
    /// A body without a stated length.
    Chunked,
    /// A request, and the length of its head in bytes.
    Request(Box<Request>, usize),
}

/// Maximum number of headers: more than any scraper or proxy sends.
const HEADERS_MAX: usize = 64;

impl Request {
    pub fn parse(input: &[u8]) -> Parsed {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut raw = httparse::Request::new(&mut headers);
        let bytes = match raw.parse(input) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) if input.len() < HTTP_HEAD_BYTES_MAX => return Parsed::Partial,
            Ok(httparse::Status::Partial) => return Parsed::TooLong,
            Err(httparse::Error::TooManyHeaders) => return Parsed::TooLong,
            Err(_) => return Parsed::Bad,
        };
        match Self::check(&raw) {
            _ if bytes > HTTP_HEAD_BYTES_MAX => Parsed::TooLong,
            Ok(request) => Parsed::Request(Box::new(request), bytes),
            Err(refused) => refused,
        }
    }

    /// Returns whether a head, which may be malformed, addresses the API, and whether its method is `HEAD`.
    pub fn first_words(input: &[u8]) -> (bool, bool) {
        let line = input.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(|&byte| byte == b' ');
        let (method, target) = (words.next(), words.next().and_then(|word| str::from_utf8(word).ok()));
        let (_, target) = split_target(target.unwrap_or_default());
        let path = target.split(['?', '#', '\r']).next().unwrap_or_default();
        (is_of_api(path), method == Some(b"HEAD"))
    }

    /// The memory of its texts.
    pub fn memory_bytes(&self) -> usize {
        let Fields { authorization, content_type, origin, fetch_site, if_none_match } = &self.fields;
        let fields = [&self.authority, authorization, content_type, origin, fetch_site, if_none_match];
        let optional: usize = fields.into_iter().flatten().map(String::capacity).sum();
        self.method.capacity() + self.path.capacity() + self.query.capacity() + optional
    }

    fn check(raw: &httparse::Request<'_, '_>) -> Result<Self, Parsed> {
        let (Some(method), Some(target), Some(minor)) = (raw.method, raw.path, raw.version) else {
            return Err(Parsed::Bad);
        };
        let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
        let headers = Headers::read(raw.headers)?;
        if headers.host.is_none() && version == Version::Http11 {
            return Err(Parsed::Bad);
        }
        let (named, target) = split_target(target);
        let parse = |name: &str| Host::parse(name.as_bytes()).ok_or(Parsed::Bad);
        let mut host = headers.host.as_deref().map(parse).transpose()?;
        if let Some(named) = named {
            // It takes precedence over the Host header (RFC 9112, 3.2.2).
            host = Some(parse(named)?);
        }
        let authority = named.map(str::to_owned).or(headers.host);
        let target = target.split('#').next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let has_body = headers.body_bytes.is_some_and(|bytes| bytes > 0);
        Ok(Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            version,
            host,
            authority,
            keeps_alive: version == Version::Http11 && !headers.closes,
            body_bytes: headers.body_bytes,
            expects_continue: has_body && headers.expects_continue && version == Version::Http11,
            fields: headers.fields,
        })
    }
}

/// The header fields that the server looks at.
#[derive(Default)]
struct Headers {
    host: Option<String>,
    body_bytes: Option<u64>,
    closes: bool,
    expects_continue: bool,
    fields: Fields,
}

impl Headers {
    fn read(headers: &[httparse::Header<'_>]) -> Result<Self, Parsed> {
        let mut all = Self::default();
        let mut length = None;
        let mut is_chunked = false;
        // Bounded by HEADERS_MAX: the headers of one request.
        for header in headers {
            let name = header.name.to_ascii_lowercase();
            let once = match &*name {
                "connection" => {
                    all.closes |= has_token(header.value, "close");
                    continue;
                }
                "expect" => {
                    all.expects_continue |= has_token(header.value, "100-continue");
                    continue;
                }
                "transfer-encoding" => {
                    is_chunked = true;
                    continue;
                }
                "host" => &mut all.host,
                "content-length" => &mut length,
                "authorization" => &mut all.fields.authorization,
                "content-type" => &mut all.fields.content_type,
                "origin" => &mut all.fields.origin,
                "sec-fetch-site" => &mut all.fields.fetch_site,
                "if-none-match" => &mut all.fields.if_none_match,
                _ => continue,
            };
            let value = str::from_utf8(header.value).map_err(|_| Parsed::Bad)?.trim_matches([' ', '\t']);
            if once.replace(value.to_owned()).is_some() {
                return Err(Parsed::Bad);
            }
        }
        match (length, is_chunked) {
            // Two lengths: a proxy in front may have believed the other one (RFC 9112, 6.3).
            (Some(_), true) => Err(Parsed::Bad),
            (None, true) => Err(Parsed::Chunked),
            (None, false) => Ok(all),
            (Some(length), false) => {
                let is_plain = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
                let bytes = length.parse().ok().filter(|_| is_plain).ok_or(Parsed::Bad)?;
                Ok(Self { body_bytes: Some(bytes), ..all })
            }
        }
    }
}

/// Splits a request target into the authority, if it has one, and the path (RFC 9112, 3.2.2).
fn split_target(target: &str) -> (Option<&str>, &str) {
    let Some(rest) = target.strip_prefix("http://") else { return (None, target) };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    (Some(authority), if path.starts_with('/') { path } else { "/" })
}

/// Whether a comma-separated list contains `word`, ignoring case.
fn has_token(list: &[u8], word: &str) -> bool {
    list.split(|&byte| byte == b',').any(|entry| entry.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(input: &str) -> Parsed {
        Request::parse(input.as_bytes())
    }

    fn request(input: &str) -> Box<Request> {
        let Parsed::Request(request, _) = parsed(input) else { panic!("{input:?} is complete") };
        request
    }

    #[test]
    fn complete_requests_are_parsed() {
        let input = "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\nGET";
        let Parsed::Request(first, bytes) = parsed(input) else { panic!("the request is complete") };
        assert_eq!((&*first.method, &*first.path, first.keeps_alive), ("GET", "/metrics", true));
        assert_eq!((first.version, bytes), (Version::Http11, input.len() - 3));
        for (headers, keeps_alive) in [
            ("Connection: Close\r\n", false),
            ("connection: te, close\r\n", false),
            ("Connection: x\r\n", true),
        ] {
            let request = request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n"));
            assert_eq!(request.keeps_alive, keeps_alive, "{headers}");
        }
        for (target, header, path, host) in [
            ("http://h:1/healthz?x", "a", "/healthz", "h"),
            ("http://h", "a", "/", "h"),
            ("*", "a", "*", "a"),
            ("/", "A:1", "/", "a"),
            ("http://B:2/", "a", "/", "b"),
            ("http://c?d", "a", "/", "c"),
        ] {
            let request = request(&format!("GET {target} HTTP/1.1\r\nHost: {header}\r\n\r\n"));
            let host = Host::parse(host.as_bytes());
            assert_eq!((&*request.path, &request.host), (path, &host), "{target} {header}");
        }
        let old = request("HEAD / HTTP/1.0\r\n\r\n");
        assert_eq!((old.version, old.keeps_alive), (Version::Http10, false));
    }

    #[test]
    fn incomplete_and_malformed_requests_differ() {
        for whole in ["GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"] {
            for end in 0..whole.len() {
                assert_eq!(parsed(&whole[..end]), Parsed::Partial, "{end}");
            }
        }
        for bad in [
            "put 0 0 1 1\r\na\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a/b\r\n\r\n",
            "GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "\0",
        ] {
            assert_eq!(parsed(bad), Parsed::Bad, "{bad:?}");
        }
        assert_eq!(parsed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\n\r\n"), Parsed::Chunked);
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n", "x".repeat(HTTP_HEAD_BYTES_MAX));
        assert_eq!((parsed(&long), parsed(&(long + "\r\n"))), (Parsed::TooLong, Parsed::TooLong));
    }

    #[test]
    fn the_body_of_a_request_is_announced() {
        let head = "POST /a?b=c#d HTTP/1.1\r\nHost: a:1\r\nExpect: 100-Continue\r\nContent-Length: ";
        let Parsed::Request(with_body, bytes) = parsed(&format!("{head}12\r\n\r\nbody")) else {
            panic!("the head is complete")
        };
        assert_eq!((with_body.body_bytes, with_body.expects_continue), (Some(12), true));
        assert_eq!((&*with_body.path, &*with_body.query, bytes), ("/a", "b=c", head.len() + 6));
        assert_eq!(with_body.authority.as_deref(), Some("a:1"));
        let without = request(&format!("{head}0\r\n\r\n"));
        assert_eq!((without.body_bytes, without.expects_continue), (Some(0), false));
    }
}
