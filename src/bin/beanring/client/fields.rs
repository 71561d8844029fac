//! Statistics as JSON, with the names and units of the HTTP API. What the API does not show stays in `protocol`, by its key
//! in the reply of the server.

use beanring::values::tube_rules::RuleKey;
use serde::{Serialize, Serializer};

use super::{Kind, Stats, Untrusted, Value};

/// A key of a reply, and the place of its value in the object. A dot leads into an object.
type Field = (&'static str, &'static str);

const SERVER: [Field; 32] = [
    ("version", "version"),
    ("io-driver", "driver"),
    ("hostname", "hostname"),
    ("id", "id"),
    ("pid", "pid"),
    ("uptime", "uptime_seconds"),
    ("draining", "draining"),
    ("current-jobs-ready", "jobs.ready"),
    ("current-jobs-reserved", "jobs.reserved"),
    ("current-jobs-delayed", "jobs.delayed"),
    ("current-jobs-buried", "jobs.buried"),
    ("current-jobs-held", "jobs.held"),
    ("current-jobs-urgent", "jobs.urgent"),
    ("total-jobs", "totals.puts"),
    ("job-timeouts", "totals.timeouts"),
    ("total-connections", "totals.connections"),
    ("rule-refusals", "rule_counts.refusals"),
    ("job-dead-letters", "rule_counts.dead_letters"),
    ("job-retries", "rule_counts.retries"),
    ("job-expiries", "rule_counts.expiries"),
    ("rate-waits", "rule_counts.rate_waits"),
    ("current-tubes", "tubes"),
    ("current-connections", "connections.clients"),
    ("current-producers", "connections.producers"),
    ("current-workers", "connections.workers"),
    ("current-waiting", "connections.waiting"),
    ("max-connections", "connections.max"),
    ("memory-used", "memory.used_bytes"),
    ("memory-reserved", "memory.reserved_bytes"),
    ("max-memory", "memory.max_bytes"),
    ("max-job-size", "limits.max_job_bytes"),
    ("max-tubes", "limits.max_tubes"),
];

/// These two only with a job log.
const JOB_LOG: [Field; 2] =
    [("wal-disk-bytes", "job_log.size_bytes"), ("wal-live-bytes", "job_log.live_bytes")];

/// The rules of a tube keep the names that `tube-config` has for them.
const TUBE: [Field; 29] = [
    ("name", "name"),
    ("current-jobs-ready", "ready"),
    ("current-jobs-reserved", "reserved"),
    ("current-jobs-delayed", "delayed"),
    ("current-jobs-buried", "buried"),
    ("current-jobs-held", "held"),
    ("current-jobs-urgent", "urgent"),
    ("current-waiting", "waiting"),
    ("current-watching", "watching"),
    ("current-using", "using"),
    ("total-jobs", "puts"),
    ("cmd-delete", "deletes"),
    ("job-timeouts", "timeouts"),
    ("pause-time-left", "paused_seconds"),
    ("oldest-ready-age", "oldest_ready_seconds"),
    ("pause", "pause_seconds"),
    ("cmd-pause-tube", "pauses"),
    ("job-buries", "buries"),
    ("queue-time-p50-us", "percentiles.queue_time.p50_seconds"),
    ("queue-time-p95-us", "percentiles.queue_time.p95_seconds"),
    ("queue-time-p99-us", "percentiles.queue_time.p99_seconds"),
    ("reserved-time-p50-us", "percentiles.reserved_time.p50_seconds"),
    ("reserved-time-p95-us", "percentiles.reserved_time.p95_seconds"),
    ("reserved-time-p99-us", "percentiles.reserved_time.p99_seconds"),
    ("rule-refusals", "rule_counts.refusals"),
    ("job-dead-letters", "rule_counts.dead_letters"),
    ("job-retries", "rule_counts.retries"),
    ("job-expiries", "rule_counts.expiries"),
    ("rate-waits", "rule_counts.rate_waits"),
];

const GROUP: [Field; 8] = [
    ("name", "name"),
    ("ready", "ready"),
    ("reserved", "reserved"),
    ("delayed", "delayed"),
    ("buried", "buried"),
    ("held", "held"),
    ("waiting-jobs", "waiting_jobs"),
    ("waits-for", "waits_for"),
];

const JOB: [Field; 19] = [
    ("id", "id"),
    ("tube", "tube"),
    ("state", "state"),
    ("pri", "priority"),
    ("age", "age_seconds"),
    ("delay", "delay_seconds"),
    ("ttr", "ttr_seconds"),
    ("time-left", "time_left_seconds"),
    ("reserves", "reserves"),
    ("timeouts", "timeouts"),
    ("releases", "releases"),
    ("buries", "buries"),
    ("kicks", "kicks"),
    ("losses", "losses"),
    ("attempts", "attempts"),
    ("size", "body_bytes"),
    ("tags", "tags"),
    ("waits-for", "waits_for"),
    ("passed-over", "passed_over"),
];

const SCHEDULE: [Field; 21] = [
    ("name", "name"),
    ("tube", "tube"),
    ("when", "when"),
    ("pri", "priority"),
    ("delay", "delay_seconds"),
    ("ttr", "ttr_seconds"),
    ("size", "body_bytes"),
    ("missed", "missed"),
    ("overlap", "overlap"),
    ("configured", "configured"),
    ("age", "age_seconds"),
    ("next-run", "next_run.at"),
    ("next-run-left", "next_run.left_seconds"),
    ("last-run", "last_run.at"),
    ("last-run-age", "last_run.age_seconds"),
    ("last-run-late", "last_run.late_seconds"),
    ("last-job", "last_run.job"),
    ("runs", "runs"),
    ("skips", "skips"),
    ("refusals", "refusals"),
    ("gaps", "gaps"),
];

/// The notes of a job: their texts, and their ages in seconds.
const NOTES: [[&str; 2]; 3] = [["note", "note-age"], ["note-2", "note-2-age"], ["note-3", "note-3-age"]];

/// Limits, where 0 means that there is none.
const NULL_IF_ZERO: [&str; 3] = ["max-connections", "max-memory", "max-tubes"];

/// Keys of times that are shown in seconds.
const MICROSECONDS: &str = "-us";

/// The place of what the API does not show.
const REST: &str = "protocol";

/// A value of an object.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Node<'a> {
    Null,
    Value(&'a Value),
    Text(Untrusted),
    Switch(bool),
    Seconds(f64),
    Object(Object<'a>),
    List(Vec<Object<'a>>),
}

/// Names with their values, in order.
#[derive(Default, Debug)]
pub(super) struct Object<'a>(Vec<(Untrusted, Node<'a>)>);

impl<'a> Object<'a> {
    /// The statistics of one thing.
    pub(super) fn of(kind: Kind, stats: &'a Stats) -> Self {
        let mut object = Self::default();
        let has_log = stats.number("wal-disk-bytes") > 0;
        let fields: Vec<&Field> = match kind {
            Kind::Server if has_log => SERVER.iter().chain(&JOB_LOG).collect(),
            Kind::Server => SERVER.iter().collect(),
            Kind::Tube => TUBE.iter().collect(),
            Kind::Group => GROUP.iter().collect(),
            Kind::Job => JOB.iter().collect(),
            Kind::Schedule => SCHEDULE.iter().collect(),
        };
        for (key, place) in &fields {
            if let Some(value) = stats.get(key) {
                object.insert(place, node(key, value, stats));
            }
        }
        if kind == Kind::Server && !has_log && stats.get("wal-disk-bytes").is_some() {
            object.insert("job_log", Node::Null);
        }
        let notes = notes_of(stats);
        if kind == Kind::Job && !notes.is_empty() {
            object.insert("notes", Node::List(notes));
        }
        let is_note =
            |key: &Untrusted| kind == Kind::Job && NOTES.as_flattened().iter().any(|known| *key == **known);
        let is_shown = |key: &Untrusted| is_note(key) || fields.iter().any(|(known, _)| *key == **known);
        let mut rest = Self::default();
        for (key, value) in stats.iter().filter(|(key, _)| !is_shown(key)) {
            let part = match RuleKey::named(key.bytes()) {
                Some(_) if kind == Kind::Tube => object.inner("rules".into()),
                _ => &mut rest,
            };
            part.0.push((key.clone(), Node::Value(value)));
        }
        if !rest.0.is_empty() {
            object.insert(REST, Node::Object(rest));
        }
        object
    }

    /// Adds a text.
    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.insert(name, Node::Text(text.into()));
    }

    fn insert(&mut self, place: &str, node: Node<'a>) {
        match place.split_once('.') {
            Some((name, inner)) => self.inner(name.into()).insert(inner, node),
            None => self.0.push((place.into(), node)),
        }
    }

    /// The object of this name, which is created if there is none.
    fn inner(&mut self, name: Untrusted) -> &mut Self {
        let at = self.0.iter().position(|(own, node)| *own == name && matches!(node, Node::Object(_)));
        let at = at.unwrap_or_else(|| {
            self.0.push((name, Node::Object(Self::default())));
            self.0.len() - 1
        });
        match &mut self.0[at].1 {
            Node::Object(object) => object,
            _ => unreachable!("it was found or made as an object"),
        }
    }
}

fn node<'a>(key: &str, value: &'a Value, stats: &Stats) -> Node<'a> {
    match value {
        Value::Number(0) if NULL_IF_ZERO.contains(&key) => Node::Null,
        Value::Number(_) if key == "oldest-ready-age" && stats.number("current-jobs-ready") == 0 => {
            Node::Null
        }
        Value::Number(micros) if key.ends_with(MICROSECONDS) => Node::Seconds(*micros as f64 / 1e6),
        Value::Text(word) if key == "overlap" && (*word == "yes" || *word == "no") => {
            Node::Switch(*word == "yes")
        }
        Value::Text(tags) if key == "tags" => Node::Object(tags_of(tags)),
        value => Node::Value(value),
    }
}

/// The notes of a job, the latest first.
fn notes_of(stats: &Stats) -> Vec<Object<'_>> {
    let note = |[text, age]: [&str; 2]| {
        let (text, age) = (stats.get(text)?, stats.get(age)?);
        Some(Object(vec![("age_seconds".into(), Node::Value(age)), ("text".into(), Node::Value(text))]))
    };
    NOTES.into_iter().filter_map(note).collect()
}

/// Reads tags as in the line of a `put`.
fn tags_of<'a>(tags: &Untrusted) -> Object<'a> {
    let words = tags.bytes().split(|&byte| byte == b' ');
    let pairs = words.filter_map(|word| {
        let at = word.iter().position(|&byte| byte == b':')?;
        Some((word[..at].into(), Node::Text(word[at + 1..].into())))
    });
    Object(pairs.collect())
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, node)| (name, node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(kind: Kind, data: &[u8]) -> String {
        let stats = Stats::parse(kind, &data.into()).expect("these are statistics");
        serde_json::to_string(&Object::of(kind, &stats)).expect("it is plain")
    }

    #[test]
    fn names_and_units_are_those_of_the_api() {
        let job = b"---\nid: 7\ntube: 1\npri: 5\nage: 2\nfile: 3\ntags: idp:a:60 con:k:1\n";
        let expected = r#"{"id":7,"tube":"1","priority":5,"age_seconds":2,"tags":{"idp":"a:60","con":"k:1"},"protocol":{"file":3}}"#;
        assert_eq!(json(Kind::Job, job), expected);
        let noted = b"---\nid: 7\nlosses: 1\nattempts: 2\nnote: \"7\"\nnote-age: 0\nnote-2: \"a\\n\"\nnote-2-age: 9\n";
        let expected = r#"{"id":7,"losses":1,"attempts":2,"notes":[{"age_seconds":0,"text":"7"},{"age_seconds":9,"text":"a\n"}]}"#;
        assert_eq!(json(Kind::Job, noted), expected);
        let tube = b"---\nname: a\ncurrent-jobs-ready: 0\noldest-ready-age: 0\nqueue-time-p50-us: 1500\nmax-jobs: 5\nnew: 1\n";
        let expected = r#"{"name":"a","ready":0,"oldest_ready_seconds":null,"percentiles":{"queue_time":{"p50_seconds":0.0015}},"rules":{"max-jobs":5},"protocol":{"new":1}}"#;
        assert_eq!(json(Kind::Tube, tube), expected);
        let schedule = b"---\nname: \"7\"\nwhen: \"every:9\"\nsize: 3\noverlap: no\nnext-run: 2026-11-30T02:00:00Z\nnext-run-left: 9\nlast-job: 5\nnew: 1\n";
        let expected = r#"{"name":"7","when":"every:9","body_bytes":3,"overlap":false,"next_run":{"at":"2026-11-30T02:00:00Z","left_seconds":9},"last_run":{"job":5},"protocol":{"new":1}}"#;
        assert_eq!(json(Kind::Schedule, schedule), expected);
        let server = b"---\ncurrent-jobs-ready: 1\nmax-memory: 0\nwal-disk-bytes: 0\nwal-live-bytes: 0\n";
        let expected = r#"{"jobs":{"ready":1},"memory":{"max_bytes":null},"job_log":null,"protocol":{"wal-disk-bytes":0,"wal-live-bytes":0}}"#;
        assert_eq!(json(Kind::Server, server), expected);
    }
}
