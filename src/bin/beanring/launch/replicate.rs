//! The start of a server whose job log is in a database.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use beanring::config::{PORT_FORWARD, Replicate, ServerConfig};
use beanring::io::host;
use beanring::io::socket::Address;
use beanring::wal::replica::{APPENDS_MAX, Member, ReplicaConfig};
use beanring::wal::{Destination, Durability, WalConfig};
use tracing::info;

#[cfg(feature = "replicate")]
mod with_database {
    use std::error::Error;
    use std::io;
    use std::path::PathBuf;
    use std::thread;
    use std::time::Duration;

    use tracing::warn;

    use super::super::warnings::clients_within;
    use super::listen_address;
    use beanring::config::{Replicate, ServerConfig, SettingError};
    use beanring::io::forward::{self, Forwarder};
    use beanring::io::lost_peers::Keepalive;
    use beanring::io::replica::{self, CheckError, Known, PostgresStore, Settings};
    use beanring::io::signal::refuse_to_go_on;
    use beanring::io::{Database, Forwarding, reexec};
    use beanring::server::Server;
    use beanring::time::Span;
    use beanring::wal::replica::ReplicaConfig;

    /// How long a start waits before it checks the database again.
    const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(1);

    /// The part of `--max-memory` that bytes on their way may take.
    const FORWARDED_SHARE: u64 = 8;

    /// The database of the job log, once it was checked.
    pub type Checked = Settings;

    /// Checks the database, if there is one. One that cannot be reached is waited for.
    ///
    /// # Errors
    /// If a job log cannot be in it.
    pub fn check(config: &ServerConfig) -> Result<Option<Checked>, Box<dyn Error>> {
        let Some(replicate) = &config.replicate else { return Ok(None) };
        let is_temporary =
            |error: &CheckError| error.is_temporary() && !matches!(error, CheckError::Statement(_));
        let mut has_warned = false;
        let known = reexec::inherited_known().unwrap_or_default();
        let settings = settings(config, replicate)?.knowing(&known).trusting(replicate.trusts_storage);
        loop {
            match replica::check(&settings, replicate.trusts_storage) {
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

    /// Checks the URL of the database, if there is one, and the files that it names. The database may be down.
    ///
    /// # Errors
    /// If it is not valid, or a file cannot be used.
    pub fn check_url(config: &ServerConfig) -> Result<(), Box<dyn Error>> {
        config.replicate.iter().try_for_each(|replicate| Ok(settings(config, replicate).map(drop)?))
    }

    /// Checks the database now, if there is one.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn check_once(config: &ServerConfig) -> Result<(), Box<dyn Error>> {
        let Some(replicate) = &config.replicate else { return Ok(()) };
        replica::check(&settings(config, replicate)?, replicate.trusts_storage)
            .map_err(|error| SettingError::about(&config.given.replicate, error).into())
    }

    fn settings(config: &ServerConfig, replicate: &Replicate) -> Result<Settings, SettingError> {
        Settings::parse(&replicate.url).map_err(|error| SettingError::about(&config.given.replicate, error))
    }

    /// The files that a restart in place reads to connect to the database.
    pub fn files(checked: Option<&Checked>) -> Vec<PathBuf> {
        checked.map_or_else(Vec::new, |settings| settings.files.clone())
    }

    /// Starts the thread that talks to the database.
    pub fn start(checked: Checked) -> io::Result<(Box<dyn Database>, Known)> {
        let store = PostgresStore::new(checked)?;
        let known = store.known();
        Ok((Box::new(store), known))
    }

    /// Starts the thread that forwards, if standbys do.
    pub fn forwarding(
        config: &ServerConfig,
        replica: &ReplicaConfig,
        descriptors_max: u64,
    ) -> io::Result<Option<Forwarding>> {
        if listen_address(config).is_none() {
            return Ok(None);
        }
        let clients_max = clients_within(config, descriptors_max).max(1);
        let settings = forward::Settings {
            connections_max: config.max_connections.map_or(clients_max, u64::from).min(clients_max) as usize,
            memory_max: config.max_memory_bytes.map_or(usize::MAX, |max| (max / FORWARDED_SHARE) as usize),
            keepalive: Keepalive::after(config.tcp_keepalive_s),
            gone_after: Span::from_nanos(2 * replica.me.lease.as_nanos()),
            ..forward::Settings::default()
        };
        let forwarder = Forwarder::start(settings)?;
        Ok(Some(Forwarding { forwarder, own_secret: replica.me.secret }))
    }

    /// Has the server show what it forwards.
    pub fn show_forwarded(server: &mut Server, forwarding: Option<&Forwarding>) {
        if let Some(Forwarding { forwarder, .. }) = forwarding {
            server.show_forwarded(forwarder.counts().clone());
        }
    }
}

/// This program has no client of a database: the configuration refuses one.
#[cfg(not(feature = "replicate"))]
#[allow(clippy::unnecessary_wraps)]
mod without_database {
    use std::convert::Infallible;
    use std::error::Error;
    use std::io;
    use std::path::PathBuf;

    use beanring::config::ServerConfig;
    use beanring::io::{Database, Forwarding};
    use beanring::server::Server;
    use beanring::wal::replica::ReplicaConfig;

    pub type Checked = Infallible;

    pub const fn check(_: &ServerConfig) -> Result<Option<Checked>, Box<dyn Error>> {
        Ok(None)
    }

    pub const fn check_url(_: &ServerConfig) -> Result<(), Box<dyn Error>> {
        Ok(())
    }

    pub const fn check_once(_: &ServerConfig) -> Result<(), Box<dyn Error>> {
        Ok(())
    }

    pub const fn files(_: Option<&Checked>) -> Vec<PathBuf> {
        Vec::new()
    }

    pub fn start(checked: Checked) -> io::Result<(Box<dyn Database>, Infallible)> {
        match checked {}
    }

    pub const fn forwarding(_: &ServerConfig, _: &ReplicaConfig, _: u64) -> io::Result<Option<Forwarding>> {
        Ok(None)
    }

    pub const fn show_forwarded(_: &mut Server, _: Option<&Forwarding>) {}
}

#[cfg(feature = "replicate")]
pub(crate) use self::with_database::{
    Checked, check, check_once, check_url, files, forwarding, show_forwarded, start,
};
#[cfg(not(feature = "replicate"))]
pub(crate) use self::without_database::{
    Checked, check, check_once, check_url, files, forwarding, show_forwarded, start,
};

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
    let http = replicate.advertise_http.clone().unwrap_or_default();
    let me = Member { address, http, token, secret, lease: replicate.lease };
    Ok(Some(ReplicaConfig { me, wal, forwards: replicate.forwards }))
}

/// The address where other servers reach this one.
pub(super) fn advertised(replicate: &Replicate, hostname: &str) -> Address {
    let default = || Address::Tcp { host: hostname.to_owned(), port: PORT_FORWARD };
    replicate.advertise.clone().unwrap_or_else(default)
}

/// Where standbys connect to forward clients, if they do.
pub(super) fn listen_address(config: &ServerConfig) -> Option<Address> {
    let replicate = config.replicate.as_ref().filter(|replicate| replicate.forwards)?;
    Some(listener(config.clear_address().as_ref(), replicate.advertise.as_ref()))
}

/// The address that standbys are told. For a name, which may mean others here than there, every address of this machine: over IPv6
/// too, if the server listens for clients there.
fn listener(clients: Option<&Address>, advertised: Option<&Address>) -> Address {
    if let Some(address) = advertised
        && address.host().is_some_and(|host| host.parse::<IpAddr>().is_ok())
    {
        return address.clone();
    }
    let is_ipv6 = clients.and_then(Address::host).is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    let port = match advertised {
        Some(Address::Tcp { port, .. }) => *port,
        _ => PORT_FORWARD,
    };
    let host = if is_ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    Address::Tcp { host: host.to_string(), port }
}

/// Logs that the server begins as a standby.
pub(super) fn report(config: &ReplicaConfig) {
    let seconds = config.me.lease.as_secs();
    info!("replication: this server begins as a standby; when it leads, its lease is {seconds} s");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standbys_connect_to_the_advertised_address() {
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        for (clients, advertised, expected) in [
            ("127.0.0.1", None, "0.0.0.0:11401"),
            ("::", None, "[::]:11401"),
            ("0.0.0.0", Some("10.0.0.1"), "10.0.0.1:7"),
            ("0.0.0.0", Some("127.0.0.1"), "127.0.0.1:7"),
            ("0.0.0.0", Some("queue-1.example"), "0.0.0.0:7"),
            ("0.0.0.0", Some("fd00::1"), "[fd00::1]:7"),
            ("::", Some("queue-1.example"), "[::]:7"),
            ("::1", Some("10.0.0.1"), "10.0.0.1:7"),
        ] {
            let advertised = advertised.map(|host| tcp(host, 7));
            let found = listener(Some(&tcp(clients, 11300)), advertised.as_ref());
            assert_eq!(found.to_string(), expected, "{clients} {advertised:?}");
        }
    }
}
