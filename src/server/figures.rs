//! What `stats` and `stats-tube` tell, in their order: rendered as YAML in [`report`](super::report), and for
//! Prometheus in [`http`](super::http).

use super::Core;
use crate::ids::TubeKey;
use crate::protocol::command::CommandKind::{self, *};
use crate::queue::{LatencyKind, Percentiles, State, TubeStats};
use crate::time::{Span, Time};
use crate::wal::{Log, LogStats};

/// The value of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// Goes up and down.
    Gauge(u64),
    /// Only goes up.
    Counter(u64),
    /// Processor time in microseconds, which only goes up.
    Cpu(u64),
    Flag(bool),
    /// A word of the server's own.
    Word(&'a str),
    /// What comes from outside.
    Text(&'a str),
}

/// How a figure of a tube changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Gauge,
    Counter,
}

/// A figure of a tube.
pub(super) struct TubeFigure {
    pub key: &'static str,
    pub kind: Kind,
    read: Reading,
}

enum Reading {
    Stats(fn(&TubeStats<'_>) -> u64),
    /// Looks at each client that watches many tubes, so it is not part of all others.
    Waiting,
    /// Looks at everything that is kept of the times of a tube.
    Times(LatencyKind, fn(&Percentiles) -> Span),
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

const fn gauge(key: &'static str, read: fn(&TubeStats<'_>) -> u64) -> TubeFigure {
    TubeFigure { key, kind: Kind::Gauge, read: Reading::Stats(read) }
}

const fn counter(key: &'static str, read: fn(&TubeStats<'_>) -> u64) -> TubeFigure {
    TubeFigure { key, kind: Kind::Counter, read: Reading::Stats(read) }
}

const fn time(key: &'static str, lapse: LatencyKind, read: fn(&Percentiles) -> Span) -> TubeFigure {
    TubeFigure { key, kind: Kind::Gauge, read: Reading::Times(lapse, read) }
}

/// What is told of each tube, after its name.
pub(super) const TUBE: &[TubeFigure] = &[
    gauge("current-jobs-urgent", |tube| tube.urgent.into()),
    gauge("current-jobs-ready", |tube| tube.ready as u64),
    gauge("current-jobs-reserved", |tube| tube.reserved.into()),
    gauge("current-jobs-delayed", |tube| tube.delayed as u64),
    gauge("current-jobs-buried", |tube| tube.buried as u64),
    counter("total-jobs", |tube| tube.total_jobs),
    gauge("current-using", |tube| tube.using.into()),
    gauge("current-watching", |tube| tube.watching.into()),
    TubeFigure { key: "current-waiting", kind: Kind::Gauge, read: Reading::Waiting },
    counter("cmd-delete", |tube| tube.deletes),
    counter("cmd-pause-tube", |tube| tube.pauses),
    gauge("pause", |tube| tube.pause.as_secs()),
    gauge("pause-time-left", |tube| tube.pause_left.as_secs()),
    gauge("oldest-ready-age", |tube| tube.oldest_ready.as_secs()),
    time("queue-time-p50-us", LatencyKind::Queue, |times| times.p50),
    time("queue-time-p95-us", LatencyKind::Queue, |times| times.p95),
    time("queue-time-p99-us", LatencyKind::Queue, |times| times.p99),
    time("held-time-p50-us", LatencyKind::Held, |times| times.p50),
    time("held-time-p95-us", LatencyKind::Held, |times| times.p95),
    time("held-time-p99-us", LatencyKind::Held, |times| times.p99),
];

impl TubeFigure {
    /// How many clients are looked at for it.
    pub fn looks(&self, core: &Core, tube: TubeKey) -> usize {
        if matches!(self.read, Reading::Waiting) { core.engine.tube_waiting_looks(tube) } else { 0 }
    }

    /// The figure for one tube.
    pub fn read(&self, core: &Core, tube: TubeKey, now: Time) -> u64 {
        match self.read {
            Reading::Stats(read) => read(&core.engine.tube_stats(tube, now)),
            Reading::Waiting => core.engine.tube_waiting(tube) as u64,
            Reading::Times(lapse, read) => read(&core.engine.tube_times(tube, lapse)).as_nanos() / 1000,
        }
    }
}

/// Tells every figure of the server.
pub(super) fn each(core: &Core, now: Time, tell: &mut dyn FnMut(&str, Value<'_>)) {
    queue(core, tell);
    process(core, now, tell);
    let log = core.log.as_ref().map_or(LogStats::default(), Log::stats);
    tell("binlog-oldest-index", Gauge(log.oldest));
    tell("binlog-current-index", Gauge(log.current));
    tell("binlog-records-migrated", Counter(log.records_moved));
    tell("binlog-records-written", Counter(log.records_written));
    tell("binlog-max-size", Gauge(core.config.log_file_bytes));
    host(core, tell);
    tell("log-live-bytes", Gauge(log.live_bytes));
    tell("log-disk-bytes", Gauge(log.disk_bytes));
    tell("log-syncs", Counter(log.syncs));
    tell("log-records-a-sync", Gauge(log.records_a_sync));
    tell("log-last-sync-us", Gauge(log.last_sync.as_nanos() / 1000));
    tell("max-memory", Gauge(core.config.max_memory_bytes.unwrap_or(0)));
    tell("memory-used", Gauge(core.memory_bytes()));
    tell("memory-set-aside", Gauge(core.engine.set_aside_bytes() as u64));
    tell("memory-refusals", Counter(core.refusals));
    tell("max-connections", Gauge(core.config.max_connections.unwrap_or(0).into()));
    tell("io-accept-rests", Counter(core.driver.accept_pauses));
    tell("foreign-requests", Counter(core.foreign.count()));
    tell("max-tubes", Gauge(core.config.max_tubes.unwrap_or(0).into()));
    tell("max-watches", Gauge(core.config.max_watches.unwrap_or(0).into()));
    tell("memory-tubes", Gauge(core.engine.tube_bytes() as u64));
    tell("tube-refusals", Counter(core.tube_refusals));
}

fn queue(core: &Core, tell: &mut dyn FnMut(&str, Value<'_>)) {
    let queue = core.engine.queue_stats();
    let totals = &queue.totals;
    let jobs = |state| Gauge(totals.in_state(state).into());
    tell("current-jobs-urgent", Gauge(totals.urgent.into()));
    tell("current-jobs-ready", jobs(State::Ready));
    tell("current-jobs-reserved", jobs(State::Reserved));
    tell("current-jobs-delayed", jobs(State::Delayed));
    tell("current-jobs-buried", jobs(State::Buried));
    for (key, kind) in COUNTED {
        tell(key, Counter(core.commands[kind as usize]));
    }
    tell("job-timeouts", Counter(totals.timeouts));
    tell("total-jobs", Counter(totals.total_jobs));
    tell("max-job-size", Gauge(core.config.max_job_bytes.into()));
    tell("current-tubes", Gauge(queue.tubes as u64));
    tell("current-connections", Gauge(core.connections));
    tell("current-producers", Gauge(totals.producers.into()));
    tell("current-workers", Gauge(totals.workers.into()));
    tell("current-waiting", Gauge(totals.waiting.into()));
    tell("total-connections", Counter(core.total_connections));
}

fn process(core: &Core, now: Time, tell: &mut dyn FnMut(&str, Value<'_>)) {
    let host = &core.config.host;
    tell("pid", Gauge(host.pid.into()));
    tell("version", Text(&host.version));
    tell("rusage-utime", Cpu(core.driver.cpu.user_us));
    tell("rusage-stime", Cpu(core.driver.cpu.system_us));
    tell("uptime", Gauge(now.since(core.config.started).as_secs()));
}

fn host(core: &Core, tell: &mut dyn FnMut(&str, Value<'_>)) {
    let host = &core.config.host;
    tell("draining", Flag(core.draining));
    tell("id", Word(&host.id));
    tell("hostname", Text(&host.hostname));
    tell("os", Text(&host.os));
    tell("platform", Text(&host.platform));
    tell("io-driver", Word(host.driver));
    tell("io-registered-bytes", Gauge(core.driver.registered_bytes));
    tell("io-zero-copy-sends", Counter(core.driver.zero_copy_sends));
    tell("io-enters", Counter(core.driver.enters));
    tell("io-self-check-repairs", Counter(core.driver.self_check_repairs));
}
