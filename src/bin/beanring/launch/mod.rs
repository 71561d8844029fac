//! Starts a server from its configuration, in the order that privileges and descriptors demand.

pub(crate) mod certificate;
pub(crate) mod replicate;
mod report;
pub(crate) mod warnings;

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{self, ExitCode};

use beanring::config::{Proxied, ServerConfig, SettingError};
use beanring::io::binlog_import::{self, ImportError};
use beanring::io::clock::Clock;
use beanring::io::driver::{Cause, PreparedDriver};
use beanring::io::host::{self, ProcessFiles};
use beanring::io::layers::Layers;
use beanring::io::lost_peers::Keepalive;
use beanring::io::privileges::{User, drop_privileges};
use beanring::io::reexec::{self, ACTIVATED, Program, RunningServer};
use beanring::io::sandbox::{self, Files, Needs, directory_of};
use beanring::io::signal::{Signals, StopRequested};
use beanring::io::socket::{Address, ListenError, Listener, ListenerKind, SocketAccess, text_of, to_errno};
use beanring::io::systemd::NotifySocket;
use beanring::io::wal_files::offline::Count;
use beanring::io::wal_files::{Directory, DirectoryError, Disk, RecoveryError};
use beanring::io::watched_files::{Identity, WatchedFiles};
use beanring::io::{Exit, Resources, descriptors, log_writer};
use beanring::logging;
use beanring::queue::Engine;
use beanring::server::{self, HostFacts, Hosts, HttpAccess, Protocol, Server};
use beanring::time::{Span, Time};
use beanring::wal::{Durability, Wal};
use nix::errno::Errno;
use tracing::{error, info};

use self::warnings::Found;

/// The system refuses what every server needs.
#[derive(Debug)]
struct SystemError {
    /// What cannot be done.
    action: &'static str,
    error: io::Error,
}

/// The limit of open files leaves no room for a connection.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[error(
    "the limit of {0} open files leaves no room for a connection; raise it to 1024 or more (ulimit -n, LimitNOFILE=)"
)]
struct TooFewDescriptors(u64);

/// Everything that a start takes from the system before it reads the job log.
struct Prepared {
    config: ServerConfig,
    program: Program,
    clock: Clock,
    began: Time,
    listeners: Vec<Listener>,
    process: ProcessFiles,
    /// The sockets come from socket activation, and replace the configured address.
    is_address_ignored: bool,
    signals: Signals,
    systemd: NotifySocket,
    descriptors_max: u64,
    user: Option<User>,
    found: Found,
    watched_files: WatchedFiles,
    directory: Option<Directory>,
    database: Option<replicate::Checked>,
    driver: PreparedDriver,
    /// Why `--io auto` has chosen epoll.
    fallback: Option<Cause>,
}

/// Runs a server of this configuration until it stops or restarts in place. Returns its exit code; if it has failed, the last
/// line of the log says why.
///
/// # Errors
/// If the start is refused. Nothing has been logged or written.
pub fn run(config: ServerConfig) -> Result<ExitCode, Box<dyn Error>> {
    let program = Program::of_this_process();
    logging::to_stderr(config.log_level.into(), config.log_format);
    reexec::inherited_lost_lines().into_iter().for_each(log_writer::continue_after);
    // Before anything opens a descriptor.
    let inherited = Listener::inherit()?;
    let lock = reexec::inherit_lock();
    reexec::inherit_connections(&inherited);
    let prepared = match Prepared::take(config, program, inherited, lock) {
        Err(error) if is_stop(&*error) => return Ok(stopped_early()),
        result => result?,
    };
    Ok(match prepared.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_stop(&*error) => stopped_early(),
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    })
}

impl Prepared {
    fn take(
        config: ServerConfig,
        program: Program,
        inherited: Vec<Listener>,
        lock: Option<File>,
    ) -> Result<Self, Box<dyn Error>> {
        let clock = Clock::start();
        let began = clock.now();
        host::tune_allocator();
        let descriptors_max = descriptors_max()?;
        let refused_user = |error| SettingError::about(&config.given.user, error);
        let user = config.user.as_deref().map(User::find).transpose().map_err(refused_user)?;
        let mut signals = Signals::block().map_err(cannot("read signals"))?;
        // Before privileges are dropped: the user that systemd starts may connect to its socket.
        let systemd = NotifySocket::from_environment();
        let [listen, tls_listen, http] = configured_addresses(&inherited, &config);
        let is_address_ignored = config.listen.is_some() && listen.is_none();
        let listeners = listeners(inherited, &config, user.as_ref())?;
        let process = ProcessFiles::open();
        drop_privileges(user.as_ref()).map_err(refused_user)?;
        let mut watched_files = WatchedFiles::default();
        if let Some(tls) = &config.tls {
            watched_files.add_certificate(tls.files.clone(), config.given.certificate.clone());
        }
        // As the user that an in-place restart will read them as.
        let found = Found::read(&config)?;
        if let Some((path, file)) = config.auth.as_ref().zip(found.users.as_ref()) {
            watched_files.add_users(path.clone(), Identity::of(&file.metadata));
        }
        let database = replicate::check(&config)?;
        let prewrites = config.wal.durability == Durability::Always;
        let directory =
            config.wal_dir.as_deref().map(|path| Directory::open_with_lock(path, prewrites, lock));
        let directory =
            directory.transpose().map_err(|error| SettingError::about(&config.given.wal_dir, error))?;
        let wal_dir = directory.as_ref().map(Directory::identity).transpose();
        let wal_dir = wal_dir.map_err(cannot("read the directory of the job log"))?;
        if let Some(wal_dir) = wal_dir.or(config.replicate.as_ref().map(|_| RunningServer::NO_DIRECTORY)) {
            let segment_bytes = config.wal.segment_bytes;
            let speaks_http = listeners.iter().any(|listener| listener.protocol() == Protocol::Http);
            let pid = process::id();
            let running =
                RunningServer { wal_dir, segment_bytes, speaks_http, pid, listen, tls_listen, http };
            signals.enable_restart(program.clone(), running).map_err(cannot("read signals"))?;
        }
        let (driver, fallback) = PreparedDriver::choose(config.io)?;
        Ok(Self {
            config,
            program,
            clock,
            began,
            listeners,
            process,
            is_address_ignored,
            signals,
            systemd,
            descriptors_max,
            user,
            found,
            watched_files,
            directory,
            database,
            driver,
            fallback,
        })
    }

    fn serve(self) -> Result<(), Box<dyn Error>> {
        report::start(&self);
        let Self { config, program, clock, began, listeners, mut signals, directory, driver, .. } = self;
        let Found { token, certificate, users, .. } = self.found;
        let host = host::facts(driver.name()).map_err(cannot("read the name of the machine"))?;
        // Before the job log is parsed, which may be damaged or forged, and before there are threads, which would keep their
        // rights.
        let mut needs = needs(&config, &listeners, &program);
        needs.watched.extend(replicate::files(self.database.as_ref()));
        sandbox::enter(&needs);
        log_writer::start().map_err(cannot("start the thread of the log"))?;
        let seed = host::random_word().map_err(cannot("read random numbers"))?;
        let mut engine = Engine::new(seed);
        engine.set_key_share(config.max_memory_bytes);
        let recovery_began = clock.now();
        let log = directory.as_ref().map(|from| recover(from, &config, &mut engine, &clock)).transpose()?;
        let recovery = if log.is_some() { clock.now().since(recovery_began) } else { Span::ZERO };
        report::limits(&config);
        let started = self.database.map(replicate::start).transpose();
        let (database, known) = started.map_err(cannot("start the thread of the database"))?.unzip();
        let disk =
            directory.map(Disk::new).transpose().map_err(cannot("start the threads of the job log"))?;
        // After the job log: clients should not connect to a server that ends because its log is refused.
        let keepalive = Keepalive::after(config.tcp_keepalive_s);
        listeners.iter().try_for_each(|listener| listener.set_keepalive(keepalive))?;
        listen(&listeners)?;
        listeners.iter().for_each(|listener| report::listener(listener, &config));
        self.systemd.ready(&status(&listeners, engine.jobs().len(), driver.name()));
        signals.notify_systemd(self.systemd);
        let access =
            HttpAccess { token: token.map(|file| file.token), allow_writes: config.http_allow_writes };
        let server_config = server::Config {
            users: users.map(|file| file.users),
            started: clock.now(),
            recovery,
            ..server_config(&config, &listeners, host, access, seed)
        };
        let replica = replicate::config(&config, &server_config.host.hostname);
        let replica = replica.map_err(cannot("read random numbers"))?;
        let forwarding =
            replica.as_ref().map(|replica| replicate::forwarding(&config, replica, self.descriptors_max));
        let forwarding = forwarding.transpose().map_err(cannot("start the thread that forwards"))?.flatten();
        let fences = reexec::inherited_fences();
        let server = match replica {
            Some(replica) => {
                replicate::report(&replica);
                let mut server = Server::with_replica(server_config, replica, clock.now());
                server.set_fences(fences);
                replicate::show_forwarded(&mut server, forwarding.as_ref());
                server
            }
            None => Server::with_wal(server_config, engine, log),
        };
        server.warn_of_recovered();
        report::ready(clock.now().since(began));
        let serves_clear_clients = listeners.iter().any(|listener| listener.kind().is_clear());
        let expects_headers = config.proxied != Proxied::default()
            || listeners.iter().any(|listener| listener.kind().is_forwarded);
        let (registered_bytes_max, connections_max) = (config.zero_copy_bytes_max, config.max_connections);
        let resources = Resources {
            listeners,
            signals,
            clock,
            disk,
            database,
            forwarding,
            connections_max,
            keepalive,
            registered_bytes_max,
            process: self.process,
            watched_files: self.watched_files,
        };
        let layers = Layers { certificate, expects_headers, serves_clear_clients };
        let exit = layers.run(driver, server, resources)?;
        let uptime = clock.now().since(began).as_secs();
        let (listeners, lock, fences) = match exit {
            Exit::Stopped => {
                info!("stopped after {uptime} s of uptime");
                return Ok(());
            }
            Exit::Restart(listeners, lock) => (listeners, lock, fences),
            Exit::Fenced(listeners) => (listeners, None, fences + 1),
        };
        info!("restarting in place after {uptime} s of uptime: executing {}", program.name());
        let known = known.map(|known| known.to_string());
        match program.restart(listeners, lock, fences, known).map_err(cannot("execute a program"))? {}
    }
}

/// Whether a start ends because of a signal, and not because something is wrong.
fn is_stop(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref().map_or(error, SettingError::error);
    error.downcast_ref().is_some_and(DirectoryError::is_stop)
        || error.downcast_ref().is_some_and(ImportError::is_stop)
        || error.downcast_ref().is_some_and(RecoveryError::is_stop)
        || error.downcast_ref().is_some_and(StopRequested::is)
}

/// The end of a start that a signal has stopped.
fn stopped_early() -> ExitCode {
    info!("stopped by a signal before the jobs were recovered; no job was changed");
    ExitCode::SUCCESS
}

/// Returns a function that says what the system has refused.
fn cannot<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> SystemError {
    move |error| SystemError { action, error: error.into() }
}

// docs/RUNBOOK.md lists these messages.
impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the system does not let the server {}: {}", self.action, text_of(&self.error))?;
        match to_errno(&self.error) {
            Errno::EMFILE | Errno::ENFILE => {
                write!(f, "; raise the limit of open files (ulimit -n, LimitNOFILE=)")
            }
            _ => Ok(()),
        }
    }
}

impl Error for SystemError {}

/// Raises the limit of open files as far as possible, and returns it.
fn descriptors_max() -> Result<u64, Box<dyn Error>> {
    let max = descriptors::raise_limit().map_err(cannot("raise its limit of open files"))?;
    // Otherwise the start fails at some file, and names that one.
    let has_room = descriptors::connections_within(max) > 0;
    if has_room { Ok(max) } else { Err(TooFewDescriptors(max).into()) }
}

/// Recovers the jobs in the directory, and returns the job log that continues there.
fn recover(
    directory: &Directory,
    config: &ServerConfig,
    engine: &mut Engine,
    clock: &Clock,
) -> Result<Wal, SettingError> {
    let now = clock.now();
    let source = &config.given.wal_dir;
    let refused = |error| SettingError::about(source, error);
    binlog_import::import(directory, config.wal).map_err(|error| SettingError::about(source, error))?;
    let segments = directory.segments().map_err(|error| refused(RecoveryError::of_directory(error)))?;
    let wal = directory.recover(config.wal, engine, now).map_err(refused)?;
    report::recovery(directory.path(), engine.jobs().len(), segments.len(), clock.now().since(now));
    Ok(wal)
}

fn server_config(
    config: &ServerConfig,
    listeners: &[Listener],
    host: HostFacts,
    http_access: HttpAccess,
    seed: u64,
) -> server::Config {
    server::Config {
        max_job_bytes: config.job_bytes_max,
        max_memory_bytes: config.max_memory_bytes,
        max_connections: config.max_connections,
        http_connections_max: descriptors::http_connections_max(),
        max_tubes: config.max_tubes,
        max_watches: config.max_watches,
        wal_segment_bytes: config.wal.segment_bytes,
        allow_foreign_protocols: config.allow_foreign_protocols,
        sub_second: config.sub_second,
        http_hosts: http_hosts(listeners, config, host.hostname.clone()),
        http_access,
        users: None,
        tube_rules: config.tube_rules.clone(),
        schedules: config.schedules.clone(),
        wal_dir: config.wal_dir.as_ref().map(|path| path.display().to_string()),
        metrics_prefix: config.metrics_prefix.clone(),
        metrics_tubes: config.metrics_tubes,
        started: Time::ZERO,
        recovery: Span::ZERO,
        seed,
        host,
    }
}

/// Lets clients connect. HTTP is first, so that a server that clients reach serves HTTP too, and does not end because it
/// cannot.
fn listen(listeners: &[Listener]) -> Result<(), ListenError> {
    for protocol in [Protocol::Http, Protocol::Beanstalk] {
        listeners.iter().filter(|listener| listener.protocol() == protocol).try_for_each(Listener::listen)?;
    }
    Ok(())
}

/// The status line of `systemctl status`.
fn status(listeners: &[Listener], jobs: usize, driver: &str) -> String {
    let names: Vec<String> = listeners.iter().map(Listener::local_name).collect();
    let jobs = Count(jobs as u64, "job");
    format!("listening on {}, recovered {jobs}, driver {driver}", names.join(" and "))
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
    let ServerConfig { wal_dir, file, http_token, auth, tls, .. } = config;
    let socket_dirs = listeners.iter().filter_map(Listener::file).map(directory_of).collect();
    let settings = file.iter().chain(http_token).cloned().collect();
    let certificate = tls.iter().flat_map(|tls| tls.files.paths()).map(Path::to_owned);
    let watched = auth.iter().cloned().chain(certificate).collect();
    let connects = config.replicate.is_some();
    let can_restart = connects || wal_dir.is_some();
    let restart = can_restart.then(|| Files { program: program.files(), settings });
    Needs { connects, log_dir: wal_dir.clone(), socket_dirs, watched, restart }
}

/// The addresses for clients without and with TLS, and for HTTP, that the configuration names. None where sockets from socket
/// activation replace it.
fn configured_addresses(inherited: &[Listener], config: &ServerConfig) -> [Option<String>; 3] {
    let is_activated = |is_of: fn(ListenerKind) -> bool| {
        let mut sockets = inherited.iter().filter(|listener| is_of(listener.kind()));
        !inherited.iter().any(Listener::is_from_restart) && sockets.next().is_some()
    };
    let listen = config.clear_address().filter(|_| !is_activated(ListenerKind::is_clear));
    let tls = config.tls.as_ref().and_then(|tls| tls.listen.clone());
    let is_tls_activated = is_activated(ListenerKind::is_tls);
    let http = config.http.clone().filter(|_| !is_activated(ListenerKind::is_http));
    let [listen, tls, http] = [listen, tls, http].map(|address| address.map(|address| address.to_string()));
    [listen, if is_tls_activated { Some(ACTIVATED.to_owned()) } else { tls }, http]
}

/// The listeners that the process has inherited, and those that are missing.
fn listeners(
    mut inherited: Vec<Listener>,
    config: &ServerConfig,
    user: Option<&User>,
) -> Result<Vec<Listener>, SettingError> {
    let (given, tls) = (&config.given, config.tls.as_ref());
    let mut listeners = Vec::new();
    let mut bind =
        |kind, is_of: fn(ListenerKind) -> bool, address: Option<Address>, access: &SocketAccess| {
            let is_inherited = inherited.iter().any(|listener| is_of(listener.kind()));
            if let Some(address) = address.filter(|_| !is_inherited) {
                let mut listener = Listener::bind(&address, access, user)?;
                listener.set_kind(kind);
                listeners.push(listener);
            }
            Ok::<_, ListenError>(())
        };
    bind(ListenerKind::CLEAR, ListenerKind::is_clear, config.clear_address(), &config.listen_access)
        .map_err(|error| SettingError::about(&given.listen, error))?;
    if let Some(tls) = tls {
        bind(ListenerKind::TLS, ListenerKind::is_tls, tls.listen.clone(), &tls.access)
            .map_err(|error| SettingError::about(&given.tls_listen, error))?;
    }
    let for_standbys = replicate::listen_address(config);
    bind(ListenerKind::FORWARDED, |kind| kind.is_forwarded, for_standbys, &SocketAccess::default()).map_err(
        |error| {
            let default = || "the port for standbys (--advertise)".to_owned();
            let origin = given.advertise.as_ref().map_or_else(default, ToString::to_string);
            SettingError::about([origin], error.of_advertised())
        },
    )?;
    bind(ListenerKind::HTTP, ListenerKind::is_http, config.http.clone(), &config.http_access)
        .map_err(|error| SettingError::about(&given.http, error))?;
    listeners.append(&mut inherited);
    // Clients first, as in the log lines of a start.
    listeners.sort_by_key(|listener| (listener.kind().is_http(), listener.kind().has_tls));
    let serves_https = tls.is_some_and(|tls| tls.serves_http);
    for listener in &mut listeners {
        let kind = listener.kind();
        let is_proxied = match kind {
            _ if kind.is_http() => config.proxied.http,
            ListenerKind { is_forwarded: true, .. } => false,
            ListenerKind { has_tls: true, .. } => config.proxied.tls_listen,
            _ => config.proxied.listen,
        };
        listener.set_kind(ListenerKind {
            has_tls: kind.has_tls || kind.is_http() && serves_https,
            is_proxied,
            ..kind
        });
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use super::*;
    use beanring::io::socket::SocketAccess;

    #[test]
    fn nobody_connects_before_http_is_served() {
        let bind = |port| {
            let address = Address::Tcp { host: "127.0.0.1".to_owned(), port };
            Listener::bind(&address, &SocketAccess::default(), None).expect("it is free")
        };
        let clients = bind(0);
        let mut http = bind(0);
        http.set_kind(ListenerKind::HTTP);
        let address: SocketAddr = http.local_name().parse().expect("a TCP address");
        let another = bind(address.port());
        another.listen().expect("the port is free");

        let address = clients.local_name();
        let listeners = [clients, http];
        assert!(listen(&listeners).is_err(), "another socket listens");
        assert!(TcpStream::connect(address).is_err());
    }
}
