//! Runs the faults, one at a time, and looks at the server after each.

use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, gettid};

use crate::bounds::{self, IDLE_CPU, LATENCY_P99, Term};
use crate::client::{Client, put};
use crate::control::Control;
use crate::failure::Failure;
use crate::faults::Fault;
use crate::field::{Field, Spare};
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

/// How long a server may take to let go what the fault has left.
const LET_GO_MAX: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(20);

/// A latency that is too long says something about the server only where neither it nor the control client had to
/// wait for a core: of the client's own pauses 99 of 100 end in this time, and the server waits for this part of the
/// fault at most. (Its core also runs the kernel's part of it, and of the network.)
const LATENESS_QUIET_MS: f64 = 10.0;
const CORE_WAIT_QUIET: f64 = 0.1;

/// How often a fault on a busy machine is tried.
const TRIES: u32 = 3;

/// What came of a fault.
pub struct Outcome {
    pub fault: &'static str,
    pub driver: Driver,
    pub seconds: f64,
    pub tally: Tally,
    pub terms: Vec<Term>,
    resident_bytes_max: Option<u64>,
    pub rss_kib_begin: u64,
    pub rss_kib_peak: u64,
    pub rss_kib_end: u64,
    pub standing_cpu: Option<f64>,
    pub idle_cpu: f64,
    pub descriptors_begin: usize,
    pub descriptors_end: usize,
    /// Of the length of the fault, how much of it the server waited for its core.
    pub core_wait: f64,
    /// Of the last minute, at the end.
    pub load: String,
    pub tries: u32,
    pub notes: Vec<String>,
    pub skipped: Vec<String>,
    pub broken: Vec<String>,
}

impl Outcome {
    /// What the server may take, in KiB.
    pub fn rss_kib_max(&self) -> u64 {
        let sum = self.rss_kib_begin + bounds::sum(&self.terms) / 1024;
        self.resident_bytes_max.map_or(sum, |bytes| bytes / 1024)
    }

    /// Whether a latency was too long, and the machine had no time for either side.
    fn is_doubtful(&self) -> bool {
        let is_late = ms(&self.tally.latencies, 0.99) > LATENCY_P99.as_secs_f64() * 1000.0;
        let is_busy = ms(&self.tally.lateness, 0.99) > LATENESS_QUIET_MS || self.core_wait > CORE_WAIT_QUIET;
        is_late && is_busy && self.broken.len() == 1
    }
}

/// Starts servers and faults.
pub struct Bench<'a> {
    machine: &'a Machine,
    signals: &'a Signals,
    directory: &'a Path,
    /// Of the server in the fault, and of others beside it.
    logs: &'a Place,
    spare_logs: &'a Place,
    options: &'a Options,
    started: u32,
}

impl<'a> Bench<'a> {
    /// Nothing is started yet.
    pub fn new(
        machine: &'a Machine,
        signals: &'a Signals,
        directory: &'a Path,
        [logs, spare_logs]: [&'a Place; 2],
        options: &'a Options,
    ) -> Bench<'a> {
        Bench { machine, signals, directory, logs, spare_logs, options, started: 0 }
    }

    /// All faults under all drivers that start here.
    pub fn run(&mut self, faults: &[&dyn Fault], drivers: &[Driver]) -> Result<Vec<Outcome>, Failure> {
        self.stay_off_the_server();
        let (mut outcomes, mut refusals) = (Vec::new(), Vec::new());
        for (number, &driver) in drivers.iter().enumerate() {
            let spare = self.spare();
            match spare.start(0, driver, &Setup::default(), None) {
                Ok(server) => drop(server),
                Err(failure) => {
                    eprintln!("left out: {}, because {failure}", driver.name());
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

    /// This process, and what it starts, runs where the servers do not.
    fn stay_off_the_server(&self) {
        if let Some((_, load)) = self.machine.pins {
            let mut cores = CpuSet::new();
            let moved = cores.set(load).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
            if let Err(errno) = moved {
                eprintln!("the load is not pinned: {errno}");
            }
        }
    }

    fn spare(&mut self) -> Spare<'a> {
        let nth = self.started * SERVERS_MAX + 1;
        self.started += 1;
        let Bench { machine, signals, directory, spare_logs: logs, .. } = *self;
        Spare { machine, signals, directory, logs, nth }
    }

    /// One fault, and again where the machine had no time for it.
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
                    // It is looked at whether the server does what it should, not whether the machine is idle.
                    outcome.notes.append(&mut outcome.broken);
                }
                return Ok(outcome);
            }
            eprintln!("{}; the machine is busy: once more", progress(&outcome));
            tries += 1;
        }
    }

    fn fault(&mut self, fault: &dyn Fault, driver: Driver, is_first: bool) -> Result<Outcome, Failure> {
        let spare = self.spare();
        let setup = match fault.setup(self.options, self.directory) {
            Ok(setup) => setup,
            Err(why) => return Ok(Outcome::skipped(fault, driver, why)),
        };
        let directory = fault.log().map(|log| self.logs.fresh(log)).transpose()?;
        let mut server = spare.start(0, driver, &setup, directory.as_ref())?;
        let descriptors_begin = server.descriptors()?;
        let rss_kib_begin = server.memory()?.rss_kib;
        let control = Control::start(server.addr, self.options.seed)
            .map_err(|error| Failure::Client("connect", error))?;
        let mut terms = bounds::fixed(fault.log().is_some());
        terms.extend(bounds::control());
        let mut field = Field {
            server: &mut server,
            control: &control,
            options: self.options,
            random: Random::new(self.options.seed),
            length: Duration::from_secs_f64(fault.seconds(self.options, is_first)),
            begin: Instant::now(),
            terms,
            resident_bytes_max: None,
            notes: Vec::new(),
            skipped: Vec::new(),
            broken: Vec::new(),
            standing_cpu: None,
            spare,
        };
        field.inject(fault)?;
        field.pause(Duration::from_millis(self.options.scale(1000, 300)))?;
        let Field { begin, terms, resident_bytes_max, notes, skipped, broken, standing_cpu, .. } = field;
        let seconds = begin.elapsed().as_secs_f64();
        let tally = control.finish();
        server.check()?;
        let core_wait = server.waited_for_core().as_secs_f64() / seconds;
        let mut outcome = Outcome {
            fault: fault.name(),
            driver,
            seconds,
            tally,
            terms,
            resident_bytes_max,
            rss_kib_begin,
            rss_kib_peak: 0,
            rss_kib_end: 0,
            standing_cpu,
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

    /// What is left of the fault in the server, and whether it ends as it should.
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

impl Field<'_> {
    /// The fault's clients have what the control client and the server leave of the machine.
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
            terms: Vec::new(),
            resident_bytes_max: None,
            rss_kib_begin: 0,
            rss_kib_peak: 0,
            rss_kib_end: 0,
            standing_cpu: None,
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

    /// Whether it did anything.
    pub fn was_run(&self) -> bool {
        self.seconds > 0.0
    }

    fn judge(&mut self) {
        let mut broken = Vec::new();
        if !self.tally.is_whole() {
            let faults: Vec<String> = self.tally.faults.iter().map(ToString::to_string).collect();
            broken.push(format!("control: {} lost; {}", self.tally.lost, faults.join("; ")));
        }
        let p99 = ms(&self.tally.latencies, 0.99);
        if p99 > LATENCY_P99.as_secs_f64() * 1000.0 {
            broken.push(format!("control p99 {p99:.1} ms"));
        }
        if self.rss_kib_peak > self.rss_kib_max() {
            broken.push(format!("{} KiB resident, {} allowed", self.rss_kib_peak, self.rss_kib_max()));
        }
        if self.idle_cpu >= IDLE_CPU {
            broken.push(format!("{:.1} % of a core when idle", self.idle_cpu * 100.0));
        }
        if self.descriptors_begin != self.descriptors_end {
            broken.push(format!("{} descriptors, {} before", self.descriptors_end, self.descriptors_begin));
        }
        self.broken.extend(broken);
    }
}

/// What the server counts of clients that have gone.
fn leftovers(server: &Server) -> Result<Vec<String>, Failure> {
    let stats = Stats::ask(server.addr).map_err(Failure::Stats)?;
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

/// Whether somebody who comes now is served.
fn answers(server: &Server) -> Result<(), String> {
    let whole_life = || -> std::io::Result<Vec<String>> {
        let mut client = Client::connect(server.addr)?;
        let mut lines = Vec::new();
        for command in [&b"use after\r\n"[..], b"watch after\r\n", b"ignore default\r\n"] {
            lines.push(client.ask(command)?.line);
        }
        lines.push(client.ask(&put(0, 0, 60, b"after"))?.line.split(' ').next().unwrap_or_default().into());
        let job = client.ask(b"reserve-with-timeout 1\r\n")?;
        let id = job.number(1).unwrap_or(0);
        lines.push(client.ask(format!("delete {id}\r\n").as_bytes())?.line);
        Ok(lines)
    };
    match whole_life() {
        Ok(lines) if lines == ["USING after", "WATCHING 2", "WATCHING 1", "INSERTED", "DELETED"] => Ok(()),
        Ok(lines) => Err(format!("somebody who came after it was answered {lines:?}")),
        Err(error) => Err(format!("somebody who came after it was not served: {error}")),
    }
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// A line that tells how far the run is.
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

/// What ends a server unless the fault says otherwise.
pub const END: &[Signal] = &[Signal::SIGTERM];
