//! Starts a server from its configuration, in the order that privileges and descriptors demand.

use std::error::Error;
use std::io::{self, IsTerminal};
use std::process;

use tracing::level_filters::LevelFilter;
use tracing::{info, warn};

use crate::cli::{LogFormat, LogLevel};
use crate::config::ServerConfig;
use crate::io::binlog_import;
use crate::io::clock::Clock;
use crate::io::driver::PreparedDriver;
use crate::io::privileges::{User, drop_privileges};
use crate::io::reexec::{self, Program, RunningServer};
use crate::io::sandbox::{self, Files, Needs, directory_of};
use crate::io::signal::Signals;
use crate::io::socket::{Address, ListenError, Listener};
use crate::io::systemd::NotifySocket;
use crate::io::wal_files::{self, Directory, Disk};
use crate::io::{Exit, Resources, descriptors, host};
use crate::queue::Engine;
use crate::server::{self, HostFacts, Hosts, Protocol, Server};
use crate::time::Time;
use crate::wal::{self, Durability, Wal};

/// Runs a server of this configuration until it stops or restarts in place.
///
/// # Errors
/// If the server cannot start or continue.
pub fn run(config: ServerConfig) -> Result<(), Box<dyn Error>> {
    let program = Program::of_this_process();
    log_to_stderr(config.log_level, config.log_format);
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
    // Before privileges are dropped: the user that systemd starts may connect to its socket.
    let systemd = NotifySocket::from_environment();
    let listeners = listeners(inherited, &config)?;
    drop_privileges(user.as_ref())?;
    let prewrites = config.log.durability == Durability::Always;
    let directory = config.log_dir.as_deref().map(|path| Directory::open_with_lock(path, prewrites, lock));
    let directory = directory.transpose()?;
    if let Some(directory) = &directory {
        signals.enable_restart(program.clone(), running_server(directory, &config, &listeners)?)?;
    }
    let driver = PreparedDriver::choose(config.io)?;
    let host = host::facts(driver.name())?;
    // Before the job log is parsed, which may be damaged or forged, and before there are threads, which would keep their rights.
    sandbox::enter(&needs(&config, &listeners, &program));
    let clock = Clock::start();
    let seed = host::random_word()?;
    let mut engine = Engine::new(seed);
    let now = clock.now();
    let log = directory.as_ref().map(|from| recover(from, config.log, &mut engine, now)).transpose()?;
    let disk = directory.map(Disk::new).transpose()?;
    // After the job log: clients should not connect to a server that ends because its log is refused.
    listen(&listeners)?;
    systemd.ready(&status(&listeners, engine.jobs().len(), driver.name()));
    signals.notify_systemd(systemd);
    let server_config = server_config(&config, &listeners, host, clock.now(), seed);
    let server = Server::with_log(server_config, engine, log);
    warn_of_little_memory(config.max_memory_bytes, server.memory_bytes());
    let (registered_bytes_max, connections_max) = (config.registered_bytes, config.max_connections);
    let resources = Resources { listeners, signals, clock, disk, connections_max, registered_bytes_max };
    match driver.run(server, resources)? {
        Exit::Stopped => Ok(()),
        Exit::Restart(listeners, lock) => match program.restart(listeners, lock)? {},
    }
}

fn running_server(
    directory: &Directory,
    config: &ServerConfig,
    listeners: &[Listener],
) -> Result<RunningServer, Box<dyn Error>> {
    Ok(RunningServer {
        log_dir: directory.identity()?,
        segment_bytes: config.log.segment_bytes,
        speaks_http: listeners.iter().any(|listener| listener.protocol() == Protocol::Http),
        pid: process::id(),
    })
}

/// Recovers the jobs in the directory, and returns the job log that continues there.
fn recover(
    directory: &Directory,
    config: wal::WalConfig,
    engine: &mut Engine,
    now: Time,
) -> Result<Wal, Box<dyn Error>> {
    binlog_import::import(directory, config)?;
    Ok(wal_files::recover(directory, config, engine, now)?)
}

fn server_config(
    config: &ServerConfig,
    listeners: &[Listener],
    host: HostFacts,
    started: Time,
    seed: u64,
) -> server::Config {
    server::Config {
        max_job_bytes: config.job_bytes_max,
        max_memory_bytes: config.max_memory_bytes,
        max_connections: config.max_connections,
        max_tubes: config.max_tubes,
        max_watches: config.max_watches,
        log_file_bytes: config.log.segment_bytes,
        allow_foreign_requests: config.allow_foreign_requests,
        http_hosts: http_hosts(listeners, config, host.hostname.clone()),
        metrics_prefix: config.metrics_prefix.clone(),
        started,
        seed,
        host,
    }
}

/// Lets clients connect.
fn listen(listeners: &[Listener]) -> Result<(), ListenError> {
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

/// The status line of `systemctl status`.
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

/// The host names that HTTP requests may contain. A browser does not connect to a UNIX socket, so any is allowed there.
fn http_hosts(listeners: &[Listener], config: &ServerConfig, hostname: String) -> Hosts {
    let mut http = listeners.iter().filter(|listener| listener.protocol() == Protocol::Http);
    if http.all(Listener::is_unix) {
        return Hosts::any();
    }
    let http_name = config.http.as_ref().and_then(Address::host).map(str::to_owned);
    Hosts::named(config.http_hosts.iter().cloned().chain(http_name).chain([hostname]))
}

/// The files that the server needs while it runs.
fn needs(config: &ServerConfig, listeners: &[Listener], program: &Program) -> Needs {
    let ServerConfig { log_dir, file, .. } = config;
    let socket_dirs = listeners.iter().filter_map(Listener::file).map(directory_of).collect();
    let restart = log_dir.as_ref().map(|_| Files { program: program.files(), configuration: file.clone() });
    Needs { log_dir: log_dir.clone(), socket_dirs, restart }
}

/// The listeners that the process has inherited, and those that are missing.
fn listeners(inherited: Vec<Listener>, config: &ServerConfig) -> Result<Vec<Listener>, ListenError> {
    let (mut http, mut listeners): (Vec<_>, Vec<_>) =
        inherited.into_iter().partition(|listener| listener.protocol() == Protocol::Http);
    if listeners.is_empty() {
        let default = Address::default();
        listeners.push(Listener::bind(config.listen.as_ref().unwrap_or(&default))?);
    } else if config.listen.is_some() && !listeners.iter().any(Listener::is_from_restart) {
        warn!("-l and -p are ignored: the sockets were handed over by LISTEN_FDS");
    }
    if let Some(address) = config.http.as_ref().filter(|_| http.is_empty()) {
        let mut listener = Listener::bind(address)?;
        listener.set_protocol(Protocol::Http);
        http.push(listener);
    }
    listeners.append(&mut http);
    Ok(listeners)
}

/// Sets up the log on stderr.
pub fn log_to_stderr(level: LogLevel, format: LogFormat) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        })
        .with_target(false)
        // A failed write to stderr cannot be reported on stderr.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().init(),
    }
}
