//! The statistics of a server.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::statistics;

/// A server that has not replied after this time never will.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The reply to `stats`.
pub struct Stats(String);

impl Stats {
    /// Requests the statistics. Fails at once if nothing listens.
    pub fn request(addr: SocketAddr) -> io::Result<Stats> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Stats::exchange(stream)
    }

    /// Requests the statistics over a connection.
    pub fn exchange(mut stream: impl Read + Write) -> io::Result<Stats> {
        stream.write_all(b"stats\r\n")?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let unknown = || io::Error::new(ErrorKind::InvalidData, format!("the reply to stats is {line:?}"));
        let bytes = line.trim_end().strip_prefix("OK ").and_then(|bytes| bytes.parse().ok());
        let mut text = String::new();
        reader.take(bytes.ok_or_else(unknown)?).read_to_string(&mut text)?;
        Ok(Stats(text))
    }

    /// Returns the number of a key.
    pub fn number(&self, key: &str) -> io::Result<u64> {
        let number = statistics::value(&self.0, key).and_then(|value| value.parse().ok());
        number.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("stats has no {key}")))
    }
}
