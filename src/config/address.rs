//! Addresses to listen on: those of `-l` and `-p`, and that of `--http`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::settings::{Setting, Settings};
use super::{ConfigError, Problem, number};
use crate::io::socket::{Address, PORT_DEFAULT, PORT_TLS, SocketAccess};

/// The longest path of a UNIX socket (unix(7)): 108 bytes with the NUL.
pub(super) const UNIX_PATH_BYTES_MAX: usize = 107;

/// The port of TLS, as in the Go client.
pub const TLS_PORT_DEFAULT: u16 = 11400;

const TLS_SCHEME: &str = "beanstalks://";
const PLAIN_SCHEME: &str = "beanstalk://";

/// A server to connect to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Its address.
    pub address: Address,
    /// Whether to speak TLS there.
    pub is_tls: bool,
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { TLS_SCHEME } else { "" })?;
        self.address.fmt(f)
    }
}

/// The longest host name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// Combines `-l` and `-p` into the address to listen on, and who may connect to a UNIX socket. Returns `None` if neither is set.
///
/// # Errors
/// If one of them is not valid.
pub fn listen(
    listen: Option<Setting>,
    port: Option<Setting>,
) -> Result<Option<(Address, SocketAccess)>, ConfigError> {
    if listen.is_none() && port.is_none() {
        return Ok(None);
    }
    let Address::Tcp { host: default_host, port: default_port } = Address::default() else {
        unreachable!("the default is a port")
    };
    let port = port.map_or(Ok(default_port), |given| Ok(number(given, u16::MAX.into())? as u16))?;
    let Some(listen) = listen else {
        return Ok(Some((Address::Tcp { host: default_host, port }, SocketAccess::default())));
    };
    let text = listen.text()?;
    let tcp = || host(text).map(|host| (Address::Tcp { host, port }, SocketAccess::default()));
    let result = unix(text).unwrap_or_else(tcp);
    result.map(Some).map_err(|problem| listen.error(problem))
}

/// Takes `-l none`, which leaves only the listener with TLS. Returns whether it was given.
///
/// # Errors
/// If there is no other listener, or a port.
pub(super) fn take_none(given: &mut Settings) -> Result<bool, ConfigError> {
    let Some(listen) = given.get("listen").filter(|listen| listen.value == "none").cloned() else {
        return Ok(false);
    };
    given.take("listen");
    if given.get("tls-listen").is_none() {
        return Err(listen.error(Problem::NoListener));
    }
    match given.get("port") {
        Some(port) => Err(port.error(Problem::PortOfNone)),
        None => Ok(true),
    }
}

/// Checks an address to connect to: `HOST`, `PORT`, `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. A host without a port has
/// [`PORT_DEFAULT`]. A port without a host is one of the loopback address, which other machines cannot reach; it is at
/// least 1.
///
/// # Errors
/// If it is not valid.
pub fn endpoint(given: &Setting) -> Result<Address, ConfigError> {
    match endpoint_to_listen(given, 1, Some(PORT_DEFAULT))? {
        (_, access) if access != SocketAccess::default() => Err(given.error(Problem::SocketOptionOfServer)),
        (address, _) => Ok(address),
    }
}

/// Checks the address of a server that the client connects to: that of [`endpoint`], `beanstalk://HOST[:PORT]`, or
/// `beanstalks://HOST[:PORT]` for TLS, whose port is [`TLS_PORT_DEFAULT`] unless given.
///
/// # Errors
/// If it is not valid.
pub fn remote(given: &Setting) -> Result<Remote, ConfigError> {
    let text = given.text()?;
    let (rest, is_tls, port) = match (text.strip_prefix(TLS_SCHEME), text.strip_prefix(PLAIN_SCHEME)) {
        (Some(rest), _) => (rest, true, TLS_PORT_DEFAULT),
        (None, Some(rest)) => (rest, false, PORT_DEFAULT),
        (None, None) => {
            let address = endpoint(given).map_err(|error| match error {
                ConfigError::Value { problem: Problem::Endpoint, .. } => given.error(Problem::Remote),
                other => other,
            })?;
            return Ok(Remote { address, is_tls: false });
        }
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.starts_with('[') && rest.ends_with(']') {
        let host = host(rest).map_err(|problem| given.error(problem))?;
        return Ok(Remote { address: Address::Tcp { host, port }, is_tls });
    }
    let inner = Setting { origin: given.origin.clone(), value: rest.into() };
    match tcp_endpoint(&inner, 1, Some(port)) {
        Ok(address) => Ok(Remote { address, is_tls }),
        Err(ConfigError::Value { problem: Problem::PortOutOfRange { least }, .. }) => {
            Err(given.error(Problem::PortOutOfRange { least }))
        }
        Err(_) => Err(given.error(Problem::SchemeAddress { is_tls })),
    }
}

/// Reads the address where other servers reach this one: `HOST` or `HOST:PORT`, with [`PORT_FORWARD`](super::PORT_FORWARD)
/// unless given.
///
/// # Errors
/// If it is not valid.
pub(super) fn advertised(given: &Setting) -> Result<Address, ConfigError> {
    if given.text()?.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(given.error(Problem::AdvertisedHostMissing));
    }
    // Kubernetes writes the address of a pod without brackets.
    let address = match given.text()?.parse::<Ipv6Addr>() {
        Ok(address) => Address::Tcp { host: address.to_string(), port: super::PORT_FORWARD },
        Err(_) => tcp_endpoint(given, 1, Some(super::PORT_FORWARD))?,
    };
    let ip = address.host().and_then(|host| host.parse::<IpAddr>().ok());
    match ip {
        // It would lead other servers to themselves.
        Some(ip) if ip.is_unspecified() => Err(given.error(Problem::AdvertisedHostMissing)),
        _ => Ok(address),
    }
}

/// Reads where browsers and programs reach the HTTP of this server: `HOST:PORT`, or a URL. Returns the URL, with a slash at its
/// end.
///
/// # Errors
/// If it is not valid.
pub(super) fn advertised_http(given: &Setting, has_tls: bool) -> Result<Box<str>, ConfigError> {
    let text = given.text()?;
    let error = || given.error(Problem::AdvertisedHttp);
    if let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        // It is a link in the consoles of other servers.
        let is_clear = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}?#@".contains(&byte);
        if rest.is_empty() || rest.starts_with('/') || !rest.bytes().all(is_clear) {
            return Err(error());
        }
        let slash = if text.ends_with('/') { "" } else { "/" };
        return Ok(format!("{text}{slash}").into());
    }
    let has_host = !text.starts_with(':') && text.contains(':');
    let address = tcp_endpoint(given, 1, None).map_err(|_| error())?;
    let ip = address.host().and_then(|host| host.parse::<IpAddr>().ok());
    match ip {
        Some(ip) if ip.is_unspecified() => Err(error()),
        _ if !has_host => Err(error()),
        _ => Ok(format!("{}://{address}/", if has_tls { "https" } else { "http" }).into()),
    }
}

/// Reads the address of a listener with TLS: as an address to listen on, but a host alone has [`PORT_TLS`].
///
/// # Errors
/// If it is not valid.
pub fn tls_endpoint(given: &Setting) -> Result<(Address, SocketAccess), ConfigError> {
    endpoint_to_listen(given, 0, Some(PORT_TLS))
}

/// Reads an address to listen on, whose port is at least `port_least`. A host alone has the default port, if there is one. A UNIX
/// socket may have options.
///
/// # Errors
/// If it is not valid.
pub fn endpoint_to_listen(
    given: &Setting,
    port_least: u16,
    port_default: Option<u16>,
) -> Result<(Address, SocketAccess), ConfigError> {
    match unix(given.text()?) {
        Some(result) => result.map_err(|problem| given.error(problem)),
        None => Ok((tcp_endpoint(given, port_least, port_default)?, SocketAccess::default())),
    }
}

fn tcp_endpoint(given: &Setting, port_least: u16, port_default: Option<u16>) -> Result<Address, ConfigError> {
    let text = given.text()?;
    let (name, port) = text.rsplit_once(':').unwrap_or(("127.0.0.1", text));
    let name = if name.is_empty() { "127.0.0.1" } else { name };
    // Without brackets, the last colon of an IPv6 address such as ::1 would look like the one before a port.
    let is_clear = name.starts_with('[') || !name.contains(':');
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    match (port.parse(), host(name)) {
        (Ok(port), Ok(host)) if is_clear && is_number && port >= port_least => {
            Ok(Address::Tcp { host, port })
        }
        (_, Ok(_)) if is_clear && is_number && !port.is_empty() => {
            Err(given.error(Problem::PortOutOfRange { least: port_least }))
        }
        _ if !text.contains(':') && host(text).is_ok() => match port_default {
            Some(port) => Ok(Address::Tcp { host: text.to_owned(), port }),
            None => Err(given.error(Problem::PortMissing { host: text.to_owned() })),
        },
        (_, Err(problem @ Problem::InterfaceMissing { .. })) => Err(given.error(problem)),
        _ => Err(given.error(Problem::Endpoint)),
    }
}

/// Returns the UNIX socket that is given, or the problem of one that seems to be meant. Returns none for a TCP address.
fn unix(given: &str) -> Option<Result<(Address, SocketAccess), Problem>> {
    if given == "unix" {
        return Some(Err(Problem::UnixPathMissing));
    }
    if given.starts_with(['/', '.']) {
        return Some(Err(Problem::UnixPathAlone { path: given.to_owned() }));
    }
    Some(socket(given.strip_prefix("unix:")?))
}

/// Reads `PATH[,mode=MODE][,group=NAME]`. What follows the last comma is an option if it has an equals sign and no slash, so that
/// the names of directories may have both.
fn socket(given: &str) -> Result<(Address, SocketAccess), Problem> {
    let (mut path, mut access) = (given, SocketAccess::default());
    while let Some((before, option)) = path.rsplit_once(',')
        && let Some((key, value)) = option.split_once('=')
        && !option.contains('/')
    {
        match key {
            "mode" if access.mode.is_none() => access.mode = Some(mode(value)?),
            "group" if value.is_empty() => return Err(Problem::SocketGroupMissing),
            "group" if access.group.is_none() => access.group = Some(value.to_owned()),
            "mode" | "group" => return Err(Problem::SocketOptionTwice { name: key.to_owned() }),
            _ => return Err(Problem::SocketOption { option: option.to_owned() }),
        }
        path = before;
    }
    // Else the options before the comma would be a part of the name, and the mode would not hold.
    if path.ends_with(',') {
        return Err(Problem::SocketCommaAtEnd);
    }
    match path.len() {
        0 => Err(Problem::UnixPathMissing),
        1..=UNIX_PATH_BYTES_MAX => Ok((Address::Unix(PathBuf::from(path)), access)),
        _ => Err(Problem::UnixPathTooLong),
    }
}

/// Reads permissions in octal digits.
fn mode(given: &str) -> Result<u32, Problem> {
    let is_octal = (1..=4).contains(&given.len()) && given.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(given, 8).ok().filter(|&mode| is_octal && mode <= 0o777);
    mode.ok_or_else(|| Problem::SocketMode { mode: given.to_owned() })
}

/// Checks the form of a host: an address of IPv4 or IPv6, or a name.
fn host(given: &str) -> Result<String, Problem> {
    if let Some((name, port)) = given.rsplit_once(':')
        && port.parse::<u16>().is_ok()
        && (given.parse::<SocketAddr>().is_ok() || !name.contains(':'))
    {
        return Err(Problem::HostWithPort { port: port.to_owned() });
    }
    let inner = given.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(given);
    // An IPv6 address may name an interface: fe80::1%eth0.
    let address = inner.split('%').next().unwrap_or_default();
    let is_name = (1..=HOST_BYTES_MAX).contains(&given.len())
        && given.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let has_four_numbers =
        given.split('.').count() == 4 && given.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let ipv6 = address.parse::<Ipv6Addr>().ok();
    if ipv6.is_some_and(|ip| ip.is_unicast_link_local()) && address == inner {
        return Err(Problem::InterfaceMissing { address: inner.to_owned() });
    }
    let is_host = ipv6.is_some() || is_name && (!has_four_numbers || given.parse::<Ipv4Addr>().is_ok());
    if is_host { Ok(inner.to_owned()) } else { Err(Problem::Host) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_may_have_a_scheme() {
        let remote = |given: &str| remote(&Setting::on_command_line("-a/--addr", given));
        for (given, shown) in [
            ("beanstalks://queue", "beanstalks://queue:11400"),
            ("beanstalks://queue/", "beanstalks://queue:11400"),
            ("beanstalks://queue:1", "beanstalks://queue:1"),
            ("beanstalks://[::1]", "beanstalks://[::1]:11400"),
            ("beanstalks://[::1]:5", "beanstalks://[::1]:5"),
            ("beanstalk://queue", "queue:11300"),
            ("beanstalk://[::1]", "[::1]:11300"),
            ("queue", "queue:11300"),
            ("unix:/a", "unix:/a"),
        ] {
            let found = remote(given).map(|remote| remote.to_string());
            assert_eq!(found.map_err(|error| error.to_string()).as_deref(), Ok(shown), "{given}");
        }
        for (given, said) in [
            (
                "beanstalks://",
                "must be beanstalks://HOST, beanstalks://HOST:PORT or beanstalks://[IPV6]:PORT",
            ),
            ("beanstalk://a:b", "must be beanstalk://HOST, beanstalk://HOST:PORT or beanstalk://[IPV6]:PORT"),
            (
                "beanstalks://unix:/a",
                "must be beanstalks://HOST, beanstalks://HOST:PORT or beanstalks://[IPV6]:PORT",
            ),
            (
                "beanstalks://me@queue",
                "must be beanstalks://HOST, beanstalks://HOST:PORT or beanstalks://[IPV6]:PORT",
            ),
            ("beanstalks://queue:0", "the port must be a number from 1 to 65535"),
            ("http://queue", "must be PORT, HOST:PORT, [IPV6]:PORT, unix:PATH, or for TLS beanstalks://HOST"),
            ("[fe80::1]:5", "a link-local address needs its network interface, as in fe80::1%eth0"),
        ] {
            let error = remote(given).unwrap_err().to_string();
            assert!(error.ends_with(said), "{given}: {error}");
        }
    }

    #[test]
    fn unix_sockets_have_a_mode_and_a_group() {
        let socket = |given: &str| {
            let given = Setting::on_command_line("-l/--listen", format!("unix:{given}"));
            listen(Some(given), None).map(|address| address.expect("it is set"))
        };
        for (given, path, mode, group) in [
            ("/a", "/a", None, None),
            ("/a,mode=0660", "/a", Some(0o660), None),
            ("/a,group=web", "/a", None, Some("web")),
            ("/a,mode=660,group=web", "/a", Some(0o660), Some("web")),
            ("/a,group=12,mode=0", "/a", Some(0), Some("12")),
            // Other commas belong to the path.
            ("/a,b", "/a,b", None, None),
            ("/a,b,mode=0777", "/a,b", Some(0o777), None),
            ("/a,mode=1/b", "/a,mode=1/b", None, None),
            ("/a,mode=1/b,group=c", "/a,mode=1/b", None, Some("c")),
        ] {
            let access = SocketAccess { mode, group: group.map(str::to_owned) };
            assert_eq!(
                socket(given).map_err(|error| error.to_string()),
                Ok((Address::Unix(path.into()), access)),
                "{given}"
            );
        }
        for (given, said) in [
            ("/a,mode=0640,", "ends with a comma; leave it out, or write an option behind it"),
            ("/a,mode=", "mode= must have octal digits from 0 to 0777, such as mode=0660"),
            ("/a,mode=0680", "mode=0680 must have octal digits from 0 to 0777, such as mode=0660"),
            ("/a,mode=1777", "mode=1777 must have octal digits from 0 to 0777, such as mode=0660"),
            ("/a,mode=00660", "mode=00660 must have octal digits from 0 to 0777, such as mode=0660"),
            ("/a,mode=+66", "mode=+66 must have octal digits from 0 to 0777, such as mode=0660"),
            ("/a,group=", "group= must name a group, such as group=www-data"),
            ("/a,mode=1,mode=2", "mode= is there twice"),
            ("/a,group=a,group=b", "group= is there twice"),
            (
                ",mode=0660",
                "the path of the socket is missing; write unix:PATH, such as unix:/run/beanring/socket",
            ),
        ] {
            let error = socket(given).unwrap_err().to_string();
            assert!(error.ends_with(&format!(": {said}")), "{given}: {error}");
        }
    }
}
