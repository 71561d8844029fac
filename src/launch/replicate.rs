//! The start of a server whose job log is in a database.

use std::error::Error;
use std::io;
#[cfg(feature = "replicate")]
use std::net::{Ipv4Addr, SocketAddr};
#[cfg(feature = "replicate")]
use std::thread;
#[cfg(feature = "replicate")]
use std::time::Duration;

use tracing::info;
#[cfg(feature = "replicate")]
use tracing::warn;

#[cfg(feature = "replicate")]
use crate::config::SettingError;
use crate::config::{PORT_FORWARD, Replicate, ServerConfig};
#[cfg(feature = "replicate")]
use crate::io::forward;
#[cfg(feature = "replicate")]
use crate::io::signal::refuse_to_go_on;
use crate::io::socket::Address;
use crate::io::{Database, Forwarding, host};
use crate::server::Server;
#[cfg(feature = "replicate")]
use crate::time::Span;
use crate::wal::replica::{APPENDS_MAX, Member, ReplicaConfig};
use crate::wal::{Destination, Durability, WalConfig};

/// How long a start waits before it checks the database again.
#[cfg(feature = "replicate")]
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The database of the job log, once it was checked.
#[cfg(feature = "replicate")]
pub(super) type Checked = crate::io::replica::Settings;

/// This program has no client of a database: the configuration refuses one.
#[cfg(not(feature = "replicate"))]
pub(super) type Checked = std::convert::Infallible;

/// Checks the database, if there is one. One that cannot be reached is waited for.
///
/// # Errors
/// If a job log cannot be in it.
#[cfg(feature = "replicate")]
pub(super) fn check(config: &ServerConfig) -> Result<Option<Checked>, Box<dyn Error>> {
    use crate::io::replica::{CheckError, LogNumber, Settings, check};

    let Some(replicate) = &config.replicate else { return Ok(None) };
    let is_temporary = |error: &CheckError| {
        matches!(error, CheckError::Unreachable(_) | CheckError::Standby | CheckError::NoStandby)
    };
    let mut has_warned = false;
    let settings = Settings::parse(&replicate.url, LogNumber::default())
        .map_err(|error| SettingError::about(&config.given.replicate, error))?;
    loop {
        match check(&settings, replicate.trusts_storage) {
            Ok(()) => return Ok(Some(settings)),
            Err(error) if is_temporary(&error) => {
                if !has_warned {
                    warn!("--replicate: {error}; this server waits for that");
                }
                has_warned = true;
                refuse_to_go_on()?;
                thread::sleep(CHECK_AGAIN_AFTER);
            }
            Err(error) => return Err(SettingError::about(&config.given.replicate, error).into()),
        }
    }
}

#[cfg(not(feature = "replicate"))]
pub(super) fn check(_: &ServerConfig) -> Result<Option<Checked>, Box<dyn Error>> {
    Ok(None)
}

/// Starts the thread that talks to the database.
#[cfg(feature = "replicate")]
pub(super) fn start(checked: Checked) -> io::Result<Box<dyn Database>> {
    crate::io::replica::PostgresStore::new(checked).map(|store| Box::new(store) as Box<dyn Database>)
}

#[cfg(not(feature = "replicate"))]
pub(super) fn start(checked: Checked) -> io::Result<Box<dyn Database>> {
    match checked {}
}

/// How this server takes part in a replicated queue, if it does.
pub(super) fn config(config: &ServerConfig, hostname: &str) -> io::Result<Option<ReplicaConfig>> {
    let Some(replicate) = &config.replicate else { return Ok(None) };
    let (token, secret) = (host::random_word()?, host::random_word()?);
    let advertised = replicate.forwards.then(|| advertised(replicate, hostname));
    let address = advertised.as_ref().map(Address::to_string).unwrap_or_default().into();
    let wal = WalConfig {
        durability: Durability::Always,
        segment_bytes: config.wal.segment_bytes,
        keep_reservations: true,
        destination: Destination::Network { writes_in_flight_max: APPENDS_MAX },
    };
    let me = Member { address, token, secret };
    Ok(Some(ReplicaConfig { me, lease: replicate.lease, wal, forwards: replicate.forwards }))
}

/// The address where other servers reach this one.
pub(super) fn advertised(replicate: &Replicate, hostname: &str) -> Address {
    let default = || Address::Tcp { host: hostname.to_owned(), port: PORT_FORWARD };
    replicate.advertise.clone().unwrap_or_else(default)
}

/// Where standbys connect to forward clients, if they do.
pub(super) fn listen_address(config: &ServerConfig) -> Option<Address> {
    let replicate = config.replicate.as_ref().filter(|replicate| replicate.forwards)?;
    let port = match &replicate.advertise {
        Some(Address::Tcp { port, .. }) => *port,
        _ => PORT_FORWARD,
    };
    Some(Address::Tcp { host: "0.0.0.0".to_owned(), port })
}

/// Standbys do not forward: the configuration refuses them.
#[cfg(not(feature = "replicate"))]
#[allow(clippy::unnecessary_wraps)]
pub(super) const fn forwarding(_: &ServerConfig, _: &ReplicaConfig) -> io::Result<Option<Forwarding>> {
    Ok(None)
}

/// Starts the thread that forwards, if standbys do.
#[cfg(feature = "replicate")]
pub(super) fn forwarding(config: &ServerConfig, replica: &ReplicaConfig) -> io::Result<Option<Forwarding>> {
    let Some(Address::Tcp { port, .. }) = listen_address(config) else { return Ok(None) };
    let settings = forward::Settings {
        connections_max: config.max_connections.map_or(usize::MAX, |max| max as usize),
        gone_after: Span::from_nanos(2 * replica.lease.as_nanos()),
        ..forward::Settings::default()
    };
    let forwarder = forward::Forwarder::start(settings)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
    Ok(Some(Forwarding { forwarder, own: forward::Target { address, secret: replica.me.secret } }))
}

/// Has the server show what it forwards.
#[cfg(feature = "replicate")]
pub(super) fn show_forwarded(server: &mut Server, forwarding: Option<&Forwarding>) {
    if let Some(Forwarding { forwarder, .. }) = forwarding {
        server.show_forwarded(forwarder.counts().clone());
    }
}

#[cfg(not(feature = "replicate"))]
pub(super) const fn show_forwarded(_: &mut Server, _: Option<&Forwarding>) {}

/// Logs that the server begins as a standby.
pub(super) fn report(config: &ReplicaConfig) {
    let seconds = config.lease.as_secs();
    info!("replication: this server begins as a standby; the lease of a leader is {seconds} s");
}
