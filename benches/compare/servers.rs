//! The servers of the comparison, and one that runs.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::Failure;
use crate::measure::Bench;
use crate::options::Options;
use crate::transport::{Cable, Endpoint, Transport};
use beanring_testkit::bench::logs::Directory;
use beanring_testkit::bench::machine::{Machine, first_line};
use beanring_testkit::bench::process::{Driver, Guarded};
use beanring_testkit::bench::stats::Stats;
use beanring_testkit::certificates::{Certificates, Pair};

const START_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// A server that cannot use its address ends within this time of its start.
const SETTLE: Duration = Duration::from_millis(30);
/// beanstalkd needs seconds for a large log.
const RESTART_MAX: Duration = Duration::from_secs(60);
/// Time between attempts at a first reply, which is the resolution of its time.
const RESTART_PAUSE: Duration = Duration::from_millis(1);

/// The program of the crate `bstkd`.
const BEANSTALKD_RS: &str = "beanstalkd-rs";
/// It takes certificates from this file alone, in the working directory.
const BEANSTALKD_RS_CONFIG: &str = "beanstalkd-rs.toml";

/// A server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ours(Driver),
    Beanstalkd,
    /// The crate `bstkd`.
    BeanstalkdRs,
    Redis,
    /// The no-op baseline: the driver without a queue behind it.
    Bare(Driver),
}

impl Kind {
    /// Returns the name.
    pub fn name(self) -> String {
        match self {
            Kind::Ours(driver) => format!("beanring {}", driver.name()),
            Kind::Bare(driver) => format!("no-op {}", driver.name()),
            Kind::Beanstalkd => "beanstalkd".to_owned(),
            Kind::BeanstalkdRs => BEANSTALKD_RS.to_owned(),
            Kind::Redis => "redis".to_owned(),
        }
    }

    fn version(self) -> Option<String> {
        match self {
            Kind::Ours(_) | Kind::Bare(_) => None,
            Kind::Beanstalkd => first_line("beanstalkd", &["-v"]),
            Kind::BeanstalkdRs => first_line(BEANSTALKD_RS, &["-v"]),
            Kind::Redis => first_line("redis-server", &["--version"])
                .map(|line| line.split(" sha=").next().unwrap_or(&line).to_owned()),
        }
    }

    fn command(
        self,
        place: &Place<'_>,
        endpoint: &Endpoint,
        log: Option<&Directory>,
        certificates: Option<&Certificates>,
    ) -> Command {
        let on = |program: &str| place.command(program);
        let mut command = match self {
            Kind::Ours(driver) => {
                let mut command = on(env!("CARGO_BIN_EXE_beanring"));
                match certificates {
                    None => command.args(endpoint.flags()),
                    Some(Certificates { server, .. }) => command
                        .args(["-l", "none", "--tls-listen", &endpoint.to_string(), "--tls-cert"])
                        .arg(&server.certificate)
                        .arg("--tls-key")
                        .arg(&server.key),
                };
                command.args(["--io", driver.name()]);
                command
            }
            Kind::Bare(driver) => {
                let mut command = on(env!("CARGO_BIN_EXE_beanring-bench"));
                command.args(["--baseline", driver.name(), "--addr", &endpoint.to_string()]);
                command
            }
            Kind::Beanstalkd => {
                let mut command = on("beanstalkd");
                command.args(endpoint.flags());
                command
            }
            Kind::BeanstalkdRs => {
                let mut command = on(BEANSTALKD_RS);
                match certificates {
                    None => command.args(endpoint.flags()),
                    Some(_) => command.args(["--config", BEANSTALKD_RS_CONFIG]),
                };
                command
            }
            Kind::Redis => {
                let mut command = on("redis-server");
                add_redis_flags(&mut command, endpoint, certificates);
                command
            }
        };
        command.args(log.map_or(Vec::new(), Directory::flags));
        command
    }
}

fn add_redis_flags(command: &mut Command, endpoint: &Endpoint, certificates: Option<&Certificates>) {
    if let Endpoint::Tcp(addr) = endpoint {
        let port = if certificates.is_some() { "--tls-port" } else { "--port" };
        command.args(["--bind", &addr.ip().to_string(), port, &addr.port().to_string()]);
    }
    if let Some(Certificates { server, .. }) = certificates {
        command.args(["--port", "0", "--tls-auth-clients", "no", "--tls-cert-file"]);
        command.arg(&server.certificate).arg("--tls-key-file").arg(&server.key);
    }
    command.args(["--save", "", "--appendonly", "no"]);
    command.args(["--maxclients", "20000", "--io-threads", "1", "--daemonize", "no"]);
    command.args(["--loglevel", "warning"]);
}

/// Returns the configuration file of beanstalkd-rs for TLS at this endpoint.
fn beanstalkd_rs_config(endpoint: &Endpoint, Certificates { server, .. }: &Certificates) -> String {
    let Pair { certificate, key } = server;
    format!("[[listener]]\naddr = \"{endpoint}\"\ntls = true\n[tls]\ncert = {certificate:?}\nkey = {key:?}\n")
}

/// Where servers run.
pub struct Place<'a> {
    pub machine: &'a Machine,
    /// The cable to the servers' network namespace, if they are in one.
    pub cable: Option<&'a Cable>,
}

impl Place<'_> {
    /// Returns a command that runs a server here.
    fn command(&self, program: &str) -> Command {
        let on_core = |program: &str| self.machine.command(program, |(servers, _)| servers);
        let Some(cable) = self.cable else { return on_core(program) };
        let [ip, words @ ..] = cable.prefix();
        let mut command = on_core(ip);
        command.args(words).arg(program);
        command
    }
}

/// The servers that can be run here.
pub struct Peers {
    /// In the order of the tables.
    pub kinds: Vec<Kind>,
    /// Version lines of the other servers.
    pub versions: Vec<String>,
    /// The servers that cannot be run, and why.
    pub left_out: Vec<(Kind, String)>,
}

impl Peers {
    /// Starts each server once to find out.
    pub fn find(options: &Options, bench: &mut Bench) -> Result<Peers, Failure> {
        let wanted = |driver: &Driver| options.drivers.is_empty() || options.drivers.contains(driver);
        let drivers: Vec<Driver> = Driver::value_variants().iter().copied().filter(wanted).collect();
        let ours = drivers.iter().map(|&driver| Kind::Ours(driver));
        let bare = drivers.iter().map(|&driver| Kind::Bare(driver));
        // Its build takes minutes, so a short run leaves it out.
        let others: &[Kind] = match options.short {
            true => &[Kind::Beanstalkd, Kind::Redis],
            false => &[Kind::Beanstalkd, Kind::BeanstalkdRs, Kind::Redis],
        };
        let mut peers = Peers { kinds: Vec::new(), versions: Vec::new(), left_out: Vec::new() };
        for kind in ours.chain(others.iter().copied()).chain(bare) {
            match bench.start(kind, Transport::Loopback, None) {
                Ok(_) => peers.kinds.push(kind),
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) => {
                    eprintln!("skipped: {}, because {failure}", kind.name());
                    peers.left_out.push((kind, failure.to_string()));
                }
            }
        }
        if !peers.kinds.iter().any(|kind| matches!(kind, Kind::Ours(_))) {
            let whys = peers
                .left_out
                .iter()
                .map(|(kind, why)| format!("{}: {why}", kind.name()))
                .collect::<Vec<_>>();
            return Err(Failure::NoDriver(whys.join("; ")));
        }
        peers.versions = peers.kinds.iter().filter_map(|kind| kind.version()).collect();
        Ok(peers)
    }
}

/// A running server. It is stopped when the value is dropped.
pub struct Server {
    kind: Kind,
    pub process: Guarded,
    pub endpoint: Endpoint,
    begin: Instant,
    /// The file with its output.
    stderr_path: PathBuf,
}

impl Server {
    /// Starts a server, with a job log if `log` is given.
    pub fn spawn(
        kind: Kind,
        place: &Place<'_>,
        endpoint: Endpoint,
        directory: &Path,
        log: Option<&Directory>,
        certificates: Option<&Certificates>,
    ) -> Result<Server, Failure> {
        if let (Kind::BeanstalkdRs, Some(certificates)) = (kind, certificates) {
            let path = directory.join(BEANSTALKD_RS_CONFIG);
            let written = std::fs::write(&path, beanstalkd_rs_config(&endpoint, certificates));
            written.map_err(|error| Failure::Write(path, error))?;
        }
        let stderr_path = directory.join("server.stderr");
        let stderr =
            File::create(&stderr_path).map_err(|error| Failure::Write(stderr_path.clone(), error))?;
        let mut command = kind.command(place, &endpoint, log, certificates);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // redis and beanstalkd-rs look for their files in the working directory.
        command.current_dir(directory);
        let begin = Instant::now();
        let child = command.spawn().map_err(|error| Failure::Start(kind.name(), error))?;
        Ok(Server { kind, process: Guarded(child), endpoint, begin, stderr_path })
    }

    /// Waits until the server accepts connections.
    pub fn accept(mut self) -> Result<Server, Failure> {
        while self.begin.elapsed() < START_MAX {
            let accepts = self.endpoint.accepts(PAUSE);
            sleep(if accepts { SETTLE } else { PAUSE });
            self.check()?;
            if accepts {
                return Ok(self);
            }
        }
        Err(Failure::Unreachable(self.kind.name()))
    }

    /// Waits for the first reply. Returns it, and the time since the start. beanstalkd accepts connections before it
    /// has read its log.
    pub fn first_stats(&mut self) -> Result<(Stats, Duration), Failure> {
        while self.begin.elapsed() < RESTART_MAX {
            match self.endpoint.stats() {
                Ok(stats) => return Ok((stats, self.begin.elapsed())),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => sleep(RESTART_PAUSE),
                Err(error) => return Err(Failure::Stats(self.kind.name(), error)),
            }
            self.check()?;
        }
        Err(Failure::Unreachable(self.kind.name()))
    }

    /// Returns a number of `stats`.
    pub fn number(&self, key: &str) -> Result<u64, Failure> {
        let number = self.endpoint.stats().and_then(|stats| stats.number(key));
        number.map_err(|error| Failure::Stats(self.kind.name(), error))
    }

    /// Stops the server as an operator would.
    pub fn stop(mut self) -> Result<(), Failure> {
        let pid = Pid::from_raw(self.process.0.id().cast_signed());
        let signal = match self.kind {
            // beanstalkd handles neither signal and ends at once by either. It inherits the other one blocked.
            Kind::Beanstalkd => Signal::SIGKILL,
            _ => Signal::SIGTERM,
        };
        // This fails only if the process has already ended.
        let _ = kill(pid, signal);
        let begin = Instant::now();
        while begin.elapsed() < START_MAX {
            if matches!(self.process.0.try_wait(), Ok(Some(_))) {
                return Ok(());
            }
            sleep(PAUSE);
        }
        Err(Failure::Unstopped(self.kind.name()))
    }

    /// Fails if the server has ended.
    fn check(&mut self) -> Result<(), Failure> {
        match self.process.0.try_wait() {
            Ok(Some(_)) => Err(Failure::Ended(first_words(&self.stderr_path))),
            _ => Ok(()),
        }
    }
}

/// Returns the first line of a file that is not empty.
pub fn first_words(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no output").to_owned()
}
