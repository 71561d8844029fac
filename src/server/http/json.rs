//! What the API shows of the server and of a job.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use super::tube_json::RuleCountsJson;
use crate::queue::{JobPage, JobState};
use crate::server::metrics::Count;
use crate::server::put_refusals::PutReason;
use crate::server::replica::{Replica, ReplicaState};
use crate::server::{Core, DriverStats, Rights, User};
use crate::time::{Seconds, Span, Time};
use crate::values::ids::{JobId, JobKey};
use crate::values::limits::GROUPS_SHOWN_MAX;
use crate::values::notes::Note;
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::wal::replica::Member;
use crate::wal::{Durability, Wal};

/// From this many percent of the memory limit on there is a warning.
const MEMORY_WARNING_PERCENT: u64 = 90;

#[derive(Serialize)]
pub(super) struct ServerJson<'a> {
    version: &'a str,
    driver: &'a str,
    hostname: &'a str,
    id: &'a str,
    pid: u32,
    uptime_seconds: u64,
    draining: bool,
    may_write: bool,
    /// None on a standby, as that of tubes and the job log: the leader knows them.
    jobs: Option<JobsJson>,
    totals: TotalsJson,
    rule_counts: RuleCountsJson,
    tubes: Option<usize>,
    connections: ConnectionsJson,
    memory: MemoryJson,
    job_log: Option<JobLogJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replication: Option<ReplicationJson<'a>>,
    limits: LimitsJson,
    warnings: Vec<WarningJson>,
}

#[derive(Serialize)]
struct JobsJson {
    ready: u32,
    reserved: u32,
    delayed: u32,
    buried: u32,
    held: u32,
    urgent: u32,
}

#[derive(Serialize)]
struct TotalsJson {
    puts: u64,
    reserves: u64,
    deletes: u64,
    releases: u64,
    buries: u64,
    kicks: u64,
    moves: u64,
    timeouts: u64,
    connections: u64,
}

#[derive(Serialize)]
struct ConnectionsJson {
    clients: u64,
    producers: u32,
    workers: u32,
    waiting: u32,
    max: Option<u32>,
}

#[derive(Serialize)]
struct MemoryJson {
    used_bytes: u64,
    reserved_bytes: u64,
    max_bytes: Option<u64>,
    resident_bytes: Option<u64>,
}

#[derive(Serialize)]
struct ReplicationJson<'a> {
    role: &'static str,
    leader: Option<LeaderJson<'a>>,
    epoch: u64,
    lease_seconds: Option<f64>,
    lag_seconds: Option<f64>,
    lag_positions: Option<u64>,
    appends_in_flight: usize,
    append_p99_seconds: Option<f64>,
    damaged: bool,
    takeovers: u64,
    fences: u64,
    forwarded_connections: Option<u64>,
}

/// Where the leader is, as a standby knows it.
#[derive(Serialize)]
struct LeaderJson<'a> {
    /// For what standbys forward.
    address: Option<&'a str>,
    http: Option<&'a str>,
}

#[derive(Serialize)]
struct JobLogJson<'a> {
    directory: Option<&'a str>,
    segments: u64,
    size_bytes: u64,
    live_bytes: u64,
    sync_mode: &'static str,
    sync_interval_ms: Option<u64>,
    sync_p99_seconds: f64,
    stalled: bool,
}

#[derive(Serialize)]
struct LimitsJson {
    max_job_bytes: u32,
    max_tubes: Option<u32>,
}

#[derive(Serialize)]
struct WarningJson {
    kind: &'static str,
    text: String,
}

#[derive(Serialize)]
pub(super) struct JobJson<'a> {
    id: u64,
    tube: &'a str,
    state: &'static str,
    priority: u32,
    age_seconds: u64,
    delay_seconds: Seconds,
    ttr_seconds: Seconds,
    time_left_seconds: Seconds,
    reserves: u32,
    timeouts: u32,
    releases: u32,
    buries: u32,
    kicks: u32,
    losses: u32,
    attempts: u64,
    body_bytes: usize,
    /// Why attempts have failed, the latest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<NoteJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<TagsJson<'a>>,
    /// The group that a held job waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<&'a str>,
    /// Of a job with a concurrency key: whether it is ready, and no worker gets it because the key is at its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    passed_over: Option<bool>,
}

/// A note of a job.
#[derive(Serialize)]
struct NoteJson<'a> {
    age_seconds: u64,
    text: Cow<'a, str>,
}

/// Tags as an object, whose members are the kinds.
struct TagsJson<'a>(Tags<'a>);

/// A group, as `stats-group` shows it.
#[derive(Serialize)]
pub(super) struct GroupJson<'a> {
    name: &'a str,
    ready: u32,
    reserved: u32,
    delayed: u32,
    buried: u32,
    held: u32,
    waiting_jobs: usize,
    waits_for: Vec<&'a str>,
}

/// A page of the jobs of a tube.
#[derive(Serialize)]
pub(super) struct JobPageJson<'a> {
    jobs: Vec<JobJson<'a>>,
}

/// A job that was put, or the first one with its idempotency key.
#[derive(Serialize)]
pub(super) struct PutJson<'a> {
    pub id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

#[derive(Serialize)]
pub(super) struct KickedJson {
    pub kicked: u64,
}

#[derive(Serialize)]
pub(super) struct MovedJson<'a> {
    pub moved: u32,
    /// The job that the other tube cannot take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

#[derive(Serialize)]
pub(super) struct FlushedJson {
    pub flushed: u64,
}

impl<'a> ServerJson<'a> {
    pub fn of(core: &'a Core, user: Option<&User>, now: Time) -> Self {
        let changes = Rights::PRODUCE | Rights::CONSUME | Rights::ADMIN;
        let Core { config, engine, .. } = core;
        let driver = core.outer_counts.driver();
        let totals = engine.totals();
        let host = &config.host;
        let replication = core.log.replica_state(now);
        let is_standby = replication.as_ref().is_some_and(|state| !state.is_leader);
        let jobs = JobsJson {
            ready: totals.in_state(JobState::Ready),
            reserved: totals.in_state(JobState::Reserved),
            delayed: totals.in_state(JobState::Delayed),
            buried: totals.in_state(JobState::Buried),
            held: totals.in_state(JobState::Held),
            urgent: totals.urgent,
        };
        Self {
            version: &host.version,
            driver: host.driver,
            hostname: &host.hostname,
            id: &host.id,
            pid: host.pid,
            uptime_seconds: now.since(config.started).as_secs(),
            draining: core.puts.is_draining(),
            may_write: user
                .map_or(config.http_access.may_write(), |user| user.grants.somewhere().has_any(changes)),
            jobs: (!is_standby).then_some(jobs),
            totals: TotalsJson {
                puts: totals.total_jobs,
                reserves: engine.queue_times().count(),
                deletes: totals.deletes,
                releases: totals.releases,
                buries: totals.buries,
                kicks: totals.kicks,
                moves: totals.moves,
                timeouts: totals.timeouts,
                connections: core.counts.of(Count::Connected),
            },
            rule_counts: engine.rule_totals().into(),
            tubes: (!is_standby).then_some(engine.tubes().len()),
            connections: ConnectionsJson {
                clients: core.counts.clients(),
                producers: totals.producers,
                workers: totals.workers,
                waiting: totals.waiting,
                max: config.max_connections,
            },
            memory: MemoryJson {
                used_bytes: core.memory_bytes(),
                reserved_bytes: core.engine.reserved_memory_bytes() as u64,
                max_bytes: config.max_memory_bytes,
                resident_bytes: driver.process.resident_bytes,
            },
            job_log: core.log.wal().map(|wal| JobLogJson::of(wal, config.wal_dir.as_deref())),
            replication: replication.map(|state| ReplicationJson::of(core, &state)),
            limits: LimitsJson { max_job_bytes: config.max_job_bytes, max_tubes: config.max_tubes },
            warnings: warnings(core, driver, now),
        }
    }
}

impl<'a> JobLogJson<'a> {
    fn of(wal: &Wal, directory: Option<&'a str>) -> Self {
        let stats = wal.stats();
        let (sync_mode, sync_interval_ms) = match wal.durability() {
            Durability::Always => ("always", None),
            Durability::Within(span) => ("interval", Some(span.as_nanos() / 1_000_000)),
            Durability::Never => ("no-sync", None),
        };
        Self {
            directory,
            segments: stats.segments,
            size_bytes: stats.disk_bytes,
            live_bytes: stats.live_bytes,
            sync_mode,
            sync_interval_ms,
            sync_p99_seconds: wal.sync_times().bound_of(99) as f64 / 1e9,
            stalled: wal.is_stalled(),
        }
    }
}

impl<'a> ReplicationJson<'a> {
    fn of(core: &Core, state: &ReplicaState<'a>) -> Self {
        let seconds = |span: Span| span.as_nanos() as f64 / 1e9;
        Self {
            role: state.role(),
            leader: state.leader.map(LeaderJson::of),
            epoch: state.epoch.0,
            lease_seconds: state.is_leader.then(|| seconds(state.lease)),
            lag_seconds: (!state.is_leader).then(|| seconds(state.lag)),
            lag_positions: (!state.is_leader).then_some(state.lag_positions),
            appends_in_flight: state.appends_in_flight,
            append_p99_seconds: core
                .log
                .replica()
                .and_then(Replica::append_times)
                .map(|times| times.bound_of(99) as f64 / 1e9),
            damaged: state.damage.is_some(),
            takeovers: state.counts.takeovers,
            fences: state.counts.fences,
            forwarded_connections: state.forwarded.map(|counts| counts.open.get()),
        }
    }
}

impl<'a> LeaderJson<'a> {
    fn of(leader: &'a Member) -> Self {
        let address = Some(&*leader.address).filter(|address| !address.is_empty());
        Self { address, http: leader.http_url() }
    }
}

/// What an operator has to know now.
fn warnings(core: &Core, driver: &DriverStats, now: Time) -> Vec<WarningJson> {
    let mut all = Vec::new();
    let mut warn = |kind, text: String| all.push(WarningJson { kind, text });
    if core.puts.is_draining() {
        warn("draining", "The server is in drain mode and accepts no new jobs.".to_owned());
    }
    let charged = core.charged_bytes();
    if let Some(max) = core.config.max_memory_bytes
        && charged >= max / 100 * MEMORY_WARNING_PERCENT
    {
        let percent = charged / (max / 100);
        warn(
            "memory-above-90-percent",
            format!(
                "{percent} % of the memory limit is used or reserved: new jobs are refused at the limit."
            ),
        );
    }
    let refused = PutReason::ALL.into_iter().filter(|reason| reason.is_of_the_server());
    let refused = refused.map(|reason| (core.puts.refusals.recent(reason, now), reason.cause()));
    let refused = refused.filter(|(count, _)| *count > 0);
    let refused: Vec<String> = refused.map(|(count, cause)| format!("{count}, since {cause}")).collect();
    if !refused.is_empty() {
        warn("puts-refused", format!("Puts refused in the last 5 to 10 minutes: {}.", refused.join("; ")));
    }
    if core.log.wal().is_some_and(Wal::is_full) {
        let stalled = if core.log.is_stalled() { ": a write waits for space" } else { "" };
        warn("disk-full", format!("The disk of the job log is full{stalled}."));
    }
    if driver.is_accept_paused {
        warn("accept-paused", "New connections wait in the listen backlog.".to_owned());
    }
    if let Some(damage) = core.log.replica_state(now).and_then(|state| state.damage) {
        warn("replication-damaged", format!("This standby cannot follow the job log: {damage}."));
    }
    let hazards = core.log.replica_state(now).map(|state| state.hazards).unwrap_or_default();
    if hazards.is_local {
        let text = "Commits of the database wait for no standby: changes are lost with its primary.";
        warn("unreplicated", text.to_owned());
    }
    if hazards.is_read_only {
        let text = "default_transaction_read_only is set for the role of this server: it serves until its sessions end.";
        warn("read-only-role", text.to_owned());
    }
    if core.log.replica_state(now).is_some_and(|state| !state.is_leader && state.leader.is_none()) {
        warn("no-leader", "This standby knows no leader: clients wait until a server leads.".to_owned());
    }
    if core.log.is_lease_over() {
        warn("lease-over", "The database does not acknowledge: replies wait.".to_owned());
    }
    all
}

impl<'a> JobPageJson<'a> {
    pub fn of(core: &'a Core, page: &JobPage, now: Time) -> Self {
        // Bounded by PAGE_JOBS_MAX: the jobs of one page.
        Self { jobs: page.jobs.iter().map(|&job| JobJson::listed(core, job, now)).collect() }
    }
}

impl<'a> JobJson<'a> {
    pub fn of(core: &'a Core, job: JobKey, now: Time) -> Self {
        // Bounded by NOTES_MAX: the notes of one job.
        let notes = core.engine.notes(job).iter().rev().map(|note| NoteJson::of(note, now)).collect();
        Self { notes, ..Self::listed(core, job, now) }
    }

    /// A job of a page, without its notes: those of a thousand jobs are too much for one response.
    fn listed(core: &'a Core, job: JobKey, now: Time) -> Self {
        let stats = core.engine.job_stats(job, now);
        let shown = |span| core.config.shown(span);
        let JobId(id) = stats.id;
        Self {
            id,
            tube: stats.tube.as_str(),
            state: stats.state.word(),
            priority: stats.pri,
            age_seconds: stats.age.as_secs(),
            delay_seconds: shown(stats.delay.span()),
            ttr_seconds: shown(stats.ttr.span()),
            time_left_seconds: shown(stats.time_left),
            reserves: stats.counts.reserves,
            timeouts: stats.counts.timeouts,
            releases: stats.counts.releases,
            buries: stats.counts.buries,
            kicks: stats.counts.kicks,
            losses: stats.counts.losses,
            attempts: stats.counts.attempts(),
            body_bytes: core.engine.jobs().get(job).body.len() - 2,
            notes: Vec::new(),
            tags: (!stats.tags.is_empty()).then_some(TagsJson(stats.tags)),
            waits_for: stats.waits_for.map(|(group, _)| group.as_str()),
            passed_over: stats.is_passed_over,
        }
    }
}

impl<'a> NoteJson<'a> {
    fn of(note: Note<'a>, now: Time) -> Self {
        Self { age_seconds: now.since(note.at).as_secs(), text: String::from_utf8_lossy(note.text) }
    }
}

impl Serialize for TagsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.pairs())
    }
}

impl<'a> GroupJson<'a> {
    pub fn of(core: &'a Core, name: TubeName<'a>) -> Self {
        let stats = core.engine.group_stats(name).expect("the group has a member");
        let members = |state: JobState| stats.members[state as usize];
        // Bounded by GROUPS_SHOWN_MAX: the groups that the reply names.
        let ahead = core.engine.groups_ahead(name).take(GROUPS_SHOWN_MAX);
        Self {
            name: name.as_str(),
            ready: members(JobState::Ready),
            reserved: members(JobState::Reserved),
            delayed: members(JobState::Delayed),
            buried: members(JobState::Buried),
            held: members(JobState::Held),
            waiting_jobs: stats.waiting_jobs,
            waits_for: ahead.map(|group| group.as_str()).collect(),
        }
    }
}
