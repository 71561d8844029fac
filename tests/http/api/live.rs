//! The API of live servers, under each driver.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, delete, get, page, post, put, signed, with_fields};
use beanring_testkit::process::{Address, REPLY_PATIENCE};
use beanring_testkit::random::Random;
use beanring_testkit::scratch::Scratch;
use beanring_testkit::stream::Stream;
use beanring_testkit::unused_address::ReservedPort;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::live::{Live, SECRET};

fn random_body(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(bytes as u64);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

#[test]
fn the_owner_of_the_token_reads_and_writes() {
    for io in driver::allowed("HTTP") {
        let wal = Scratch::new("api-token-wal");
        let wal = wal.0.display().to_string();
        let flags = ["-z", "9m", "-b", &wal, "-f", "0", "--http-token", "TOKEN"];
        let mut live = Live::at(Address::fresh_tcp(), io, &flags);
        let mut client = live.connect();
        let body = random_body(8 << 20);
        let wrong = signed(&get("server"), "another-secret-of-this-test");
        for request in [get("server"), wrong, put("tubes/big/jobs", &body)] {
            assert_eq!(client.ask(&request).error(), (401, "unauthorized".to_owned()));
        }

        let mut ask_signed = |request: &[u8]| client.ask(&signed(request, SECRET));
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
        live.server.stop();

        let said = live.log();
        for action in [
            "put of 8388608 bytes, tube big, job 1",
            "put of 1 byte with idp:k, tube keys: no job was added, job 2 has this key",
            "bury with priority 3, job 1",
            "kick-job, job 1",
        ] {
            let is_line =
                |line: &str| line.contains("HTTP action from 127.") && line.ends_with(&format!(": {action}"));
            assert!(said.lines().any(is_line), "{action}: {said}");
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
    for io in driver::allowed("HTTP") {
        for (flags, status) in [(&[][..], 403), (&["--http-allow-writes"][..], 200)] {
            for live in [Live::at(Address::fresh_tcp(), io, flags), Live::start(io, flags)] {
                let mut client = live.connect();
                assert_eq!(client.ask(&get("server")).json()["may_write"], status == 200);
                assert_eq!(client.ask(&post("drain", "{}")).status, status);
                let foreign = with_fields(&post("undrain", "{}"), "Sec-Fetch-Site: cross-site\r\n");
                assert_eq!(client.ask(&foreign).status, 403);
                // A browser cannot connect to a UNIX socket.
                let evil = b"GET /api/v1/server HTTP/1.1\r\nHost: evil.example\r\n\r\n";
                assert_eq!(client.ask(evil).status, if live.is_on_tcp() { 421 } else { 200 });
            }
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

#[test]
fn peers_elsewhere_need_a_token() {
    let Some(own) = own_address() else {
        println!("skipped: peers elsewhere, because this machine has only loopback addresses");
        return;
    };
    for io in driver::allowed("HTTP") {
        for (flags, secret, status) in [
            (&[][..], "", 403),
            (&["--http-allow-writes"][..], "", 403),
            (&["--http-token", "TOKEN"][..], "", 401),
            (&["--http-token", "TOKEN"][..], SECRET, 200),
        ] {
            let port = ReservedPort::take();
            let live = Live::at((own, port.get()).into(), io, flags);
            let mut client = live.connect();
            for request in [get("server"), get("tubes"), post("undrain", "{}"), put("tubes/a/jobs", b"x")] {
                let answer = client.ask(&signed(&request, secret));
                let is_right = answer.status == status || status == 200 && answer.status == 201;
                assert!(is_right, "{}: {answer:?}", io.name());
            }
            assert_eq!(client.ask(&page("/healthz")).status, 200);
        }
    }
}

#[test]
fn slow_clients_and_clients_that_leave_disturb_nobody() {
    const BYTES: usize = 12 << 20;
    for io in driver::allowed("HTTP") {
        let mut live = Live::at(Address::fresh_tcp(), io, &["-z", "16m", "--http-allow-writes"]);
        let body = random_body(BYTES);
        let mut client = live.connect();
        // Slowly, in pieces.
        let request = put("tubes/a/jobs", &body[..300_000]);
        for piece in request.chunks(20_000) {
            client.stream.send(piece);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(client.response(true).json(), json!({"id": 1}));
        assert_eq!(client.ask(&put("tubes/a/jobs", &body)).json(), json!({"id": 2}));
        // A reader that does not read, and then does.
        client.stream.send(&get("jobs/2/body"));
        // A put that is cut off, by both ways to end a connection.
        let cut = put("tubes/b/jobs", &body);
        let [mut half, mut gone] = [(); 2].map(|()| live.connect());
        half.stream.send(&cut[..BYTES / 2]);
        half.stream.half_close();
        assert_eq!(half.rest(), "");
        gone.stream.send(&cut[..BYTES / 2]);
        drop(gone);
        let began = Instant::now();
        while live.client.ask("list-tubes\r\n").1.contains("- b\n") {
            assert!(began.elapsed() < REPLY_PATIENCE, "{}: the tube stays", io.name());
        }
        live.client.expect("peek 2\r\n", &format!("FOUND 2 {BYTES}"));
        live.client.expect("delete 2\r\n", "DELETED");
        assert!(client.response(true).body == body, "{}", io.name());
        assert_eq!(client.ask(&get("server")).json()["jobs"]["ready"], 1);
        // Much input behind a request that is being answered stays in the kernel.
        let puts = put("tubes/c/jobs", &body[..50_000]).repeat(50);
        let Stream::Tcp(tcp) = &client.stream else { panic!("it is TCP") };
        let mut sender = HttpClient::new(Stream::Tcp(tcp.try_clone().expect("a descriptor is free")));
        let sending = thread::spawn(move || sender.stream.send(&[get("jobs/1/body"), puts].concat()));
        assert_eq!(client.response(true).status, 200);
        assert!((0..50).all(|_| client.response(true).status == 201), "{}", io.name());
        sending.join().expect("the thread ends");
    }
}

#[test]
fn the_file_of_the_token_is_checked_and_read_again() {
    for io in driver::allowed("HTTP") {
        let wal = Scratch::new("api-again-wal");
        let wal = wal.0.display().to_string();
        let live = Live::at(Address::fresh_tcp(), io, &["-b", &wal, "--http-token", "TOKEN"]);
        let read = |secret: &str| live.connect().ask(&signed(&get("server"), secret)).status;
        assert_eq!((read(SECRET), read("the-next-secret-of-this-test")), (200, 401));
        let file = live.token_file();
        // A file without a token keeps the server as it is.
        fs::write(&file, "short").expect("the file is written");
        live.server.signal(Signal::SIGUSR2);
        live.await_line("no restart: ");
        assert_eq!(read(SECRET), 200);
        fs::write(&file, "the-next-secret-of-this-test").expect("the file is written");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
        live.server.signal(Signal::SIGUSR2);
        live.await_line("every user of this machine can read the token");
        live.await_line("ready after");
        let began = Instant::now();
        while read(SECRET) != 401 {
            assert!(began.elapsed() < REPLY_PATIENCE, "the old token is valid: {}", live.log());
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(read("the-next-secret-of-this-test"), 200);
    }
}
