//! The hosts that requests may ask for. A web page can have its own name resolve to any address (DNS rebinding) and
//! read what is answered there: only the name in the request tells.

/// A host of a request, in lower case and without a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Host(String);

/// The names by which monitors may ask for the server. Addresses are never refused: no name has to resolve to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts {
    /// In lower case; `*.` in front stands for any name below.
    names: Option<Vec<String>>,
}

/// Names of the machine itself that no name server is asked for.
const LOOPBACK: [&str; 4] = ["localhost", "*.localhost", "ip6-localhost", "ip6-loopback"];

const ANY: &str = "*";

impl Hosts {
    /// Any host.
    pub const fn any() -> Self {
        Self { names: None }
    }

    /// Names of loopback, and these: names, `*.` and a name for all below it, or `*` for any.
    pub fn named(names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<String> = names.into_iter().map(|name| canonical(&name)).collect();
        if names.iter().any(|name| name == ANY) { Self::any() } else { Self { names: Some(names) } }
    }

    /// Whether [`named`](Self::named) takes this.
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
    /// Takes a host and perhaps a port apart. `None` if that is not what it is.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => (address, port),
            // An IPv6 address belongs in brackets, but some clients leave them out.
            None if text.matches(':').count() > 1 => (text, ""),
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = port.strip_prefix(':').unwrap_or(port);
        let is_address =
            host.contains(':') && host.bytes().all(|byte| is_name_byte(byte) || b":%".contains(&byte));
        let is_good = is_address || host.bytes().all(is_name_byte);
        (is_good && port.bytes().all(|byte| byte.is_ascii_digit())).then(|| Self(canonical(host)))
    }

    /// Whether no name server is asked for it: an address, or nothing at all.
    fn is_address(&self) -> bool {
        let is_ipv4 = self.0.split('.').count() == 4
            && self.0.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        self.0.is_empty() || self.0.contains(':') || is_ipv4
    }
}

/// Letters count the same in either case, and a dot at the end says nothing.
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
    fn hosts_and_ports() {
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
        for value in ["a b", "a/b", "u@a", "a:x", "[::1", "[::1]x", "a,b", "a%00", "\u{e4}", "a:1:2:g/"] {
            assert_eq!(host(value), None, "{value:?}");
        }
    }

    #[test]
    fn which_are_included() {
        let hosts = Hosts::named(["Web1".to_owned(), "*.prod.svc".to_owned()]);
        let include = |value: &str| hosts.include(&Host::parse(value.as_bytes()).expect("it is a host"));
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
