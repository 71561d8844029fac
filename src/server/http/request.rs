//! HTTP requests without a body, which is all that monitoring needs.

use super::host::Host;

/// HTTP/1.0 ends a response of unknown length with the connection, HTTP/1.1 sends it in chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    Http10,
    Http11,
}

/// A request without a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    pub version: Version,
    /// The host that the client addresses, without a port. HTTP/1.0 need not name one.
    pub host: Option<Host>,
    /// The client may send another request over the connection.
    pub keeps_alive: bool,
}

/// The beginning of the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Parsed {
    /// An incomplete request.
    Partial,
    /// Malformed input, or a request with a body.
    Bad,
    /// A request, and its length in bytes.
    Request(Request, usize),
}

/// Maximum number of headers: more than any scraper or proxy sends.
const HEADERS_MAX: usize = 64;

impl Request {
    pub fn parse(input: &[u8]) -> Parsed {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut raw = httparse::Request::new(&mut headers);
        let bytes = match raw.parse(input) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return Parsed::Partial,
            Err(_) => return Parsed::Bad,
        };
        let (Some(method), Some(target), Some(minor)) = (raw.method, raw.path, raw.version) else {
            return Parsed::Bad;
        };
        let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
        let mut keeps_alive = version == Version::Http11;
        let mut host = None;
        for header in raw.headers.iter() {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            let has_body = is("content-length") && header.value != b"0" || is("transfer-encoding");
            if has_body {
                return Parsed::Bad;
            }
            keeps_alive &= !(is("connection") && has_token(header.value, "close"));
            if is("host") {
                let Some(named) = Host::parse(header.value).filter(|_| host.is_none()) else {
                    return Parsed::Bad;
                };
                host = Some(named);
            }
        }
        if host.is_none() && version == Version::Http11 {
            return Parsed::Bad;
        }
        let (authority, path) = split_target(target);
        if let Some(authority) = authority {
            // It takes precedence over the Host header (RFC 9112, 3.2.2).
            let Some(named) = Host::parse(authority.as_bytes()) else { return Parsed::Bad };
            host = Some(named);
        }
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let (method, path) = (method.to_owned(), path.to_owned());
        let request = Self { method, path, version, host, keeps_alive };
        Parsed::Request(request, bytes)
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

    #[test]
    fn complete_requests_are_parsed() {
        let input = "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\nGET";
        let Parsed::Request(request, bytes) = parsed(input) else { panic!("the request is complete") };
        assert_eq!((&*request.method, &*request.path, request.keeps_alive), ("GET", "/metrics", true));
        assert_eq!((request.version, bytes), (Version::Http11, input.len() - 3));
        for (headers, keeps_alive) in [
            ("Connection: Close\r\n", false),
            ("connection: te, close\r\n", false),
            ("Connection: x\r\n", true),
        ] {
            let Parsed::Request(request, _) = parsed(&format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n"))
            else {
                panic!("the request is complete")
            };
            assert_eq!(request.keeps_alive, keeps_alive, "{headers}");
        }
        for (target, path) in [("http://h:1/healthz?x", "/healthz"), ("http://h", "/"), ("*", "*")] {
            let Parsed::Request(request, _) = parsed(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"))
            else {
                panic!("the request is complete")
            };
            assert_eq!(request.path, path, "{target}");
        }
        for (target, header, host) in [("/", "A:1", "a"), ("http://B:2/", "a", "b"), ("http://c?d", "a", "c")]
        {
            let Parsed::Request(request, _) =
                parsed(&format!("GET {target} HTTP/1.1\r\nHost: {header}\r\n\r\n"))
            else {
                panic!("the request is complete")
            };
            assert_eq!(request.host, Host::parse(host.as_bytes()), "{target} {header}");
        }
        let Parsed::Request(request, _) = parsed("HEAD / HTTP/1.0\r\n\r\n") else {
            panic!("the request is complete")
        };
        assert_eq!((request.version, request.keeps_alive), (Version::Http10, false));
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
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a/b\r\n\r\n",
            "GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "\0",
        ] {
            assert_eq!(parsed(bad), Parsed::Bad, "{bad:?}");
        }
    }
}
