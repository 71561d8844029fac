//! `beanring wal dump`: records as lines of JSON.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use crate::io::stdout::OutputError;
use crate::io::wal_files::offline::{self, Finding, ToolError};
use crate::queue::{Counts, LoggedState, PersistedState};
use crate::time::Seconds;
use crate::values::notes::Note;
use crate::values::schedules::{Missed, Progress};
use crate::values::tube_rules::{RuleNumber, RuleValue};
use crate::wal::record::{JobRecord, Record, RuleRecord};

/// One line. Fields that a record does not have are left out; times are nanoseconds since 1970.
#[derive(Serialize)]
struct Line<'a> {
    file: &'a str,
    offset: u64,
    position: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    durable: Option<u64>,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tube: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttr: Option<Seconds>,
    #[serde(flatten)]
    state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<u64>,
    /// The key of a rule. Without `value` and `dead_letter` it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<RuleNumber>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<NoteLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<&'a str>,
    #[serde(flatten)]
    times: Option<Times<'a>>,
    #[serde(flatten)]
    progress: Option<ProgressLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    /// The body as hexadecimal digits, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
}

/// What a schedule is to do.
#[derive(Serialize)]
struct Times<'a> {
    when: &'a str,
    pri: u32,
    delay: Seconds,
    missed: Missed,
    overlaps: bool,
    is_configured: bool,
}

/// How far a schedule is.
#[derive(Serialize)]
struct ProgressLine {
    handled: u64,
    due: u64,
    ran: u64,
    last_job: u64,
    runs: u64,
    skips: u64,
    refusals: u64,
    gaps: u64,
    caught_up: u8,
}

/// A note of a job.
#[derive(Serialize)]
struct NoteLine<'a> {
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// The text as hexadecimal digits, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    text_hex: Option<String>,
}

#[derive(Serialize)]
struct State {
    state: &'static str,
    pri: u32,
    delay: Seconds,
    #[serde(skip_serializing_if = "Option::is_none")]
    delayed_until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    buried_after: Option<u64>,
    reserves: u32,
    timeouts: u32,
    releases: u32,
    buries: u32,
    kicks: u32,
    #[serde(skip_serializing_if = "is_zero")]
    losses: u32,
}

/// Prints a line of JSON for each segment, gap and valid record of the log in this directory.
///
/// # Errors
/// [`ToolError::Output`] if `out` cannot be written, and all of [`offline::dump`].
pub fn dump(dir: &Path, out: impl Write) -> Result<(), ToolError> {
    let mut out = BufWriter::new(out);
    offline::dump(dir, |finding| {
        serde_json::to_writer(&mut out, &Line::of(&finding))
            .map_err(Into::into)
            .and_then(|()| out.write_all(b"\n"))
            .map_err(unwritable)
    })?;
    out.flush().map_err(unwritable)
}

const fn unwritable(error: io::Error) -> ToolError {
    ToolError::Output(OutputError(error))
}

impl<'a> Line<'a> {
    fn of(finding: &'a Finding<'a>) -> Self {
        match *finding {
            Finding::Segment { file, header, is_headless, .. } => Self {
                kind: if is_headless { "segment without a header" } else { "segment" },
                next_id: Some(header.next_id.0).filter(|_| !is_headless),
                oldest: Some(header.oldest.to_string()).filter(|_| !is_headless),
                ..Self::at(file, 0, header.first.0)
            },
            Finding::Gap { file, offset, at, bytes } => {
                Self { kind: "gap", bytes: Some(bytes), ..Self::at(file, offset, at.0) }
            }
            Finding::OtherLog { file, .. } => Self { kind: "segment of another log", ..Self::at(file, 0, 0) },
            Finding::Missing { file, at, bytes } => {
                Self { kind: "missing segment", bytes: Some(bytes), ..Self::at(file, 0, at.0) }
            }
            Finding::Record { file, offset, at, framed } => {
                Self { durable: Some(framed.durable.0), ..Self::at(file, offset, at.0).with(&framed.record) }
            }
        }
    }

    fn at(file: &'a str, offset: u64, position: u64) -> Self {
        Self {
            file,
            offset,
            position,
            durable: None,
            kind: "",
            bytes: None,
            id: None,
            next_id: None,
            oldest: None,
            tube: None,
            tags: None,
            group: None,
            key: None,
            ttl: None,
            created: None,
            ttr: None,
            state: None,
            until: None,
            pause: None,
            rule: None,
            value: None,
            dead_letter: None,
            notes: Vec::new(),
            schedule: None,
            times: None,
            progress: None,
            body: None,
            body_hex: None,
        }
    }

    fn with(self, record: &'a Record<'a>) -> Self {
        match record {
            Record::Job(job) => self.with_job(job),
            Record::Run(of) => Self {
                schedule: Some(of.run.schedule.as_str()),
                progress: Some(ProgressLine::of(&of.run.progress)),
                ..self.with_job(&of.job)
            },
            Record::Schedule(schedule) => Self {
                kind: "schedule",
                schedule: Some(schedule.name.as_str()),
                tube: Some(schedule.tube.as_str()),
                created: Some(schedule.created.as_nanos()),
                ttr: Some(schedule.plan.ttr),
                times: Some(Times {
                    when: schedule.plan.when.as_str(),
                    pri: schedule.plan.pri,
                    delay: schedule.plan.delay,
                    missed: schedule.plan.missed,
                    overlaps: schedule.plan.overlaps,
                    is_configured: schedule.is_configured,
                }),
                progress: Some(ProgressLine::of(&schedule.progress)),
                ..self
            }
            .with_body(schedule.body),
            Record::ScheduleGone(name) => {
                Self { kind: "schedule-end", schedule: Some(name.as_str()), ..self }
            }
            Record::Progress(run) => Self {
                kind: "left-out",
                schedule: Some(run.schedule.as_str()),
                progress: Some(ProgressLine::of(&run.progress)),
                ..self
            },
            Record::Change { id, state } => {
                Self { kind: "change", id: Some(id.0), state: Some(State::of(state)), ..self }
            }
            Record::Moved { id, state, tube } => Self {
                kind: "move",
                id: Some(id.0),
                tube: Some(tube.as_str()),
                state: Some(State::of(state)),
                ..self
            },
            Record::Noted { id, note } => {
                Self { kind: "note", id: Some(id.0), notes: vec![NoteLine::of(*note)], ..self }
            }
            Record::Deleted(id) => Self { kind: "deletion", id: Some(id.0), ..self },
            Record::Paused(pause) => Self {
                kind: "pause",
                tube: Some(pause.tube.as_str()),
                until: Some(pause.until.as_nanos()),
                pause: Some(pause.length.as_nanos()),
                ..self
            },
            Record::KeptKey(kept) => Self {
                kind: "kept-key",
                id: Some(kept.id.0),
                tube: Some(kept.tube.as_str()),
                key: Some(kept.key.as_str()),
                ttl: Some(kept.ttl),
                until: Some(kept.until.as_nanos()),
                ..self
            },
            Record::GroupDone(group) => Self { kind: "group-end", group: Some(group.as_str()), ..self },
            Record::Rule(RuleRecord { tube, rule }) => {
                let (value, dead_letter) = match rule.value() {
                    RuleValue::None => (None, None),
                    RuleValue::Number(number) => (Some(rule.key().shown(number)), None),
                    RuleValue::Tube(name) => (None, Some(name.as_str())),
                };
                let (tube, rule) = (Some(tube.as_str()), Some(rule.key().word()));
                Self { kind: "rule", tube, rule, value, dead_letter, ..self }
            }
            Record::Oldest(segment) => Self { kind: "oldest", oldest: Some(segment.to_string()), ..self },
            Record::Padding(bytes) => Self { kind: "padding", bytes: Some(*bytes as u64), ..self },
            Record::Closed => Self { kind: "closed", ..self },
        }
    }
}

impl<'a> Line<'a> {
    fn with_job(self, job: &'a JobRecord<'a>) -> Self {
        Self {
            kind: "job",
            id: Some(job.id.0),
            tube: Some(job.tube.as_str()),
            tags: Some(job.tags.as_str()).filter(|tags| !tags.is_empty()),
            created: Some(job.created.as_nanos()),
            ttr: Some(job.ttr),
            state: Some(State::of(&job.state)),
            notes: job.notes.iter().map(NoteLine::of).collect(),
            ..self
        }
        .with_body(job.body)
    }

    fn with_body(self, body: &'a [u8]) -> Self {
        let body = body.strip_suffix(b"\r\n").unwrap_or(body);
        let text = str::from_utf8(body).ok();
        Self { body: text, body_hex: text.is_none().then(|| hex(body)), ..self }
    }
}

impl ProgressLine {
    const fn of(progress: &Progress) -> Self {
        let &Progress { handled, due, ran, job, runs, skips, refusals, gaps, caught_up } = progress;
        let (handled, due, ran) = (handled.as_nanos(), due.as_nanos(), ran.as_nanos());
        Self { handled, due, ran, last_job: job.0, runs, skips, refusals, gaps, caught_up }
    }
}

impl<'a> NoteLine<'a> {
    fn of(note: Note<'a>) -> Self {
        let text = str::from_utf8(note.text).ok();
        Self { at: note.at.as_nanos(), text, text_hex: text.is_none().then(|| hex(note.text)) }
    }
}

impl State {
    fn of(state: &PersistedState) -> Self {
        let PersistedState { pri, delay, state, counts } = *state;
        let (mut delayed_until, mut reserved_until, mut buried_after) = (None, None, None);
        let state = match state {
            LoggedState::Ready => "ready",
            LoggedState::Delayed(until) => {
                delayed_until = Some(until.as_nanos());
                "delayed"
            }
            LoggedState::Buried(before) => {
                buried_after = Some(before);
                "buried"
            }
            LoggedState::Held(until) => {
                delayed_until = Some(until.as_nanos());
                "held"
            }
            LoggedState::Reserved(until) => {
                reserved_until = Some(until.as_nanos());
                "reserved"
            }
        };
        let Counts { reserves, timeouts, releases, buries, kicks, losses } = counts;
        Self {
            state,
            pri,
            delay,
            delayed_until,
            reserved_until,
            buried_after,
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
            losses,
        }
    }
}

const fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
