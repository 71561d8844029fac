//! The host names that HTTP requests may address. A web page can make its own name resolve to any address (DNS rebinding)
//! and read the response from there. Only the name in the request reveals that.
//!
//! Bounded by the configuration: the names of `--http-host`.

use core::net::Ipv6Addr;

/// The host of a request, in lower case and without a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Host(String);

/// The host names that requests may address. Literal addresses are always allowed, since no name resolution is involved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts {
    /// In lower case. A leading `*.` stands for any subdomain. `None` allows any host.
    names: Option<Vec<String>>,
}

/// Names of the loopback interface, which no name server resolves.
const LOOPBACK: [&str; 4] = ["localhost", "*.localhost", "ip6-localhost", "ip6-loopback"];

const ANY: &str = "*";

impl Hosts {
    /// Allows any host.
    pub const fn any() -> Self {
        Self { names: None }
    }

    /// Allows loopback names and `names`. `*.NAME` allows every subdomain of NAME, and `*` allows any host.
    pub fn named(names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<String> = names.into_iter().map(|name| canonical(&name)).collect();
        if names.iter().any(|name| name == ANY) { Self::any() } else { Self { names: Some(names) } }
    }

    /// Returns whether [`named`](Self::named) accepts `name`.
    pub fn is_name(name: &str) -> bool {
        let plain = name.strip_prefix("*.").unwrap_or(name);
        let is_named = !plain.is_empty() && plain.bytes().all(is_name_byte);
        name == ANY || is_named
    }

    pub(super) fn include(&self, host: &Host) -> bool {
        let Some(names) = &self.names else { return true };
        let matches = |name: &str| match name.strip_prefix('*') {
            Some(below) => host.0.len() > below.len() && host.0.ends_with(below),
            None => host.0 == name,
        };
        host.is_address() || LOOPBACK.into_iter().chain(names.iter().map(String::as_str)).any(matches)
    }
}

impl Host {
    /// Parses a host with an optional port. Returns `None` if the value is malformed.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => (address, port),
            // An IPv6 address belongs in brackets, but some clients leave them out.
            None if text.matches(':').count() > 1 => (text, ""),
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = port.strip_prefix(':').unwrap_or(port);
        let zone = host.find('%').unwrap_or(host.len());
        let is_address = host[..zone].parse::<Ipv6Addr>().is_ok()
            && host[zone..].bytes().all(|byte| is_name_byte(byte) || byte == b'%');
        let is_good = is_address || host.bytes().all(is_name_byte);
        (is_good && port.bytes().all(|byte| byte.is_ascii_digit())).then(|| Self(canonical(host)))
    }

    /// Whether it needs no name resolution: a literal address, or nothing.
    fn is_address(&self) -> bool {
        let is_ipv4 = self.0.split('.').count() == 4
            && self.0.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        self.0.is_empty() || self.0.contains(':') || is_ipv4
    }
}

/// Lowercases a name and removes the dot of a fully qualified one.
fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(value: &str) -> Option<String> {
        Host::parse(value.as_bytes()).map(|host| host.0)
    }

    #[test]
    fn hosts_are_parsed_without_their_ports() {
        for (value, expected) in [
            ("a", "a"),
            ("A.Example.:9100", "a.example"),
            ("a:", "a"),
            (" 10.0.0.7:9100 ", "10.0.0.7"),
            ("[::1]:9100", "::1"),
            ("[fe80::1%25eth0]", "fe80::1%25eth0"),
            ("::1", "::1"),
            ("", ""),
            (":80", ""),
        ] {
            assert_eq!(host(value).as_deref(), Some(expected), "{value:?}");
        }
        for value in
            ["a b", "a/b", "u@a", "a:x", "[::1", "[::1]x", "a,b", "a%00", "\u{e4}", "a:1:2:g/", "a:1:2"]
        {
            assert_eq!(host(value), None, "{value:?}");
        }
    }

    #[test]
    fn only_allowed_hosts_are_included() {
        let hosts = Hosts::named(["Web1".to_owned(), "*.prod.svc".to_owned()]);
        let include =
            |value: &str| hosts.include(&Host::parse(value.as_bytes()).expect("the host is well-formed"));
        for value in [
            "localhost:9100",
            "x.localhost",
            "LOCALHOST.",
            "127.0.0.1",
            "10.1.2.3:9100",
            "[2001:db8::1]:9100",
            "web1",
            "WEB1.:1",
            "a.prod.svc",
            "a.b.prod.svc:9100",
            "",
        ] {
            assert!(include(value), "{value:?}");
        }
        for value in [
            "evil.example",
            "web1.evil.example",
            "prod.svc",
            ".prod.svc",
            "xprod.svc",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "1.2.3",
            "0x7f.0.0.1x",
        ] {
            assert!(!include(value), "{value:?}");
        }
        assert!(Hosts::any().include(&Host("evil.example".to_owned())));
        assert!(Hosts::named(["*".to_owned()]).include(&Host("evil.example".to_owned())));
        for (name, is_name) in [
            ("a.b", true),
            ("*.b", true),
            ("*", true),
            ("", false),
            ("*.", false),
            ("a*", false),
            ("a:1", false),
        ] {
            assert_eq!(Hosts::is_name(name), is_name, "{name:?}");
        }
    }
}
