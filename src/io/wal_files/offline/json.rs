//! Records as lines of JSON.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{Finding, ToolError, dump};
use crate::io::stdout::OutputError;
use crate::queue::{Counts, LoggedState, PersistedState};
use crate::values::notes::Note;
use crate::values::schedules::Progress;
use crate::values::tube_rules::RuleValue;
use crate::wal::record::{JobRecord, Lsn, Record, RuleRecord};

/// The fields of a JSON object, in order. Times are nanoseconds since 1970.
#[derive(Default)]
struct Line(Vec<(&'static str, Value)>);

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Prints a line of JSON for each segment, gap and valid record of the log in this directory.
///
/// # Errors
/// [`ToolError::Output`] if `out` cannot be written, and all of [`dump`].
pub fn dump_json(dir: &Path, out: impl Write) -> Result<(), ToolError> {
    let mut out = BufWriter::new(out);
    dump(dir, |finding| {
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

impl Line {
    fn of(finding: &Finding<'_>) -> Self {
        match *finding {
            Finding::Segment { file, header, is_headless: true, .. } => {
                Self::at(file, 0, header.first).with("kind", "segment without a header")
            }
            Finding::Segment { file, header, .. } => Self::at(file, 0, header.first)
                .with("kind", "segment")
                .with("next_id", header.next_id.0)
                .with("oldest", header.oldest.to_string()),
            Finding::Gap { file, offset, at, bytes } => {
                Self::at(file, offset, at).with("kind", "gap").with("bytes", bytes)
            }
            Finding::OtherLog { file, .. } => {
                Self::at(file, 0, Lsn(0)).with("kind", "segment of another log")
            }
            Finding::Missing { file, at, bytes } => {
                Self::at(file, 0, at).with("kind", "missing segment").with("bytes", bytes)
            }
            Finding::Record { file, offset, at, framed } => {
                Self::at(file, offset, at).with("durable", framed.durable.0).with_record(&framed.record)
            }
        }
    }

    fn at(file: &str, offset: u64, position: Lsn) -> Self {
        Self::default().with("file", file).with("offset", offset).with("position", position.0)
    }

    /// Appends a field, unless its value is none.
    fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).expect("numbers and texts are JSON");
        if !value.is_null() {
            self.0.push((name, value));
        }
        self
    }

    fn with_record(self, record: &Record<'_>) -> Self {
        match record {
            Record::Job(job) => self.with_job(job).with_body(job.body),
            Record::Run(of) => self
                .with_job(&of.job)
                .with("schedule", of.run.schedule.as_str())
                .with_progress(&of.run.progress)
                .with_body(of.job.body),
            Record::Schedule(schedule) => self
                .with("kind", "schedule")
                .with("tube", schedule.tube.as_str())
                .with("created", schedule.created.as_nanos())
                .with("ttr", schedule.plan.ttr)
                .with("schedule", schedule.name.as_str())
                .with("when", schedule.plan.when.as_str())
                .with("pri", schedule.plan.pri)
                .with("delay", schedule.plan.delay)
                .with("missed", schedule.plan.missed)
                .with("overlaps", schedule.plan.overlaps)
                .with("is_configured", schedule.is_configured)
                .with_progress(&schedule.progress)
                .with_body(schedule.body),
            Record::ScheduleGone(name) => self.with("kind", "schedule-end").with("schedule", name.as_str()),
            Record::Progress(run) => self
                .with("kind", "left-out")
                .with("schedule", run.schedule.as_str())
                .with_progress(&run.progress),
            Record::Change { id, state } => self.with("kind", "change").with("id", id.0).with_state(state),
            Record::Moved { id, state, tube } => {
                self.with("kind", "move").with("id", id.0).with("tube", tube.as_str()).with_state(state)
            }
            Record::Noted { id, note } => {
                self.with("kind", "note").with("id", id.0).with("notes", [Self::of_note(*note)])
            }
            Record::Deleted(id) => self.with("kind", "deletion").with("id", id.0),
            Record::Paused(pause) => self
                .with("kind", "pause")
                .with("tube", pause.tube.as_str())
                .with("until", pause.until.as_nanos())
                .with("pause", pause.length.as_nanos()),
            Record::KeptKey(kept) => self
                .with("kind", "kept-key")
                .with("id", kept.id.0)
                .with("tube", kept.tube.as_str())
                .with("key", kept.key.as_str())
                .with("ttl", kept.ttl)
                .with("until", kept.until.as_nanos()),
            Record::GroupDone(group) => self.with("kind", "group-end").with("group", group.as_str()),
            Record::Rule(RuleRecord { tube, rule }) => {
                let line =
                    self.with("kind", "rule").with("tube", tube.as_str()).with("rule", rule.key().word());
                match rule.value() {
                    // The rule is removed.
                    RuleValue::None => line,
                    RuleValue::Number(number) => line.with("value", rule.key().shown(number)),
                    RuleValue::Tube(name) => line.with("dead_letter", name.as_str()),
                }
            }
            Record::Oldest(segment) => self.with("kind", "oldest").with("oldest", segment.to_string()),
            Record::Padding(bytes) => self.with("kind", "padding").with("bytes", bytes),
            Record::Closed => self.with("kind", "closed"),
        }
    }

    /// Appends all of a job but its body.
    fn with_job(self, job: &JobRecord<'_>) -> Self {
        let notes: Vec<Self> = job.notes.iter().map(Self::of_note).collect();
        self.with("kind", "job")
            .with("id", job.id.0)
            .with("tube", job.tube.as_str())
            .with("tags", Some(job.tags.as_str()).filter(|tags| !tags.is_empty()))
            .with("created", job.created.as_nanos())
            .with("ttr", job.ttr)
            .with_state(&job.state)
            .with("notes", Some(notes).filter(|notes| !notes.is_empty()))
    }

    fn with_body(self, body: &[u8]) -> Self {
        self.with_text(["body", "body_hex"], body.strip_suffix(b"\r\n").unwrap_or(body))
    }

    /// Appends bytes under the second name as hexadecimal digits, if they are not UTF-8.
    fn with_text(self, [name, hex_name]: [&'static str; 2], bytes: &[u8]) -> Self {
        match str::from_utf8(bytes) {
            Ok(text) => self.with(name, text),
            Err(_) => self.with(hex_name, bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        }
    }

    fn of_note(note: Note<'_>) -> Self {
        Self::default().with("at", note.at.as_nanos()).with_text(["text", "text_hex"], note.text)
    }

    fn with_progress(self, progress: &Progress) -> Self {
        let &Progress { handled, due, ran, job, runs, skips, refusals, gaps, caught_up } = progress;
        self.with("handled", handled.as_nanos())
            .with("due", due.as_nanos())
            .with("ran", ran.as_nanos())
            .with("last_job", job.0)
            .with("runs", runs)
            .with("skips", skips)
            .with("refusals", refusals)
            .with("gaps", gaps)
            .with("caught_up", caught_up)
    }

    fn with_state(self, state: &PersistedState) -> Self {
        let PersistedState { pri, delay, state, counts } = *state;
        let (state, order_name, order) = match state {
            LoggedState::Ready => ("ready", "delayed_until", None),
            LoggedState::Delayed(until) => ("delayed", "delayed_until", Some(until.as_nanos())),
            LoggedState::Buried(before) => ("buried", "buried_after", Some(before)),
            LoggedState::Held(until) => ("held", "delayed_until", Some(until.as_nanos())),
            LoggedState::Reserved(until) => ("reserved", "reserved_until", Some(until.as_nanos())),
        };
        let Counts { reserves, timeouts, releases, buries, kicks, losses } = counts;
        self.with("state", state)
            .with("pri", pri)
            .with("delay", delay)
            .with(order_name, order)
            .with("reserves", reserves)
            .with("timeouts", timeouts)
            .with("releases", releases)
            .with("buries", buries)
            .with("kicks", kicks)
            .with("losses", Some(losses).filter(|&losses| losses > 0))
    }
}
