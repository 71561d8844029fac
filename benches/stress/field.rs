//! Where a fault rages: the server, the control client beside it, and what the fault tells about itself.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bounds::Term;
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

/// The control client ends what it has begun.
const HOLD: Duration = Duration::from_millis(200);

/// How long a server may take to count what was done to it.
const COUNT_MAX: Duration = Duration::from_secs(30);

/// What a fault works with.
pub struct Field<'a> {
    pub server: &'a mut Server,
    pub control: &'a Control,
    pub options: &'a Options,
    pub random: Random,
    /// How long it lasts.
    pub length: Duration,
    pub begin: Instant,
    /// What the server may need memory for, beside what it needs to begin with.
    pub terms: Vec<Term>,
    /// What it may have resident in all, where that is not what the terms add up to.
    pub resident_bytes_max: Option<u64>,
    /// What is worth knowing.
    pub notes: Vec<String>,
    /// What could not be done, and why.
    pub skipped: Vec<String>,
    /// What is wrong.
    pub broken: Vec<String>,
    /// Share of a core that the server used while the crowd was there and did nothing.
    pub standing_cpu: Option<f64>,
    pub spare: Spare<'a>,
}

/// What more servers are started from.
#[derive(Clone, Copy)]
pub struct Spare<'a> {
    pub machine: &'a Machine,
    pub signals: &'a Signals,
    pub directory: &'a Path,
    pub logs: &'a Place,
    /// The first address that is free, of the ten that this fault has.
    pub nth: u32,
}

impl Spare<'_> {
    /// One more server.
    pub fn start(
        &self,
        offset: u32,
        driver: Driver,
        setup: &Setup,
        log: Option<&Directory>,
    ) -> Result<Server, Failure> {
        Server::start(driver, setup, self.machine, self.nth + offset, self.directory, log)
    }

    /// An empty log for it.
    pub fn log(&self, log: Log) -> Result<Directory, Failure> {
        Ok(self.logs.fresh(log)?)
    }
}

impl Field<'_> {
    /// Whether it is still to last; fails where it cannot.
    pub fn rages(&mut self) -> Result<bool, Failure> {
        self.check()?;
        Ok(self.begin.elapsed() < self.length && !self.control.has_given_up())
    }

    /// Fails where the run is to end or the server has ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        self.spare.signals.check()?;
        self.server.check()
    }

    /// Lets some time go by.
    pub fn pause(&mut self, pause: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        while begin.elapsed() < pause {
            self.check()?;
            sleep(PAUSE.min(pause));
        }
        Ok(())
    }

    /// A connection of the fault's own.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::connect(self.server.addr).map_err(|error| Failure::Client("connect", error))
    }

    /// Waits until the server counts so many connections more than those of the control client and its own.
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
                self.broken.push(format!("{counted} connections are counted, not {expected}"));
                return Ok(());
            }
            sleep(PAUSE);
        }
    }

    /// What the server uses for so long while the crowd stands there, and the control client does nothing.
    pub fn watch_standing(&mut self, length: Duration) -> Result<(), Failure> {
        self.control.hold(true);
        let result = self.pause(HOLD).and_then(|()| self.measure_standing(length));
        self.control.hold(false);
        result
    }

    fn measure_standing(&mut self, length: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        let before = self.server.facts.cpu()?;
        self.pause(length)?;
        let used = self.server.facts.cpu()?.since(before).total;
        self.standing_cpu = Some(used.as_secs_f64() / begin.elapsed().as_secs_f64());
        Ok(())
    }
}
