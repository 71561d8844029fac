//! `--check-config`: checks what a start would do, without taking an address or a lock. A running server checks a program like
//! this before it restarts in place, so a check that passes must mean that the start succeeds.

use std::error::Error;
use std::fmt::Display;
use std::net::IpAddr;

use beanring::config::size::Size;
use beanring::config::{ServerConfig, SettingError};
use beanring::io::clock::Clock;
use beanring::io::driver::PreparedDriver;
use beanring::io::privileges::{PrivilegesError, User, drop_privileges};
use beanring::io::reexec::{ACTIVATED, RunningServer};
use beanring::io::socket::{Address, Listener, ListenerKind};
use beanring::io::wal_files::{Directory, DirectoryError};
use beanring::io::{binlog_import, descriptors, wal_files};
use nix::unistd::getppid;

use crate::launch::replicate;
use crate::launch::warnings::{Found, open_listener};

/// Why a program cannot replace the running one in place. For some reasons a stop and a new start work: the running process has
/// dropped its privileges.
// docs/RUNBOOK.md lists these messages.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Refusal {
    #[error(
        "-b/--wal-dir is not set, and a server without the job log of the running one begins with an empty queue: set -b \
        to the directory of the running server"
    )]
    NoWalDir,
    #[error(
        "--replicate is not set, and a server without the database of the running one begins with other jobs or none: set \
        --replicate to the URL of the running server"
    )]
    NoReplicate,
    #[error(
        "not the directory of the running server, and a server without its job log begins with other jobs or none: set -b \
        to the directory of the running server"
    )]
    WalDir,
    #[error("-s/--wal-segment-size is less than the present {}: stop the server and start it again", Size(*.present))]
    SegmentSize { present: u64 },
    #[error(
        "-s/--wal-segment-size: the disk has no space for segments of that size; free some, or choose a smaller size"
    )]
    Space,
    #[error(
        "the running server listens on {present}, and a restart in place cannot change that to {given}: stop the server \
        and start it again"
    )]
    Listen { present: String, given: String },
    #[error(
        "the address for clients over TLS is {present}, and a restart in place cannot change that to {given}: stop the \
        server and start it again"
    )]
    TlsListen { present: String, given: String },
    #[error(
        "the running server serves HTTP on {present}, and a restart in place cannot change that to {given}: stop the \
        server and start it again"
    )]
    HttpAddress { present: String, given: String },
    #[error("--http is not set, and a restart in place cannot close {0}: stop the server and start it again")]
    HttpClosed(String),
    /// The process has dropped the privilege to become another user.
    #[error("a restart in place cannot change the user: stop the server and start it again")]
    User,
    /// HTTP needs a new port, and the process has dropped the privilege to bind one.
    #[error("--http was not set when the server started: stop the server and start it again")]
    Http,
    #[error("a script must exec the program, not start it as a child, because a restart keeps the process")]
    Parent,
}

/// A job log whose segment size changes begins with a new segment, and prepares the next one.
const SEGMENTS_AT_START: u64 = 2;

/// What a check that has passed has found.
pub struct Passed {
    /// The name of the driver.
    pub driver: String,
    /// What an operator may not have meant.
    pub warnings: Vec<String>,
}

/// Checks that a server of this configuration could start. Drops privileges as a start would.
///
/// # Errors
/// Why it could not start, or could not replace the running server.
pub fn check(config: &ServerConfig) -> Result<Passed, Box<dyn Error>> {
    let given = &config.given;
    let present = RunningServer::from_environment();
    match &present {
        Some(present) if getppid().as_raw() as u32 != present.pid => return Err(Refusal::Parent.into()),
        Some(present) => refuse_other_listeners(config, present)?,
        None => check_addresses(config)?,
    }
    let refused_user = |error| SettingError::about(&given.user, error);
    let user = config.user.as_deref().map(User::find).transpose().map_err(refused_user)?;
    drop_privileges(user.as_ref()).map_err(|error| match error {
        PrivilegesError::User { .. } if present.is_some() => SettingError::about(&given.user, Refusal::User),
        error => refused_user(error),
    })?;
    let found = Found::read(config)?;
    replicate::check_url(config)?;
    // The sandbox of a running server hides other directories, so this comes before the check fails for that reason.
    let path = config.wal_dir.as_deref();
    if let (Some(present), Some(path)) = (&present, path)
        && Directory::identity_at(path).is_ok_and(|own| own != present.wal_dir)
    {
        return Err(SettingError::about(&given.wal_dir, Refusal::WalDir).into());
    }
    let wal_dir = about(&given.wal_dir, path.map(Directory::check).transpose())?;
    about(&given.wal_dir, path.map_or(Ok(()), binlog_import::check))?;
    about(&given.wal_dir, path.map_or(Ok(()), wal_files::preflight))?;
    if let Some(present) = present {
        let is_replicated = present.wal_dir == RunningServer::NO_DIRECTORY;
        match wal_dir {
            _ if is_replicated && config.replicate.is_none() => return Err(Refusal::NoReplicate.into()),
            _ if is_replicated => replicate::check_once(config)?,
            None => return Err(Refusal::NoWalDir.into()),
            Some(own) if own != present.wal_dir => {
                return Err(SettingError::about(&given.wal_dir, Refusal::WalDir).into());
            }
            Some(_) => {}
        }
        if config.wal.segment_bytes < present.segment_bytes {
            return Err(Refusal::SegmentSize { present: present.segment_bytes }.into());
        }
        let is_larger = config.wal.segment_bytes > present.segment_bytes;
        if let Some(path) = path.filter(|_| is_larger) {
            let unusable = |error| DirectoryError::Unusable(path.to_owned(), error);
            let free = about(&given.wal_dir, Directory::free_bytes(path).map_err(unusable))?;
            if free < SEGMENTS_AT_START * config.wal.segment_bytes {
                return Err(Refusal::Space.into());
            }
        }
    }
    let driver = PreparedDriver::name_of_choice(config.io)?;
    let descriptors_max = descriptors::raise_limit().unwrap_or(u64::MAX);
    let mut warnings = found.start_warnings(config, descriptors_max, Clock::start().now());
    warnings.extend(open_listeners(config));
    Ok(Passed { driver, warnings })
}

/// Says of an error which setting it is about.
fn about<T, E: Error + 'static>(
    settings: impl IntoIterator<Item: Display>,
    result: Result<T, E>,
) -> Result<T, SettingError> {
    result.map_err(|error| SettingError::about(settings, error))
}

/// The warnings of listeners that other machines reach. A name counts as one of this machine, because it is not resolved here.
fn open_listeners(config: &ServerConfig) -> impl Iterator<Item = String> {
    let tls = config.tls.as_ref().and_then(|tls| tls.listen.clone());
    let listeners = [(config.clear_address(), false), (tls, true)];
    listeners.into_iter().filter_map(|(address, has_tls)| {
        let address = address?;
        let ip: IpAddr = address.host()?.parse().ok()?;
        if ip.is_loopback() { None } else { open_listener(&address.to_string(), has_tls, config) }
    })
}

/// Refuses other addresses than those of the running server: its listeners do not change in a restart.
fn refuse_other_listeners(config: &ServerConfig, present: &RunningServer) -> Result<(), SettingError> {
    let given = &config.given;
    let listen = config.clear_address().map(|address| address.to_string());
    let tls = config.tls.as_ref().and_then(|tls| tls.listen.as_ref()).map(Address::to_string);
    let http = config.http.as_ref().map(Address::to_string);
    let none = || "none".to_owned();
    if let Some(present) = present.listen.clone().filter(|present| listen.as_ref() != Some(present)) {
        let refusal = Refusal::Listen { present, given: listen.unwrap_or_else(none) };
        return Err(SettingError::about(&given.listen, refusal));
    }
    if present.tls_listen.as_deref() != Some(ACTIVATED) && present.tls_listen != tls {
        let [present, new] = [present.tls_listen.clone(), tls].map(|address| address.unwrap_or_else(none));
        return Err(SettingError::about(&given.tls_listen, Refusal::TlsListen { present, given: new }));
    }
    match present.http.clone() {
        _ if http.is_some() && !present.speaks_http => Err(SettingError::about(&None::<&str>, Refusal::Http)),
        Some(present) if http.as_ref() != Some(&present) => {
            let refusal = match http {
                Some(given) => Refusal::HttpAddress { present, given },
                None => Refusal::HttpClosed(present),
            };
            Err(SettingError::about(&given.http, refusal))
        }
        _ => Ok(()),
    }
}

/// Checks the addresses of a server that does not run yet.
fn check_addresses(config: &ServerConfig) -> Result<(), Box<dyn Error>> {
    let given = &config.given;
    // Sockets from socket activation replace addresses.
    let inherited = Listener::inherit()?;
    let is_there = |is_of: fn(ListenerKind) -> bool| inherited.iter().any(|listener| is_of(listener.kind()));
    if let Some(address) = config.clear_address().filter(|_| !is_there(ListenerKind::is_clear)) {
        about(&given.listen, Listener::check(&address, &config.listen_access))?;
    }
    if let Some((tls, address)) = config.tls.as_ref().and_then(|tls| Some((tls, tls.listen.as_ref()?)))
        && !is_there(ListenerKind::is_tls)
    {
        about(&given.tls_listen, Listener::check(address, &tls.access))?;
    }
    if let Some(http) = config.http.as_ref().filter(|_| !is_there(ListenerKind::is_http)) {
        about(&given.http, Listener::check(http, &config.http_access))?;
    }
    Ok(())
}
