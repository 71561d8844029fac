//! The settings of a job log in a database.

use super::settings::{Setting, Settings};
use super::{ConfigError, Problem, address, number, switch};
use crate::io::socket::Address;
use crate::time::Span;

/// The lease of a leader without `--lease`, in seconds.
const LEASE_DEFAULT: u32 = 3;

/// The longest lease, in seconds.
const LEASE_MAX: u64 = 300;

/// The port where a leader accepts what standbys forward to it.
pub const PORT_FORWARD: u16 = 11401;

/// The settings of `--replicate`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replicate {
    /// The URL of the database, maybe with a password.
    pub url: String,
    /// A standby of the database need not be visible: the service replicates its storage.
    pub trusts_storage: bool,
    /// How long a leader may answer after the last change that it has replicated.
    pub lease: Span,
    /// A standby forwards connections to the leader.
    pub forwards: bool,
    /// Where other servers reach this one, if that is given.
    pub advertise: Option<Address>,
    /// The URL of the console and of the API, if it is given.
    pub advertise_http: Option<Box<str>>,
}

/// Checks the settings. Returns `None` if there are none.
///
/// # Errors
/// If one is not valid, or `--replicate` is missing or contradicts `-b`.
pub(super) fn replicate(given: &mut Settings) -> Result<Option<Replicate>, ConfigError> {
    let others = ["lease", "advertise", "advertise-http", "no-forward", "replicate-trust-storage"];
    let other = others.iter().find_map(|name| given.get(name).cloned());
    let lease = given.take("lease").map(|lease| seconds(&lease)).transpose()?;
    let advertise = given.take("advertise");
    let advertise_http = given.take("advertise-http");
    let forwards = !switch(given, "no-forward")?;
    let trusts_storage = switch(given, "replicate-trust-storage")?;
    let Some(url) = given.take("replicate") else {
        return other.map_or(Ok(None), |setting| Err(setting.error(Problem::ReplicateMissing)));
    };
    if !cfg!(feature = "replicate") {
        return Err(url.error(Problem::NotBuilt("replicate")));
    }
    if let Some(wal_dir) = given.get("wal-dir") {
        return Err(wal_dir.error(Problem::WalDirBesideReplicate));
    }
    let url = url.refuse_empty("the URL of a database")?.text()?.to_owned();
    let advertise = match advertise {
        Some(advertise) if !forwards => return Err(advertise.error(Problem::AdvertiseWithoutForward)),
        Some(advertise) => Some(address::advertised(&advertise)?),
        None => None,
    };
    let has_tls = given.get("http-tls").and_then(Setting::as_switch) == Some(true);
    let advertise_http = advertise_http.map(|http| address::advertised_http(&http, has_tls)).transpose()?;
    let lease = lease.unwrap_or(Span::from_secs(LEASE_DEFAULT));
    Ok(Some(Replicate { url, trusts_storage, lease, forwards, advertise, advertise_http }))
}

fn seconds(given: &Setting) -> Result<Span, ConfigError> {
    match number(given.clone(), LEASE_MAX) {
        Ok(seconds) if seconds > 0 => Ok(Span::from_secs(seconds as u32)),
        _ => Err(given.error(Problem::Positive(LEASE_MAX))),
    }
}
