//! Runs the faults one at a time, and checks the server after each.

use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, gettid};

use crate::bounds::{self, IDLE_CPU, LATENCY_P99, MemoryItem};
use crate::client::{Client, put};
use crate::context::{Context, ServerFactory};
use crate::control::Control;
use crate::failure::Failure;
use crate::faults::Fault;
use crate::options::Options;
use crate::record::{Tally, ms};
use crate::server::{Server, Setup};
use beanring_testkit::bench::logs::Place;
use beanring_testkit::bench::machine::{Machine, first_line};
use beanring_testkit::bench::process::Driver;
use beanring_testkit::bench::signals::Signals;
use beanring_testkit::bench::stats::Stats;
use beanring_testkit::random::Random;

/// Addresses that each fault may use.
const SERVERS_MAX: u32 = 10;

/// How long a server may take to release what the fault has left.
const LET_GO_MAX: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(20);

/// A high latency is the server's only if neither the server nor the control client had to wait for a core. So 99 of
/// 100 of the client's own pauses must end within this time, and the server may wait for a core for at most this share
/// of the fault. (The server's core also runs the kernel's work for it and for the network.)
const LATENESS_QUIET_MS: f64 = 10.0;
const CORE_WAIT_QUIET: f64 = 0.1;

/// How often a fault is tried on a busy machine.
const TRIES: u32 = 3;

/// The result of a fault.
pub struct Outcome {
    pub fault: &'static str,
    pub driver: Driver,
    pub seconds: f64,
    pub tally: Tally,
    pub memory_items: Vec<MemoryItem>,
    resident_bytes_max: Option<u64>,
    pub rss_kib_begin: u64,
    pub rss_kib_peak: u64,
    pub rss_kib_end: u64,
    pub idle_crowd_cpu: Option<f64>,
    pub idle_cpu: f64,
    pub descriptors_begin: usize,
    pub descriptors_end: usize,
    /// The share of the fault's duration for which the server waited for a core.
    pub core_wait: f64,
    /// Load average of the last minute, at the end.
    pub load: String,
    pub tries: u32,
    pub notes: Vec<String>,
    pub skipped: Vec<String>,
    pub broken: Vec<String>,
}

impl Outcome {
    /// Memory that the server may use, in KiB.
    pub fn rss_kib_max(&self) -> u64 {
        let sum = self.rss_kib_begin + bounds::sum(&self.memory_items) / 1024;
        self.resident_bytes_max.map_or(sum, |bytes| bytes / 1024)
    }

    /// Returns whether a latency was too high while the machine was busy.
    fn is_doubtful(&self) -> bool {
        let is_late = ms(&self.tally.latencies, 0.99) > LATENCY_P99.as_secs_f64() * 1000.0;
        let is_busy = ms(&self.tally.lateness, 0.99) > LATENESS_QUIET_MS || self.core_wait > CORE_WAIT_QUIET;
        is_late && is_busy && self.broken.len() == 1
    }
}

/// Starts servers and injects faults.
pub struct Bench<'a> {
    machine: &'a Machine,
    signals: &'a Signals,
    directory: &'a Path,
    /// Places of the job log of the server under test, and of further servers.
    logs: &'a Place,
    spare_logs: &'a Place,
    options: &'a Options,
    started: u32,
}

impl<'a> Bench<'a> {
    pub fn new(
        machine: &'a Machine,
        signals: &'a Signals,
        directory: &'a Path,
        [logs, spare_logs]: [&'a Place; 2],
        options: &'a Options,
    ) -> Bench<'a> {
        Bench { machine, signals, directory, logs, spare_logs, options, started: 0 }
    }

    /// Runs all faults under all available drivers.
    pub fn run(&mut self, faults: &[&dyn Fault], drivers: &[Driver]) -> Result<Vec<Outcome>, Failure> {
        self.stay_off_the_server();
        let (mut outcomes, mut refusals) = (Vec::new(), Vec::new());
        for (number, &driver) in drivers.iter().enumerate() {
            let servers = self.server_factory();
            match servers.start(0, driver, &Setup::default(), None) {
                Ok(server) => drop(server),
                Err(failure) => {
                    eprintln!("skipped: {}, because {failure}", driver.name());
                    refusals.push(format!("{}: {failure}", driver.name()));
                    continue;
                }
            }
            for fault in faults {
                let outcome = self.try_fault(*fault, driver, number == 0)?;
                eprintln!("{}", progress(&outcome));
                outcomes.push(outcome);
            }
            if self.options.short && self.options.drivers.is_empty() {
                break;
            }
        }
        if outcomes.is_empty() { Err(Failure::NoDriver(refusals.join("; "))) } else { Ok(outcomes) }
    }

    /// Pins this process and its children to a core that the servers do not use.
    fn stay_off_the_server(&self) {
        if let Some((_, load)) = self.machine.pins {
            let mut cores = CpuSet::new();
            let moved = cores.set(load).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
            if let Err(errno) = moved {
                eprintln!("the load is not pinned: {errno}");
            }
        }
    }

    fn server_factory(&mut self) -> ServerFactory<'a> {
        let nth = self.started * SERVERS_MAX + 1;
        self.started += 1;
        let Bench { machine, signals, directory, spare_logs: logs, .. } = *self;
        ServerFactory { machine, signals, directory, logs, nth }
    }

    /// Runs one fault, again if the machine was too busy.
    fn try_fault(&mut self, fault: &dyn Fault, driver: Driver, is_first: bool) -> Result<Outcome, Failure> {
        let mut tries = 1;
        loop {
            self.signals.check()?;
            let mut outcome = match self.fault(fault, driver, is_first) {
                Ok(outcome) => outcome,
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) => Outcome::of_failure(fault, driver, &failure),
            };
            outcome.tries = tries;
            if !outcome.is_doubtful() {
                return Ok(outcome);
            }
            if tries == TRIES {
                if self.options.short {
                    // The test is about the server's behavior. It does not fail because the machine is busy.
                    outcome.notes.append(&mut outcome.broken);
                }
                return Ok(outcome);
            }
            eprintln!("{}; the machine is busy: trying again", progress(&outcome));
            tries += 1;
        }
    }

    fn fault(&mut self, fault: &dyn Fault, driver: Driver, is_first: bool) -> Result<Outcome, Failure> {
        let servers = self.server_factory();
        let setup = match fault.setup(self.options, self.directory) {
            Ok(setup) => setup,
            Err(why) => return Ok(Outcome::skipped(fault, driver, why)),
        };
        let directory = fault.log().map(|log| self.logs.fresh(log)).transpose()?;
        let mut server = servers.start(0, driver, &setup, directory.as_ref())?;
        let descriptors_begin = server.descriptors()?;
        let rss_kib_begin = server.memory()?.rss_kib;
        let control = Control::start(server.addr, self.options.seed)
            .map_err(|error| Failure::Client("connect", error))?;
        let mut memory_items = bounds::fixed(fault.log().is_some());
        memory_items.extend(bounds::control());
        let mut context = Context {
            server: &mut server,
            control: &control,
            options: self.options,
            random: Random::new(self.options.seed),
            length: Duration::from_secs_f64(fault.seconds(self.options, is_first)),
            begin: Instant::now(),
            memory_items,
            resident_bytes_max: None,
            notes: Vec::new(),
            skipped: Vec::new(),
            broken: Vec::new(),
            idle_crowd_cpu: None,
            servers,
        };
        context.inject(fault)?;
        context.pause(Duration::from_millis(self.options.scale(1000, 300)))?;
        let Context {
            begin, memory_items, resident_bytes_max, notes, skipped, broken, idle_crowd_cpu, ..
        } = context;
        let seconds = begin.elapsed().as_secs_f64();
        let tally = control.finish();
        server.check()?;
        let core_wait = server.waited_for_core().as_secs_f64() / seconds;
        let mut outcome = Outcome {
            fault: fault.name(),
            driver,
            seconds,
            tally,
            memory_items,
            resident_bytes_max,
            rss_kib_begin,
            rss_kib_peak: 0,
            rss_kib_end: 0,
            idle_crowd_cpu,
            idle_cpu: 0.0,
            descriptors_begin,
            descriptors_end: 0,
            core_wait,
            load: load(),
            tries: 1,
            notes,
            skipped,
            broken,
        };
        self.look(fault, server, &mut outcome)?;
        Ok(outcome)
    }

    /// Checks what the fault has left in the server, and that the server stops as it should.
    fn look(&self, fault: &dyn Fault, server: Server, outcome: &mut Outcome) -> Result<(), Failure> {
        let begin = Instant::now();
        loop {
            self.signals.check()?;
            outcome.descriptors_end = server.descriptors()?;
            let kept = leftovers(&server)?;
            if outcome.descriptors_end == outcome.descriptors_begin && kept.is_empty() {
                break;
            }
            if begin.elapsed() > LET_GO_MAX {
                outcome.broken.extend(kept);
                break;
            }
            sleep(PAUSE);
        }
        let length = Duration::from_millis(self.options.scale(3000, 1000));
        sleep(length / 3);
        let (begin, before) = (Instant::now(), server.facts.cpu()?);
        sleep(length);
        let used = server.facts.cpu()?.since(before).total;
        outcome.idle_cpu = used.as_secs_f64() / begin.elapsed().as_secs_f64();
        let memory = server.memory()?;
        (outcome.rss_kib_peak, outcome.rss_kib_end) = (memory.peak_rss_kib, memory.rss_kib);
        outcome.judge();
        if !fault.drains()
            && let Err(why) = answers(&server)
        {
            outcome.broken.push(why);
        }
        if let Err(failure) = server.end(fault.end()) {
            outcome.broken.push(failure.to_string());
        }
        Ok(())
    }
}

impl Context<'_> {
    /// Lowers the priority of the fault's clients below the server and the control client.
    fn inject(&mut self, fault: &dyn Fault) -> Result<(), Failure> {
        let raging = || {
            first_line("renice", &["-n", "19", "-p", &gettid().to_string()]);
            fault.inject(self)
        };
        thread::scope(|scope| {
            scope.spawn(raging).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Outcome {
    fn empty(fault: &dyn Fault, driver: Driver) -> Outcome {
        Outcome {
            fault: fault.name(),
            driver,
            seconds: 0.0,
            tally: Tally::default(),
            memory_items: Vec::new(),
            resident_bytes_max: None,
            rss_kib_begin: 0,
            rss_kib_peak: 0,
            rss_kib_end: 0,
            idle_crowd_cpu: None,
            idle_cpu: 0.0,
            descriptors_begin: 0,
            descriptors_end: 0,
            core_wait: 0.0,
            load: load(),
            tries: 1,
            notes: Vec::new(),
            skipped: Vec::new(),
            broken: Vec::new(),
        }
    }

    fn of_failure(fault: &dyn Fault, driver: Driver, failure: &Failure) -> Outcome {
        Outcome { broken: vec![failure.to_string()], ..Outcome::empty(fault, driver) }
    }

    fn skipped(fault: &dyn Fault, driver: Driver, why: String) -> Outcome {
        Outcome { skipped: vec![why], ..Outcome::empty(fault, driver) }
    }

    /// Returns whether the fault was injected.
    pub fn was_run(&self) -> bool {
        self.seconds > 0.0
    }

    fn judge(&mut self) {
        let mut broken = Vec::new();
        if !self.tally.is_whole() {
            let violations: Vec<String> = self.tally.violations.iter().map(ToString::to_string).collect();
            broken.push(format!("control: {} lost; {}", self.tally.lost, violations.join("; ")));
        }
        let p99 = ms(&self.tally.latencies, 0.99);
        if p99 > LATENCY_P99.as_secs_f64() * 1000.0 {
            broken.push(format!("control p99 {p99:.1} ms"));
        }
        if self.rss_kib_peak > self.rss_kib_max() {
            broken.push(format!("{} KiB resident, {} allowed", self.rss_kib_peak, self.rss_kib_max()));
        }
        if self.idle_cpu >= IDLE_CPU {
            broken.push(format!("an idle server used {:.1} % of a core", self.idle_cpu * 100.0));
        }
        if self.descriptors_begin != self.descriptors_end {
            broken.push(format!("{} descriptors, {} before", self.descriptors_end, self.descriptors_begin));
        }
        self.broken.extend(broken);
    }
}

/// Returns counters that clients of the fault have left behind.
fn leftovers(server: &Server) -> Result<Vec<String>, Failure> {
    let stats = Stats::request(server.addr).map_err(Failure::Stats)?;
    let expected = [
        ("current-connections", 1),
        ("current-producers", 0),
        ("current-workers", 0),
        ("current-waiting", 0),
        ("current-jobs-reserved", 0),
    ];
    let mut kept = Vec::new();
    for (key, count) in expected {
        let counted = stats.number(key).map_err(Failure::Stats)?;
        if counted != count {
            kept.push(format!("{key} is {counted}"));
        }
    }
    Ok(kept)
}

/// Checks that a new client is served.
fn answers(server: &Server) -> Result<(), String> {
    let whole_life = || -> std::io::Result<Vec<String>> {
        let mut client = Client::connect(server.addr)?;
        let mut lines = Vec::new();
        for command in [&b"use after\r\n"[..], b"watch after\r\n", b"ignore default\r\n"] {
            lines.push(client.request(command)?.line);
        }
        lines.push(
            client.request(&put(0, 0, 60, b"after"))?.line.split(' ').next().unwrap_or_default().into(),
        );
        let job = client.request(b"reserve-with-timeout 1\r\n")?;
        let id = job.number(1).unwrap_or(0);
        lines.push(client.request(format!("delete {id}\r\n").as_bytes())?.line);
        Ok(lines)
    };
    match whole_life() {
        Ok(lines) if lines == ["USING after", "WATCHING 2", "WATCHING 1", "INSERTED", "DELETED"] => Ok(()),
        Ok(lines) => Err(format!("a new client received {lines:?}")),
        Err(error) => Err(format!("a new client was not served: {error}")),
    }
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns a progress line.
fn progress(outcome: &Outcome) -> String {
    let head = format!("{}, {}", outcome.fault, outcome.driver.name());
    let tail =
        if outcome.broken.is_empty() { String::new() } else { format!(": {}", outcome.broken.join("; ")) };
    if !outcome.was_run() {
        return format!("{head}: not run{tail}; {}", outcome.skipped.join("; "));
    }
    let Tally { cycles, latencies, .. } = &outcome.tally;
    format!(
        "{head}: {:.0} s, {cycles} cycles, p99 {:.1} ms, max {:.1} ms{tail}",
        outcome.seconds,
        ms(latencies, 0.99),
        latencies.max() as f64 / 1000.0
    )
}

/// The signals that stop a server, unless the fault defines others.
pub const END: &[Signal] = &[Signal::SIGTERM];
