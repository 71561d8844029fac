//! One client connection, from accept to the driver's close: the input understood so far, and what its client waits for.

use bytes::BytesMut;

use super::commit_gate::Output;
use super::outcome::{Outcome, Refusal};
use super::put_batch::PutBatch;
use super::trace::Observation;
use super::{Core, Effect, Server};
use crate::bodies::Slot;
use crate::protocol::command::PutArgs;
use crate::protocol::foreign::Opening;
use crate::protocol::framing::LineReader;
use crate::protocol::reply::Reply;
use crate::queue::TubeList;
use crate::time::Time;
use crate::values::ids::{ClientKey, ConnId, ExtraKey, JobId};

/// A list of tubes is rendered no further than this ahead of what is sent.
const LIST_OUTPUT_BYTES_PAUSE: usize = 16 * 1024;

/// A client connection from accept until the driver has closed it.
pub(super) struct Session {
    pub conn: ConnId,
    pub reader: LineReader,
    /// Whether the reader has a line that is longer than usual, and whose memory is counted.
    pub has_long_line: bool,
    /// The first line as far as it has come, until it proves not to be a request of another protocol.
    pub opening: Option<Opening>,
    pub protocol: ProtocolState,
    pub output: Output,
    /// Input that arrived while the session could not be served.
    pub inbox: BytesMut,
    /// The bytes that the memory account counts for the inbox.
    pub inbox_bytes: usize,
    pub input_end: InputEnd,
    /// In the queue of sessions that have input to serve.
    pub is_queued: bool,
    /// The driver has an [`Effect::Pause`](super::Effect::Pause) and no `Resume` since.
    pub is_paused: bool,
    /// The arrival of the first input that has no complete reply yet, or zero.
    pub unanswered_since: Time,
}

/// How far the peer has ended its side of the connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum InputEnd {
    Open,
    /// The peer sends nothing more, but earlier input may still arrive.
    Ending,
    /// All input has arrived.
    Ended,
}

/// The part of a session that commands read and change.
pub(super) struct ProtocolState {
    pub client: ClientKey,
    pub state: SessionState,
    pub input: Input,
    /// The unsent replies have passed [`OUTPUT_BYTES_PAUSE`](crate::values::limits::OUTPUT_BYTES_PAUSE) and not yet fallen below
    /// the mark where serving resumes.
    pub is_choked: bool,
    /// In [`SessionState::Waiting`] and [`SessionState::Gathering`]: the number of jobs that a `reserve-batch` takes, or 0 for any
    /// other reserve.
    pub batch: u32,
    /// In [`SessionState::Gathering`]: the first of them.
    pub first_of_batch: JobId,
    /// In [`SessionState::Waiting`]: the `reserve-batch` has no timeout. It waits only until it is known whether there is a job.
    pub is_batch_at_once: bool,
    /// The `put-batch` whose jobs are arriving: the next line belongs to it.
    pub put_batch: Option<Box<PutBatch>>,
    /// The list that is being rendered, in [`SessionState::Listing`].
    pub list: Option<Box<TubeList>>,
}

/// ```text
///           reserve, wait-job (Waiting, then for a batch Gathering)
///           last job of put-batch (Storing)
///           large command     (Working)
///           long list         (Listing)      quit, end of input      broken
///   Serving -------------------> * -----.        |                     |
///      ^         reply           |      '--------+--> Closing ---------+--> Closed
///      '-------------------------'                     everything is sent
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum SessionState {
    /// Commands are served as they arrive.
    Serving,
    /// A `reserve` waits for a job, or a `wait-job` for the end of one.
    Waiting,
    /// A `reserve-batch` has waited and got its first job. It takes the others in its turn.
    Gathering,
    /// All jobs of a `put-batch` have arrived. They are stored in the session's turn.
    Storing,
    /// A command on many jobs is carried out in pieces: `kick`, `flush-tube`, `flush-keys`, `move-jobs` or `list-jobs`.
    Working,
    /// A list of tubes is rendered in pieces, no faster than it is sent.
    Listing,
    /// The remaining replies are sent, and input is ignored.
    Closing,
    /// The driver has an [`Effect::Close`](super::Effect::Close).
    Closed,
}

/// What the next byte of input belongs to.
pub(super) enum Input {
    /// A command line.
    Line,
    /// A job's body.
    Body(IncomingJob),
    /// A refused body: `left` bytes are skipped, then the job is refused, or all of its batch.
    Skip { left: u64, refusal: Refusal },
}

/// A job whose body is arriving.
pub(super) struct IncomingJob {
    /// `None` for a job of a batch, which takes its ids when it is complete.
    pub id: Option<JobId>,
    pub args: PutArgs,
    /// Its tags, if it has any.
    pub extra: Option<ExtraKey>,
    pub slot: Slot,
    /// Bytes of the slot that have arrived.
    pub filled: usize,
}

impl IncomingJob {
    pub fn is_complete(&self) -> bool {
        self.filled == self.slot.len()
    }
}

impl Session {
    pub fn new(conn: ConnId, number: u64, client: ClientKey, opening: Option<Opening>) -> Self {
        Self {
            conn,
            reader: LineReader::new(),
            has_long_line: false,
            opening,
            protocol: ProtocolState::new(client),
            output: Output::new(number),
            inbox: BytesMut::new(),
            inbox_bytes: 0,
            input_end: InputEnd::Open,
            is_queued: false,
            is_paused: false,
            unanswered_since: Time::ZERO,
        }
    }

    /// Notes the time of input that will need a reply, unless earlier input still does.
    #[inline]
    pub fn note_request(&mut self, now: Time) {
        if self.unanswered_since == Time::ZERO {
            self.unanswered_since = now;
        }
    }

    /// Whether input and notices still count.
    pub fn is_open(&self) -> bool {
        self.protocol.state < SessionState::Closing
    }

    /// Whether the next input can be served at once, without the inbox.
    pub fn can_serve_directly(&self) -> bool {
        self.protocol.can_serve() && self.inbox.is_empty()
    }

    /// Whether a complete body waits for space in the job log.
    pub fn has_complete_body(&self) -> bool {
        self.protocol.input.is_complete_body()
    }

    /// Whether more of a list can be rendered now.
    pub fn can_list(&self, output_bytes_pause: usize) -> bool {
        let pause = LIST_OUTPUT_BYTES_PAUSE.min(output_bytes_pause);
        self.protocol.state == SessionState::Listing && self.output.unsent_bytes() < pause
    }
}

impl SessionState {
    /// Whether the session waits for its turn to carry out a command whose input is complete.
    pub const fn is_in_turn(self) -> bool {
        matches!(self, Self::Gathering | Self::Storing)
    }
}

impl Input {
    /// Whether it is a complete body, which waits for space in the job log.
    pub fn is_complete_body(&self) -> bool {
        matches!(self, Self::Body(incoming) if incoming.is_complete())
    }
}

impl ProtocolState {
    pub const fn new(client: ClientKey) -> Self {
        Self {
            client,
            state: SessionState::Serving,
            input: Input::Line,
            is_choked: false,
            batch: 0,
            first_of_batch: JobId(0),
            is_batch_at_once: false,
            put_batch: None,
            list: None,
        }
    }

    /// Leaves the reply to a later event.
    pub const fn wait_in(&mut self, state: SessionState) -> Outcome<'static> {
        self.state = state;
        Outcome::Pending
    }

    /// Discards a body that is refused before it has come.
    pub const fn skip_body(&mut self, bytes: u64, refusal: Refusal) -> Outcome<'static> {
        self.input = Input::Skip { left: bytes, refusal };
        Outcome::Pending
    }

    /// The reply to a wait that ends without a job.
    pub const fn timed_out(&self) -> Reply<'static> {
        if self.batch > 0 && self.is_batch_at_once { Reply::ReservedBatch(0) } else { Reply::TimedOut }
    }

    /// Whether commands can be served now.
    pub fn can_serve(&self) -> bool {
        self.state == SessionState::Serving && !self.is_choked
    }
}

impl Core {
    /// Removes the client from the queue. Its unsent replies may still be sent.
    pub(super) fn leave(&mut self, session: &mut Session, now: Time) {
        self.observe(session.protocol.client, Observation::Left);
        self.end_list(&mut session.protocol);
        self.drop_batch(&mut session.protocol);
        self.engine.disconnect(session.protocol.client, now);
        self.iteration_steps += self.take_steps();
        self.clients -= 1;
        session.inbox = BytesMut::new();
        self.memory.count_inbox(session);
    }

    /// Closes a connection that is closing and has sent everything. Returns whether it did.
    pub(super) fn close_if_sent(&mut self, session: &mut Session) -> bool {
        let is_sent = session.protocol.state == SessionState::Closing && session.output.unsent_bytes() == 0;
        if is_sent {
            self.close(session);
        }
        is_sent
    }

    pub(super) fn hung_up(&mut self, session: &mut Session, now: Time) {
        if session.is_open() {
            self.leave(session, now);
        }
        if session.protocol.state != SessionState::Closed {
            self.close(session);
        }
    }

    fn close(&mut self, session: &mut Session) {
        session.protocol.state = SessionState::Closed;
        self.effects.push_back(Effect::Close(session.conn));
    }
}

impl Server {
    /// Frees what a connection has kept for the kernel. The driver has closed it.
    pub(super) fn remove_client(&mut self, conn: ConnId) {
        let mut session = self.connections.remove_client(conn);
        assert_eq!(
            session.protocol.state,
            SessionState::Closed,
            "a driver closes a connection only on Effect::Close"
        );
        self.core.long_lines -= usize::from(session.has_long_line);
        self.count_tables();
        session.output.clear(self.core.engine.bodies_mut(), &mut self.core.buffers);
        if let Input::Body(incoming) = session.protocol.input {
            self.core.free_incoming(incoming);
        }
    }
}
