//! From the input of a connection to responses: what can be answered at once is, the rest becomes a page or a call.

use std::sync::Arc;

use bytes::{Buf, BytesMut};

use super::access::user_of;
use super::api::{self, Plan};
use super::assets::Asset;
use super::call::Call;
use super::page::{Page, PageResponse};
use super::prometheus::MetricsPage;
use super::request::{Parsed, Request, Version};
use super::response::{DATA, ErrorKind, ErrorResponse, Head, JSON_TYPE, PLAIN_TYPE, write_whole};
use super::target::{ApiTarget, PREFIX, is_of_api, no_such_path};
use super::{HttpConnection, HttpState, Work};
use crate::server::access::AuthFailure;
use crate::server::outcome::Shortage;
use crate::server::{Core, User};
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::limits::HTTP_HEAD_BYTES_MAX;

const UNKNOWN_HOST: &str =
    "the server does not know this host name; use its address, or start it with --http-host NAME";

const NOT_HTTP: &str =
    "the request is no valid HTTP/1.1: look at its first line, its Host and its Content-Length";

const CHUNKED: &str = "state the length of the body in Content-Length: chunks are not accepted";

const HEAD_TOO_LARGE: &str =
    "the head of the request is too large: send fewer or shorter fields, or a shorter path";

/// The interim response to a client that waits before it sends a body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How a request is answered, and for which user, with `--auth`.
type Planned = (Plan, Option<Arc<User>>);

impl HttpConnection {
    /// Answers the next request, or begins to, if it has arrived.
    pub fn answer(&mut self, core: &mut Core, now: Time) {
        self.has_news = false;
        let parsed = Request::parse(&self.input);
        let mut read = self.input.len().min(HTTP_HEAD_BYTES_MAX);
        match parsed {
            Parsed::Partial => {}
            Parsed::TooLong => self.reject(ErrorKind::HeadTooLarge, HEAD_TOO_LARGE),
            Parsed::Bad => self.reject(ErrorKind::BadRequest, NOT_HTTP),
            Parsed::Chunked => self.reject(ErrorKind::LengthRequired, CHUNKED),
            Parsed::Request(request, head_bytes) => {
                read = head_bytes;
                self.has_news = self.answer_one(request, head_bytes, core, now);
            }
        }
        core.charge(Cost::RESPONSE.plus(Cost::parsed(read)).plus(Cost::responded(self.next.len())));
    }

    /// Whether a request may have come that can be answered.
    pub fn can_answer(&self, output_bytes_max: usize) -> bool {
        self.has_news
            && self.state == HttpState::Open
            && matches!(self.work, Work::None)
            && !self.is_last
            && !self.input.is_empty()
            && self.unsent_bytes() < output_bytes_max
    }

    /// Discards the rest of a refused body, and notes that no further request will be answered.
    pub fn settle(&mut self) {
        if self.state == HttpState::Open && matches!(self.work, Work::None) {
            let has_next = self.discard();
            let is_over = self.is_last || self.input_ended && (self.input.is_empty() || !self.has_news);
            if has_next && is_over {
                self.state = HttpState::Closing;
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
    fn answer_one(&mut self, request: Box<Request>, head_bytes: usize, core: &mut Core, now: Time) -> bool {
        let is_own_host = request.host.as_ref().is_none_or(|host| core.config.http_hosts.include(host));
        let asset = Asset::find(&request.path).filter(|_| is_own_host);
        if is_own_host && asset.is_none() && request.path.starts_with(PREFIX) {
            match self.plan(&request, head_bytes, core) {
                Ok(Some(planned)) => self.begin(request, head_bytes, planned, core),
                Ok(None) => {
                    self.interim(&request);
                    return false;
                }
                Err(refusal) => {
                    let has_token = request.fields.authorization.is_some();
                    self.refuse(request, head_bytes, &refusal);
                    if has_token && refusal.kind == ErrorKind::Unauthorized {
                        self.delay_refusal(core, now);
                    }
                }
            }
            return true;
        }
        if asset.is_none() && is_of_api(&request.path) {
            let misdirected = || ErrorResponse::new(ErrorKind::Misdirected, UNKNOWN_HOST);
            let refusal = if is_own_host { no_such_path() } else { misdirected() };
            self.refuse(request, head_bytes, &refusal);
            return true;
        }
        self.take_head(&request, head_bytes);
        self.skip = request.body_bytes.unwrap_or(0);
        let mut is_wrong = false;
        let next = &mut self.next;
        let mut plain = |status, fields, text: &str| {
            write_whole(&request, next, status, PLAIN_TYPE, fields, text.as_bytes());
        };
        match &*request.path {
            _ if !is_own_host => {
                plain("421 Misdirected Request", "", &format!("{UNKNOWN_HOST}\n"));
            }
            _ if !matches!(&*request.method, "GET" | "HEAD") => {
                plain(
                    "405 Method Not Allowed",
                    "Allow: GET, HEAD\r\n",
                    "this method is not supported; use GET or HEAD\n",
                );
            }
            // No scraper sends a body, and a proxy in front may not see where it ends.
            _ if self.skip > 0 => self.close_with("400 Bad Request", None, false),
            "/metrics" => {
                let users = core.access.users();
                match users.map(|users| user_of(users, &request, self.user.as_deref())).transpose() {
                    Ok(user) => self.begin_page(&request, Page::Metrics(MetricsPage::new(user))),
                    Err(refusal) => {
                        let fields = "WWW-Authenticate: Bearer\r\n";
                        plain("401 Unauthorized", fields, &format!("{}\n", refusal.message));
                        is_wrong = true;
                    }
                }
            }
            "/healthz" => plain("200 OK", "", "ok\n"),
            "/readyz" if core.puts.is_draining() => plain("503 Service Unavailable", "", "draining\n"),
            "/readyz" => match core.log.unready(now) {
                Some(why) => plain("503 Service Unavailable", "", why),
                None => plain("200 OK", "", "ready\n"),
            },
            _ => match asset {
                Some(asset) => asset.write(&request, &mut self.next),
                None => {
                    plain(
                        "404 Not Found",
                        "",
                        "no such page; request /, /metrics, /healthz, /readyz or /api/v1/server\n",
                    );
                }
            },
        }
        if is_wrong {
            self.delay_refusal(core, now);
        }
        true
    }

    /// Keeps the response to a wrong token until its delay is over. Counts the token, and has it logged.
    fn delay_refusal(&mut self, core: &mut Core, now: Time) {
        self.has_wrong_token = true;
        core.access.count_failure(AuthFailure::Http);
        self.work = Work::Refusal(std::mem::take(&mut self.next));
        core.access.delay_refusal(self.conn, now);
        core.count_users();
    }

    /// Answers a request of the API with an error, and discards its body.
    fn refuse(&mut self, mut request: Box<Request>, head_bytes: usize, refusal: &ErrorResponse) {
        // The client may or may not send the body that it has announced.
        request.keeps_alive &= !request.expects_continue;
        self.take_head(&request, head_bytes);
        self.skip = if request.expects_continue { 0 } else { request.body_bytes.unwrap_or(0) };
        refusal.write(&request, &mut self.next);
    }

    /// Checks a request of the API. Returns `None` if its body is not complete and must be.
    fn plan(
        &self,
        request: &Request,
        head_bytes: usize,
        core: &mut Core,
    ) -> Result<Option<Planned>, ErrorResponse> {
        let (mut target, user) = api::check(request, &self.peer, self.user.as_deref(), core)?;
        if target == ApiTarget::Json {
            let body_bytes = request.body_bytes.unwrap_or(0) as usize;
            let Some(json) = self.input[head_bytes..].get(..body_bytes) else { return Ok(None) };
            target = api::find(request, Some(json))?;
        }
        let plan = Plan::new(target, user.as_ref(), &core.config)?;
        Ok(Some((plan, user)))
    }

    /// Tells a client that waits to send the body of its request.
    fn interim(&mut self, request: &Request) {
        if request.expects_continue && !std::mem::replace(&mut self.has_continued, true) {
            self.next.extend_from_slice(CONTINUE);
        }
    }

    fn begin(&mut self, request: Box<Request>, head_bytes: usize, (plan, user): Planned, core: &mut Core) {
        match plan {
            Plan::Page(page, _permit) => {
                if request.method != "HEAD"
                    && let Some(bytes) = page.memory_bytes_max()
                    && !core.begin_http_list(bytes)
                {
                    return self.refuse(request, head_bytes, &Shortage::Memory.response(&core.config));
                }
                self.take_head(&request, head_bytes);
                self.begin_page(&request, page);
            }
            Plan::Operation(operation) => {
                self.interim(&request);
                self.take_head(&request, head_bytes);
                let call = Call::new(request, operation, user);
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
        self.asked = self.active;
        self.is_last = !request.keeps_alive;
    }

    fn begin_page(&mut self, request: &Request, page: Page) {
        let content_type = Some(page.content_type());
        let head = Head { status: "200 OK", content_type, body_bytes: None, fields: "" };
        head.write(request, &mut self.next);
        if request.method != "HEAD" {
            self.work = Work::Page(PageResponse { page, version: request.version });
        }
    }

    /// Rejects malformed input and closes: the beginning of the next request is unknown.
    fn reject(&mut self, kind: ErrorKind, message: &'static str) {
        let (is_of_api, is_head) = Request::first_words(&self.input);
        let (status, body) = ErrorResponse::new(kind, message).parts();
        self.close_with(status, is_of_api.then_some(&*body), is_head);
    }

    /// Answers with an error, with JSON as its body if there is one, and closes.
    fn close_with(&mut self, status: &str, json: Option<&[u8]>, is_head: bool) {
        let body = json.unwrap_or_default();
        let (content_type, body_bytes) = (json.map(|_| JSON_TYPE), Some(body.len() as u64));
        let head = Head { status, content_type, body_bytes, fields: "" };
        head.write_with(&DATA, Version::Http11, false, &mut self.next);
        if !is_head {
            self.next.extend_from_slice(body);
        }
        self.state = HttpState::Closing;
    }
}
