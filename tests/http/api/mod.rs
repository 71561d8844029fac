//! The API: `/api/v1`.

mod access;
mod actions;
mod bodies;
mod gate;
mod lists;
mod live;
mod tags;

use std::fs;
use std::path::Path;
use std::time::Duration;

use beanring::server::{Config, HttpAccess, PeerKind};
use beanring_testkit::config::config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::{Patience, Peer, Received};
use serde_json::Value;

const JSON: &str = "application/json";
const OCTETS: &str = "application/octet-stream";

/// A response with a length, or in chunks.
#[derive(Debug)]
struct Response {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Response {
    /// Takes the first response off `bytes`, if it is complete.
    fn take(bytes: &mut Vec<u8>, has_body: bool) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is text");
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest[..3].parse().ok());
        let mut response = Self { status: status.expect("a status"), head, body: Vec::new() };
        let mut used = end;
        if response.field("Transfer-Encoding") == Some("chunked") && has_body {
            loop {
                let rest = &bytes[used..];
                let line = rest.windows(2).position(|two| two == b"\r\n")?;
                let length = str::from_utf8(&rest[..line]).expect("a length is text");
                let length = usize::from_str_radix(length, 16).expect("a length");
                response.body.extend_from_slice(rest.get(line + 2..line + 2 + length)?);
                assert_eq!(rest.get(line + 2 + length..line + 4 + length)?, b"\r\n");
                used += line + 4 + length;
                if length == 0 {
                    break;
                }
            }
        } else if response.status != 100 && has_body {
            let length = response.field("Content-Length").and_then(|length| length.parse().ok());
            response.body = bytes.get(end..end + length.unwrap_or(0))?.to_vec();
            used += length.expect("a length");
        }
        bytes.drain(..used);
        Some(response)
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn json(&self) -> Value {
        assert_eq!(self.field("Content-Type"), Some(JSON), "{self:?}");
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status and the word of an error.
    fn error(&self) -> (u16, String) {
        let body = self.json();
        assert!(body["message"].as_str().is_some_and(|text| text.len() > 20), "{body}");
        (self.status, body["error"].as_str().expect("an error has a word").to_owned())
    }
}

/// A request with more header fields, and with a body if it has a type.
fn request_with(method: &str, path: &str, fields: &str, body: Option<(&str, &[u8])>) -> Vec<u8> {
    let mut text = format!("{method} /api/v1/{path} HTTP/1.1\r\nHost: a:1\r\n{fields}");
    if let Some((kind, body)) = body {
        text += &format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    }
    let mut bytes = (text + "\r\n").into_bytes();
    bytes.extend_from_slice(body.map_or(&[], |(_, body)| body));
    bytes
}

fn get(path: &str) -> Vec<u8> {
    request_with("GET", path, "", None)
}

fn post(path: &str, json: &str) -> Vec<u8> {
    request_with("POST", path, "", Some((JSON, json.as_bytes())))
}

fn put(path: &str, body: &[u8]) -> Vec<u8> {
    request_with("POST", path, "", Some((OCTETS, body)))
}

fn delete(path: &str) -> Vec<u8> {
    request_with("DELETE", path, "", None)
}

/// A server in memory whose peers on this machine may write.
fn writable() -> Config {
    Config { http_access: HttpAccess { token: None, allow_writes: true }, ..config(65_535) }
}

/// A server in memory, a connection to its HTTP listener, and one of a client.
struct Bench {
    server: InMemoryServer,
    http: usize,
    client: usize,
    received: Vec<u8>,
}

impl Bench {
    fn new(config: Config, cut: Cut) -> Self {
        let mut server = InMemoryServer::with(config, cut);
        let (http, client) = (server.open_http(PeerKind::Loopback), server.open());
        Self { server, http, client, received: Vec::new() }
    }

    fn writable() -> Self {
        Self::new(writable(), Cut::Whole)
    }

    /// Sends a request. Returns the response.
    fn ask(&mut self, request: &[u8]) -> Response {
        self.server.send(self.http, request);
        self.response(!request.starts_with(b"HEAD"))
    }

    /// Returns the next response.
    fn response(&mut self, has_body: bool) -> Response {
        self.next(has_body).unwrap_or_else(|| {
            panic!("no response: {:?}", String::from_utf8_lossy(&self.received));
        })
    }

    fn next(&mut self, has_body: bool) -> Option<Response> {
        if let Received::Bytes(bytes) = self.server.receive(self.http, Patience::Quiet) {
            self.received.extend(bytes);
        }
        Response::take(&mut self.received, has_body)
    }

    /// Sends part of a request.
    fn send(&mut self, part: &[u8]) {
        self.server.send(self.http, part);
    }

    /// Begins with a new connection to the HTTP listener.
    fn reconnect(&mut self, kind: PeerKind) {
        self.server.close(self.http);
        self.received.clear();
        self.http = self.server.open_http(kind);
    }

    fn is_closed(&mut self) -> bool {
        self.received.is_empty() && self.server.receive(self.http, Patience::Quiet) == Received::Closed
    }

    /// Has a client send commands. Returns all replies.
    fn command(&mut self, text: &str) -> String {
        self.server.send(self.client, text.as_bytes());
        match self.server.receive(self.client, Patience::Quiet) {
            Received::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Received::Silence | Received::Closed => String::new(),
        }
    }

    fn advance(&mut self, seconds: u64) {
        self.server.advance(Duration::from_secs(seconds));
    }

    /// The value of a statistic of a tube or a job.
    fn stat(&mut self, command: &str, key: &str) -> String {
        let report = self.command(command);
        let value = report.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        value.unwrap_or_else(|| panic!("no {key}: {report}")).to_owned()
    }
}

#[test]
fn the_api_says_where_it_begins() {
    let mut bench = Bench::writable();
    let ask = |bench: &mut Bench, method: &str, path: &str| {
        bench.ask(format!("{method} {path} HTTP/1.1\r\nHost: a:1\r\n\r\n").as_bytes())
    };
    let index = ask(&mut bench, "GET", "/api/v1").json();
    let paths: Vec<&str> = index.as_object().expect("an object").values().filter_map(Value::as_str).collect();
    assert_eq!(paths.len(), 3);
    for path in paths {
        assert_eq!(ask(&mut bench, "GET", path).status, 200, "{path}");
    }
    let description = ask(&mut bench, "GET", "/api/v1/openapi.yaml");
    let file =
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.yaml")).expect("it is there");
    assert_eq!(description.body, file);
    assert_eq!(description.field("Content-Type"), Some("application/yaml"));
    assert_eq!(ask(&mut bench, "HEAD", "/api/v1/openapi.yaml").status, 200);
    assert_eq!(ask(&mut bench, "POST", "/api/v1").status, 405);
    assert_eq!(ask(&mut bench, "GET", "/api/v1/").status, 404);
}
