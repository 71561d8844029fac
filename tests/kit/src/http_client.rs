//! HTTP requests and responses, and clients that exchange them with a server process or a server in memory.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use beanring::server::{Config, HttpAccess, PeerKind};
use serde_json::Value;

use super::config::config;
use super::in_memory::{Cut, InMemoryServer};
use super::peer::{Patience, Peer, Received};
use super::process::REPLY_PATIENCE;
use super::statistics;
use super::stream::Stream;

pub const JSON: &str = "application/json";
pub const OCTETS: &str = "application/octet-stream";

/// Returns a request with more header fields, and with a body if it has a type. Every server has the host.
pub fn request(method: &str, target: &str, fields: &str, body: Option<(&str, &[u8])>) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: localhost:1\r\n{fields}");
    if let Some((kind, body)) = body {
        text += &format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    }
    let mut bytes = (text + "\r\n").into_bytes();
    bytes.extend_from_slice(body.map_or(&[], |(_, body)| body));
    bytes
}

/// Returns a request for a page.
pub fn page(target: &str) -> Vec<u8> {
    request("GET", target, "", None)
}

/// Returns a request to the API.
pub fn api(method: &str, path: &str, fields: &str, body: Option<(&str, &[u8])>) -> Vec<u8> {
    request(method, &format!("/api/v1/{path}"), fields, body)
}

pub fn get(path: &str) -> Vec<u8> {
    api("GET", path, "", None)
}

pub fn post(path: &str, json: &str) -> Vec<u8> {
    api("POST", path, "", Some((JSON, json.as_bytes())))
}

pub fn put(path: &str, body: &[u8]) -> Vec<u8> {
    api("POST", path, "", Some((OCTETS, body)))
}

pub fn delete(path: &str) -> Vec<u8> {
    api("DELETE", path, "", None)
}

/// Adds header fields to a request.
pub fn with_fields(request: &[u8], fields: &str) -> Vec<u8> {
    let line = request.windows(2).position(|two| two == b"\r\n").expect("a request has a line") + 2;
    [&request[..line], fields.as_bytes(), &request[line..]].concat()
}

/// Adds a token to a request.
pub fn signed(request: &[u8], token: &str) -> Vec<u8> {
    with_fields(request, &format!("Authorization: Bearer {token}\r\n"))
}

/// A response with a length, or in chunks.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    /// Takes the first response off `bytes`, if it is complete.
    pub fn take(bytes: &mut Vec<u8>, has_body: bool) -> Option<Self> {
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

    /// A proxy may write the names in another case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(field, value)| field.eq_ignore_ascii_case(name).then_some(value))
    }

    /// Returns the body as text.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("the body is text")
    }

    /// Returns the body, which must be JSON.
    pub fn json(&self) -> Value {
        assert_eq!(self.field("Content-Type"), Some(JSON), "{self:?}");
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the status and the word of an error of the API.
    pub fn error(&self) -> (u16, String) {
        assert!(self.message().len() > 20, "{self:?}");
        (self.status, self.json()["error"].as_str().expect("an error has a word").to_owned())
    }

    /// Returns the sentence of an error of the API.
    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_else(|| panic!("no message: {self:?}")).to_owned()
    }
}

/// A client of a server process.
pub struct HttpClient {
    pub stream: Stream,
    received: Vec<u8>,
}

impl HttpClient {
    pub const fn new(stream: Stream) -> Self {
        Self { stream, received: Vec::new() }
    }

    pub fn tcp(at: SocketAddr) -> Self {
        Self::new(Stream::Tcp(TcpStream::connect(at).expect("the server listens")))
    }

    pub fn unix(path: &Path) -> Self {
        Self::new(Stream::Unix(UnixStream::connect(path).expect("the server listens")))
    }

    /// Sends a request. Returns the response.
    pub fn ask(&mut self, request: &[u8]) -> Response {
        self.stream.send(request);
        self.response(!request.starts_with(b"HEAD"))
    }

    /// The same, unless the connection ends.
    pub fn try_ask(&mut self, request: &[u8]) -> Option<Response> {
        self.stream.send(request);
        self.next_response(!request.starts_with(b"HEAD"))
    }

    /// Returns the next response.
    ///
    /// # Panics
    /// If none comes.
    pub fn response(&mut self, has_body: bool) -> Response {
        let next = self.next_response(has_body);
        next.unwrap_or_else(|| panic!("the connection ended: {:?}", String::from_utf8_lossy(&self.received)))
    }

    fn next_response(&mut self, has_body: bool) -> Option<Response> {
        loop {
            let response = Response::take(&mut self.received, has_body);
            if response.is_some() || !self.receive() {
                return response;
            }
        }
    }

    /// Returns everything that comes until the server closes the connection.
    pub fn rest(&mut self) -> String {
        while self.receive() {}
        String::from_utf8(std::mem::take(&mut self.received)).expect("responses are text")
    }

    /// Returns whether the connection goes on.
    fn receive(&mut self) -> bool {
        match self.stream.receive(REPLY_PATIENCE) {
            Received::Bytes(bytes) => self.received.extend(bytes),
            Received::Closed => return false,
            Received::Silence => panic!("no response: {:?}", String::from_utf8_lossy(&self.received)),
        }
        true
    }
}

/// Returns the configuration of a server whose peers on this machine may write.
pub fn writable() -> Config {
    Config { http_access: HttpAccess { token: None, allow_writes: true }, ..config(65_535) }
}

/// A server in memory, a connection to its HTTP listener, and one of a client.
pub struct HttpInMemory {
    pub server: InMemoryServer,
    pub http: usize,
    pub client: usize,
    pub received: Vec<u8>,
}

impl HttpInMemory {
    pub fn new(config: Config, cut: Cut) -> Self {
        let mut server = InMemoryServer::with(config, cut);
        let (http, client) = (server.open_http(PeerKind::Loopback), server.open());
        Self { server, http, client, received: Vec::new() }
    }

    pub fn writable() -> Self {
        Self::new(writable(), Cut::Whole)
    }

    /// Sends a request. Returns the response, which comes after a second if the request has a wrong token.
    pub fn ask(&mut self, request: &[u8]) -> Response {
        self.send(request);
        let has_body = !request.starts_with(b"HEAD");
        let at_once = self.next(has_body);
        at_once.unwrap_or_else(|| {
            self.advance(1);
            self.response(has_body)
        })
    }

    /// Returns the next response.
    ///
    /// # Panics
    /// If there is none.
    pub fn response(&mut self, has_body: bool) -> Response {
        self.next(has_body)
            .unwrap_or_else(|| panic!("no response: {:?}", String::from_utf8_lossy(&self.received)))
    }

    /// Returns the next response, if it is complete.
    pub fn next(&mut self, has_body: bool) -> Option<Response> {
        if let Received::Bytes(bytes) = self.server.receive(self.http, Patience::Quiet) {
            self.received.extend(bytes);
        }
        Response::take(&mut self.received, has_body)
    }

    /// Sends a request, or a part of one.
    pub fn send(&mut self, part: &[u8]) {
        self.server.send(self.http, part);
    }

    /// Begins with a new connection to the HTTP listener.
    pub fn reconnect(&mut self, kind: PeerKind) {
        self.server.close(self.http);
        self.received.clear();
        self.http = self.server.open_http(kind);
    }

    pub fn is_closed(&mut self) -> bool {
        self.received.is_empty() && self.server.receive(self.http, Patience::Quiet) == Received::Closed
    }

    /// Has the client send commands. Returns what comes at once.
    pub fn command(&mut self, text: &str) -> String {
        self.server.ask(self.client, text)
    }

    /// Has the client send much, as [`InMemoryServer::load`] does.
    pub fn load(&mut self, text: &str) {
        self.server.load(self.client, text);
    }

    /// Returns the value of a key of statistics.
    pub fn stat(&mut self, command: &str, key: &str) -> String {
        statistics::field(&self.command(command), key).to_owned()
    }

    pub fn advance(&mut self, seconds: u64) {
        self.server.advance(Duration::from_secs(seconds));
    }
}
