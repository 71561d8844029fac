//! What the modules of this program share.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use beanring::io::driver::Driver;
use beanring::queue::{Engine, NewJob};
use beanring::time::{Seconds, Time};
use beanring::values::ids::{ClientKey, JobId};
use beanring::values::tags::Tags;
use beanring_testkit::client::{Client, start};
use beanring_testkit::driver;
use beanring_testkit::logged::{LoggedServer, SAID};
use beanring_testkit::process::{ServerProcess, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait;
use nix::sys::signal::Signal;

/// Flags for each durability.
pub const MODES: [&[&str]; 3] = [&["-f", "0"], &["-f", "50"], &["-F"]];

/// The name of a log's first segment.
pub const FIRST: &str = "log.0000000000000001";

/// One of the combinations that a test is run with.
#[derive(Debug)]
pub struct Case {
    pub io: Driver,
    pub mode: &'static [&'static str],
}

impl Case {
    /// Starts a server. Returns it with its first connection.
    pub fn start(&self, dir: &Path, flags: &[&str]) -> (ServerProcess, Client) {
        start(dir, self.io, &[self.mode, flags].concat())
    }
}

/// Returns the combinations of all allowed drivers with these modes.
pub fn cases(what: &str, modes: &[&'static [&'static str]]) -> impl Iterator<Item = Case> {
    driver::allowed(what).flat_map(|io| modes.iter().map(move |&mode| Case { io, mode }))
}

/// Runs a test with all cases at once: servers wait more than they compute. A thread has the name of its case, which a failure
/// shows.
pub fn in_parallel<C: Debug + Send>(cases: impl IntoIterator<Item = C>, test: impl Fn(C) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            let (thread, test) = (thread::Builder::new().name(format!("{case:?}")), &test);
            thread.spawn_scoped(scope, move || test(case)).expect("a thread can be started");
        }
    });
}

/// A program that runs, and what it prints. It is killed when the value is dropped.
pub struct Run(LoggedServer);

impl Run {
    pub fn new<S: AsRef<OsStr>>(args: &[S]) -> Self {
        let dir = Scratch::new("run");
        let mut command = Command::new(program());
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(File::create(dir.join("out")).expect("there is space"));
        Self(LoggedServer::spawn(command, dir))
    }

    /// Starts a server, which may refuse to.
    pub fn server(dir: &Path, flags: &[&str]) -> Self {
        let dir = dir.to_str().expect("a name in UTF-8");
        Self::new(&[&["-l", "127.0.0.1", "-p", "0", "-b", dir], flags].concat())
    }

    /// Starts a tool for job logs.
    pub fn tool(name: &str, dirs: &[&Path]) -> Self {
        Self::new(&[&[Path::new("wal"), Path::new(name)], dirs].concat())
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.0.scratch.join(name)).expect("it exists")).into_owned()
    }

    /// Waits until the program has printed this on standard error. Returns whether it has, and not ended before.
    pub fn await_line(&self, part: &str) -> bool {
        let mut is_there = false;
        wait::until("the program says something or ends", || {
            let is_over = self.0.has_ended();
            is_there = self.read(SAID).contains(part);
            is_there || is_over
        });
        is_there
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Waits for the end.
    pub fn end(mut self) -> Ended {
        Ended { code: self.0.wait(), out: self.read("out"), error: self.read(SAID) }
    }

    /// Waits until a server has ended, or sends it this signal as soon as it serves.
    pub fn end_or_serve(self, signal: Signal) -> Ended {
        if self.await_line("listening on") && !self.0.has_ended() {
            self.signal(signal);
        }
        self.end()
    }
}

/// The exit code of a program, none if a signal has ended it, and what it has printed.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub error: String,
}

impl Ended {
    /// Asserts that the program has succeeded and printed this, among other things, and no error.
    #[track_caller]
    pub fn succeeds(self, out: &str) -> Self {
        assert!(self.code == Some(0) && self.error.is_empty() && self.out.contains(out), "{out:?}: {self:?}");
        self
    }

    /// Asserts that the program has failed with this exit code and printed this error, among other things.
    #[track_caller]
    pub fn fails(self, code: i32, why: &str) -> Self {
        assert!(self.code == Some(code) && self.error.contains(why), "{why:?}: {self:?}");
        self
    }

    /// Asserts that the program has printed this, among other things.
    #[track_caller]
    pub fn prints(self, out: &str) -> Self {
        assert!(self.out.contains(out), "{out:?}: {self:?}");
        self
    }

    /// Returns the warnings and errors of a server, without their times.
    pub fn complaints(&self) -> String {
        let lines = self.error.lines().filter(|line| !line.contains(" INFO "));
        lines
            .map(|line| line.split_once(" ERROR ").map_or(line, |(_, error)| error).to_owned() + "\n")
            .collect()
    }
}

/// Runs a tool for job logs.
pub fn tool(name: &str, dirs: &[&Path]) -> Ended {
    Run::tool(name, dirs).end()
}

/// Asserts that a server refuses to start, and returns why: one line.
#[track_caller]
pub fn refusal(dir: &Path, flags: &[&str], code: i32) -> String {
    let ended = Run::server(dir, flags).end_or_serve(Signal::SIGKILL);
    let why = ended.complaints();
    assert!(ended.code == Some(code) && why.lines().count() == 1, "{ended:?}");
    why.trim_end().to_owned()
}

/// Returns the paths of all segments, used or not, in order.
pub fn segments(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut segments: Vec<PathBuf> = paths.filter(|path| name(path).starts_with("log.0")).collect();
    segments.sort();
    segments
}

/// Removes the marks of the log's end, if there are any. A copy of its segments has none.
pub fn remove_marks(dir: &Path) {
    ["log.end.1", "log.end.2"].iter().for_each(|mark| _ = fs::remove_file(dir.join(mark)));
}

/// Waits until the mark of the log's end shows that its last segment has records.
pub fn await_mark(dir: &Path) {
    // Both a header and the mark have the number of a segment there.
    let number = |path: &Path| {
        let bytes = fs::read(path).ok()?;
        Some(u64::from_le_bytes(*bytes.get(24..)?.first_chunk()?))
    };
    let file = |number: u64| format!("log.{number:016x}");
    wait::until("the last segment is marked", || {
        let has_own = |path: &PathBuf| number(path).is_some_and(|own| file(own) == name(path));
        let last = used_segments(dir).into_iter().rfind(has_own).expect("there is one");
        number(&dir.join("log.end.2")).is_some_and(|marked| file(marked) == name(&last))
    });
}

/// Returns the paths of the segments that have a header.
pub fn used_segments(dir: &Path) -> Vec<PathBuf> {
    let is_used = |path: &PathBuf| fs::read(path).expect("a file").starts_with(b"bean");
    segments(dir).into_iter().filter(is_used).collect()
}

pub fn name(path: &Path) -> String {
    path.file_name().expect("a file").to_string_lossy().into_owned()
}

/// Changes the bytes of a file.
pub fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).expect("a file");
    change(&mut bytes);
    fs::write(file, bytes).expect("there is space");
}

/// Changes the bytes of a segment's header, and gives it the checksum that it needs.
pub fn change_header(file: &Path, change_bytes: impl FnOnce(&mut Vec<u8>)) {
    change(file, |bytes| {
        change_bytes(bytes);
        let sum = crc32c::crc32c(&bytes[..72]).to_le_bytes();
        bytes[72..76].copy_from_slice(&sum);
    });
}

/// Returns the bytes that a process has read from files.
pub fn bytes_read(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("it runs");
    io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).expect("a number")
}

/// The body of a job, which differs from those of others.
pub fn body(id: u64) -> String {
    format!("body {id} {}", "x".repeat((id * 37 % 900) as usize))
}

/// Puts a job with a priority of 1 and a TTR of 60 s into a queue without a server.
pub fn put_job(engine: &mut Engine, client: ClientKey, body: &[u8], tags: &str, now: Time) -> JobId {
    let bodies = engine.bodies_mut();
    let mut slot = bodies.allocate(body.len() as u32).expect("there is memory");
    bodies.bytes_mut(&mut slot).copy_from_slice(body);
    let tags = if tags.is_empty() { Tags::NONE } else { Tags::new(tags.as_bytes()).expect("valid tags") };
    let (id, tags_key) = (engine.next_id(), engine.store_tags(tags));
    let (delay, ttr) = (Seconds::ZERO, Seconds::whole(60));
    engine.put(client, NewJob { id, pri: 1, delay, ttr, body: slot, tags_key }, now);
    id
}
