//! Servers with a log, and connections to them that are read line by line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use beanring::io::driver::Driver;

use super::driver;
use super::live::{Address, REPLY_PATIENCE, ServerProcess, Stream, Transport};
use super::peer::Received;

pub use super::program::PROGRAM;

/// A directory of one test's own, gone with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes it.
    pub fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("beanring-log-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a new directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server with a log in this directory, and its first connection.
pub fn start(dir: &Path, io: Driver, flags: &[&str]) -> (ServerProcess, Client) {
    launch(Command::new(PROGRAM), dir, io, flags)
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

/// The lines that a server has written to this file, once there are so many.
///
/// # Panics
/// If they do not come.
pub fn lines_of(file: &Path, count: usize) -> Vec<String> {
    let asked = Instant::now();
    loop {
        let text = fs::read_to_string(file).expect("it was made");
        if text.matches('\n').count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(asked.elapsed() < REPLY_PATIENCE, "{count} lines are written: {text:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a program of these lines of a shell. Another process writes it: what a child of this one still has open to
/// write, from before it became its own program, cannot be started.
///
/// # Panics
/// If there is no room.
pub fn script(file: &Path, lines: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf '#!/bin/sh\\n%s' \"$1\" > \"$0\" && chmod 755 \"$0\""]);
    assert!(shell.arg(file).arg(lines).status().expect("there is a shell").success(), "there is room");
}

/// All files of a directory by name; none where there is no directory.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, fs::read(entry.path()).expect("a file"))
    };
    entries.map(file).collect()
}
