//! Log lines on their way to stderr. What reads them may be slow or gone, so the event loop only appends to a bounded buffer, and
//! a thread writes. Before the thread starts, and in tools, a line is written at once.

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

/// How long the end of the process waits until the lines are written.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

static STATE: Mutex<State> =
    Mutex::new(State { has_thread: false, lines: Vec::new(), is_writing: false, lost: 0 });

/// There are lines to write.
static HAS_LINES: Condvar = Condvar::new();

/// All lines are written, by the thread.
static IS_WRITTEN: Condvar = Condvar::new();

/// The lines that were not written since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

struct State {
    has_thread: bool,
    lines: Vec<u8>,
    is_writing: bool,
    /// Lines for which the buffer had no space, and which no line mentions yet.
    lost: u64,
}

/// Takes log lines, each in one write.
#[derive(Clone, Copy, Default, Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = state();
        if !state.has_thread {
            drop(state);
            io::stderr().write_all(line)?;
        } else if state.lines.len() + line.len() > BUFFER_BYTES_MAX {
            state.lost += 1;
            LOST.fetch_add(1, Ordering::Relaxed);
        } else {
            let was_empty = state.lines.is_empty();
            state.lines.extend_from_slice(line);
            drop(state);
            if was_empty {
                HAS_LINES.notify_one();
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

/// The number of lines that were not written since the start.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run() {
    state().has_thread = true;
    let mut lines = Vec::new();
    loop {
        let lost = wait_for_lines(&mut lines);
        if write_all(&lines).is_err() {
            LOST.fetch_add(lines.iter().filter(|&&byte| byte == b'\n').count() as u64, Ordering::Relaxed);
        }
        if lines.capacity() > BUFFER_BYTES_KEPT {
            lines = Vec::new();
        }
        if lost > 0 {
            warn!("{lost} log lines were left out: what reads stderr was too slow, or had stopped");
        }
    }
}

/// Replaces `lines`, which are written, by those to write next. Returns the number of lines that were left out after them.
fn wait_for_lines(lines: &mut Vec<u8>) -> u64 {
    lines.clear();
    let mut state = state();
    state.is_writing = false;
    if state.lines.is_empty() {
        IS_WRITTEN.notify_all();
    }
    let mut state =
        HAS_LINES.wait_while(state, |state| state.lines.is_empty()).unwrap_or_else(PoisonError::into_inner);
    state.is_writing = true;
    mem::swap(lines, &mut state.lines);
    mem::take(&mut state.lost)
}

fn write_all(mut lines: &[u8]) -> io::Result<()> {
    let mut stderr = io::stderr();
    while !lines.is_empty() {
        match stderr.write(lines) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => lines = &lines[count..],
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
