//! The server under test.

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

/// How a server is started, apart from its driver and its job log.
#[derive(Clone, Default)]
pub struct Setup {
    pub flags: Vec<String>,
    /// Limit of open descriptors.
    pub descriptors: Option<u64>,
    pub environment: Vec<(String, String)>,
    /// A program that becomes the server.
    pub wrapper: Vec<String>,
}

/// Returns the last line that a server has printed.
fn last_words(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().last().unwrap_or("no output").to_owned()
}

/// Raises the scheduling priority of a process or a thread, if the kernel permits it: the test measures the server, not
/// a busy machine.
pub fn prefer(id: &str) {
    // If the kernel refuses, latencies include the machine's load. The report shows how long the server waited for a
    // core.
    let _ = Command::new("chrt").args(["--rr", "--all-tasks", "--pid", "1", id]).output();
}

/// A running server. It is stopped when the value is dropped.
pub struct Server {
    pub driver: Driver,
    pub addr: SocketAddr,
    pub facts: Process,
    process: Guarded,
    /// The file with its output.
    stderr_path: PathBuf,
}

impl Server {
    /// Starts a server on the `nth` address and waits until it replies.
    pub fn start(
        driver: Driver,
        setup: &Setup,
        machine: &Machine,
        nth: u32,
        directory: &Path,
        log: Option<&Directory>,
    ) -> Result<Server, Failure> {
        let addr = address(nth);
        let stderr_path = directory.join(format!("server-{nth}.stderr"));
        let stderr =
            File::create(&stderr_path).map_err(|error| Failure::Write(stderr_path.clone(), error))?;
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
        // Waits for a reply, not just for a connection: by then every wrapper program has become the server.
        while Stats::request(addr).is_err() {
            if let Ok(Some(_)) = process.0.try_wait() {
                return Err(Failure::Ended(last_words(&stderr_path)));
            }
            if begin.elapsed() > START_MAX {
                return Err(Failure::Unreachable);
            }
            sleep(PAUSE);
        }
        let facts = Process::open(process.0.id())?;
        prefer(&process.0.id().to_string());
        // The connection of that reply must be gone before the test starts.
        sleep(SETTLE);
        Ok(Server { driver, addr, facts, process, stderr_path })
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Fails if the server has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.process.0.try_wait() {
            Ok(Some(_)) => Err(Failure::Ended(last_words(&self.stderr_path))),
            _ => Ok(()),
        }
    }

    pub fn signal(&self, signal: Signal) {
        // This fails only if the process has ended, which the caller finds out elsewhere.
        let _ = kill(Pid::from_raw(self.pid().cast_signed()), signal);
    }

    /// Returns the number of open descriptors, without those of log segments, which come and go.
    pub fn descriptors(&self) -> Result<usize, Failure> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid()));
        let entries = entries.map_err(|error| Failure::Process(self.pid(), error))?.flatten();
        let is_segment = |path: PathBuf| path.to_string_lossy().contains("/log.");
        Ok(entries.filter(|entry| !fs::read_link(entry.path()).is_ok_and(is_segment)).count())
    }

    /// Returns resident memory now, and its peak.
    pub fn memory(&self) -> Result<Memory, Failure> {
        self.facts.memory()
    }

    /// Returns how long the server has been ready to run without a core, since its start.
    pub fn waited_for_core(&self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).unwrap_or_default();
        let nanoseconds = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or(0))
    }

    /// Returns a number of `stats`.
    pub fn number(&self, key: &str) -> Result<u64, Failure> {
        Stats::request(self.addr).and_then(|stats| stats.number(key)).map_err(Failure::Stats)
    }

    /// Returns whether a new client can connect.
    pub fn accepts(&self) -> bool {
        TcpStream::connect_timeout(&self.addr, Duration::from_secs(2)).is_ok()
    }

    /// Sends signals, of which at least one ends the server, and waits for its end.
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
