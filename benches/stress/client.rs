//! A connection that sends a command and waits for its reply.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use beanring_testkit::statistics;

/// A server that has not replied after this time never will.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The reply to one command.
#[derive(Debug)]
pub struct Reply {
    /// The line without its CR LF.
    pub line: String,
    /// The data that follows the line, without its CR LF; empty if the reply has none.
    pub data: Vec<u8>,
}

impl Reply {
    /// Returns the number at index `at` of the line's words. The keyword is at 0.
    pub fn number(&self, at: usize) -> Option<u64> {
        self.line.split(' ').nth(at)?.parse().ok()
    }

    /// Returns the value of a key in the data of `stats` and similar replies.
    pub fn field(&self, key: &str) -> Option<f64> {
        let text = str::from_utf8(&self.data).ok()?;
        statistics::value(text, key)?.parse().ok()
    }
}

pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    used: usize,
    scratch: Box<[u8; 64 * 1024]>,
}

impl Client {
    /// Connects to a server.
    pub fn connect(addr: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Client { stream, received: Vec::new(), used: 0, scratch: Box::new([0; 64 * 1024]) })
    }

    /// Sends a command and waits for its reply.
    pub fn request(&mut self, command: &[u8]) -> io::Result<Reply> {
        self.send(command)?;
        self.reply()
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for the next reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let has_data = ["RESERVED ", "FOUND ", "OK "].iter().any(|word| line.starts_with(word));
        let mut reply = Reply { line, data: Vec::new() };
        if has_data {
            let last = reply.line.rsplit(' ').next().and_then(|word| word.parse::<usize>().ok());
            let unknown = || io::Error::new(ErrorKind::InvalidData, reply.line.clone());
            reply.data = self.take(last.ok_or_else(unknown)? + 2)?;
            reply.data.truncate(reply.data.len() - 2);
        }
        Ok(reply)
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            let rest = &self.received[self.used..];
            if let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                self.used += end + 2;
                return Ok(line);
            }
            self.receive()?;
        }
    }

    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.received.len() - self.used < bytes {
            self.receive()?;
        }
        let taken = self.received[self.used..self.used + bytes].to_vec();
        self.used += bytes;
        Ok(taken)
    }

    fn receive(&mut self) -> io::Result<()> {
        self.received.drain(..std::mem::take(&mut self.used));
        let bytes = loop {
            match self.stream.read(&mut self.scratch[..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let late = format!("no answer within {} s", ANSWER_MAX.as_secs());
                    return Err(io::Error::new(ErrorKind::TimedOut, late));
                }
                result => break result?,
            }
        };
        if bytes == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server hung up"));
        }
        self.received.extend_from_slice(&self.scratch[..bytes]);
        Ok(())
    }
}

/// Returns a `put` command with its body.
pub fn put(pri: u32, delay: u32, ttr: u32, body: &[u8]) -> Vec<u8> {
    let mut command = format!("put {pri} {delay} {ttr} {}\r\n", body.len()).into_bytes();
    command.extend_from_slice(body);
    command.extend_from_slice(b"\r\n");
    command
}
