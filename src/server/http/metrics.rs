//! `/metrics`: what `stats` tells, what `stats-tube` tells of every tube, and histograms, in the text format of
//! Prometheus.
//!
//! Names are made from the keys: `current-jobs-ready` is `PREFIX_current_jobs_ready`, and of a tube
//! `PREFIX_tube_current_jobs_ready{tube="..."}`; what only goes up ends with `_total`.

use std::io::Write;

use crate::buckets::Buckets;
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
    /// How many tubes had been made by then: a later one may have the key of one that has gone, or its name.
    made: u64,
}

enum Position {
    Server,
    Tubes { figure: usize, tube: usize },
}

impl Page {
    pub fn new(core: &Core) -> Self {
        let tubes = core.engine.tubes();
        Self { at: Position::Server, tubes: tubes.keys().to_vec(), made: tubes.made() }
    }

    pub fn memory_bytes(&self) -> usize {
        self.tubes.capacity() * size_of::<TubeKey>()
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
        for _ in 0..HTTP_STEP_LINES {
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
                if let Some(known) = tubes.get_if_there(key).filter(|known| known.born < self.made) {
                    name.write(out);
                    out.extend_from_slice(b"{tube=\"");
                    // Nothing that a name may consist of needs to be escaped.
                    out.extend_from_slice(known.name().as_bytes());
                    out.extend_from_slice(b"\"} ");
                    number(wanted.read(core, key, now), out);
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
    let mut histogram = |name: &str, help: &str, unit: f64, buckets: &Buckets| {
        let prefix = &*core.config.metrics_prefix;
        let mut line = |text: std::fmt::Arguments<'_>| {
            writeln!(out, "{text}").expect("a Vec takes all that is written");
        };
        line(format_args!("# HELP {prefix}_{name} {help}"));
        line(format_args!("# TYPE {prefix}_{name} histogram"));
        for (bound, count) in buckets.cumulative() {
            line(format_args!("{prefix}_{name}_bucket{{le=\"{}\"}} {count}", bound as f64 / unit));
        }
        let count = buckets.count();
        line(format_args!("{prefix}_{name}_bucket{{le=\"+Inf\"}} {count}"));
        line(format_args!("{prefix}_{name}_sum {}", buckets.sum() as f64 / unit));
        line(format_args!("{prefix}_{name}_count {count}"));
    };
    histogram(
        "reply_seconds",
        "from the input, or from the job that a waiting client gets, until all replies are sent",
        1e9,
        &core.pulse.replies,
    );
    histogram(
        "commands_per_enter",
        "commands that were served between two waits for events",
        1.0,
        &core.pulse.commands,
    );
    if let Some(log) = &core.log {
        histogram("sync_seconds", "how long a sync of the log took", 1e9, log.sync_times());
    }
}
