//! The numbers of a tube, for `stats-tube` and `/metrics`.

use super::{Entry, Metric, MetricKind, Value, counter, gauge};
use crate::queue::{LatencyKind, Percentiles, RuleCounts, TubeStats};
use crate::server::Core;
use crate::time::{Span, Time};
use crate::values::ids::TubeKey;

/// A value of a tube.
pub(in crate::server) struct TubeMetric {
    pub entry: Entry<'static>,
    source: MetricSource,
}

enum MetricSource {
    Stats(fn(&TubeStats<'_>) -> u64),
    Span(fn(&TubeStats<'_>) -> Span),
    /// Separate from `Stats`, because it looks at each client that watches many tubes.
    Waiting,
    /// Separate from `Stats`, because it reads all bins of a histogram.
    Latency(LatencyKind, fn(&Percentiles) -> Span),
    TimeSum(LatencyKind),
    TimeCount(LatencyKind),
    /// Only of a tube with rules.
    Rules(fn(&RuleCounts) -> u64),
}

const fn entry(key: &'static str, metric: Option<Metric<'static>>, source: MetricSource) -> TubeMetric {
    TubeMetric { entry: Entry { key: Some(key), metric }, source }
}

const fn both(key: &'static str, metric: Metric<'static>, read: fn(&TubeStats<'_>) -> u64) -> TubeMetric {
    entry(key, Some(metric), MetricSource::Stats(read))
}

const fn percentile(key: &'static str, kind: LatencyKind, read: fn(&Percentiles) -> Span) -> TubeMetric {
    entry(key, None, MetricSource::Latency(kind, read))
}

const fn metric(metric: Metric<'static>, source: MetricSource) -> TubeMetric {
    TubeMetric { entry: Entry { key: None, metric: Some(metric) }, source }
}

/// What rules have done, for all tubes and for one.
pub(super) struct RuleMetric {
    pub key: &'static str,
    pub name: &'static str,
    pub help: &'static str,
    tube_name: &'static str,
    tube_help: &'static str,
    pub read: fn(&RuleCounts) -> u64,
}

pub(super) const RULES: [RuleMetric; 5] = [
    RuleMetric {
        key: "rule-refusals",
        name: "rule_refusals_total",
        help: "Number of commands refused by max-jobs or max-bytes of a tube.",
        tube_name: "tube_rule_refusals_total",
        tube_help: "Number of commands refused by max-jobs or max-bytes of a tube.",
        read: |counts| counts.refusals,
    },
    RuleMetric {
        key: "job-dead-letters",
        name: "jobs_dead_lettered_total",
        help: "Number of jobs that have had all attempts: moved to the tube of dead letters, or buried.",
        tube_name: "tube_jobs_dead_lettered_total",
        tube_help: "Number of jobs of a tube that have had all attempts: moved to the tube of dead letters, or buried.",
        read: |counts| counts.dead_letters,
    },
    RuleMetric {
        key: "job-retries",
        name: "jobs_retried_total",
        help: "Number of jobs that failed and that a rule has delayed.",
        tube_name: "tube_jobs_retried_total",
        tube_help: "Number of jobs of a tube that failed and that a rule has delayed.",
        read: |counts| counts.retries,
    },
    RuleMetric {
        key: "job-expiries",
        name: "jobs_expired_total",
        help: "Number of buried jobs that the retention of a tube has deleted.",
        tube_name: "tube_jobs_expired_total",
        tube_help: "Number of buried jobs that the retention of a tube has deleted.",
        read: |counts| counts.expiries,
    },
    RuleMetric {
        key: "rate-waits",
        name: "rate_waits_total",
        help: "Number of times that the rate of a tube permitted no further job for a while.",
        tube_name: "tube_rate_waits_total",
        tube_help: "Number of times that the rate of a tube permitted no further job for a while.",
        read: |counts| counts.rate_waits,
    },
];

const fn rule(at: usize) -> TubeMetric {
    let RuleMetric { key, tube_name, tube_help, read, .. } = RULES[at];
    entry(key, Some(counter(tube_name, tube_help)), MetricSource::Rules(read))
}

const TUBE_JOBS: Metric<'static> = gauge("tube_jobs", "Number of jobs of a tube, by state.");
const TUBE_QUEUE_TIME: Metric<'static> = Metric::new(
    MetricKind::Summary,
    "tube_queue_time_seconds",
    "Time from when a job of the tube became ready until it was reserved.",
);
const TUBE_RESERVED_TIME: Metric<'static> = Metric::new(
    MetricKind::Summary,
    "tube_reserved_time_seconds",
    "Time from when a job of the tube was reserved until it left the worker: deleted, released, buried, timed out, or disconnected.",
);

/// The values of a tube.
pub(in crate::server) const TUBE: &[TubeMetric] = &[
    both(
        "current-jobs-urgent",
        gauge("tube_jobs_urgent", "Number of ready jobs of a tube with a priority below 1024."),
        |tube| tube.urgent.into(),
    ),
    both("current-jobs-ready", TUBE_JOBS.label("state", "ready"), |tube| tube.ready as u64),
    both("current-jobs-reserved", TUBE_JOBS.label("state", "reserved"), |tube| tube.reserved.into()),
    both("current-jobs-delayed", TUBE_JOBS.label("state", "delayed"), |tube| tube.delayed as u64),
    both("current-jobs-buried", TUBE_JOBS.label("state", "buried"), |tube| tube.buried as u64),
    metric(TUBE_JOBS.label("state", "held"), MetricSource::Stats(|tube| tube.held as u64)),
    both(
        "total-jobs",
        counter("tube_jobs_created_total", "Number of jobs that put has stored in a tube."),
        |tube| tube.total_jobs,
    ),
    both(
        "current-using",
        gauge("tube_using_connections", "Number of client connections that use a tube."),
        |tube| tube.using.into(),
    ),
    both(
        "current-watching",
        gauge("tube_watching_connections", "Number of client connections that watch a tube."),
        |tube| tube.watching.into(),
    ),
    entry(
        "current-waiting",
        Some(gauge(
            "tube_waiting_connections",
            "Number of client connections that wait for a job of a tube.",
        )),
        MetricSource::Waiting,
    ),
    both("cmd-delete", counter("tube_jobs_deleted_total", "Number of jobs of a tube deleted."), |tube| {
        tube.deletes
    }),
    both(
        "cmd-pause-tube",
        counter("tube_pauses_total", "Number of pause-tube commands for a tube."),
        |tube| tube.pauses,
    ),
    entry("pause", None, MetricSource::Span(|tube| tube.pause)),
    entry(
        "pause-time-left",
        Some(gauge(
            "tube_pause_remaining_seconds",
            "Seconds until the pause of a tube ends, rounded down; 0 without one.",
        )),
        MetricSource::Span(|tube| tube.pause_left),
    ),
    both(
        "oldest-ready-age",
        gauge("tube_oldest_ready_age_seconds", "Whole seconds since the oldest ready job became ready."),
        |tube| tube.oldest_ready.as_secs(),
    ),
    percentile("queue-time-p50-us", LatencyKind::Queue, |times| times.p50),
    percentile("queue-time-p95-us", LatencyKind::Queue, |times| times.p95),
    percentile("queue-time-p99-us", LatencyKind::Queue, |times| times.p99),
    percentile("reserved-time-p50-us", LatencyKind::Reserved, |times| times.p50),
    percentile("reserved-time-p95-us", LatencyKind::Reserved, |times| times.p95),
    percentile("reserved-time-p99-us", LatencyKind::Reserved, |times| times.p99),
    both(
        "job-timeouts",
        counter(
            "tube_jobs_timed_out_total",
            "Number of reservations of a tube that ended by their time to run.",
        ),
        |tube| tube.timeouts,
    ),
    both("job-buries", counter("tube_jobs_buried_total", "Number of jobs of a tube buried."), |tube| {
        tube.buries
    }),
    entry("current-jobs-held", None, MetricSource::Stats(|tube| tube.held as u64)),
    metric(TUBE_QUEUE_TIME.part("_sum"), MetricSource::TimeSum(LatencyKind::Queue)),
    metric(TUBE_QUEUE_TIME.part("_count"), MetricSource::TimeCount(LatencyKind::Queue)),
    metric(TUBE_RESERVED_TIME.part("_sum"), MetricSource::TimeSum(LatencyKind::Reserved)),
    metric(TUBE_RESERVED_TIME.part("_count"), MetricSource::TimeCount(LatencyKind::Reserved)),
];

/// The values of a tube with rules, which follow those rules in `stats-tube`.
pub(in crate::server) const TUBE_RULES: &[TubeMetric] = &[rule(0), rule(1), rule(2), rule(3), rule(4)];

/// The metrics of tubes in the order of the page. Those of rules are left out while no tube has any.
pub(in crate::server) fn tube_metric(core: &Core, at: usize) -> Option<&'static TubeMetric> {
    let rules = if core.engine.has_rules() { TUBE_RULES } else { &[] };
    TUBE.get(at).or_else(|| rules.get(at - TUBE.len()))
}

impl TubeMetric {
    /// The number of clients that a reading looks at.
    pub fn looks(&self, core: &Core, tube: TubeKey) -> usize {
        if matches!(self.source, MetricSource::Waiting) { core.engine.tube_waiting_cost(tube) } else { 0 }
    }

    /// Returns the value, if the tube has it.
    pub fn read(&self, core: &Core, tube: TubeKey, now: Time) -> Option<Value<'static>> {
        let engine = &core.engine;
        Some(match self.source {
            MetricSource::Stats(read) => Value::Number(read(&engine.tube_stats(tube, now))),
            MetricSource::Span(read) => {
                Value::Decimal(core.config.shown(read(&engine.tube_stats(tube, now))))
            }
            MetricSource::Waiting => Value::Number(engine.tube_waiting(tube) as u64),
            MetricSource::Latency(kind, read) => {
                Value::Number(read(&engine.tube_times(tube, kind, now)).as_nanos() / 1000)
            }
            MetricSource::TimeSum(kind) => Value::Seconds(engine.tube_time_sum(tube, kind).ns / 1e9),
            MetricSource::TimeCount(kind) => Value::Number(engine.tube_time_sum(tube, kind).count),
            MetricSource::Rules(read) => Value::Number(read(&engine.rule_counts(tube)?)),
        })
    }
}
