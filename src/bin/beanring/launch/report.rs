//! What the log says about a start.

use std::fmt;
use std::path::Path;

use beanring::config::{ServerConfig, Warning};
use beanring::io::socket::Listener;
use beanring::io::wal_files::offline::Count;
use beanring::server::Protocol;
use beanring::time::Span;
use beanring::values::byte_size::Bytes;
use beanring::wal::Durability;
use tracing::{info, warn};

use super::{Prepared, warnings};

/// Logs what the start has taken from the system, and what an operator may not have meant.
pub(super) fn start(prepared: &Prepared) {
    let Prepared { config, listeners, user, found, driver, fallback, .. } = prepared;
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let restarted = if listeners.iter().any(Listener::is_from_restart) { ", restarted in place" } else { "" };
    info!("beanring {version} (pid {pid}){restarted}");
    // A socket from socket activation replaces --http.
    let serves_http = listeners.iter().any(|listener| listener.protocol() == Protocol::Http);
    let is_about_http = |warning: &Warning| {
        matches!(warning, Warning::WithoutHttp { .. } | Warning::WithoutListener { name: "http", .. })
    };
    let is_true = |warning: &&Warning| !(serves_http && is_about_http(warning));
    for warning in config.warnings.iter().filter(is_true) {
        warn!("{warning}");
    }
    for warning in found.start_warnings(config, prepared.descriptors_max, prepared.began) {
        warn!("{warning}");
    }
    if let (Some(path), Some(file)) = (&config.auth, &found.users) {
        info!("{} in {}", Count(file.users.len() as u64, "user"), path.display());
    }
    if prepared.is_address_ignored {
        info!("-l and -p are ignored: the server listens on the sockets from systemd (LISTEN_FDS)");
    }
    if let Some(user) = user {
        info!("running as user {}", user.name());
    }
    match fallback {
        Some(cause) => info!("I/O driver: {}: {cause}", driver.name()),
        None => info!("I/O driver: {}", driver.name()),
    }
}

/// Logs what recovery has found.
pub(super) fn recovery(directory: &Path, jobs: usize, segments: usize, took: Span) {
    let directory = directory.display();
    let duration_ms = millis(took);
    if segments == 0 {
        info!("job log: created in {directory}");
    } else {
        info!(
            jobs,
            segments,
            duration_ms,
            "job log: recovered {} from {directory} in {duration_ms} ms ({})",
            Count(jobs as u64, "job"),
            Count(segments as u64, "segment")
        );
    }
}

/// Logs how durable a reply is, and the limits.
pub(super) fn limits(config: &ServerConfig) {
    match config.wal.durability {
        _ if config.replicate.is_some() => {
            info!("durability: a reply leaves once a standby of the database has the change (--replicate)");
        }
        _ if config.wal_dir.is_none() => {
            info!(
                "no job log: jobs are kept in memory only, and a stop or a restart loses them (-b DIR keeps them)"
            );
        }
        Durability::Always => {
            info!("durability: fsync before reply (-f 0): a power failure loses no change that has a reply");
        }
        Durability::Within(span) => {
            let ms = millis(span);
            info!(
                "durability: sync within {ms} ms of a change (-f {ms}): a power failure may lose the latest changes"
            );
        }
        Durability::Never => {
            info!("durability: no sync until the server stops (-F): a power failure may lose jobs")
        }
    }
    info!(
        "limits: memory {}, job size {}, connections {}, tubes {}, watches per connection {}",
        limit(config.max_memory_bytes.map(Bytes)),
        Bytes(config.job_bytes_max.into()),
        limit(config.max_connections),
        limit(config.max_tubes),
        limit(config.max_watches)
    );
}

/// Logs the address of a listener, and for HTTP who may use the API there.
pub(super) fn listener(listener: &Listener, config: &ServerConfig) {
    let name = listener.local_name();
    let has_tls = listener.kind().has_tls;
    if listener.kind().is_forwarded {
        return info!("listening on {name} for standbys, over TLS with a key that is in the database");
    }
    if listener.protocol() == Protocol::Beanstalk {
        info!("listening on {name}{}", if has_tls { " with TLS" } else { "" });
        let open = || warnings::open_listener(&name, has_tls, config);
        if let Some(warning) = (!listener.is_local()).then(open).flatten() {
            warn!("{warning}");
        }
        return;
    }
    let access = match (&config.http_token, config.http_allow_writes) {
        _ if config.auth.is_some() => "for the users of --auth",
        (Some(_), _) => "read and write with the token",
        (None, true) => "read and write from this machine",
        (None, false) => "read-only from this machine",
    };
    let scheme = if has_tls { "https" } else { "http" };
    let url = if listener.is_unix() { name } else { format!("{scheme}://{name}") };
    match (cfg!(feature = "console"), listener.is_unix()) {
        (true, false) => info!("serving the console on {url}/, the API ({access}) and /metrics"),
        (false, false) => info!("serving metrics on {url}/metrics and the API ({access})"),
        (true, true) => info!("serving the console, the API ({access}) and /metrics on {url}"),
        (false, true) => info!("serving the API ({access}) and /metrics on {url}"),
    }
}

/// Logs the end of the start.
pub(super) fn ready(took: Span) {
    let duration_ms = millis(took);
    info!(duration_ms, "ready after {duration_ms} ms");
}

const fn millis(span: Span) -> u64 {
    span.as_nanos() / 1_000_000
}

/// A limit that may not be there.
fn limit(limit: Option<impl fmt::Display>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}
