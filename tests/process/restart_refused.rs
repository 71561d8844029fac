//! SIGUSR2 with a configuration that an in-place restart cannot apply: the server goes on, and says what to do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::process::{REPLY_PATIENCE, program};
use beanring_testkit::scratch::{Scratch, lines_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// A server that has all its settings from a file. It is killed if the test does not stop it.
struct Server {
    child: Child,
    scratch: Scratch,
    /// Lines of its log that the test has seen.
    seen: usize,
}

impl Server {
    /// Starts a server with these settings and a job log.
    fn start(settings: &str) -> Self {
        Self::start_program(Path::new(program()), settings)
    }

    fn start_program(program: &Path, settings: &str) -> Self {
        let scratch = Scratch::new("refused");
        for name in ["log", "other", "socket"] {
            scratch.dir(name);
        }
        fs::write(scratch.join("config.toml"), settings.replace("DIR", &scratch.0.display().to_string()))
            .expect("the file is written");
        let stderr = fs::File::create(scratch.join("said")).expect("the file is created");
        let mut command = Command::new(program);
        command.arg("--config").arg(scratch.join("config.toml")).stdin(Stdio::null()).stderr(stderr);
        let child = command.spawn().expect("the program starts");
        let mut server = Self { child, scratch, seen: 0 };
        server.logged("ready after ");
        server
    }

    /// Waits for the next line of the log with this part, and returns it.
    fn logged(&mut self, part: &str) -> String {
        let asked = Instant::now();
        loop {
            let lines = lines_of(&self.scratch.join("said"), self.seen);
            if let Some(at) = lines.iter().skip(self.seen).position(|line| line.contains(part)) {
                self.seen += at + 1;
                return lines[self.seen - 1].clone();
            }
            assert!(asked.elapsed() < REPLY_PATIENCE, "{part:?} in {lines:#?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks for a restart with these settings, and asserts that it is refused for this reason.
    fn refuses(&mut self, settings: &str, why: &str) {
        let dir = self.scratch.0.display().to_string();
        fs::write(self.path("config.toml"), settings.replace("DIR", &dir)).expect("the file is written");
        self.signal(Signal::SIGUSR2);
        let line = self.logged("restart");
        let line = if line.contains("no restart: ") { line } else { self.logged("restart") };
        let (why, pid) = (why.replace("DIR", &dir), self.child.id());
        assert!(line.contains(" WARN no restart: ") && line.contains(&why), "{pid} {settings}: {line}");
    }

    /// Asks for a restart with these settings, which succeeds.
    fn restarts(&mut self, settings: &str) {
        let dir = self.scratch.0.display().to_string();
        fs::write(self.path("config.toml"), settings.replace("DIR", &dir)).expect("the file is written");
        self.signal(Signal::SIGUSR2);
        self.logged("restarted in place");
        self.logged("ready after ");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the process is ours");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SETTINGS: &str = "listen = \"127.0.0.1\"\nport = 0\nwal-dir = \"DIR/log\"\n";
const AGAIN: &str = "stop the server and start it again";

#[test]
fn a_configuration_that_would_lose_jobs() {
    let mut server = Server::start(SETTINGS);
    let without_log = SETTINGS.replace("wal-dir", "# wal-dir");
    server.refuses(&without_log, "an empty queue: set -b to the directory of the running server");
    server.refuses(
        &SETTINGS.replace("DIR/log", "DIR/other"),
        "/other\": not the directory of the running server, and a server without its job log begins with other jobs or \
         none: set -b to",
    );
    server.refuses(&SETTINGS.replace("DIR/log", "DIR/missing"), "no such directory");
    let and = |line: &str| format!("{SETTINGS}{line}\n");
    server.refuses(&and("wal-segment-size = 65536"), "-s/--wal-segment-size is less than the present 10m");
    server.refuses(
        &and(&format!("wal-segment-size = {}", 1_u64 << 40)),
        "-s/--wal-segment-size: the disk has no space",
    );
    server.refuses(
        &and("user = \"no such user\""),
        "config.toml:4: user = \"no such user\": no such user; create it, or correct the name",
    );
    server.refuses(&and("max-job-size = \"x\""), "must be a size");
    let binlog = server.path("log/binlog.1");
    fs::write(&binlog, "").expect("the file is written");
    server.refuses(SETTINGS, "are in one directory");
    fs::remove_file(&binlog).expect("the file is removed");
    server.restarts(&and("max-job-size = 4"));
}

/// The listeners stay those of the first start.
#[test]
fn other_addresses() {
    let mut server = Server::start(SETTINGS);
    let keeps = "the running server listens on 127.0.0.1:0, and a restart in place cannot change that to";
    server.refuses(
        &SETTINGS.replace("port = 0", "port = 1"),
        &format!("config.toml:1: listen and DIR/config.toml:2: port: {keeps} 127.0.0.1:1: {AGAIN}"),
    );
    server.refuses(&SETTINGS.replace("127.0.0.1", "127.0.0.2"), &format!("{keeps} 127.0.0.2:0: {AGAIN}"));
    server.refuses(&SETTINGS.replace("port = 0\n", ""), &format!("{keeps} 127.0.0.1:11300: {AGAIN}"));
    let http = |line: &str| format!("{SETTINGS}http = {line}\n");
    server.refuses(
        &http("\"unix:DIR/socket/http\""),
        "--http was not set when the server started: stop the server and start it again",
    );
    drop(server);

    let mut server = Server::start(&http("\"unix:DIR/socket/http\""));
    server.refuses(
        &http("0"),
        &format!("the running server serves HTTP on unix:DIR/socket/http, and a restart in place cannot change that to 127.0.0.1:0: {AGAIN}"),
    );
    server.refuses(
        SETTINGS,
        &format!("--http is not set, and a restart in place cannot close unix:DIR/socket/http: {AGAIN}"),
    );
    // A second restart compares with the first start too.
    for _ in 0..2 {
        server.restarts(&http("\"unix:DIR/socket/http\""));
    }
    server.refuses(SETTINGS, "--http is not set, ");
}

/// The permissions of a program may be lost when it is installed.
#[test]
fn a_program_that_is_not_executable() {
    let scratch = Scratch::new("mode");
    let copy = scratch.join("beanring");
    assert!(Command::new("cp").arg(program()).arg(&copy).status().expect("cp starts").success());
    let mut server = Server::start_program(&copy, SETTINGS);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).expect("the mode is set");
    server.refuses(
        SETTINGS,
        &format!("cannot execute {}: Permission denied: run chmod +x on the file", copy.display()),
    );
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("the mode is set");
    server.restarts(SETTINGS);
}

#[test]
fn another_user() {
    if !geteuid().is_root() {
        return println!("skipped: another user for a restart, because only root can become another user");
    }
    let mut server = Server::start(SETTINGS);
    server.refuses(
        &format!("{SETTINGS}user = \"nobody\"\n"),
        &format!("config.toml:4: user = \"nobody\": a restart in place cannot change the user: {AGAIN}"),
    );
    server.restarts(SETTINGS);
}
