//! The server in the fault.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::Failure;
use crate::proc::{Memory, Process};
use beanring_testkit::bench::logs::Directory;
use beanring_testkit::bench::machine::Machine;
use beanring_testkit::bench::process::{Driver, Guarded, address};
use beanring_testkit::bench::stats::Stats;

const START_MAX: Duration = Duration::from_secs(10);
const END_MAX: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
const SETTLE: Duration = Duration::from_millis(100);

/// How a server is started, beside its driver and its log.
#[derive(Clone, Default)]
pub struct Setup {
    pub flags: Vec<String>,
    /// It may open so many descriptors.
    pub descriptors: Option<u64>,
    pub environment: Vec<(String, String)>,
    /// A program that becomes the server.
    pub wrapper: Vec<String>,
}

/// The last line of what a server said.
fn last_words(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().last().unwrap_or("it said nothing").to_owned()
}

/// Has all threads of a process, or one thread, go before whatever else runs on the machine, where that is allowed: it is
/// not the machine that is looked at.
pub fn prefer(id: &str) {
    // Where it is refused, latencies say more about the machine, and the report how long the server waited for a core.
    let _ = Command::new("chrt").args(["--rr", "--all-tasks", "--pid", "1", id]).output();
}

/// A server that runs; dropping it ends it.
pub struct Server {
    pub driver: Driver,
    pub addr: SocketAddr,
    pub facts: Process,
    process: Guarded,
    /// What it says.
    said: PathBuf,
}

impl Server {
    /// Starts one on the `nth` address, and waits until it answers.
    pub fn start(
        driver: Driver,
        setup: &Setup,
        machine: &Machine,
        nth: u32,
        directory: &Path,
        log: Option<&Directory>,
    ) -> Result<Server, Failure> {
        let addr = address(nth);
        let said = directory.join(format!("server-{nth}.stderr"));
        let stderr = File::create(&said).map_err(|error| Failure::Write(said.clone(), error))?;
        let mut words = setup.wrapper.clone();
        if let Some(limit) = setup.descriptors {
            words.extend(["prlimit".to_owned(), format!("--nofile={limit}:{limit}")]);
        }
        words.push(env!("CARGO_BIN_EXE_beanring").to_owned());
        let mut command = machine.command(&words[0], |(servers, _)| servers);
        command.args(&words[1..]).args(["--io", driver.name(), "-l", &addr.ip().to_string()]);
        command.args(["-p", &addr.port().to_string()]).args(&setup.flags);
        command.args(log.map_or(Vec::new(), Directory::flags));
        command.envs(setup.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = command.spawn().map_err(|error| Failure::Start(words[0].clone(), error))?;
        let mut process = Guarded(child);
        let begin = Instant::now();
        // An answer and not just a connection: by then every program before it has become the server.
        while Stats::ask(addr).is_err() {
            if let Ok(Some(_)) = process.0.try_wait() {
                return Err(Failure::Ended(last_words(&said)));
            }
            if begin.elapsed() > START_MAX {
                return Err(Failure::Unreachable);
            }
            sleep(PAUSE);
        }
        let facts = Process::open(process.0.id())?;
        prefer(&process.0.id().to_string());
        // The connection of that answer is to be gone.
        sleep(SETTLE);
        Ok(Server { driver, addr, facts, process, said })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Fails if it has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.process.0.try_wait() {
            Ok(Some(_)) => Err(Failure::Ended(last_words(&self.said))),
            _ => Ok(()),
        }
    }

    pub fn signal(&self, signal: Signal) {
        // Fails only where it has ended, which shows elsewhere.
        let _ = kill(Pid::from_raw(self.pid().cast_signed()), signal);
    }

    /// How many descriptors it has open, without those of segments of a log, which come and go.
    pub fn descriptors(&self) -> Result<usize, Failure> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        let entries = entries.map_err(|error| Failure::Process(self.pid(), error))?.flatten();
        let is_segment = |path: PathBuf| path.to_string_lossy().contains("/log.");
        Ok(entries.filter(|entry| !fs::read_link(entry.path()).is_ok_and(is_segment)).count())
    }

    /// Memory now, and at most.
    pub fn memory(&self) -> Result<Memory, Failure> {
        self.facts.memory()
    }

    /// How long it was ready to run and had no core, since it began.
    pub fn waited_for_core(&self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).unwrap_or_default();
        let nanoseconds = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or(0))
    }

    /// A number out of `stats`.
    pub fn number(&self, key: &str) -> Result<u64, Failure> {
        Stats::ask(self.addr).and_then(|stats| stats.number(key)).map_err(Failure::Stats)
    }

    /// Whether somebody who comes now can connect.
    pub fn accepts(&self) -> bool {
        TcpStream::connect_timeout(&self.addr, Duration::from_secs(2)).is_ok()
    }

    /// Sends it these signals, of which one at least ends it, and waits for that.
    pub fn end(mut self, signals: &[Signal]) -> Result<(), Failure> {
        for &signal in signals {
            self.signal(signal);
        }
        let begin = Instant::now();
        while begin.elapsed() < END_MAX {
            if let Ok(Some(status)) = self.process.0.try_wait() {
                return match (status.code(), status.signal()) {
                    (Some(0), _) => Ok(()),
                    (_, Some(signal)) => Err(Failure::Unstopped(format!("signal {signal} killed it"))),
                    (code, None) => Err(Failure::Unstopped(format!("exit code {}", code.unwrap_or(-1)))),
                };
            }
            sleep(PAUSE);
        }
        Err(Failure::Unstopped(format!("it runs on after {} s", END_MAX.as_secs())))
    }
}
