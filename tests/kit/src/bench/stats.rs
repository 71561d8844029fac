//! What a server says of itself.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server that does not answer for so long never will.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The answer to `stats`.
pub struct Stats(String);

impl Stats {
    /// Asks; fails at once where nothing listens.
    pub fn ask(addr: SocketAddr) -> io::Result<Stats> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.write_all(b"stats\r\n")?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let unknown = || io::Error::new(ErrorKind::InvalidData, format!("answers {line:?} to stats"));
        let bytes = line.trim_end().strip_prefix("OK ").and_then(|bytes| bytes.parse().ok());
        let mut text = String::new();
        reader.take(bytes.ok_or_else(unknown)?).read_to_string(&mut text)?;
        Ok(Stats(text))
    }

    /// The number under a key.
    pub fn number(&self, key: &str) -> io::Result<u64> {
        let mut values = self.0.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let number = values.next().and_then(|value| value.trim().parse().ok());
        number.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("names no {key} in stats")))
    }
}
