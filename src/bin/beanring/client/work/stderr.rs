//! The standard error of a command: it goes on to that of this program, and its last line becomes the note of a job that failed.

use std::io::{self, ErrorKind, Read, Write};
use std::process::ChildStderr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes kept of a line.
const LINE_BYTES_MAX: usize = 512;

/// How long the last line is waited for after the end of the command. What the command has started may keep its standard error open.
const PATIENCE: Duration = Duration::from_millis(200);

/// The last line that a command has written, while it runs and after.
#[derive(Debug)]
pub(super) struct LastLine {
    lines: Arc<Mutex<Lines>>,
    /// Nothing is sent: the sender is dropped when the standard error ends.
    end: Receiver<()>,
}

/// Finds the last line of what is written piece by piece.
#[derive(Debug, Default)]
struct Lines {
    last: Vec<u8>,
    current: Vec<u8>,
}

impl LastLine {
    /// Passes on what the command writes.
    pub(super) fn watch(from: ChildStderr) -> Self {
        Self::copy(from, io::stderr())
    }

    fn copy(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) -> Self {
        let lines = Arc::<Mutex<Lines>>::default();
        let (open, end) = mpsc::channel();
        let seen = Arc::clone(&lines);
        thread::spawn(move || {
            let _open = open;
            let mut bytes = [0; 4096];
            loop {
                let count = match from.read(&mut bytes) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                // The command goes on even if nothing reads this.
                let _ = to.write_all(&bytes[..count]);
                lock(&seen).read(&bytes[..count]);
            }
        });
        Self { lines, end }
    }

    /// The last line that is not blank, cut to 512 bytes. The command has ended.
    pub(super) fn take(&self) -> Vec<u8> {
        // Whichever comes first: the end of the standard error, or of the patience.
        let _ = self.end.recv_timeout(PATIENCE);
        lock(&self.lines).last().to_vec()
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Writes the same line until it is told to stop.
    struct Endless(Arc<AtomicBool>);

    impl Read for Endless {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            if self.0.load(Ordering::Relaxed) {
                return Ok(0);
            }
            bytes[..5].copy_from_slice(b"busy\n");
            Ok(5)
        }
    }

    #[test]
    fn a_standard_error_that_never_ends_does_not_hold_the_note_back() {
        let stop = Arc::new(AtomicBool::new(false));
        let line = LastLine::copy(Endless(Arc::clone(&stop)), io::sink());
        assert_eq!(line.take(), b"busy");
        stop.store(true, Ordering::Relaxed);
        assert!(line.end.recv().is_err(), "the copy ends with its source");
        assert_eq!(line.take(), b"busy");
    }

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
