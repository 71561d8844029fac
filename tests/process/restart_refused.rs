//! SIGUSR2 with a configuration that an in-place restart cannot apply: the server goes on, and says what to do.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};

use beanring_testkit::client::put;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

/// Starts a server that has all its settings from a file, with a job log.
fn start(program: &str, settings: &str) -> LoggedServer {
    let scratch = Scratch::new("refused");
    for name in ["log", "other", "socket"] {
        scratch.dir(name);
    }
    configure(&scratch, settings);
    let mut command = Command::new(program);
    command.arg("--config").arg(scratch.join("config.toml")).stdin(Stdio::null());
    let server = LoggedServer::spawn(command, scratch).listening();
    server.logged("ready after ");
    server
}

/// Writes the file of settings. `DIR` stands for the directory.
fn configure(scratch: &Scratch, settings: &str) {
    let settings = settings.replace("DIR", &scratch.0.display().to_string());
    fs::write(scratch.join("config.toml"), settings).expect("the file is written");
}

/// Asks for a restart with these settings, and asserts that it is refused for this reason.
fn refuses(server: &LoggedServer, settings: &str, why: &str) {
    configure(&server.scratch, settings);
    server.signal(Signal::SIGUSR2);
    let line = server.logged("restart");
    let line = if line.contains("no restart: ") { line } else { server.logged("restart") };
    let why = why.replace("DIR", &server.scratch.0.display().to_string());
    assert!(line.contains(" WARN no restart: ") && line.contains(&why), "{settings}: {line}");
}

/// Asks for a restart with these settings, which succeeds.
fn restarts(server: &LoggedServer, settings: &str) {
    configure(&server.scratch, settings);
    server.signal(Signal::SIGUSR2);
    server.logged("restarted in place");
    server.logged("ready after ");
}

const SETTINGS: &str = "listen = \"127.0.0.1\"\nport = 0\nwal-dir = \"DIR/log\"\n";
const AGAIN: &str = "stop the server and start it again";

/// The settings with one more line.
fn and(line: &str) -> String {
    format!("{SETTINGS}{line}\n")
}

#[test]
fn a_configuration_that_would_lose_jobs() {
    let server = &start(program(), SETTINGS);
    for (settings, why) in [
        (
            SETTINGS.replace("wal-dir", "# wal-dir"),
            "an empty queue: set -b to the directory of the running server",
        ),
        (
            SETTINGS.replace("DIR/log", "DIR/other"),
            "/other\": not the directory of the running server, and a server without its job log begins with other jobs or \
             none: set -b to",
        ),
        (SETTINGS.replace("DIR/log", "DIR/missing"), "no such directory"),
        (and("wal-segment-size = 65536"), "-s/--wal-segment-size is less than the present 10m"),
        (and(&format!("wal-segment-size = {}", 1_u64 << 40)), "-s/--wal-segment-size: the disk has no space"),
        (
            and("user = \"no such user\""),
            "config.toml:4: user = \"no such user\": no such user; create it, or correct the name",
        ),
        (and("max-job-size = \"x\""), "must be a size"),
    ] {
        refuses(server, &settings, why);
    }
    let binlog = server.scratch.join("log/binlog.1");
    fs::write(&binlog, "").expect("the file is written");
    refuses(server, SETTINGS, "are in one directory");
    fs::remove_file(&binlog).expect("the file is removed");
    restarts(server, &and("max-job-size = 4"));
}

/// A program that would refuse the job log does not replace one that serves.
#[test]
fn a_damaged_job_log() {
    let server = &start(program(), SETTINGS);
    let mut client = server.client();
    client.expect(&put(0, 0, "body"), "INSERTED 1");
    let file = server.scratch.join("log/log.0000000000000001");
    let marked = || fs::read(server.scratch.join("log/log.end.2")).is_ok_and(|mark| mark[24] == 1);
    wait::until("the segment is marked", marked);
    let segment = File::options().read(true).write(true).open(&file).expect("a segment");
    let flip = |at| {
        let mut byte = [0];
        segment.read_exact_at(&mut byte, at).expect("it is long enough");
        segment.write_all_at(&[byte[0] ^ 1], at).expect("there is space");
    };
    for (at, offset) in [(20, 0), (4100, 4096)] {
        flip(at);
        let why =
            format!("the job log is damaged: log.0000000000000001: checksum mismatch at offset {offset}; ");
        refuses(server, SETTINGS, &why);
        flip(at);
    }
    client.expect("peek 1\r\n", "FOUND 1 4");
    restarts(server, SETTINGS);
}

/// The listeners stay those of the first start.
#[test]
fn other_addresses() {
    let server = &start(program(), SETTINGS);
    let keeps = "the running server listens on 127.0.0.1:0, and a restart in place cannot change that to";
    refuses(
        server,
        &SETTINGS.replace("port = 0", "port = 1"),
        &format!("config.toml:1: listen and DIR/config.toml:2: port: {keeps} 127.0.0.1:1: {AGAIN}"),
    );
    refuses(server, &SETTINGS.replace("127.0.0.1", "127.0.0.2"), &format!("{keeps} 127.0.0.2:0: {AGAIN}"));
    refuses(server, &SETTINGS.replace("port = 0\n", ""), &format!("{keeps} 127.0.0.1:11300: {AGAIN}"));
    let http = "unix:DIR/socket/http";
    let with_http = and(&format!("http = \"{http}\""));
    refuses(server, &with_http, &format!("--http was not set when the server started: {AGAIN}"));

    let server = &start(program(), &with_http);
    let keeps =
        format!("the running server serves HTTP on {http}, and a restart in place cannot change that to");
    refuses(server, &and("http = 0"), &format!("{keeps} 127.0.0.1:0: {AGAIN}"));
    let closes = format!("--http is not set, and a restart in place cannot close {http}: {AGAIN}");
    refuses(server, SETTINGS, &closes);
    // A second restart compares with the first start too.
    (0..2).for_each(|_| restarts(server, &with_http));
    refuses(server, SETTINGS, "--http is not set, ");
}

/// The permissions of a program may be lost when it is installed.
#[test]
fn a_program_that_is_not_executable() {
    let scratch = Scratch::new("mode");
    let copy = scratch.join("beanring");
    assert!(Command::new("cp").arg(program()).arg(&copy).status().expect("cp starts").success());
    let server = &start(copy.to_str().expect("UTF-8"), SETTINGS);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).expect("the mode is set");
    refuses(
        server,
        SETTINGS,
        &format!("cannot execute {}: Permission denied: run chmod +x on the file", copy.display()),
    );
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("the mode is set");
    restarts(server, SETTINGS);
}

#[test]
fn another_user() {
    if !geteuid().is_root() {
        return println!("skipped: another user for a restart, because only root can become another user");
    }
    let server = &start(program(), SETTINGS);
    refuses(
        server,
        &format!("{SETTINGS}user = \"nobody\"\n"),
        &format!("config.toml:4: user = \"nobody\": a restart in place cannot change the user: {AGAIN}"),
    );
    restarts(server, SETTINGS);
}
