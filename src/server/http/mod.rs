//! HTTP for monitoring, for the console and for the API: the requests and responses of one connection.
//!
//! A connection has one request at a time in work. `/metrics` and lists are [pages](page), rendered in pieces between other
//! work, no faster than they are sent. What concerns jobs and tubes is a [call](call), which the queue of sessions runs.

mod access;
mod answer;
mod api;
mod arguments;
mod assets;
mod call;
mod host;
mod json;
mod object;
mod operations;
mod page;
mod prometheus;
mod refusals;
mod request;
mod response;
mod schedules;
mod selection;
mod serve;
mod slots;
mod target;
mod tube_json;
mod tubes;

use std::sync::Arc;

use bytes::BytesMut;

pub use self::access::{HttpAccess, Origin, Peer, PeerKind, Token};
use self::call::Call;
pub use self::host::Hosts;
use self::page::{Page, PageResponse};
pub(in crate::server) use self::serve::HttpShare;
use self::slots::{ANSWER_KEPT, Activity};
use super::client_state::Incoming;
use super::closing::SendProgress;
use super::commit_gate::Output;
use super::memory::Kept;
use super::{Core, User};
use crate::time::{Span, Time};
use crate::values::account::Held;
use crate::values::ids::ConnId;
use crate::values::limits::{HTTP_HEAD_BYTES_MAX, INBOX_BYTES_PAUSE};
use crate::values::peer_wait::PeerWait;

/// No further responses are made while memory is short and this much is unsent.
const OUTPUT_BYTES_SHORT: usize = 4 * 1024;

/// A paused connection receives again when it has less input: the longest head with the longest JSON body.
const INPUT_BYTES_RESUME: usize = HTTP_HEAD_BYTES_MAX + api::JSON_BYTES_MAX as usize;

const _: () = assert!(INPUT_BYTES_RESUME < INBOX_BYTES_PAUSE);

/// How often, at most, a wrong token is logged. A client may try tokens all day.
const WRONG_TOKEN_INTERVAL: Span = Span::from_secs(60);

/// An HTTP connection from accept until the driver has closed it.
pub(super) struct HttpConnection {
    pub conn: ConnId,
    pub peer: Peer,
    /// The user that the client has proved to be by a certificate.
    pub user: Option<Arc<User>>,
    pub state: HttpState,
    /// It has sent at least one request.
    pub has_requested: bool,
    /// The time of its last input or output.
    pub active: Time,
    /// When the request was read that is answered last.
    asked: Time,
    /// Bytes that were received while nothing was to be sent.
    received_bytes: u64,
    /// What it has sent, while it must.
    pub progress: SendProgress,
    /// The driver has an [`Effect::Pause`](super::Effect::Pause) and no `Resume` since.
    pub is_paused: bool,
    /// In the queue of connections with a page to render, or in that of sessions.
    pub is_queued: bool,
    work: Work,
    input: BytesMut,
    /// The input may have a request that can be answered, as far as it was looked at.
    has_news: bool,
    input_ended: bool,
    /// Bytes of a refused body that are discarded.
    skip: u64,
    /// The client sends nothing after the last request.
    is_last: bool,
    /// A request had a wrong token, which is not logged yet.
    has_wrong_token: bool,
    /// The interim response to the next request is made.
    has_continued: bool,
    pub output: Output,
    /// What is made in one turn and needs no ticket: responses, and pieces of pages.
    next: Vec<u8>,
    /// What the account has of its [memory](Self::memory).
    pub counted: [usize; HTTP_KINDS.len()],
}

/// The kinds of memory that HTTP connections have, besides their output.
pub(super) const HTTP_KINDS: [Held; 2] = [Held::HttpInput, Held::HttpWork];

/// What the current response waits for.
enum Work {
    None,
    Page(PageResponse),
    Call(Box<Call>),
    /// The response to a wrong token, which leaves after its delay.
    Refusal(Vec<u8>),
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
            peer: Peer::unknown(),
            user: None,
            state: HttpState::Open,
            has_requested: false,
            active,
            asked: active,
            received_bytes: 0,
            progress: SendProgress::default(),
            is_paused: false,
            is_queued: false,
            work: Work::None,
            input: BytesMut::new(),
            has_news: false,
            input_ended: false,
            skip: 0,
            is_last: false,
            has_wrong_token: false,
            has_continued: false,
            output: Output::new(number),
            next: Vec::new(),
            counted: [0; HTTP_KINDS.len()],
        }
    }

    /// The memory of the connection by its [kinds](HTTP_KINDS). A field that grows belongs to it, or to the account of replies: none is
    /// left out here.
    pub fn memory(&self) -> [usize; HTTP_KINDS.len()] {
        let Self {
            input,
            output,
            next,
            work,
            peer,
            conn: _,
            user: _,
            state: _,
            has_requested: _,
            active: _,
            asked: _,
            received_bytes: _,
            progress: _,
            is_paused: _,
            is_queued: _,
            has_news: _,
            input_ended: _,
            skip: _,
            is_last: _,
            has_wrong_token: _,
            has_continued: _,
            counted: _,
        } = self;
        let work = match work {
            Work::None => 0,
            Work::Page(response) => response.memory_bytes(output.buffer_bytes()),
            Work::Call(call) => call.memory_bytes(),
            Work::Refusal(response) => response.capacity(),
        };
        [input.capacity(), next.capacity() + work + peer.name.capacity()]
    }

    /// The body that it is receiving.
    pub fn arriving(&self) -> Option<&Incoming> {
        if let Work::Call(call) = &self.work { call.arriving() } else { None }
    }

    /// Whether it makes a list of tubes.
    pub fn is_listing(&self) -> bool {
        matches!(&self.work, Work::Page(PageResponse { page: Page::Tubes(_), .. }))
    }

    /// What it is doing, for the choice of a connection to close.
    fn activity(&self, now: Time) -> Activity {
        let is_answering = match &self.work {
            Work::Refusal(_) => return Activity::Idle,
            Work::Page(_) => true,
            Work::Call(call) => !call.lacks(&self.input),
            Work::None => self.unsent_bytes() > 0,
        };
        match (is_answering, self.has_requested, self.is_idle() && self.input.is_empty()) {
            (true, ..) if now.since(self.asked) < ANSWER_KEPT => Activity::Answering,
            (true, ..) => Activity::Busy,
            (false, true, true) => Activity::Idle,
            (false, false, true) => Activity::Pending,
            (false, _, false) => Activity::Busy,
        }
    }

    /// What the server waits for.
    pub fn awaits(&self) -> Option<PeerWait> {
        let lacks_body = || matches!(&self.work, Work::Call(call) if call.lacks(&self.input));
        match self.state {
            HttpState::Closed => None,
            // It has its turn without the client.
            _ if self.is_queued => None,
            _ if self.output.is_sending => Some(PeerWait::Response),
            // The end of the input is known.
            HttpState::Closing => None,
            HttpState::Open if lacks_body() || self.skip > 0 => Some(PeerWait::Request),
            HttpState::Open => match self.work {
                Work::None if self.input.is_empty() => Some(PeerWait::NextRequest),
                Work::None => Some(PeerWait::Request),
                Work::Page(_) | Work::Call(_) | Work::Refusal(_) => None,
            },
        }
    }

    /// Whether every request is answered and every response sent.
    pub fn is_idle(&self) -> bool {
        matches!(self.work, Work::None) && self.unsent_bytes() == 0
    }

    /// Whether there is a page to render, and so little unsent that more of it is.
    pub fn can_step(&self, output_bytes_max: usize) -> bool {
        matches!(self.work, Work::Page(_)) && self.unsent_bytes() < output_bytes_max
    }

    /// Whether there is a call that can go on.
    pub fn can_run(&self) -> bool {
        matches!(&self.work, Work::Call(call) if call.can_run(&self.input))
    }

    /// Whether the client has left before the end of a body.
    pub fn is_cut_off(&self) -> bool {
        self.input_ended && matches!(&self.work, Work::Call(call) if call.lacks(&self.input))
    }

    /// Whether a request had a wrong token, since the last call.
    pub fn take_wrong_token(&mut self) -> bool {
        std::mem::take(&mut self.has_wrong_token)
    }

    /// Whether further input should stay in the kernel. A paused connection goes on only when much of its input is answered, but
    /// before it lacks a part of the next request.
    pub fn has_much_input(&self) -> bool {
        let bytes_max = if self.is_paused { INPUT_BYTES_RESUME } else { INBOX_BYTES_PAUSE };
        self.input.len() >= bytes_max
    }

    pub fn unsent_bytes(&self) -> usize {
        self.output.unsent_bytes() + self.next.len()
    }

    /// Bytes that were sent, or received while nothing was to be sent.
    pub const fn moved_bytes(&self) -> u64 {
        self.output.sent_bytes() + self.received_bytes
    }

    pub fn received(&mut self, bytes: &[u8]) {
        if self.state == HttpState::Open && !self.input_ended {
            self.input.extend_from_slice(bytes);
            self.has_news = true;
            self.received_bytes += if self.output.is_sending { 0 } else { bytes.len() as u64 };
        }
    }

    /// Notes that no further input will arrive.
    pub fn input_ended(&mut self) {
        self.input_ended = true;
    }

    /// Renders a bounded piece of the page.
    pub fn step(&mut self, core: &mut Core, now: Time) {
        if let Work::Page(response) = &mut self.work
            && response.step(core, now, self.output.unsent_bytes(), &mut self.next)
        {
            self.end_page(core);
        }
    }

    /// Makes the response to a wrong token the next one.
    pub fn end_refusal(&mut self) {
        if let Work::Refusal(response) = &self.work {
            self.next.extend_from_slice(response);
            self.work = Work::None;
        }
    }

    /// Frees the memory of a page.
    fn end_page(&mut self, core: &mut Core) {
        core.memory.count(Kept::HttpList, self.is_listing(), false);
        if let Work::Page(_) = self.work {
            self.work = Work::None;
        }
    }
}
