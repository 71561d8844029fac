//! Clients that read line by line, and servers with a job log together with such a client.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use beanring::io::driver::Driver;

use super::driver;
use super::pattern::show;
use super::peer::Received;
use super::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use super::statistics;
use super::stream::Stream;
use super::wait;

/// Starts a server without a job log under the driver that it chooses. Returns it with its first connection.
pub fn serve(transport: Transport, flags: &[&str]) -> (ServerProcess, Client) {
    serve_by(Command::new(program()), Address::fresh(transport), flags)
}

/// [`serve`] under a driver.
pub fn serve_under(io: Driver, transport: Transport, flags: &[&str]) -> (ServerProcess, Client) {
    serve(transport, &[&driver::flags(io)[..], flags].concat())
}

/// [`serve`] by a command that becomes the server with the arguments that follow.
pub fn serve_by(command: Command, address: Address, flags: &[&str]) -> (ServerProcess, Client) {
    let (server, stream) = ServerProcess::launch(command, address, flags);
    (server, Client::new(stream))
}

/// Starts a server with a job log in `dir`. Returns it with its first connection.
pub fn start(dir: &Path, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    launch(Command::new(program()), dir, io, flags)
}

/// Starts a server by a command that becomes the server with the arguments that follow.
pub fn launch(command: Command, dir: &Path, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    let own = ["-b", dir.to_str().expect("a name in UTF-8")];
    serve_by(command, Address::fresh(Transport::Tcp), &[&driver::flags(io)[..], &own, flags].concat())
}

/// A client that reads line by line. Methods that assert something, or wait, panic if it is not so.
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
        self.take_bytes(bytes).map(|taken| String::from_utf8_lossy(&taken).into_owned())
    }

    /// [`Self::take`] for data that is no text.
    pub fn take_bytes(&mut self, bytes: usize) -> Option<Vec<u8>> {
        while self.received.len() - self.used < bytes {
            self.receive()?;
        }
        let taken = self.received[self.used..self.used + bytes].to_vec();
        self.used += bytes;
        Some(taken)
    }

    /// Asserts what the server sends next.
    pub fn expect_bytes(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let found = self.take_bytes(expected.len());
        let found = found.unwrap_or_else(|| panic!("closed before {}: {}", show(expected), self.shown()));
        assert!(found == expected, "{} is not {}", show(&found), show(expected));
    }

    /// Asserts that the server closes the connection, and sends nothing before.
    pub fn expect_end(&mut self) {
        while self.receive().is_some() {}
        assert!(self.received.is_empty(), "the server sends {}", self.shown());
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
            Received::Silence => panic!("no reply after {:?}", self.shown()),
        }
        Some(())
    }

    /// Received bytes that are not used.
    fn shown(&self) -> String {
        show(&self.received[self.used..])
    }

    /// Waits for bytes of a reply for up to this time. Returns whether there are any.
    pub fn has_reply(&mut self, patience: Duration) -> bool {
        if self.used == self.received.len() {
            // The shortest wait of the kernel is some milliseconds.
            let received =
                if patience.is_zero() { self.stream.receive_now() } else { self.stream.receive(patience) };
            match received {
                Received::Bytes(bytes) => self.received.extend_from_slice(&bytes),
                Received::Silence => return false,
                Received::Closed => panic!("the server closes a connection"),
            }
        }
        true
    }

    /// Waits for bytes, or the end of the connection, for up to this time. Returns whether neither has come.
    pub fn is_silent(&mut self, patience: Duration) -> bool {
        if self.used < self.received.len() {
            return false;
        }
        match self.stream.receive(patience) {
            Received::Bytes(bytes) => self.received.extend_from_slice(&bytes),
            Received::Silence => return true,
            Received::Closed => {}
        }
        false
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

    /// Waits for the reply to a command that was sent before, and asserts it.
    pub fn expect_reply(&mut self, expected: &str) {
        assert_eq!(self.reply().expect("the server runs").0, expected);
    }

    /// Puts a job with a TTR of 60 s, and returns its id.
    pub fn put(&mut self, body: &str) -> u64 {
        let (line, _) = self.ask(&put(0, 0, body));
        let id = line.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
        id.unwrap_or_else(|| panic!("{line} for a put"))
    }

    /// Returns the data of `stats`.
    pub fn stats(&mut self) -> String {
        self.ask("stats\r\n").1
    }

    /// Returns a number of `stats`.
    pub fn stat(&mut self, key: &str) -> u64 {
        statistics::number(&self.stats(), key)
    }

    /// Waits until a number of `stats` is as it should be.
    pub fn await_stat(&mut self, key: &str, is_met: impl Fn(u64) -> bool) {
        wait::until_ok(|| match self.stat(key) {
            found if is_met(found) => Ok(()),
            found => Err(format!("{key} stays at {found}")),
        });
    }
}

/// Returns a `put` command with a TTR of 60 s.
pub fn put(pri: u32, delay: u32, body: &str) -> String {
    format!("put {pri} {delay} 60 {}\r\n{body}\r\n", body.len())
}
