//! `/metrics`: what `stats` tells, what `stats-tube` tells of every tube, and histograms, in the text format of
//! Prometheus.
//!
//! Names are made from the keys: `current-jobs-ready` is `PREFIX_current_jobs_ready`, and of a tube
//! `PREFIX_tube_current_jobs_ready{tube="..."}`; what only goes up ends with `_total`.

use std::fmt;
use std::io::Write;

use crate::histogram::Histogram;
use crate::ids::TubeKey;
use crate::limits::{HTTP_OUTPUT_BYTES_PAUSE, HTTP_STEP_LINES};
use crate::server::Core;
use crate::server::figures::{self, Kind, Value};
use crate::time::Time;

/// One answer that is being rendered. All figures of one name stand together, as the format wants it, so tubes are
/// gone through once for each.
pub(in crate::server) struct Page {
    at: Position,
    /// Every tube that there was at the beginning. One that has gone is left out from then on.
    tubes: Vec<TubeKey>,
    /// The beginning: a later tube may have the key of one that has gone, or its name.
    moment: u64,
}

enum Position {
    Server,
    Tubes { figure: usize, tube: usize },
}

impl Page {
    pub fn new(core: &Core) -> Self {
        let tubes = core.engine.tubes();
        Self {
            at: Position::Server,
            tubes: tubes.iter().map(|(key, _)| key).collect(),
            moment: tubes.moment(),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.tubes.capacity() * size_of::<TubeKey>()
    }

    /// Whether the statistics of the server are still to be rendered.
    pub const fn is_at_start(&self) -> bool {
        matches!(self.at, Position::Server)
    }

    /// Renders a bounded piece. True if it was the last.
    pub fn step(&mut self, core: &Core, now: Time, out: &mut Vec<u8>) -> bool {
        match self.at {
            Position::Server => {
                server(core, now, out);
                self.at = Position::Tubes { figure: 0, tube: 0 };
                false
            }
            Position::Tubes { figure, tube } => self.step_tubes(figure, tube, core, now, out),
        }
    }

    fn step_tubes(
        &mut self,
        mut figure: usize,
        mut tube: usize,
        core: &Core,
        now: Time,
        out: &mut Vec<u8>,
    ) -> bool {
        let tubes = core.engine.tubes();
        let mut lines = 0;
        while lines < HTTP_STEP_LINES {
            lines += 1;
            let Some(wanted) = figures::TUBE.get(figure) else { return true };
            let prefix = &*core.config.metrics_prefix;
            let name =
                Name { prefix, scope: "tube_", key: wanted.key, is_total: wanted.kind == Kind::Counter };
            if tube == 0 {
                let kind = if name.is_total { "counter" } else { "gauge" };
                name.head(kind, "stats-tube", out);
            }
            if let Some(&key) = self.tubes.get(tube) {
                tube += 1;
                if let Some(known) = tubes.get_if_there(key).filter(|known| known.born < self.moment) {
                    name.write(out);
                    out.extend_from_slice(b"{tube=\"");
                    // Nothing that a name may consist of needs to be escaped.
                    out.extend_from_slice(known.name().as_bytes());
                    out.extend_from_slice(b"\"} ");
                    number(wanted.read(core, key, now), out);
                    lines += wanted.looks(core, key) / LOOKS_A_LINE;
                }
            } else {
                (figure, tube) = (figure + 1, 0);
            }
            if out.len() >= HTTP_OUTPUT_BYTES_PAUSE {
                break;
            }
        }
        self.at = Position::Tubes { figure, tube };
        false
    }
}

/// Clients that are looked at in the time that a line takes.
const LOOKS_A_LINE: usize = 16;

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
        writeln!(out, " {} of {source}", self.key).expect("a Vec takes all that is written");
        out.extend_from_slice(b"# TYPE ");
        self.write(out);
        writeln!(out, " {kind}").expect("a Vec takes all that is written");
    }
}

fn number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.push(b'\n');
}

fn server(core: &Core, now: Time, out: &mut Vec<u8>) {
    let prefix = &*core.config.metrics_prefix;
    let mut info = Vec::new();
    figures::each(core, now, &mut |key, value| {
        let name = |is_total| Name { prefix, scope: "", key, is_total };
        match value {
            Value::Gauge(value) => single(&name(false), value, out),
            Value::Flag(value) => single(&name(false), value.into(), out),
            Value::Counter(value) => single(&name(true), value, out),
            Value::Cpu(us) => {
                name(true).head("counter", "stats, in seconds", out);
                name(true).write(out);
                writeln!(out, " {}", us as f64 / 1e6).expect("a Vec takes all that is written");
            }
            Value::Word(text) | Value::Text(text) => label(key, text, &mut info),
        }
    });
    write!(out, "# HELP {prefix}_info what is running\n# TYPE {prefix}_info gauge\n{prefix}_info{{")
        .expect("a Vec takes all that is written");
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

/// Appends a label to others.
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
        NANOSECONDS,
        engine.queue_times(),
    );
    page.buckets("held_time_seconds", "how long jobs were held", NANOSECONDS, engine.held_times());
    page.buckets(
        "reply_seconds",
        "from the input, or from the job that a waiting client gets, until all replies are sent",
        NANOSECONDS,
        &metrics.replies,
    );
    let about = "commands that were served between two waits for events";
    page.buckets("commands_per_enter", about, 1.0, &metrics.commands);
    if let Some(log) = log {
        page.buckets("sync_seconds", "how long a sync of the log took", NANOSECONDS, log.sync_times());
    }
}

/// In a second.
const NANOSECONDS: f64 = 1e9;

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
        writeln!(self.out, "{text}").expect("a Vec takes all that is written");
    }
}
