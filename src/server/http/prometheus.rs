//! `/metrics` in the text format of Prometheus: the metrics of `stats`, those of `stats-tube` for every tube, and histograms.
//!
//! The keys become names: `current-jobs-ready` is `PREFIX_current_jobs_ready`, and for a tube
//! `PREFIX_tube_current_jobs_ready{tube="..."}`. The names of counters end in `_total`.

use std::fmt;
use std::io::Write;

use super::OUTPUT_BYTES_PAUSE;
use crate::histogram::Histogram;
use crate::ids::TubeKey;
use crate::server::Core;
use crate::server::metric_catalog::{self, MetricKind, Value};
use crate::time::Time;

/// Lines that are rendered in one event-loop iteration: some 100 us.
const STEP_LINES: usize = 500;

/// A page that is rendered in pieces. The format wants all values of a metric together, so the page visits all tubes once
/// per metric.
pub(super) struct MetricsPage {
    at: Position,
    /// The tubes at the beginning of the page. A tube that has been removed is left out from then on.
    tubes: Vec<TubeKey>,
}

enum Position {
    Server,
    Tubes { metric: usize, tube: usize },
}

impl MetricsPage {
    pub fn new(core: &Core) -> Self {
        let tubes = core.engine.tubes();
        Self { at: Position::Server, tubes: tubes.iter().map(|(key, _)| key).collect() }
    }

    pub fn memory_bytes(&self) -> usize {
        self.tubes.capacity() * size_of::<TubeKey>()
    }

    /// Whether the statistics of the server are still to be rendered.
    pub const fn is_at_start(&self) -> bool {
        matches!(self.at, Position::Server)
    }

    /// Renders a bounded piece. Returns true if it was the last.
    pub fn step(&mut self, core: &Core, now: Time, out: &mut Vec<u8>) -> bool {
        match self.at {
            Position::Server => {
                server(core, now, out);
                self.at = Position::Tubes { metric: 0, tube: 0 };
                false
            }
            Position::Tubes { metric, tube } => self.step_tubes(metric, tube, core, now, out),
        }
    }

    fn step_tubes(
        &mut self,
        mut metric: usize,
        mut tube: usize,
        core: &Core,
        now: Time,
        out: &mut Vec<u8>,
    ) -> bool {
        let tubes = core.engine.tubes();
        let mut lines = 0;
        while lines < STEP_LINES {
            lines += 1;
            let Some(current) = metric_catalog::TUBE.get(metric) else { return true };
            let prefix = &*core.config.metrics_prefix;
            let name = Name {
                prefix,
                scope: "tube_",
                key: current.key,
                is_total: current.kind == MetricKind::Counter,
            };
            if tube == 0 {
                let kind = if name.is_total { "counter" } else { "gauge" };
                name.head(kind, "stats-tube", out);
            }
            if let Some(&key) = self.tubes.get(tube) {
                tube += 1;
                if let Some(known) = tubes.get_if_there(key) {
                    name.write(out);
                    out.extend_from_slice(b"{tube=\"");
                    // No character of a tube name needs an escape.
                    out.extend_from_slice(known.name().as_bytes());
                    out.extend_from_slice(b"\"} ");
                    number(current.read(core, key, now), out);
                    lines += current.looks(core, key) / LOOKS_PER_LINE;
                }
            } else {
                (metric, tube) = (metric + 1, 0);
            }
            if out.len() >= OUTPUT_BYTES_PAUSE {
                break;
            }
        }
        self.at = Position::Tubes { metric, tube };
        false
    }
}

/// Clients that are looked at in the time of one line.
const LOOKS_PER_LINE: usize = 16;

/// The name of a metric.
struct Name<'a> {
    prefix: &'a str,
    scope: &'a str,
    key: &'a str,
    is_total: bool,
}

impl Name<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        out.push(b'_');
        out.extend_from_slice(self.scope.as_bytes());
        let key = if self.is_total { self.key.strip_prefix("total-").unwrap_or(self.key) } else { self.key };
        out.extend(key.bytes().map(|byte| if byte == b'-' { b'_' } else { byte }));
        if self.is_total {
            out.extend_from_slice(b"_total");
        }
    }

    fn head(&self, kind: &str, source: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(b"# HELP ");
        self.write(out);
        writeln!(out, " {} of {source}", self.key).expect("writing to a Vec cannot fail");
        out.extend_from_slice(b"# TYPE ");
        self.write(out);
        writeln!(out, " {kind}").expect("writing to a Vec cannot fail");
    }
}

fn number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.push(b'\n');
}

fn server(core: &Core, now: Time, out: &mut Vec<u8>) {
    let prefix = &*core.config.metrics_prefix;
    let mut info = Vec::new();
    metric_catalog::visit_server(core, now, &mut |key, value| {
        let name = |is_total| Name { prefix, scope: "", key, is_total };
        match value {
            Value::Gauge(value) => single(&name(false), value, out),
            Value::Flag(value) => single(&name(false), value.into(), out),
            Value::Counter(value) => single(&name(true), value, out),
            Value::Cpu(us) => {
                name(true).head("counter", "stats, in seconds", out);
                name(true).write(out);
                writeln!(out, " {}", us as f64 / 1e6).expect("writing to a Vec cannot fail");
            }
            Value::Word(text) | Value::Text(text) => label(key, text, &mut info),
        }
    });
    write!(out, "# HELP {prefix}_info what is running\n# TYPE {prefix}_info gauge\n{prefix}_info{{")
        .expect("writing to a Vec cannot fail");
    out.extend_from_slice(&info);
    out.extend_from_slice(b"} 1\n");
    histograms(core, out);
}

fn single(name: &Name<'_>, value: u64, out: &mut Vec<u8>) {
    name.head(if name.is_total { "counter" } else { "gauge" }, "stats", out);
    name.write(out);
    out.push(b' ');
    number(value, out);
}

/// Appends a label to `labels`.
fn label(key: &str, value: &str, labels: &mut Vec<u8>) {
    if !labels.is_empty() {
        labels.push(b',');
    }
    labels.extend(key.bytes().map(|byte| if byte == b'-' { b'_' } else { byte }));
    labels.extend_from_slice(b"=\"");
    for byte in value.bytes() {
        match byte {
            b'\n' => labels.extend_from_slice(b"\\n"),
            b'"' | b'\\' => labels.extend_from_slice(&[b'\\', byte]),
            _ => labels.push(byte),
        }
    }
    labels.push(b'"');
}

fn histograms(core: &Core, out: &mut Vec<u8>) {
    let Core { config, engine, metrics, log, .. } = core;
    let mut page = Histograms { prefix: &config.metrics_prefix, out };
    page.buckets(
        "queue_time_seconds",
        "how long jobs were ready before they were reserved",
        NANOSECONDS_PER_SECOND,
        engine.queue_times(),
    );
    page.buckets(
        "reserved_time_seconds",
        "how long jobs were reserved",
        NANOSECONDS_PER_SECOND,
        engine.reserved_times(),
    );
    page.buckets(
        "reply_seconds",
        "from the input, or from the job that a waiting client gets, until all replies are sent",
        NANOSECONDS_PER_SECOND,
        &metrics.replies,
    );
    let about = "commands that were served between two waits for events";
    page.buckets("commands_per_enter", about, 1.0, &metrics.commands);
    if let Some(log) = log {
        page.buckets(
            "sync_seconds",
            "how long a sync of the log took",
            NANOSECONDS_PER_SECOND,
            log.sync_times(),
        );
    }
}

const NANOSECONDS_PER_SECOND: f64 = 1e9;

struct Histograms<'a> {
    prefix: &'a str,
    out: &'a mut Vec<u8>,
}

impl Histograms<'_> {
    fn buckets(&mut self, name: &str, help: &str, unit: f64, buckets: &Histogram) {
        self.head(name, help);
        for (bound, count) in buckets.cumulative() {
            self.bucket(name, bound as f64 / unit, count);
        }
        self.total(name, buckets.sum() as f64 / unit, buckets.count());
    }

    fn head(&mut self, name: &str, help: &str) {
        let prefix = self.prefix;
        self.line(format_args!("# HELP {prefix}_{name} {help}"));
        self.line(format_args!("# TYPE {prefix}_{name} histogram"));
    }

    fn bucket(&mut self, name: &str, bound: f64, count: u64) {
        let prefix = self.prefix;
        self.line(format_args!("{prefix}_{name}_bucket{{le=\"{bound}\"}} {count}"));
    }

    fn total(&mut self, name: &str, sum: f64, count: u64) {
        let prefix = self.prefix;
        self.line(format_args!("{prefix}_{name}_bucket{{le=\"+Inf\"}} {count}"));
        self.line(format_args!("{prefix}_{name}_sum {sum}"));
        self.line(format_args!("{prefix}_{name}_count {count}"));
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        writeln!(self.out, "{text}").expect("writing to a Vec cannot fail");
    }
}
