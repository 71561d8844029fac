//! HTTP for monitoring, for the console and for the API: the requests and responses of one connection.
//!
//! A connection has one request at a time in work. `/metrics` and lists are [pages](page), rendered in pieces between other
//! work, no faster than they are sent. What concerns jobs and tubes is a [call](call), which the queue of sessions runs.

mod access;
mod api;
mod assets;
mod call;
mod host;
mod json;
mod page;
mod prometheus;
mod request;
mod response;
mod serve;
mod target;
mod tubes;

use bytes::{Buf, BytesMut};

pub use self::access::{HttpAccess, Peer, PeerKind, Token};
use self::api::{BodyKind, Plan};
use self::assets::Asset;
use self::call::Call;
pub use self::host::Hosts;
use self::page::{Page, PageResponse};
use self::prometheus::MetricsPage;
use self::request::{Parsed, Request};
use self::response::{Head, PLAIN_TYPE, Refusal, write_whole};
use self::target::PREFIX;
use super::Core;
use crate::ids::ConnId;
use crate::limits::INBOX_BYTES_PAUSE;
use crate::time::Time;

/// No further responses are made, and no page is rendered, while this much is unsent.
const OUTPUT_BYTES_PAUSE: usize = 64 * 1024;

/// The interim response to a client that waits before it sends a body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// An HTTP connection from accept until the driver has closed it.
pub(super) struct HttpConnection {
    pub conn: ConnId,
    /// See [`Service::number`](super::Service::number).
    pub number: u64,
    pub peer: Peer,
    pub state: HttpState,
    /// It has sent at least one request.
    pub has_requested: bool,
    /// The time of its last input or output.
    pub active: Time,
    /// The driver has an [`Effect::Send`](super::Effect::Send) and has not yet sent everything.
    pub is_sending: bool,
    /// The driver has an [`Effect::Pause`](super::Effect::Pause) and no `Resume` since.
    pub is_paused: bool,
    /// In the queue of connections with a page to render, or in that of sessions.
    pub is_queued: bool,
    work: Work,
    input: BytesMut,
    input_ended: bool,
    /// Bytes of a refused body that are discarded.
    skip: u64,
    /// The client sends nothing after the last request.
    is_last: bool,
    /// The interim response to the next request is made.
    has_continued: bool,
    /// The bytes that the driver sends. They stay in place until they are sent.
    sending: Vec<u8>,
    sent: usize,
    /// The bytes after those.
    next: Vec<u8>,
}

/// What the current response waits for.
enum Work {
    None,
    Page(PageResponse),
    Call(Box<Call>),
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
            peer: Peer::unknown(),
            state: HttpState::Open,
            has_requested: false,
            active,
            is_sending: false,
            is_paused: false,
            is_queued: false,
            work: Work::None,
            input: BytesMut::new(),
            input_ended: false,
            skip: 0,
            is_last: false,
            has_continued: false,
            sending: Vec::new(),
            sent: 0,
            next: Vec::new(),
        }
    }

    /// Returns the memory of its buffers and of its work, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let work_bytes = match &self.work {
            Work::None => 0,
            Work::Page(response) => response.memory_bytes(),
            Work::Call(call) => call.memory_bytes(),
        };
        let peer_bytes = self.peer.name.capacity();
        self.input.capacity() + self.sending.capacity() + self.next.capacity() + peer_bytes + work_bytes
    }

    /// Returns the memory of replies that are not in a response yet: the account of reply buffers has it.
    pub fn reply_bytes(&self) -> usize {
        if let Work::Call(call) = &self.work { call.reply_bytes() } else { 0 }
    }

    /// Whether every request is answered and every response sent.
    pub fn is_idle(&self) -> bool {
        matches!(self.work, Work::None) && self.unsent_bytes() == 0
    }

    /// Whether there is a page to render, and room for more of it.
    pub fn can_step(&self) -> bool {
        matches!(self.work, Work::Page(_)) && self.unsent_bytes() < OUTPUT_BYTES_PAUSE
    }

    /// Whether there is a call that can go on.
    pub fn can_run(&self) -> bool {
        matches!(&self.work, Work::Call(call) if call.can_run(&self.input))
    }

    /// Whether the next step renders the driver's statistics.
    pub fn needs_sample(&self) -> bool {
        let is_needed = matches!(&self.work, Work::Page(response) if response.needs_sample());
        self.state < HttpState::Closed && is_needed
    }

    /// Whether the client has left before the end of a body.
    pub fn is_cut_off(&self) -> bool {
        self.input_ended && matches!(&self.work, Work::Call(call) if call.lacks(&self.input))
    }

    /// Whether further input should stay in the kernel.
    pub fn has_much_input(&self) -> bool {
        self.input.len() >= INBOX_BYTES_PAUSE
    }

    pub fn unsent_bytes(&self) -> usize {
        self.sending.len() - self.sent + self.next.len()
    }

    pub fn received(&mut self, bytes: &[u8]) {
        if self.state == HttpState::Open && !self.input_ended {
            self.input.extend_from_slice(bytes);
        }
    }

    /// Notes that no further input will arrive.
    pub fn input_ended(&mut self) {
        self.input_ended = true;
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
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        assert!(self.sent <= self.sending.len(), "a driver sends only what it was shown");
        if self.is_idle() {
            // A large page is rare, so its buffers are freed.
            (self.sending, self.next, self.sent) = (Vec::new(), Vec::new(), 0);
        }
    }

    /// Renders a bounded piece of the page.
    pub fn step(&mut self, core: &Core, now: Time) {
        if let Work::Page(response) = &mut self.work
            && response.step(core, now, &mut self.next)
        {
            self.work = Work::None;
        }
    }

    /// Answers the requests that have arrived, in order, as far as they can be answered at once.
    pub fn answer(&mut self, core: &Core) {
        while self.state == HttpState::Open
            && matches!(self.work, Work::None)
            && self.next.len() < OUTPUT_BYTES_PAUSE
        {
            if !self.discard() {
                break;
            }
            if self.is_last {
                self.state = HttpState::Closing;
                break;
            }
            match Request::parse(&self.input) {
                Parsed::Partial if self.input_ended => self.state = HttpState::Closing,
                Parsed::Partial => break,
                Parsed::TooLong => self.reject("431 Request Header Fields Too Large"),
                Parsed::Bad => self.reject("400 Bad Request"),
                Parsed::Chunked => self.reject("411 Length Required"),
                Parsed::Request(request, bytes) => {
                    if !self.answer_one(request, bytes, core) {
                        break;
                    }
                }
            }
        }
        if self.state != HttpState::Open || self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Discards a refused body as far as it has come. Returns whether the next request can be read.
    fn discard(&mut self) -> bool {
        let bytes = self.input.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.input.advance(bytes);
        self.skip -= bytes as u64;
        if self.skip > 0 && self.input_ended {
            self.state = HttpState::Closing;
        }
        self.skip == 0
    }

    /// Answers a request, or begins to. Returns false if more of its body must arrive first.
    fn answer_one(&mut self, mut request: Box<Request>, head_bytes: usize, core: &Core) -> bool {
        let is_own_host = request.host.as_ref().is_none_or(|host| core.config.http_hosts.include(host));
        if is_own_host && request.path.starts_with(PREFIX) {
            let plan = match self.plan(&request, head_bytes, core) {
                Ok(Some(plan)) => plan,
                Ok(None) => return self.await_body(&request),
                Err(refusal) => {
                    // The client may or may not send the body that it has announced.
                    request.keeps_alive &= !request.expects_continue;
                    self.take_head(&request, head_bytes);
                    self.skip = if request.expects_continue { 0 } else { request.body_bytes.unwrap_or(0) };
                    refusal.write(&request, &mut self.next);
                    return true;
                }
            };
            self.begin(request, head_bytes, plan);
            return true;
        }
        self.take_head(&request, head_bytes);
        self.skip = request.body_bytes.unwrap_or(0);
        let next = &mut self.next;
        let mut plain = |status, fields, text: &str| {
            write_whole(&request, next, status, PLAIN_TYPE, fields, text.as_bytes());
        };
        match &*request.path {
            _ if !is_own_host => {
                plain(
                    "421 Misdirected Request",
                    "",
                    "the server does not know this host name; use its address, or start it with --http-host NAME\n",
                );
            }
            _ if !matches!(&*request.method, "GET" | "HEAD") => {
                plain(
                    "405 Method Not Allowed",
                    "Allow: GET, HEAD\r\n",
                    "this method is not supported; use GET or HEAD\n",
                );
            }
            // No scraper sends a body, and a proxy in front may not see where it ends.
            _ if self.skip > 0 => self.reject("400 Bad Request"),
            "/metrics" => self.begin_page(&request, Page::Metrics(MetricsPage::new(core))),
            "/healthz" => plain("200 OK", "", "ok\n"),
            "/readyz" if core.draining => plain("503 Service Unavailable", "", "draining\n"),
            "/readyz" => plain("200 OK", "", "ready\n"),
            path => match Asset::find(path) {
                Some(asset) => asset.write(&request, &mut self.next),
                None => plain(
                    "404 Not Found",
                    "",
                    "no such page; request /, /metrics, /healthz, /readyz or /api/v1/server\n",
                ),
            },
        }
        true
    }

    /// Checks a request of the API. Returns `None` if its body is not complete and must be.
    fn plan(&self, request: &Request, head_bytes: usize, core: &Core) -> Result<Option<Plan>, Refusal> {
        let target = api::check(request, &self.peer, core)?;
        let body_bytes = request.body_bytes.unwrap_or(0);
        let mut json: &[u8] = &[];
        if target.body_kind() == BodyKind::Json {
            match self.input[head_bytes..].get(..body_bytes as usize) {
                Some(body) => json = body,
                None => return Ok(None),
            }
        }
        Plan::new(target, json, body_bytes).map(Some)
    }

    /// Has the client send the body, unless it will never be complete. Returns false.
    fn await_body(&mut self, request: &Request) -> bool {
        self.interim(request);
        if self.input_ended {
            self.state = HttpState::Closing;
        }
        false
    }

    /// Tells a client that waits to send the body of its request.
    fn interim(&mut self, request: &Request) {
        if request.expects_continue && !std::mem::replace(&mut self.has_continued, true) {
            self.next.extend_from_slice(CONTINUE);
        }
    }

    fn begin(&mut self, request: Box<Request>, head_bytes: usize, plan: Plan) {
        match plan {
            Plan::Page(page) => {
                self.take_head(&request, head_bytes);
                self.begin_page(&request, page);
            }
            Plan::Operation(operation) => {
                self.interim(&request);
                self.take_head(&request, head_bytes);
                let call = Call::new(request, operation);
                // A JSON body is in the operation. That of a job stays in the input.
                self.skip = call.body_bytes_read();
                self.discard();
                self.work = Work::Call(Box::new(call));
            }
        }
    }

    /// Takes the head of a request off the input.
    fn take_head(&mut self, request: &Request, head_bytes: usize) {
        self.input.advance(head_bytes);
        (self.has_requested, self.has_continued) = (true, false);
        self.is_last = !request.keeps_alive;
    }

    fn begin_page(&mut self, request: &Request, page: Page) {
        let head = Head { status: "200 OK", content_type: page.content_type(), body_bytes: None, fields: "" };
        head.write(request, &mut self.next);
        if request.method != "HEAD" {
            self.work = Work::Page(PageResponse { page, version: request.version });
        }
    }

    /// Rejects malformed input and closes: the beginning of the next request is unknown.
    fn reject(&mut self, status: &str) {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        self.next.extend_from_slice(head.as_bytes());
        self.state = HttpState::Closing;
    }
}
