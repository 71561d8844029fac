//! Every number of `stats`, `stats-tube` and `/metrics`, with its key, its metric, or both. The order is that of `stats` and
//! `stats-tube`. [`stats`](super::beanstalk::stats) renders it as YAML, [`http`](super::http) for Prometheus.
//!
//! Bounded by the compiler: the keys of `stats` are fixed.

mod replica;
mod tube;

use self::tube::RULES;
pub(super) use self::tube::{TUBE, TUBE_RULES, TubeMetric, tube_metric};
use super::access::AuthFailure;
use super::metrics::Count;
use super::put_refusals::PutReason;
use super::replica::Replica;
use super::{Core, DriverStats, HandshakeFailure, TlsCounts};
use crate::protocol::command::{CommandKind, Counted};
use crate::protocol::reply::ErrorKind;
use crate::queue::{JobState, JobTotals, KeyStats, RuleCounts, ScheduleCounts};
use crate::time::{Seconds, Span, Time};
use crate::values::histogram::Histogram;
use crate::wal::{Wal, WalStats};

/// A value of the server or a tube.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Number(u64),
    Seconds(f64),
    /// Whole seconds, or with `--sub-second` up to three decimals.
    Decimal(Seconds),
    Flag(bool),
    /// Text that needs no quotes.
    Word(&'a str),
    /// Text from outside the server, which may need quotes.
    Text(&'a str),
}

/// A metric, or one of several that share a name and have different labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metric<'a> {
    pub name: &'static str,
    pub kind: MetricKind,
    /// A sentence.
    pub help: &'static str,
    /// Names and values. A label without a name is none.
    pub labels: [(&'static str, &'a str); 2],
    /// The name is a convention of Prometheus and has no prefix.
    pub is_standard: bool,
    /// What follows the name in a sample, for the parts of a summary.
    pub suffix: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MetricKind {
    Gauge,
    Counter,
    Summary,
    Histogram,
}

/// Where a value is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// The key in `stats` or `stats-tube`.
    pub key: Option<&'a str>,
    pub metric: Option<Metric<'a>>,
}

impl<'a> Metric<'a> {
    pub const fn new(kind: MetricKind, name: &'static str, help: &'static str) -> Self {
        Self { name, kind, help, labels: [("", ""); 2], is_standard: false, suffix: "" }
    }

    const fn label(mut self, name: &'static str, value: &'a str) -> Self {
        let at = if self.labels[0].0.is_empty() { 0 } else { 1 };
        self.labels[at] = (name, value);
        self
    }

    const fn standard(self) -> Self {
        Self { is_standard: true, ..self }
    }

    const fn part(self, suffix: &'static str) -> Self {
        Self { suffix, ..self }
    }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric<'static> {
    Metric::new(MetricKind::Gauge, name, help)
}

const fn counter(name: &'static str, help: &'static str) -> Metric<'static> {
    Metric::new(MetricKind::Counter, name, help)
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Span> for Value<'_> {
    fn from(span: Span) -> Self {
        Self::Seconds(span.as_nanos() as f64 / 1e9)
    }
}

/// Shows each value of the server to a visitor.
pub(super) struct Catalog<'a> {
    visit: &'a mut dyn FnMut(Entry<'_>, Value<'_>),
}

impl Catalog<'_> {
    fn both<'v>(&mut self, key: &str, metric: Metric<'_>, value: impl Into<Value<'v>>) {
        (self.visit)(Entry { key: Some(key), metric: Some(metric) }, value.into());
    }

    /// A value of `stats` alone.
    fn key<'v>(&mut self, key: &'static str, value: impl Into<Value<'v>>) {
        (self.visit)(Entry { key: Some(key), metric: None }, value.into());
    }

    /// A value of `/metrics` alone.
    fn metric<'v>(&mut self, metric: Metric<'_>, value: impl Into<Value<'v>>) {
        (self.visit)(Entry { key: None, metric: Some(metric) }, value.into());
    }

    /// Shows a metric, if there is a value.
    fn metric_if_known(&mut self, metric: Metric<'_>, value: Option<u64>) {
        if let Some(value) = value {
            self.metric(metric, value);
        }
    }
}

/// Calls `visit` with every value of the server but its histograms.
pub(super) fn visit_server(core: &Core, now: Time, visit: &mut dyn FnMut(Entry<'_>, Value<'_>)) {
    let catalog = &mut Catalog { visit };
    let totals = core.engine.totals();
    jobs(&totals, catalog);
    commands(core, catalog);
    job_events(&totals, catalog);
    connections(core, &totals, catalog);
    process(core, now, catalog);
    let wal = core.log.wal().map_or(WalStats::default(), Wal::stats);
    wal_segments(core, &wal, catalog);
    machine(core, catalog);
    io_driver(core, catalog);
    wal_disk(core, &wal, catalog);
    limits(core, catalog);
    if let Some(counts) = core.outer_counts.tls() {
        tls(counts, catalog);
    }
    if let Some(state) = core.log.replica_state(now) {
        replica::replica(&state, catalog);
    }
    extensions(core, catalog);
}

fn jobs(totals: &JobTotals, catalog: &mut Catalog<'_>) {
    let urgent = gauge("jobs_urgent", "Number of ready jobs with a priority below 1024.");
    catalog.both("current-jobs-urgent", urgent, totals.urgent);
    let jobs = gauge("jobs", "Number of jobs by state.");
    for (key, name, state) in [
        ("current-jobs-ready", "ready", JobState::Ready),
        ("current-jobs-reserved", "reserved", JobState::Reserved),
        ("current-jobs-delayed", "delayed", JobState::Delayed),
        ("current-jobs-buried", "buried", JobState::Buried),
    ] {
        catalog.both(key, jobs.label("state", name), totals.in_state(state));
    }
    catalog.metric(jobs.label("state", "held"), totals.in_state(JobState::Held));
}

fn commands(core: &Core, catalog: &mut Catalog<'_>) {
    let commands = counter("commands_total", "Number of commands served, by command.");
    for kind in CommandKind::ALL {
        let (metric, number) = (commands.label("command", kind.word()), core.counts.commands(kind));
        match kind.counted() {
            Counted::Beanstalkd => catalog.both(kind.key(), metric, number),
            Counted::Beanring | Counted::Nowhere => catalog.metric(metric, number),
        }
    }
    let errors = counter("errors_total", "Number of error replies, by kind.");
    for (kind, name) in ErrorKind::ALL {
        catalog.metric(errors.label("kind", name), core.buffers.errors(kind));
    }
}

fn extensions(core: &Core, catalog: &mut Catalog<'_>) {
    for kind in CommandKind::ALL.into_iter().filter(|kind| kind.counted() == Counted::Beanring) {
        catalog.key(kind.key(), core.counts.commands(kind));
    }
    let waits =
        gauge("job_end_waiting_connections", "Number of client connections that wait for the end of a job.");
    catalog.both("current-job-waits", waits, core.engine.job_waits() as u64);
    catalog.key("current-jobs-held", core.engine.totals().in_state(JobState::Held));
    let repeats =
        counter("jobs_repeated_total", "Number of puts that repeated the idempotency key of a job.");
    catalog.both("job-repeats", repeats, core.engine.totals().repeats);
    let lost = counter(
        "jobs_lost_total",
        "Number of reservations that failed because the connection of the client was lost.",
    );
    catalog.both("job-losses", lost, core.engine.totals().losses);
    rules(&core.engine.rule_totals(), catalog);
    let ruled = gauge("ruled_tubes", "Number of tubes with rules, with those that do not exist.");
    catalog.both("current-ruled-tubes", ruled, core.engine.ruled_tubes_len() as u64);
    schedules(core.engine.schedule_counts(), catalog);
}

fn schedules((count, totals): (usize, ScheduleCounts), catalog: &mut Catalog<'_>) {
    let ScheduleCounts { runs, skips, refusals, gaps, lateness } = totals;
    catalog.both("current-schedules", gauge("schedules", "Number of schedules."), count as u64);
    for (key, name, help, count) in [
        ("schedule-runs", "schedule_runs_total", "Number of jobs that schedules have put.", runs),
        (
            "schedule-skips",
            "schedule_skips_total",
            "Number of runs left out because the job of the last run still existed.",
            skips,
        ),
        (
            "schedule-refusals",
            "schedule_refusals_total",
            "Number of runs whose job could not be put: the tube is full, or there is no room for it.",
            refusals,
        ),
        (
            "schedule-gaps",
            "schedule_gaps_total",
            "Number of times that runs were left out because the server could not run.",
            gaps,
        ),
    ] {
        catalog.both(key, counter(name, help), count);
    }
    let late =
        counter("schedule_lateness_seconds_total", "Time by which runs were late, of all runs together.");
    catalog.metric(late, lateness);
}

fn rules(totals: &RuleCounts, catalog: &mut Catalog<'_>) {
    for rule in &RULES {
        catalog.both(rule.key, counter(rule.name, rule.help), (rule.read)(totals));
    }
}

fn job_events(totals: &JobTotals, catalog: &mut Catalog<'_>) {
    let timed_out =
        counter("jobs_timed_out_total", "Number of reservations that ended by their time to run.");
    catalog.both("job-timeouts", timed_out, totals.timeouts);
    catalog.both(
        "total-jobs",
        counter("jobs_created_total", "Number of jobs that put has stored."),
        totals.total_jobs,
    );
    catalog.metric(counter("jobs_deleted_total", "Number of jobs deleted."), totals.deletes);
    catalog.metric(counter("jobs_released_total", "Number of jobs released."), totals.releases);
    catalog.metric(counter("jobs_buried_total", "Number of jobs buried."), totals.buries);
    catalog.metric(counter("jobs_kicked_total", "Number of jobs kicked."), totals.kicks);
    catalog.metric(
        counter("jobs_moved_total", "Number of jobs that commands moved to another tube."),
        totals.moves,
    );
}

fn connections(core: &Core, totals: &JobTotals, catalog: &mut Catalog<'_>) {
    let Core { config, counts, .. } = core;
    let max_job_bytes = gauge("job_size_limit_bytes", "Maximum size of a job body (-z).");
    catalog.both("max-job-size", max_job_bytes, config.max_job_bytes);
    let tubes = core.engine.tubes().len() as u64;
    catalog.both("current-tubes", gauge("tubes", "Number of tubes."), tubes);
    catalog.both(
        "current-connections",
        gauge("connections", "Number of client connections."),
        counts.clients(),
    );
    let producers = gauge("producer_connections", "Number of client connections that have put a job.");
    catalog.both("current-producers", producers, totals.producers);
    let workers = gauge("worker_connections", "Number of client connections that have reserved a job.");
    catalog.both("current-workers", workers, totals.workers);
    let waiting = gauge("waiting_connections", "Number of client connections that wait for a job.");
    catalog.both("current-waiting", waiting, totals.waiting);
    let accepted = counter("connections_accepted_total", "Number of client connections accepted.");
    catalog.both("total-connections", accepted, counts.of(Count::Connected));
    let received = counter("received_bytes_total", "Number of bytes received from clients.");
    catalog.metric(received, counts.of(Count::ReceivedBytes));
    catalog
        .metric(counter("sent_bytes_total", "Number of bytes sent to clients."), counts.of(Count::SentBytes));
}

fn process(core: &Core, now: Time, catalog: &mut Catalog<'_>) {
    let DriverStats { cpu, process: usage, .. } = core.outer_counts.driver();
    let host = &core.config.host;
    catalog.key("pid", host.pid);
    catalog.key("version", Value::Text(&host.version));
    let build = gauge("build_info", "Version of the server and its I/O driver; the value is always 1.");
    let build = build.label("version", &host.version).label("driver", host.driver);
    catalog.metric(build, 1_u32);
    let seconds = |us: u64| Value::Seconds(us as f64 / 1e6);
    catalog.key("rusage-utime", seconds(cpu.user_us));
    catalog.key("rusage-stime", seconds(cpu.system_us));
    catalog.metric(
        counter("process_cpu_seconds_total", "CPU time of the process, user and system.").standard(),
        seconds(cpu.user_us + cpu.system_us),
    );
    let resident = gauge("process_resident_memory_bytes", "Resident memory of the process.");
    catalog.metric_if_known(resident.standard(), usage.resident_bytes);
    let virtual_memory = gauge("process_virtual_memory_bytes", "Virtual memory of the process.");
    catalog.metric_if_known(virtual_memory.standard(), usage.virtual_bytes);
    let open = gauge("process_open_fds", "Number of open file descriptors.");
    catalog.metric_if_known(open.standard(), usage.open_descriptors);
    let max = gauge("process_max_fds", "Maximum number of open file descriptors.");
    catalog.metric_if_known(max.standard(), usage.descriptors_max);
    let started = core.config.started;
    catalog.key("uptime", now.since(started).as_secs());
    let start = gauge("process_start_time_seconds", "Start of the server in seconds since 1970.").standard();
    catalog.metric(start, started.since(Time::ZERO));
}

fn wal_segments(core: &Core, wal: &WalStats, catalog: &mut Catalog<'_>) {
    let oldest = gauge("wal_oldest_segment", "Number of the oldest segment of the job log.");
    catalog.both("binlog-oldest-index", oldest, wal.oldest);
    let active = gauge("wal_active_segment", "Number of the segment of the job log that is written.");
    catalog.both("binlog-current-index", active, wal.current);
    let compacted =
        counter("wal_compacted_records_total", "Number of records that compaction has rewritten.");
    catalog.both("binlog-records-migrated", compacted, wal.records_moved);
    let written = counter("wal_records_total", "Number of records written to the job log.");
    catalog.both("binlog-records-written", written, wal.records_written);
    let segment = gauge("wal_segment_bytes", "Size of a new segment of the job log (-s).");
    catalog.both("binlog-max-size", segment, core.config.wal_segment_bytes);
}

fn machine(core: &Core, catalog: &mut Catalog<'_>) {
    let host = &core.config.host;
    catalog.both("draining", gauge("draining", "1 in drain mode, else 0."), core.puts.is_draining());
    catalog.key("id", Value::Word(&host.id));
    catalog.key("hostname", Value::Text(&host.hostname));
    catalog.key("os", Value::Text(&host.os));
    catalog.key("platform", Value::Text(&host.platform));
}

fn io_driver(core: &Core, catalog: &mut Catalog<'_>) {
    let driver = core.outer_counts.driver();
    catalog.key("io-driver", Value::Word(core.config.host.driver));
    let registered = gauge("io_registered_bytes", "Memory that is registered with the kernel.");
    catalog.both("io-registered-bytes", registered, driver.registered_bytes);
    let zero_copy = counter("io_zero_copy_sends_total", "Number of zero-copy sends.");
    catalog.both("io-zero-copy-sends", zero_copy, driver.zero_copy_sends);
    let copied =
        counter("io_zero_copy_copies_total", "Number of zero-copy sends that the kernel has copied.");
    catalog.both("io-zero-copy-copies", copied, driver.zero_copy_copies);
    let lost = counter(
        "io_lost_peers_total",
        "Number of connections closed because the machine of the peer did not answer (--tcp-keepalive).",
    );
    catalog.both("io-lost-peers", lost, driver.lost_peers);
    let waits = counter("io_waits_total", "Number of event-loop iterations: waits for events.");
    catalog.both("io-waits", waits, driver.waits);
    let repairs =
        counter("io_self_check_repairs_total", "Number of lost wake-ups that the driver has found.");
    catalog.both("io-self-check-repairs", repairs, driver.self_check_repairs);
}

fn wal_disk(core: &Core, wal: &WalStats, catalog: &mut Catalog<'_>) {
    let live = gauge("wal_live_bytes", "Size of the records of all jobs in the job log.");
    catalog.both("wal-live-bytes", live, wal.live_bytes);
    let disk = gauge("wal_disk_bytes", "Size of all segments; with --replicate, of all records.");
    catalog.both("wal-disk-bytes", disk, wal.disk_bytes);
    catalog.key("wal-syncs", wal.syncs);
    catalog.key("wal-records-per-sync", wal.records_per_sync);
    catalog.key("wal-last-sync-us", wal.last_sync.as_nanos() / 1000);
    let is = |is: fn(&Wal) -> bool| core.log.wal().is_some_and(is);
    let full = gauge("wal_disk_full", "1 while the disk of the job log has no space, else 0.");
    catalog.metric(full, is(Wal::is_full));
    let stalled = gauge("wal_stalled", "1 while a write to the job log waits for disk space, else 0.");
    catalog.metric(stalled, is(Wal::is_stalled));
    let recovery = gauge("wal_recovery_seconds", "Duration of the recovery of the job log at the start.");
    catalog.metric(recovery, core.config.recovery);
    let recovered = gauge("wal_recovered_jobs", "Number of jobs that were recovered at the start.");
    catalog.both("wal-recovered-jobs", recovered, core.log.recovered_jobs() as u64);
}

fn limits(core: &Core, catalog: &mut Catalog<'_>) {
    let Core { config, engine, counts, .. } = core;
    let driver = core.outer_counts.driver();
    let memory = gauge("memory_limit_bytes", "Memory limit (--max-memory); 0 is none.");
    catalog.both("max-memory", memory, config.max_memory_bytes.unwrap_or(0));
    let used = gauge("memory_used_bytes", "Memory that counts for the memory limit.");
    catalog.both("memory-used", used, core.memory_bytes());
    let reserved =
        gauge("memory_reserved_bytes", "Memory that is kept for later commands, beside the used memory.");
    catalog.both("memory-reserved", reserved, engine.reserved_memory_bytes() as u64);
    let refusals =
        counter("memory_refusals_total", "Number of commands and bodies refused at the limit of memory.");
    catalog.both("memory-refusals", refusals, counts.of(Count::MemoryRefusals));
    let refusals = counter("put_refusals_total", "Number of refused puts by their reason.");
    for reason in PutReason::ALL {
        let key = format!("put-refusals-{}", reason.word().replace('_', "-"));
        let refusals = refusals.label("reason", reason.word());
        catalog.both(&key, refusals, core.puts.refusals.count(reason));
    }
    let connections =
        gauge("connections_limit", "Maximum number of client connections (--max-connections); 0 is none.");
    catalog.both("max-connections", connections, config.max_connections.unwrap_or(0));
    let pauses = counter("accept_pauses_total", "Number of times that accept was paused.");
    catalog.both("io-accept-pauses", pauses, driver.accept_pauses);
    let paused = gauge("accept_paused", "1 while new client connections wait in the listen backlog, else 0.");
    catalog.metric(paused, driver.is_accept_paused);
    let lost = counter(
        "log_lines_lost_total",
        "Number of log lines that were not written because nothing read them in time.",
    );
    catalog.metric(lost, driver.lost_log_lines);
    let foreign = counter(
        "foreign_requests_total",
        "Number of connections closed because they began with a request of another protocol.",
    );
    catalog.both("foreign-requests", foreign, counts.of(Count::ForeignRequests));
    access(core, catalog);
    let tubes = gauge("tubes_limit", "Maximum number of tubes (--max-tubes); 0 is none.");
    catalog.both("max-tubes", tubes, config.max_tubes.unwrap_or(0));
    let watches =
        gauge("watches_limit", "Maximum number of tubes per connection (--max-watches); 0 is none.");
    catalog.both("max-watches", watches, config.max_watches.unwrap_or(0));
    let tube_memory = gauge("memory_tubes_bytes", "Memory of tubes, their names, and watches.");
    catalog.both("memory-tubes", tube_memory, engine.tube_bytes() as u64);
    let tube_refusals = counter(
        "tube_refusals_total",
        "Number of commands refused because there was no room for another tube or watch.",
    );
    catalog.both("tube-refusals", tube_refusals, counts.of(Count::TubeRefusals));
    keys(&engine.key_stats(), catalog);
}

fn access(core: &Core, catalog: &mut Catalog<'_>) {
    let users = gauge("auth_users", "Number of users (--auth).");
    catalog.metric(users, core.access.users().map_or(0, |users| users.len() as u64));
    let failures = counter("auth_failures_total", "Number of failed authentications by their reason.");
    for reason in AuthFailure::ALL {
        catalog.metric(failures.label("reason", reason.word()), core.access.failures(reason));
    }
    let reloads =
        counter("auth_reload_failures_total", "Number of changes of the file of users that were refused.");
    catalog.metric(reloads, core.access.reload_failures);
}

fn keys(stats: &KeyStats, catalog: &mut Catalog<'_>) {
    let KeyStats { kept, kept_bytes, promised_bytes, refusals, drops } = *stats;
    let count = gauge("kept_keys", "Number of idempotency keys of deleted jobs.");
    catalog.both("current-kept-keys", count, kept as u64);
    let memory = gauge("memory_kept_keys_bytes", "Memory of idempotency keys of deleted jobs.");
    catalog.both("memory-kept-keys", memory, kept_bytes as u64);
    let promised = gauge(
        "memory_promised_keys_bytes",
        "Memory of idempotency keys that will be kept once their jobs are deleted.",
    );
    catalog.both("memory-promised-keys", promised, promised_bytes as u64);
    let refused = counter(
        "key_refusals_total",
        "Number of put and put-batch commands refused because the share of idempotency keys had no room.",
    );
    catalog.both("key-refusals", refused, refusals);
    let dropped = counter(
        "keys_dropped_total",
        "Number of idempotency keys not kept because the job log had more than their share has room for.",
    );
    catalog.both("key-drops", dropped, drops);
}

/// Calls `visit` with every histogram, and how many of its units are one of the metric.
pub(super) fn visit_histograms(core: &Core, visit: &mut dyn FnMut(Metric<'_>, &Histogram, f64)) {
    const NANOSECONDS: f64 = 1e9;
    let metric = |name, help| Metric::new(MetricKind::Histogram, name, help);
    let queue = metric("queue_time_seconds", "Time from when a job became ready until it was reserved.");
    visit(queue, core.engine.queue_times(), NANOSECONDS);
    let reserved = metric(
        "reserved_time_seconds",
        "Time from when a job was reserved until it left the worker: deleted, released, buried, timed out, or disconnected.",
    );
    visit(reserved, core.engine.reserved_times(), NANOSECONDS);
    let reply = metric("reply_time_seconds", "Time from a command until its reply is sent.");
    visit(reply, core.counts.reply_times(), NANOSECONDS);
    let commands = metric("commands_per_iteration", "Number of commands served per event-loop iteration.");
    visit(commands, core.counts.commands_per_iteration(), 1.0);
    if let Some(wal) = core.log.wal() {
        let sync = metric("wal_sync_seconds", "Duration of a sync of the job log.");
        visit(sync, wal.sync_times(), NANOSECONDS);
    }
    if let Some(times) = core.log.replica().and_then(Replica::append_times) {
        let append = metric(
            "replication_append_seconds",
            "Time from an append to the database until it is acknowledged, with its repetitions.",
        );
        visit(append, times, NANOSECONDS);
    }
}

/// TLS and the PROXY protocol. Shown only if there is a listener for one of them.
fn tls(counts: &TlsCounts, catalog: &mut Catalog<'_>) {
    let connections = gauge("tls_connections", "Number of connections over TLS.");
    catalog.both("current-tls-connections", connections, counts.connections.get());
    let unfinished = gauge("tls_unfinished_handshakes", "Number of TLS handshakes that have not finished.");
    catalog.both("current-tls-handshakes", unfinished, counts.unfinished_handshakes.get());
    let handshakes = counter("tls_handshakes_total", "Number of finished TLS handshakes, by kind.");
    for (key, kind, count) in [
        ("tls-handshakes-full", "full", &counts.full_handshakes),
        ("tls-handshakes-resumed", "resumed", &counts.resumed_handshakes),
    ] {
        catalog.both(key, handshakes.label("kind", kind), count.get());
    }
    let failures = counter("tls_handshake_failures_total", "Number of failed TLS handshakes, by reason.");
    // Bounded by HandshakeFailure::ALL: the reasons of a failure.
    for failure in HandshakeFailure::ALL {
        let key = format!("tls-handshake-failures-{}", failure.word());
        catalog.both(&key, failures.label("reason", failure.word()), counts.failures(failure));
    }
    let expiry = gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "When the certificate in use expires, in seconds since 1970.",
    );
    catalog.both("tls-certificate-expiry", expiry, counts.not_after_s.get());
    let headers = counter(
        "proxy_header_failures_total",
        "Number of connections closed because they did not begin with a header of the PROXY protocol.",
    );
    catalog.both("proxy-header-failures", headers, counts.wrong_proxy_headers.get());
    let reloads = counter(
        "tls_certificate_reloads_total",
        "Number of certificates taken into use while the server ran.",
    );
    catalog.both("tls-certificate-reloads", reloads, counts.reloads.get());
    let refused = counter(
        "tls_certificate_reload_failures_total",
        "Number of changed certificates that could not be used.",
    );
    catalog.both("tls-certificate-reload-failures", refused, counts.reload_failures.get());
    let outdated = gauge(
        "tls_certificate_outdated",
        "1 while the files of the certificate have changed and could not be used, else 0.",
    );
    catalog.metric(outdated, counts.is_outdated.get());
}
