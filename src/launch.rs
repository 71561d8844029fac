//! From a configuration to a running server, in the order that rights and descriptors demand.

use std::error::Error;
use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing::{info, warn};

use crate::config::{Config, Verbosity};
use crate::io::clock::Clock;
use crate::io::disk::{self, Directory, Disk};
use crate::io::driver::Ready;
use crate::io::manager::Manager;
use crate::io::signal::Signals;
use crate::io::socket::{Address, ListenError, Listener};
use crate::io::user::User;
use crate::io::{Sources, descriptors, host};
use crate::log::Durability;
use crate::queue::Engine;
use crate::server::{self, Server};

/// Serves as `config` says, until told to stop.
pub fn run(config: Config) -> Result<(), Box<dyn Error>> {
    // Before anything opens a descriptor.
    let inherited = Listener::inherit()?;
    log_to_stderr(config.verbosity);
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
    let listeners = listeners(inherited, config.listen)?;
    if let Some(user) = user {
        user.become_for_good()?;
    }
    let prewrites = config.log.durability == Durability::Always;
    let directory = config.log_dir.as_deref().map(|path| Directory::open(path, prewrites)).transpose()?;
    let driver = Ready::choose(config.io)?;
    let host = host::facts(driver.name())?;
    let counters = host.io.clone();
    counters.take_memory(host::resident_bytes());
    let clock = Clock::start();
    let seed = host::random_word()?;
    let mut engine = Engine::new(seed);
    let (log, disk) = match directory {
        Some(directory) => {
            disk::import(&directory, config.log)?;
            let log = disk::recover(&directory, config.log, &mut engine, clock.now())?;
            (Some(log), Some(Disk::new(directory)?))
        }
        None => (None, None),
    };
    // Not before: a log that is refused would cost everybody the connection.
    for listener in &listeners {
        listener.listen()?;
        info!("listening on {}", listener.local_name());
    }
    manager.ready(&status(&listeners, engine.jobs().len(), driver.name()));
    signals.report_to(manager);
    let server = server::Config {
        max_job_bytes: config.job_bytes_max,
        max_memory_bytes: config.max_memory_bytes,
        max_connections: config.max_connections,
        log_file_bytes: config.log.segment_bytes,
        started: clock.now(),
        seed,
        host,
    };
    let server = Server::with_log(server, engine, log);
    if let Some(max) = config.max_memory_bytes.filter(|&max| server.memory_bytes() >= max) {
        let used = server.memory_bytes();
        warn!(
            "the jobs of the log take {used} bytes of memory, and --max-memory is {max}: no new ones for now"
        );
    }
    let (registered_bytes_max, connections_max) = (config.registered_bytes, config.max_connections);
    let sources =
        Sources { listeners, signals, clock, disk, connections_max, registered_bytes_max, counters };
    driver.run(server, sources)?;
    Ok(())
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

fn listeners(inherited: Vec<Listener>, asked: Option<Address>) -> Result<Vec<Listener>, ListenError> {
    if inherited.is_empty() {
        return Ok(vec![Listener::reserve(&asked.unwrap_or_default())?]);
    }
    if asked.is_some() {
        warn!("-l and -p are ignored: the sockets were handed over by LISTEN_FDS");
    }
    Ok(inherited)
}

/// Where warnings go.
pub fn log_to_stderr(verbosity: Verbosity) {
    tracing_subscriber::fmt()
        .with_max_level(match verbosity {
            Verbosity::Warnings => LevelFilter::WARN,
            Verbosity::Connections => LevelFilter::DEBUG,
            Verbosity::Commands => LevelFilter::TRACE,
        })
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        // When stderr is gone, complaining about that to stderr does not help.
        .log_internal_errors(false)
        .with_writer(io::stderr)
        .init();
}
