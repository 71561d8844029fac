//! Starts and tools on a directory that another user can write to: no name leads out of it, none blocks, and signals work.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use beanring::io::driver::Driver;
use beanring_testkit::client::{put, start};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::signals::mask_has;
use beanring_testkit::wait;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{geteuid, mkfifo};

use super::common::{Ended, FIRST, Run, bytes_read, tool};

/// The content of a file elsewhere that no output may show.
const SECRET: &str = "root:$6$salt$hash:20000:0:99999:7:::\n";
/// The first bytes of it as a version of a binlog.
const SECRET_AS_A_NUMBER: &str = "1953460082";

/// Names that a start opens.
const NAMES: [&str; 5] = ["lock", FIRST, "binlog.1", "import.begun", "import.done"];

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
        place.empty();
        place
    }

    /// An empty directory again.
    fn empty(&self) {
        fs::remove_dir_all(&self.log)
            .and_then(|()| fs::create_dir(&self.log))
            .and_then(|()| fs::set_permissions(&self.log, fs::Permissions::from_mode(0o777)))
            .expect("it belongs to this test");
    }

    /// Fills the directory with a job log, and returns its first segment.
    fn fill(&self) -> PathBuf {
        let (mut server, mut client) = start(&self.log, Driver::Epoll, &FLAGS);
        client.insert(1..=JOBS, |_| put(0, 0, "kept"));
        server.stop();
        self.log.join(FIRST)
    }

    fn start(&self) -> Run {
        Run::server(&self.log, &[])
    }

    /// Runs a tool on the directory.
    fn tool(&self, name: &str) -> Ended {
        let new = self.scratch.join("new");
        let _ = fs::remove_dir_all(&new);
        let dirs = [&*self.log, &*new];
        let needs_new = matches!(name, "salvage" | "export");
        tool(name, if needs_new { &dirs } else { &dirs[..1] })
    }

    /// Asserts that no secret is shown, and that it is as it was.
    #[track_caller]
    fn assert_untouched(&self, ended: &Ended, what: &str) {
        for part in [&SECRET[..4], SECRET_AS_A_NUMBER] {
            assert!(!ended.out.contains(part) && !ended.error.contains(part), "{what}: {ended:?}");
        }
        assert_eq!(fs::read_to_string(&self.secret).expect("it exists"), SECRET, "{what}");
    }

    /// Asserts the same of a program that fails and says this.
    #[track_caller]
    fn assert_refused(&self, ended: &Ended, why: &str, what: &str) {
        self.assert_untouched(ended, what);
        assert!(ended.code == Some(1) && ended.error.contains(why), "{what}, {why}: {ended:?}");
    }
}

#[test]
fn a_start_refuses_whatever_is_no_file_of_the_directory_and_names_it() {
    let place = Place::new("hostile-start");
    for (name, kind) in NAMES.iter().flat_map(|name| Kind::ALL.map(|kind| (name, kind))) {
        place.empty();
        if !kind.make(&place.log.join(name), &place.secret) {
            continue;
        }
        let (what, why) = (format!("{name}, {kind:?}"), format!("{name} {}", kind.shown_as()));
        place.assert_refused(&place.start().end(), &why, &what);
        let checked =
            Run::new(&["--check-config", "-p", "0", "-b", place.log.to_str().expect("UTF-8")]).end();
        assert!(checked.code == Some(1) && checked.error.contains(&why), "{what}: {checked:?}");
    }
}

#[test]
fn a_lock_that_leads_elsewhere_creates_no_file_there() {
    let place = Place::new("hostile-lock");
    let elsewhere = place.scratch.join("elsewhere");
    for name in ["lock", "import.begun", FIRST] {
        place.empty();
        symlink(&elsewhere, place.log.join(name)).expect("the name is free");
        let ended = place.start().end().fails(1, &format!("{name} is a symbolic link"));
        assert!(!elsewhere.exists(), "{name}: {ended:?}");
    }
}

#[test]
fn tools_refuse_whatever_is_no_file_of_the_directory() {
    let place = Place::new("hostile-tools");
    place.fill();
    let aside = place.scratch.join("aside");
    for (name, kind) in ["lock", FIRST].into_iter().flat_map(|name| Kind::ALL.map(|kind| (name, kind))) {
        let path = place.log.join(name);
        fs::rename(&path, &aside).expect("the log has it");
        if kind.make(&path, &place.secret) {
            for tool in TOOLS {
                let why = format!("{name} {}", kind.shown_as());
                place.assert_refused(&place.tool(tool), &why, &format!("{tool}, {name}, {kind:?}"));
            }
            fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).expect("it was made");
        }
        fs::rename(&aside, &path).expect("the name is free");
    }
    place.tool("check").succeeds("no damage");
}

#[test]
fn a_pipe_in_the_place_of_the_directory_is_refused() {
    let place = Place::new("hostile-pipe");
    fs::remove_dir(&place.log).expect("it is empty");
    mkfifo(&place.log, Mode::from_bits_retain(0o666)).expect("the name is free");
    place.start().end().fails(2, "this is a file; name a directory");
    for tool in TOOLS {
        place.tool(tool).fails(2, "name a directory");
    }
}

#[test]
fn a_list_of_imported_files_renames_nothing_outside_of_the_directory() {
    let place = Place::new("hostile-list");
    for line in ["../secret", "lock", "binlog.1/../../secret", ""] {
        place.empty();
        fs::write(place.log.join("import.done"), format!("binlog.1\n{line}\n")).expect("there is space");
        place.assert_refused(&place.start().end(), "import.done is damaged", line);
        assert!(place.log.join("lock").exists(), "{line}");
    }
    // Its size costs nothing.
    place.empty();
    let list = File::create(place.log.join("import.done")).expect("there is space");
    list.set_len(20 << 30).expect("a hole takes no space");
    place.start().end().fails(1, "import.done is damaged");
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
        let ended = place.start().end_or_serve(Signal::SIGTERM);
        match refusal {
            Some(refusal) => place.assert_refused(&ended, refusal, "a foreign file"),
            None => {
                let said = |part| ended.error.contains(part);
                assert!(said("listening on") && said("imported the binlog"), "{ended:?}");
            }
        }
    }
}

/// Sends a signal once the process handles it in its own way.
fn signal(run: &Run, signal: Signal) {
    wait::until("the signal is blocked", || mask_has(run.pid(), "SigBlk:", signal));
    run.signal(signal);
}

/// Reading takes long, since no hole is large enough to be left out. The signal comes during it, or before it.
#[test]
fn a_signal_ends_a_start_that_reads_a_large_file() {
    const HOLE_BYTES: u64 = 900 << 10;
    let place = Place::new("hostile-signal");
    let segment = place.fill();
    let file = OpenOptions::new().write(true).open(&segment).expect("the log has it");
    let small = file.metadata().expect("it is open").len();
    for (number, late) in [(Signal::SIGTERM, true), (Signal::SIGTERM, false), (Signal::SIGINT, true)] {
        for hole in 1..20_000 {
            file.write_all_at(&[0], small + hole * HOLE_BYTES).expect("a page of memory");
        }
        let run = place.start();
        if late {
            wait::until("it reads the file", || bytes_read(run.pid()) > 16 << 20);
        }
        signal(&run, number);
        let ended = run.end();
        assert!(ended.code == Some(0) && ended.error.contains("stopped by a signal"), "{number}: {ended:?}");
        assert!(!ended.error.contains("recovered 10 jobs"), "{ended:?}");
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
    assert!(run.await_line("waiting for the disk"), "the start waits");
    signal(&run, Signal::SIGTERM);
    let ended = run.end();
    assert!(ended.code == Some(0) && ended.error.contains("stopped by a signal"), "{ended:?}");
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
                    run.signal(Signal::SIGTERM);
                }
                let ended = run.end_or_serve(Signal::SIGTERM);
                place.assert_untouched(&ended, &format!("start {number}"));
                assert!(!elsewhere.exists(), "start {number}: {ended:?}");
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(starts));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
