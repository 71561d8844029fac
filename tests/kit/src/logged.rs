//! Server processes whose log lines a test reads.

use std::cell::Cell;
use std::fs::{self, File};
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, beanring};
use super::scratch::Scratch;

/// The file with the log lines, in the directory of the server.
pub const SAID: &str = "said";

/// A server whose log lines go to a file. Methods panic if the server does not do what they wait for.
pub struct LoggedServer {
    process: ServerProcess,
    /// Lines that [`Self::logged`] has passed.
    seen: Cell<usize>,
    /// A directory of the server's own.
    pub scratch: Scratch,
}

impl LoggedServer {
    /// Starts a server on a port that the system chooses. `DIR` among the flags stands for a new directory.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, |_| {})
    }

    /// [`Self::start`] by a command that the test changes.
    pub fn start_with(flags: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let scratch = Scratch::new("logged");
        let has_dir = flags.contains(&"DIR");
        let dir = if has_dir { scratch.dir("log").display().to_string() } else { String::new() };
        let mut command = beanring(&["-l", "127.0.0.1", "-p", "0"]);
        command.args(flags.iter().map(|&flag| if flag == "DIR" { &dir } else { flag }));
        prepare(&mut command);
        Self::spawn(command, scratch).listening()
    }

    /// Starts a command that runs a server, which may be refused. Its log lines go to the file `said` of the directory.
    pub fn spawn(mut command: Command, scratch: Scratch) -> Self {
        // If the file is there, it keeps its inode.
        command.stderr(File::create(scratch.join(SAID)).expect("the file is created"));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        // Nothing listens there.
        let process = ServerProcess::of(child, Address::fresh(Transport::Tcp));
        Self { process, seen: Cell::new(0), scratch }
    }

    /// Waits until the server listens, and takes its address from the log lines.
    pub fn listening(mut self) -> Self {
        let line = self.logged("listening on ");
        self.seen.set(0);
        let address = line.split("listening on ").nth(1).and_then(|rest| rest.split([' ', '"']).next());
        let address = address.expect("an address");
        self.process.set_address(match address.strip_prefix("unix:") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(address.parse().expect("an address and a port")),
        });
        self
    }

    /// Returns the lines up to now, without one that is being written.
    pub fn lines(&self) -> Vec<String> {
        self.process.await_log();
        let text = fs::read_to_string(self.scratch.join(SAID)).expect("the log lines are text");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// Returns the number of lines with this part up to now.
    pub fn count(&self, part: &str) -> usize {
        self.lines().iter().filter(|line| line.contains(part)).count()
    }

    /// Waits for the next line with this part after the last one that was returned, and returns it.
    pub fn logged(&self, part: &str) -> String {
        let started = Instant::now();
        loop {
            let has_ended = self.has_ended();
            let mut lines = self.lines();
            if let Some(at) = (self.seen.get()..lines.len()).find(|&at| lines[at].contains(part)) {
                self.seen.set(at + 1);
                return lines.swap_remove(at);
            }
            let is_over = has_ended || started.elapsed() > REPLY_PATIENCE;
            assert!(!is_over, "{part:?} is not logged: {lines:#?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the server by SIGTERM, and returns all lines.
    pub fn stopped(mut self) -> Vec<String> {
        self.stop();
        self.lines()
    }
}

impl Deref for LoggedServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

impl DerefMut for LoggedServer {
    fn deref_mut(&mut self) -> &mut ServerProcess {
        &mut self.process
    }
}
