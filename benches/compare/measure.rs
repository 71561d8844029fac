//! Runs the rows and keeps the results.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::failure::Failure;
use crate::matrix::{Row, Work};
use crate::options::Options;
use crate::servers::{self, Kind, Peers, Server, first_words};
use crate::transport::{Cable, Endpoint, Transport};
use beanring_testkit::bench::logs::{Directory, Place};
use beanring_testkit::bench::machine::Machine;
use beanring_testkit::bench::process::Guarded;
use beanring_testkit::bench::signals::Signals;
use beanring_testkit::certificates::Certificates;

/// beanstalkd needs more than a minute until 64 connections watch 10,000 tubes each.
const LOAD_MAX: Duration = Duration::from_secs(240);

const PAUSE: Duration = Duration::from_millis(20);

/// The part of the load's JSON that the tables show.
#[derive(Deserialize)]
struct Output {
    rows: Vec<Figures>,
}

/// One measurement.
#[derive(Deserialize)]
pub struct Figures {
    pub workload: String,
    pub operations: u64,
    errors: u64,
    pub operations_per_s: f64,
    pub latency_us: Latency,
    pub server: ServerFigures,
    pub idle: Option<IdleFigures>,
    pub handshakes: Option<Handshakes>,
    /// 99th percentile of how late the load started scheduled operations.
    pub begun_late_us_p99: Option<f64>,
    restart_ms: Option<f64>,
    /// Records that compaction rewrote during the load.
    pub moved_records: Option<f64>,
    /// Sends that asked the kernel not to copy.
    pub zero_copy_sends: Option<f64>,
}

#[derive(Deserialize)]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub p9999: f64,
    pub max: f64,
}

#[derive(Deserialize)]
pub struct ServerFigures {
    pub cpu_us_per_operation: f64,
    cpu_user_s: f64,
    cpu_system_s: f64,
    rss_kib_before: f64,
    rss_kib_after: f64,
    pub peak_rss_kib: f64,
}

impl ServerFigures {
    /// Returns the share of CPU time in the kernel, which is known in ticks only.
    pub fn system_share(&self) -> f64 {
        let total = self.cpu_user_s + self.cpu_system_s;
        if total > 0.0 { self.cpu_system_s / total } else { f64::NAN }
    }

    /// Returns the growth of resident memory in bytes.
    fn grown_bytes(&self) -> f64 {
        (self.rss_kib_after - self.rss_kib_before) * 1024.0
    }
}

#[derive(Deserialize)]
pub struct IdleFigures {
    pub rss_bytes_per_connection: f64,
}

/// The TLS handshakes of a measurement that counts them.
#[derive(Deserialize)]
pub struct Handshakes {
    all: f64,
    resumed: f64,
}

impl Handshakes {
    /// Returns the share of those that resumed a session.
    pub fn resumed_share(&self) -> f64 {
        self.resumed / self.all
    }
}

/// A number of a measurement.
pub type Metric = fn(&Figures) -> f64;

/// CPU time per operation, in microseconds.
pub fn cpu(figures: &Figures) -> f64 {
    figures.server.cpu_us_per_operation
}

/// Operations per second.
pub fn rate(figures: &Figures) -> f64 {
    figures.operations_per_s
}

/// Growth of resident memory per operation, in bytes. NaN for cycles, which leave no jobs behind.
pub fn bytes_per_job(figures: &Figures) -> f64 {
    if figures.workload.ends_with("cycle") {
        f64::NAN
    } else {
        figures.server.grown_bytes() / figures.operations as f64
    }
}

/// Time from the start of a server with a full job log to its first reply, in milliseconds.
pub fn restart_ms(figures: &Figures) -> f64 {
    figures.restart_ms.unwrap_or(f64::NAN)
}

/// The rounds of one server in one row.
pub struct Cell {
    pub kind: Kind,
    pub samples: Vec<Figures>,
    /// The complete JSON of the load.
    pub raw: Vec<serde_json::Value>,
    /// Why there are no further rounds.
    pub failure: Option<String>,
}

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Option<Spread> {
        figures.retain(|figure| figure.is_finite());
        figures.sort_by(f64::total_cmp);
        let (&least, &most) = (figures.first()?, figures.last()?);
        let middle = figures.len() / 2;
        let median = if figures.len() % 2 == 1 {
            figures[middle]
        } else {
            f64::midpoint(figures[middle - 1], figures[middle])
        };
        Some(Spread { median, least, most })
    }
}

impl Cell {
    /// Returns a number over the rounds.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(self.samples.iter().map(metric).collect())
    }
}

/// A row and its measurements.
pub struct Outcome {
    pub row: Row,
    pub cells: Vec<Cell>,
}

impl Outcome {
    fn empty(row: &Row, peers: &Peers, options: &Options) -> Outcome {
        let too_long = |kind| options.short && row.long && kind == Kind::Beanstalkd;
        let suited = peers.kinds.iter().copied().filter(|&kind| row.suits(kind) && !too_long(kind));
        let cell = |kind| Cell { kind, samples: Vec::new(), raw: Vec::new(), failure: None };
        Outcome { row: row.clone(), cells: suited.map(cell).collect() }
    }

    /// Returns the measurements of `kind`.
    pub fn cell(&self, kind: Kind) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.kind == kind)
    }

    /// Returns the median of a number of `kind`.
    pub fn median(&self, kind: Kind, metric: Metric) -> Option<f64> {
        Some(self.cell(kind)?.spread(metric)?.median)
    }
}

/// Starts servers and loads, one at a time.
pub struct Bench<'a> {
    machine: &'a Machine,
    signals: &'a Signals,
    /// Directory for temporary files.
    directory: &'a Path,
    logs: &'a Place,
    /// None before the first row that needs it.
    cable: Option<Cable>,
    started: u32,
    /// Made for the first server with TLS.
    certificates: Option<Certificates>,
}

impl<'a> Bench<'a> {
    pub fn new(
        machine: &'a Machine,
        signals: &'a Signals,
        directory: &'a Path,
        logs: &'a Place,
    ) -> Bench<'a> {
        Bench { machine, signals, directory, logs, cable: None, started: 0, certificates: None }
    }

    /// Starts a server and waits until it accepts connections.
    pub fn start(
        &mut self,
        kind: Kind,
        transport: Transport,
        log: Option<&Directory>,
    ) -> Result<Server, Failure> {
        self.spawn(kind, transport, log, false)?.accept()
    }

    fn spawn(
        &mut self,
        kind: Kind,
        transport: Transport,
        log: Option<&Directory>,
        tls: bool,
    ) -> Result<Server, Failure> {
        self.signals.check()?;
        self.started += 1;
        let endpoint = Endpoint::new(transport, self.started);
        let cable = match (transport, &mut self.cable) {
            (Transport::Loopback | Transport::Unix, _) => None,
            (Transport::Veth, Some(cable)) => Some(&*cable),
            (Transport::Veth, none) => Some(&*none.insert(Cable::lay().map_err(Failure::Cable)?)),
        };
        let place = servers::Place { machine: self.machine, cable };
        let made = || Certificates::new(self.directory);
        let certificates = tls.then(|| &*self.certificates.get_or_insert_with(made));
        Server::spawn(kind, &place, endpoint, self.directory, log, certificates)
    }

    /// Measures every row: its servers in turn, then all again, so that a noisy minute affects each of them.
    pub fn run(&mut self, rows: &[Row], peers: &Peers, options: &Options) -> Result<Vec<Outcome>, Failure> {
        let mut outcomes = Vec::new();
        for rows in rows.chunk_by(Row::is_beside) {
            let mut filled: Vec<Outcome> =
                rows.iter().map(|row| Outcome::empty(row, peers, options)).collect();
            for round in 0..options.rounds() {
                for Outcome { row, cells } in &mut filled {
                    for cell in cells {
                        let spared = row.long && round > 0 && cell.kind == Kind::Beanstalkd;
                        if cell.failure.is_none() && !spared {
                            self.fill(cell, row, options.seconds())?;
                        }
                    }
                }
            }
            filled.iter().for_each(|outcome| eprintln!("{}", progress(outcome)));
            outcomes.extend(filled);
        }
        Ok(outcomes)
    }

    /// Adds one measurement, or the reason why there is none.
    fn fill(&mut self, cell: &mut Cell, row: &Row, seconds: f64) -> Result<(), Failure> {
        match self.measure(row, cell.kind, seconds) {
            Ok((figures, raw)) => {
                cell.samples.push(figures);
                cell.raw.push(raw);
            }
            Err(Failure::Interrupted) => return Err(Failure::Interrupted),
            Err(failure) => {
                eprintln!("{}, {}: {failure}", row.id, cell.kind.name());
                cell.failure = Some(failure.to_string());
            }
        }
        Ok(())
    }

    fn measure(
        &mut self,
        row: &Row,
        kind: Kind,
        seconds: f64,
    ) -> Result<(Figures, serde_json::Value), Failure> {
        // Declared first, so that it is dropped after the server.
        let directory = row.log.map(|log| self.logs.fresh(log)).transpose()?;
        let log = directory.as_ref();
        let server = self.spawn(kind, row.transport, log, row.tls)?.accept()?;
        if let Some(arguments) = row.preparing() {
            self.conduct(self.load(arguments, &server))?;
        }
        let moved = |server: &Server| server.number("binlog-records-migrated");
        let before = log.map(|_| moved(&server)).transpose()?;
        let json = self.directory.join("load.json");
        let mut load = self.load(row.arguments(kind, seconds), &server);
        load.args(["--pid", &server.process.0.id().to_string()]).arg("--json").arg(&json);
        if let Some(certificates) = self.certificates.as_ref().filter(|_| row.tls) {
            load.args(["--tls", "--tls-name", "localhost", "--tls-ca"]).arg(&certificates.ca);
        }
        self.conduct(load)?;
        let (mut figures, mut raw) = read(&json)?;
        if let Some(before) = before {
            figures.moved_records = Some((moved(&server)? - before) as f64);
            raw["moved_records"] = figures.moved_records.into();
        }
        if matches!(kind, Kind::Ours(_)) && !row.tls {
            figures.zero_copy_sends = Some(server.number("io-zero-copy-sends")? as f64);
            raw["zero_copy_sends"] = figures.zero_copy_sends.into();
        }
        if row.work == Work::Restart {
            server.stop()?;
            figures.restart_ms = Some(self.restart(kind, log, figures.operations)?);
            raw["restart_ms"] = figures.restart_ms.into();
        }
        Ok((figures, raw))
    }

    /// Measures how long a server takes to recover all jobs, in milliseconds.
    fn restart(&mut self, kind: Kind, log: Option<&Directory>, jobs: u64) -> Result<f64, Failure> {
        let mut server = self.spawn(kind, Transport::Loopback, log, false)?;
        let (stats, time) = server.first_stats()?;
        let ready = stats.number("current-jobs-ready");
        match ready.map_err(|error| Failure::Stats(kind.name(), error))? {
            ready if ready == jobs => Ok(time.as_secs_f64() * 1000.0),
            ready => Err(Failure::Lost(jobs, ready)),
        }
    }

    fn load(&self, arguments: Vec<String>, server: &Server) -> Command {
        let mut load = self.machine.command(env!("CARGO_BIN_EXE_beanring-bench"), |(_, load)| load);
        load.args(arguments).args(["--addr", &server.endpoint.to_string()]);
        load
    }

    /// Runs the load to its end.
    fn conduct(&self, mut load: Command) -> Result<(), Failure> {
        let stderr_path = self.directory.join("load.stderr");
        let stderr =
            File::create(&stderr_path).map_err(|error| Failure::Write(stderr_path.clone(), error))?;
        load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let start = |error| Failure::Start("beanring-bench".to_owned(), error);
        let mut child = Guarded(load.spawn().map_err(start)?);
        let begin = Instant::now();
        loop {
            match child.0.try_wait().map_err(start)?.as_ref().map(ExitStatus::success) {
                Some(true) => return Ok(()),
                Some(false) => {
                    // Ctrl-C reaches the load too.
                    self.signals.check()?;
                    return Err(Failure::Load(first_words(&stderr_path)));
                }
                None => self.signals.check()?,
            }
            if begin.elapsed() > LOAD_MAX {
                return Err(Failure::TooLong(LOAD_MAX));
            }
            sleep(PAUSE);
        }
    }
}

fn read(path: &Path) -> Result<(Figures, serde_json::Value), Failure> {
    let unread = |error: String| Failure::Figures(path.to_owned(), error);
    let text = fs::read(path).map_err(|error| unread(error.to_string()))?;
    let raw: serde_json::Value = serde_json::from_slice(&text).map_err(|error| unread(error.to_string()))?;
    let mut output = Output::deserialize(&raw).map_err(|error| unread(error.to_string()))?;
    let figures = output.rows.pop().ok_or_else(|| unread("the report has no row".to_owned()))?;
    if figures.errors > 0 {
        Err(Failure::Load(format!("{} wrong replies", figures.errors)))
    } else {
        Ok((figures, raw))
    }
}

/// Returns a progress line.
fn progress(outcome: &Outcome) -> String {
    let (metric, unit): (Metric, _) = match outcome.row.work {
        Work::Restart => (restart_ms, "ms"),
        _ => (cpu, "us"),
    };
    let cell = |cell: &Cell| {
        let middle = cell.spread(metric).map(|spread| spread.median);
        let middle = middle.map_or("failed".to_owned(), |middle| format!("{middle:.2} {unit}"));
        format!("{} {middle}", cell.kind.name())
    };
    let cells: Vec<String> = outcome.cells.iter().map(cell).collect();
    format!("{}: {}", outcome.row.id, cells.join(", "))
}
