//! Addresses to listen on: those of `-l` and `-p`, and that of `--http`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::settings::Setting;
use super::{ConfigError, Problem, number};
use crate::io::socket::Address;

/// The longest path of a UNIX socket (unix(7)): 108 bytes with the NUL.
pub(super) const UNIX_PATH_BYTES_MAX: usize = 107;

/// The longest host name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// Combines `-l` and `-p` into the address to listen on. Returns `None` if neither is set.
///
/// # Errors
/// If one of them is not valid.
pub fn listen(listen: Option<Setting>, port: Option<Setting>) -> Result<Option<Address>, ConfigError> {
    if listen.is_none() && port.is_none() {
        return Ok(None);
    }
    let Address::Tcp { host: default_host, port: default_port } = Address::default() else {
        unreachable!("the default is a port")
    };
    let port = match port {
        None => default_port,
        Some(given) => number(given, u16::MAX.into())? as u16,
    };
    let Some(listen) = listen else {
        return Ok(Some(Address::Tcp { host: default_host, port }));
    };
    let text = listen.text()?;
    let result = unix(text).unwrap_or_else(|| host(text).map(|host| Address::Tcp { host, port }));
    result.map(Some).map_err(|problem| listen.error(problem))
}

/// Checks an address with its port: `PORT`, `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. A port without a host is one of the
/// loopback address, which other machines cannot reach. The port must be at least `port_least`: 0 is one to listen on.
///
/// # Errors
/// If it is not valid.
pub fn endpoint(given: &Setting, port_least: u16) -> Result<Address, ConfigError> {
    let text = given.text()?;
    if let Some(result) = unix(text) {
        return result.map_err(|problem| given.error(problem));
    }
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
        _ if !text.contains(':') && host(text).is_ok() => {
            Err(given.error(Problem::PortMissing { host: text.to_owned() }))
        }
        _ => Err(given.error(Problem::Endpoint)),
    }
}

/// Returns the UNIX socket that is given, or the problem of one that seems to be meant. Returns none for a TCP address.
fn unix(given: &str) -> Option<Result<Address, Problem>> {
    if given == "unix" {
        return Some(Err(Problem::UnixPathMissing));
    }
    if given.starts_with(['/', '.']) {
        return Some(Err(Problem::UnixPathAlone { path: given.to_owned() }));
    }
    let path = given.strip_prefix("unix:")?;
    Some(match path.len() {
        0 => Err(Problem::UnixPathMissing),
        1..=UNIX_PATH_BYTES_MAX => Ok(Address::Unix(PathBuf::from(path))),
        _ => Err(Problem::UnixPathTooLong),
    })
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
    let is_host = address.parse::<Ipv6Addr>().is_ok()
        || is_name && (!has_four_numbers || given.parse::<Ipv4Addr>().is_ok());
    if is_host { Ok(inner.to_owned()) } else { Err(Problem::Host) }
}
