//! What the log says, as an operator reads it: the lines of a start, a drain, a restart and a stop, at each level and in each
//! format.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring::logging::{self, LogFormat};
use beanring_testkit::driver;
use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use tracing::level_filters::LevelFilter;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server with its log in a file.
struct Server {
    child: Child,
    log: PathBuf,
    scratch: Scratch,
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, |_, _| {})
    }

    /// Starts a server on a port of the system's choice, with an empty directory `log` beside its log lines.
    fn start_with(flags: &[&str], prepare: impl FnOnce(&mut Command, &File)) -> Self {
        let scratch = Scratch::new("logging");
        let log = scratch.0.join("said");
        let wal = scratch.0.join("log");
        fs::create_dir(&wal).expect("the directory is created");
        let mut command = Command::new(program());
        let flags =
            flags.iter().map(|&flag| if flag == "DIR" { wal.display().to_string() } else { flag.to_owned() });
        command.args(["-l", "127.0.0.1", "-p", "0", "--io", "epoll"]).args(flags);
        let file = File::create(&log).expect("the file is created");
        prepare(&mut command, &file);
        command.stdin(Stdio::null()).stderr(file);
        let child = command.spawn().expect("the program starts");
        Self { child, log, scratch }
    }

    /// The log as it is now, without a line that is being written.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).expect("the log");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// Waits until a line has the text, and returns it.
    fn wait_for(&self, text: &str) -> String {
        let started = Instant::now();
        loop {
            let lines = self.lines();
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            assert!(started.elapsed() < PATIENCE, "{text} is not logged: {lines:#?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn connect(&self) -> TcpStream {
        let line = self.wait_for("listening on ");
        let address = line.split_once("listening on ").expect("an address").1.trim_matches(['"', '}']);
        TcpStream::connect(address).expect("the server accepts connections")
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("the process is ours");
    }

    /// Stops the server.
    fn end(&mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.child.wait().expect("the child is ours").success(), "{:#?}", self.lines());
    }

    /// Stops the server, and returns the whole log.
    fn stop(mut self) -> Vec<String> {
        self.end();
        self.lines()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(client: &mut TcpStream, command: &str) -> String {
    client.write_all(command.as_bytes()).expect("the connection is open");
    let mut reply = String::new();
    BufReader::new(client).read_line(&mut reply).expect("a reply");
    reply
}

/// Level and message of each line, with N for each number. Without the lines that depend on the kernel or on the moment.
fn messages(lines: &[String]) -> Vec<String> {
    let message = |line: &String| {
        let (time, rest) = line.split_once(' ').expect("a time and a message");
        assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{line}");
        masked(rest.trim_start())
    };
    let varies = |line: &String| {
        line.starts_with("INFO sandbox: ") || line == "INFO waiting until the job log is on disk"
    };
    lines.iter().map(message).filter(|line| !varies(line)).collect()
}

fn masked(text: &str) -> String {
    let mut result = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if result.ends_with('N') => {}
            '0'..='9' => result.push('N'),
            _ => result.push(letter),
        }
    }
    result
}

/// No `Debug` representation, and none of its quotes and escapes.
fn check_for_people(lines: &[String]) {
    for line in lines {
        for trace in ["Os {", "Some(", "None", "Ok(", "Err(", "Errno", "\\\"", "=\"", "\": \""] {
            assert!(!line.contains(trace), "{trace}: {line}");
        }
    }
}

const LIMITS: &str = "INFO limits: memory unlimited, job size N bytes, connections unlimited, tubes N, watches per \
                      connection N";
const STOP: [&str; 2] =
    ["INFO SIGTERM from process N of user N: stopping", "INFO stopped after N s of uptime"];

#[test]
fn a_start_and_a_stop_without_a_job_log() {
    let server = Server::start(&[]);
    server.wait_for("ready");
    let lines = server.stop();
    check_for_people(&lines);
    let start = [
        "INFO beanring N.N.N (pid N)",
        "INFO I/O driver: epoll",
        "INFO no job log: jobs are kept in memory only, and a stop or a restart loses them (-b DIR keeps them)",
        LIMITS,
        "INFO listening on N.N.N.N:N",
        "INFO ready after N ms",
    ];
    assert_eq!(messages(&lines), [&start[..], &STOP].concat());
}

#[test]
fn a_start_with_jobs_of_the_last_run() {
    let mut server = Server::start(&["-b", "DIR", "-f", "0", "--max-memory", "64m", "--http", "0"]);
    assert_eq!(ask(&mut server.connect(), "put 0 0 60 1\r\nx\r\n"), "INSERTED 1\r\n");
    let dir = server.scratch.0.join("log");
    server.wait_for(&format!("job log: created in {}", dir.display()));
    server.end();
    let dir = dir.display().to_string();
    let again = Server::start(&["-b", &dir, "-F", "-s", "131072", "-z", "64", "--max-connections", "9"]);
    let lines = {
        again.wait_for("ready");
        again.stop()
    };
    check_for_people(&lines);
    let recovered = format!("INFO job log: recovered N job from {} in N ms (N segments)", masked(&dir));
    let start = [
        "INFO beanring N.N.N (pid N)",
        "INFO I/O driver: epoll",
        &recovered,
        "INFO durability: no sync until the server stops (-F): a power failure may lose jobs",
        "INFO limits: memory unlimited, job size N bytes, connections N, tubes N, watches per connection N",
        "INFO listening on N.N.N.N:N",
        "INFO ready after N ms",
    ];
    assert_eq!(messages(&lines), [&start[..], &STOP].concat());
    let first = messages(&server.lines());
    for expected in [
        "INFO durability: fsync before reply (-f N): a power failure loses no change that has a reply",
        "INFO limits: memory N MiB, job size N bytes, connections unlimited, tubes N, watches per connection N",
        "INFO serving the console on http://N.N.N.N:N/, the API (read-only from this machine) and /metrics",
    ] {
        assert!(first.iter().any(|line| line == expected), "{expected}: {first:#?}");
    }
}

/// What a user of beanstalkd types, with the name swapped.
#[test]
fn the_flags_of_beanstalkd() {
    let server = Server::start(&["-l", "0.0.0.0", "-b", "DIR", "-f", "50", "-z", "65535", "-V"]);
    server.wait_for("ready");
    let lines = server.stop();
    check_for_people(&lines);
    let dir = "INFO job log: created in ";
    let mut messages = messages(&lines);
    messages.iter_mut().filter(|line| line.starts_with(dir)).for_each(|line| line.truncate(dir.len()));
    let start = [
        "INFO beanring N.N.N (pid N)",
        "INFO I/O driver: epoll",
        dir,
        "INFO durability: sync within N ms of a change (-f N): a power failure may lose the latest changes",
        LIMITS,
        "INFO listening on N.N.N.N:N",
        "WARN other machines may connect to N.N.N.N:N, and whoever does may read, take and delete all jobs: the protocol has no \
         passwords; protect the port by a firewall, or choose -l N.N.N.N",
        "INFO ready after N ms",
    ];
    assert_eq!(messages, [&start[..], &STOP].concat());
}

#[test]
fn who_drains_and_who_ends_that() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "undrain\r\n"), "NOT_DRAINING\r\n");
    server.signal(Signal::SIGUSR1);
    let line = server.wait_for("draining");
    let sender = format!("SIGUSR1 from process {} of user ", std::process::id());
    assert!(line.contains(&sender) && line.contains(" INFO "), "{line}");
    server.signal(Signal::SIGUSR1);
    let line = server.wait_for("the server is draining already");
    assert!(line.contains(&sender) && line.contains(" INFO "), "{line}");
    assert_eq!(ask(&mut client, "undrain\r\n"), "NOT_DRAINING\r\n");
    assert_eq!(ask(&mut client, "undrain\r\n"), "NOT_DRAINING\r\n");
    let line = server.wait_for("put is accepted again");
    let peer = client.local_addr().expect("an address");
    assert!(line.contains(&format!(" INFO undrain from {peer}: put")), "{line}");
    server.signal(Signal::SIGUSR1);
    let draining = || server.lines().iter().filter(|line| line.contains("draining; put is refused")).count();
    let started = Instant::now();
    while draining() < 2 {
        assert!(started.elapsed() < PATIENCE, "{:#?}", server.lines());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ask(&mut client, "undrain\r\n"), "NOT_DRAINING\r\n");
    assert_eq!(ask(&mut client, "drain\r\n"), "DRAINING\r\n");
    assert_eq!(ask(&mut client, "drain\r\n"), "DRAINING\r\n");
    let line = server.wait_for(" drain from ");
    assert!(line.contains(&format!(" INFO drain from {peer}: put is refused")), "{line}");
    let lines = server.stop();
    for (act, times) in [("undrain from", 2), (" drain from", 1)] {
        assert_eq!(lines.iter().filter(|line| line.contains(act)).count(), times, "{act}: {lines:#?}");
    }
}

#[test]
fn a_restart_in_place() {
    let server = Server::start(&["-b", "DIR"]);
    server.wait_for("ready");
    let before = server.lines().len();
    server.signal(Signal::SIGUSR2);
    server.wait_for("restarted in place");
    server.wait_for("recovered 0 jobs");
    let started = Instant::now();
    while server.lines().iter().filter(|line| line.contains("ready after")).count() < 2 {
        assert!(started.elapsed() < PATIENCE, "{:#?}", server.lines());
        thread::sleep(Duration::from_millis(5));
    }
    let lines = server.stop();
    check_for_people(&lines);
    let messages = messages(&lines[before..]);
    for (line, expected) in messages.iter().zip([
        "INFO SIGUSRN from process N of user N: restart requested",
        "INFO preflight check of /",
        "INFO the preflight check has passed: the server stops and restarts in place",
        "INFO restarting in place after N s of uptime: executing /",
        "INFO beanring N.N.N (pid N), restarted in place",
        "INFO I/O driver: epoll",
        "INFO job log: recovered N jobs from /",
    ]) {
        assert!(line.starts_with(expected), "{expected}: {line}");
    }
}

#[test]
fn what_each_level_adds() {
    for (level, has_start, has_connections, has_commands) in [
        ("error", false, false, false),
        ("warn", false, false, false),
        ("info", true, false, false),
        ("debug", true, true, false),
        ("trace", true, true, true),
    ] {
        let address = format!("127.0.0.1:{}", free_port());
        let port = address.rsplit_once(':').expect("a port").1;
        let server = Server::start(&["-p", port, "--log-level", level, "-c"]);
        let started = Instant::now();
        let mut client = loop {
            match TcpStream::connect(&address) {
                Ok(client) => break client,
                Err(error) => assert!(started.elapsed() < PATIENCE, "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(ask(&mut client, "put 0 0 60 1\r\nx\r\n"), "INSERTED 1\r\n");
        let peer = client.local_addr().expect("an address");
        drop(client);
        let lines = server.stop();
        check_for_people(&lines);
        let has = |text: &str| lines.iter().any(|line| line.contains(text));
        assert_eq!(has(" WARN -c: this flag has no effect"), level != "error", "{lines:#?}");
        assert_eq!(has(" INFO listening on "), has_start, "{lines:#?}");
        assert_eq!(
            has(&format!("DEBUG connection opened conn=1 peer={peer}")),
            has_connections,
            "{lines:#?}"
        );
        assert_eq!(has("TRACE command: put 0 0 60 1 conn=1"), has_commands, "{lines:#?}");
        assert_eq!(has("TRACE reply: INSERTED 1 conn=1 job=1"), has_commands, "{lines:#?}");
    }
}

/// What beanstalkd shows with `-VV`: the lines of a conversation, in order. Bodies are not shown, and control characters are
/// escaped.
#[test]
fn each_command_line_and_each_reply_line_is_traced() {
    let server = Server::start(&["-VV"]);
    let talk = |commands: &str| {
        let mut client = server.connect();
        client.write_all(format!("{commands}quit\r\n").as_bytes()).expect("the connection is open");
        let mut replies = String::new();
        client.read_to_string(&mut replies).expect("replies");
        replies
    };
    let too_long = "x".repeat(300);
    let first =
        format!("put 0 0 60 6\r\nsecret\r\nreserve\r\na\u{1b}[2J\u{e9}\r\nlist-tubes\r\n{too_long}\r\n");
    assert!(talk(&first).contains("\r\nsecret\r\n"));
    talk("delete 9\r\nwatch other\r\nignore default\r\nreserve-with-timeout 0\r\n");
    let lines = server.stop();
    check_for_people(&lines);
    let traced: Vec<&str> =
        lines.iter().filter_map(|line| line.split_once(" TRACE ")).map(|line| line.1).collect();
    assert_eq!(
        traced,
        [
            "command: put 0 0 60 6 conn=1",
            "reply: INSERTED 1 conn=1 job=1",
            "command: reserve conn=1",
            "reply: RESERVED 1 6 conn=1 job=1",
            "command: a\\x1b[2J\\xc3\\xa9 conn=1",
            "reply: UNKNOWN_COMMAND conn=1",
            "command: list-tubes conn=1",
            "reply: OK 14 conn=1",
            "command: the line is longer than any command conn=1",
            "reply: BAD_FORMAT conn=1",
            "command: quit conn=1",
            "command: delete 9 conn=2",
            "reply: NOT_FOUND conn=2",
            "command: watch other conn=2",
            "reply: WATCHING 2 conn=2",
            "command: ignore default conn=2",
            "reply: WATCHING 1 conn=2",
            "command: reserve-with-timeout 0 conn=2",
            "reply: TIMED_OUT conn=2",
            "command: quit conn=2",
        ]
    );
}

#[test]
fn a_connection_number_is_not_used_twice() {
    let server = Server::start(&["-V", "--http", "127.0.0.1:0"]);
    for number in 1..=3 {
        drop(server.connect());
        server.wait_for(&format!("connection closed conn={number}"));
    }
    let lines = server.stop();
    assert_eq!(lines.iter().filter(|line| line.contains("connection opened")).count(), 3, "{lines:#?}");
}

#[test]
fn a_connection_for_http_is_marked() {
    let server = Server::start(&["-V", "--http", "127.0.0.1:0"]);
    drop(server.connect());
    server.wait_for("connection closed conn=1");
    let line = server.wait_for("serving the console on http://");
    let address =
        line.split_once("http://").and_then(|(_, rest)| rest.split_once("/,")).expect("an address").0;
    drop(TcpStream::connect(address).expect("the server accepts connections"));
    server.wait_for("connection closed conn=2");
    let lines = server.stop();
    for (conn, is_http) in [("conn=1 ", false), ("conn=2 ", true)] {
        let line = lines.iter().find(|line| line.contains("connection opened") && line.contains(conn));
        assert_eq!(line.expect("a line").contains("protocol=http"), is_http, "{lines:#?}");
    }
}

#[test]
fn the_end_of_a_pause_of_accept_is_logged() {
    let server = Server::start(&["-V", "--max-connections", "2"]);
    let mut clients: Vec<_> = (0..2).map(|_| server.connect()).collect();
    server.wait_for("WARN accept is paused, new connections wait in the listen backlog: --max-connections 2");
    assert!(!server.lines().iter().any(|line| line.contains("accept goes on")));
    clients.iter_mut().for_each(|client| assert_eq!(ask(client, "list-tube-used\r\n"), "USING default\r\n"));
    drop(clients);
    // A connection that comes between the two ends pauses accept again.
    for number in 1..=2 {
        server.wait_for(&format!("connection closed conn={number}"));
    }
    ask(&mut server.connect(), "list-tube-used\r\n");
    server.wait_for("INFO accept goes on: connections are accepted again");
    server.stop();
}

#[test]
fn a_request_of_another_protocol_is_logged_with_the_address() {
    for driver in Driver::ALL.iter().filter(|&&driver| driver::is_allowed(driver, "a foreign request")) {
        let server = Server::start(&["--io", driver.name()]);
        let mut client = server.connect();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("the connection is open");
        let peer = client.local_addr().expect("an address");
        let line = server.wait_for("an HTTP request");
        let expected = format!(
            "closed the connection from {peer}, which began with an HTTP request: the port is for beanstalk clients"
        );
        assert!(line.ends_with(&expected), "{line}");
        for _ in 0..2 {
            let mut client = server.connect();
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("the connection is open");
            let _ = client.read_to_end(&mut Vec::new());
        }
        assert_eq!(ask(&mut server.connect(), "undrain\r\n"), "NOT_DRAINING\r\n");
        let lines = server.stop();
        let left_out =
            "WARN warnings that were not logged since the last such line: 2 (a request of another protocol)";
        assert!(lines.iter().any(|line| line.ends_with(left_out)), "{lines:#?}");
    }
}

#[test]
fn a_closed_connection_has_a_reason() {
    for driver in Driver::ALL.iter().filter(|&&driver| driver::is_allowed(driver, "closed connections")) {
        let server = Server::start(&["--io", driver.name(), "-V"]);
        let mut quits = server.connect();
        quits.write_all(b"quit\r\n").expect("the connection is open");
        server.wait_for("connection closed conn=1 reason=server");
        drop(server.connect());
        server.wait_for("connection closed conn=2 reason=client");
        let mut resets = server.connect();
        assert_eq!(ask(&mut resets, "undrain\r\n"), "NOT_DRAINING\r\n");
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&resets, sockopt::Linger, &at_once).expect("it is a socket");
        drop(resets);
        server.wait_for("connection closed conn=3 reason=broken");
        server.stop();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("an address").port()
}

#[test]
fn json_is_one_object_per_line_with_numbers_as_numbers() {
    let server = Server::start(&["--log-format", "json", "-VV", "-b", "DIR"]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "put 0 0 60 1\r\nx\r\n"), "INSERTED 1\r\n");
    assert_eq!(ask(&mut client, "nonsense\r\n"), "UNKNOWN_COMMAND\r\n");
    drop(client);
    server.wait_for("connection closed");
    let lines = server.stop();
    let objects: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    for (object, line) in objects.iter().zip(&lines) {
        for key in ["timestamp", "level", "message"] {
            assert!(object[key].is_string(), "{key}: {line}");
        }
    }
    let find = |message: &str| {
        let is_it = |object: &&serde_json::Value| {
            object["message"].as_str().is_some_and(|text| text.starts_with(message))
        };
        objects.iter().find(is_it).unwrap_or_else(|| panic!("{message}: {lines:#?}"))
    };
    assert_eq!(find("connection opened")["conn"], 1);
    assert!(find("connection opened")["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")));
    assert_eq!(find("reply: INSERTED 1")["job"], 1);
    assert!(find("reply: UNKNOWN_COMMAND")["job"].is_null());
    assert!(find("ready after")["duration_ms"].is_u64());
    assert_eq!(find("connection closed")["level"], "DEBUG");
}

#[test]
fn a_thousand_connections_add_no_line() {
    let server = Server::start(&[]);
    server.wait_for("ready");
    let before = server.lines().len();
    for _ in 0..1000 {
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "nonsense\r\n"), "UNKNOWN_COMMAND\r\n");
    }
    let lines = server.stop();
    assert_eq!(messages(&lines[before..]), STOP);
}

/// A terminal that closes sends SIGHUP.
#[test]
fn a_hangup_stops_the_server_in_order_and_nohup_prevents_it() {
    // The tests may have been started by nohup themselves.
    let mut server = Server::start_with(&["-b", "DIR"], |command, _| {
        let plain = std::mem::replace(command, Command::new("env"));
        command.arg("--default-signal=HUP").arg(plain.get_program()).args(plain.get_args());
    });
    server.wait_for("ready");
    server.signal(Signal::SIGHUP);
    assert!(server.child.wait().expect("the child is ours").success());
    let line = server.wait_for("stopping");
    assert!(line.contains(&format!("INFO SIGHUP from process {} of user ", std::process::id())), "{line}");
    server.wait_for("stopped after");

    let server = Server::start_with(&[], |command, _| {
        let plain = std::mem::replace(command, Command::new("nohup"));
        command.arg(plain.get_program()).args(plain.get_args()).stdout(Stdio::null());
    });
    server.wait_for("ready");
    server.signal(Signal::SIGHUP);
    assert_eq!(ask(&mut server.connect(), "undrain\r\n"), "NOT_DRAINING\r\n");
    let lines = server.stop();
    assert!(!lines.iter().any(|line| line.contains("SIGHUP")), "{lines:#?}");
}

/// The journal has the time of each line, and takes its priority from the front.
#[test]
fn lines_for_the_journal_have_a_priority_and_no_time() {
    let server = Server::start_with(&["-c", "-V"], |command, log| {
        let log = log.metadata().expect("the file is open");
        command.env("JOURNAL_STREAM", format!("{}:{}", log.dev(), log.ino()));
    });
    drop(server.connect());
    server.wait_for("connection closed");
    let lines = server.stop();
    let has = |begin: &str| lines.iter().any(|line| line.starts_with(begin));
    for begin in [
        "<6> INFO beanring ",
        "<4> WARN -c: this flag has no effect",
        "<7>DEBUG connection opened conn=1 peer=127.",
    ] {
        assert!(has(begin), "{begin}: {lines:#?}");
    }
    let mut refused = Server::start_with(&["-u", "no such user"], |command, log| {
        let log = log.metadata().expect("the file is open");
        command.env("JOURNAL_STREAM", format!("{}:{}", log.dev(), log.ino()));
    });
    assert_eq!(refused.child.wait().expect("the child is ours").code(), Some(2));
    let why = "-u/--user \"no such user\": no such user; create it, or correct the name";
    assert_eq!(refused.lines(), [format!("<3>ERROR {why}")]);
    // A stderr that is redirected is another file.
    let server = Server::start_with(&[], |command, _| _ = command.env("JOURNAL_STREAM", "1:2"));
    server.wait_for("ready");
    messages(&server.stop());
}

/// This program panics as a server would, if a variable tells it to.
#[test]
fn a_panic_is_an_error_line() {
    const PANICS: &str = "BEANRING_TEST_PANICS";
    const NAME: &str = "logging::a_panic_is_an_error_line";
    if env::var_os(PANICS).is_some() {
        logging::to_stderr(LevelFilter::INFO, LogFormat::Text);
        assert_eq!(1 + 1, 3, "jobs are\ncounted");
    }
    let program = env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let output =
        command.args([NAME, "--exact", "--nocapture"]).env(PANICS, "1").env("RUST_BACKTRACE", "0").output();
    let output = output.expect("it runs");
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).expect("it is text");
    let lines: Vec<String> = text.lines().filter(|line| line.contains("bug:")).map(str::to_owned).collect();
    let expected = "ERROR bug: the server cannot continue at tests/process/logging.rs:N:N: assertion `left == right` failed: jobs are \
                    counted left: N right: N; please report this line";
    assert_eq!(messages(&lines), [expected], "{text}");
}

#[test]
fn a_server_that_cannot_continue_says_so_last() {
    let mut server = Server::start(&["-b", "DIR", "-f", "0"]);
    assert_eq!(ask(&mut server.connect(), "put 0 0 60 1\r\nx\r\n"), "INSERTED 1\r\n");
    let dir = server.scratch.0.join("log");
    server.end();
    let segment = dir.join("log.0000000000000001");
    let mut bytes = fs::read(&segment).expect("a segment");
    let at = bytes.windows(7).position(|window| window == b"default").expect("the job names its tube");
    bytes[at] ^= 1;
    fs::write(&segment, bytes).expect("a segment");
    let mut refused = Server::start(&["-b", &dir.display().to_string()]);
    assert_eq!(refused.child.wait().expect("the child is ours").code(), Some(1));
    let lines = refused.lines();
    check_for_people(&lines);
    assert!(lines.last().is_some_and(|last| last.contains("\": the job log is damaged: ")), "{lines:#?}");
}
