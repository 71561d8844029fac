//! Every metric of the server and of a tube, in the order of `stats` and `stats-tube`. [`stats`](super::stats) renders them
//! as YAML, [`http`](super::http) for Prometheus.

use super::Core;
use crate::ids::TubeKey;
use crate::protocol::command::CommandKind::{self, *};
use crate::queue::{JobState, LatencyKind, Percentiles, TubeStats};
use crate::time::{Span, Time};
use crate::wal::{Wal, WalStats};

/// The value of a server metric.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// A number that goes up and down.
    Gauge(u64),
    /// A number that only goes up.
    Counter(u64),
    /// CPU time in microseconds, which only goes up.
    Cpu(u64),
    Flag(bool),
    /// Text that needs no quotes.
    Word(&'a str),
    /// Text from outside the server, which may need quotes.
    Text(&'a str),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MetricKind {
    Gauge,
    Counter,
}

pub(super) struct TubeMetric {
    pub key: &'static str,
    pub kind: MetricKind,
    source: Source,
}

enum Source {
    Stats(fn(&TubeStats<'_>) -> u64),
    /// Separate from `Stats`, because it looks at each client that watches many tubes.
    Waiting,
    /// Separate from `Stats`, because it reads all bins of a histogram.
    Latency(LatencyKind, fn(&Percentiles) -> Span),
}

use Value::{Counter, Cpu, Flag, Gauge, Text, Word};

/// The commands that `stats` counts, in its order.
const COUNTED: [(&str, CommandKind); 22] = [
    ("cmd-put", Put),
    ("cmd-peek", Peek),
    ("cmd-peek-ready", PeekReady),
    ("cmd-peek-delayed", PeekDelayed),
    ("cmd-peek-buried", PeekBuried),
    ("cmd-reserve", Reserve),
    ("cmd-reserve-with-timeout", ReserveWithTimeout),
    ("cmd-delete", Delete),
    ("cmd-release", Release),
    ("cmd-use", Use),
    ("cmd-watch", Watch),
    ("cmd-ignore", Ignore),
    ("cmd-bury", Bury),
    ("cmd-kick", Kick),
    ("cmd-touch", Touch),
    ("cmd-stats", Stats),
    ("cmd-stats-job", StatsJob),
    ("cmd-stats-tube", StatsTube),
    ("cmd-list-tubes", ListTubes),
    ("cmd-list-tube-used", ListTubeUsed),
    ("cmd-list-tubes-watched", ListTubesWatched),
    ("cmd-pause-tube", PauseTube),
];

const fn gauge(key: &'static str, read: fn(&TubeStats<'_>) -> u64) -> TubeMetric {
    TubeMetric { key, kind: MetricKind::Gauge, source: Source::Stats(read) }
}

const fn counter(key: &'static str, read: fn(&TubeStats<'_>) -> u64) -> TubeMetric {
    TubeMetric { key, kind: MetricKind::Counter, source: Source::Stats(read) }
}

const fn latency(key: &'static str, kind: LatencyKind, read: fn(&Percentiles) -> Span) -> TubeMetric {
    TubeMetric { key, kind: MetricKind::Gauge, source: Source::Latency(kind, read) }
}

/// The metrics of a tube.
pub(super) const TUBE: &[TubeMetric] = &[
    gauge("current-jobs-urgent", |tube| tube.urgent.into()),
    gauge("current-jobs-ready", |tube| tube.ready as u64),
    gauge("current-jobs-reserved", |tube| tube.reserved.into()),
    gauge("current-jobs-delayed", |tube| tube.delayed as u64),
    gauge("current-jobs-buried", |tube| tube.buried as u64),
    counter("total-jobs", |tube| tube.total_jobs),
    gauge("current-using", |tube| tube.using.into()),
    gauge("current-watching", |tube| tube.watching.into()),
    TubeMetric { key: "current-waiting", kind: MetricKind::Gauge, source: Source::Waiting },
    counter("cmd-delete", |tube| tube.deletes),
    counter("cmd-pause-tube", |tube| tube.pauses),
    gauge("pause", |tube| tube.pause.as_secs()),
    gauge("pause-time-left", |tube| tube.pause_left.as_secs()),
    gauge("oldest-ready-age", |tube| tube.oldest_ready.as_secs()),
    latency("queue-time-p50-us", LatencyKind::Queue, |times| times.p50),
    latency("queue-time-p95-us", LatencyKind::Queue, |times| times.p95),
    latency("queue-time-p99-us", LatencyKind::Queue, |times| times.p99),
    latency("reserved-time-p50-us", LatencyKind::Reserved, |times| times.p50),
    latency("reserved-time-p95-us", LatencyKind::Reserved, |times| times.p95),
    latency("reserved-time-p99-us", LatencyKind::Reserved, |times| times.p99),
];

impl TubeMetric {
    /// The number of clients that a reading looks at.
    pub fn looks(&self, core: &Core, tube: TubeKey) -> usize {
        if matches!(self.source, Source::Waiting) { core.engine.tube_waiting_cost(tube) } else { 0 }
    }

    pub fn read(&self, core: &Core, tube: TubeKey, now: Time) -> u64 {
        match self.source {
            Source::Stats(read) => read(&core.engine.tube_stats(tube, now)),
            Source::Waiting => core.engine.tube_waiting(tube) as u64,
            Source::Latency(kind, read) => read(&core.engine.tube_times(tube, kind)).as_nanos() / 1000,
        }
    }
}

/// Calls `visit` with every metric of the server.
pub(super) fn visit_server(core: &Core, now: Time, visit: &mut dyn FnMut(&str, Value<'_>)) {
    queue(core, visit);
    process(core, now, visit);
    let log = core.log.as_ref().map_or(WalStats::default(), Wal::stats);
    visit("binlog-oldest-index", Gauge(log.oldest));
    visit("binlog-current-index", Gauge(log.current));
    visit("binlog-records-migrated", Counter(log.records_moved));
    visit("binlog-records-written", Counter(log.records_written));
    visit("binlog-max-size", Gauge(core.config.log_file_bytes));
    host(core, visit);
    visit("wal-live-bytes", Gauge(log.live_bytes));
    visit("wal-disk-bytes", Gauge(log.disk_bytes));
    visit("wal-syncs", Counter(log.syncs));
    visit("wal-records-per-sync", Gauge(log.records_a_sync));
    visit("wal-last-sync-us", Gauge(log.last_sync.as_nanos() / 1000));
    visit("max-memory", Gauge(core.config.max_memory_bytes.unwrap_or(0)));
    visit("memory-used", Gauge(core.memory_bytes()));
    visit("memory-reserved", Gauge(core.engine.reserved_memory_bytes() as u64));
    visit("memory-refusals", Counter(core.memory_refusals));
    visit("max-connections", Gauge(core.config.max_connections.unwrap_or(0).into()));
    visit("io-accept-pauses", Counter(core.driver.accept_pauses));
    visit("foreign-requests", Counter(core.foreign_requests.count()));
    visit("max-tubes", Gauge(core.config.max_tubes.unwrap_or(0).into()));
    visit("max-watches", Gauge(core.config.max_watches.unwrap_or(0).into()));
    visit("memory-tubes", Gauge(core.engine.tube_bytes() as u64));
    visit("tube-refusals", Counter(core.tube_refusals));
}

fn queue(core: &Core, visit: &mut dyn FnMut(&str, Value<'_>)) {
    let queue = core.engine.queue_stats();
    let totals = &queue.totals;
    let jobs = |state| Gauge(totals.in_state(state).into());
    visit("current-jobs-urgent", Gauge(totals.urgent.into()));
    visit("current-jobs-ready", jobs(JobState::Ready));
    visit("current-jobs-reserved", jobs(JobState::Reserved));
    visit("current-jobs-delayed", jobs(JobState::Delayed));
    visit("current-jobs-buried", jobs(JobState::Buried));
    for (key, kind) in COUNTED {
        visit(key, Counter(core.commands[kind as usize]));
    }
    visit("job-timeouts", Counter(totals.timeouts));
    visit("total-jobs", Counter(totals.total_jobs));
    visit("max-job-size", Gauge(core.config.max_job_bytes.into()));
    visit("current-tubes", Gauge(queue.tubes as u64));
    visit("current-connections", Gauge(core.clients));
    visit("current-producers", Gauge(totals.producers.into()));
    visit("current-workers", Gauge(totals.workers.into()));
    visit("current-waiting", Gauge(totals.waiting.into()));
    visit("total-connections", Counter(core.clients_total));
}

fn process(core: &Core, now: Time, visit: &mut dyn FnMut(&str, Value<'_>)) {
    let host = &core.config.host;
    visit("pid", Gauge(host.pid.into()));
    visit("version", Text(&host.version));
    visit("rusage-utime", Cpu(core.driver.cpu.user_us));
    visit("rusage-stime", Cpu(core.driver.cpu.system_us));
    visit("uptime", Gauge(now.since(core.config.started).as_secs()));
}

fn host(core: &Core, visit: &mut dyn FnMut(&str, Value<'_>)) {
    let host = &core.config.host;
    visit("draining", Flag(core.draining));
    visit("id", Word(&host.id));
    visit("hostname", Text(&host.hostname));
    visit("os", Text(&host.os));
    visit("platform", Text(&host.platform));
    visit("io-driver", Word(host.driver));
    visit("io-registered-bytes", Gauge(core.driver.registered_bytes));
    visit("io-zero-copy-sends", Counter(core.driver.zero_copy_sends));
    visit("io-waits", Counter(core.driver.waits));
    visit("io-self-check-repairs", Counter(core.driver.self_check_repairs));
}
