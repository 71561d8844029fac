//! The environment of a fault: the server, the control client, and the results that the fault adds.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bounds::MemoryItem;
use crate::client::Client;
use crate::control::Control;
use crate::failure::Failure;
use crate::options::Options;
use crate::server::{Server, Setup};
use beanring_testkit::bench::logs::{Directory, Log, Place};
use beanring_testkit::bench::machine::Machine;
use beanring_testkit::bench::process::Driver;
use beanring_testkit::bench::signals::Signals;
use beanring_testkit::random::Random;

const PAUSE: Duration = Duration::from_millis(20);

/// The control client completes its current cycle in this time.
const PAUSE_SETTLES: Duration = Duration::from_millis(200);

/// How long a server may take to count new connections.
const COUNT_MAX: Duration = Duration::from_secs(30);

pub struct Context<'a> {
    pub server: &'a mut Server,
    pub control: &'a Control,
    pub options: &'a Options,
    pub random: Random,
    /// How long the fault lasts.
    pub length: Duration,
    pub begin: Instant,
    /// Memory that the server may use, in addition to what it uses at its start.
    pub memory_items: Vec<MemoryItem>,
    /// The limit of resident memory, if it is not the sum of these items.
    pub resident_bytes_max: Option<u64>,
    /// Remarks for the report.
    pub notes: Vec<String>,
    /// Parts that could not be run, and why.
    pub skipped: Vec<String>,
    /// Violations of a limit.
    pub broken: Vec<String>,
    /// Share of a core that the server used while the crowd was idle.
    pub idle_crowd_cpu: Option<f64>,
    pub servers: ServerFactory<'a>,
}

/// Starts further servers for a fault.
#[derive(Clone, Copy)]
pub struct ServerFactory<'a> {
    pub machine: &'a Machine,
    pub signals: &'a Signals,
    pub directory: &'a Path,
    pub logs: &'a Place,
    /// The first free address, of the ten that this fault has.
    pub nth: u32,
}

impl ServerFactory<'_> {
    pub fn start(
        &self,
        offset: u32,
        driver: Driver,
        setup: &Setup,
        log: Option<&Directory>,
    ) -> Result<Server, Failure> {
        Server::start(driver, setup, self.machine, self.nth + offset, self.directory, log)
    }

    /// Creates an empty job log for a further server.
    pub fn log(&self, log: Log) -> Result<Directory, Failure> {
        Ok(self.logs.fresh(log)?)
    }
}

impl Context<'_> {
    /// Returns whether the fault should continue. Fails if the run is interrupted or the server has ended.
    pub fn is_running(&mut self) -> Result<bool, Failure> {
        self.check()?;
        Ok(self.begin.elapsed() < self.length && !self.control.has_given_up())
    }

    /// Fails if the run is interrupted or the server has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        self.servers.signals.check()?;
        self.server.check()
    }

    pub fn pause(&mut self, pause: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        while begin.elapsed() < pause {
            self.check()?;
            sleep(PAUSE.min(pause));
        }
        Ok(())
    }

    /// Connects a client of the fault's own.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::connect(self.server.addr).map_err(|error| Failure::Client("connect", error))
    }

    /// Waits until the server counts `count` connections besides those of the control client and its own.
    pub fn await_connections(&mut self, count: u64) -> Result<(), Failure> {
        let begin = Instant::now();
        let expected = count + crate::control::CONNECTIONS + 1;
        loop {
            self.check()?;
            let counted = self.server.number("current-connections")?;
            if counted >= expected {
                return Ok(());
            }
            if begin.elapsed() > COUNT_MAX {
                self.broken.push(format!("the server counts {counted} connections, not {expected}"));
                return Ok(());
            }
            sleep(PAUSE);
        }
    }

    /// Measures the server's CPU time while the crowd is idle and the control client paused.
    pub fn measure_idle_crowd(&mut self, length: Duration) -> Result<(), Failure> {
        self.control.set_paused(true);
        let result = self.pause(PAUSE_SETTLES).and_then(|()| self.sample_idle_crowd(length));
        self.control.set_paused(false);
        result
    }

    fn sample_idle_crowd(&mut self, length: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        let before = self.server.facts.cpu()?;
        self.pause(length)?;
        let used = self.server.facts.cpu()?.since(before).total;
        self.idle_crowd_cpu = Some(used.as_secs_f64() / begin.elapsed().as_secs_f64());
        Ok(())
    }
}
