//! The expected data of `stats`, `stats-tube` and `stats-job`.

use beanring::protocol::command::CommandKind::{self, *};
use beanring::queue::JobState;
use beanring::time::{Span, Time};

use super::names::name_of;
use beanring_testkit::naive::{Job, Model, Name, Tags, Tube, Value};

/// Keys and values in order. The model does not know a value of `None`.
pub type Report = Vec<(&'static str, Option<String>)>;

/// Counts of the server that are not part of the queue.
#[derive(Clone)]
pub struct Totals {
    pub commands: [u64; CommandKind::ALL.len()],
    pub connections: u64,
    pub total_connections: u64,
    pub draining: bool,
    pub max_job_bytes: u32,
    /// Commands and reports have fractions of a second.
    pub sub_second: bool,
}

impl Totals {
    /// Returns the counts of a new server.
    pub const fn new(max_job_bytes: u32) -> Self {
        let commands = [0; CommandKind::ALL.len()];
        Self {
            commands,
            connections: 0,
            total_connections: 0,
            draining: false,
            max_job_bytes,
            sub_second: false,
        }
    }

    /// Returns what the server shows of a time.
    fn shown(&self, span: Span) -> String {
        let (seconds, millis) = (span.as_secs(), span.as_nanos() / 1_000_000 % 1000);
        if millis == 0 || !self.sub_second {
            return seconds.to_string();
        }
        format!("{seconds}.{millis:03}").trim_end_matches('0').to_owned()
    }
}

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

/// Keys whose values the model does not know.
const HOST: [&str; 8] = [
    "pid",
    "version",
    "rusage-utime",
    "rusage-stime",
    "uptime",
    "binlog-oldest-index",
    "binlog-current-index",
    "binlog-records-migrated",
];

pub fn stats(model: &Model, totals: &Totals) -> Report {
    let jobs_total = model.job_totals();
    let jobs = |state| u64::from(jobs_total.in_state(state));
    let mut report: Report = vec![
        ("current-jobs-urgent", known(jobs_total.urgent)),
        ("current-jobs-ready", known(jobs(JobState::Ready))),
        ("current-jobs-reserved", known(jobs(JobState::Reserved))),
        ("current-jobs-delayed", known(jobs(JobState::Delayed))),
        ("current-jobs-buried", known(jobs(JobState::Buried))),
    ];
    report.extend(COUNTED.map(|(key, kind)| (key, known(totals.commands[kind as usize]))));
    report.extend([
        ("job-timeouts", known(jobs_total.timeouts)),
        ("total-jobs", known(jobs_total.total_jobs)),
        ("max-job-size", known(totals.max_job_bytes)),
        ("current-tubes", known(model.tubes.len())),
        ("current-connections", known(totals.connections)),
        ("current-producers", known(jobs_total.producers)),
        ("current-workers", known(jobs_total.workers)),
        ("current-waiting", known(jobs_total.waiting)),
        ("total-connections", known(totals.total_connections)),
    ]);
    report.extend(HOST.map(|key| (key, None)));
    report.extend([
        ("binlog-records-written", None),
        ("binlog-max-size", None),
        ("draining", known(totals.draining)),
    ]);
    report
}

pub fn tube(model: &Model, totals: &Totals, tube: &Tube) -> Report {
    let (jobs, urgent, [using, watching, waiting]) = model.tube_figures(tube.name);
    let (until, length) = tube.pause.unwrap_or((Time::ZERO, Span::ZERO));
    vec![
        ("name", Some(format!("\"{}\"", name_of(tube.name)))),
        ("current-jobs-urgent", known(urgent)),
        ("current-jobs-ready", known(jobs[JobState::Ready as usize])),
        ("current-jobs-reserved", known(jobs[JobState::Reserved as usize])),
        ("current-jobs-delayed", known(jobs[JobState::Delayed as usize])),
        ("current-jobs-buried", known(jobs[JobState::Buried as usize])),
        ("total-jobs", known(tube.total_jobs)),
        ("current-using", known(using)),
        ("current-watching", known(watching)),
        ("current-waiting", known(waiting)),
        ("cmd-delete", known(tube.deletes)),
        ("cmd-pause-tube", known(tube.pauses)),
        ("pause", Some(totals.shown(length))),
        ("pause-time-left", Some(totals.shown(until.since(model.now)))),
        ("oldest-ready-age", known(model.oldest_ready(tube.name).as_secs())),
        ("queue-time-p50-us", None),
        ("queue-time-p95-us", None),
        ("queue-time-p99-us", None),
        ("reserved-time-p50-us", None),
        ("reserved-time-p95-us", None),
        ("reserved-time-p99-us", None),
        ("job-timeouts", known(tube.timeouts)),
        ("job-buries", known(tube.buries)),
    ]
}

pub fn job(model: &Model, totals: &Totals, job: &Job) -> Report {
    let state = match job.state() {
        JobState::Ready => "ready",
        JobState::Reserved => "reserved",
        JobState::Delayed => "delayed",
        JobState::Buried => "buried",
        JobState::Held => "held",
    };
    let left = job.deadline().map_or(Span::ZERO, |at| at.since(model.now));
    let mut report = vec![
        ("id", known(job.id)),
        ("tube", Some(format!("\"{}\"", name_of(job.tube)))),
        ("state", known(state)),
        ("pri", known(job.pri)),
        ("age", known(model.now.since(job.created).as_secs())),
        ("delay", Some(totals.shown(job.delay.span()))),
        ("ttr", Some(totals.shown(job.ttr.span()))),
        ("time-left", Some(totals.shown(left))),
        ("file", None),
        ("reserves", known(job.counts.reserves)),
        ("timeouts", known(job.counts.timeouts)),
        ("releases", known(job.counts.releases)),
        ("buries", known(job.counts.buries)),
        ("kicks", known(job.counts.kicks)),
    ];
    if job.counts.losses > 0 || model.rules.contains_key(&job.tube) {
        report.push(("losses", known(job.counts.losses)));
        report.push(("attempts", known(job.counts.attempts())));
    }
    let keys = [["note", "note-age"], ["note-2", "note-2-age"], ["note-3", "note-3-age"]];
    for ((at, text), [note, age]) in job.notes.iter().rev().zip(keys) {
        report.push((note, Some(format!("\"{}\"", String::from_utf8_lossy(text)))));
        report.push((age, known(model.now.since(*at).as_secs())));
    }
    if job.tags != Tags::default() {
        report.push(("tags", Some(format!("\"{}\"", job.tags.text()))));
    }
    if job.tags.con.is_some() {
        let is_passed_over = job.state() == JobState::Ready && model.is_at_limit(job);
        report.push(("passed-over", known(is_passed_over)));
    }
    if let Some((group, members)) = model.group_ahead_of(job) {
        report.push(("waits-for", Some(format!("\"g{group}\""))));
        report.push(("waits-for-jobs", known(members)));
    }
    report
}

/// Returns the reply to `list-jobs`, or none if there is no such tube.
pub fn page(
    model: &Model,
    totals: &Totals,
    tube: Name,
    state: JobState,
    (after, limit): (u64, u32),
    size_of: impl Fn(u64) -> usize,
) -> Option<Vec<u8>> {
    let ids = model.list_jobs(tube, state, after, limit)?;
    let lines = ids.into_iter().map(|id| {
        let job = model.jobs.iter().find(|job| job.id == id).expect("it is listed");
        let time = match (state, job.deadline()) {
            (JobState::Ready, _) => format!(", ready-age: {}", model.now.since(job.since).as_secs()),
            (_, Some(at)) => format!(", time-left: {}", totals.shown(at.since(model.now))),
            (_, None) => String::new(),
        };
        let age = model.now.since(job.created).as_secs();
        format!("- {{id: {id}, pri: {}, age: {age}, size: {}{time}}}\n", job.pri, size_of(id))
    });
    let data = format!("---\n{}", lines.collect::<String>());
    Some(format!("OK {}\r\n{data}\r\n", data.len()).into_bytes())
}

/// Returns the reply to `tube-config` without a key.
pub fn rules(model: &Model, tube: Name) -> Vec<u8> {
    let ruled = model.rules.get(&tube);
    if ruled.is_none() && model.tubes.iter().all(|there| there.name != tube) {
        return b"NOT_FOUND\r\n".to_vec();
    }
    let lines = ruled.into_iter().flat_map(|ruled| &ruled.values).map(|(key, value)| match value {
        Value::Number(number) => format!("{}: {}\n", key.word(), key.shown(*number)),
        Value::Tube(tube) => format!("{}: \"{}\"\n", key.word(), name_of(*tube)),
    });
    let data = format!("---\n{}", lines.collect::<String>());
    format!("OK {}\r\n{data}\r\n", data.len()).into_bytes()
}

pub fn group(model: &Model, name: u8) -> Option<Report> {
    let (members, waiting, ahead) = model.group(name)?;
    let [ready, reserved, delayed, buried, held] = members.map(known);
    Some(vec![
        ("name", Some(format!("\"g{name}\""))),
        ("ready", ready),
        ("reserved", reserved),
        ("delayed", delayed),
        ("buried", buried),
        ("held", held),
        ("waiting-jobs", known(waiting)),
        // The order of several groups is not known.
        (
            "waits-for",
            match ahead[..] {
                [] => known("[]"),
                [only] => Some(format!("[\"g{only}\"]")),
                _ => None,
            },
        ),
    ])
}

/// Returns the length of the reply at the beginning of `bytes`, if it is complete.
pub fn reply_bytes(bytes: &[u8]) -> Option<usize> {
    let line = bytes.iter().position(|&byte| byte == b'\n')? + 1;
    let text = std::str::from_utf8(&bytes[..line]).expect("a line is ASCII");
    let data = text.strip_prefix("OK ").unwrap_or_else(|| panic!("{text:?} is not an OK"));
    let length = line + data.trim_end().parse::<usize>().expect("a length") + 2;
    (length <= bytes.len()).then_some(length)
}

/// # Panics
/// If a key or value differs. More keys may follow.
pub fn compare(answer: &[u8], report: &Report) {
    let text = std::str::from_utf8(answer).expect("a report is ASCII");
    let mut lines = text.split('\n').skip(1);
    assert_eq!(lines.next(), Some("---"), "{text}");
    for (key, value) in report {
        let line = lines.next().unwrap_or_default();
        let (found, actual) = line.split_once(": ").unwrap_or_default();
        assert_eq!(found, *key, "{text}");
        if let Some(value) = value {
            assert_eq!(actual, value, "{key} in {text}");
        }
    }
    assert!(text.ends_with("\n\r\n"), "{text}");
}

fn known(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}
