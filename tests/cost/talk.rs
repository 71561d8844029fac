//! Clients that send many commands and read all replies.

use std::time::Duration;

use beanring::values::tube_rules::RuleKey;
use beanring_testkit::client::Client;
use beanring_testkit::peer::Received;
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::stream::Stream;

/// Bytes of commands that are sent before their replies are read. The replies fit into the buffers of the sockets.
const AHEAD_BYTES: usize = 24 * 1024;

/// A client of the queue.
pub struct Talk(Client);

impl Talk {
    pub fn new(stream: Stream) -> Self {
        Self(Client::new(stream))
    }

    pub fn send(&mut self, commands: &str) {
        self.0.send(commands);
    }

    /// Reads the reply to one command. Returns its first line, and the ids of the jobs that it names.
    pub fn reply(&mut self) -> (String, Vec<u64>) {
        let (line, _) = self.0.reply().expect("the server runs");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| text.parse().expect("a number");
        let ids = match words[..] {
            ["INSERTED", id] | ["RESERVED", id, _] => vec![number(id)],
            ["INSERTED_BATCH" | "RESERVED_BATCH", count] => {
                (0..number(count)).flat_map(|_| self.reply().1).collect()
            }
            _ => Vec::new(),
        };
        (line, ids)
    }

    /// Sends a command and reads its reply.
    pub fn ask(&mut self, command: &str) -> (String, Vec<u64>) {
        self.send(command);
        self.reply()
    }

    /// Sends a command and asserts how its reply begins. Returns the ids of the reply.
    pub fn expect(&mut self, command: &str, expected: &str) -> Vec<u64> {
        let (line, ids) = self.ask(command);
        assert!(line.starts_with(expected), "{:?}: {line}", &command[..command.len().min(200)]);
        ids
    }

    /// Sends many commands, each with a reply of one line, and asserts how each reply begins. Returns all ids.
    pub fn expect_all(&mut self, commands: impl IntoIterator<Item = String>, expected: &str) -> Vec<u64> {
        let mut ids = Vec::new();
        let (mut text, mut count) = (String::new(), 0);
        let mut commands = commands.into_iter().peekable();
        while let Some(command) = commands.next() {
            text += &command;
            count += 1;
            if text.len() < AHEAD_BYTES && commands.peek().is_some() {
                continue;
            }
            self.send(&std::mem::take(&mut text));
            for _ in 0..std::mem::take(&mut count) {
                let (line, more) = self.reply();
                assert!(line.starts_with(expected), "{line}");
                ids.extend(more);
            }
        }
        ids
    }

    /// Reads the replies that have arrived. Returns whether there were any.
    pub fn drain(&mut self) -> bool {
        let mut has_any = false;
        while self.await_reply(Duration::ZERO) {
            self.reply();
            has_any = true;
        }
        has_any
    }

    /// Waits for a reply for up to this time. Returns whether there is one.
    pub fn await_reply(&mut self, patience: Duration) -> bool {
        self.0.has_reply(patience)
    }
}

/// Asks over HTTP, with another field that may be empty, and reads the response. Returns its status.
pub fn http(mut stream: Stream, method: &str, path: &str, field: &str) -> u16 {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{field}Connection: close\r\n\r\n");
    stream.send(request.as_bytes());
    let mut response = Vec::new();
    loop {
        match stream.receive(REPLY_PATIENCE) {
            Received::Bytes(bytes) => response.extend(bytes),
            Received::Closed => break,
            Received::Silence => panic!("the server answers"),
        }
    }
    let head = String::from_utf8_lossy(&response[..response.len().min(20)]).into_owned();
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head:?}"))
}

/// Returns a `put` of one byte with the longest time to run.
pub fn put(delay: u32, tags: &str) -> String {
    format!("put 0 {delay} 4000000000 1{tags}\r\nx\r\n")
}

/// Returns each rule with a number, as it is written, and one as close to `number` as its limits permit.
pub fn rules(number: u64) -> impl Iterator<Item = (&'static str, String)> {
    let keys = RuleKey::ALL.into_iter().filter(|&key| key != RuleKey::DeadLetter);
    keys.map(move |key| (key.word(), key.shown(number.clamp(key.min(), key.max())).to_string()))
}

/// Returns a `put-batch` of such jobs.
pub fn put_batch(puts: impl IntoIterator<Item = String>) -> String {
    let puts: Vec<String> = puts.into_iter().collect();
    format!("put-batch {}\r\n{}", puts.len(), puts.concat())
}
