//! The server as a process: flags, exit codes, signals, sockets, descriptors.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::signals::mask_has;

/// How long an expected event may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. It is killed if the test does not stop it.
struct Server {
    child: Child,
    address: String,
    log: Receiver<String>,
}

impl Server {
    /// Starts a server on a port that the system chooses.
    fn start(arguments: &[&str]) -> Self {
        Self::spawn(beanring(&["-V", "-l", "127.0.0.1", "-p", "0"]).args(arguments))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (lines, log) = channel();
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        let mut server = Self { child, address: String::new(), log };
        let line = server.logged("listening on ");
        server.address = line.split(' ').next_back().unwrap().to_owned();
        server
    }

    /// Waits for the next log line that contains `part`, and returns it.
    fn logged(&self, part: &str) -> String {
        let mut seen = String::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen += &(line + "\n"),
                Err(error) => panic!("{error}: no {part:?} in the log:\n{seen}"),
            }
        }
    }

    /// Counts the log lines with `part` since the last call.
    fn count_logged(&self, part: &str) -> usize {
        self.log.try_iter().filter(|line| line.contains(part)).count()
    }

    fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn stop(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client<S> {
    stream: S,
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, text: &str) -> &mut Self {
        self.stream.write_all(text.as_bytes()).unwrap();
        self
    }

    fn expect(&mut self, text: &str) -> &mut Self {
        let mut received = vec![0; text.len()];
        self.stream.read_exact(&mut received).unwrap();
        assert_eq!(String::from_utf8_lossy(&received), text);
        self
    }

    /// Receives the body of an `OK` reply.
    fn receive_body(&mut self) -> String {
        self.expect("OK ");
        let mut digits = String::new();
        let mut byte = [0];
        while byte != *b"\n" {
            self.stream.read_exact(&mut byte).unwrap();
            digits.push(char::from(byte[0]));
        }
        let mut body = vec![0; digits.trim().parse().unwrap()];
        self.stream.read_exact(&mut body).unwrap();
        self.expect("\r\n");
        String::from_utf8(body).unwrap()
    }

    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }
}

fn beanring(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("BEANRING_") && name != "BEANRING_IO")
    {
        command.env_remove(name);
    }
    command
}

/// Returns a shell that runs `script` with the path of the server as `$0`.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, program()]).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    beanring(arguments).output().unwrap()
}

/// Returns the path of a socket in a scratch directory.
fn socket(scratch: &Scratch) -> String {
    scratch.join("socket").to_str().unwrap().to_owned()
}

#[test]
fn version_and_help_are_printed() {
    for flag in ["-v", "--version"] {
        let output = output(&[flag]);
        assert!(output.status.success());
        assert_eq!(output.stdout, b"beanring 0.1.0\n");
    }
    for flag in ["-h", "--help"] {
        let output = output(&[flag]);
        assert!(output.status.success());
        let help = String::from_utf8(output.stdout).unwrap();
        for name in [
            "--max-memory",
            "--max-connections",
            "--listen",
            "--port",
            "--wal-dir",
            "--sync-interval",
            "--no-sync",
            "--wal-segment-size",
        ] {
            assert!(help.contains(name), "{name}");
        }
    }
}

#[test]
fn an_unusable_argument_is_an_error_of_one_line() {
    let scratch = Scratch::new("refused");
    let file = socket(&scratch);
    fs::write(&file, "precious").unwrap();
    let unix = format!("unix:{file}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();

    let check = |code: i32, arguments: &[&str], expected: &str| {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("beanring: {expected}\n"));
        assert!(output.stdout.is_empty());
    };
    check(
        2,
        &["-l", "127.0.0.1", "-p", "0", "-b", "/no/such"],
        "-b/--wal-dir \"/no/such\": no such directory; create it first",
    );
    let other = scratch.0.join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("photo.jpg"), b"precious").unwrap();
    let other = other.to_str().unwrap();
    check(
        2,
        &["-l", "127.0.0.1", "-p", "0", "-b", other],
        &format!(
            "-b/--wal-dir \"{other}\": the directory contains \"photo.jpg\" and no job log; choose an empty directory"
        ),
    );
    #[cfg(feature = "replicate")]
    check(
        2,
        &["-l", "127.0.0.1", "-p", "0", "--replicate", "db.example/queue"],
        "--replicate: the URL must begin with postgres://",
    );
    check(
        1,
        &["-l", "no-such-host.invalid"],
        "-l/--listen: cannot listen on no-such-host.invalid:11300: no such host; correct the name, or check DNS",
    );
    check(
        1,
        &["-l", "192.0.2.1"],
        "-l/--listen: cannot listen on 192.0.2.1:11300: this machine does not have the address; use one of its own (ip addr), or \
         0.0.0.0 for all of IPv4",
    );
    check(
        1,
        &["-l", "127.0.0.1", "-p", &port],
        &format!(
            "-l/--listen and -p/--port: cannot listen on 127.0.0.1:{port}: the address is in use; stop the other server, or choose another port"
        ),
    );
    check(
        2,
        &["-l", &unix],
        &format!(
            "-l/--listen: cannot listen on {unix}: the path is a file and not a socket; remove the file, or choose another path"
        ),
    );
    check(
        2,
        &["-l", "127.0.0.1", "-p", "0", "-u", "no such user"],
        "-u/--user \"no such user\": no such user; create it, or correct the name",
    );
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert_eq!(output(&["-q"]).status.code(), Some(2));
}

#[test]
fn an_unknown_driver_is_an_error() {
    let nonsense = output(&["--io", "nonsense"]);
    assert_eq!(nonsense.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nonsense.stderr).contains("nonsense"));

    if cfg!(not(feature = "tokio-uring")) {
        let not_built = output(&["-l", "127.0.0.1", "-p", "0", "--io", "tokio-uring"]);
        assert_eq!(not_built.status.code(), Some(2));
        assert_eq!(
            String::from_utf8_lossy(&not_built.stderr),
            "beanring: --io tokio-uring: this program was built without the feature \"tokio-uring\"; --io epoll works on \
             any kernel\n"
        );
    }
}

#[test]
fn flags_of_older_servers_are_ignored_with_a_warning() {
    let server = Server::start(&["-c", "-n", "-f0", "-F", "-s", "4096"]);
    server.connect().send("list-tube-used\r\n").expect("USING default\r\n");

    let mut command = beanring(&["-l", "127.0.0.1", "-p0", "-V", "-c", "-z", "1073741825", "-s", "1k"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = lines.filter(|line| line.contains(" WARN "));
    assert!(lines.next().unwrap().ends_with("WARN -c: this flag has no effect any more; remove it"));
    assert!(lines.next().unwrap().ends_with("below the minimum of 64k; the server uses 64k"));
    assert!(lines.next().unwrap().ends_with("above the maximum of 1g; the server uses 1g"));
    assert!(
        lines
            .next()
            .unwrap()
            .ends_with("-s/--wal-segment-size has no effect without -b/--wal-dir; remove it, or set -b")
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn variables_set_what_the_command_line_leaves_out() {
    let mut command = beanring(&["-z", "10"]);
    command.env("BEANRING_LISTEN", "127.0.0.1").env("BEANRING_PORT", "0").env("BEANRING_VERBOSE", "1");
    let server = Server::spawn(command.env("BEANRING_MAX_JOB_SIZE", "5").env("BEANRING_NO_SYNC", "1"));
    server.connect().send("put 0 0 1 10\r\n0123456789\r\n").expect("INSERTED 1\r\n");
}

#[test]
fn arguments_override_variables_and_empty_variables_are_ignored() {
    let is_good = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = beanring(&[arguments, &["--check-config"]].concat());
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{arguments:?} {variables:?}: {output:?}");
    };
    let (no_sync, interval) = (("BEANRING_NO_SYNC", "1"), ("BEANRING_SYNC_INTERVAL", "50"));
    for arguments in [&[][..], &["-f", "0"], &["-F"]] {
        for variables in [&[no_sync][..], &[interval], &[("BEANRING_NO_SYNC", "0"), interval]] {
            is_good(arguments, variables);
        }
    }
    let names = ["LISTEN", "PORT", "LOG_DIR", "SYNC_INTERVAL", "NO_SYNC", "USER", "IO", "HTTP", "VERBOSE"];
    let names = names.map(|name| format!("BEANRING_{name}"));
    is_good(&[], &names.each_ref().map(|name| (&**name, "")));
}

#[test]
fn the_configuration_check_fails_if_the_server_could_not_start() {
    let scratch = Scratch::new("rehearsed");
    let (file, dir) = (socket(&scratch), scratch.0.display().to_string());
    fs::write(&file, "precious").unwrap();
    let long = format!("unix:/{}", "x".repeat(108));
    for (arguments, why) in [
        (["-u", "no such user"], "-u/--user \"no such user\": no such user; create it, or correct the name"),
        (["-b", &dir], "and no job log; choose an empty directory"),
        (["-b", "/nowhere"], "no such directory"),
        (["-l", "no host"], "must be an IP address, a host name or unix:PATH"),
        (["-l", "unix:/nowhere/socket"], "the directory of the socket is missing; create it first"),
        (["--http", &long], "the path of a UNIX socket has at most 107 bytes"),
        (["--http", "::1"], "must be PORT, HOST:PORT, [IPV6]:PORT or unix:PATH"),
    ] {
        let output = output(&[&arguments[..], &["--check-config"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
        assert!(said.starts_with("beanring: ") && said.contains(why), "{arguments:?}: {said}");
    }
}

#[test]
fn the_configuration_check_prints_the_warnings_of_a_start() {
    let scratch = Scratch::new("warned");
    let token = scratch.join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let token = token.display().to_string();
    let flags = [
        "-p",
        "0",
        "-f",
        "9",
        "--max-memory",
        "16m",
        "--max-connections",
        "4000000000",
        "--http",
        "127.0.0.1:0",
    ];
    let output = output(&[&flags[..], &["--http-token", &token, "--check-config"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    for (line, expected) in lines.iter().zip([
        "beanring: -f/--sync-interval has no effect without -b/--wal-dir",
        "beanring: --http-token ",
        "beanring: --max-connections 4000000000: the limit of ",
        "beanring: other machines may connect to 0.0.0.0:0, and whoever does may ",
    ]) {
        assert!(line.starts_with(expected), "{said}");
    }
    assert_eq!((output.status.code(), lines.len()), (Some(0), 4), "{said}");
}

#[test]
fn json_logs_contain_nothing_but_json() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = output(&["--log-format", "json", "-l", "127.0.0.1", "-p", &port]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = lines.last().unwrap();
    let why = format!(
        "-l/--listen and -p/--port: cannot listen on 127.0.0.1:{port}: the address is in use; stop the other server, or choose another port"
    );
    assert_eq!((&last["level"], &last["message"]), (&"ERROR".into(), &why.into()));
}

#[test]
fn the_server_logs_no_warning_without_a_cause() {
    let mut child = beanring(&["-l", "127.0.0.1", "-p", "0", "--log-level", "warn"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // From here on a signal stops the server cleanly.
    wait_until(|| mask_has(child.id(), "SigBlk:", Signal::SIGTERM));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

#[test]
fn a_signal_stops_the_server_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let server = Server::start(&[]);
        let mut client = server.connect();
        client.send("list-tube-used\r\n").expect("USING default\r\n");
        assert_eq!(server.stop(signal).code(), Some(0));
        client.expect_end();
    }
}

#[test]
fn a_signal_stops_the_server_cleanly_as_pid_1() {
    let mut in_namespace = vec!["--pid", "--fork", "--kill-child"];
    if !nix::unistd::geteuid().is_root() {
        in_namespace.extend(["--user", "--map-root-user"]);
    }
    let possible = Command::new("unshare").args(&in_namespace).arg("true").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no PID namespaces here");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(&in_namespace).args([program(), "-V", "-l", "127.0.0.1", "-p", "0"]);
    let mut server = Server::spawn(&mut command);
    let unshare = server.child.id();
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
    kill(Pid::from_raw(children.trim().parse().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn sigpipe_is_ignored() {
    let server = Server::start(&[]);
    assert!(mask_has(server.child.id(), "SigIgn:", Signal::SIGPIPE));
}

#[test]
fn sigusr1_starts_draining() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send("put 0 0 1 1\r\na\r\n").expect("INSERTED 1\r\n");
    server.signal(Signal::SIGUSR1);
    wait_until(|| {
        client.send("stats\r\n");
        client.receive_body().contains("\ndraining: true\n")
    });
    client.send("put 0 0 1 1\r\na\r\n").expect("DRAINING\r\n");
    server.connect().send("put 0 0 1 1\r\na\r\n").expect("DRAINING\r\n");
}

#[test]
fn the_server_listens_on_a_unix_socket() {
    let scratch = Scratch::new("unix");
    let path = socket(&scratch);
    let server = Server::spawn(&mut beanring(&["-V", "-l", &format!("unix:{path}")]));
    let mut client = Client { stream: UnixStream::connect(&path).unwrap() };
    client.send("list-tube-used\r\n").expect("USING default\r\n");

    let second = output(&["-l", &format!("unix:{path}")]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains(": another server listens there; stop it"));

    assert!(server.stop(Signal::SIGTERM).success());
    assert!(!fs::exists(&path).unwrap());
}

#[test]
fn a_socket_file_left_by_a_crash_is_replaced() {
    let scratch = Scratch::new("crash");
    let path = socket(&scratch);
    let start = || Server::spawn(&mut beanring(&["-V", "-l", &format!("unix:{path}")]));
    start().stop(Signal::SIGKILL);
    assert!(fs::exists(&path).unwrap());
    let _server = start();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn the_server_listens_on_ipv6() {
    let server = Server::start(&["-l", "::1"]);
    assert!(server.address.starts_with("[::1]:"));
    server.connect().send("list-tube-used\r\n").expect("USING default\r\n");
}

#[test]
fn socket_activation_passes_a_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut command = shell("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" -V -p 1");
    let server = Server::spawn(command.stdin(OwnedFd::from(listener)));
    assert_eq!(server.address, address);
    server.connect().send("list-tube-used\r\n").expect("USING default\r\n");
}

#[test]
fn socket_activation_refuses_anything_but_a_listener() {
    for three in ["3</dev/null", "3<&-"] {
        let script = format!("exec {three}; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\"");
        let output = shell(&script).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "beanring: LISTEN_FDS: descriptor 3 is not a listening stream socket\n"
        );
    }
}

#[test]
fn sockets_passed_to_another_process_are_ignored() {
    let script = "LISTEN_PID=1 LISTEN_FDS=1 exec \"$0\" -V -l 127.0.0.1 -p 0";
    Server::spawn(&mut shell(script)).connect().send("list-tube-used\r\n").expect("USING default\r\n");
}

#[test]
fn privileges_are_dropped_to_another_user() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let server = Server::start(&["-u", "nobody"]);
    server.connect().send("list-tube-used\r\n").expect("USING default\r\n");
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    for (name, id) in [("Uid:", nobody.uid.as_raw()), ("Gid:", nobody.gid.as_raw())] {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line, format!("{name}\t{id}\t{id}\t{id}\t{id}"));
    }
}

#[test]
fn the_descriptor_limit_is_raised_to_the_hard_limit() {
    let script = "ulimit -H -n 200; ulimit -S -n 50; exec \"$0\" -V -l 127.0.0.1 -p 0";
    let server = Server::spawn(&mut shell(script));
    let mut clients: Vec<_> = (0..100).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("list-tube-used\r\n").expect("USING default\r\n");
    }
}

#[test]
fn a_connection_limit_above_the_descriptor_limit_is_logged() {
    let first_line = |most: u32| {
        let script = format!("ulimit -n 100; exec \"$0\" -V -l 127.0.0.1 -p 0 --max-connections {most}");
        let mut child = shell(&script).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains(" WARN ") || line.contains("listening")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        line
    };
    let line = first_line(69);
    let expected = "--max-connections 69: the limit of 100 open files leaves room for about 68;";
    assert!(line.contains(expected), "{line}");
    let line = first_line(68);
    assert!(line.contains("listening"), "{line}");

    for limit in [8, 16, 32] {
        let output = shell(&format!("ulimit -n {limit}; exec \"$0\" -l 127.0.0.1 -p 0")).output().unwrap();
        let error = format!(
            "beanring: the limit of {limit} open files leaves no room for a connection; raise it to 1024 or more"
        );
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && said.starts_with(&error) && said.lines().count() == 1,
            "{said}"
        );
    }
}

#[test]
fn new_connections_wait_when_descriptors_run_out() {
    const LIMIT: usize = 40;
    let script = format!("ulimit -n {LIMIT}; exec \"$0\" -V -l 127.0.0.1 -p 0");
    let server = Server::spawn(&mut shell(&script));
    let mut first = server.connect();
    first.send("list-tube-used\r\n").expect("USING default\r\n");
    let mut others: Vec<_> = (0..LIMIT).map(|_| server.connect()).collect();
    others.iter_mut().for_each(|client| {
        client.send("list-tube-used\r\n");
    });
    server.logged("new connections wait in the listen backlog: Too many open files");
    first.send("list-tube-used\r\n").expect("USING default\r\n");
    thread::sleep(Duration::from_millis(1500));
    assert!(server.count_logged("accept is paused") <= 2);

    // Each connection that closes makes room for one in the backlog.
    for mut client in others {
        client.expect("USING default\r\n");
    }
    first.send("list-tube-used\r\n").expect("USING default\r\n");
}

#[test]
fn commands_before_a_half_close_are_answered() {
    const BODY_BYTES: usize = 4000;
    const PEEKS: usize = 6_000;
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send(&format!("put 0 0 1 {BODY_BYTES}\r\n{}\r\n", "x".repeat(BODY_BYTES)));
    client.expect("INSERTED 1\r\n");
    // More output than the sockets buffer, and more input than the inbox keeps: the server stops receiving before the last
    // commands and the end.
    client.send(&format!("peek {:0200}\r\n", 1).repeat(PEEKS));
    client.stream.shutdown(Shutdown::Write).unwrap();
    thread::sleep(Duration::from_millis(200));
    let reply = format!("FOUND 1 {BODY_BYTES}\r\n{}\r\n", "x".repeat(BODY_BYTES));
    for _ in 0..PEEKS {
        client.expect(&reply);
    }
    client.expect_end();
}

/// The server stops receiving within the second body, when the end of input has already arrived.
#[test]
fn large_bodies_before_a_half_close_are_queued_and_answered() {
    const LARGE_BYTES: usize = 300_000;
    let server = Server::start(&["-z", "10000000"]);
    for pause in [0, 200] {
        let mut client = server.connect();
        let (large, body) = ("x".repeat(LARGE_BYTES), "y".repeat(100_000));
        client.send(&format!("use t{pause}\r\nput 0 0 1 {LARGE_BYTES}\r\n{large}\r\n"));
        client.expect(&format!("USING t{pause}\r\nINSERTED {}\r\n", 1 + pause / 100));
        let last = format!("put 0 0 1 100000\r\n{body}\r\n");
        client.send(&["peek-ready\r\n".repeat(5), last].concat());
        client.stream.shutdown(Shutdown::Write).unwrap();
        thread::sleep(Duration::from_millis(pause));
        let reply = format!("FOUND {} {LARGE_BYTES}\r\n{large}\r\n", 1 + pause / 100);
        client.expect(&reply.repeat(5)).expect(&format!("INSERTED {}\r\n", 2 + pause / 100)).expect_end();
    }
}

#[test]
fn a_half_close_ends_the_wait_of_a_client() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send("reserve-with-timeout 1000\r\n");
    client.stream.shutdown(Shutdown::Write).unwrap();
    client.expect("TIMED_OUT\r\n").expect_end();
}

#[test]
fn a_half_close_behind_unread_input_ends_the_wait_of_a_client() {
    const COMMANDS: usize = 6_000;
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send("reserve-with-timeout 1000\r\n");
    // More than the inbox of a waiting client keeps, but no more than the socket buffers.
    client.send(&"list-tube-used\r\n".repeat(COMMANDS));
    thread::sleep(Duration::from_millis(200));
    client.stream.shutdown(Shutdown::Write).unwrap();
    client.expect("TIMED_OUT\r\n").expect(&"USING default\r\n".repeat(COMMANDS)).expect_end();
}

#[test]
fn verbose_logs_show_connections() {
    let server = Server::start(&[]);
    let client = server.connect();
    let peer = client.stream.local_addr().unwrap().to_string();
    server.logged(&peer);
    drop(client);
    server.logged("connection closed");
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 10 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not come about");
}

#[test]
fn closing_a_request_of_another_protocol_is_logged() {
    let server = Server::start(&[]);
    let mut browser = server.connect();
    browser.send("POST / HTTP/1.1\r\nHost: a\r\n\r\nput 0 0 60 1\r\nx\r\n");
    browser.expect_end();
    let line = server.logged("WARN");
    assert!(line.contains("began with an HTTP request"), "{line}");
    server.connect().send("peek-ready\r\n").expect("NOT_FOUND\r\n");
    let server = Server::start(&["--allow-foreign-protocols"]);
    server.connect().send("GET / HTTP/1.1\r\n").expect("UNKNOWN_COMMAND\r\n");
}
