//! Log lines on their way to stderr. What reads them may be slow or gone, so the event loop only appends to a bounded buffer, and
//! a thread writes. Before the thread starts, and in tools, a line is written at once. A program that an in-place restart has executed
//! waits for no reader even then.

use std::cell::Cell;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::warn;

/// Lines that wait to be written, and as many that are being written: a second of the trace log of a busy server.
const BUFFER_BYTES_MAX: usize = 256 * 1024;

/// A buffer that has become larger is freed when it is written.
const BUFFER_BYTES_KEPT: usize = 16 * 1024;

/// The most that one write has. A pipe takes so much as a whole or not at all (pipe(7), PIPE_BUF), so an end of the process tears no line.
const WRITE_BYTES_MAX: usize = 4096;

/// How long the end of the process waits until the lines are written.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

static STATE: Mutex<State> = Mutex::new(State {
    has_thread: false,
    patience: None,
    lines: Vec::new(),
    is_writing: false,
    lost: 0,
    unmentioned: 0,
});

/// There are lines to write.
static HAS_LINES: Condvar = Condvar::new();

/// All lines are written, by the thread.
static IS_WRITTEN: Condvar = Condvar::new();

/// The lines that were not written since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The lines that the thread is writing.
static IN_FLIGHT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread writes the lines.
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

struct State {
    has_thread: bool,
    /// How long a line waits for its reader before there is a thread. None: until it reads.
    patience: Option<Duration>,
    lines: Vec<u8>,
    is_writing: bool,
    /// Lines for which the buffer had no space.
    lost: u64,
    /// More of them, for which a line that says so is not written yet.
    unmentioned: u64,
}

/// Takes log lines, each in one write.
#[derive(Clone, Copy, Default, Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = state();
        if !state.has_thread && state.has_reader() {
            drop(state);
            io::stderr().write_all(line)?;
        } else if state.append(line) {
            drop(state);
            HAS_LINES.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl State {
    /// Appends a line, or loses it if there is no space. There always is for the line of the thread, which tells of lost ones. Returns
    /// whether the thread is to be woken.
    fn append(&mut self, line: &[u8]) -> bool {
        let is_full = self.lines.len() + line.len() > BUFFER_BYTES_MAX;
        if !self.has_thread || is_full && !IS_WRITER.get() {
            self.lose(1);
            return false;
        }
        let was_empty = self.lines.is_empty();
        self.lines.extend_from_slice(line);
        was_empty
    }

    fn lose(&mut self, lines: u64) {
        self.lost += lines;
        LOST.fetch_add(lines, Ordering::Relaxed);
    }

    /// Whether what reads stderr takes a line, before there is a thread.
    fn has_reader(&mut self) -> bool {
        let Some(patience) = self.patience else { return true };
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
        let stderr = io::stderr();
        let is_ready = poll(&mut [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)], timeout) != Ok(0);
        if !is_ready {
            self.patience = Some(Duration::ZERO);
        }
        is_ready
    }
}

/// Has this program, which an in-place restart has executed, wait for no reader, and count the lines that the program before has
/// [lost](flush_for_next).
pub fn continue_after(lost: u64) {
    let mut state = state();
    state.patience = Some(FLUSH_PATIENCE);
    state.lose(lost);
}

/// Starts the thread. It has the rights and the signal mask of the caller.
///
/// # Errors
/// If the system refuses a thread.
pub fn start() -> io::Result<()> {
    thread::Builder::new().name("log".to_owned()).spawn(run)?;
    // Until it runs, lines are written here.
    drop(IS_WRITTEN.wait_while(state(), |state| !state.has_thread));
    Ok(())
}

/// Waits until all lines are written, unless nothing reads them. Call this before the process ends or executes a program.
pub fn flush() {
    let state = state();
    let is_waiting = |state: &mut State| state.is_writing || !state.lines.is_empty();
    drop(IS_WRITTEN.wait_timeout_while(state, FLUSH_PATIENCE, is_waiting));
}

/// Does the same for a program that this one executes. Returns the number of lines that are lost then, and that no line mentions.
pub fn flush_for_next() -> u64 {
    flush();
    let state = state();
    state.lost + state.unmentioned + count(&state.lines) + IN_FLIGHT.load(Ordering::Relaxed)
}

/// The number of lines that were not written since the start.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run() {
    IS_WRITER.set(true);
    state().has_thread = true;
    let mut lines = Vec::new();
    // Of the lines that are lost: those that a line among `lines` mentions, and those that one of the next lines does.
    let (mut mentioned, mut mentioned_next) = (0, 0);
    loop {
        let lost = wait_for_lines(&mut lines, mentioned);
        if write_all(&lines).is_err() {
            LOST.fetch_add(IN_FLIGHT.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        (mentioned, mentioned_next) = (mentioned_next, lost);
        if lines.capacity() > BUFFER_BYTES_KEPT {
            lines = Vec::new();
        }
        if lost > 0 {
            warn!("{lost} log lines were left out: what reads stderr was too slow, or had stopped");
        }
    }
}

/// Replaces `lines`, which are written and mention this number of lost ones, by those to write next. Returns the number of lines that were
/// left out after them.
fn wait_for_lines(lines: &mut Vec<u8>, mentioned: u64) -> u64 {
    lines.clear();
    let mut state = state();
    state.is_writing = false;
    state.unmentioned -= mentioned;
    if state.lines.is_empty() {
        IS_WRITTEN.notify_all();
    }
    let mut state =
        HAS_LINES.wait_while(state, |state| state.lines.is_empty()).unwrap_or_else(PoisonError::into_inner);
    state.is_writing = true;
    mem::swap(lines, &mut state.lines);
    IN_FLIGHT.store(count(lines), Ordering::Relaxed);
    let lost = mem::take(&mut state.lost);
    state.unmentioned += lost;
    lost
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// The lines that one write has, or the beginning of a very long one.
fn next_write(lines: &[u8]) -> &[u8] {
    let most = &lines[..lines.len().min(WRITE_BYTES_MAX)];
    let end = most.iter().rposition(|&byte| byte == b'\n').map_or(most.len(), |at| at + 1);
    &most[..end]
}

fn write_all(mut lines: &[u8]) -> io::Result<()> {
    let mut stderr = io::stderr();
    while !lines.is_empty() {
        match stderr.write(next_write(lines)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                let (written, rest) = lines.split_at(bytes);
                IN_FLIGHT.fetch_sub(count(written), Ordering::Relaxed);
                lines = rest;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The process shares stderr with one that has made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut writable = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
                poll(&mut writable, PollTimeout::NONE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing would say how many lines are missing: each line tells of those that were lost before it was due.
    #[test]
    fn a_full_buffer_has_space_for_the_line_that_says_so() {
        let lines = vec![b'x'; BUFFER_BYTES_MAX];
        let mut state =
            State { has_thread: true, patience: None, lines, is_writing: true, lost: 0, unmentioned: 0 };
        assert!(!state.append(b"another line\n"));
        assert_eq!((state.lost, state.lines.len()), (1, BUFFER_BYTES_MAX));
        thread::scope(|scope| {
            scope.spawn(|| {
                IS_WRITER.set(true);
                state.append(b"1 log line was left out\n");
            });
        });
        assert_eq!(state.lost, 1);
        assert!(state.lines.ends_with(b"left out\n"));
    }
}
