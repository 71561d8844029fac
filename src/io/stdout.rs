//! Standard output of commands that print and end.

use std::fmt;
use std::io::{self, ErrorKind, StdoutLock, Write};

use super::socket::text_of;

/// Standard output. If its reader has closed it, as `head` does, the rest is discarded: a command then ends with the exit code
/// that it would have had.
#[derive(Debug)]
pub struct Stdout {
    lock: StdoutLock<'static>,
    is_closed: bool,
}

/// Standard output cannot be written, as on a full disk.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output: {}", text_of(.0))]
pub struct OutputError(pub io::Error);

/// Prints a text.
///
/// # Errors
/// If it cannot be written.
pub fn print(text: &impl fmt::Display) -> Result<(), OutputError> {
    let mut out = Stdout::open();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(OutputError)
}

impl Stdout {
    /// Locks standard output for this thread.
    pub fn open() -> Self {
        Self { lock: io::stdout().lock(), is_closed: false }
    }

    /// Does this with the output. Returns the default if the reader has closed it.
    fn unless_closed<T>(
        &mut self,
        default: T,
        act: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_closed {
            return Ok(default);
        }
        match act(&mut self.lock) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(default)
            }
            result => result,
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), Write::flush)
    }
}
