//! The data of `stats`, `stats-tube`, `stats-job`, `tube-config` and `list-jobs`: the keys of beanstalkd in its order, then beanring's own.

use crate::protocol::reply::Yaml;
use crate::queue::{JobPage, JobState, Schedule};
use crate::server::metric_catalog::{self, TubeMetric, Value};
use crate::server::{Core, User};
use crate::time::{Seconds, Time, date};
use crate::values::ids::{JobKey, TubeKey};
use crate::values::limits::GROUPS_SHOWN_MAX;
use crate::values::notes::NOTES_MAX;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{RuleValue, TubeRules};

pub(in crate::server) fn stats(core: &Core, out: &mut Vec<u8>, now: Time) {
    let mut yaml = Yaml::new(out);
    metric_catalog::visit_server(core, now, &mut |entry, value| {
        if let Some(key) = entry.key {
            write(&mut yaml, key, value);
        }
    });
}

pub(in crate::server) fn tube(core: &Core, tube: TubeKey, out: &mut Vec<u8>, now: Time) {
    let mut yaml = Yaml::new(out);
    yaml.quoted("name", core.engine.tubes().get(tube).name().as_str());
    let write_all = |yaml: &mut Yaml<'_>, metrics: &[TubeMetric]| {
        // Bounded by TUBE: the keys of `stats-tube`.
        for metric in metrics {
            if let (Some(key), Some(value)) = (metric.entry.key, metric.read(core, tube, now)) {
                write(yaml, key, value);
            }
        }
    };
    write_all(&mut yaml, metric_catalog::TUBE);
    if let Some((rules, _)) = core.engine.rules_of(core.engine.tubes().get(tube).name()) {
        write_rules(&mut yaml, rules);
        write_all(&mut yaml, metric_catalog::TUBE_RULES);
    }
}

pub(in crate::server) fn rules(core: &Core, tube: TubeName<'_>, out: &mut Vec<u8>) {
    let mut yaml = Yaml::new(out);
    if let Some((rules, _)) = core.engine.rules_of(tube) {
        write_rules(&mut yaml, rules);
    }
}

fn write_rules(yaml: &mut Yaml<'_>, rules: &TubeRules) {
    // Bounded by RuleKey::COUNT: the rules of one tube.
    for (key, value) in rules.iter() {
        match value {
            RuleValue::None => {}
            RuleValue::Number(number) => yaml.plain(key.word(), key.shown(number)),
            RuleValue::Tube(tube) => yaml.quoted(key.word(), tube.as_str()),
        }
    }
}

pub(in crate::server) fn group(core: &Core, name: TubeName<'_>, out: &mut Vec<u8>) {
    let Some(stats) = core.engine.group_stats(name) else { unreachable!("the caller has found the group") };
    let mut yaml = Yaml::new(out);
    yaml.quoted("name", name.as_str());
    // Bounded by JobState::COUNT: the states of a job.
    for state in JobState::ALL {
        yaml.number(state.word(), stats.members[state as usize]);
    }
    yaml.number("waiting-jobs", stats.waiting_jobs);
    // Bounded by GROUPS_SHOWN_MAX: the groups that the reply names.
    yaml.names("waits-for", core.engine.groups_ahead(name).take(GROUPS_SHOWN_MAX));
}

/// Renders a page of at most `limit` schedules after this name. Those that the user may not see are left out.
pub(in crate::server) fn schedules(
    core: &Core,
    after: Option<TubeName<'_>>,
    limit: u32,
    user: Option<&User>,
    out: &mut Vec<u8>,
) {
    let mut yaml = Yaml::new(out);
    let (seen, next) = core.schedules_page(after, limit, user);
    yaml.names("schedules", seen.into_iter().map(Schedule::name));
    if let Some(next) = next {
        yaml.quoted("next", next.as_str());
    }
}

pub(in crate::server) fn schedule(core: &Core, name: TubeName<'_>, out: &mut Vec<u8>, now: Time) {
    let Some(schedule) = core.engine.schedule(name) else { unreachable!("the caller has found it") };
    let system = core.engine.system_time(now);
    let progress = &schedule.progress;
    let shown = |span| core.config.shown(span);
    let mut yaml = Yaml::new(out);
    yaml.quoted("name", schedule.name().as_str());
    yaml.quoted("tube", schedule.tube().as_str());
    yaml.quoted("when", schedule.plan.when.as_str());
    yaml.number("pri", schedule.plan.pri);
    yaml.plain("delay", shown(schedule.plan.delay.span()));
    yaml.plain("ttr", shown(schedule.plan.ttr.span()));
    yaml.number("size", schedule.body.len() as u64 - 2);
    yaml.plain("missed", schedule.plan.missed.word());
    yaml.plain("overlap", if schedule.plan.overlaps { "yes" } else { "no" });
    yaml.plain("configured", schedule.is_configured);
    yaml.number("age", system.since(schedule.created).as_secs());
    if let Some(next) = schedule.next() {
        yaml.plain("next-run", date(next.since(Time::ZERO).as_secs()));
        yaml.number("next-run-left", next.since(system).as_secs());
    }
    if progress.ran > Time::ZERO {
        yaml.plain("last-run", date(progress.due.since(Time::ZERO).as_secs()));
        yaml.number("last-run-age", system.since(progress.ran).as_secs());
        yaml.plain("last-run-late", shown(progress.ran.since(progress.due)));
        yaml.number("last-job", progress.job.0);
    }
    yaml.number("runs", progress.runs);
    yaml.number("skips", progress.skips);
    yaml.number("refusals", progress.refusals);
    yaml.number("gaps", progress.gaps);
}

/// The keys of the notes in `stats-job`: the text, and its age in seconds.
const NOTE_KEYS: [[&str; 2]; NOTES_MAX] =
    [["note", "note-age"], ["note-2", "note-2-age"], ["note-3", "note-3-age"]];

fn write(yaml: &mut Yaml<'_>, key: &str, value: Value<'_>) {
    match value {
        Value::Number(number) => yaml.number(key, number),
        Value::Seconds(seconds) => yaml.plain(key, format_args!("{seconds:.6}")),
        Value::Decimal(seconds) => yaml.plain(key, seconds),
        Value::Flag(flag) => yaml.plain(key, flag),
        Value::Word(word) => yaml.plain(key, word),
        Value::Text(text) => yaml.quoted(key, text),
    }
}

/// Renders a line for each job of a page.
pub(in crate::server) fn page(core: &Core, page: &JobPage, out: &mut Vec<u8>, now: Time) {
    let mut yaml = Yaml::new(out);
    // Bounded by PAGE_JOBS_MAX: the jobs of one page.
    for &job in &page.jobs {
        let stats = core.engine.job_stats(job, now);
        let size = core.engine.jobs().get(job).body.len() - 2;
        let time = match page.state {
            JobState::Ready => Some(("ready-age", Seconds::of(core.engine.ready_age(job, now)).floor())),
            JobState::Reserved | JobState::Delayed => Some(("time-left", core.config.shown(stats.time_left))),
            JobState::Buried | JobState::Held => None,
        };
        let entries = [
            ("id", stats.id.0),
            ("pri", stats.pri.into()),
            ("age", stats.age.as_secs()),
            ("size", size as u64),
        ];
        yaml.item_of_numbers(entries, time);
    }
}

pub(in crate::server) fn job(core: &Core, job: JobKey, out: &mut Vec<u8>, now: Time) {
    let stats = core.engine.job_stats(job, now);
    let shown = |span| core.config.shown(span);
    let mut yaml = Yaml::new(out);
    yaml.number("id", stats.id.0);
    yaml.quoted("tube", stats.tube.as_str());
    yaml.plain("state", stats.state.word());
    yaml.number("pri", stats.pri);
    yaml.number("age", stats.age.as_secs());
    yaml.plain("delay", shown(stats.delay.span()));
    yaml.plain("ttr", shown(stats.ttr.span()));
    yaml.plain("time-left", shown(stats.time_left));
    yaml.number("file", core.log.wal().map_or(0, |wal| wal.file_of(job)));
    yaml.number("reserves", stats.counts.reserves);
    yaml.number("timeouts", stats.counts.timeouts);
    yaml.number("releases", stats.counts.releases);
    yaml.number("buries", stats.counts.buries);
    yaml.number("kicks", stats.counts.kicks);
    if stats.counts.losses > 0 || stats.has_rules {
        yaml.number("losses", stats.counts.losses);
        yaml.number("attempts", stats.counts.attempts());
    }
    // Bounded by NOTES_MAX: the notes of one job, the latest first.
    for (note, [text, age]) in stats.notes.iter().rev().zip(NOTE_KEYS) {
        yaml.text(text, note.text);
        yaml.number(age, now.since(note.at).as_secs());
    }
    if !stats.tags.is_empty() {
        yaml.quoted("tags", stats.tags.as_str());
    }
    if let Some(is_passed_over) = stats.is_passed_over {
        yaml.plain("passed-over", is_passed_over);
    }
    if let Some((group, members)) = stats.waits_for {
        yaml.quoted("waits-for", group.as_str());
        yaml.number("waits-for-jobs", members);
    }
}
