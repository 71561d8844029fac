//! `/metrics` in the text format of Prometheus. The [catalog](metric_catalog) has the metrics, this module renders them.

use std::io::Write;
use std::sync::Arc;

use super::page::Piece;
use super::tubes::cost_of_slot;
use crate::queue::Tube;
use crate::server::metric_catalog::{self, Metric, MetricKind, Value};
use crate::server::{Core, Rights, User};
use crate::time::Time;
use crate::values::histogram::Histogram;
use crate::values::ids::TubeKey;
use crate::values::limits::METRICS_TUBES_DEFAULT;

/// Lines that are rendered in one event-loop iteration: some 100 us.
const STEP_LINES: usize = 500;

/// Clients that are looked at in the time of one line.
const LOOKS_PER_LINE: usize = 16;

/// Slots of tubes that are visited in one event-loop iteration.
const STEP_SLOTS: usize = 1000;

/// A page that is rendered in pieces. The format wants all values of a metric together, so the page visits all tubes once
/// per metric. Nothing is allocated before the first piece.
pub(super) struct MetricsPage {
    at: Position,
    /// The tubes that are shown, and while they are chosen those that may be shown. A tube that has been removed is left out
    /// from then on.
    tubes: Vec<TubeKey>,
    others: Vec<TubeKey>,
    /// The most tubes that are shown.
    tubes_max: usize,
    /// Only tubes that this user may inspect are shown.
    user: Option<Arc<User>>,
}

enum Position {
    Server,
    Choice { next_slot: u32 },
    Tubes { metric: usize, tube: usize },
}

impl MetricsPage {
    pub const fn new(user: Option<Arc<User>>) -> Self {
        Self { at: Position::Server, tubes: Vec::new(), others: Vec::new(), tubes_max: 0, user }
    }

    pub fn memory_bytes(&self) -> usize {
        (self.tubes.capacity() + self.others.capacity()) * size_of::<TubeKey>()
    }

    /// Whether the statistics of the server are still to be rendered.
    pub const fn is_at_start(&self) -> bool {
        matches!(self.at, Position::Server)
    }

    /// Renders a bounded piece. Returns true if it was the last.
    pub fn step(&mut self, core: &Core, now: Time, piece: &mut Piece<'_>) -> bool {
        match self.at {
            Position::Server => {
                let count = core.engine.tubes().len();
                self.tubes_max = Self::tubes_max(core).min(count);
                self.server(core, now, count - self.tubes_max, piece.out);
                self.at = Position::Choice { next_slot: 0 };
                self.tubes_max == 0
            }
            Position::Choice { next_slot } => {
                self.choose(next_slot, core, piece);
                false
            }
            Position::Tubes { metric, tube } => self.step_tubes(metric, tube, core, now, piece),
        }
    }

    /// How many tubes may be shown: no more than usual if memory is short.
    fn tubes_max(core: &Core) -> usize {
        let wanted = (core.config.metrics_tubes as usize).min(core.engine.tubes().len());
        let has_memory = core.has_memory_for_http(2 * wanted * size_of::<TubeKey>());
        if has_memory { wanted } else { wanted.min(METRICS_TUBES_DEFAULT as usize) }
    }

    /// Visits a bounded number of slots. Tubes with a ready job and without a pause come first.
    fn choose(&mut self, mut next_slot: u32, core: &Core, piece: &mut Piece<'_>) {
        let Self { tubes, others, tubes_max, user, .. } = self;
        let all = core.engine.tubes();
        let end = all.slots_end();
        let slots = STEP_SLOTS / cost_of_slot(user.as_deref());
        let last = end.min(next_slot.saturating_add(slots as u32));
        // With fewer tubes, the order does not matter.
        let needs_order = all.len() > *tubes_max;
        // Bounded by STEP_SLOTS: the slots of one piece.
        while next_slot < last && tubes.len() < *tubes_max {
            let is_seen =
                |tube: &Tube| user.as_ref().is_none_or(|user| user.may(Rights::INSPECT, tube.name()));
            if let Some((key, tube)) = all.at_slot(next_slot).filter(|(_, tube)| is_seen(tube)) {
                if !needs_order || tube.is_reservable() {
                    tubes.push(key);
                } else if others.len() < *tubes_max {
                    others.push(key);
                }
            }
            next_slot += 1;
        }
        piece.steps += STEP_SLOTS;
        self.at = Position::Choice { next_slot };
        if next_slot == end || tubes.len() == *tubes_max {
            let room = *tubes_max - tubes.len();
            tubes.extend(std::mem::take(others).into_iter().take(room));
            self.at = Position::Tubes { metric: 0, tube: 0 };
        }
    }

    fn server(&self, core: &Core, now: Time, tubes_not_shown: usize, out: &mut Vec<u8>) {
        let mut page = Page::new(core, out);
        metric_catalog::visit_server(core, now, &mut |entry, value| {
            if let Some(metric) = entry.metric {
                page.value(&metric, value);
            }
        });
        let help = "Number of tubes that this page leaves out (--metrics-tubes).";
        let not_shown = Metric::new(MetricKind::Gauge, "tubes_not_shown", help);
        page.value(&not_shown, Value::Number(tubes_not_shown as u64));
        metric_catalog::visit_histograms(core, &mut |metric, histogram, unit| {
            page.histogram(&metric, histogram, unit);
        });
    }

    fn step_tubes(
        &mut self,
        mut metric: usize,
        mut tube: usize,
        core: &Core,
        now: Time,
        piece: &mut Piece<'_>,
    ) -> bool {
        let tubes = core.engine.tubes();
        let mut page = Page::new(core, piece.out);
        let mut lines = 0;
        // Bounded by STEP_LINES: the lines of one piece.
        while lines < STEP_LINES {
            let Some(current) = metric_catalog::tube_metric(core, metric) else { return true };
            let (Some(shown), Some(&key)) = (current.entry.metric, self.tubes.get(tube)) else {
                (metric, tube) = (metric + 1, 0);
                continue;
            };
            let before = metric.checked_sub(1).and_then(|before| metric_catalog::tube_metric(core, before));
            let before = before.and_then(|before| before.entry.metric);
            if tube == 0 && before.is_none_or(|before| before.name != shown.name) {
                page.head(&shown);
            }
            tube += 1;
            lines += 1;
            if let Some(known) = tubes.get_if_there(key) {
                if let Some(value) = current.read(core, key, now) {
                    page.sample(&shown, &[("tube", known.name().as_str())], value);
                }
                lines += current.looks(core, key) / LOOKS_PER_LINE;
            }
            if page.out.len() >= piece.output_bytes_max {
                break;
            }
        }
        self.at = Position::Tubes { metric, tube };
        false
    }
}

/// Appends metrics to a page.
struct Page<'a> {
    prefix: &'a str,
    /// The name of the last metric.
    last: &'static str,
    out: &'a mut Vec<u8>,
}

impl<'a> Page<'a> {
    fn new(core: &'a Core, out: &'a mut Vec<u8>) -> Self {
        Self { prefix: &core.config.metrics_prefix, last: "", out }
    }

    /// Appends a sample, after the lines that describe its metric if they are not there yet.
    fn value(&mut self, metric: &Metric<'_>, value: Value<'_>) {
        if self.last != metric.name {
            self.last = metric.name;
            self.head(metric);
        }
        self.sample(metric, &[], value);
    }

    fn head(&mut self, metric: &Metric<'_>) {
        let kind = match metric.kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
            MetricKind::Summary => "summary",
            MetricKind::Histogram => "histogram",
        };
        for (word, text) in [("# HELP ", metric.help), ("# TYPE ", kind)] {
            self.out.extend_from_slice(word.as_bytes());
            self.name(metric);
            self.out.push(b' ');
            self.out.extend_from_slice(text.as_bytes());
            self.out.push(b'\n');
        }
    }

    // Bounded by STEP_LINES: each line has two labels at most.
    fn sample(&mut self, metric: &Metric<'_>, labels: &[(&str, &str)], value: Value<'_>) {
        self.name(metric);
        self.out.extend_from_slice(metric.suffix.as_bytes());
        let labels = labels.iter().chain(&metric.labels).filter(|(name, _)| !name.is_empty());
        let mut separator = b'{';
        for (name, text) in labels {
            self.out.push(separator);
            self.label(name, text);
            separator = b',';
        }
        self.out.extend_from_slice(if separator == b'{' { b" " } else { b"} " });
        match value {
            Value::Number(number) => {
                self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            }
            Value::Seconds(seconds) => write!(self.out, "{seconds}").expect("writing to a Vec cannot fail"),
            Value::Decimal(seconds) => write!(self.out, "{seconds}").expect("writing to a Vec cannot fail"),
            Value::Flag(flag) => self.out.push(if flag { b'1' } else { b'0' }),
            Value::Word(text) | Value::Text(text) => unreachable!("{text:?} is a label, not a value"),
        }
        self.out.push(b'\n');
    }

    /// Appends the buckets, the sum and the number of values. `unit` is how many units of the histogram are one of the metric.
    fn histogram(&mut self, metric: &Metric<'_>, histogram: &Histogram, unit: f64) {
        self.head(metric);
        let bucket = Metric { suffix: "_bucket", ..*metric };
        // Bounded by BOUNDS_MAX: the buckets of one histogram.
        for (bound, count) in histogram.cumulative() {
            let bound = (bound as f64 / unit).to_string();
            self.sample(&bucket, &[("le", &bound)], Value::Number(count));
        }
        self.sample(&bucket, &[("le", "+Inf")], Value::Number(histogram.count()));
        let sum = Value::Seconds(histogram.sum() as f64 / unit);
        self.sample(&Metric { suffix: "_sum", ..*metric }, &[], sum);
        self.sample(&Metric { suffix: "_count", ..*metric }, &[], Value::Number(histogram.count()));
    }

    fn name(&mut self, metric: &Metric<'_>) {
        if !metric.is_standard {
            self.out.extend_from_slice(self.prefix.as_bytes());
            self.out.push(b'_');
        }
        self.out.extend_from_slice(metric.name.as_bytes());
    }

    fn label(&mut self, name: &str, text: &str) {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"=\"");
        // Bounded by TUBE_NAME_BYTES_MAX: the longest label is the name of a tube.
        for byte in text.bytes() {
            match byte {
                b'\n' => self.out.extend_from_slice(b"\\n"),
                b'"' | b'\\' => self.out.extend_from_slice(&[b'\\', byte]),
                _ => self.out.push(byte),
            }
        }
        self.out.push(b'"');
    }
}
