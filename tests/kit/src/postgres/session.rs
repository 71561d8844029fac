//! A session of the superuser over a UNIX socket: the simple query protocol.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const PROTOCOL_VERSION: u32 = 3 << 16;

pub struct Session(BufReader<UnixStream>);

impl Session {
    /// Logs in. The server asks for no password.
    ///
    /// # Errors
    /// If the server does not listen, or refuses the session.
    pub fn open(socket: &Path, database: &str) -> Result<Self, String> {
        let stream = UnixStream::connect(socket).map_err(|error| error.to_string())?;
        let mut session = Self(BufReader::new(stream));
        let mut words = PROTOCOL_VERSION.to_be_bytes().to_vec();
        for word in ["user", "postgres", "database", database, ""] {
            words.extend([word.as_bytes(), b"\0"].concat());
        }
        session.send(&words).map_err(|error| error.to_string())?;
        session.finish()?;
        Ok(session)
    }

    /// Executes SQL. Returns rows as lines, and columns separated by `|`.
    ///
    /// # Errors
    /// With the message of the server, or if it ends the session.
    pub fn query(&mut self, sql: &str) -> Result<String, String> {
        self.begin(sql);
        self.finish()
    }

    /// Sends SQL. A session that the server has ended shows that in [`Self::finish`].
    pub fn begin(&mut self, sql: &str) {
        let _ = self.0.get_mut().write_all(b"Q");
        let _ = self.send(&[sql.as_bytes(), b"\0"].concat());
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// As for [`Self::query`].
    pub fn finish(&mut self) -> Result<String, String> {
        let mut rows = Vec::new();
        let mut error = None;
        loop {
            let (kind, content) = self.receive().map_err(|end| error.take().unwrap_or(end.to_string()))?;
            match kind {
                b'D' => rows.push(columns(&content)),
                b'E' => error = Some(message(&content)),
                b'Z' => return error.map_or_else(|| Ok(rows.join("\n")), Err),
                _ => {}
            }
        }
    }

    fn send(&mut self, content: &[u8]) -> io::Result<()> {
        let length = (content.len() as u32 + 4).to_be_bytes();
        self.0.get_mut().write_all(&[&length, content].concat())
    }

    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.0.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut content = vec![0; length.checked_sub(4).ok_or(ErrorKind::InvalidData)? as usize];
        self.0.read_exact(&mut content)?;
        Ok((head[0], content))
    }
}

/// The columns of a row. One that is null is empty.
fn columns(mut row: &[u8]) -> String {
    let mut take = |bytes: usize| row.split_off(..bytes).expect("a row is complete");
    let count = u16::from_be_bytes(take(2).try_into().expect("two bytes"));
    let column = |_| {
        let length = i32::from_be_bytes(take(4).try_into().expect("four bytes"));
        String::from_utf8_lossy(take(length.try_into().unwrap_or(0))).into_owned()
    };
    (0..count).map(column).collect::<Vec<_>>().join("|")
}

/// The message among the fields of an error.
fn message(fields: &[u8]) -> String {
    let text = fields.split(|&byte| byte == 0).find_map(|field| field.strip_prefix(b"M"));
    String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
}
