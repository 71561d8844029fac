//! Replies, and which of their parts are compared.

use std::borrow::Cow;
use std::collections::HashMap;

use beanring_testkit::{pattern, reply, statistics};

/// A complete reply: its line, and the data that some replies have.
#[derive(Clone, Debug)]
pub struct Reply {
    line: String,
    data: Option<Vec<u8>>,
}

/// The job ids of one server. It is undefined whether failed puts use up ids, so jobs are compared by the order of
/// their puts.
#[derive(Default)]
pub struct Ids {
    by_order: Vec<u64>,
    order: HashMap<u64, usize>,
}

/// A reply without the parts in which two correct servers may differ.
#[derive(Clone, Debug)]
pub struct Comparable {
    /// The line and the data, with ids replaced by their order.
    pub lines: Vec<String>,
    /// The data is a dictionary, to which another server may append keys.
    dictionary: bool,
}

/// Whether both servers quote strings in statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quotes {
    Compared,
    Ignored,
}

/// Keys that are specific to a server, or depend on when or how often the test requests them.
const VOLATILE: &str = "cmd-stats pid version rusage-utime rusage-stime uptime id hostname os platform age";

impl Reply {
    /// Takes a reply off the front of `input`, if it is complete.
    pub fn take(input: &mut Vec<u8>) -> Option<Self> {
        let reply = reply::first(input)?;
        let line = reply.line.to_owned();
        // The bytes at the place of the CR LF are compared too.
        let data = reply.data.map(|data| input[reply.bytes - 2 - data.len()..reply.bytes].to_vec());
        let bytes = reply.bytes;
        input.drain(..bytes);
        Some(Self { line, data })
    }

    fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.data.as_deref().unwrap_or_default())
    }

    /// Returns the value of a key of a dictionary.
    pub fn value(&self, key: &str) -> Option<u64> {
        statistics::value(&self.text(), key)?.parse().ok()
    }

    /// Returns the id of the new job.
    pub fn inserted(&self) -> Option<u64> {
        self.line.strip_prefix("INSERTED ")?.parse().ok()
    }

    /// Returns whether the statistics show that the server drains.
    pub fn says_draining(&self) -> bool {
        statistics::value(&self.text(), "draining") == Some("true")
    }

    /// Returns the parts that are compared.
    pub fn comparable(&self, ids: &Ids, quotes: Quotes) -> Comparable {
        let mut words: Vec<String> = self.line.split(' ').map(str::to_owned).collect();
        match words[0].as_str() {
            "INSERTED" | "RESERVED" | "FOUND" => words[1] = ids.show(&words[1]),
            "OK" => return self.comparable_data(ids, quotes),
            _ => {}
        }
        let mut lines = vec![words.join(" ")];
        lines.extend(self.data.as_deref().map(pattern::show));
        Comparable { lines, dictionary: false }
    }

    fn comparable_data(&self, ids: &Ids, quotes: Quotes) -> Comparable {
        let text = match quotes {
            Quotes::Compared => self.text().into_owned(),
            Quotes::Ignored => self.text().replace('"', ""),
        };
        // A dictionary may have further keys, but must end in the same way.
        let (text, end) = text.split_at(text.len() - 2);
        let is_list = text.starts_with("---\n- ");
        let is_job = text.starts_with("---\nid: ");
        let mut lines: Vec<String> = [end]
            .into_iter()
            .chain(text.lines())
            .map(|line| match statistics::pair(line) {
                Some(("id", id)) if is_job => format!("id: {}", ids.show(id)),
                Some((key, _))
                    if VOLATILE.split(' ').any(|volatile| volatile == key) || key.starts_with("binlog-") =>
                {
                    key.to_owned()
                }
                _ => line.to_owned(),
            })
            .collect();
        if is_list {
            // The order is undefined.
            lines.sort();
        }
        Comparable { lines, dictionary: !is_list }
    }
}

impl Ids {
    /// Returns the id that this server gave to job number `order`.
    pub fn id(&self, order: usize) -> u64 {
        self.by_order[order]
    }

    /// Records new jobs, in any order.
    pub fn add(&mut self, mut new: Vec<u64>) -> Result<(), String> {
        new.sort_unstable();
        for id in new {
            if self.by_order.last().is_some_and(|&newest| id <= newest) {
                return Err(format!("gave the id {id} after {:?}", self.by_order.last()));
            }
            self.order.insert(id, self.by_order.len());
            self.by_order.push(id);
        }
        Ok(())
    }

    fn show(&self, id: &str) -> String {
        match id.parse().ok().and_then(|id: u64| self.order.get(&id)) {
            Some(order) => format!("#{order}"),
            None => format!("unknown id {id}"),
        }
    }
}

impl Comparable {
    /// Returns the end of the connection.
    pub fn end() -> Self {
        Self { lines: vec!["(closed)".to_owned()], dictionary: false }
    }

    /// Returns whether `self`, of beanstalkd, and `other` agree.
    pub fn agrees(&self, other: &Self) -> bool {
        let same_length = self.lines.len() == other.lines.len();
        let longer = self.dictionary && self.lines.len() < other.lines.len();
        (same_length || longer) && self.lines.iter().zip(&other.lines).all(|(a, b)| same_line(a, b))
    }

    /// Returns the job of an `INSERTED` or a `RESERVED` line, as `word` selects.
    pub fn job_after(&self, word: &str) -> Option<usize> {
        self.lines[0].strip_prefix(word)?.strip_prefix(" #")?.split(' ').next()?.parse().ok()
    }
}

/// The servers round the rest of a period to seconds at slightly different times.
fn same_line(a: &str, b: &str) -> bool {
    let seconds = |line: &str| {
        let (key, value) = line.split_once("time-left: ")?;
        (key.is_empty() || key == "pause-").then(|| value.parse::<i64>().ok())?
    };
    match (seconds(a), seconds(b)) {
        (Some(a), Some(b)) => (a - b).abs() <= 1,
        _ => a == b,
    }
}
