//! What `stats`, `stats-tube`, `stats-group` and `stats-job` reply: keys with values, and the units of these values.

use std::fmt;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::error::ClientError;
use super::escape::escaped;
use super::units::{Bytes, Micros, Seconds};

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
}

/// A value of statistics.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A count, a size or a time.
    Number(u64),
    /// A time with decimals.
    Decimal(f64),
    /// Yes or no.
    Switch(bool),
    /// Names.
    List(Vec<String>),
    /// Anything else.
    Text(String),
}

/// Statistics, in the order of the reply.
#[derive(Clone, PartialEq, Debug)]
pub struct Stats(Vec<(String, Value)>);

/// Keys whose values are text even if they look like numbers.
const TEXTS: [(Kind, &[&str]); 4] = [
    (Kind::Server, &["version", "id", "hostname", "os", "platform", "io-driver"]),
    (Kind::Tube, &["name", "dead-letter"]),
    (Kind::Group, &["name"]),
    (Kind::Job, &["tube", "state"]),
];

impl Stats {
    /// Reads a reply: the line `---`, and lines that are `KEY: VALUE` or `KEY:`.
    ///
    /// # Errors
    /// If a line is something else, or the first one is missing.
    pub fn parse(kind: Kind, data: &[u8]) -> Result<Self, ClientError> {
        let text = String::from_utf8_lossy(data);
        let (_, texts) = TEXTS[kind as usize];
        let pair = |line: &str| {
            let (key, value) = line.split_once(": ").or_else(|| Some((line.strip_suffix(':')?, "")))?;
            Some((key.to_owned(), Value::parse(value, texts.contains(&key))))
        };
        let mut lines = text.lines();
        let pairs = if lines.next() == Some("---") { lines.map(pair).collect() } else { None };
        pairs.map(Self).ok_or_else(|| ClientError::Unreadable(data.to_vec()))
    }

    /// Returns a value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, value)| value)
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
    pub fn text(&self, key: &str) -> &str {
        match self.get(key) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl Value {
    fn parse(text: &str, is_text: bool) -> Self {
        if let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            return Self::Text(inner.to_owned());
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
            && !is_text
        {
            let names = inner.split(", ").filter(|name| !name.is_empty());
            return Self::List(names.map(|name| name.trim_matches('"').to_owned()).collect());
        }
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match text {
            _ if is_text => Self::Text(text.to_owned()),
            "true" => Self::Switch(true),
            "false" => Self::Switch(false),
            _ => match (text.parse(), text.parse()) {
                (Ok(number), _) => Self::Number(number),
                (_, Ok(number)) if is_decimal => Self::Decimal(number),
                _ => Self::Text(text.to_owned()),
            },
        }
    }

    /// The value for people, in several lines if it is a list.
    pub fn texts(&self, key: &str) -> Vec<String> {
        match self {
            Self::List(names) if !names.is_empty() => {
                names.iter().map(|name| escaped(name.as_bytes())).collect()
            }
            _ => vec![self.with_unit(key)],
        }
    }

    /// The value for people, with the unit that belongs to its key. Text is escaped.
    pub fn with_unit(&self, key: &str) -> String {
        match self {
            Self::Number(0) if NONE_IF_ZERO.contains(&key) => "none".to_owned(),
            Self::Number(bytes) if is_size(key) => Bytes(*bytes).to_string(),
            Self::Number(micros) if key.ends_with("-us") => Micros(*micros).to_string(),
            Self::Number(seconds) if is_time(key) => Seconds(*seconds).to_string(),
            Self::Decimal(seconds) if is_time(key) && *seconds < 60.0 => format!("{seconds} s"),
            Self::Decimal(seconds) if is_time(key) => Seconds(seconds.round() as u64).to_string(),
            Self::Decimal(seconds) if is_cpu_time(key) => format!("{seconds:.2} s"),
            _ => self.to_string(),
        }
    }
}

/// Limits that do not exist if they are 0.
const NONE_IF_ZERO: [&str; 4] = ["max-memory", "max-connections", "max-tubes", "max-watches"];

/// CPU time, in seconds with decimals.
fn is_cpu_time(key: &str) -> bool {
    key.starts_with("rusage-") || key.starts_with("io-thread-") && key.ends_with("-cpu")
}

fn is_size(key: &str) -> bool {
    let sizes = ["max-job-size", "binlog-max-size", "max-memory"];
    let is_part_of_memory = key.starts_with("memory-") && key != "memory-refusals";
    key.ends_with("-bytes") || is_part_of_memory || sizes.contains(&key)
}

fn is_time(key: &str) -> bool {
    let times = [
        "uptime",
        "age",
        "delay",
        "ttr",
        "time-left",
        "pause",
        "pause-time-left",
        "oldest-ready-age",
        "default-ttr",
        "retention",
    ];
    times.contains(&key)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Decimal(number) => number.fmt(f),
            Self::Switch(is_on) => f.write_str(if *is_on { "yes" } else { "no" }),
            Self::List(names) if names.is_empty() => f.write_str("-"),
            Self::List(names) => f.write_str(&escaped(names.join(", ").as_bytes())),
            Self::Text(text) => f.write_str(&escaped(text.as_bytes())),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Decimal(number) => serializer.serialize_f64(*number),
            Self::Switch(is_on) => serializer.serialize_bool(*is_on),
            Self::List(names) => names.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl Serialize for Stats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: Kind, data: &[u8]) -> Stats {
        Stats::parse(kind, data).expect("these are statistics")
    }

    #[test]
    fn other_data_is_an_error() {
        for data in
            ["", "hello", "---\nhello\n", "key: 1\n", "---\na: 1\n\nb: 2\n", "---\n- default\n", "<html>: x"]
        {
            assert!(Stats::parse(Kind::Server, data.as_bytes()).is_err(), "{data:?}");
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
        assert_eq!((stats.text("hostname"), stats.text("os")), ("a: b", "#1 SMP"));
        assert_eq!(stats.iter().count(), 8);
        let job = parse(Kind::Job, b"---\nid: 7\ntube: 123\n");
        assert_eq!((job.number("id"), job.text("tube")), (7, "123"));
        assert_eq!(serde_json::to_string(&job).expect("it is plain"), r#"{"id":7,"tube":"123"}"#);
        let times = parse(Kind::Job, b"---\ndelay: 2\nttr: 1.005\n");
        assert_eq!((times.number("delay"), times.number("ttr"), times.number("age")), (2, 2, 0));
        let [delay, ttr] = ["delay", "ttr"].map(|key| times.time(key));
        assert_eq!((delay, ttr), (Duration::from_secs(2), Duration::from_millis(1005)));
        let group = parse(Kind::Group, b"---\nname: \"7\"\nready: 1\nwaits-for: [\"a\", \"8\"]\n");
        let expected = r#"{"name":"7","ready":1,"waits-for":["a","8"]}"#;
        assert_eq!(serde_json::to_string(&group).expect("it is plain"), expected);
        assert_eq!(group.get("waits-for").map(|groups| groups.texts("waits-for").len()), Some(2));
        let alone = parse(Kind::Group, b"---\nwaits-for: []\n");
        assert_eq!(
            alone.get("waits-for").map(|groups| groups.texts("waits-for")),
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
            ("queue-time-p50-us", 1500, "1.5 ms"),
            ("current-jobs-ready", 1500, "1500"),
        ] {
            assert_eq!(Value::Number(number).with_unit(key), text, "{key}");
        }
        for (key, number, text) in [
            ("time-left", 0.25, "0.25 s"),
            ("time-left", 59.999, "59.999 s"),
            ("time-left", 3599.5, "1 h"),
            ("rusage-utime", 0.125, "0.12 s"),
            ("io-thread-1-cpu", 61.5, "61.50 s"),
        ] {
            assert_eq!(Value::Decimal(number).with_unit(key), text, "{key}");
        }
        assert_eq!(Value::Text("a\x1bb".to_owned()).with_unit("os"), "a\\x1bb");
    }
}
