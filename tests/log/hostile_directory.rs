//! Starts and tools on a directory that another user can write to: no name leads out of it, none blocks, and signals work.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::{put, start};
use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::signals::mask_has;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Pid, geteuid, mkfifo};

/// How long a program may take that must end by itself. It only limits how long a failure takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The content of a file elsewhere that no output may show.
const SECRET: &str = "root:$6$salt$hash:20000:0:99999:7:::\n";
/// The first bytes of it as a version of a binlog.
const SECRET_AS_A_NUMBER: &str = "1953460082";

const SEGMENT: &str = "log.0000000000000001";

/// Names that a start opens.
const NAMES: [&str; 5] = ["lock", SEGMENT, "binlog.1", "import.begun", "import.done"];

const TOOLS: [&str; 4] = ["check", "dump", "salvage", "export"];

const FLAGS: [&str; 4] = ["-s", "65536", "-z", "1000"];

/// Jobs of a log that is not empty.
const JOBS: u64 = 10;

/// What is found under a name.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Link,
    Directory,
    Fifo,
    Socket,
    Device,
    OtherName,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Link, Self::Directory, Self::Fifo, Self::Socket, Self::Device, Self::OtherName];

    /// Makes one; a link leads to `secret`. Returns false if that is not possible here.
    fn make(self, path: &Path, secret: &Path) -> bool {
        let mode = Mode::from_bits_retain(0o666);
        match self {
            Self::Link => symlink(secret, path).expect("the name is free"),
            Self::Directory => fs::create_dir(path).expect("the name is free"),
            Self::Fifo => mkfifo(path, mode).expect("the name is free"),
            Self::Socket => drop(UnixListener::bind(path).expect("the name is free")),
            // The device zero: it can be read forever.
            Self::Device => {
                if !geteuid().is_root() || mknod(path, SFlag::S_IFCHR, mode, makedev(1, 5)).is_err() {
                    println!("skipped: a device, because it cannot be made here");
                    return false;
                }
            }
            Self::OtherName => fs::hard_link(secret, path).expect("the name is free"),
        }
        true
    }

    const fn shown_as(self) -> &'static str {
        match self {
            Self::Link => "is a symbolic link",
            Self::Directory => "is a directory",
            Self::Fifo => "is a FIFO",
            Self::Socket => "is a socket",
            Self::Device => "is a device",
            Self::OtherName => "has another name (a hard link)",
        }
    }
}

/// The directory of a job log that every user can write to, and a secret beside it.
struct Place {
    scratch: Scratch,
    log: PathBuf,
    secret: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let (log, secret) = (scratch.dir("log"), scratch.join("secret"));
        fs::write(&secret, SECRET).expect("there is space");
        let place = Self { scratch, log, secret };
        place.let_others_write();
        place
    }

    fn let_others_write(&self) {
        fs::set_permissions(&self.log, fs::Permissions::from_mode(0o777)).expect("it belongs to this test");
    }

    /// An empty directory again.
    fn empty(&self) {
        fs::remove_dir_all(&self.log)
            .and_then(|()| fs::create_dir(&self.log))
            .expect("it belongs to this test");
        self.let_others_write();
    }

    /// Fills the directory with a job log, and returns its first segment.
    fn fill(&self) -> PathBuf {
        let (mut server, mut client) = start(&self.log, Driver::Epoll, &FLAGS);
        (1..=JOBS).for_each(|id| client.expect(&put(0, 0, "kept"), &format!("INSERTED {id}")));
        server.signal(Signal::SIGTERM);
        assert_eq!(server.wait(), Some(0));
        self.log.join(SEGMENT)
    }

    /// Starts a server, whose output goes to a file.
    fn start(&self) -> Run {
        Run::new(self, &["-l", "127.0.0.1", "-p", "0", "-b", self.path()])
    }

    fn path(&self) -> &str {
        self.log.to_str().expect("UTF-8")
    }

    /// Runs a tool on the directory.
    fn tool(&self, name: &str) -> Run {
        let new = self.scratch.join("new");
        let _ = fs::remove_dir_all(&new);
        let (log, new) = (self.path(), new.to_str().expect("UTF-8"));
        let needs_new = matches!(name, "salvage" | "export");
        let args = ["wal", name, log, new];
        Run::new(self, if needs_new { &args } else { &args[..3] })
    }

    fn assert_untouched(&self, what: &str) {
        assert_eq!(fs::read_to_string(&self.secret).expect("it exists"), SECRET, "{what}");
    }
}

/// A program that runs, and the file with its output.
struct Run {
    child: Child,
    output: PathBuf,
}

impl Run {
    fn new(place: &Place, args: &[&str]) -> Self {
        let output = place.scratch.join("output");
        let file = File::create(&output).expect("there is space");
        let other = file.try_clone().expect("there are descriptors");
        let mut command = Command::new(program());
        command.args(args).stdin(Stdio::null()).stdout(file).stderr(other);
        Self { child: command.spawn().expect("the program starts"), output }
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).expect("it exists")).into_owned()
    }

    /// Sends a signal once the process handles it in its own way.
    fn signal(&self, signal: Signal) {
        let begun = Instant::now();
        while !mask_has(self.child.id(), "SigBlk:", signal) {
            assert!(begun.elapsed() < PATIENCE, "the signal is not blocked: {}", self.output());
            thread::sleep(Duration::from_millis(1));
        }
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    /// Waits for the end, and returns the exit code and the output.
    fn end(mut self, what: &str) -> (Option<i32>, String) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return (status.code(), self.output());
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: does not end: {}", self.output());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn assert_secret(output: &str, what: &str) {
    for shown in [&SECRET[..4], SECRET_AS_A_NUMBER] {
        assert!(!output.contains(shown), "{what}: shows the file elsewhere: {output}");
    }
}

#[test]
fn a_start_refuses_whatever_is_no_file_of_the_directory_and_names_it() {
    let place = Place::new("hostile-start");
    for name in NAMES {
        for kind in Kind::ALL {
            place.empty();
            if !kind.make(&place.log.join(name), &place.secret) {
                continue;
            }
            let what = format!("{name}, {kind:?}");
            let (code, output) = place.start().end(&what);
            assert_secret(&output, &what);
            let message = format!("{name} {}", kind.shown_as());
            assert!(code == Some(1) && output.contains(&message), "{what}: {code:?}, {output}");
            place.assert_untouched(&what);
            let checked = Run::new(&place, &["--check-config", "-p", "0", "-b", place.path()]);
            let (code, output) = checked.end(&what);
            assert!(code == Some(1) && output.contains(&message), "{what}: {code:?}, {output}");
        }
    }
}

#[test]
fn a_lock_that_leads_elsewhere_creates_no_file_there() {
    let place = Place::new("hostile-lock");
    let elsewhere = place.scratch.join("elsewhere");
    for name in ["lock", "import.begun", "log.0000000000000001"] {
        place.empty();
        symlink(&elsewhere, place.log.join(name)).expect("the name is free");
        let (code, output) = place.start().end(name);
        assert!(!elsewhere.exists(), "{name}: {output}");
        assert!(code == Some(1) && output.contains(&format!("{name} is a symbolic link")), "{output}");
    }
}

#[test]
fn tools_refuse_whatever_is_no_file_of_the_directory() {
    let place = Place::new("hostile-tools");
    for (name, tool) in ["lock", SEGMENT].into_iter().flat_map(|name| TOOLS.map(|tool| (name, tool))) {
        for kind in Kind::ALL {
            place.empty();
            place.fill();
            let path = place.log.join(name);
            fs::remove_file(&path).expect("the log has it");
            if !kind.make(&path, &place.secret) {
                continue;
            }
            let what = format!("{tool}, {name}, {kind:?}");
            let (code, output) = place.tool(tool).end(&what);
            assert_secret(&output, &what);
            let message = format!("{name} {}", kind.shown_as());
            assert!(code == Some(1) && output.contains(&message), "{what}: {code:?}, {output}");
            place.assert_untouched(&what);
        }
    }
}

#[test]
fn a_pipe_in_the_place_of_the_directory_is_refused() {
    let place = Place::new("hostile-pipe");
    fs::remove_dir(&place.log).expect("it is empty");
    mkfifo(&place.log, Mode::from_bits_retain(0o666)).expect("the name is free");
    let (code, output) = place.start().end("a start");
    assert!(code == Some(2) && output.contains("this is a file; name a directory"), "{code:?}, {output}");
    for tool in TOOLS {
        let (code, output) = place.tool(tool).end(tool);
        assert!(code == Some(2) && output.contains("name a directory"), "{tool}: {code:?}, {output}");
    }
}

#[test]
fn a_list_of_imported_files_renames_nothing_outside_of_the_directory() {
    let place = Place::new("hostile-list");
    for line in ["../secret", "lock", "binlog.1/../../secret", ""] {
        place.empty();
        fs::write(place.log.join("import.done"), format!("binlog.1\n{line}\n")).expect("there is space");
        let (code, output) = place.start().end(line);
        place.assert_untouched(line);
        assert!(code == Some(1) && output.contains("import.done is damaged"), "{line}: {code:?}, {output}");
        assert!(place.log.join("lock").exists(), "{line}");
    }
    // Its size costs nothing.
    place.empty();
    let list = File::create(place.log.join("import.done")).expect("there is space");
    list.set_len(20 << 30).expect("a hole takes no space");
    let (code, output) = place.start().end("a large list");
    assert!(code == Some(1) && output.contains("import.done is damaged"), "{code:?}, {output}");
}

#[test]
fn a_hole_of_a_binlog_is_not_read() {
    let place = Place::new("hostile-hole");
    let binlog = place.log.join("binlog.1");
    for (content, refusal) in [
        (&[][..], None),
        (&7_u32.to_le_bytes()[..], None),
        (SECRET.as_bytes(), Some("binlog.1 is not a binlog of beanstalkd")),
    ] {
        place.empty();
        let mut file = File::create(&binlog).expect("there is space");
        file.write_all(content).expect("there is space");
        // As large as a file system allows.
        let bytes = [1 << 60, 1 << 43].into_iter().find(|&bytes| file.set_len(bytes).is_ok());
        bytes.expect("a hole takes no space");
        let run = place.start();
        if let Some(refusal) = refusal {
            let (code, output) = run.end("a start");
            assert_secret(&output, "a foreign file");
            assert!(code == Some(1) && output.contains(refusal), "{code:?}, {output}");
            continue;
        }
        let begun = Instant::now();
        while !run.output().contains("listening on") {
            assert!(begun.elapsed() < PATIENCE, "the start goes on: {}", run.output());
            thread::sleep(Duration::from_millis(5));
        }
        assert!(run.output().contains("imported the binlog"), "{}", run.output());
        drop(run);
    }
}

/// Reading takes minutes. The signal comes during it, or before it.
#[test]
fn a_signal_ends_a_start_that_reads_a_large_file() {
    let place = Place::new("hostile-signal");
    let segment = place.fill();
    let file = OpenOptions::new().write(true).open(&segment).expect("the log has it");
    let small = file.metadata().expect("it is open").len();
    for (signal, late) in [(Signal::SIGTERM, true), (Signal::SIGTERM, false), (Signal::SIGINT, true)] {
        file.set_len(1 << 40).expect("a hole takes no space");
        let run = place.start();
        if late {
            thread::sleep(Duration::from_millis(300));
        }
        run.signal(signal);
        let (code, output) = run.end(signal.as_str());
        assert!(code == Some(0) && output.contains("stopped by a signal"), "{signal}: {code:?}, {output}");
        assert!(!output.contains("recovered 10 jobs"), "{output}");
    }
    // No job is lost.
    file.set_len(small).expect("it was that large");
    let (_server, mut client) = start(&place.log, Driver::Epoll, &FLAGS);
    assert_eq!(client.stat("current-jobs-ready"), JOBS);
}

/// A user who can read a segment can lock it as a write does that the disk has not finished.
#[test]
fn a_signal_ends_a_start_that_waits_for_a_foreign_lock() {
    let place = Place::new("hostile-wait");
    let segment = File::open(place.fill()).expect("the log has it");
    let lock = libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&segment, FcntlArg::F_OFD_SETLK(&lock)).expect("the server has ended");
    let run = place.start();
    let begun = Instant::now();
    while !run.output().contains("waiting for the disk") {
        assert!(begun.elapsed() < PATIENCE, "the start waits: {}", run.output());
        thread::sleep(Duration::from_millis(5));
    }
    run.signal(Signal::SIGTERM);
    let (code, output) = run.end("SIGTERM");
    assert!(code == Some(0) && output.contains("stopped by a signal"), "{code:?}, {output}");
}

/// Names that change between files and links at any time.
#[test]
fn a_directory_that_changes_during_a_start_leads_nowhere() {
    let place = Place::new("hostile-changes");
    place.fill();
    let (aside, stop) = (place.scratch.join("aside"), AtomicBool::new(false));
    let elsewhere = place.scratch.join("elsewhere");
    let change = |name: &str, round: u32| {
        let path = place.log.join(name);
        // A rename replaces the name at once.
        let new = match round % 4 {
            0 => symlink(&place.secret, &aside),
            1 => fs::write(&aside, [0; 64]),
            2 => mkfifo(&aside, Mode::from_bits_retain(0o666)).map_err(Into::into),
            _ => symlink(&elsewhere, &aside),
        };
        let _ = new.and_then(|()| fs::rename(&aside, &path));
        let _ = fs::remove_file(&aside);
        if round % 8 == 7 {
            let _ = fs::remove_file(path);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                NAMES.iter().for_each(|name| change(name, round));
            }
        });
        let starts = || {
            for number in 0..60 {
                let run = place.start();
                if number % 2 == 0 {
                    run.signal_if_it_runs();
                }
                let what = format!("start {number}");
                let output = run.end_or_serve(&what);
                assert_secret(&output, &what);
                place.assert_untouched(&what);
                assert!(!elsewhere.exists(), "{what}: {output}");
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(starts));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

impl Run {
    fn signal_if_it_runs(&self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
    }

    /// Waits until a start is refused, or stops the server that it has become. Returns the output.
    fn end_or_serve(mut self, what: &str) -> String {
        let begun = Instant::now();
        while self.child.try_wait().expect("the child is ours").is_none() {
            if self.output().contains("listening on") {
                self.signal_if_it_runs();
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: does not end: {}", self.output());
            thread::sleep(Duration::from_millis(1));
        }
        self.output()
    }
}
