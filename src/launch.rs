//! From a configuration to a running server, in the order that rights and descriptors demand.

use std::error::Error;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process;

use tracing::level_filters::LevelFilter;
use tracing::{info, warn};

use crate::cli::LogFormat;
use crate::config::{Config, Verbosity};
use crate::io::binlog_import;
use crate::io::clock::Clock;
use crate::io::driver::Ready;
use crate::io::privileges::User;
use crate::io::reexec::{self, Present, Successor};
use crate::io::sandbox::{self, Files, Needs, directory_of};
use crate::io::signal::Signals;
use crate::io::socket::{Address, ListenError, Listener};
use crate::io::systemd::Manager;
use crate::io::wal_files::{self, Directory, Disk};
use crate::io::{Ending, Sources, descriptors, host, rights};
use crate::queue::Engine;
use crate::server::{self, Hosts, Protocol, Server};
use crate::time::Time;
use crate::wal::{self, Durability, Wal};

/// Serves as `config` says, until told to stop.
pub fn run(config: Config) -> Result<(), Box<dyn Error>> {
    let successor = Successor::of_this_process();
    log_to_stderr(config.verbosity, config.log_format);
    // Before anything opens a descriptor.
    let inherited = Listener::inherit()?;
    let lock = reexec::inherit_lock();
    for warning in &config.warnings {
        warn!("{warning}");
    }
    host::tune_allocator();
    let descriptors_max = descriptors::raise_limit()?;
    warn_of_few_descriptors(config.max_connections, descriptors_max);
    let user = config.user.as_deref().map(User::find).transpose()?;
    let mut signals = Signals::block()?;
    // As who the manager started, which a socket of its own may ask for.
    let manager = Manager::from_environment();
    let http_name = config.http.as_ref().and_then(Address::host).map(str::to_owned);
    let listeners = listeners(inherited, config.listen, config.http)?;
    rights::give_up(user.as_ref())?;
    let prewrites = config.log.durability == Durability::Always;
    let directory = config.log_dir.as_deref().map(|path| Directory::open_with_lock(path, prewrites, lock));
    let directory = directory.transpose()?;
    if let Some(directory) = &directory {
        let present = Present {
            log_dir: directory.identity()?,
            segment_bytes: config.log.segment_bytes,
            speaks_http: listeners.iter().any(|listener| listener.protocol() == Protocol::Http),
            pid: process::id(),
        };
        signals.let_take_over(successor.clone(), present)?;
    }
    let driver = Ready::choose(config.io)?;
    let host = host::facts(driver.name())?;
    let http_hosts = http_hosts(&listeners, config.http_hosts, http_name, host.hostname.clone());
    // Before a log is parsed, which may be damaged or forged, and before there are threads, which would keep their rights.
    sandbox::confine(&needs(&config.log_dir, &config.file, &listeners, &successor));
    let clock = Clock::start();
    let seed = host::random_word()?;
    let mut engine = Engine::new(seed);
    let now = clock.now();
    let log = directory.as_ref().map(|from| restore(from, config.log, &mut engine, now)).transpose()?;
    let disk = directory.map(Disk::new).transpose()?;
    // Not before: a log that is refused would cost everybody the connection.
    open(&listeners)?;
    manager.ready(&status(&listeners, engine.jobs().len(), driver.name()));
    signals.report_to(manager);
    let server = server::Config {
        max_job_bytes: config.job_bytes_max,
        max_memory_bytes: config.max_memory_bytes,
        max_connections: config.max_connections,
        max_tubes: config.max_tubes,
        max_watches: config.max_watches,
        log_file_bytes: config.log.segment_bytes,
        allow_foreign_requests: config.allow_foreign_requests,
        http_hosts,
        metrics_prefix: config.metrics_prefix,
        started: clock.now(),
        seed,
        host,
    };
    let server = Server::with_log(server, engine, log);
    warn_of_little_memory(config.max_memory_bytes, server.memory_bytes());
    let (registered_bytes_max, connections_max) = (config.registered_bytes, config.max_connections);
    let sources = Sources { listeners, signals, clock, disk, connections_max, registered_bytes_max };
    match driver.run(server, sources)? {
        Ending::Stopped => Ok(()),
        Ending::Replaced(listeners, lock) => match successor.take_over(listeners, lock)? {},
    }
}

/// The jobs that are in the directory, and the log that goes on there.
fn restore(
    directory: &Directory,
    config: wal::WalConfig,
    engine: &mut Engine,
    now: Time,
) -> Result<Wal, Box<dyn Error>> {
    binlog_import::import(directory, config)?;
    Ok(wal_files::recover(directory, config, engine, now)?)
}

/// From now on everybody can connect.
fn open(listeners: &[Listener]) -> Result<(), ListenError> {
    for listener in listeners {
        listener.listen()?;
        match listener.protocol() {
            Protocol::Beanstalk => info!("listening on {}", listener.local_name()),
            Protocol::Http => info!("HTTP at {}", listener.local_name()),
        }
    }
    Ok(())
}

fn warn_of_little_memory(max: Option<u64>, used: u64) {
    if let Some(max) = max.filter(|&max| used >= max) {
        warn!(
            "the jobs of the log take {used} bytes of memory, and --max-memory is {max}: no new ones for now"
        );
    }
}

/// What an operator reads beside the name of the service.
fn status(listeners: &[Listener], jobs: usize, driver: &str) -> String {
    let names: Vec<String> = listeners.iter().map(Listener::local_name).collect();
    format!("listening on {}, began with {jobs} jobs, driver {driver}", names.join(" and "))
}

fn warn_of_few_descriptors(connections_max: Option<u32>, descriptors_max: u64) {
    let possible = descriptors::connections_within(descriptors_max);
    if let Some(max) = connections_max.filter(|&max| u64::from(max) > possible) {
        warn!(
            "--max-connections {max}: with a limit of {descriptors_max} open files there is room for about \
             {possible}; raise the hard limit (ulimit -Hn)"
        );
    }
}

/// Returns the host names that HTTP requests may have. No browser opens a UNIX socket, so there any will do.
fn http_hosts(
    listeners: &[Listener],
    configured: Vec<String>,
    http_name: Option<String>,
    hostname: String,
) -> Hosts {
    let mut http = listeners.iter().filter(|listener| listener.protocol() == Protocol::Http);
    if http.all(Listener::is_unix) {
        return Hosts::any();
    }
    Hosts::named(configured.into_iter().chain(http_name).chain([hostname]))
}

/// What a server needs as long as it runs.
fn needs(
    log_dir: &Option<PathBuf>,
    file: &Option<PathBuf>,
    listeners: &[Listener],
    successor: &Successor,
) -> Needs {
    let socket_dirs = listeners.iter().filter_map(Listener::file).map(directory_of).collect();
    let successor =
        log_dir.as_ref().map(|_| Files { program: successor.files(), configuration: file.clone() });
    Needs { log_dir: log_dir.clone(), socket_dirs, successor }
}

/// Those that were handed over, and what is missing.
fn listeners(
    inherited: Vec<Listener>,
    asked: Option<Address>,
    http: Option<Address>,
) -> Result<Vec<Listener>, ListenError> {
    let (mut monitors, mut listeners): (Vec<_>, Vec<_>) =
        inherited.into_iter().partition(|listener| listener.protocol() == Protocol::Http);
    if listeners.is_empty() {
        listeners.push(Listener::reserve(&asked.unwrap_or_default())?);
    } else if asked.is_some() && !listeners.iter().any(Listener::is_kept) {
        warn!("-l and -p are ignored: the sockets were handed over by LISTEN_FDS");
    }
    if let Some(address) = http.filter(|_| monitors.is_empty()) {
        let mut listener = Listener::reserve(&address)?;
        listener.speak(Protocol::Http);
        monitors.push(listener);
    }
    listeners.append(&mut monitors);
    Ok(listeners)
}

/// Where warnings go.
pub fn log_to_stderr(verbosity: Verbosity, format: LogFormat) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(match verbosity {
            Verbosity::Warnings => LevelFilter::WARN,
            Verbosity::Connections => LevelFilter::DEBUG,
            Verbosity::Commands => LevelFilter::TRACE,
        })
        .with_target(false)
        // When stderr is gone, complaining about that to stderr does not help.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().init(),
    }
}
