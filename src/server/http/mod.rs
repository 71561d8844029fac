//! HTTP for those who watch the server: what is asked on one connection, and the answers.
//!
//! `/metrics` is rendered in steps between other work, no faster than it is read.

mod host;
mod prometheus;
mod request;
mod serve;

use bytes::{Buf, BytesMut};

pub use self::host::Hosts;
pub(super) use self::prometheus::Page;
use self::request::{Parsed, Request, Version};
use super::Core;
use crate::ids::ConnId;
use crate::limits::{HTTP_OUTPUT_BYTES_PAUSE, HTTP_REQUEST_BYTES_MAX};
use crate::time::Time;

/// The format of metrics (prometheus.io, "Exposition formats", 0.0.4).
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN_TYPE: &str = "text/plain; charset=utf-8";

/// One connection where HTTP is spoken, from accept until the driver has closed it.
pub(super) struct Exchange {
    pub conn: ConnId,
    pub phase: Phase,
    /// It has asked for something at least.
    pub has_asked: bool,
    /// When something was last asked or sent.
    pub active: Time,
    /// The driver was told to send and has not sent everything yet.
    pub is_sending: bool,
    /// In the queue of those whose page is to be rendered.
    pub is_queued: bool,
    input: BytesMut,
    input_ended: bool,
    /// What the driver sends: it stays where it is until it is sent.
    sending: Vec<u8>,
    sent: usize,
    /// What comes after that.
    next: Vec<u8>,
    /// The answer that is being made.
    page: Option<Answering>,
}

/// An answer in pieces.
struct Answering {
    page: Page,
    version: Version,
}

/// What becomes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    /// Requests are answered.
    Open,
    /// What is left to send is sent, nothing else.
    Closing,
    /// The driver was told to close it.
    Closed,
}

impl Exchange {
    pub fn new(conn: ConnId, active: Time) -> Self {
        Self {
            conn,
            phase: Phase::Open,
            has_asked: false,
            active,
            is_sending: false,
            is_queued: false,
            input: BytesMut::new(),
            input_ended: false,
            sending: Vec::new(),
            sent: 0,
            next: Vec::new(),
            page: None,
        }
    }

    /// The memory that its buffers take.
    pub fn memory_bytes(&self) -> usize {
        let page_bytes = self.page.as_ref().map_or(0, |answering| answering.page.memory_bytes());
        self.input.capacity() + self.sending.capacity() + self.next.capacity() + page_bytes
    }

    /// Nothing is asked that is not answered, and everything is sent.
    pub fn is_idle(&self) -> bool {
        self.page.is_none() && self.pending() == 0
    }

    /// There is a page to render, and room for more of it.
    pub fn wants_step(&self) -> bool {
        self.page.is_some() && self.pending() < HTTP_OUTPUT_BYTES_PAUSE
    }

    /// Whether the next step renders the driver's statistics.
    pub fn needs_sample(&self) -> bool {
        self.phase < Phase::Closed && self.page.as_ref().is_some_and(|answering| answering.page.is_at_start())
    }

    pub fn pending(&self) -> usize {
        self.sending.len() - self.sent + self.next.len()
    }

    pub fn received(&mut self, bytes: &[u8], core: &Core) {
        if self.phase == Phase::Open && !self.input_ended {
            self.input.extend_from_slice(bytes);
            self.answer(core);
        }
    }

    /// Nothing more will be asked. What was is answered.
    pub fn input_ended(&mut self, core: &Core) {
        self.input_ended = true;
        self.answer(core);
    }

    /// What to send next.
    pub fn outgoing(&mut self) -> &[u8] {
        if self.sent == self.sending.len() {
            self.sending.clear();
            self.sent = 0;
            std::mem::swap(&mut self.sending, &mut self.next);
        }
        &self.sending[self.sent..]
    }

    /// The driver has sent so many bytes.
    pub fn sent(&mut self, bytes: usize, core: &Core) {
        self.sent += bytes;
        assert!(self.sent <= self.sending.len(), "no more is sent than there was");
        if self.is_idle() {
            // A large page is rare: what it took is given back.
            (self.sending, self.next, self.sent) = (Vec::new(), Vec::new(), 0);
        }
        self.answer(core);
    }

    /// Renders some more of the page that was asked for.
    pub fn step(&mut self, core: &Core, now: Time) {
        let Some(answering) = &mut self.page else { return };
        let is_chunked = answering.version == Version::Http11;
        let begin = self.next.len();
        if is_chunked {
            self.next.extend_from_slice(b"00000000\r\n");
        }
        let body = self.next.len();
        let is_done = answering.page.step(core, now, &mut self.next);
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
                self.phase = Phase::Closing;
            }
            self.page = None;
            self.answer(core);
        }
    }

    /// Answers what has been asked, one request after the other.
    fn answer(&mut self, core: &Core) {
        while self.phase == Phase::Open && self.page.is_none() && self.next.len() < HTTP_OUTPUT_BYTES_PAUSE {
            match Request::parse(&self.input) {
                Parsed::Partial if self.input_ended => self.phase = Phase::Closing,
                Parsed::Partial if self.input.len() >= HTTP_REQUEST_BYTES_MAX => {
                    self.refuse("431 Request Header Fields Too Large");
                }
                Parsed::Partial => break,
                Parsed::Bad => self.refuse("400 Bad Request"),
                Parsed::Request(request, bytes) => {
                    self.input.advance(bytes);
                    self.answer_one(&request, core);
                }
            }
        }
        // Asked faster than it is answered: what is too much is not kept.
        if self.input.len() > HTTP_REQUEST_BYTES_MAX {
            self.input_ended = true;
            self.input.truncate(HTTP_REQUEST_BYTES_MAX);
        }
        if self.phase != Phase::Open || self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    fn answer_one(&mut self, request: &Request, core: &Core) {
        self.has_asked = true;
        let is_here = request.host.as_ref().is_none_or(|host| core.config.http_hosts.include(host));
        let is_page = is_here && request.method == "GET" && request.path == "/metrics";
        if !request.keeps_alive && !is_page {
            self.phase = Phase::Closing;
        }
        match &*request.path {
            _ if !is_here => {
                self.reply(
                    request,
                    "421 Misdirected Request",
                    "not a name of this server: see --http-host\n",
                );
            }
            _ if !matches!(&*request.method, "GET" | "HEAD") => {
                self.reply(request, "405 Method Not Allowed", "only GET and HEAD\n");
            }
            "/metrics" => self.begin_page(request, core),
            "/healthz" => self.reply(request, "200 OK", "ok\n"),
            "/readyz" if core.draining => self.reply(request, "503 Service Unavailable", "draining\n"),
            "/readyz" => self.reply(request, "200 OK", "ready\n"),
            _ => self.reply(request, "404 Not Found", "there are /metrics, /healthz and /readyz\n"),
        }
    }

    fn reply(&mut self, request: &Request, status: &str, body: &str) {
        let close = if self.phase == Phase::Open { "" } else { "Connection: close\r\n" };
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

    /// It cannot be told where the next request would begin.
    fn refuse(&mut self, status: &str) {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        self.next.extend_from_slice(head.as_bytes());
        self.phase = Phase::Closing;
    }

    fn begin_page(&mut self, request: &Request, core: &Core) {
        let coding = match request.version {
            Version::Http11 => "Transfer-Encoding: chunked\r\n",
            // It ends with the connection.
            Version::Http10 => "",
        };
        let close = if request.keeps_alive { "" } else { "Connection: close\r\n" };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {METRICS_TYPE}\r\n{coding}{close}\r\n");
        self.next.extend_from_slice(head.as_bytes());
        if request.method == "GET" {
            self.page = Some(Answering { page: Page::new(core), version: request.version });
        }
        if !request.keeps_alive {
            self.input_ended = true;
            self.input.clear();
        }
    }
}
