//! Prometheus, probes and consoles over HTTP while tubes come and go. Every request, in whatever pieces, is answered
//! completely and in order.

use std::collections::BTreeSet;

use beanring::server::{Config, Effect, Entry, Event, HttpAccess, Peer, PeerKind, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::values::account::Held;
use beanring::values::ids::ConnId;
use beanring::values::limits::HTTP_HEAD_BYTES_MAX;

use super::super::config::config;
use super::super::connection::{Connection, ConnectionState, send_all};
use super::input::Input;

const METHODS: [&str; 5] = ["GET", "GET", "GET", "HEAD", "PUT"];
const PATHS: [&str; 6] = ["/metrics", "/metrics", "/healthz", "/readyz", "/readyz?a=b", "/metrics/"];
const VERSIONS: [&str; 3] = ["1.1", "1.1", "1.0"];
const HEADERS: [&str; 4] = ["", "Accept: a\r\n", "Connection: keep-alive\r\n", "Connection: close\r\n"];
/// Requests of the API, and the statuses of their responses. `#` stands for a small number, and `@` for a body of that many
/// bytes. The client of the queue reserves no job.
const CALLS: [(&str, &str, &str, &[&str]); 27] = [
    ("GET", "server", "", &["200"]),
    ("GET", "tubes?sort=waiting&order=desc&offset=#&limit=20", "", &["200"]),
    ("HEAD", "tubes?filter=#", "", &["200"]),
    ("GET", "tubes/#", "", &["200", "404"]),
    ("GET", "tubes/#/next/ready", "", &["200", "404"]),
    ("GET", "jobs/#", "", &["200", "404"]),
    ("GET", "jobs/#/body?limit=#", "", &["200", "404"]),
    ("POST", "tubes/#/jobs?delay=#", "@", &["201", "413", "503"]),
    ("POST", "tubes/#/kick", "{\"count\":#}", &["200", "400", "404"]),
    ("POST", "tubes/#/pause", "{\"seconds\":#}", &["200", "404"]),
    ("POST", "jobs/#/bury", "{\"priority\":#}", &["200", "404", "409"]),
    ("POST", "jobs/#/release", "{\"priority\":#,\"delay\":#}", &["200", "404", "409"]),
    ("DELETE", "jobs/#", "", &["200", "404"]),
    ("GET", "tubes/#/jobs?after=#&limit=9", "", &["200", "404"]),
    ("POST", "tubes/#/flush", "{}", &["200", "404"]),
    ("POST", "jobs/#/kick", "{\"count\":#}", &["400"]),
    ("POST", "tubes/#/jobs?idp=#:9&con=a&grp=g", "@", &["200", "201", "413", "503"]),
    ("POST", "tubes/#/jobs?aft=g", "@", &["201", "413", "503"]),
    ("GET", "groups/g", "", &["200", "404"]),
    ("POST", "jobs/#/move", "{\"to\":\"#\"}", &["200", "404", "409"]),
    ("POST", "tubes/1/move", "{\"to\":\"2\",\"state\":\"ready\",\"count\":#}", &["200", "400", "404"]),
    ("POST", "tubes/#/config", "{\"key\":\"max-attempts\",\"value\":#}", &["200", "400"]),
    ("PUT", "schedules/#?tube=#&when=every:#", "@", &["200", "400", "413"]),
    ("GET", "schedules?after=#&limit=9", "", &["200"]),
    ("GET", "schedules/#", "", &["200", "404"]),
    ("POST", "schedules/#/run", "{}", &["201", "404", "503"]),
    ("DELETE", "schedules/#", "", &["200", "404"]),
];
/// Fields that are right, wrong, or said twice, and lines that are none.
const FIELDS: [&str; 20] = [
    "Host: a",
    "Host: b",
    "Host : a",
    "host:a",
    "Content-Length: 5",
    "Content-Length: +5",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Expect: 100-continue",
    "Authorization: Bearer 0123456789abcdef",
    "Connection: close, keep-alive",
    "Content-Type: application/octet-stream",
    "Origin: http://b",
    "If-None-Match: *",
    " folded",
    ":",
    "\0: a",
    "",
    "X-\u{e9}: \u{e9}",
    "X",
];
const LINE_ENDS: [&str; 6] = ["\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n"];
const MONITORS_MAX: usize = 8;
/// More lines than one step renders.
const TUBES: usize = 60;
/// What an iteration may cost: its events until a driver keeps further ones (8,192 steps), the last of them, and the turns of
/// connections in two phases.
const ITERATION_STEPS_MAX: u64 = 4 * 8192;

struct Watched {
    server: Server,
    now: Time,
    client: ConnId,
    monitors: Vec<Monitor>,
    is_draining: bool,
    /// The position of the budget at which the iteration has begun.
    iteration: u64,
}

struct Monitor {
    connection: Connection,
    expected: Vec<Expected>,
    /// The client has sent something that is no request.
    is_wild: bool,
    /// Number of sent bytes that may not be answered yet.
    unanswered_bytes: usize,
    received: Vec<u8>,
    is_broken: bool,
}

/// An expected response.
struct Expected {
    statuses: &'static [&'static str],
    has_body: bool,
    is_page: bool,
    keeps_alive: bool,
}

/// Runs an input. Each byte is an action.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let http_access = HttpAccess { token: None, allow_writes: true };
    let mut server = Server::new(Config { http_access, ..config(100) });
    let client = server.accept(Time::ZERO, Protocol::Beanstalk, Entry::Plain(None));
    let mut watched =
        Watched { server, now: Time::ZERO, client, monitors: Vec::new(), is_draining: false, iteration: 0 };
    watched.connect();
    while !input.is_empty() {
        watched.step(&mut input);
    }
    watched.end();
}

impl Watched {
    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let at = input.below(self.monitors.len());
        match what & 0x0f {
            0 if self.monitors.len() < MONITORS_MAX => self.connect(),
            1 => self.tubes(input),
            2 => self.receive(at, usize::from(input.half())),
            3 | 4 => _ = self.send(at, usize::from(input.half())),
            5 => self.turn(),
            6 => self.monitors[at].connection.is_half_closed = true,
            7 => self.hang_up(at),
            8 => {
                let length = input.below(256);
                let bytes = input.bytes(length);
                let is_heard = !bytes.is_empty() && self.monitors[at].send(bytes);
                self.monitors[at].is_wild |= is_heard;
            }
            9 if input.byte() == 0 => {
                self.is_draining = true;
                self.server.handle(self.now, Event::Drain);
            }
            10 => self.now = self.now + Span::from_millis(u32::from(input.half())),
            11 | 12 => self.monitors[at].call(input),
            13 => self.monitors[at].say_anything(input),
            _ => self.monitors[at].ask(input),
        }
        if what & 0x40 == 0 {
            self.settle();
        }
    }

    fn connect(&mut self) {
        let peer = Peer::new(PeerKind::Loopback, "loopback");
        let conn = self.server.accept(self.now, Protocol::Http, Entry::Plain(Some(peer)));
        self.monitors.push(Monitor {
            connection: Connection::new(conn),
            expected: Vec::new(),
            is_wild: false,
            unanswered_bytes: 0,
            received: Vec::new(),
            is_broken: false,
        });
        self.carry_out();
    }

    /// Creates tubes, or lets them disappear.
    fn tubes(&mut self, input: &mut Input<'_>) {
        let (what, first) = (input.below(2), input.below(TUBES));
        let commands: String = (0..TUBES)
            .map(|tube| match what {
                0 => format!("use {}\r\nput 0 0 1 0\r\n\r\n", (first + tube) % TUBES),
                _ => format!("delete {}\r\n", first + tube),
            })
            .collect();
        let bytes = commands.as_bytes();
        self.server.handle(self.now, Event::Received { conn: self.client, bytes });
        self.carry_out();
    }

    fn receive(&mut self, at: usize, count: usize) {
        self.make_room();
        let monitor = &mut self.monitors[at];
        if monitor.is_gone() {
            return;
        }
        assert!(self.server.direct(monitor.connection.conn).is_none(), "there are no bodies");
        if count > 0 && !monitor.connection.unreceived.is_empty() {
            monitor.connection.receive(count, false, &mut self.server, self.now);
            self.carry_out();
        }
        let monitor = &mut self.monitors[at];
        if !monitor.is_gone()
            && let Some(event) = monitor.connection.end_of_input()
        {
            self.server.handle(self.now, event);
            self.carry_out();
        }
    }

    /// Sends up to `count` bytes.
    fn send(&mut self, at: usize, count: usize) -> bool {
        self.make_room();
        let Monitor { connection, received, is_broken, .. } = &mut self.monitors[at];
        if !connection.wants_send || !connection.is_open() || *is_broken {
            return false;
        }
        connection.begin_send(&mut self.server);
        if !connection.is_sending() {
            return false;
        }
        let sent = connection.end_send(count, &mut self.server);
        received.extend_from_slice(&sent);
        self.server.handle(self.now, Event::Sent { conn: connection.conn, bytes: sent.len() });
        self.carry_out();
        true
    }

    fn hang_up(&mut self, at: usize) {
        let monitor = &mut self.monitors[at];
        if !monitor.is_gone() {
            monitor.is_broken = true;
            let conn = monitor.connection.conn;
            self.server.handle(self.now, Event::HungUp { conn });
            self.carry_out();
        }
    }

    fn turn(&mut self) {
        self.server.turn(self.now);
        self.carry_out();
        let spent = self.server.budget().spent();
        let steps = spent - std::mem::replace(&mut self.iteration, spent);
        assert!(steps <= ITERATION_STEPS_MAX, "an iteration has cost {steps} steps");
    }

    /// Ends the iteration if a driver would keep further events.
    fn make_room(&mut self) {
        if self.server.budget().is_full() {
            self.turn();
        }
    }

    /// Waits until all requests are answered.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "there is always something to do");
            let mut is_busy = false;
            for at in 0..self.monitors.len() {
                self.receive(at, usize::MAX);
                is_busy |= self.send(at, usize::MAX);
            }
            self.turn();
            is_busy |= self.server.next_deadline().is_some_and(|due| due <= self.now);
            is_busy |=
                self.monitors.iter().any(|monitor| monitor.connection.wants_send && !monitor.is_gone());
            if !is_busy {
                break;
            }
        }
        self.server.check();
        self.monitors.iter_mut().for_each(|monitor| monitor.unanswered_bytes = 0);
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Send(conn) if conn == self.client => {
                    send_all(&mut self.server, conn, self.now);
                }
                Effect::Send(conn) | Effect::Close(conn) => {
                    let monitors = &mut self.monitors;
                    let monitor = monitors.iter_mut().find(|monitor| monitor.connection.conn == conn);
                    let Monitor { connection, .. } = monitor.expect("it is one of those");
                    connection.apply(&effect);
                    connection.close(&mut self.server, self.now);
                }
                Effect::Pause(conn) | Effect::Resume(conn) => assert_eq!(conn, self.client),
                Effect::LogClient(conn, _) => assert_eq!(conn, self.client),
                Effect::Log | Effect::Fail => panic!("there is no disk"),
            }
        }
    }

    /// Disconnects all clients after their last response.
    fn end(mut self) {
        self.settle();
        for monitor in self.monitors.iter().filter(|monitor| !monitor.is_broken) {
            monitor.check(self.is_draining);
        }
        self.monitors.iter_mut().for_each(|monitor| monitor.connection.is_half_closed = true);
        self.settle();
        assert!(self.monitors.iter().all(Monitor::is_closed), "a connection without input ends");
        let account = self.server.account();
        for kind in [Held::HttpInput, Held::HttpWork] {
            assert_eq!(account.of(kind), 0, "something is left of {kind:?}");
        }
    }
}

impl Monitor {
    fn is_gone(&self) -> bool {
        self.is_broken || !self.connection.is_open()
    }

    fn is_closed(&self) -> bool {
        self.connection.state == ConnectionState::Closed
    }

    /// The server would not receive all requests of a client that sends more than this before it is answered.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let is_heard =
            !self.connection.is_half_closed && self.unanswered_bytes + bytes.len() <= HTTP_HEAD_BYTES_MAX;
        if is_heard {
            self.unanswered_bytes += bytes.len();
            self.connection.unreceived.extend_from_slice(bytes);
        }
        is_heard
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let (method, path) = (input.pick(&METHODS), input.pick(&PATHS));
        let (version, header) = (input.pick(&VERSIONS), input.pick(&HEADERS));
        let request = format!("{method} {path} HTTP/{version}\r\nHost: a\r\n{header}\r\n");
        if !self.send(request.as_bytes()) || self.is_wild {
            return;
        }
        let is_page = method == "GET" && path == "/metrics";
        self.expected.push(Expected {
            statuses: match path {
                _ if method == "PUT" => &["405"],
                "/metrics/" => &["404"],
                "/readyz" | "/readyz?a=b" => &["200", "503"],
                _ => &["200"],
            },
            has_body: method != "HEAD",
            is_page,
            keeps_alive: version == "1.1" && header != "Connection: close\r\n",
        });
    }

    /// Sends a head of any fields, which may be a request.
    fn say_anything(&mut self, input: &mut Input<'_>) {
        let method = input.pick(&["GET", "POST", "DELETE", "get", "G\tT", "", "OPTIONS"]);
        let path = input.pick(&["/metrics", "/api/v1/tubes/1/jobs", "*", "http://b/healthz", "/%", ""]);
        let version = input.pick(&["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1", ""]);
        let mut head = format!("{method} {path} {version}{}", input.pick(&LINE_ENDS));
        let count = if input.below(16) == 1 { 70 } else { input.below(8) };
        for _ in 0..count {
            head += input.pick(&FIELDS);
            head += input.pick(&LINE_ENDS);
        }
        head += input.pick(&["\r\n", "\r\n", "\r\nhello", "\n\n", ""]);
        self.is_wild |= self.send(head.as_bytes());
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let (method, path, body, statuses) = input.pick(&CALLS);
        let (version, header) = (input.pick(&VERSIONS), input.pick(&HEADERS));
        let mut fill = |text: &str| {
            let parts: Vec<&str> = text.split('#').collect();
            parts.into_iter().fold(String::new(), |all, part| match all.is_empty() {
                true => part.to_owned(),
                false => format!("{all}{}{part}", input.below(TUBES)),
            })
        };
        let path = fill(path);
        let (kind, body) = match body {
            "@" => ("octet-stream", "\r\n".repeat(2 * fill("a#")[1..].parse::<usize>().expect("a number"))),
            json => ("json", fill(json)),
        };
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("Content-Type: application/{kind}\r\nContent-Length: {}\r\n", body.len())
        };
        let is_empty_put = kind == "octet-stream" && body.is_empty();
        let request =
            format!("{method} /api/v1/{path} HTTP/{version}\r\nHost: a\r\n{header}{length}\r\n{body}");
        if is_empty_put || !self.send(request.as_bytes()) || self.is_wild {
            return;
        }
        let keeps_alive = version == "1.1" && header != "Connection: close\r\n";
        self.expected.push(Expected { statuses, has_body: method != "HEAD", is_page: false, keeps_alive });
    }

    /// Checks a response against its request.
    fn check(&self, is_draining: bool) {
        let mut rest = &*self.received;
        for expected in &self.expected {
            let status = expected.read(&mut rest).expect("every request is answered");
            assert!(expected.statuses.contains(&&*status), "{status}");
            assert!(is_draining || status != "503", "it is ready");
            if !expected.keeps_alive {
                assert!(self.is_closed() && rest.is_empty(), "nothing comes after the end");
                return;
            }
        }
        if !self.is_wild {
            assert!(rest.is_empty(), "every response has a request");
            assert_eq!(
                self.is_closed(),
                self.connection.is_half_closed,
                "it is closed after the last request"
            );
        }
    }
}

impl Expected {
    /// Removes the first response and returns its status, or none if it is incomplete.
    fn read(&self, rest: &mut &[u8]) -> Option<String> {
        let end = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let head = str::from_utf8(&rest[..end]).expect("it is text");
        *rest = &rest[end + 4..];
        let mut lines = head.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.1 ").expect("it begins with the version").get(..3)?;
        let field = |name: &str| lines.clone().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        assert_eq!(field("Connection"), (!self.keeps_alive).then_some("close"), "{head}");
        let length = field("Content-Length").map(|length| length.parse().expect("a number"));
        let is_chunked = field("Transfer-Encoding") == Some("chunked");
        let body = match length {
            _ if !self.has_body => Vec::new(),
            Some(length) => rest.split_off(..length)?.to_vec(),
            None if is_chunked => unchunked(rest)?,
            None => std::mem::take(rest).to_vec(),
        };
        if self.is_page {
            check_page(str::from_utf8(&body).expect("it is text"));
        }
        Some(status.to_owned())
    }
}

fn unchunked(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n")?;
        let length = str::from_utf8(&rest[..end]).expect("a number");
        let length = usize::from_str_radix(length, 16).expect("a number");
        *rest = &rest[end + 2..];
        body.extend_from_slice(rest.split_off(..length)?);
        assert_eq!(rest.split_off(..2)?, b"\r\n", "a chunk ends where it says");
        if length == 0 {
            return Some(body);
        }
    }
}

/// Asserts that no metric appears twice and that each line is complete.
fn check_page(page: &str) {
    assert!(page.ends_with('\n'), "the last line is whole");
    let mut names = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with("# ")) {
        let (name, value) = line.rsplit_once(' ').expect(line);
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(names.insert(name), "{name} appears twice");
    }
    assert!(names.contains("beanring_jobs{state=\"ready\"}"), "it is a page of metrics");
}
