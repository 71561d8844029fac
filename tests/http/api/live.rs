//! The API of live servers, under each driver.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring_testkit::client::Client;
use beanring_testkit::driver;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::random::Random;
use beanring_testkit::scratch::{Scratch, lines_of};
use nix::sys::signal::Signal;
use serde_json::json;

use super::super::drivers;
use super::{JSON, OCTETS, Response, delete, get, post, put, request_with};

const SECRET: &str = "a-secret-of-this-test";

/// A stream to the HTTP listener.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A server with the API on a TCP port, and its log in a file.
struct Live {
    server: ServerProcess,
    client: Client,
    http: SocketAddr,
    scratch: Scratch,
}

impl Live {
    fn start(name: &str, io: Driver, flags: &[&str]) -> Self {
        let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { panic!("it is TCP") };
        Self::listen(name, io, (address.ip(), address.port() + 1).into(), address, flags)
    }

    fn listen(name: &str, io: Driver, http: SocketAddr, address: SocketAddr, flags: &[&str]) -> Self {
        let scratch = Scratch::new(&format!("api-{name}"));
        scratch.dir("secret");
        fs::write(scratch.join("secret/token"), format!("{SECRET}\n")).expect("the file is written");
        fs::set_permissions(scratch.join("secret/token"), Permissions::from_mode(0o600)).expect("it is ours");
        let mut command = Command::new(program());
        command.stderr(File::create(scratch.join("said")).expect("the file is created"));
        let token = scratch.join("secret/token").display().to_string();
        let flags = flags.iter().map(|&flag| if flag == "TOKEN" { token.clone() } else { flag.to_owned() });
        let http_text = http.to_string();
        let own = ["--http", &http_text, "--http-host", "a", "--log-level", "info"].map(str::to_owned);
        let all: Vec<String> = driver::flags(io).into_iter().chain(own).chain(flags).collect();
        let (server, stream) = ServerProcess::launch(command, Address::Tcp(address), &all);
        Self { server, client: Client::new(stream), http, scratch }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.http).expect("the server listens");
        stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("the timeout is valid");
        stream
    }

    fn said(&self) -> String {
        fs::read_to_string(self.scratch.join("said")).expect("the log is there")
    }
}

/// Reads the next response.
fn response(stream: &mut impl Stream) -> Response {
    let mut bytes = Vec::new();
    loop {
        if let Some(response) = Response::take(&mut bytes, true) {
            assert!(bytes.is_empty(), "one response to one request");
            return response;
        }
        let mut piece = vec![0; 64 * 1024];
        let count = stream.read(&mut piece).expect("there is a response");
        assert!(count > 0, "the connection ended: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..count]);
    }
}

fn ask(stream: &mut impl Stream, request: &[u8]) -> Response {
    stream.write_all(request).expect("the connection is open");
    response(stream)
}

/// Adds the token to a request.
fn signed(request: &[u8], secret: &str) -> Vec<u8> {
    let line = request.windows(2).position(|two| two == b"\r\n").expect("a request has a line") + 2;
    let field = format!("Authorization: Bearer {secret}\r\n");
    [&request[..line], field.as_bytes(), &request[line..]].concat()
}

fn random_body(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(bytes as u64);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

#[test]
fn the_owner_of_the_token_reads_and_writes() {
    for io in drivers() {
        let wal = Scratch::new("api-token-wal");
        let wal = wal.0.display().to_string();
        let flags = ["-z", "9m", "-b", &wal, "-f", "0", "--http-token", "TOKEN"];
        let mut live = Live::start("token", io, &flags);
        let mut stream = live.connect();
        assert_eq!(ask(&mut stream, &get("server")).error(), (401, "unauthorized".to_owned()));
        let wrong = signed(&get("server"), "another-secret-of-this-test");
        assert_eq!(ask(&mut stream, &wrong).error(), (401, "unauthorized".to_owned()));
        let body = random_body(8 << 20);
        assert_eq!(ask(&mut stream, &put("tubes/big/jobs", &body)).error(), (401, "unauthorized".to_owned()));

        let mut ask_signed = |request: &[u8]| ask(&mut stream, &signed(request, SECRET));
        let server = ask_signed(&get("server")).json();
        assert_eq!((&server["driver"], &server["may_write"]), (&json!(io.name()), &json!(true)));
        assert_eq!(server["job_log"]["directory"], wal);
        assert!(server["memory"]["resident_bytes"].as_u64() > Some(100_000));
        assert_eq!(ask_signed(&put("tubes/big/jobs?priority=7", &body)).json(), json!({"id": 1}));
        assert!(ask_signed(&get("jobs/1/body")).body == body, "{}", io.name());
        assert_eq!(ask_signed(&get("tubes/big/next/ready")).json()["body_bytes"], 8 << 20);
        for (request, status) in [
            (put("tubes/keys/jobs?idp=k", b"x"), 201),
            (put("tubes/keys/jobs?idp=k", b"x"), 200),
            (delete("jobs/2"), 200),
            (post("jobs/1/bury", "{\"priority\":3}"), 200),
            (post("tubes/big/kick", "{\"count\":1}"), 200),
            (post("jobs/1/release", "{\"priority\":3,\"delay\":60}"), 200),
            (post("jobs/1/kick", "{}"), 200),
            (post("jobs/1/kick", "{}"), 409),
            (post("jobs/99/bury", "{\"priority\":3}"), 404),
            (delete("jobs/99"), 404),
            (post("tubes/none/kick", "{\"count\":1}"), 404),
            (post("tubes/none/pause", "{\"seconds\":60}"), 404),
            (post("tubes/full/config", "{\"key\":\"max-bytes\",\"value\":1}"), 200),
            (post("jobs/1/move", "{\"to\":\"full\"}"), 507),
            (post("tubes/big/move", "{\"state\":\"ready\",\"to\":\"full\",\"count\":9}"), 507),
            (post("tubes/big/kick", "{\"count\":9}"), 200),
            (post("tubes/big/pause", "{\"seconds\":60}"), 200),
            (post("tubes/none/flush", "{}"), 404),
            (post("drain", "{}"), 200),
            (put("tubes/big/jobs", b"x"), 503),
            (post("undrain", "{}"), 200),
        ] {
            assert_eq!(ask_signed(&request).status, status, "{}", io.name());
        }
        assert_eq!(ask_signed(&get("tubes?filter=BIG")).json()["tubes"][0]["paused_seconds"], 60);
        live.client.expect("watch big\r\n", "WATCHING 2");
        live.client.expect("reserve-with-timeout 0\r\n", "TIMED_OUT");
        assert_eq!(ask_signed(&delete("jobs/1")).status, 200);
        live.client.expect("peek 1\r\n", "NOT_FOUND");
        live.server.signal(Signal::SIGTERM);
        assert_eq!(live.server.wait(), Some(0));

        let said = live.said();
        let actions = [
            "put of 8388608 bytes, tube big, job 1",
            "put of 1 byte with idp:k, tube keys: no job was added, job 2 has this key",
            "bury with priority 3, job 1",
            "kick-job, job 1",
        ];
        for action in actions {
            let line = format!(": {action}\n");
            assert!(
                said.lines()
                    .any(|found| found.contains("HTTP action from 127.")
                        && format!("{found}\n").ends_with(&line)),
                "{action}: {said}"
            );
        }
        for line in [
            "INFO drain from 127.0.0.1:N: put is refused with DRAINING until a client sends undrain",
            "INFO undrain from 127.0.0.1:N: put is accepted again",
        ] {
            let (start, end) = line.split_once(":N").expect("a line has a port");
            let is_line = |found: &&str| found.contains(start) && found.ends_with(end);
            assert_eq!(said.lines().filter(is_line).count(), 1, "{line}: {said}");
        }
        assert_eq!(said.matches("HTTP action").count(), 11, "what changed nothing is no action: {said}");
        let warnings: Vec<&str> = said.lines().filter(|line| line.contains(" WARN ")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("an HTTP request from 127."), "{said}");
        assert!(!said.contains("secret-of-this-test"), "{said}");
    }
}

#[test]
fn without_a_token_peers_on_this_machine_read_and_may_be_let_write() {
    for io in drivers() {
        for (flags, status) in [(&[][..], 403), (&["--http-allow-writes"][..], 200)] {
            let live = Live::start("local", io, flags);
            let mut stream = live.connect();
            assert_eq!(ask(&mut stream, &get("server")).json()["may_write"], status == 200);
            assert_eq!(ask(&mut stream, &post("drain", "{}")).status, status);
            let foreign =
                request_with("POST", "undrain", "Sec-Fetch-Site: cross-site\r\n", Some((JSON, b"{}")));
            assert_eq!(ask(&mut stream, &foreign).status, 403);
            let evil =
                String::from_utf8(get("server")).expect("text").replace("Host: a:1", "Host: evil.example");
            assert_eq!(ask(&mut stream, evil.as_bytes()).status, 421);

            let scratch = Scratch::new("api-unix");
            let path = scratch.join("http");
            let unix = format!("unix:{}", path.display());
            let all: Vec<String> = driver::flags(io)
                .into_iter()
                .chain(["--http", &unix].into_iter().chain(flags.iter().copied()).map(str::to_owned))
                .collect();
            let (_server, _client) =
                ServerProcess::launch(Command::new(program()), Address::fresh(Transport::Tcp), &all);
            let mut stream = UnixStream::connect(path).expect("the server listens");
            assert_eq!(ask(&mut stream, &get("server")).json()["may_write"], status == 200);
            assert_eq!(ask(&mut stream, &post("drain", "{}")).status, status);
        }
    }
}

/// An address of this machine that is not a loopback address. No packet is sent.
fn own_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(address) if !address.ip().is_loopback() => Some(*address.ip()),
        _ => None,
    }
}

/// A port of this test's own. The system does not give it to connections of this machine, which would keep it for a minute
/// after their end.
fn fresh_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let own = process::id().wrapping_mul(31).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    22_000 + (own % 10_000) as u16
}

#[test]
fn peers_elsewhere_need_a_token() {
    let Some(own) = own_address() else {
        println!("skipped: peers elsewhere, because this machine has only loopback addresses");
        return;
    };
    for io in drivers() {
        for (flags, secret, status) in [
            (&[][..], "", 403),
            (&["--http-allow-writes"][..], "", 403),
            (&["--http-token", "TOKEN"][..], "", 401),
            (&["--http-token", "TOKEN"][..], SECRET, 200),
        ] {
            let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { panic!("it is TCP") };
            let live = Live::listen("elsewhere", io, (own, fresh_port()).into(), address, flags);
            let mut stream = live.connect();
            let kinds = [get("server"), get("tubes"), post("undrain", "{}"), put("tubes/a/jobs", b"x")];
            for request in kinds {
                let answer = ask(&mut stream, &signed(&request, secret));
                assert!(
                    answer.status == status || status == 200 && answer.status == 201,
                    "{}: {answer:?}",
                    io.name()
                );
            }
            let health = ask(&mut stream, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
            assert_eq!(health.status, 200);
        }
    }
}

#[test]
fn slow_clients_and_clients_that_leave_disturb_nobody() {
    const BYTES: usize = 12 << 20;
    for io in drivers() {
        let mut live = Live::start("slow", io, &["-z", "16m", "--http-allow-writes"]);
        let body = random_body(BYTES);
        let mut stream = live.connect();
        // Slowly, in pieces.
        let request = put("tubes/a/jobs", &body[..300_000]);
        for piece in request.chunks(20_000) {
            stream.write_all(piece).expect("the connection is open");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(response(&mut stream).json(), json!({"id": 1}));
        assert_eq!(ask(&mut stream, &put("tubes/a/jobs", &body)).json(), json!({"id": 2}));
        // A reader that does not read, and then does.
        stream.write_all(&get("jobs/2/body")).expect("the connection is open");
        // A put that is cut off, by both ways to end a connection.
        let cut = put("tubes/b/jobs", &body);
        let mut half = live.connect();
        half.write_all(&cut[..BYTES / 2]).expect("the connection is open");
        half.shutdown(std::net::Shutdown::Write).expect("the connection is open");
        assert_eq!(half.read(&mut [0; 100]).expect("the server closes the connection"), 0);
        let mut gone = live.connect();
        gone.write_all(&cut[..BYTES / 2]).expect("the connection is open");
        drop(gone);
        let began = Instant::now();
        while live.client.ask("list-tubes\r\n").1.contains("- b\n") {
            assert!(began.elapsed() < REPLY_PATIENCE, "{}: the tube stays", io.name());
        }
        live.client.expect("peek 2\r\n", &format!("FOUND 2 {BYTES}"));
        live.client.expect("delete 2\r\n", "DELETED");
        assert!(response(&mut stream).body == body, "{}", io.name());
        assert_eq!(ask(&mut stream, &get("server")).json()["jobs"]["ready"], 1);
        // Much input behind a request that is being answered stays in the kernel.
        let mut many = get("jobs/1/body");
        for _ in 0..50 {
            many.extend(request_with("POST", "tubes/c/jobs", "", Some((OCTETS, &body[..50_000]))));
        }
        let mut sender = stream.try_clone().expect("the connection is open");
        let sending = thread::spawn(move || sender.write_all(&many));
        let mut received = Vec::new();
        let mut next = || loop {
            if let Some(response) = Response::take(&mut received, true) {
                return response.status;
            }
            let mut piece = [0; 4096];
            let count = stream.read(&mut piece).expect("there is a response");
            assert!(count > 0, "the connection ended");
            received.extend_from_slice(&piece[..count]);
        };
        assert_eq!(next(), 200);
        assert!((0..50).all(|_| next() == 201), "{}", io.name());
        sending.join().expect("the thread ends").expect("the connection is open");
    }
}

#[test]
fn the_file_of_the_token_is_checked_and_read_again() {
    for io in drivers() {
        let wal = Scratch::new("api-again-wal");
        let wal = wal.0.display().to_string();
        let live = Live::start("again", io, &["-b", &wal, "--http-token", "TOKEN"]);
        let read = |secret: &str| ask(&mut live.connect(), &signed(&get("server"), secret)).status;
        assert_eq!((read(SECRET), read("the-next-secret-of-this-test")), (200, 401));
        let file = live.scratch.join("secret/token");
        let said = live.scratch.join("said");
        let before = lines_of(&said, 1).len();
        // A file without a token keeps the server as it is.
        fs::write(&file, "short").expect("the file is written");
        live.server.signal(Signal::SIGUSR2);
        await_line(&said, "no restart: ");
        assert_eq!(read(SECRET), 200);
        fs::write(&file, "the-next-secret-of-this-test").expect("the file is written");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
        live.server.signal(Signal::SIGUSR2);
        await_line(&said, "every user of this machine can read the token");
        await_line(&said, "ready after");
        let began = Instant::now();
        while read(SECRET) != 401 {
            assert!(began.elapsed() < REPLY_PATIENCE, "the old token is valid: {}", live.said());
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(read("the-next-secret-of-this-test"), 200);
        assert!(lines_of(&said, 1).len() > before);
    }
}

/// Waits for a line of the log.
fn await_line(said: &Path, text: &str) {
    let began = Instant::now();
    while !fs::read_to_string(said).expect("the log is there").contains(text) {
        assert!(began.elapsed() < REPLY_PATIENCE, "no line has {text:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
