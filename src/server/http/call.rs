//! An operation of the API on jobs and tubes, from its request to its response. A call is a client of its own, which executes the
//! commands of the protocol. Its response leaves when the commit gate lets it.
//!
//! ```text
//!   Queued --------> Receiving ---------> Replied -----------> *
//!      |    put          complete body       ^     committed
//!      |                                     |
//!      +--------------> Working -------------+
//!      |    large command       notice       |
//!      '-------------------------------------'
//! ```

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tracing::info;

use super::access::Peer;
use super::api::Operation;
use super::request::Request;
use super::response::{ErrorKind, ErrorResponse};
use super::{HttpConnection, Work};
use crate::protocol::reply::Reply;
use crate::queue::Notice;
use crate::server::client_state::{Incoming, ProtocolState};
use crate::server::commit_gate::Output;
use crate::server::outcome::{Outcome, Refusal};
use crate::server::{ClientAct, Core, User};
use crate::time::{Span, Time};
use crate::values::budget::Cost;
use crate::values::ids::JobId;
use crate::values::limits::ALLOCATION_BYTES;
use crate::values::log_limit::{LeftOut, LogLimit};

const CRLF: &[u8] = b"\r\n";

/// An operation on its way to its response.
pub(super) struct Call {
    request: Box<Request>,
    operation: Rc<Operation>,
    stage: Stage,
    /// The client, while it is in the queue.
    protocol: Option<ProtocolState>,
    /// The user of the request, with `--auth`.
    user: Option<Arc<User>>,
    /// Bytes of the request's body that the client has not received.
    body_left: u64,
    /// How much of the CR LF after the body the client has received.
    crlf: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Queued,
    Receiving,
    Working,
    /// The response waits for a commit.
    Replied,
}

impl Call {
    pub fn new(request: Box<Request>, operation: Operation, user: Option<Arc<User>>) -> Self {
        let body_left = operation.body_bytes().map_or(0, u64::from);
        let operation = Rc::new(operation);
        Self { request, operation, stage: Stage::Queued, protocol: None, user, body_left, crlf: 0 }
    }

    /// The length of a body of the request that the operation contains already.
    pub fn body_bytes_read(&self) -> u64 {
        self.request.body_bytes.unwrap_or(0) - self.body_left
    }

    pub fn memory_bytes(&self) -> usize {
        let texts = self.request.memory_bytes() + self.operation.text_bytes();
        size_of::<Self>() + texts + 3 * ALLOCATION_BYTES
    }

    /// The body that it is receiving.
    pub fn arriving(&self) -> Option<&Incoming> {
        self.protocol.as_ref()?.input.body()
    }

    /// Whether it can go on with this much input.
    pub fn can_run(&self, input: &[u8]) -> bool {
        let has_complete_body = || self.arriving().is_some_and(Incoming::is_complete);
        match self.stage {
            Stage::Queued => true,
            Stage::Receiving => !input.is_empty() || self.body_left == 0 || has_complete_body(),
            Stage::Working | Stage::Replied => false,
        }
    }

    /// Whether it needs more input than this.
    pub fn lacks(&self, input: &[u8]) -> bool {
        matches!(self.stage, Stage::Queued | Stage::Receiving) && (input.len() as u64) < self.body_left
    }
}

impl Core {
    /// Runs the call of a connection as far as it can go now.
    pub(super) fn run_call(&mut self, connection: &mut HttpConnection, now: Time) {
        let HttpConnection { conn, peer, input, output, work: Work::Call(call), .. } = connection else {
            return;
        };
        self.memory.invalidate();
        if call.stage == Stage::Queued {
            self.charge(Cost::CALL);
            let was_draining = self.puts.is_draining();
            let operation = Rc::clone(&call.operation);
            let protocol = call.protocol.insert(ProtocolState::new(self.engine.connect(*conn)));
            if let Some(user) = &call.user {
                self.begin_call_access(protocol, user);
            }
            let (outcome, is_harmless) = self.begin(protocol, &operation, now);
            let has_body = operation.body_bytes().is_some();
            let is_drain = matches!(*operation, Operation::Drain | Operation::Undrain);
            match outcome {
                Outcome::Pending if has_body => call.stage = Stage::Receiving,
                _ if is_drain && self.puts.is_draining() == was_draining => {}
                _ => self.log_action(output.number(), peer, call, &outcome, now),
            }
            if outcome != Outcome::Pending {
                self.end_operation(call, output, &outcome, is_harmless, now);
            } else if !has_body {
                call.stage = Stage::Working;
                self.record_changes(now);
                self.charge(Cost::COMMAND);
            }
        }
        if call.stage == Stage::Receiving
            && let Some(outcome) = self.receive_put(call, input, now)
        {
            self.log_action(output.number(), peer, call, &outcome, now);
            self.end_operation(call, output, &outcome, false, now);
        }
    }

    /// Answers the call of a connection for which work in steps has come to its end.
    pub(in crate::server) fn notify_call(
        &mut self,
        connection: &mut HttpConnection,
        notice: Notice,
        now: Time,
    ) {
        if let HttpConnection { output, work: Work::Call(call), .. } = connection
            && call.stage == Stage::Working
        {
            self.end_operation(call, output, &Outcome::of(notice), false, now);
        }
    }

    /// Removes the client of a call from the queue, and makes the response.
    fn end_operation(
        &mut self,
        call: &mut Call,
        output: &mut Output,
        outcome: &Outcome<'_>,
        is_harmless: bool,
        now: Time,
    ) {
        // A list shows what this user may see.
        let user = call.protocol.as_ref().and_then(|protocol| protocol.access.as_ref());
        let user = user.map(|access| Arc::clone(&access.user));
        // The statistics of a tube should not count this client.
        self.leave_call(call, now);
        let is_forbidden =
            matches!(outcome, Outcome::Refused(Refusal::Forbidden(missing)) if !missing.may_reveal);
        let is_gone = is_forbidden && call.user.as_ref().is_some_and(|user| self.is_gone(user));
        let outcome = if is_gone { &Outcome::Refused(Refusal::UserGone) } else { outcome };
        self.with_replies(output, |core, replies| {
            core.record_changes(now);
            replies.set_harmless(is_harmless);
            core.respond((&call.request, user.as_deref()), &call.operation, outcome, replies, now);
        });
        call.stage = Stage::Replied;
        self.charge(Cost::COMMAND);
    }

    /// Has a response that waits for a commit become an error: there will be no commit.
    pub(in crate::server) fn fail_call(&mut self, connection: &mut HttpConnection) {
        let HttpConnection { conn, output, work: Work::Call(call), .. } = connection else { return };
        if call.stage == Stage::Replied && !self.is_released(output) {
            let message = "the server cannot write its job log and stops: read its log";
            let mut response = Vec::new();
            ErrorResponse::new(ErrorKind::Internal, message).write(&call.request, &mut response);
            self.fail_output(*conn, output, |replies, buffers| replies.bytes(&response, buffers));
            connection.end_call();
        }
    }

    /// Ends the call of a connection that is closed.
    pub(super) fn abandon_call(&mut self, connection: &mut HttpConnection, now: Time) {
        if let Work::Call(call) = &mut connection.work {
            self.leave_call(call, now);
            self.record_changes(now);
            self.charge(Cost::COMMAND);
            connection.end_call();
        }
    }

    /// Takes in the body of the request, as far as it has come. Returns the outcome of the put once it is complete.
    fn receive_put(&mut self, call: &mut Call, input: &mut BytesMut, now: Time) -> Option<Outcome<'static>> {
        let Call { protocol, body_left, crlf, .. } = call;
        let protocol = protocol.as_mut().expect("a call that receives has a client");
        // Bounded by INBOX_BYTES_PAUSE: the input of one connection.
        loop {
            let is_body = *body_left > 0;
            let available = input.len().min(usize::try_from(*body_left).unwrap_or(usize::MAX));
            let piece = if is_body { &input[..available] } else { &CRLF[*crlf..] };
            if piece.is_empty() && !protocol.input.is_complete_body() {
                return None;
            }
            let mut rest = piece;
            let outcome = self.receive_body(protocol, &mut rest, now);
            let (offered, used) = (piece.len(), piece.len() - rest.len());
            if is_body {
                input.advance(used);
                *body_left -= used as u64;
            } else {
                *crlf += used;
            }
            if outcome.is_some() || used < offered || offered == 0 {
                return outcome;
            }
        }
    }

    /// Removes the client of a call from the queue, unless that has happened. The response is still to leave.
    fn leave_call(&mut self, call: &mut Call, now: Time) {
        let Some(protocol) = call.protocol.take() else { return };
        self.note_put_cut_off(&protocol, now);
        // A request is no worker that was lost.
        self.engine.quit(protocol.client);
        self.engine.disconnect(protocol.client, now);
        self.free_input(protocol.input);
    }

    /// Ends a call whose response may leave.
    pub(super) fn release_call(&self, connection: &mut HttpConnection) {
        if let HttpConnection { output, work: Work::Call(call), .. } = connection
            && call.stage == Stage::Replied
            && self.is_released(output)
        {
            connection.end_call();
        }
    }
}

impl HttpConnection {
    /// Frees what a call has used. The rest of the request's body will be discarded.
    fn end_call(&mut self) {
        if let Work::Call(call) = std::mem::replace(&mut self.work, Work::None) {
            self.skip = call.body_left;
        }
    }
}

/// How many actions over HTTP are logged in this time. `/metrics` and the job log have all of them.
const ACTION_LINES: u32 = 1000;
const ACTION_INTERVAL: Span = Span::from_secs(10);

/// Limits the lines about actions over HTTP.
pub(super) const fn action_limit() -> LogLimit {
    LogLimit::lines(ACTION_LINES, ACTION_INTERVAL)
}

impl Core {
    fn log_action(&mut self, conn: u64, peer: &Peer, call: &Call, outcome: &Outcome<'_>, now: Time) {
        if let Some(action) = call.operation.action().filter(|_| outcome.has_changed())
            && let Some(left_out) = self.http.actions.admit(now)
        {
            log(conn, peer, call, (action, outcome), left_out);
        }
    }
}

/// Logs an action that has changed something, with the address of its client and its user.
fn log(
    conn: u64,
    peer: &Peer,
    call: &Call,
    (action, outcome): (&'static str, &Outcome<'_>),
    left_out: LeftOut,
) {
    let (operation, user) = (&*call.operation, call.user.as_deref());
    let job = match *outcome {
        Outcome::Done(Reply::Inserted(JobId(id)) | Reply::Repeated { id: JobId(id), .. }) => Some(id),
        _ => operation.job(),
    };
    let (tube, schedule, peer) = (operation.tube(), operation.schedule(), &*peer.name);
    let user = user.and_then(|user| user.name.as_deref());
    let client = user.map_or(Cow::Borrowed(peer), |user| format!("{peer} (user {user})").into());
    let text = match (operation, outcome) {
        (Operation::Drain, _) => format!("drain from {client}: {}", ClientAct::DRAIN_EFFECT),
        (Operation::Undrain, _) => format!("undrain from {client}: {}", ClientAct::UNDRAIN_EFFECT),
        (_, Outcome::Done(Reply::Inserted(id))) => {
            format!("HTTP action from {client}: {operation}, job {id}")
        }
        // It may have changed the priority of the first job.
        (_, Outcome::Done(Reply::Repeated { id, .. })) => {
            format!("HTTP action from {client}: {operation}: no job was added, job {id} has this key")
        }
        _ => format!("HTTP action from {client}: {operation}"),
    };
    info!(conn, peer, user, action, tube, schedule, job, "{text}{left_out}");
}
