//! An unpipelined client, and what it can see of a queue.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use beanring_testkit::client::Client;
use beanring_testkit::process::{ServerProcess, Transport};
use beanring_testkit::statistics::pairs;

/// Jobs to look at at once: the age of each is known to a whole second beside the time that this takes.
const AT_ONCE: usize = 100;

/// A server, killed when the value is dropped, and one connection to it.
pub struct Served {
    _server: ServerProcess,
    /// Whether it counts one more burial of each buried job at its start, as beanstalkd does.
    is_reference: bool,
    pub client: Client,
}

/// A job as clients see it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `stats-job` without the age and the time left.
    pub stats: BTreeMap<String, String>,
    pub body: String,
    born: Moment,
    due: Option<Moment>,
}

/// The first and the last possible instant of a time that is known in whole seconds.
type Moment = (Instant, Instant);

impl Served {
    /// Starts a server on a log.
    pub fn start(program: &Path, log: &Path, flags: &[&str]) -> Self {
        let all = [&["-b", log.to_str().expect("a name in UTF-8")], flags].concat();
        let (server, stream) = ServerProcess::start(program, Transport::Tcp, &all);
        let is_reference = program.ends_with("beanstalkd");
        Self { _server: server, is_reference, client: Client::new(stream) }
    }

    /// Sends a command. Returns the first line of the reply.
    pub fn ask(&mut self, command: &str) -> String {
        self.client.ask(&format!("{command}\r\n")).0
    }

    pub fn expect(&mut self, command: &str, answer: &str) {
        assert_eq!(self.ask(command), answer, "{command}");
    }

    pub fn put(&mut self, pri: u32, delay: u32, ttr: u32, body: &str) -> u64 {
        let inserted = self.ask(&format!("put {pri} {delay} {ttr} {}\r\n{body}", body.len()));
        inserted.strip_prefix("INSERTED ").and_then(|id| id.parse().ok()).expect("an id")
    }

    /// Returns the id of the job that a `reserve` or a `peek` finds.
    pub fn job(&mut self, command: &str) -> Option<u64> {
        self.ask(command).split(' ').nth(1).map(|id| id.parse().expect("an id"))
    }

    /// Returns all jobs up to this id.
    pub fn inspect(&mut self, last_id: u64) -> BTreeMap<u64, Seen> {
        let ids: Vec<u64> = (1..=last_id).collect();
        let mut jobs = BTreeMap::new();
        for ids in ids.chunks(AT_ONCE) {
            let before = Instant::now();
            let commands =
                ids.iter().flat_map(|id| [format!("stats-job {id}\r\n"), format!("peek {id}\r\n")]);
            let replies = self.client.ask_all(commands);
            let asked = (before, Instant::now());
            for (&id, [(_, stats), (line, body)]) in ids.iter().zip(replies.as_chunks().0) {
                if line != "NOT_FOUND" {
                    jobs.insert(id, self.seen(stats, body, asked));
                }
            }
        }
        jobs
    }

    fn seen(&self, stats: &str, body: &str, (before, after): Moment) -> Seen {
        let text = stats.replace('"', "");
        let mut stats: BTreeMap<String, String> =
            pairs(&text).map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let mut seconds = |key| stats.remove(key).and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let (age, left) = seconds("age").zip(seconds("time-left")).expect("two numbers");
        stats.remove("file");
        if self.is_reference && stats["state"] == "buried" {
            let buries: u32 = stats["buries"].parse().expect("a number");
            stats.insert("buries".to_owned(), (buries - 1).to_string());
        }
        let due = (stats["state"] == "delayed").then_some((before + left, after + left));
        Seen { due, stats, body: body.to_owned(), born: (before - age, after - age) }
    }

    /// Kicks all buried jobs of a tube. Returns them in order.
    pub fn kick_buried(&mut self, tube: &str) -> Vec<u64> {
        self.expect(&format!("use {tube}"), &format!("USING {tube}"));
        let mut found = Vec::new();
        while let Some(id) = self.job("peek-buried") {
            found.push(id);
            self.expect("kick 1", "KICKED 1");
        }
        found
    }
}

/// Asserts that two servers show the same jobs.
pub fn compare(left: &BTreeMap<u64, Seen>, right: &BTreeMap<u64, Seen>) {
    assert!(left.keys().eq(right.keys()), "{:?}\n{:?}", left.keys(), right.keys());
    for (id, one) in left {
        let other = &right[id];
        assert_eq!(one.stats, other.stats, "job {id}");
        assert!(one.body == other.body, "the body of job {id}");
        assert!(is_near(one.born, other.born), "the age of job {id}");
        assert_eq!(one.due.is_some(), other.due.is_some(), "job {id}");
        let both = one.due.zip(other.due);
        assert!(both.is_none_or(|(one, other)| is_near(one, other)), "the delay of job {id}");
    }
}

/// Whether two instants may be the same, since both are known in whole seconds.
fn is_near(one: Moment, other: Moment) -> bool {
    let whole = Duration::from_secs(2);
    one.0 < other.1 + whole && other.0 < one.1 + whole
}
