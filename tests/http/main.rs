//! Metrics, health, readiness, the API and the console over HTTP.

mod api;
mod console;
mod documented;
mod slots;
mod turns;

use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use beanring::io::driver::Driver;
use beanring::server::{Config, Effect, Event, Origin, Peer, PeerKind, Protocol, Server, Service};
use beanring::time::Time;
use beanring::values::ids::ConnId;
#[cfg(feature = "tls")]
use beanring_testkit::certificates::{Certificates, Pair};
use beanring_testkit::client::{Client, put};
use beanring_testkit::config::config;
use beanring_testkit::driver;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics;
use nix::sys::signal::Signal;
#[cfg(feature = "tls")]
use std::path::PathBuf;

// The bare core, step by step.

/// A server with one HTTP connection and one client, and the bytes sent to each.
struct Bench {
    server: Server,
    conns: [ConnId; 2],
    sent: [Vec<u8>; 2],
    /// Maximum bytes per send.
    piece: usize,
    closed: bool,
}

const NOW: Time = Time::from_nanos(1);
const HTTP: usize = 0;
const CLIENT: usize = 1;

impl Bench {
    fn new(piece: usize) -> Self {
        Self::with(config(65_535), piece)
    }

    fn with(config: Config, piece: usize) -> Self {
        let mut server = Server::new(config);
        let conns = [server.accept(Protocol::Http), server.accept(Protocol::Beanstalk)];
        Self { server, conns, sent: Default::default(), piece, closed: false }
    }

    fn receive(&mut self, from: usize, text: &str) {
        self.server.handle(NOW, Event::Received { conn: self.conns[from], bytes: text.as_bytes() });
    }

    /// Runs one iteration. Returns the number of bytes sent to the HTTP connection.
    fn turn(&mut self) -> usize {
        let before = self.sent[HTTP].len();
        self.server.turn(NOW);
        while let Some(effect) = self.server.next_effect() {
            match effect {
                Effect::Send(conn) => while self.send(conn) {},
                Effect::Close(conn) => {
                    assert_eq!(conn, self.conns[HTTP]);
                    self.server.handle(NOW, Event::Closed { conn });
                    self.closed = true;
                }
                _ => {}
            }
        }
        self.server.check();
        self.sent[HTTP].len() - before
    }

    fn send(&mut self, conn: ConnId) -> bool {
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        self.server.outgoing(conn, &mut slices);
        let Some(first) = slices.first() else { return false };
        let bytes = first.len().min(self.piece);
        let to = self.conns.iter().position(|&known| known == conn).expect("the bench has two connections");
        self.sent[to].extend_from_slice(&first[..bytes]);
        self.server.handle(NOW, Event::Sent { conn, bytes });
        true
    }

    fn text(&self) -> String {
        String::from_utf8(self.sent[HTTP].clone()).expect("responses are text")
    }

    /// Makes turns until the response is complete, and asserts that a client is served after each. Returns their number, and
    /// the most bytes that were sent in one.
    fn respond_beside_a_client(&mut self) -> (usize, usize) {
        let (mut turns, mut largest) = (0, 0);
        while self.server.next_deadline() == Some(Time::ZERO) || turns == 0 {
            turns += 1;
            largest = self.turn().max(largest);
            let before = self.sent[CLIENT].len();
            self.receive(CLIENT, "use default\r\n");
            self.turn();
            let reply = &self.sent[CLIENT][before..];
            assert_eq!(reply, b"USING default\r\n", "clients are served while a response is made");
        }
        (turns, largest)
    }
}

#[test]
fn a_page_of_many_tubes_is_rendered_between_other_work() {
    const TUBES: usize = 3000;
    const METRICS_PER_TUBE: usize = 20;
    for piece in [usize::MAX, 1000, 17] {
        let mut bench = Bench::with(Config { metrics_tubes: u32::MAX, ..config(65_535) }, piece);
        for tube in 1..TUBES {
            bench.receive(CLIENT, &format!("use t{tube}\r\n{}", put(0, 0, "x")));
            bench.turn();
        }
        bench.receive(HTTP, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        let (turns, largest) = bench.respond_beside_a_client();
        assert!(turns > TUBES * METRICS_PER_TUBE / 1000 / 2, "{turns}");
        assert!(largest < 100_000, "{largest} bytes in one iteration");
        let page = unchunk(&bench.text());
        let ready =
            page.lines().filter(|line| line.starts_with("beanring_tube_jobs{") && line.contains("\"ready\""));
        assert_eq!(ready.filter(|line| line.ends_with("\"} 1")).count(), TUBES - 1);
        assert_eq!(page.lines().filter(|line| line.contains("{tube=")).count(), TUBES * METRICS_PER_TUBE);
    }
}

#[test]
fn a_page_shows_each_metric_of_a_tube_once_while_tubes_come_and_go() {
    const TUBES: usize = 600;
    let mut bench = Bench::new(usize::MAX);
    for tube in 0..TUBES {
        bench.receive(CLIENT, &format!("use t{tube}\r\n{}", put(0, 0, "x")));
        bench.turn();
    }
    bench.receive(HTTP, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut round = 0;
    while bench.server.next_deadline() == Some(Time::ZERO) || round == 0 {
        bench.turn();
        // A tube goes and comes back with another key, or with the key of another tube.
        let (first, second) = (round * 7 % TUBES, round * 11 % TUBES);
        for tube in [first, second] {
            bench.receive(CLIENT, &format!("use t{tube}\r\npeek-ready\r\n"));
            bench.turn();
            let replies = String::from_utf8_lossy(&bench.sent[CLIENT]).into_owned();
            if let Some((_, found)) = replies.rsplit_once("FOUND ") {
                let id = found.split(' ').next().expect("the reply has an id");
                bench.receive(CLIENT, &format!("delete {id}\r\nuse default\r\n"));
            }
            bench.sent[CLIENT].clear();
        }
        for tube in [second, first] {
            bench.receive(CLIENT, &format!("use t{tube}\r\n{}use default\r\n", put(0, 0, "x")));
        }
        round += 1;
    }
    let page = unchunk(&bench.text());
    let mut names: Vec<&str> = page.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let all = names.len();
    assert!(all > 19 * TUBES / 2 && round > 5, "{all} lines, {round} rounds");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "no line is repeated");
}

#[test]
fn a_scraper_that_does_not_read_takes_little_memory() {
    let mut bench = Bench::new(0);
    for tube in 0..3000 {
        bench.receive(CLIENT, &format!("use t{tube}\r\n{}", put(0, 0, "x")));
    }
    bench.piece = usize::MAX;
    for _ in 0..100 {
        bench.turn();
    }
    let before = bench.server.memory_bytes();
    let mut requests = 0;
    let mut is_paused = false;
    while !is_paused && requests < 10_000 {
        requests += 1;
        bench.receive(HTTP, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        // Nothing is sent.
        bench.server.turn(NOW);
        while let Some(effect) = bench.server.next_effect() {
            is_paused |= effect == Effect::Pause(bench.conns[HTTP]);
        }
    }
    assert!((100..1000).contains(&requests), "further requests stay in the kernel after {requests}");
    let grown = bench.server.memory_bytes() - before;
    assert!(grown < 400_000, "{grown} bytes");
}

const CROWD: usize = 64;

const LOOPBACK: Origin = Origin { network: 1, is_local: true };

/// Accepts an HTTP connection.
fn accept_from(server: &mut Server, origin: Origin) -> ConnId {
    let conn = server.accept(Protocol::Http);
    server.set_peer(conn, Peer { origin, ..Peer::new(PeerKind::Network, "peer") });
    conn
}

/// Sends a request over a new connection from this machine at `now`. Returns the connection, and those that were closed for it.
fn request_at(server: &mut Server, now: Time, request: &str, reads: bool) -> (ConnId, Vec<ConnId>) {
    let conn = accept_from(server, LOOPBACK);
    if !request.is_empty() {
        server.handle(now, Event::Received { conn, bytes: request.as_bytes() });
    }
    (conn, run_until_idle(server, now, reads))
}

/// Runs the server until it has nothing to do. Returns the connections that it closed.
fn run_until_idle(server: &mut Server, now: Time, read: bool) -> Vec<ConnId> {
    let mut closed = Vec::new();
    let mut goes_on = true;
    while goes_on {
        server.turn(now);
        goes_on = server.next_deadline() == Some(Time::ZERO);
        while let Some(effect) = server.next_effect() {
            goes_on = true;
            match effect {
                Effect::Send(conn) if read => {
                    let mut slices: Vec<IoSlice<'_>> = Vec::new();
                    server.outgoing(conn, &mut slices);
                    let bytes = slices.iter().map(|slice| slice.len()).sum();
                    server.handle(now, Event::Sent { conn, bytes });
                }
                Effect::Close(conn) => {
                    server.handle(now, Event::Closed { conn });
                    closed.push(conn);
                }
                _ => {}
            }
        }
    }
    closed
}

#[test]
fn the_unsent_bytes_of_all_connections_are_bounded() {
    let mut server = Server::new(config(65_535));
    let client = server.accept(Protocol::Beanstalk);
    for tube in 0..3000 {
        let text = format!("use t{tube}\r\n{}", put(0, 0, "x"));
        server.handle(NOW, Event::Received { conn: client, bytes: text.as_bytes() });
    }
    run_until_idle(&mut server, NOW, true);
    let before = server.memory_bytes();
    for _ in 0..CROWD {
        let (conn, _) = request_at(&mut server, NOW, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", false);
        // The client reads a little, then stops.
        let mut slices: Vec<IoSlice<'_>> = Vec::new();
        server.outgoing(conn, &mut slices);
        server.handle(NOW, Event::Sent { conn, bytes: 1 });
        run_until_idle(&mut server, NOW, false);
    }
    let each = (server.memory_bytes() - before) / CROWD as u64;
    assert!(each < 144 * 1024, "{each} bytes each");
}

#[test]
fn one_step_looks_at_a_bounded_number_of_clients() {
    const WORKERS: usize = 300;
    const TUBES: usize = 100;
    let mut bench = Bench::new(usize::MAX);
    let watches: String = (0..TUBES).map(|tube| format!("watch t{tube}\r\n")).collect();
    for _ in 0..WORKERS {
        let worker = bench.server.accept(Protocol::Beanstalk);
        let bytes = (watches.clone() + "reserve\r\n").into_bytes();
        bench.server.handle(NOW, Event::Received { conn: worker, bytes: &bytes });
        run_until_idle(&mut bench.server, NOW, true);
    }
    bench.receive(HTTP, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    let (mut turns, mut most) = (0, 0);
    while bench.server.next_deadline() == Some(Time::ZERO) || turns == 0 {
        let before = bench.sent[HTTP].len();
        bench.turn();
        let new = String::from_utf8_lossy(&bench.sent[HTTP][before..]).into_owned();
        most = new.matches("beanring_tube_waiting_connections{").count().max(most);
        turns += 1;
    }
    assert!(bench.text().contains(&format!("beanring_tube_waiting_connections{{tube=\"t0\"}} {WORKERS}\n")));
    assert!(most * WORKERS < 10_000, "{most} tubes with {WORKERS} workers each in one iteration");
}

// The live server.

/// A live server that serves HTTP on a UNIX socket in a scratch directory.
struct Live {
    server: ServerProcess,
    client: Client,
    scratch: Scratch,
}

impl Live {
    fn start(name: &str, io: Driver, flags: &[&str]) -> Self {
        let scratch = Scratch::new(&format!("http-{name}"));
        let http = format!("unix:{}", scratch.0.join("http").display());
        let mut all = driver::flags(io);
        all.extend(["--http".to_owned(), http]);
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let started = ServerProcess::launch(Command::new(program()), Address::fresh(Transport::Tcp), &all);
        let (server, stream) = started;
        Self { server, client: Client::new(stream), scratch }
    }

    fn path(&self) -> &Path {
        &self.scratch.0
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path().join("http")).expect("the server listens");
        stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("the timeout is valid");
        stream
    }

    /// Sends `text` and returns everything until the server closes the connection.
    fn request(&self, text: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).expect("the connection is open");
        read_to_end(&mut stream)
    }
}

fn read_to_end(stream: &mut UnixStream) -> String {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("the server closes the connection");
    String::from_utf8(all).expect("responses are text")
}

fn drivers() -> impl Iterator<Item = Driver> {
    Driver::ALL.iter().copied().filter(|&io| driver::is_allowed(io, "HTTP"))
}

/// Returns the body of a chunked response, which must end after its last chunk.
fn unchunk(answer: &str) -> String {
    let (head, mut rest) = answer.split_once("\r\n\r\n").expect("the response has a head");
    assert!(head.contains("\r\nTransfer-Encoding: chunked"), "{head}");
    let mut body = String::new();
    loop {
        let (length, chunk) = rest.split_once("\r\n").expect("a length");
        let length = usize::from_str_radix(length, 16).expect("a length");
        body += &chunk[..length];
        rest = chunk[length..].strip_prefix("\r\n").expect("the end of a chunk");
        if length == 0 {
            assert_eq!(rest, "");
            return body;
        }
    }
}

/// The flags of a listener with TLS, which has metrics of its own.
#[cfg(feature = "tls")]
fn tls_flags(directory: &Scratch) -> Vec<String> {
    let Pair { certificate, key } = Certificates::new(&directory.0).server;
    let path = |path: PathBuf| path.to_str().expect("a scratch directory has a simple name").to_owned();
    let [listen, cert_flag, key_flag] =
        ["--tls-listen=127.0.0.1:0", "--tls-cert", "--tls-key"].map(str::to_owned);
    vec![listen, cert_flag, path(certificate), key_flag, path(key)]
}

#[test]
fn metrics_are_as_documented_and_have_the_values_of_stats() {
    for io in drivers() {
        let log = Scratch::new("http-metrics-log");
        let log = log.0.to_str().expect("a scratch directory has a simple name");
        // With -f 0, and once all segments are prepared, the job log does nothing between two replies.
        let flags = ["--metrics-prefix", "queue", "-b", log, "-f", "0"].map(str::to_owned);
        #[cfg(feature = "tls")]
        let certificates = Scratch::new("http-metrics-certificates");
        #[cfg(feature = "tls")]
        let flags = [&flags[..], &tls_flags(&certificates)].concat();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut live = Live::start("metrics", io, &flags);
        let started = Instant::now();
        let mut asked = 1.0;
        while live.client.stat("wal-disk-bytes") < 30 << 20 {
            assert!(started.elapsed() < REPLY_PATIENCE, "three segments are prepared");
            thread::sleep(Duration::from_millis(10));
            asked += 1.0;
        }
        live.client.expect("use mail\r\n", "USING mail");
        for id in 1..=5 {
            live.client.expect(&put(id, 0, "x"), &format!("INSERTED {id}"));
        }
        live.client.expect("watch mail\r\n", "WATCHING 2");
        assert_eq!(live.client.ask("reserve\r\n").0, "RESERVED 1 1");
        live.client.expect("bury 1 0\r\n", "BURIED");
        live.client.expect("move-job 2 default\r\n", "MOVED");
        live.client.expect("delete 99\r\n", "NOT_FOUND");
        live.client.expect("tube-config mail max-jobs 4\r\n", "CONFIGURED");
        live.client.expect(&put(6, 0, "x"), "OUT_OF_MEMORY");
        let (_, stats) = live.client.ask("stats\r\n");
        let (_, tube) = live.client.ask("stats-tube mail\r\n");
        let page = unchunk(&live.request("GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        documented::check(&page);
        let compared = documented::compare_with_stats(&page, &stats, &tube);
        assert!(compared > 60, "{compared}");
        let value = |name: &str| {
            let found = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.unwrap_or_else(|| panic!("no {name} in {page}")).to_owned()
        };
        for (name, expected) in [
            ("queue_commands_total{command=\"put\"}", "6"),
            ("queue_commands_total{command=\"kick-job\"}", "0"),
            ("queue_errors_total{kind=\"not_found\"}", "1"),
            ("queue_errors_total{kind=\"bad_format\"}", "0"),
            ("queue_jobs_buried_total", "1"),
            ("queue_tube_rule_refusals_total{tube=\"mail\"}", "1"),
            ("queue_rule_refusals_total", "1"),
            ("queue_jobs_moved_total", "1"),
            ("queue_tube_jobs_buried_total{tube=\"mail\"}", "1"),
            ("queue_tube_queue_time_seconds_count{tube=\"mail\"}", "1"),
            ("queue_accept_paused", "0"),
            ("queue_wal_stalled", "0"),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        let number = |name: &str| value(name).parse::<f64>().expect("a number");
        assert_eq!(number("queue_wal_sync_seconds_count"), statistics::number(&stats, "wal-syncs") as f64);
        // The last `stats` is not among those that were asked for while segments were prepared.
        let replies = number("queue_reply_time_seconds_count") - asked - 1.0;
        assert!((11.0..=14.0).contains(&replies), "{page}");
        let received = number("queue_received_bytes_total") - asked * 7.0;
        assert!((150.0..500.0).contains(&received), "{asked}: {page}");
        let sent = number("queue_sent_bytes_total");
        assert!((1000.0..9000.0 * asked).contains(&sent), "{asked}: {page}");
        assert!(number("process_resident_memory_bytes") > 1e6, "{page}");
        assert!(number("process_start_time_seconds") > 1.7e9, "{page}");
        assert!(page.contains(&format!("queue_build_info{{version=\"{}\",", env!("CARGO_PKG_VERSION"))));
    }
}

#[test]
fn a_page_shows_the_busiest_tubes() {
    for (limit, shown) in [(0, 0), (2, 2), (3, 3), (100, 6)] {
        let config = Config { metrics_tubes: limit, ..config(65_535) };
        let mut bench = Bench::with(config, usize::MAX);
        let mut received = 0;
        for tube in 0..5 {
            let job = if tube >= 3 { put(0, 0, "x") } else { String::new() };
            let text = format!("watch t{tube}\r\nuse t{tube}\r\n{job}");
            received += text.len();
            bench.receive(CLIENT, &text);
            bench.turn();
        }
        bench.receive(HTTP, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        for _ in 0..10 {
            bench.turn();
        }
        let page = unchunk(&bench.text());
        let ready = page.lines().filter_map(|line| line.strip_prefix("beanring_tube_jobs{tube=\""));
        let ready: Vec<&str> = ready.filter(|line| line.contains("ready")).collect();
        assert_eq!(ready.len(), shown, "{page}");
        let are_busy = ready.iter().take(2).all(|line| line.starts_with("t3") || line.starts_with("t4"));
        assert_eq!(are_busy, limit < 6, "{ready:?}");
        for (name, value) in [
            ("tubes_not_shown", 6 - shown),
            ("received_bytes_total", received),
            ("sent_bytes_total", bench.sent[CLIENT].len()),
        ] {
            assert!(page.contains(&format!("\nbeanring_{name} {value}\n")), "{name} is not {value}: {page}");
        }
    }
}

#[test]
fn a_recovery_is_measured() {
    let log = Scratch::new("http-recovery-log");
    let flags = ["-b", log.0.to_str().expect("a scratch directory has a simple name")];
    for (recovered, id) in [(0, 1), (1, 2), (2, 3)] {
        let mut live = Live::start("recovery", Driver::Epoll, &flags);
        let page = live.request("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(page.contains(&format!("\nbeanring_wal_recovered_jobs {recovered}\n")), "{page}");
        let seconds = page.lines().find_map(|line| line.strip_prefix("beanring_wal_recovery_seconds "));
        let seconds: f64 = seconds.and_then(|text| text.parse().ok()).expect("a number");
        assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
        live.client.expect(&put(id, 0, "x"), &format!("INSERTED {id}"));
        live.server.signal(Signal::SIGTERM);
        assert_eq!(live.server.wait(), Some(0));
    }
}

#[test]
fn health_readiness_and_bad_requests() {
    for io in drivers() {
        let mut live = Live::start("health", io, &[]);
        let close = "Connection: close\r\n\r\n";
        let health = live.request(&format!("GET /healthz HTTP/1.1\r\nHost: a\r\n{close}"));
        assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\n\r\nok\n"), "{health}");
        for (asked, status) in [
            ("GET /readyz?now HTTP/1.0\r\n\r\n".to_owned(), "200 OK"),
            (format!("HEAD /healthz HTTP/1.1\r\nHost: a\r\n{close}"), "200 OK"),
            (format!("HEAD /metrics HTTP/1.1\r\nHost: a\r\n{close}"), "200 OK"),
            (format!("GET /nothing HTTP/1.1\r\nHost: a\r\n{close}"), "404 Not Found"),
            (format!("DELETE /metrics HTTP/1.1\r\nHost: a\r\n{close}"), "405 Method Not Allowed"),
            (
                "GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
                "400 Bad Request",
            ),
            ("put 0 0 1 1\r\na\r\n".to_owned(), "400 Bad Request"),
            (format!("GET / HTTP/1.1\r\nX: {}\r\n", "x".repeat(9000)), "431 Request Header Fields Too Large"),
        ] {
            let answer = live.request(&asked);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{asked:?}: {answer}");
            if asked.starts_with("HEAD") {
                assert!(answer.ends_with("\r\n\r\n"), "{asked:?}: {answer}");
            }
        }
        for (asked, body) in [
            ("GET /nothing", "no such page; request /, /metrics, /healthz, /readyz or /api/v1/server\n"),
            ("POST /metrics", "this method is not supported; use GET or HEAD\n"),
        ] {
            let answer = live.request(&format!("{asked} HTTP/1.1\r\nHost: a\r\n{close}"));
            assert_eq!(answer.split_once("\r\n\r\n").map(|(_, body)| body), Some(body), "{asked}");
        }
        let plain = live.request("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(plain.contains("\r\n\r\n# HELP beanring_jobs_urgent ") && plain.ends_with("} 0\n"));

        // Several requests over one connection, the last one incomplete, then the end of input.
        let mut stream = live.connect();
        let asked = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET";
        stream.write_all(asked.as_bytes()).expect("the connection is open");
        stream.shutdown(Shutdown::Write).expect("the connection is open");
        let answers = read_to_end(&mut stream);
        assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 3, "{answers}");
        assert!(answers.ends_with("\r\n\r\nok\n"), "{answers}");

        live.server.drain();
        while live.client.ask("put 0 0 1 1\r\na\r\n").0 != "DRAINING" {
            thread::sleep(Duration::from_millis(5));
        }
        let ready = live.request("GET /readyz HTTP/1.0\r\n\r\n");
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with("draining\n"), "{ready}");
        assert!(live.request("GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        live.server.signal(Signal::SIGTERM);
        assert_eq!(live.server.wait(), Some(0));
        assert!(fs::metadata(live.path().join("http")).is_err(), "the socket file is removed");
    }
}

#[test]
fn only_requests_for_allowed_hosts_are_answered() {
    let hostname =
        nix::unistd::gethostname().expect("the host has a name").into_string().expect("responses are text");
    for io in drivers() {
        let Address::Tcp(address) = Address::fresh(Transport::Tcp) else { panic!("it is TCP") };
        let http = format!("{}:{}", address.ip(), address.port() + 1);
        let names = ["--http-host", "queue.example,*.svc", "--http", &http].map(str::to_owned);
        let flags = [driver::flags(io), names.to_vec()].concat();
        let (_server, _client) =
            ServerProcess::launch(Command::new(program()), Address::Tcp(address), &flags);
        let ask = |text: &str| {
            let mut stream = TcpStream::connect(&http).expect("the server listens");
            stream.set_read_timeout(Some(REPLY_PATIENCE)).expect("the timeout is valid");
            stream.write_all(text.as_bytes()).expect("the connection is open");
            stream.shutdown(Shutdown::Write).expect("the connection is open");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("the server closes the connection");
            answer
        };
        let known =
            ["127.0.0.1:9100", "10.9.8.7", "[::1]:9100", "localhost:1", "queue.example", "a.svc:9100"];
        for host in known.into_iter().chain([&*http, &*hostname]) {
            let answer = ask(&format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert!(
                answer.starts_with("HTTP/1.1 200 ") && answer.contains("beanring_build_info"),
                "{host}: {answer}"
            );
        }
        for host in ["evil.example", "evil.example:9100", "svc", "queue.example.evil.example"] {
            for path in ["/metrics", "/healthz", "/readyz", "/"] {
                let answer = ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                assert!(answer.starts_with("HTTP/1.1 421 Misdirected Request\r\n"), "{host}: {answer}");
                let (_, body) = answer.split_once("\r\n\r\n").expect("the response has a head");
                assert!(body.lines().count() == 1 && body.contains("--http-host"), "{host}: {body:?}");
            }
        }
        for (text, status) in [
            ("GET /healthz HTTP/1.0\r\n\r\n", "200"),
            ("GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n", "421"),
            ("GET /healthz HTTP/1.1\r\n\r\n", "400"),
            ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", "400"),
            ("GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "421"),
            ("GET http://localhost/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", "200"),
        ] {
            assert!(ask(text).starts_with(&format!("HTTP/1.1 {status} ")), "{text:?}");
        }
        let both = ask(
            "GET /healthz HTTP/1.1\r\nHost: evil\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        );
        assert!(both.contains("421 Misdirected") && both.ends_with("\r\n\r\nok\n"), "{both}");

        // A browser cannot connect to a UNIX socket.
        let live = Live::start("hosts", io, &[]);
        let answer = live.request("GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(live.request("GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }
}

#[test]
fn a_probe_gets_in_beside_a_crowd_of_scrapers_and_clients() {
    for io in drivers() {
        let live = Live::start("crowd", io, &["--max-connections", "1"]);
        // --max-connections allows one client, and it is connected.
        let page = live.request("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(page.contains("\nbeanring_accept_paused 1\n"), "{page}");
        let mut crowd: Vec<UnixStream> = (0..200).map(|_| live.connect()).collect();
        let health = live.request("GET /healthz HTTP/1.0\r\n\r\n");
        assert!(health.ends_with("ok\n"), "{health}");
        let closed = crowd.iter_mut().filter(|stream| {
            stream.set_nonblocking(true).expect("the connection is open");
            matches!((&**stream).read(&mut [0]), Ok(0))
        });
        let closed = closed.count();
        assert!((130..200).contains(&closed), "{closed} of 200 were closed");
    }
}
