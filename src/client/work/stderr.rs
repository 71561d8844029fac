//! The standard error of a command: it goes on to that of this program, and its last line becomes the note of a job that failed.

use std::io::{self, ErrorKind, Read, Write};
use std::process::ChildStderr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// What is kept of a line.
const LINE_BYTES_MAX: usize = 512;

/// How long the last line is waited for after the end of the command. What the command has started may keep its standard error open.
const PATIENCE: Duration = Duration::from_millis(200);

/// The last line that a command has written, while it runs and after.
#[derive(Debug)]
pub(super) struct LastLine {
    lines: Receiver<Vec<u8>>,
}

/// Finds the last line of what is written piece by piece.
#[derive(Default)]
struct Lines {
    last: Vec<u8>,
    current: Vec<u8>,
}

impl LastLine {
    /// Passes on what the command writes.
    pub(super) fn watch(mut from: ChildStderr) -> Self {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let (mut seen, mut bytes) = (Lines::default(), [0; 4096]);
            loop {
                let count = match from.read(&mut bytes) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                // Without a reader, the command must go on all the same.
                let _ = io::stderr().write_all(&bytes[..count]);
                seen.read(&bytes[..count]);
                let _ = sender.send(seen.last().to_vec());
            }
        });
        Self { lines }
    }

    /// The last line that is not blank, cut to 512 bytes. The command has ended.
    pub(super) fn take(&self) -> Vec<u8> {
        let (end, mut last) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => last = line,
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return last,
            }
        }
    }
}

impl Lines {
    fn read(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE_BYTES_MAX - self.current.len();
            self.current.extend(piece.iter().filter(|byte| !matches!(byte, b'\r' | b'\n')).take(room));
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.current);
                if !line.trim_ascii().is_empty() {
                    self.last = line;
                }
            }
        }
    }

    fn last(&self) -> &[u8] {
        if self.current.trim_ascii().is_empty() { &self.last } else { &self.current }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_found_in_pieces() {
        let check = |pieces: &[&str], expect: &str| {
            let mut lines = Lines::default();
            pieces.iter().for_each(|piece| lines.read(piece.as_bytes()));
            assert_eq!(str::from_utf8(lines.last()), Ok(expect), "{pieces:?}");
        };
        check(&[""], "");
        check(&["one"], "one");
        check(&["one\n"], "one");
        check(&["one\ntwo"], "two");
        check(&["one\nt", "wo\r\n"], "two");
        check(&["one\n", "\n", "  \n"], "one");
        check(&["one\n  "], "one");
        let long = "x".repeat(600);
        check(&[&long, "y\n"], &long[..512]);
        check(&[&long, "y\nend\n"], "end");
    }
}
