//! What the API shows of the server, of jobs and of groups.

use super::object::Object;
use super::tube_json::rule_counts;
use crate::queue::{JobPage, JobState};
use crate::server::metrics::Count;
use crate::server::put_refusals::PutReason;
use crate::server::replica::{Replica, ReplicaState};
use crate::server::{Core, DriverStats, Rights, User};
use crate::time::{Span, Time};
use crate::values::ids::{JobId, JobKey};
use crate::values::limits::GROUPS_SHOWN_MAX;
use crate::values::tube_name::TubeName;
use crate::wal::{Durability, Wal};

/// From this many percent of the memory limit on there is a warning.
const MEMORY_WARNING_PERCENT: u64 = 90;

/// The server, for this user with `--auth`.
pub(super) fn server(core: &Core, user: Option<&User>, now: Time, object: &mut Object<'_>) {
    let changes = Rights::PRODUCE | Rights::CONSUME | Rights::ADMIN;
    let Core { config, engine, .. } = core;
    let driver = core.outer_counts.driver();
    let totals = engine.totals();
    let host = &config.host;
    let replication = core.log.replica_state(now);
    let is_standby = replication.as_ref().is_some_and(|state| !state.is_leader);
    object.member("version", &host.version);
    object.member("driver", host.driver);
    object.member("hostname", &host.hostname);
    object.member("id", &host.id);
    object.member("pid", host.pid);
    object.member("uptime_seconds", now.since(config.started).as_secs());
    object.member("draining", core.puts.is_draining());
    let may_write =
        user.map_or(config.http_access.may_write(), |user| user.grants.somewhere().has_any(changes));
    object.member("may_write", may_write);
    // A standby shows neither jobs nor tubes nor the job log: the leader knows them.
    object.object_or_null("jobs", (!is_standby).then_some(&totals), |object, totals| {
        // Bounded by JobState::COUNT: the states of a job.
        for state in JobState::ALL {
            object.member(state.word(), totals.in_state(state));
        }
        object.member("urgent", totals.urgent);
    });
    object.object("totals", |object| {
        object.member("puts", totals.total_jobs);
        object.member("reserves", engine.queue_times().count());
        object.member("deletes", totals.deletes);
        object.member("releases", totals.releases);
        object.member("buries", totals.buries);
        object.member("kicks", totals.kicks);
        object.member("moves", totals.moves);
        object.member("timeouts", totals.timeouts);
        object.member("connections", core.counts.of(Count::Connected));
    });
    rule_counts(engine.rule_totals(), object);
    object.member("tubes", (!is_standby).then_some(engine.tubes().len()));
    object.object("connections", |object| {
        object.member("clients", core.counts.clients());
        object.member("producers", totals.producers);
        object.member("workers", totals.workers);
        object.member("waiting", totals.waiting);
        object.member("max", config.max_connections);
    });
    object.object("memory", |object| {
        object.member("used_bytes", core.memory_bytes());
        object.member("reserved_bytes", engine.reserved_memory_bytes());
        object.member("max_bytes", config.max_memory_bytes);
        object.member("resident_bytes", driver.process.resident_bytes);
    });
    object.object_or_null("job_log", core.log.wal(), |object, wal| {
        job_log(wal, config.wal_dir.as_deref(), object);
    });
    if let Some(state) = replication {
        object.object("replication", |object| replica(core, &state, object));
    }
    object.object("limits", |object| {
        object.member("max_job_bytes", config.max_job_bytes);
        object.member("max_tubes", config.max_tubes);
    });
    object.objects("warnings", warnings(core, driver, now), |object, (kind, text)| {
        object.member("kind", kind);
        object.member("text", text);
    });
}

fn job_log(wal: &Wal, directory: Option<&str>, object: &mut Object<'_>) {
    let stats = wal.stats();
    let (sync_mode, sync_interval_ms) = match wal.durability() {
        Durability::Always => ("always", None),
        Durability::Within(span) => ("interval", Some(span.as_nanos() / 1_000_000)),
        Durability::Never => ("no-sync", None),
    };
    object.member("directory", directory);
    object.member("segments", stats.segments);
    object.member("size_bytes", stats.disk_bytes);
    object.member("live_bytes", stats.live_bytes);
    object.member("sync_mode", sync_mode);
    object.member("sync_interval_ms", sync_interval_ms);
    object.member("sync_p99_seconds", wal.sync_times().bound_of(99) as f64 / 1e9);
    object.member("stalled", wal.is_stalled());
}

fn replica(core: &Core, state: &ReplicaState<'_>, object: &mut Object<'_>) {
    let seconds = |span: Span| span.as_nanos() as f64 / 1e9;
    let append_times = core.log.replica().and_then(Replica::append_times);
    object.member("role", state.role());
    object.object_or_null("leader", state.leader, |object, leader| {
        // For what standbys forward.
        object.member("address", Some(&*leader.address).filter(|address| !address.is_empty()));
        object.member("http", leader.http_url());
    });
    object.member("epoch", state.epoch.0);
    object.member("lease_seconds", state.is_leader.then(|| seconds(state.lease)));
    object.member("lag_seconds", (!state.is_leader).then(|| seconds(state.lag)));
    object.member("lag_positions", (!state.is_leader).then_some(state.lag_positions));
    object.member("appends_in_flight", state.appends_in_flight);
    object.member("append_p99_seconds", append_times.map(|times| times.bound_of(99) as f64 / 1e9));
    object.member("damaged", state.damage.is_some());
    object.member("takeovers", state.counts.takeovers);
    object.member("fences", state.counts.fences);
    object.member("forwarded_connections", state.forwarded.map(|counts| counts.open.get()));
}

/// What an operator has to know now.
fn warnings(core: &Core, driver: &DriverStats, now: Time) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let mut warn = |kind, text: String| all.push((kind, text));
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

/// A page of the jobs of a tube, without their notes: those of a thousand jobs are too much for one response.
pub(super) fn job_page(core: &Core, page: &JobPage, now: Time, object: &mut Object<'_>) {
    object.objects("jobs", &page.jobs, |object, &key| write_job(core, key, false, now, object));
}

pub(super) fn job(core: &Core, key: JobKey, now: Time, object: &mut Object<'_>) {
    write_job(core, key, true, now, object);
}

fn write_job(core: &Core, key: JobKey, has_notes: bool, now: Time, object: &mut Object<'_>) {
    let stats = core.engine.job_stats(key, now);
    let shown = |span| core.config.shown(span);
    let JobId(id) = stats.id;
    object.member("id", id);
    object.member("tube", stats.tube.as_str());
    object.member("state", stats.state.word());
    object.member("priority", stats.pri);
    object.member("age_seconds", stats.age.as_secs());
    object.member("delay_seconds", shown(stats.delay.span()));
    object.member("ttr_seconds", shown(stats.ttr.span()));
    object.member("time_left_seconds", shown(stats.time_left));
    object.member("reserves", stats.counts.reserves);
    object.member("timeouts", stats.counts.timeouts);
    object.member("releases", stats.counts.releases);
    object.member("buries", stats.counts.buries);
    object.member("kicks", stats.counts.kicks);
    object.member("losses", stats.counts.losses);
    object.member("attempts", stats.counts.attempts());
    object.member("body_bytes", core.engine.jobs().get(key).body.len() - 2);
    let notes = core.engine.notes(key);
    if has_notes && !notes.is_empty() {
        // Why attempts have failed, the latest first.
        // Bounded by NOTES_MAX: the notes of one job.
        object.objects("notes", notes.iter().rev(), |object, note| {
            object.member("age_seconds", now.since(note.at).as_secs());
            object.member("text", String::from_utf8_lossy(note.text));
        });
    }
    if !stats.tags.is_empty() {
        object.object("tags", |object| {
            // Bounded by LINE_BYTES_LONG_MAX: the tags of one job.
            stats.tags.pairs().for_each(|(kind, text)| object.member(kind, text));
        });
    }
    // The group that a held job waits for.
    object.if_some("waits_for", stats.waits_for.map(|(group, _)| group.as_str()));
    // Of a job with a concurrency key: whether it is ready, and no worker gets it because the key is at its limit.
    object.if_some("passed_over", stats.is_passed_over);
}

/// A group, as `stats-group` shows it.
pub(super) fn group(core: &Core, name: TubeName<'_>, object: &mut Object<'_>) {
    let stats = core.engine.group_stats(name).expect("the group has a member");
    object.member("name", name.as_str());
    // Bounded by JobState::COUNT: the states of a job.
    for state in JobState::ALL {
        object.member(state.word(), stats.members[state as usize]);
    }
    object.member("waiting_jobs", stats.waiting_jobs);
    // Bounded by GROUPS_SHOWN_MAX: the groups that the reply names.
    let ahead = core.engine.groups_ahead(name).take(GROUPS_SHOWN_MAX);
    object.member("waits_for", ahead.map(TubeName::as_str).collect::<Vec<_>>());
}
