//! The servers that are compared, and one of them running.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
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
use beanring_testkit::bench::logs::Directory;
use beanring_testkit::bench::machine::{Machine, first_line};
use beanring_testkit::bench::process::{Driver, Guarded, address};
use beanring_testkit::bench::stats::Stats;

const START_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// What cannot take its address ends within this time of its start.
const SETTLE: Duration = Duration::from_millis(30);
/// beanstalkd needs seconds for a large log.
const RESTART_MAX: Duration = Duration::from_secs(60);
/// Between attempts at a first answer, whose time is no more exact.
const RESTART_PAUSE: Duration = Duration::from_millis(1);

/// A server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ours(Driver),
    Beanstalkd,
    Redis,
    /// The driver without a queue behind it.
    Bare(Driver),
}

impl Kind {
    /// For people.
    pub fn name(self) -> String {
        match self {
            Kind::Ours(driver) => format!("beanring {}", driver.name()),
            Kind::Bare(driver) => format!("bare {}", driver.name()),
            Kind::Beanstalkd => "beanstalkd".to_owned(),
            Kind::Redis => "redis".to_owned(),
        }
    }

    fn version(self) -> Option<String> {
        match self {
            Kind::Ours(_) | Kind::Bare(_) => None,
            Kind::Beanstalkd => first_line("beanstalkd", &["-v"]),
            Kind::Redis => first_line("redis-server", &["--version"])
                .map(|line| line.split(" sha=").next().unwrap_or(&line).to_owned()),
        }
    }

    fn command(self, machine: &Machine, addr: SocketAddr, log: Option<&Directory>) -> Command {
        let on = |program: &str| machine.command(program, |(servers, _)| servers);
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let mut command = match self {
            Kind::Ours(driver) => {
                let mut command = on(env!("CARGO_BIN_EXE_beanring"));
                command.args(["-l", &host, "-p", &port, "--io", driver.name()]);
                command
            }
            Kind::Bare(driver) => {
                let mut command = on(env!("CARGO_BIN_EXE_beanring-bench"));
                command.args(["--bare-loop", driver.name(), "--addr", &addr.to_string()]);
                command
            }
            Kind::Beanstalkd => {
                let mut command = on("beanstalkd");
                command.args(["-l", &host, "-p", &port]);
                command
            }
            Kind::Redis => {
                let mut command = on("redis-server");
                command.args(["--bind", &host, "--port", &port, "--save", "", "--appendonly", "no"]);
                command.args(["--maxclients", "20000", "--io-threads", "1", "--daemonize", "no"]);
                command.args(["--loglevel", "warning"]);
                command
            }
        };
        command.args(log.map_or(Vec::new(), Directory::flags));
        command
    }
}

/// The servers that can be run here.
pub struct Peers {
    /// In the order of the tables.
    pub kinds: Vec<Kind>,
    /// What the foreign ones say that they are.
    pub versions: Vec<String>,
    /// The others, and why.
    pub left_out: Vec<(Kind, String)>,
}

impl Peers {
    /// Starts each once to see.
    pub fn find(options: &Options, bench: &mut Bench) -> Result<Peers, Failure> {
        let wanted = |driver: &Driver| options.drivers.is_empty() || options.drivers.contains(driver);
        let drivers: Vec<Driver> = Driver::value_variants().iter().copied().filter(wanted).collect();
        let ours = drivers.iter().map(|&driver| Kind::Ours(driver));
        let bare = drivers.iter().map(|&driver| Kind::Bare(driver));
        let mut peers = Peers { kinds: Vec::new(), versions: Vec::new(), left_out: Vec::new() };
        for kind in ours.chain([Kind::Beanstalkd, Kind::Redis]).chain(bare) {
            match bench.start(kind, None) {
                Ok(_) => peers.kinds.push(kind),
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) => {
                    eprintln!("left out: {}, because {failure}", kind.name());
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

/// A server that runs; dropping it ends it.
pub struct Server {
    kind: Kind,
    pub process: Guarded,
    pub addr: SocketAddr,
    begin: Instant,
    /// What it says.
    said: PathBuf,
}

impl Server {
    /// Starts one on the `nth` address, with a log where it is to have one.
    pub fn spawn(
        kind: Kind,
        machine: &Machine,
        nth: u32,
        directory: &Path,
        log: Option<&Directory>,
    ) -> Result<Server, Failure> {
        let addr = address(nth);
        let said = directory.join("server.stderr");
        let stderr = File::create(&said).map_err(|error| Failure::Write(said.clone(), error))?;
        let mut command = kind.command(machine, addr, log);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // redis looks for its files in the working directory.
        command.current_dir(directory);
        let begin = Instant::now();
        let child = command.spawn().map_err(|error| Failure::Start(kind.name(), error))?;
        Ok(Server { kind, process: Guarded(child), addr, begin, said })
    }

    /// Waits until it accepts connections.
    pub fn accept(mut self) -> Result<Server, Failure> {
        while self.begin.elapsed() < START_MAX {
            let accepts = TcpStream::connect_timeout(&self.addr, PAUSE).is_ok();
            sleep(if accepts { SETTLE } else { PAUSE });
            self.check()?;
            if accepts {
                return Ok(self);
            }
        }
        Err(Failure::Unreachable(self.kind.name()))
    }

    /// Waits for its first answer: that, and how long after its start it came. beanstalkd takes connections
    /// before it has read its log.
    pub fn first_stats(&mut self) -> Result<(Stats, Duration), Failure> {
        while self.begin.elapsed() < RESTART_MAX {
            match Stats::request(self.addr) {
                Ok(stats) => return Ok((stats, self.begin.elapsed())),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => sleep(RESTART_PAUSE),
                Err(error) => return Err(Failure::Stats(self.kind.name(), error)),
            }
            self.check()?;
        }
        Err(Failure::Unreachable(self.kind.name()))
    }

    /// A number out of what it says of itself.
    pub fn number(&self, key: &str) -> Result<u64, Failure> {
        let number = Stats::request(self.addr).and_then(|stats| stats.number(key));
        number.map_err(|error| Failure::Stats(self.kind.name(), error))
    }

    /// Ends it as an operator would.
    pub fn stop(mut self) -> Result<(), Failure> {
        let pid = Pid::from_raw(self.process.0.id().cast_signed());
        let signal = match self.kind {
            // It has no handler and ends on the spot by either; it inherits the other blocked.
            Kind::Beanstalkd => Signal::SIGKILL,
            _ => Signal::SIGTERM,
        };
        // Fails only where it has ended already.
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

    /// Whether it still runs.
    fn check(&mut self) -> Result<(), Failure> {
        match self.process.0.try_wait() {
            Ok(Some(_)) => Err(Failure::Ended(first_words(&self.said))),
            _ => Ok(()),
        }
    }
}

/// The first line of a file that says something.
pub fn first_words(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing").to_owned()
}
