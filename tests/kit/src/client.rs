//! Clients that read line by line, and servers with a job log together with such a client.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use beanring::io::driver::Driver;

use super::driver;
use super::peer::Received;
use super::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use super::statistics;
use super::stream::Stream;

/// Starts a server with a job log in `dir`. Returns it with its first connection.
pub fn start(dir: &Path, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    launch(Command::new(program()), dir, io, flags)
}

/// Starts a server by a command that becomes the server with the arguments that follow.
pub fn launch(command: Command, dir: &Path, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    let mut all = driver::flags(io);
    all.extend(["-b", dir.to_str().expect("a name in UTF-8")].map(str::to_owned));
    all.extend(flags.iter().map(|&flag| flag.to_owned()));
    let (server, stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &all);
    (server, Client::new(stream))
}

/// A client that reads line by line.
pub struct Client {
    pub stream: Stream,
    received: Vec<u8>,
    used: usize,
}

impl Client {
    pub fn new(stream: Stream) -> Self {
        Self { stream, received: Vec::new(), used: 0 }
    }

    /// Sends commands.
    pub fn send(&mut self, text: &str) {
        self.stream.send(text.as_bytes());
    }

    /// Returns the next `bytes` bytes, or none if the server closes the connection before.
    pub fn take(&mut self, bytes: usize) -> Option<String> {
        while self.received.len() - self.used < bytes {
            self.receive()?;
        }
        let taken = String::from_utf8_lossy(&self.received[self.used..self.used + bytes]).into_owned();
        self.used += bytes;
        Some(taken)
    }

    /// Returns the next line without its CR LF, or none if the server closes the connection before.
    pub fn line(&mut self) -> Option<String> {
        loop {
            let rest = &self.received[self.used..];
            if let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                self.used += end + 2;
                return Some(line);
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> Option<()> {
        self.received.drain(..std::mem::take(&mut self.used));
        match self.stream.receive(REPLY_PATIENCE) {
            Received::Bytes(bytes) => self.received.extend_from_slice(&bytes),
            Received::Closed => return None,
            Received::Silence => panic!("no reply"),
        }
        Some(())
    }

    /// Returns the reply to one command, and its data.
    pub fn reply(&mut self) -> Option<(String, String)> {
        let line = self.line()?;
        let has_data = ["RESERVED ", "FOUND ", "OK "].iter().any(|word| line.starts_with(word));
        let bytes = line.rsplit(' ').next().and_then(|word| word.parse::<usize>().ok());
        let data = if has_data { self.take(bytes.expect("a length") + 2)? } else { String::new() };
        Some((line, data))
    }

    /// Sends a command and waits for its reply.
    pub fn ask(&mut self, command: &str) -> (String, String) {
        self.send(command);
        self.reply().expect("the server runs")
    }

    /// Sends a command and asserts its reply.
    pub fn expect(&mut self, command: &str, expected: &str) {
        assert_eq!(self.ask(command).0, expected, "{command:?}");
    }

    /// Sends commands at once. Returns their replies.
    pub fn ask_all(&mut self, commands: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
        let commands: Vec<String> = commands.into_iter().collect();
        self.send(&commands.concat());
        commands.iter().map(|_| self.reply().expect("the server runs")).collect()
    }

    /// Sends commands at once and asserts that each has this reply.
    pub fn expect_all(&mut self, commands: impl IntoIterator<Item = String>, expected: &str) {
        for (line, _) in self.ask_all(commands) {
            assert_eq!(line, expected);
        }
    }

    /// Puts jobs at once and asserts that they get these ids.
    pub fn insert(&mut self, ids: RangeInclusive<u64>, put: impl FnMut(u64) -> String) {
        let replies = self.ask_all(ids.clone().map(put));
        for (id, (line, _)) in ids.zip(replies) {
            assert_eq!(line, format!("INSERTED {id}"));
        }
    }

    /// Returns a number of `stats`.
    pub fn stat(&mut self, key: &str) -> u64 {
        let (_, stats) = self.ask("stats\r\n");
        statistics::number(&stats, key)
    }
}

/// Returns a `put` command with a TTR of 60 s.
pub fn put(pri: u32, delay: u32, body: &str) -> String {
    format!("put {pri} {delay} 60 {}\r\n{body}\r\n", body.len())
}
