//! Connections that are read line by line, and servers with a job log that have such a connection.

use std::path::Path;
use std::process::Command;

use beanring::io::driver::Driver;

use super::driver;
use super::peer::Received;
use super::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use super::stream::Stream;

/// A server with a log in this directory, and its first connection.
pub fn start(dir: &Path, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    launch(Command::new(program()), dir, io, flags)
}

/// The same by a command that becomes the server with the arguments that follow.
pub fn launch(command: Command, dir: &Path, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    let mut all = driver::flags(io);
    all.extend(["-b", dir.to_str().expect("a name in UTF-8")].map(str::to_owned));
    all.extend(flags.iter().map(|&flag| flag.to_owned()));
    let (server, stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &all);
    (server, Client::new(stream))
}

/// A connection that is read line by line.
pub struct Client {
    pub stream: Stream,
    received: Vec<u8>,
    used: usize,
}

impl Client {
    /// With this connection.
    pub fn new(stream: Stream) -> Self {
        Self { stream, received: Vec::new(), used: 0 }
    }

    /// Sends commands.
    pub fn send(&mut self, text: &str) {
        self.stream.send(text.as_bytes());
    }

    /// So many bytes, unless the server has gone before.
    pub fn take(&mut self, bytes: usize) -> Option<String> {
        while self.received.len() - self.used < bytes {
            self.receive()?;
        }
        let taken = String::from_utf8_lossy(&self.received[self.used..self.used + bytes]).into_owned();
        self.used += bytes;
        Some(taken)
    }

    /// The next line, unless the server has gone before.
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

    /// The reply to one command, with its data if it has some.
    pub fn reply(&mut self) -> Option<(String, String)> {
        let line = self.line()?;
        let has_data = ["RESERVED ", "FOUND ", "OK "].iter().any(|word| line.starts_with(word));
        let bytes = line.rsplit(' ').next().and_then(|word| word.parse::<usize>().ok());
        let data = if has_data { self.take(bytes.expect("a length") + 2)? } else { String::new() };
        Some((line, data))
    }

    /// Sends a command, and waits for its reply.
    pub fn ask(&mut self, command: &str) -> (String, String) {
        self.send(command);
        self.reply().expect("the server runs")
    }

    /// Sends a command, whose reply is known.
    pub fn expect(&mut self, command: &str, expected: &str) {
        assert_eq!(self.ask(command).0, expected, "{command:?}");
    }

    /// A number in `stats`.
    pub fn stat(&mut self, key: &str) -> u64 {
        let (_, stats) = self.ask("stats\r\n");
        field(&stats, key).parse().expect("a number")
    }
}

/// A value of what `stats` and its like answer.
pub fn field<'a>(yaml: &'a str, key: &str) -> &'a str {
    let mut lines = yaml.lines();
    lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).expect("the key is there")
}

/// The command.
pub fn put(pri: u32, delay: u32, body: &str) -> String {
    format!("put {pri} {delay} 60 {}\r\n{body}\r\n", body.len())
}
