//! The results, as a table and as JSON.

use std::array;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::args::{Args, TubeBy, Workload};
use crate::failure::Failure;
use crate::phase::Measured;
use crate::proc::Memory;

/// All results of a run.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    target: String,
    generator_io: &'static str,
    /// Ctrl-C or SIGTERM ended the run.
    pub interrupted: bool,
    settings: Settings,
    rows: Vec<Row>,
    /// Commands sent in total, including warm-up and clean-up: the number that the server must have counted.
    sent: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Settings {
    connections: u32,
    consumers: Option<u32>,
    depth: u32,
    body_bytes: u32,
    rate_per_s: Option<u64>,
    tubes: u32,
    tube_by_job: bool,
    idle: u32,
}

/// The results of one phase.
#[derive(Serialize)]
pub struct Row {
    workload: String,
    operations: u64,
    errors: u64,
    seconds: f64,
    operations_per_s: f64,
    commands_per_operation: u64,
    commands_per_s: f64,
    latency_us: Latency,
    /// The fewest and the most operations of one connection, relative to the mean.
    fairness: Fairness,
    /// Open loop: 99th percentile of how late the generator began operations.
    begun_late_us_p99: Option<f64>,
    server: Option<Server>,
    idle: Option<IdleCost>,
    handshakes: Option<Handshakes>,
    generator_cpu_us_per_operation: f64,
    interrupted: bool,
    /// `--queue-max` ended the phase, or due operations were dropped.
    stopped_early: bool,
    /// Due operations were dropped.
    overloaded: bool,
}

#[derive(Serialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    p9999: f64,
    max: f64,
}

#[derive(Serialize)]
struct Fairness {
    slowest: f64,
    fastest: f64,
}

#[derive(Serialize)]
struct Server {
    cpu_us_per_operation: f64,
    cpu_user_s: f64,
    cpu_system_s: f64,
    /// Of a server with several threads: those that have used CPU time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    threads: Vec<Thread>,
    rss_kib_before: u64,
    rss_kib_after: u64,
    peak_rss_kib: u64,
}

/// A thread of the server.
#[derive(Serialize)]
struct Thread {
    name: String,
    cpu_us_per_operation: f64,
}

/// Memory that idle connections cost the server.
#[derive(Serialize, Clone, Copy)]
pub struct IdleCost {
    connections: u32,
    rss_bytes_per_connection: f64,
}

impl IdleCost {
    /// Computes it from the memory before and after they connected.
    pub fn new(before: Memory, after: Memory, connections: u32) -> IdleCost {
        let grown_kib = after.rss_kib as f64 - before.rss_kib as f64;
        IdleCost { connections, rss_bytes_per_connection: grown_kib * 1024.0 / f64::from(connections) }
    }
}

/// The TLS handshakes of a phase, warm-up included.
#[derive(Serialize, Clone, Copy)]
pub struct Handshakes {
    pub all: u64,
    /// Those that resumed a session.
    pub resumed: u64,
}

impl Row {
    /// Collects the results of the phase `workload`.
    pub fn new(
        args: &Args,
        workload: &str,
        measured: &Measured,
        idle: Option<IdleCost>,
        handshakes: Option<Handshakes>,
    ) -> Row {
        let meter = &measured.meter;
        let operations = meter.operations.get();
        let per_operation = |time: Duration| time.as_secs_f64() * 1e6 / operations as f64;
        let commands_per_operation = commands(args, workload);
        let operations_per_s = operations as f64 / measured.seconds;
        let latencies = meter.latencies.borrow();
        let latency_us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let (slowest, fastest) = meter.shares();
        // Those of a server that has several.
        let threads = measured.server_threads.iter().filter(|_| measured.server_threads.len() > 1);
        let threads = threads
            .map(|(name, time)| Thread { name: name.clone(), cpu_us_per_operation: per_operation(*time) });
        let server = measured.server_cpu.zip(measured.server_memory).map(|(cpu, (before, after))| Server {
            cpu_us_per_operation: per_operation(cpu.total),
            cpu_user_s: cpu.user.as_secs_f64(),
            cpu_system_s: cpu.system.as_secs_f64(),
            threads: threads.collect(),
            rss_kib_before: before.rss_kib,
            rss_kib_after: after.rss_kib,
            peak_rss_kib: after.peak_rss_kib,
        });
        Row {
            workload: workload.to_owned(),
            operations,
            errors: meter.errors.get(),
            seconds: measured.seconds,
            operations_per_s,
            commands_per_operation,
            commands_per_s: operations_per_s * commands_per_operation as f64,
            latency_us: Latency {
                mean: latencies.mean() / 1e3,
                p50: latency_us(0.5),
                p90: latency_us(0.9),
                p99: latency_us(0.99),
                p999: latency_us(0.999),
                p9999: latency_us(0.9999),
                max: latency_us(1.0),
            },
            fairness: Fairness { slowest, fastest },
            begun_late_us_p99: args
                .rate
                .map(|_| meter.lateness.borrow().value_at_quantile(0.99) as f64 / 1e3),
            server,
            idle,
            handshakes,
            generator_cpu_us_per_operation: per_operation(measured.own_cpu),
            interrupted: measured.interrupted,
            stopped_early: measured.limited || measured.overloaded,
            overloaded: measured.overloaded,
        }
    }
}

/// Returns the number of commands per operation.
fn commands(args: &Args, phase: &str) -> u64 {
    let uses = u64::from(args.tube_by == TubeBy::Job);
    match phase {
        "put" | "fill" => 1 + uses,
        "cycle" | "delivery" => 3 + uses,
        "drain" | "redis-cycle" => 2,
        _ => 1,
    }
}

impl Report {
    /// Creates the report of a run.
    pub fn new(
        args: &Args,
        target: String,
        generator_io: &'static str,
        rows: Vec<Row>,
        sent: &crate::meter::Sent,
        interrupted: bool,
    ) -> Report {
        let delivery = args.workloads.contains(&Workload::Delivery);
        Report {
            version: env!("CARGO_PKG_VERSION"),
            target,
            generator_io,
            interrupted,
            settings: Settings {
                connections: args.connections,
                consumers: delivery.then(|| args.consumers.unwrap_or(args.connections)),
                depth: args.depth,
                body_bytes: args.body,
                rate_per_s: args.rate,
                tubes: args.tubes,
                tube_by_job: args.tube_by == TubeBy::Job,
                idle: args.idle,
            },
            rows,
            sent: sent.totals(),
        }
    }

    /// Returns whether any reply was wrong.
    pub fn has_errors(&self) -> bool {
        self.rows.iter().any(|row| row.errors > 0)
    }

    /// Prints the table, and writes the JSON if requested.
    pub fn publish(&self, json: Option<&Path>) -> Result<(), Failure> {
        let table = self.table();
        let written = match json {
            None => return show(&table),
            Some(path) if path == Path::new("-") => {
                eprint!("{table}");
                return show(&self.json());
            }
            Some(path) => fs::write(path, self.json()).map_err(|error| Failure::Output(path.into(), error)),
        };
        show(&table)?;
        written
    }

    fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    fn table(&self) -> String {
        let Settings { connections, depth, body_bytes, .. } = self.settings;
        let mut out = format!(
            "{}, {connections} connections, depth {depth}, bodies of {body_bytes} bytes, generator on {}\n\n",
            self.target, self.generator_io
        );
        let row = |row: &Row| COLUMNS.map(|(_, cell)| cell(row));
        let headings = COLUMNS.map(|(heading, _)| heading.to_owned());
        let rows: Vec<_> = [headings].into_iter().chain(self.rows.iter().map(row)).collect();
        out += &table(&rows, &[0]);
        out += "\nLatencies in us. cpu: of the server, in us per operation; own: of the generator. Fairness: operations\n\
            of the slowest and the fastest connection, as shares of the mean.\n";
        self.rows.iter().for_each(|row| row.notes(&mut out));
        out
    }
}

/// Checks that the JSON can be written before the load runs. The content of the file is kept until there is a new one.
pub fn check_file(path: &Path) -> Result<(), Failure> {
    // Opening a pipe twice would lose its reader.
    let is_new = match fs::metadata(path) {
        _ if path == Path::new("-") => return Ok(()),
        Ok(found) if !found.is_file() && !found.is_dir() => return Ok(()),
        found => found.is_err(),
    };
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| Failure::Output(path.into(), error))?;
    // Without a run there is no file. If it cannot be removed, it is empty.
    let _ = is_new.then(|| fs::remove_file(path));
    Ok(())
}

/// Returns rows as lines, with aligned columns: the names in `left` on the left of their column, numbers on the right.
pub fn table<const N: usize>(rows: &[[String; N]], left: &[usize]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = array::from_fn(width);
    let cell = |(column, text): (usize, &String)| {
        let width = widths[column];
        if left.contains(&column) { format!("{text:width$}  ") } else { format!("{text:>width$}  ") }
    };
    let line = |row: &[String; N]| row.iter().enumerate().map(cell).collect::<String>();
    rows.iter().map(|row| line(row).trim_end().to_owned() + "\n").collect()
}

/// A column of the table: heading and content.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 13] = [
    ("workload", |row| row.workload.clone()),
    ("operations", |row| row.operations.to_string()),
    ("errors", |row| row.errors.to_string()),
    ("ops/s", |row| format!("{:.0}", row.operations_per_s)),
    ("commands/s", |row| format!("{:.0}", row.commands_per_s)),
    ("cpu", |row| {
        row.server.as_ref().map_or("-".to_owned(), |server| format!("{:.2}", server.cpu_us_per_operation))
    }),
    ("own", |row| format!("{:.2}", row.generator_cpu_us_per_operation)),
    ("p50", |row| format!("{:.1}", row.latency_us.p50)),
    ("p99", |row| format!("{:.1}", row.latency_us.p99)),
    ("p99.9", |row| format!("{:.1}", row.latency_us.p999)),
    ("max", |row| format!("{:.1}", row.latency_us.max)),
    ("slowest", |row| format!("{:.2}", row.fairness.slowest)),
    ("fastest", |row| format!("{:.2}", row.fairness.fastest)),
];

impl Row {
    fn notes(&self, out: &mut String) {
        let name = &self.workload;
        // Writing to a String does not fail.
        if let Some(server) = &self.server {
            let (before, after) = (server.rss_kib_before, server.rss_kib_after);
            let peak = server.peak_rss_kib;
            let _ = writeln!(out, "{name}: server memory {before} -> {after} KiB, peak {peak} KiB");
            if !server.threads.is_empty() {
                let each = server.threads.iter();
                let each = each.map(|thread| format!("{} {:.2}", thread.name, thread.cpu_us_per_operation));
                let _ = writeln!(out, "{name}: cpu of each thread: {}", each.collect::<Vec<_>>().join(", "));
            }
        }
        if let Some(idle) = &self.idle {
            let (count, bytes) = (idle.connections, idle.rss_bytes_per_connection);
            let _ = writeln!(out, "{name}: {count} idle connections, {bytes:.0} bytes of server memory each");
        }
        if let Some(Handshakes { all, resumed }) = self.handshakes {
            let _ = writeln!(out, "{name}: {resumed} of {all} handshakes resumed a session");
        }
        if let Some(late) = self.begun_late_us_p99 {
            let _ = writeln!(out, "{name}: 99 % of the operations began within {late:.1} us of their time");
        }
        if self.overloaded {
            let _ = writeln!(
                out,
                "{name}: stopped after {:.2} s: the server, or this load, cannot keep up with --rate",
                self.seconds
            );
        } else if self.stopped_early {
            let _ = writeln!(out, "{name}: stopped after {:.2} s at the limit of --queue-max", self.seconds);
        }
        if self.interrupted {
            let _ = writeln!(out, "{name}: INTERRUPTED after {:.2} s", self.seconds);
        }
    }
}

/// Writes to standard output.
pub fn show(text: &str) -> Result<(), Failure> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::Output("standard output".into(), error))
}
