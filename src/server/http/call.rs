//! An operation of the API on jobs and tubes, from its request to its response. A call is a client of its own, with a
//! [`Session`] that serves the commands of the protocol for it. The reply leaves the session when the commit gate lets it,
//! and becomes the response then.
//!
//! ```text
//!   Queued --------> Receiving ---------> Replied -----------> Sending
//!      |    put          complete body       ^     committed   of a body
//!      |                                     |
//!      +--------------> Working -------------+
//!      |    large command       notice       |
//!      '-------------------------------------'
//! ```

use bytes::{Buf, BytesMut};
use memchr::memchr;
use tracing::info;

use super::access::Peer;
use super::api::Operation;
use super::json::{FlushedJson, KickedJson, MovedJson, PutJson};
use super::request::Request;
use super::response::{ErrorKind, Head, JSON_TYPE, Refusal, json, write_whole};
use super::shortage::Shortage;
use super::{HttpConnection, Work};
use crate::protocol::framing;
use crate::protocol::reply::Reply;
use crate::queue::{JobState, Notice};
use crate::server::session::{Input, Session, SessionState};
use crate::server::{ClientAct, Core};
use crate::time::Time;
use crate::values::ids::JobId;
use crate::values::limits::ALLOCATION_BYTES;

/// A piece of a job's body that is copied to the output at once.
const PIECE_BYTES: usize = 16 * 1024;

/// Elementary steps of a call, not counting its commands: its client, its session and its response.
const CALL_STEPS: u32 = 20;

/// Bytes that are copied in the time of an elementary step.
const BYTES_COPIED_PER_STEP: usize = 1024;

const BODY_TYPE: &str = "application/octet-stream";

const CRLF: &[u8] = b"\r\n";

const NO_TUBE: &str = "there is no such tube: look at /api/v1/tubes";

/// An operation on its way to its response.
pub(super) struct Call {
    request: Box<Request>,
    operation: Operation,
    stage: Stage,
    session: Option<Box<Session>>,
    /// Bytes of the request's body that the session has not received.
    body_left: u64,
    /// How much of the CR LF after the body the session has received.
    crlf: usize,
    /// Why nothing was done, unless the reply says it.
    obstacle: Option<Obstacle>,
    /// What the server has lacked, in case it has refused the operation.
    shortage: Shortage,
    /// The job at which a move of several jobs has stopped, and why.
    stop: Option<(JobId, Refusal)>,
    /// The id that the job of a put has, once it is put.
    put_id: Option<JobId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Queued,
    Receiving,
    Working,
    Replied,
    Sending { left: u64 },
}

/// How far the commands of an operation have come at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// The body of the request comes next.
    Receiving,
    /// A notice will follow.
    Working,
    /// The reply is there.
    Replied,
    /// Nothing was done. Without an obstacle, the reply says why.
    Refused(Option<Obstacle>),
}

/// Why an operation is not possible, where the reply of the protocol does not say it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// The tube does not exist.
    NoTube,
    /// A client has reserved the job, and its time to run ends in this time.
    Reserved { seconds_left: u64 },
    /// The job is there, in another state that does not permit the operation.
    State(JobState),
    /// The job is in the tube that it shall be moved to.
    SameTube,
}

impl Call {
    pub fn new(request: Box<Request>, operation: Operation) -> Self {
        let body_left = match operation {
            Operation::Put { bytes, .. } => bytes.into(),
            _ => 0,
        };
        Self {
            request,
            operation,
            stage: Stage::Queued,
            session: None,
            body_left,
            crlf: 0,
            obstacle: None,
            shortage: Shortage::Memory,
            stop: None,
            put_id: None,
        }
    }

    /// The length of a body of the request that the operation contains already.
    pub fn body_bytes_read(&self) -> u64 {
        self.request.body_bytes.unwrap_or(0) - self.body_left
    }

    pub fn memory_bytes(&self) -> usize {
        let session = self.session.as_ref().map_or(0, |_| size_of::<Session>() + framing::FRONT_BYTES);
        let texts = self.request.memory_bytes() + self.operation.text_bytes();
        size_of::<Self>() + session + texts + 4 * ALLOCATION_BYTES
    }

    /// The memory of replies that are not in the response yet.
    pub fn reply_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.output.buffer_bytes())
    }

    /// Whether it can go on with this much input.
    pub fn can_run(&self, input: &[u8]) -> bool {
        let has_complete_body = || self.session.as_ref().is_some_and(|session| session.has_complete_body());
        match self.stage {
            Stage::Queued => true,
            Stage::Receiving => !input.is_empty() || self.body_left == 0 || has_complete_body(),
            Stage::Working | Stage::Replied | Stage::Sending { .. } => false,
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
        let HttpConnection { conn, number, peer, input, work: Work::Call(call), .. } = connection else {
            return;
        };
        let refusals = self.refusal_counts();
        self.memory.invalidate_headroom();
        if call.stage == Stage::Queued {
            self.iteration_steps += CALL_STEPS;
            let client = self.engine.connect(*conn);
            let session = call.session.insert(Box::new(Session::new(*conn, *number, client, None)));
            let was_draining = self.draining;
            let upcoming = self.engine.upcoming_id();
            let begun = self.begin(session, &call.operation, now);
            call.stage = match begun {
                Begun::Receiving => Stage::Receiving,
                Begun::Working => Stage::Working,
                Begun::Replied | Begun::Refused(_) => Stage::Replied,
            };
            match (begun, &call.operation) {
                (Begun::Refused(obstacle), _) => call.obstacle = obstacle,
                (_, Operation::Put { .. }) => {
                    call.put_id = Some(upcoming).filter(|&id| id != self.engine.upcoming_id());
                }
                (_, Operation::Drain | Operation::Undrain) if self.draining == was_draining => {}
                (Begun::Replied, _) if has_changed_nothing(session.output.gathered()) => {}
                (_, operation) => log(*number, peer, operation, Outcome::Done),
            }
        }
        if call.stage == Stage::Receiving {
            let repeats = self.engine.queue_stats().totals.repeats;
            self.receive_body(call, input, now);
            if self.engine.queue_stats().totals.repeats > repeats
                && let Some(first) = self.first_of_key(&call.operation)
            {
                // It may have changed the priority of the first job.
                log(*number, peer, &call.operation, Outcome::Repeated(first));
            }
            let put = call.put_id.filter(|&id| self.engine.jobs().find(id).is_some());
            if let (Stage::Replied, Some(id)) = (call.stage, put) {
                log(*number, peer, &call.operation, Outcome::Put(id));
            }
        }
        if call.stage == Stage::Replied {
            call.shortage = self.shortage(&call.operation, refusals, now);
            call.stop = self.stop_of(call, now);
            self.leave_call(call, now);
            self.release_call(connection);
        }
    }

    /// Answers the call of a connection for which work in steps has come to its end.
    pub(in crate::server) fn notify_call(
        &mut self,
        connection: &mut HttpConnection,
        notice: Notice,
        now: Time,
    ) {
        let Work::Call(call) = &mut connection.work else { return };
        if call.stage != Stage::Working {
            return;
        }
        let session = call.session.as_mut().expect("a call that works has a session");
        match notice {
            Notice::Kicked(_, count) => self.reply_to_call(session, Reply::Kicked(count.into())),
            Notice::Flushed(_, count) => self.reply_to_call(session, Reply::Flushed(count.into())),
            Notice::Moved(_, count) => self.reply_to_call(session, Reply::MovedJobs(count.into())),
            Notice::Listed(_, page) => self.show_page(session, &page, now),
            _ => return,
        }
        call.stage = Stage::Replied;
        call.stop = self.stop_of(call, now);
        self.leave_call(call, now);
        self.release_call(connection);
    }

    /// Where a move of several jobs has just stopped, if it has moved fewer than it may.
    fn stop_of(&self, call: &Call, now: Time) -> Option<(JobId, Refusal)> {
        let Operation::Move { from, state, to, count } = &call.operation else { return None };
        let reply = str::from_utf8(call.session.as_ref()?.output.gathered()).ok()?;
        let moved: u32 = reply.strip_prefix("MOVED ")?.trim_end().parse().ok()?;
        let tubes = [from.get(), to.get()];
        let (id, bar) = self.engine.barred_job(tubes, state.of_jobs(), now).filter(|_| moved < *count)?;
        Some((id, self.shortage_of(bar).map_or_else(same_key, Shortage::refusal)))
    }

    /// Has a reply that waits for a commit become an error: there will be no commit.
    pub(in crate::server) fn fail_call(&mut self, connection: &mut HttpConnection) {
        if let Work::Call(call) = &mut connection.work
            && let Some(session) = &mut call.session
        {
            self.fail_output(&mut session.output);
        }
        self.release_call(connection);
    }

    /// Ends the call of a connection that is closed.
    pub(super) fn abandon_call(&mut self, connection: &mut HttpConnection, now: Time) {
        if let Work::Call(call) = &mut connection.work {
            self.leave_call(call, now);
            self.end_call(connection);
        }
    }

    /// The first job of the idempotency key that a put has repeated.
    fn first_of_key(&self, operation: &Operation) -> Option<JobId> {
        let Operation::Put { job, .. } = operation else { return None };
        self.engine.first_of_key(job.tube.get(), job.tags.get().idp()?.key)
    }

    /// Passes the body of the request to the session, as far as it has come.
    fn receive_body(&mut self, call: &mut Call, input: &mut BytesMut, now: Time) {
        let session = call.session.as_mut().expect("a call that receives has a session");
        let is_arriving = |session: &Session| !matches!(session.protocol.input, Input::Line);
        while is_arriving(session) {
            let available = input.len().min(usize::try_from(call.body_left).unwrap_or(usize::MAX));
            let is_body = call.body_left > 0;
            let piece = if is_body { &input[..available] } else { &CRLF[call.crlf..] };
            if piece.is_empty() && !session.has_complete_body() {
                break;
            }
            let (used, offered) = (self.serve(session, piece, now), piece.len());
            if is_body {
                input.advance(used);
                call.body_left -= used as u64;
            } else {
                call.crlf += used;
            }
            if used < offered || offered == 0 {
                break;
            }
        }
        if !is_arriving(session) {
            call.stage = Stage::Replied;
        }
    }

    /// Removes the client of a call from the queue, unless that has happened. The reply is still to leave.
    fn leave_call(&mut self, call: &mut Call, now: Time) {
        if let Some(session) = call.session.as_mut().filter(|session| session.is_open()) {
            self.disconnect_call(session, now);
        }
    }

    pub(super) fn disconnect_call(&mut self, session: &mut Session, now: Time) {
        self.engine.disconnect(session.protocol.client, now);
        session.protocol.state = SessionState::Closing;
        self.record_changes(now);
        self.iteration_steps += self.take_steps();
    }

    /// Turns the reply of a call into the response, if the commit gate lets it leave.
    pub(in crate::server) fn release_call(&mut self, connection: &mut HttpConnection) {
        let HttpConnection { conn, next, work: Work::Call(call), .. } = connection else { return };
        let Call { request, operation, stage, session, obstacle, shortage, stop, .. } = &mut **call;
        let (Stage::Replied, Some(session)) = (*stage, session) else { return };
        if !self.is_released(*conn, &mut session.output) {
            return;
        }
        let mut slices = Vec::new();
        self.replies_to_send(&mut session.output, &mut slices);
        let reply = slices.first().expect("a reply that is released has bytes");
        let end = memchr(b'\n', reply).expect("a reply begins with a line") + 1;
        let line = str::from_utf8(&reply[..end]).expect("a reply is ASCII").trim_ascii_end();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let last = rest.rsplit(' ').next().and_then(|number| number.parse::<u64>().ok());
        let ok = |next: &mut Vec<u8>, body: &[u8]| write_whole(request, next, "200 OK", JSON_TYPE, "", body);
        match (word, last) {
            ("FOUND", Some(bytes)) => {
                let left = write_body_head(request, operation, bytes, next);
                *stage = Stage::Sending { left };
                return self.take_sent(*conn, &mut session.output, end);
            }
            ("OK", Some(bytes)) => ok(next, &reply[end..end + bytes as usize]),
            ("INSERTED", _) => write_inserted(request, rest, next),
            ("KICKED", Some(kicked)) => ok(next, &json(&KickedJson { kicked })),
            ("FLUSHED", Some(flushed)) => ok(next, &json(&FlushedJson { flushed })),
            ("MOVED", Some(0)) if let Some((JobId(id), Refusal { kind, message, .. })) = stop => {
                Refusal::new(*kind, format!("stopped at job {id}: {message}")).write(request, next);
            }
            ("MOVED", Some(moved)) => {
                let (stopped_at, reason) = stop.as_ref().map(|(id, why)| (id.0, &*why.message)).unzip();
                ok(next, &json(&MovedJson { moved, stopped_at, reason }));
            }
            ("BURIED" | "KICKED" | "DELETED" | "RELEASED" | "PAUSED" | "MOVED" | "CONFIGURED", None) => {
                ok(next, b"{}");
            }
            ("OUT_OF_MEMORY", _) => shortage.refusal().write(request, next),
            _ => refusal(word, operation, *obstacle).write(request, next),
        }
        self.end_call(connection);
    }

    /// Copies the body of a job to the output, as far as that has room.
    pub(super) fn send_body(&mut self, connection: &mut HttpConnection) {
        loop {
            let unsent = connection.unsent_bytes();
            let HttpConnection { conn, next, work: Work::Call(call), .. } = connection else { return };
            let (Stage::Sending { left }, Some(session)) = (&mut call.stage, &mut call.session) else {
                return;
            };
            if *left == 0 {
                return self.end_call(connection);
            }
            if unsent >= self.http_output_bytes_max() {
                return;
            }
            let mut slices = Vec::new();
            self.replies_to_send(&mut session.output, &mut slices);
            let first = slices.first().expect("the whole body is there");
            let bytes = first.len().min(PIECE_BYTES).min(usize::try_from(*left).unwrap_or(usize::MAX));
            next.extend_from_slice(&first[..bytes]);
            self.take_sent(*conn, &mut session.output, bytes);
            *left -= bytes as u64;
            self.iteration_steps += (bytes / BYTES_COPIED_PER_STEP) as u32;
        }
    }

    /// Frees what a call has used. The rest of the request's body will be discarded.
    fn end_call(&mut self, connection: &mut HttpConnection) {
        let Work::Call(call) = std::mem::replace(&mut connection.work, Work::None) else { return };
        connection.skip = call.body_left;
        let Some(mut session) = call.session else { return };
        session.output.clear(self.engine.bodies_mut(), &mut self.buffers);
        if let Input::Body(incoming) = session.protocol.input {
            self.free_incoming(incoming);
        }
    }
}

/// The result of an operation, for its log line.
#[derive(Clone, Copy)]
enum Outcome {
    Done,
    Put(JobId),
    /// This job has the idempotency key of the put.
    Repeated(JobId),
}

/// Whether the reply to a change says that there was none: it was refused, or has changed 0 jobs.
fn has_changed_nothing(reply: &[u8]) -> bool {
    let refusals = ["OUT_OF_MEMORY\r\n", "NOT_MOVED\r\n", "NOT_FOUND\r\n"];
    refusals.iter().any(|refusal| reply == refusal.as_bytes()) || reply.ends_with(b" 0\r\n")
}

/// Logs an action with the address of its client.
fn log(conn: u64, peer: &Peer, operation: &Operation, outcome: Outcome) {
    let Some(action) = operation.action() else { return };
    let (tube, job) = match outcome {
        Outcome::Done => (operation.tube(), operation.job()),
        Outcome::Put(JobId(id)) | Outcome::Repeated(JobId(id)) => (operation.tube(), Some(id)),
    };
    let peer = &*peer.name;
    let text = match (operation, outcome) {
        (Operation::Drain, _) => format!("drain from {peer}: {}", ClientAct::DRAIN_EFFECT),
        (Operation::Undrain, _) => format!("undrain from {peer}: {}", ClientAct::UNDRAIN_EFFECT),
        (_, Outcome::Put(id)) => format!("HTTP action from {peer}: {operation}, job {id}"),
        (_, Outcome::Repeated(id)) => {
            format!("HTTP action from {peer}: {operation}: no job was added, job {id} has this key")
        }
        (_, Outcome::Done) => format!("HTTP action from {peer}: {operation}"),
    };
    info!(conn, peer, action, tube, job, "{text}");
}

/// Appends the head of a response with a job's body. Returns how much of the body follows.
fn write_body_head(request: &Request, operation: &Operation, bytes: u64, next: &mut Vec<u8>) -> u64 {
    let Operation::Body { id: JobId(id), limit } = *operation else {
        unreachable!("only the body of a job is found")
    };
    let shown = limit.map_or(bytes, |limit| bytes.min(limit.into()));
    let fields =
        format!("Content-Disposition: attachment; filename=\"job-{id}\"\r\nX-Body-Bytes: {bytes}\r\n");
    let head = Head { status: "200 OK", content_type: BODY_TYPE, body_bytes: Some(shown), fields: &fields };
    head.write(request, next);
    if request.method == "HEAD" { 0 } else { shown }
}

/// Appends the response to a put: 201 for a new job, and 200 for one that repeats an idempotency key. `reply` has the id of
/// the job, and of a repeat the state and the new priority of the first job.
fn write_inserted(request: &Request, reply: &str, next: &mut Vec<u8>) {
    let mut words = reply.split(' ');
    let id = words.next().and_then(|id| id.parse().ok()).expect("the reply to a put has an id");
    let state = words.next().map(str::to_ascii_lowercase);
    let status = if state.is_none() { "201 Created" } else { "200 OK" };
    let priority = words.next().and_then(|priority| priority.parse().ok());
    write_whole(request, next, status, JSON_TYPE, "", &json(&PutJson { id, state, priority }));
}

impl Obstacle {
    fn refusal(self) -> Refusal {
        let message = match self {
            Self::NoTube => return Refusal::new(ErrorKind::NotFound, NO_TUBE),
            Self::Reserved { seconds_left } => {
                let message = format!(
                    "a client has reserved the job, and its TTR ends in {seconds_left} s: wait, or stop that worker"
                );
                return Refusal::new(ErrorKind::Conflict, message);
            }
            Self::State(JobState::Held) => "the job waits for a group: kick it first",
            Self::State(JobState::Ready) => {
                "the job is ready: only a buried, delayed or held job can be kicked"
            }
            Self::State(state) => unreachable!("a {} job permits every operation", state.word()),
            Self::SameTube => "the job is in this tube: name another tube",
        };
        Refusal::new(ErrorKind::Conflict, message)
    }
}

/// Why a job with a key cannot move to a tube that has it.
fn same_key() -> Refusal {
    let message = "the other tube has a job with the same idempotency key: delete one of the jobs";
    Refusal::new(ErrorKind::Conflict, message)
}

/// The response to a reply that is an error.
fn refusal(word: &str, operation: &Operation, obstacle: Option<Obstacle>) -> Refusal {
    match word {
        "NOT_FOUND" if let Some(obstacle) = obstacle => obstacle.refusal(),
        "NOT_MOVED" => same_key(),
        "NOT_FOUND" => {
            let message = match (operation, operation.tube()) {
                (Operation::Group(_), _) => "there is no such group: a group exists while it has a job",
                (Operation::Next(..), _) => "the tube has no job in this state at the moment",
                (_, Some(_)) => NO_TUBE,
                (_, None) => "there is no such job: it may have been deleted",
            };
            Refusal::new(ErrorKind::NotFound, message)
        }
        "DRAINING" => Refusal::new(
            ErrorKind::Draining,
            "the server is in drain mode and accepts no new jobs: use another server, or end drain mode",
        ),
        "JOB_TOO_BIG" => Refusal::new(ErrorKind::TooLarge, "the job body is too large (-z/--max-job-size)"),
        _ => Refusal::new(ErrorKind::Internal, "the server cannot write its job log and stops: read its log"),
    }
}
