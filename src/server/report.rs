//! The data of `stats`, `stats-job`, `stats-tube` and the lists, key by key as the reference shows it.

use super::Core;
use crate::ids::{ClientKey, JobKey, TubeKey};
use crate::log::{Log, LogStats};
use crate::protocol::command::CommandKind::{self, *};
use crate::protocol::reply::Yaml;
use crate::queue::State;
use crate::time::Time;

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

const QUEUE_TIME: [&str; 3] = ["queue-time-p50-us", "queue-time-p95-us", "queue-time-p99-us"];
const HELD_TIME: [&str; 3] = ["held-time-p50-us", "held-time-p95-us", "held-time-p99-us"];

pub(super) fn stats(core: &Core, out: &mut Vec<u8>, now: Time) {
    let queue = core.engine.queue_stats();
    let census = &queue.census;
    let host = &core.config.host;
    let mut yaml = Yaml::new(out);
    yaml.number("current-jobs-urgent", census.urgent);
    yaml.number("current-jobs-ready", census.in_state(State::Ready));
    yaml.number("current-jobs-reserved", census.in_state(State::Reserved));
    yaml.number("current-jobs-delayed", census.in_state(State::Delayed));
    yaml.number("current-jobs-buried", census.in_state(State::Buried));
    for (key, kind) in COUNTED {
        yaml.number(key, core.commands[kind as usize]);
    }
    yaml.number("job-timeouts", census.timeouts);
    yaml.number("total-jobs", census.total_jobs);
    yaml.number("max-job-size", core.config.max_job_bytes);
    yaml.number("current-tubes", queue.tubes);
    yaml.number("current-connections", core.connections);
    yaml.number("current-producers", census.producers);
    yaml.number("current-workers", census.workers);
    yaml.number("current-waiting", census.waiting);
    yaml.number("total-connections", core.total_connections);
    yaml.number("pid", host.pid);
    yaml.quoted("version", &host.version);
    let usage = (host.cpu_usage)();
    yaml.plain("rusage-utime", seconds(usage.user_us));
    yaml.plain("rusage-stime", seconds(usage.system_us));
    yaml.number("uptime", now.since(core.config.started).as_secs());
    let log = core.log.as_ref().map_or(LogStats::default(), Log::stats);
    yaml.number("binlog-oldest-index", log.oldest);
    yaml.number("binlog-current-index", log.current);
    yaml.number("binlog-records-migrated", log.records_moved);
    yaml.number("binlog-records-written", log.records_written);
    yaml.number("binlog-max-size", core.config.log_file_bytes);
    yaml.plain("draining", core.draining);
    yaml.plain("id", &host.id);
    yaml.quoted("hostname", &host.hostname);
    yaml.quoted("os", &host.os);
    yaml.quoted("platform", &host.platform);
    yaml.plain("io-driver", host.driver);
    yaml.number("io-registered-bytes", host.io.registered_bytes.get());
    yaml.number("io-zero-copy-sends", host.io.zero_copy_sends.get());
    yaml.number("io-enters", host.io.enters.get());
    yaml.number("log-live-bytes", log.live_bytes);
    yaml.number("log-disk-bytes", log.disk_bytes);
    yaml.number("log-syncs", log.syncs);
    yaml.number("log-records-a-sync", log.records_a_sync);
    yaml.number("log-last-sync-us", log.last_sync.as_nanos() / 1000);
    yaml.number("max-memory", core.config.max_memory_bytes.unwrap_or(0));
    yaml.number("memory-used", core.memory_bytes());
    yaml.number("memory-set-aside", core.engine.set_aside_bytes() as u64);
    yaml.number("memory-refusals", core.refusals);
    yaml.number("max-connections", core.config.max_connections.unwrap_or(0));
    yaml.number("io-accept-rests", host.io.accept_rests.get());
}

pub(super) fn tube(core: &Core, tube: TubeKey, out: &mut Vec<u8>, now: Time) {
    let stats = core.engine.tube_stats(tube, now);
    let mut yaml = Yaml::new(out);
    yaml.quoted("name", stats.name.as_str());
    yaml.number("current-jobs-urgent", stats.urgent);
    yaml.number("current-jobs-ready", stats.ready);
    yaml.number("current-jobs-reserved", stats.reserved);
    yaml.number("current-jobs-delayed", stats.delayed);
    yaml.number("current-jobs-buried", stats.buried);
    yaml.number("total-jobs", stats.total_jobs);
    yaml.number("current-using", stats.using);
    yaml.number("current-watching", stats.watching);
    yaml.number("current-waiting", stats.waiting);
    yaml.number("cmd-delete", stats.deletes);
    yaml.number("cmd-pause-tube", stats.pauses);
    yaml.number("pause", stats.pause.as_secs());
    yaml.number("pause-time-left", stats.pause_left.as_secs());
    yaml.number("oldest-ready-age", stats.oldest_ready.as_secs());
    for (key, span) in QUEUE_TIME.into_iter().zip(stats.queue_time.in_order()) {
        yaml.number(key, span.as_nanos() / 1000);
    }
    for (key, span) in HELD_TIME.into_iter().zip(stats.held_time.in_order()) {
        yaml.number(key, span.as_nanos() / 1000);
    }
}

pub(super) fn job(core: &Core, job: JobKey, out: &mut Vec<u8>, now: Time) {
    let stats = core.engine.job_stats(job, now);
    let state = match stats.state {
        State::Ready => "ready",
        State::Reserved => "reserved",
        State::Delayed => "delayed",
        State::Buried => "buried",
    };
    let mut yaml = Yaml::new(out);
    yaml.number("id", stats.id.0);
    yaml.quoted("tube", stats.tube.as_str());
    yaml.plain("state", state);
    yaml.number("pri", stats.pri);
    yaml.number("age", stats.age.as_secs());
    yaml.number("delay", stats.delay);
    yaml.number("ttr", stats.ttr);
    yaml.number("time-left", stats.time_left.as_secs());
    yaml.number("file", core.log.as_ref().map_or(0, |log| log.file_of(job)));
    yaml.number("reserves", stats.counts.reserves);
    yaml.number("timeouts", stats.counts.timeouts);
    yaml.number("releases", stats.counts.releases);
    yaml.number("buries", stats.counts.buries);
    yaml.number("kicks", stats.counts.kicks);
}

pub(super) fn tubes(core: &Core, out: &mut Vec<u8>) {
    let mut yaml = Yaml::new(out);
    for (_, tube) in core.engine.tubes().iter() {
        yaml.item(tube.name());
    }
}

pub(super) fn watched(core: &Core, client: ClientKey, out: &mut Vec<u8>) {
    let mut yaml = Yaml::new(out);
    for tube in core.engine.clients().watched(client) {
        yaml.item(core.engine.tubes().get(tube).name());
    }
}

/// Microseconds as the reference shows processor time.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}
