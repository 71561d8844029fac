//! The server as a process: flags, exit codes, signals, sockets, descriptors.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::client::{Client, put, serve_under};
use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, page};
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{REPLY_PATIENCE, Transport, beanring, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::signals::mask_has;
use beanring_testkit::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const USED: &str = "list-tube-used\r\n";
const USING: &str = "USING default";

fn start(arguments: &[&str]) -> LoggedServer {
    LoggedServer::start(&[&["-V"], arguments].concat())
}

/// Starts a shell that runs `script` with the path of the server as `$0`.
fn start_by(script: &str) -> LoggedServer {
    LoggedServer::spawn(shell(script), Scratch::new("process")).listening()
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, program()]).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    beanring(arguments).output().unwrap()
}

fn socket(scratch: &Scratch) -> String {
    format!("unix:{}", scratch.join("socket").display())
}

#[cfg(not(feature = "tokio-uring"))]
#[test]
fn a_driver_that_is_not_built_is_an_error() {
    let output = output(&["-l", "127.0.0.1", "-p", "0", "--io", "tokio-uring"]);
    let expected = "beanring: --io tokio-uring: this program was built without the feature \"tokio-uring\"; --io epoll works \
                    on any kernel\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(2), expected));
}

#[test]
fn flags_of_older_servers_are_ignored_with_a_warning() {
    start(&["-c", "-n", "-f0", "-F", "-s", "4096"]).client().expect(USED, USING);
    let server = start(&["-c", "-z", "1073741825", "-s", "1k"]);
    for warning in [
        "-c: this flag has no effect any more; remove it",
        "below the minimum of 64k; the server uses 64k",
        "above the maximum of 1g; the server uses 1g",
        "-s/--wal-segment-size has no effect without -b/--wal-dir; remove it, or set -b",
    ] {
        let line = server.logged(" WARN ");
        assert!(line.ends_with(warning), "{line}");
    }
}

#[test]
fn variables_set_what_the_command_line_leaves_out() {
    let mut command = beanring(&["-z", "10"]);
    for (name, value) in
        [("LISTEN", "127.0.0.1"), ("PORT", "0"), ("VERBOSE", "1"), ("MAX_JOB_SIZE", "5"), ("NO_SYNC", "1")]
    {
        command.env(format!("BEANRING_{name}"), value);
    }
    let server = LoggedServer::spawn(command, Scratch::new("variables")).listening();
    server.client().expect(&put(0, 0, "0123456789"), "INSERTED 1");
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
    let names = ["LISTEN", "PORT", "WAL_DIR", "SYNC_INTERVAL", "NO_SYNC", "USER", "IO", "HTTP", "VERBOSE"];
    let names = names.map(|name| format!("BEANRING_{name}"));
    is_good(&[], &names.each_ref().map(|name| (&**name, "")));
}

#[test]
fn the_configuration_check_prints_the_warnings_of_a_start() {
    let scratch = Scratch::new("warned");
    let token = scratch.join("token");
    fs::write(&token, "0123456789abcdef").unwrap();
    let flags = "-p 0 -f 9 --max-memory 16m --max-connections 4000000000 --http 127.0.0.1:0 --check-config";
    let flags: Vec<&str> = flags.split(' ').chain(["--http-token", token.to_str().unwrap()]).collect();
    let output = output(&flags);
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
    let command = beanring(&["-l", "127.0.0.1", "-p", "0", "--log-level", "warn"]);
    let server = LoggedServer::spawn(command, Scratch::new("quiet"));
    // From here on a signal stops the server cleanly.
    wait::until("the signal is blocked", || mask_has(server.pid(), "SigBlk:", Signal::SIGTERM));
    assert_eq!(server.stopped(), Vec::<String>::new());
}

#[test]
fn a_signal_stops_the_server_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = start(&[]);
        let mut client = server.client();
        client.expect(USED, USING);
        server.signal(signal);
        assert_eq!(server.wait(), Some(0));
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
    let mut server = LoggedServer::spawn(command, Scratch::new("pid-1")).listening();
    let unshare = server.pid();
    let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
    kill(Pid::from_raw(children.trim().parse().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn sigpipe_is_ignored() {
    let server = start(&[]);
    assert!(mask_has(server.pid(), "SigIgn:", Signal::SIGPIPE));
}

#[test]
fn the_server_listens_on_a_unix_socket() {
    let scratch = Scratch::new("unix");
    let path = socket(&scratch);
    let server = start(&["-l", &path]);
    server.client().expect(USED, USING);

    let second = output(&["-l", &path]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains(": another server listens there; stop it"));

    server.stopped();
    assert!(!scratch.join("socket").exists());
}

#[test]
fn a_socket_file_left_by_a_crash_is_replaced() {
    let scratch = Scratch::new("crash");
    let path = socket(&scratch);
    let mut crashed = start(&["-l", &path]);
    crashed.signal(Signal::SIGKILL);
    crashed.wait();
    assert!(scratch.join("socket").exists());
    start(&["-l", &path]).client();
}

#[test]
fn the_server_listens_on_ipv6() {
    let server = start(&["-l", "::1"]);
    assert!(server.address().to_string().starts_with("[::1]:"));
    server.client().expect(USED, USING);
}

#[test]
fn socket_activation_passes_a_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut command = shell("exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" -V -p 1");
    command.stdin(OwnedFd::from(listener));
    let server = LoggedServer::spawn(command, Scratch::new("activation")).listening();
    assert_eq!(server.address().to_string(), address);
    server.client().expect(USED, USING);
}

#[test]
fn socket_activation_refuses_anything_but_a_listener() {
    for three in ["3</dev/null", "3<&-"] {
        let output =
            shell(&format!("exec {three}; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\"")).output().unwrap();
        let expected = "beanring: LISTEN_FDS: descriptor 3 is not a listening stream socket\n";
        assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), expected));
    }
}

#[test]
fn sockets_passed_to_another_process_are_ignored() {
    let server = start_by("LISTEN_PID=1 LISTEN_FDS=1 exec \"$0\" -V -l 127.0.0.1 -p 0");
    server.client().expect(USED, USING);
}

#[test]
fn the_descriptor_limit_is_raised_to_the_hard_limit() {
    let server = start_by("ulimit -H -n 200; ulimit -S -n 50; exec \"$0\" -V -l 127.0.0.1 -p 0");
    let mut clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.expect(USED, USING));
}

#[test]
fn a_connection_limit_above_the_descriptor_limit_is_logged() {
    for (flags, expected) in [
        (
            "--max-connections 69",
            "--max-connections 69: the limit of 100 open files leaves room for about 68;",
        ),
        ("--max-connections 68", "listening"),
        // HTTP has its share.
        (
            "--http 0 --max-connections 57",
            "--max-connections 57: the limit of 100 open files leaves room for about 56;",
        ),
        ("--http 0 --max-connections 56", "listening"),
    ] {
        let script = format!("ulimit -n 100; exec \"$0\" -V -l 127.0.0.1 -p 0 {flags}");
        let server = start_by(&script);
        let lines = server.lines();
        let first = lines.iter().find(|line| line.contains(" WARN ") || line.contains("listening")).unwrap();
        assert!(first.contains(expected), "{first}");
    }
    for limit in [8, 16, 32] {
        let output = shell(&format!("ulimit -n {limit}; exec \"$0\" -l 127.0.0.1 -p 0")).output().unwrap();
        let error = format!(
            "beanring: the limit of {limit} open files leaves no room for a connection; raise it to 1024 or more"
        );
        let said = String::from_utf8(output.stderr).unwrap();
        let is_one_line = said.starts_with(&error) && said.lines().count() == 1;
        assert!(output.status.code() == Some(1) && is_one_line, "{said}");
    }
}

#[test]
fn new_connections_wait_when_descriptors_run_out() {
    const LIMIT: usize = 40;
    let server = start_by(&format!("ulimit -n {LIMIT}; exec \"$0\" -V -l 127.0.0.1 -p 0"));
    let mut first = server.client();
    first.expect(USED, USING);
    let mut others: Vec<Client> = (0..LIMIT).map(|_| server.client()).collect();
    others.iter_mut().for_each(|client| client.send(USED));
    server.logged("new connections wait in the listen backlog: Too many open files");
    first.expect(USED, USING);
    thread::sleep(Duration::from_millis(1500));
    assert!(server.count("accept is paused") <= 3);

    // Each connection that closes makes room for one in the backlog.
    for mut client in others {
        client.expect_reply(USING);
    }
    first.expect(USED, USING);
}

/// Clients leave descriptors for HTTP, so a full server answers its probes.
#[test]
fn a_server_full_of_clients_answers_its_probes() {
    for driver in driver::allowed("a server full of clients") {
        let scratch = Scratch::new("full");
        let socket = scratch.join("http");
        let flags = format!("-V -l 127.0.0.1 -p 0 --io {} --http unix:{}", driver.name(), socket.display());
        let server = start_by(&format!("ulimit -n 100; exec \"$0\" {flags}"));
        let _clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
        server.logged("new connections wait in the listen backlog: Too many open files");
        wait::until("the server rests", || server.is_at_rest());
        let mut probes: Vec<HttpClient> = Vec::new();
        for _ in 0..12 {
            let mut probe = HttpClient::unix(&socket);
            let begun = Instant::now();
            assert_eq!(probe.ask(&page("/healthz")).status, 200);
            assert!(begun.elapsed() < REPLY_PATIENCE / 4, "{:?}", begun.elapsed());
            probes.push(probe);
        }
        // They keep nothing from the clients.
        drop(probes);
        assert!(server.count("accept is paused") <= 3);
    }
}

/// HTTP connections that came first have descriptors that a client may have.
#[test]
fn clients_get_the_descriptors_that_connections_over_http_leave() {
    let scratch = Scratch::new("left");
    let socket = scratch.join("http");
    let flags = format!("-V -l 127.0.0.1 -p 0 --http unix:{}", socket.display());
    let server = start_by(&format!("ulimit -n 100; exec \"$0\" {flags}"));
    let mut probes: Vec<HttpClient> = (0..10).map(|_| HttpClient::unix(&socket)).collect();
    probes.iter_mut().for_each(|probe| assert_eq!(probe.ask(&page("/healthz")).status, 200));
    let mut clients = Vec::new();
    while server.count("new connections wait in the listen backlog: Too many open files") == 0 {
        clients.push(server.client());
        server.settle();
    }
    let mut late = server.client();
    late.send(USED);
    assert!(late.is_silent(Duration::from_millis(200)));
    drop(probes);
    // Those before it in the backlog take some.
    late.expect_reply(USING);
}

#[test]
fn commands_before_a_half_close_are_answered() {
    const BODY_BYTES: usize = 4000;
    const PEEKS: usize = 6_000;
    let server = start(&[]);
    let mut client = server.client();
    let body = "x".repeat(BODY_BYTES);
    client.expect(&put(0, 0, &body), "INSERTED 1");
    // More output than the sockets buffer, and more input than the inbox keeps: the server stops receiving before the last
    // commands and the end.
    client.send(&format!("peek {:0200}\r\n", 1).repeat(PEEKS));
    client.stream.half_close();
    server.settle();
    for _ in 0..PEEKS {
        client.expect_bytes(format!("FOUND 1 {BODY_BYTES}\r\n{body}\r\n"));
    }
    client.expect_end();
}

/// The server stops receiving within the second body, when the end of input has already arrived.
#[test]
fn large_bodies_before_a_half_close_are_queued_and_answered() {
    const LARGE_BYTES: usize = 300_000;
    let server = start(&["-z", "10000000"]);
    let (large, body) = ("x".repeat(LARGE_BYTES), "y".repeat(100_000));
    for (round, settles) in [false, true].into_iter().enumerate() {
        let (first, second) = (1 + 2 * round, 2 + 2 * round);
        let mut client = server.client();
        client.expect(&format!("use t{round}\r\n"), &format!("USING t{round}"));
        client.expect(&put(0, 0, &large), &format!("INSERTED {first}"));
        client.send(&["peek-ready\r\n".repeat(5), put(0, 0, &body)].concat());
        client.stream.half_close();
        if settles {
            server.settle();
        }
        let found = format!("FOUND {first} {LARGE_BYTES}\r\n{large}\r\n");
        client.expect_bytes(found.repeat(5) + &format!("INSERTED {second}\r\n"));
        client.expect_end();
    }
}

#[test]
fn a_half_close_behind_unread_input_ends_the_wait_of_a_client() {
    const COMMANDS: usize = 6_000;
    let server = start(&[]);
    let mut client = server.client();
    client.send("reserve-with-timeout 1000\r\n");
    // More than the inbox of a waiting client keeps, but no more than the socket buffers.
    client.send(&USED.repeat(COMMANDS));
    server.settle();
    client.stream.half_close();
    client.expect_reply("TIMED_OUT");
    client.expect_bytes("USING default\r\n".repeat(COMMANDS));
    client.expect_end();
}

/// The kernel closes the listeners of an io_uring only some time after their process has ended.
#[test]
fn a_start_waits_for_the_address_of_a_killed_server() {
    const CLIENTS: usize = 100;
    driver::under_each("the address of a killed server", |io| {
        let (mut server, first) = serve_under(io, Transport::Tcp, &[]);
        drop(first);
        for _ in 0..5 {
            let clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
            server.kill();
            let began = Instant::now();
            drop(server.launch_again(Command::new(program()), &driver::flags(io)));
            // Until then the listener of the killed server may accept connections.
            wait::until("the next server replies", || {
                let mut client = server.try_connect().map(Client::new);
                client.as_mut().is_ok_and(|client| {
                    client.send("list-tube-used\r\n");
                    client.reply().is_some()
                })
            });
            println!("{}: the next server replies after {:?}", io.name(), began.elapsed());
            drop(clients);
        }
        server.stop();
    });
}
