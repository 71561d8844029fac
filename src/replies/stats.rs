//! What `stats`, `stats-tube`, `stats-group`, `stats-job` and `schedule-stats` reply: keys with values, and the units of these values.

use std::fmt;
use std::time::Duration;

use memchr::memmem;
use serde::{Serialize, Serializer};

use super::reply::{document, split, unquoted};
use super::units::{Bytes, Date, Micros, Seconds};
use super::untrusted::{decimal, integer};
use super::{ClientError, Untrusted};

/// Which command has replied. Some keys are numbers in one reply and text in another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `stats`
    Server,
    /// `stats-tube`
    Tube,
    /// `stats-group`
    Group,
    /// `stats-job`
    Job,
    /// `schedule-stats`, and `list-schedules`
    Schedule,
}

/// A value of statistics.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A count, a size or a time.
    Number(u64),
    /// A time with decimals.
    Decimal(f64),
    /// Yes or no.
    Switch(bool),
    /// Names.
    List(Vec<Untrusted>),
    /// Anything else.
    Text(Untrusted),
}

/// Statistics, in the order of the reply.
#[derive(Clone, PartialEq, Debug)]
pub struct Stats(Vec<(Untrusted, Value)>);

/// Keys whose values are text even if they look like numbers.
const TEXTS: [(Kind, &[&str]); 5] = [
    (Kind::Server, &["version", "id", "hostname", "os", "platform", "io-driver"]),
    (Kind::Tube, &["name", "dead-letter"]),
    (Kind::Group, &["name"]),
    (Kind::Job, &["tube", "state"]),
    (Kind::Schedule, &["name", "tube", "when", "missed", "overlap", "next-run", "last-run", "next"]),
];

impl Stats {
    /// Reads a reply: the line `---`, and lines that are `KEY: VALUE` or `KEY:`.
    ///
    /// # Errors
    /// If a line is something else, or the first one is missing.
    pub fn parse(kind: Kind, data: &Untrusted) -> Result<Self, ClientError> {
        Self::of_entries(kind, document(data)?).ok_or_else(|| ClientError::Unreadable(data.clone()))
    }

    /// Reads entries `KEY: VALUE` or `KEY:`. Returns none if one is something else.
    pub fn of_entries<'a>(kind: Kind, entries: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let (_, texts) = TEXTS[kind as usize];
        let pair = |entry: &[u8]| {
            let (key, value) = match memmem::find(entry, b": ") {
                Some(at) => (&entry[..at], &entry[at + 2..]),
                None => (entry.strip_suffix(b":")?, &b""[..]),
            };
            let is_text = texts.iter().any(|text| text.as_bytes() == key);
            Some((key.into(), Value::parse(value, is_text)))
        };
        entries.map(pair).collect::<Option<_>>().map(Self)
    }

    /// Returns a value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(own, _)| *own == *key).map(|(_, value)| value)
    }

    /// Returns a number, rounded up: a short time is not none. Returns 0 if the server does not have this key.
    pub fn number(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Number(number)) => *number,
            Some(Value::Decimal(number)) => number.ceil() as u64,
            _ => 0,
        }
    }

    /// Returns a time in seconds; none if the server does not have this key.
    pub fn time(&self, key: &str) -> Duration {
        match self.get(key) {
            Some(Value::Decimal(seconds)) => Duration::try_from_secs_f64(*seconds).unwrap_or(Duration::MAX),
            _ => Duration::from_secs(self.number(key)),
        }
    }

    /// Returns a text; an empty one if the server does not have this key.
    pub fn text(&self, key: &str) -> &Untrusted {
        match self.get(key) {
            Some(Value::Text(text)) => text,
            _ => Untrusted::EMPTY,
        }
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&Untrusted, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

impl Value {
    fn parse(text: &[u8], is_text: bool) -> Self {
        if let Some(inner) = text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
            return Self::Text(unescaped(inner).into());
        }
        if let Some(inner) = text.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"))
            && !is_text
        {
            let names = split(inner, b", ").filter(|name| !name.is_empty());
            return Self::List(names.map(|name| unquoted(name).into()).collect());
        }
        match text {
            _ if is_text => Self::Text(text.into()),
            b"true" => Self::Switch(true),
            b"false" => Self::Switch(false),
            _ => match (integer(text), decimal(text)) {
                (Some(number), _) => Self::Number(number),
                (None, Some(number)) => Self::Decimal(number),
                (None, None) => Self::Text(text.into()),
            },
        }
    }

    /// The value for people, in several lines if it is a list.
    pub fn texts(&self, key: &[u8]) -> Vec<String> {
        match self {
            Self::List(names) if !names.is_empty() => names.iter().map(ToString::to_string).collect(),
            _ => vec![self.with_unit(key)],
        }
    }

    /// The value for people, with the unit that belongs to its key. Text is escaped.
    pub fn with_unit(&self, key: &[u8]) -> String {
        match self {
            Self::Number(0) if is_one_of(key, &NONE_IF_ZERO) => "none".to_owned(),
            Self::Number(seconds) if key == b"tls-certificate-expiry" => Date(*seconds).to_string(),
            Self::Number(bytes) if is_size(key) => Bytes(*bytes).to_string(),
            Self::Number(micros) if key.ends_with(b"-us") => Micros(*micros).to_string(),
            Self::Number(seconds) if is_time(key) => Seconds(*seconds).to_string(),
            Self::Decimal(seconds) if is_time(key) && *seconds < 60.0 => {
                format!("{} s", (seconds * 1000.0).round() / 1000.0)
            }
            Self::Decimal(seconds) if is_time(key) => Seconds(seconds.round() as u64).to_string(),
            Self::Decimal(seconds) if is_cpu_time(key) => format!("{seconds:.2} s"),
            _ => self.to_string(),
        }
    }
}

/// What does not exist if it is 0.
const NONE_IF_ZERO: [&str; 5] =
    ["max-memory", "max-connections", "max-tubes", "max-watches", "tls-certificate-expiry"];

/// CPU time, in seconds with decimals.
fn is_cpu_time(key: &[u8]) -> bool {
    key.starts_with(b"rusage-")
}

fn is_size(key: &[u8]) -> bool {
    let sizes = ["max-job-size", "binlog-max-size", "max-memory", "size"];
    let is_part_of_memory = key.starts_with(b"memory-") && key != b"memory-refusals";
    key.ends_with(b"-bytes") || is_part_of_memory || is_one_of(key, &sizes)
}

fn is_time(key: &[u8]) -> bool {
    let is_of_a_kind = ["age", "delay", "left"].into_iter().any(|kind| {
        key.strip_suffix(kind.as_bytes()).is_some_and(|before| before.is_empty() || before.ends_with(b"-"))
    });
    let others = [
        "uptime",
        "ttr",
        "pause",
        "default-ttr",
        "retention",
        "retry-for",
        "last-run-late",
        "replication-lease",
        "replication-lag",
    ];
    is_of_a_kind || is_one_of(key, &others)
}

fn is_one_of(key: &[u8], keys: &[&str]) -> bool {
    keys.iter().any(|one| one.as_bytes() == key)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Decimal(number) => number.fmt(f),
            Self::Switch(is_on) => f.write_str(if *is_on { "yes" } else { "no" }),
            Self::List(names) if names.is_empty() => f.write_str("-"),
            Self::List(names) => {
                for (at, name) in names.iter().enumerate() {
                    write!(f, "{}{name}", if at == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Decodes the escapes of a quoted text. Anything else stays as it is.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    while let Some((&byte, rest)) = text.split_first() {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let hex = |digits: &[u8; 2]| Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        let (byte, after) = match (byte, rest) {
            (b'\\', [quoted @ (b'"' | b'\\'), after @ ..]) => (*quoted, after),
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b't', after @ ..]) => (b'\t', after),
            (b'\\', [b'x', after @ ..]) => {
                match after.split_first_chunk().map(|(two, after)| (hex(two), after)) {
                    Some((Some(byte), after)) => (byte, after),
                    _ => (byte, rest),
                }
            }
            _ => (byte, rest),
        };
        out.push(byte);
        text = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: Kind, data: &[u8]) -> Stats {
        Stats::parse(kind, &data.into()).expect("these are statistics")
    }

    #[test]
    fn escapes_of_a_text_are_read() {
        for (text, expect) in [
            (&b"plain"[..], &b"plain"[..]),
            (b"a \\\"b\\\"", b"a \"b\""),
            (b"a\\\\n", b"a\\n"),
            (b"a\\nb\\tc", b"a\nb\tc"),
            (b"\\x00\\xff", b"\0\xff"),
            // No server sends these.
            (b"\\", b"\\"),
            (b"\\x0", b"\\x0"),
            (b"\\q", b"\\q"),
        ] {
            assert_eq!(unescaped(text), expect, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn other_data_is_an_error() {
        for data in
            ["", "hello", "---\nhello\n", "key: 1\n", "---\na: 1\n\nb: 2\n", "---\n- default\n", "<html>: x"]
        {
            assert!(Stats::parse(Kind::Server, &data.into()).is_err(), "{data:?}");
        }
        assert_eq!(parse(Kind::Server, b"---\n").iter().count(), 0);
        assert_eq!(parse(Kind::Server, b"---\na: 1\nplatform:\n").iter().count(), 2);
    }

    #[test]
    fn values_have_the_types_of_their_keys() {
        let server = b"---\ncurrent-tubes: 3\nversion: 1.12\nid: 1234567890123456\nrusage-utime: 0.250000\ndraining: false\n\
                       hostname: \"a: b\"\nos: #1 SMP\nplatform:\n";
        let stats = parse(Kind::Server, server);
        assert_eq!(stats.number("current-tubes"), 3);
        assert_eq!(stats.text("version"), "1.12");
        assert_eq!(stats.text("id"), "1234567890123456");
        assert_eq!(stats.get("rusage-utime"), Some(&Value::Decimal(0.25)));
        assert_eq!(stats.get("draining"), Some(&Value::Switch(false)));
        assert_eq!(["hostname", "os"].map(|key| stats.text(key).to_string()), ["a: b", "#1 SMP"]);
        assert_eq!(stats.iter().count(), 8);
        let job = parse(Kind::Job, b"---\nid: 7\ntube: 123\n");
        assert_eq!((job.number("id"), job.text("tube").to_string()), (7, "123".to_owned()));
        assert_eq!(serde_json::to_string(&job).expect("it is plain"), r#"{"id":7,"tube":"123"}"#);
        let times = parse(Kind::Job, b"---\ndelay: 2\nttr: 1.005\n");
        assert_eq!((times.number("delay"), times.number("ttr"), times.number("age")), (2, 2, 0));
        let [delay, ttr] = ["delay", "ttr"].map(|key| times.time(key));
        assert_eq!((delay, ttr), (Duration::from_secs(2), Duration::from_millis(1005)));
        let group = parse(Kind::Group, b"---\nname: \"7\"\nready: 1\nwaits-for: [\"a\", \"8\"]\n");
        let expected = r#"{"name":"7","ready":1,"waits-for":["a","8"]}"#;
        assert_eq!(serde_json::to_string(&group).expect("it is plain"), expected);
        assert_eq!(group.get("waits-for").map(|groups| groups.texts(b"waits-for").len()), Some(2));
        let alone = parse(Kind::Group, b"---\nwaits-for: []\n");
        assert_eq!(
            alone.get("waits-for").map(|groups| groups.texts(b"waits-for")),
            Some(vec!["-".to_owned()])
        );
    }

    #[test]
    fn values_have_units() {
        for (key, number, text) in [
            ("memory-used", 1536, "1.5 KiB"),
            ("memory-refusals", 1536, "1536"),
            ("memory-used", 0, "0 B"),
            ("max-memory", 0, "none"),
            ("max-connections", 0, "none"),
            ("max-tubes", 0, "none"),
            ("max-job-size", 65_535, "63.9 KiB"),
            ("uptime", 61, "1 min 1 s"),
            ("tls-certificate-expiry", 0, "none"),
            ("tls-certificate-expiry", 1_795_651_261, "2026-11-26 00:01:01 UTC"),
            ("queue-time-p50-us", 1500, "1.5 ms"),
            ("current-jobs-ready", 1500, "1500"),
        ] {
            assert_eq!(Value::Number(number).with_unit(key.as_bytes()), text, "{key}");
        }
        for (key, number, text) in [
            ("time-left", 0.25, "0.25 s"),
            ("time-left", 59.999, "59.999 s"),
            ("time-left", 3599.5, "1 h"),
            ("rusage-utime", 0.125, "0.12 s"),
        ] {
            assert_eq!(Value::Decimal(number).with_unit(key.as_bytes()), text, "{key}");
        }
        assert_eq!(Value::Text("a\x1bb".into()).with_unit(b"os"), "a\\x1bb");
    }
}
