//! What the log says, as an operator reads it: the lines of a start, a drain, a restart and a stop, at each level and in each
//! format.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, pipe};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::thread;

use beanring::logging::{self, LogFormat};
use beanring_testkit::client::{Client, put, serve_by};
use beanring_testkit::driver::under_each;
use beanring_testkit::http_client::{HttpClient, Response, page};
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{Address, ServerProcess, Transport, beanring, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::Value;
use tracing::level_filters::LevelFilter;

/// Starts a server under epoll, whatever this test run selects.
fn start(flags: &[&str]) -> LoggedServer {
    LoggedServer::start(&[&["--io", "epoll"], flags].concat())
}

/// Waits until the server is ready, and stops it. Returns its lines.
fn run(server: LoggedServer) -> Vec<String> {
    server.logged("ready");
    let lines = server.stopped();
    check_for_people(&lines);
    lines
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

const START: [&str; 2] = ["INFO beanring N.N.N (pid N)", "INFO I/O driver: epoll"];
const LIMITS: &str = "INFO limits: memory unlimited, job size N bytes, connections unlimited, tubes N, watches per \
                      connection N";
const LISTENING: &str = "INFO listening on N.N.N.N:N";
const READY: &str = "INFO ready after N ms";
const STOP: [&str; 2] =
    ["INFO SIGTERM from process N of user N: stopping", "INFO stopped after N s of uptime"];

#[test]
fn a_start_and_a_stop_without_a_job_log() {
    let lines = run(start(&[]));
    let no_log = "INFO no job log: jobs are kept in memory only, and a stop or a restart loses them (-b DIR keeps them)";
    let start = [&START[..], &[no_log, LIMITS, LISTENING, READY]].concat();
    assert_eq!(messages(&lines), [&start[..], &STOP].concat());
}

#[test]
fn a_start_with_jobs_of_the_last_run() {
    let mut server = start(&["-b", "DIR", "-f", "0", "--max-memory", "64m", "--http", "0"]);
    server.client().expect(&put(0, 0, "x"), "INSERTED 1");
    let dir = server.scratch.join("log").display().to_string();
    server.logged(&format!("job log: created in {dir}"));
    server.stop();
    let lines = run(start(&["-b", &dir, "-F", "-s", "131072", "-z", "64", "--max-connections", "9"]));
    let recovered = format!("INFO job log: recovered N job from {} in N ms (N segments)", masked(&dir));
    let start = [
        &*recovered,
        "INFO durability: no sync until the server stops (-F): a power failure may lose jobs",
        "INFO limits: memory unlimited, job size N bytes, connections N, tubes N, watches per connection N",
        LISTENING,
        READY,
    ];
    assert_eq!(messages(&lines), [&START[..], &start, &STOP].concat());
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
    let lines = run(start(&["-l", "0.0.0.0", "-b", "DIR", "-f", "50", "-z", "65535", "-V"]));
    let dir = "INFO job log: created in ";
    let mut messages = messages(&lines);
    messages.iter_mut().filter(|line| line.starts_with(dir)).for_each(|line| line.truncate(dir.len()));
    let start = [
        dir,
        "INFO durability: sync within N ms of a change (-f N): a power failure may lose the latest changes",
        LIMITS,
        LISTENING,
        "WARN other machines may connect to N.N.N.N:N, and whoever does may read, take and delete all jobs; protect the port by a \
         firewall, set --auth, or choose -l N.N.N.N",
        READY,
    ];
    assert_eq!(messages, [&START[..], &start, &STOP].concat());
}

#[test]
fn who_drains_and_who_ends_that() {
    let server = start(&[]);
    let mut client = server.client();
    client.expect("undrain\r\n", "NOT_DRAINING");
    let sender = format!(" INFO SIGUSR1 from process {} of user ", std::process::id());
    for logged in ["draining", "the server is draining already"] {
        server.signal(Signal::SIGUSR1);
        let line = server.logged(logged);
        assert!(line.contains(&sender), "{line}");
    }
    client.expect("undrain\r\n", "NOT_DRAINING");
    client.expect("undrain\r\n", "NOT_DRAINING");
    let peer = client.stream.local_addr();
    let line = server.logged("put is accepted again");
    assert!(line.contains(&format!(" INFO undrain from {peer}: put")), "{line}");
    server.signal(Signal::SIGUSR1);
    server.logged("draining; put is refused");
    client.expect("undrain\r\n", "NOT_DRAINING");
    client.expect("drain\r\n", "DRAINING");
    client.expect("drain\r\n", "DRAINING");
    let line = server.logged(" drain from ");
    assert!(line.contains(&format!(" INFO drain from {peer}: put is refused")), "{line}");
    let lines = server.stopped();
    for (act, times) in [("undrain from", 2), (" drain from", 1), ("draining; put is refused", 2)] {
        assert_eq!(lines.iter().filter(|line| line.contains(act)).count(), times, "{act}: {lines:#?}");
    }
}

#[test]
fn a_restart_in_place() {
    let server = start(&["-b", "DIR"]);
    server.logged("ready");
    let before = server.lines().len();
    server.signal(Signal::SIGUSR2);
    server.logged("restarted in place");
    server.logged("recovered 0 jobs");
    let lines = run(server);
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
        // Not each level has a line with the address.
        let scratch = Scratch::new("levels");
        let mut command = Command::new(program());
        command.stderr(File::create(scratch.join("said")).expect("the file is created"));
        let flags = ["--io", "epoll", "--log-level", level, "-c"];
        let (mut server, mut client) = serve_by(command, Address::fresh(Transport::Tcp), &flags);
        client.expect(&put(0, 0, "x"), "INSERTED 1");
        let peer = client.stream.local_addr();
        drop(client);
        server.stop();
        let said = fs::read_to_string(scratch.join("said")).expect("the lines are text");
        let lines: Vec<String> = said.lines().map(str::to_owned).collect();
        check_for_people(&lines);
        for (part, is_expected) in [
            (" WARN -c: this flag has no effect", level != "error"),
            (" INFO listening on ", has_start),
            (&format!("DEBUG connection opened conn=1 peer={peer}"), has_connections),
            ("TRACE command: put 0 0 60 1 conn=1", has_commands),
            ("TRACE reply: INSERTED 1 conn=1 job=1", has_commands),
        ] {
            assert_eq!(said.contains(part), is_expected, "{level}, {part}: {said}");
        }
    }
}

/// What beanstalkd shows with `-VV`: the lines of a conversation, in order. Bodies are not shown, and control characters are
/// escaped.
#[test]
fn each_command_line_and_each_reply_line_is_traced() {
    let server = start(&["-VV"]);
    let first = [
        ("put 0 0 60 6\r\nsecret\r\n", "command: put 0 0 60 6", "reply: INSERTED 1", " job=1"),
        ("reserve\r\n", "command: reserve", "reply: RESERVED 1 6", " job=1"),
        ("a\u{1b}[2J\u{e9}\r\n", "command: a\\x1b[2J\\xc3\\xa9", "reply: UNKNOWN_COMMAND", ""),
        ("list-tubes\r\n", "command: list-tubes", "reply: OK 14", ""),
        (
            &("x".repeat(300) + "\r\n"),
            "command: the line is longer than any command",
            "reply: BAD_FORMAT",
            "",
        ),
    ];
    let second = [
        ("delete 9\r\n", "command: delete 9", "reply: NOT_FOUND", ""),
        ("watch other\r\n", "command: watch other", "reply: WATCHING 2", ""),
        ("ignore default\r\n", "command: ignore default", "reply: WATCHING 1", ""),
        ("reserve-with-timeout 0\r\n", "command: reserve-with-timeout 0", "reply: TIMED_OUT", ""),
    ];
    let mut expected = Vec::new();
    for (conn, talk) in [(1, &first[..]), (2, &second)] {
        let mut client = server.client();
        for (command, traced, reply, job) in talk {
            client.send(command);
            expected.push(format!("{traced} conn={conn}"));
            expected.push(format!("{reply} conn={conn}{job}"));
        }
        client.send("quit\r\n");
        let data: String = talk.iter().map(|_| client.reply().expect("a reply").1).collect();
        assert_eq!(data.contains("secret\r\n"), conn == 1, "{data}");
        client.expect_end();
        expected.push(format!("command: quit conn={conn}"));
    }
    let lines = server.stopped();
    check_for_people(&lines);
    let traced = lines.iter().filter_map(|line| line.split_once(" TRACE "));
    assert_eq!(traced.map(|(_, line)| line).collect::<Vec<_>>(), expected);
}

#[test]
fn a_connection_number_is_not_used_twice() {
    let server = start(&["-V", "--http", "127.0.0.1:0"]);
    for number in 1..=3 {
        drop(server.client());
        server.logged(&format!("connection closed conn={number}"));
    }
    assert_eq!(server.count("connection opened"), 3, "{:#?}", server.lines());
}

#[test]
fn a_connection_for_http_is_marked() {
    let server = start(&["-V", "--http", "127.0.0.1:0"]);
    let line = server.logged("serving the console on http://");
    let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once("/,"));
    let address = address.expect("an address").0;
    drop(server.client());
    server.logged("connection closed conn=1");
    drop(TcpStream::connect(address).expect("the server accepts connections"));
    server.logged("connection closed conn=2");
    let lines = server.stopped();
    for (conn, is_http) in [("conn=1 ", false), ("conn=2 ", true)] {
        let line = lines.iter().find(|line| line.contains("connection opened") && line.contains(conn));
        assert_eq!(line.expect("a line").contains("protocol=http"), is_http, "{lines:#?}");
    }
}

#[test]
fn the_end_of_a_pause_of_accept_is_logged() {
    let server = start(&["-V", "--max-connections", "2"]);
    let mut clients: Vec<_> = (0..2).map(|_| server.client()).collect();
    server.logged("WARN accept is paused, new connections wait in the listen backlog: --max-connections 2");
    assert_eq!(server.count("accept goes on"), 0);
    clients.iter_mut().for_each(|client| client.expect("list-tube-used\r\n", "USING default"));
    drop(clients);
    // A connection that comes between the two ends pauses accept again.
    (0..2).for_each(|_| drop(server.logged("connection closed conn=")));
    server.client().expect("list-tube-used\r\n", "USING default");
    wait::until("that is logged", || server.count("INFO accept goes on: connections are accepted again") > 0);
    server.stopped();
}

#[test]
fn a_request_of_another_protocol_is_logged_with_the_address() {
    under_each("a foreign request", |driver| {
        let server = LoggedServer::start(&["--io", driver.name()]);
        let request = || {
            let mut client = server.client();
            client.send("GET / HTTP/1.1\r\n\r\n");
            let peer = client.stream.local_addr();
            client.expect_end();
            peer
        };
        let peer = request();
        let line = server.logged("an HTTP request");
        let expected = format!(
            "closed the connection from {peer}, which began with an HTTP request: the port is for beanstalk clients"
        );
        assert!(line.ends_with(&expected), "{line}");
        (0..2).for_each(|_| _ = request());
        server.client().expect("undrain\r\n", "NOT_DRAINING");
        let lines = server.stopped();
        let left_out =
            "WARN lines that were not logged since the last such line: 2 (a request of another protocol)";
        assert!(lines.iter().any(|line| line.ends_with(left_out)), "{lines:#?}");
    });
}

#[test]
fn a_closed_connection_has_a_reason() {
    under_each("closed connections", |driver| {
        let server = LoggedServer::start(&["--io", driver.name(), "-V"]);
        let mut quits = server.client();
        quits.send("quit\r\n");
        server.logged("connection closed conn=1 reason=server");
        drop(server.client());
        server.logged("connection closed conn=2 reason=client");
        let mut resets = server.client();
        resets.expect("undrain\r\n", "NOT_DRAINING");
        resets.stream.reset();
        server.logged("connection closed conn=3 reason=broken");
        server.stopped();
    });
}

#[test]
fn json_is_one_object_per_line_with_numbers_as_numbers() {
    let server = start(&["--log-format", "json", "-VV", "-b", "DIR"]);
    let mut client = server.client();
    client.expect(&put(0, 0, "x"), "INSERTED 1");
    client.expect("nonsense\r\n", "UNKNOWN_COMMAND");
    drop(client);
    server.logged("connection closed");
    let lines = server.stopped();
    let objects: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    for (object, line) in objects.iter().zip(&lines) {
        for key in ["timestamp", "level", "message"] {
            assert!(object[key].is_string(), "{key}: {line}");
        }
    }
    let find = |message: &str| {
        let is_it =
            |object: &&Value| object["message"].as_str().is_some_and(|text| text.starts_with(message));
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
    let server = start(&[]);
    server.logged("ready");
    let before = server.lines().len();
    (0..1000).for_each(|_| server.client().expect("nonsense\r\n", "UNKNOWN_COMMAND"));
    let lines = server.stopped();
    assert_eq!(messages(&lines[before..]), STOP);
}

/// A terminal that closes sends SIGHUP.
#[test]
fn a_hangup_stops_the_server_in_order_and_nohup_prevents_it() {
    let by = |words: &[&str], flags: &[&str]| {
        LoggedServer::start_with(&[&["--io", "epoll"], flags].concat(), |command| {
            let mut around = Command::new(words[0]);
            around
                .args(&words[1..])
                .arg(command.get_program())
                .args(command.get_args())
                .stdout(Stdio::null());
            *command = around;
        })
    };
    // The tests may have been started by nohup themselves.
    let mut server = by(&["env", "--default-signal=HUP"], &["-b", "DIR"]);
    server.logged("ready");
    server.signal(Signal::SIGHUP);
    assert_eq!(server.wait(), Some(0));
    let line = server.logged("stopping");
    assert!(line.contains(&format!("INFO SIGHUP from process {} of user ", std::process::id())), "{line}");
    server.logged("stopped after");

    let server = by(&["nohup"], &[]);
    server.logged("ready");
    server.signal(Signal::SIGHUP);
    server.client().expect("undrain\r\n", "NOT_DRAINING");
    let lines = server.stopped();
    assert!(!lines.iter().any(|line| line.contains("SIGHUP")), "{lines:#?}");
}

/// The journal has the time of each line, and takes its priority from the front.
#[test]
fn lines_for_the_journal_have_a_priority_and_no_time() {
    let spawn = |flags: &[&str]| {
        let scratch = Scratch::new("journal");
        let said = File::create(scratch.join("said")).and_then(|file| file.metadata());
        let said = said.expect("the file is created");
        let mut command = beanring(&[&["-l", "127.0.0.1", "-p", "0"], flags].concat());
        command.env("JOURNAL_STREAM", format!("{}:{}", said.dev(), said.ino()));
        LoggedServer::spawn(command, scratch)
    };
    let server = spawn(&["-c", "-V"]).listening();
    drop(server.client());
    server.logged("connection closed");
    let lines = server.stopped();
    for begin in [
        "<6> INFO beanring ",
        "<4> WARN -c: this flag has no effect",
        "<7>DEBUG connection opened conn=1 peer=127.",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(begin)), "{begin}: {lines:#?}");
    }
    let mut refused = spawn(&["-u", "no such user"]);
    assert_eq!(refused.wait(), Some(2));
    let why = "-u/--user \"no such user\": no such user; create it, or correct the name";
    assert_eq!(refused.lines(), [format!("<3>ERROR {why}")]);
    // A stderr that is redirected is another file.
    let server = LoggedServer::start_with(&[], |command| _ = command.env("JOURNAL_STREAM", "1:2"));
    messages(&run(server));
}

/// Nothing reads stderr. Clients are served, lines beyond the buffer are left out and counted, and the server stops.
#[test]
fn a_log_that_nothing_reads_stops_nothing() {
    const PUTS: usize = 10_000;
    under_each("a log that nothing reads", |io| {
        let (reader, stderr) = pipe().expect("a descriptor is free");
        let http = Address::fresh_tcp();
        let mut command = beanring(&["--io", io.name(), "--http", &http.to_string()]);
        command.stderr(stderr);
        let (mut server, stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &["-VV"]);
        let mut client = Client::new(stream);
        for _ in 0..PUTS / 100 {
            client.send(&put(0, 0, "x").repeat(100));
            for _ in 0..100 {
                assert!(client.reply().expect("it is served").0.starts_with("INSERTED "));
            }
        }
        let metrics = HttpClient::tcp(http).ask(&page("/metrics"));
        let lost = |page: &Response| {
            let line =
                page.text().lines().find_map(|line| line.strip_prefix("beanring_log_lines_lost_total "));
            line.and_then(|count| count.parse::<u64>().ok()).expect("the metric is there")
        };
        assert!(lost(&metrics) > PUTS as u64 / 2, "{}", lost(&metrics));
        // Once the lines flow again, one says how many are missing, or several if some were left out before the writer was blocked.
        let mut lines = BufReader::new(&reader).lines().map(|line| line.expect("text"));
        let mut said = 0;
        while said < lost(&metrics) {
            let line =
                lines.find(|line| line.contains(" log lines were left out: ")).expect("a line says so");
            let count = line.split(' ').find_map(|word| word.parse::<u64>().ok());
            said += count.expect("it has the number");
        }
        drop(lines);
        // Blocked again, at the end.
        client.send(&put(0, 0, "x").repeat(PUTS));
        for _ in 0..PUTS {
            client.reply().expect("it is served");
        }
        server.stop();
    });
}

/// Nothing reads stderr while the process restarts in place. The new program serves, and each line is whole or counted.
#[test]
fn a_restart_waits_for_no_reader_of_the_log_and_counts_lost_lines() {
    const PUTS: usize = 5_000;
    /// Lines of the start, of the restart, and of clients that look for the new program.
    const OTHERS_MAX: usize = 3_000;
    under_each("a restart beside a log that nothing reads", |io| {
        let scratch = Scratch::new("unread-restart");
        let (mut reader, stderr) = pipe().expect("a descriptor is free");
        let mut command = beanring(&["--io", io.name(), "-b", &scratch.0.display().to_string(), "-F"]);
        command.stderr(stderr);
        let address = Address::fresh(Transport::Tcp);
        let (mut server, stream) = ServerProcess::launch(command, address, &["-VV"]);
        let mut client = Client::new(stream);
        for _ in 0..PUTS / 100 {
            let replies = client.ask_all((0..100).map(|_| put(0, 0, "x")));
            assert!(replies.iter().all(|(line, _)| line.starts_with("INSERTED ")));
        }
        drop(client);
        // The pipe and the buffer are full, before the restart and after it.
        let mut client = server.restart();
        client.expect("peek 1\r\n", "FOUND 1 1");
        let reading = thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).expect("it is text");
            text
        });
        client.expect("peek 2\r\n", "FOUND 2 1");
        drop(client);
        server.stop();
        let text = reading.join().expect("it reads to the end");
        let lines: Vec<&str> = text.lines().collect();
        let torn = lines.iter().find(|line| !line.starts_with("20") || line.get(26..27) != Some("Z"));
        assert_eq!(torn, None, "each line is whole");
        let lost = |line: &&str| -> Option<usize> {
            line.split_once(" log lines were left out")?.0.rsplit(' ').next()?.parse().ok()
        };
        let lost: usize = lines.iter().filter_map(lost).sum();
        println!("{}: {} lines, and {lost} are lost", io.name(), lines.len());
        let all = lines.len() + lost;
        assert!((2 * PUTS..2 * PUTS + OTHERS_MAX).contains(&all), "{} and {lost}", lines.len());
        assert!(lines.iter().any(|line| line.contains("command: peek 2 ")), "the new program logs");
    });
}

/// A client that begins and ends drain mode all the time fills no log.
#[test]
fn changes_of_drain_mode_are_limited() {
    let server = start(&[]);
    let mut client = server.client();
    for _ in 0..500 {
        client.expect("drain\r\n", "DRAINING");
        client.expect("undrain\r\n", "NOT_DRAINING");
    }
    let lines = server.stopped();
    let count = lines.iter().filter(|line| line.contains("drain from 127.0.0.1:")).count();
    assert!((20..=60).contains(&count), "{count}");
    let rest = " lines that were not logged since the last such line: ";
    assert!(lines.iter().any(|line| line.contains(rest)), "{lines:#?}");
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
    let expected = "ERROR bug: the server cannot continue at tests/process/logging.rs:N:N: assertion `left == right` failed: \
                    jobs are counted left: N right: N; please report this line";
    assert_eq!(messages(&lines), [expected], "{text}");
}

#[test]
fn a_server_that_cannot_continue_says_so_last() {
    let mut server = start(&["-b", "DIR", "-f", "0"]);
    server.client().expect(&put(0, 0, "x"), "INSERTED 1");
    let dir = server.scratch.join("log");
    server.stop();
    let segment = dir.join("log.0000000000000001");
    let mut bytes = fs::read(&segment).expect("a segment");
    let at = bytes.windows(7).position(|window| window == b"default").expect("the job names its tube");
    bytes[at] ^= 1;
    fs::write(&segment, bytes).expect("a segment");
    let flags = ["-l", "127.0.0.1", "-p", "0", "--io", "epoll", "-b", dir.to_str().expect("UTF-8")];
    let mut refused = LoggedServer::spawn(beanring(&flags), Scratch::new("damaged"));
    assert_eq!(refused.wait(), Some(1));
    let lines = refused.lines();
    check_for_people(&lines);
    assert!(lines.last().is_some_and(|last| last.contains("\": the job log is damaged: ")), "{lines:#?}");
}
