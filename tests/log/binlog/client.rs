//! An unpipelined client, and what it can see of a queue.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, Transport};
use beanring_testkit::statistics::pairs;
use beanring_testkit::stream::Stream;

/// A server, killed when the value is dropped, and one connection to it.
pub struct Served {
    _server: ServerProcess,
    /// Whether it counts one more burial of each buried job at its start, as beanstalkd does.
    is_reference: bool,
    stream: BufReader<TcpStream>,
}

/// A job as clients see it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `stats-job` without the age and the time left.
    pub stats: BTreeMap<String, String>,
    pub body: Vec<u8>,
    born: Moment,
    due: Option<Moment>,
}

/// The first and the last possible instant of a time that is known in whole seconds.
type Moment = (Instant, Instant);

impl Served {
    /// Starts a server on a log.
    pub fn start(program: &Path, log: &Path, flags: &[&str]) -> Self {
        let mut all = vec!["-b".to_owned(), log.to_str().unwrap().to_owned()];
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let (server, stream) = ServerProcess::start(program, Transport::Tcp, &all);
        let Stream::Tcp(stream) = stream else { unreachable!("it is one") };
        stream.set_read_timeout(Some(REPLY_PATIENCE)).unwrap();
        let is_reference = program.ends_with("beanstalkd");
        Self { _server: server, is_reference, stream: BufReader::new(stream) }
    }

    /// Sends a command. Returns the first line of the reply.
    pub fn ask(&mut self, command: &str) -> String {
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn expect(&mut self, command: &str, answer: &str) {
        assert_eq!(self.ask(command), answer, "{command}");
    }

    /// Sends a command. Returns the first line of the reply, and the body if it announces one.
    pub fn ask_for_body(&mut self, command: &str) -> (String, Vec<u8>) {
        let line = self.ask(command);
        let is_followed = ["OK ", "FOUND ", "RESERVED "].iter().any(|start| line.starts_with(start));
        if !is_followed {
            return (line, Vec::new());
        }
        let bytes: usize = line.rsplit(' ').next().unwrap().parse().unwrap();
        let mut body = vec![0; bytes + 2];
        self.stream.read_exact(&mut body).unwrap();
        body.truncate(bytes);
        (line, body)
    }

    pub fn put(&mut self, pri: u32, delay: u32, ttr: u32, body: &[u8]) -> u64 {
        let mut command = format!("put {pri} {delay} {ttr} {}\r\n", body.len()).into_bytes();
        command.extend_from_slice(body);
        let inserted = self.ask(std::str::from_utf8(&command).unwrap());
        inserted.strip_prefix("INSERTED ").unwrap().parse().unwrap()
    }

    /// Returns the id of the job that a `reserve` or a `peek` finds.
    pub fn job(&mut self, command: &str) -> Option<u64> {
        let (line, _) = self.ask_for_body(command);
        line.split(' ').nth(1).map(|id| id.parse().unwrap())
    }

    /// Returns all jobs up to this id.
    pub fn inspect(&mut self, last_id: u64) -> BTreeMap<u64, Seen> {
        (1..=last_id).filter_map(|id| Some((id, self.inspect_job(id)?))).collect()
    }

    fn inspect_job(&mut self, id: u64) -> Option<Seen> {
        let before = Instant::now();
        let (line, text) = self.ask_for_body(&format!("stats-job {id}"));
        if line == "NOT_FOUND" {
            return None;
        }
        let after = Instant::now();
        let text = String::from_utf8(text).unwrap().replace('"', "");
        let mut stats: BTreeMap<String, String> =
            pairs(&text).map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let mut seconds = |key| Duration::from_secs(stats.remove(key).unwrap().parse().unwrap());
        let (age, left) = (seconds("age"), seconds("time-left"));
        stats.remove("file");
        if self.is_reference && stats["state"] == "buried" {
            let buries: u32 = stats["buries"].parse().unwrap();
            stats.insert("buries".to_owned(), (buries - 1).to_string());
        }
        let (_, body) = self.ask_for_body(&format!("peek {id}"));
        // An instant cannot be earlier than the boot of the machine.
        let born = (before.checked_sub(age)?, after.checked_sub(age)?);
        let due = (stats["state"] == "delayed").then_some((before + left, after + left));
        Some(Seen { due, stats, body, born })
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
