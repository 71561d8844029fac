//! HTTP for monitoring: the requests and responses of one connection.
//!
//! `/metrics` is rendered in pieces between other work, no faster than it is sent.

mod host;
mod prometheus;
mod request;
mod serve;

use bytes::{Buf, BytesMut};

pub use self::host::Hosts;
use self::prometheus::MetricsPage;
use self::request::{Parsed, Request, Version};
use super::Core;
use crate::ids::ConnId;
use crate::limits::HTTP_REQUEST_BYTES_MAX;
use crate::time::Time;

/// No further responses are made, and no page is rendered, while this much is unsent.
const OUTPUT_BYTES_PAUSE: usize = 64 * 1024;

/// The format of metrics (prometheus.io, "Exposition formats", 0.0.4).
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN_TYPE: &str = "text/plain; charset=utf-8";

/// An HTTP connection from accept until the driver has closed it.
pub(super) struct HttpConnection {
    pub conn: ConnId,
    /// See [`Service::number`](super::Service::number).
    pub number: u64,
    pub state: HttpState,
    /// It has sent at least one request.
    pub has_requested: bool,
    /// The time of its last input or output.
    pub active: Time,
    /// The driver has an [`Effect::Send`](super::Effect::Send) and has not yet sent everything.
    pub is_sending: bool,
    /// In the queue of connections with a page to render.
    pub is_queued: bool,
    input: BytesMut,
    input_ended: bool,
    /// The bytes that the driver sends. They stay in place until they are sent.
    sending: Vec<u8>,
    sent: usize,
    /// The bytes after those.
    next: Vec<u8>,
    response: Option<MetricsResponse>,
}

/// A response that is rendered in pieces.
struct MetricsResponse {
    page: MetricsPage,
    version: Version,
}

/// ```text
///   Open ------------------> Closing -----------------> Closed
///     end of requests, error         everything is sent
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum HttpState {
    /// Requests are answered.
    Open,
    /// The remaining responses are sent, and input is ignored.
    Closing,
    /// The driver has an [`Effect::Close`](super::Effect::Close).
    Closed,
}

impl HttpConnection {
    pub fn new(conn: ConnId, number: u64, active: Time) -> Self {
        Self {
            conn,
            number,
            state: HttpState::Open,
            has_requested: false,
            active,
            is_sending: false,
            is_queued: false,
            input: BytesMut::new(),
            input_ended: false,
            sending: Vec::new(),
            sent: 0,
            next: Vec::new(),
            response: None,
        }
    }

    /// Returns the memory of its buffers, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let page_bytes = self.response.as_ref().map_or(0, |response| response.page.memory_bytes());
        self.input.capacity() + self.sending.capacity() + self.next.capacity() + page_bytes
    }

    /// Whether every request is answered and every response sent.
    pub fn is_idle(&self) -> bool {
        self.response.is_none() && self.unsent_bytes() == 0
    }

    /// Whether there is a page to render, and room for more of it.
    pub fn can_step(&self) -> bool {
        self.response.is_some() && self.unsent_bytes() < OUTPUT_BYTES_PAUSE
    }

    /// Whether the next step renders the driver's statistics.
    pub fn needs_sample(&self) -> bool {
        self.state < HttpState::Closed
            && self.response.as_ref().is_some_and(|response| response.page.is_at_start())
    }

    pub fn unsent_bytes(&self) -> usize {
        self.sending.len() - self.sent + self.next.len()
    }

    pub fn received(&mut self, bytes: &[u8], core: &Core) {
        if self.state == HttpState::Open && !self.input_ended {
            self.input.extend_from_slice(bytes);
            self.answer(core);
        }
    }

    /// Answers the remaining requests: no further input will arrive.
    pub fn input_ended(&mut self, core: &Core) {
        self.input_ended = true;
        self.answer(core);
    }

    /// Returns the bytes to send next.
    pub fn outgoing(&mut self) -> &[u8] {
        if self.sent == self.sending.len() {
            self.sending.clear();
            self.sent = 0;
            std::mem::swap(&mut self.sending, &mut self.next);
        }
        &self.sending[self.sent..]
    }

    /// Takes off `bytes` bytes, which the driver has sent.
    pub fn sent(&mut self, bytes: usize, core: &Core) {
        self.sent += bytes;
        assert!(self.sent <= self.sending.len(), "a driver sends only what it was shown");
        if self.is_idle() {
            // A large page is rare, so its buffers are freed.
            (self.sending, self.next, self.sent) = (Vec::new(), Vec::new(), 0);
        }
        self.answer(core);
    }

    /// Renders a bounded piece of the page.
    pub fn step(&mut self, core: &Core, now: Time) {
        let Some(response) = &mut self.response else { return };
        let is_chunked = response.version == Version::Http11;
        let begin = self.next.len();
        if is_chunked {
            self.next.extend_from_slice(b"00000000\r\n");
        }
        let body = self.next.len();
        let is_done = response.page.step(core, now, &mut self.next);
        let bytes = self.next.len() - body;
        if is_chunked && bytes > 0 {
            self.next[begin..begin + 8].copy_from_slice(format!("{bytes:08x}").as_bytes());
            self.next.extend_from_slice(b"\r\n");
        } else if is_chunked {
            self.next.truncate(begin);
        }
        if is_done {
            if is_chunked {
                self.next.extend_from_slice(b"0\r\n\r\n");
            } else {
                self.state = HttpState::Closing;
            }
            self.response = None;
            self.answer(core);
        }
    }

    /// Answers the requests that have arrived, in order.
    fn answer(&mut self, core: &Core) {
        while self.state == HttpState::Open && self.response.is_none() && self.next.len() < OUTPUT_BYTES_PAUSE
        {
            match Request::parse(&self.input) {
                Parsed::Partial if self.input_ended => self.state = HttpState::Closing,
                Parsed::Partial if self.input.len() >= HTTP_REQUEST_BYTES_MAX => {
                    self.reject("431 Request Header Fields Too Large");
                }
                Parsed::Partial => break,
                Parsed::Bad => self.reject("400 Bad Request"),
                Parsed::Request(request, bytes) => {
                    self.input.advance(bytes);
                    self.answer_one(&request, core);
                }
            }
        }
        // The client sends requests faster than it reads responses: further input is dropped.
        if self.input.len() > HTTP_REQUEST_BYTES_MAX {
            self.input_ended = true;
            self.input.truncate(HTTP_REQUEST_BYTES_MAX);
        }
        if self.state != HttpState::Open || self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    fn answer_one(&mut self, request: &Request, core: &Core) {
        self.has_requested = true;
        let is_own_host = request.host.as_ref().is_none_or(|host| core.config.http_hosts.include(host));
        let is_metrics = is_own_host && request.method == "GET" && request.path == "/metrics";
        if !request.keeps_alive && !is_metrics {
            self.state = HttpState::Closing;
        }
        match &*request.path {
            _ if !is_own_host => {
                self.reply(
                    request,
                    "421 Misdirected Request",
                    "the server does not know this host name; use its address, or start it with --http-host NAME\n",
                );
            }
            _ if !matches!(&*request.method, "GET" | "HEAD") => {
                self.reply(
                    request,
                    "405 Method Not Allowed",
                    "this method is not supported; use GET or HEAD\n",
                );
            }
            "/metrics" => self.begin_metrics(request, core),
            "/healthz" => self.reply(request, "200 OK", "ok\n"),
            "/readyz" if core.draining => self.reply(request, "503 Service Unavailable", "draining\n"),
            "/readyz" => self.reply(request, "200 OK", "ready\n"),
            _ => {
                self.reply(request, "404 Not Found", "no such page; request /metrics, /healthz or /readyz\n")
            }
        }
    }

    fn reply(&mut self, request: &Request, status: &str, body: &str) {
        let close = if self.state == HttpState::Open { "" } else { "Connection: close\r\n" };
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {PLAIN_TYPE}\r\nContent-Length: {length}\r\n{allow}{close}\r\n"
        );
        self.next.extend_from_slice(head.as_bytes());
        if request.method != "HEAD" {
            self.next.extend_from_slice(body.as_bytes());
        }
    }

    /// Rejects malformed input and closes: the beginning of the next request is unknown.
    fn reject(&mut self, status: &str) {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        self.next.extend_from_slice(head.as_bytes());
        self.state = HttpState::Closing;
    }

    fn begin_metrics(&mut self, request: &Request, core: &Core) {
        let encoding = match request.version {
            Version::Http11 => "Transfer-Encoding: chunked\r\n",
            // The end of the connection ends the response.
            Version::Http10 => "",
        };
        let close = if request.keeps_alive { "" } else { "Connection: close\r\n" };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {METRICS_TYPE}\r\n{encoding}{close}\r\n");
        self.next.extend_from_slice(head.as_bytes());
        if request.method == "GET" {
            self.response = Some(MetricsResponse { page: MetricsPage::new(core), version: request.version });
        }
        if !request.keeps_alive {
            self.input_ended = true;
            self.input.clear();
        }
    }
}
