//! One client connection, from accept to the driver's close: the input understood so far, and what its client waits for.

use bytes::BytesMut;

use crate::protocol::foreign::Opening;
use crate::protocol::framing::LineReader;
use crate::server::client_state::{ProtocolState, SessionState};
use crate::server::closing::SendProgress;
use crate::server::commit_gate::Output;
use crate::server::connections::Connection;
use crate::server::memory::Kept;
use crate::server::metrics::Count;
use crate::server::trace::Observation;
use crate::server::{Core, Effect, Server};
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::{ClientKey, ConnId};

/// A list of tubes is rendered no further than this ahead of what is sent.
const LIST_OUTPUT_BYTES_PAUSE: usize = 16 * 1024;

/// A client connection from accept until the driver has closed it.
pub(in crate::server) struct Session {
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
    /// The driver has an [`Effect::Pause`](crate::server::Effect::Pause) and no `Resume` since.
    pub is_paused: bool,
    /// The arrival of the first input that has no complete reply yet, or zero.
    pub unanswered_since: Time,
    /// What it has sent, while it must.
    pub progress: SendProgress,
}

/// What a connection keeps for its peer.
pub(in crate::server) struct SessionMemory {
    pub inbox_bytes: usize,
    pub reply_bytes: usize,
    pub has_long_line: bool,
    pub has_list: bool,
    /// The jobs that have arrived of a batch, if there is one.
    pub batch_jobs: Option<usize>,
}

/// How far the peer has ended its side of the connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::server) enum InputEnd {
    Open,
    /// The peer sends nothing more, but earlier input may still arrive.
    Ending,
    /// All input has arrived.
    Ended,
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
            progress: SendProgress::default(),
        }
    }

    /// Notes the time of input that will need a reply, unless earlier input still does.
    #[inline]
    pub fn note_request(&mut self, now: Time) {
        if self.unanswered_since == Time::ZERO {
            self.unanswered_since = now;
        }
    }

    /// What the connection keeps for its peer, beside bodies and [its own record](Self). A field that grows belongs to it: none is left
    /// out here.
    pub fn memory(&self) -> SessionMemory {
        let Self {
            reader,
            protocol,
            output,
            inbox,
            inbox_bytes,
            conn: _,
            has_long_line: _,
            opening: _,
            input_end: _,
            is_queued: _,
            is_paused: _,
            unanswered_since: _,
            progress: _,
        } = self;
        assert!(inbox.capacity() <= *inbox_bytes, "the whole inbox is counted");
        let ProtocolState {
            put_batch,
            list,
            client: _,
            state: _,
            input: _,
            is_choked: _,
            batch: _,
            first_of_batch: _,
            is_batch_at_once: _,
            access: _,
        } = protocol;
        SessionMemory {
            inbox_bytes: *inbox_bytes,
            reply_bytes: output.buffer_bytes(),
            has_long_line: reader.is_long(),
            has_list: list.is_some(),
            batch_jobs: put_batch.as_ref().map(|batch| batch.arrived_jobs()),
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

impl Core {
    /// Removes the client from the queue. Its unsent replies may still be sent.
    pub(in crate::server) fn leave(&mut self, session: &mut Session, now: Time) {
        self.reporter.observe(&self.engine, session.protocol.client, Observation::Left);
        self.end_list(&mut session.protocol);
        self.note_put_cut_off(&session.protocol, now);
        self.drop_batch(&mut session.protocol);
        self.engine.disconnect(session.protocol.client, now);
        self.charge(Cost::COMMAND);
        self.counts.add(Count::Left, 1);
        session.inbox = BytesMut::new();
        self.memory.count_inbox(session);
    }

    /// Closes a connection that is closing and has sent everything. Returns whether it did.
    pub(in crate::server) fn close_if_sent(&mut self, session: &mut Session) -> bool {
        let is_sent = session.protocol.state == SessionState::Closing && session.output.unsent_bytes() == 0;
        if is_sent {
            self.close(session);
        }
        is_sent
    }

    pub(in crate::server) fn hung_up(&mut self, session: &mut Session, now: Time) {
        if session.is_open() {
            self.leave(session, now);
        }
        if session.protocol.state != SessionState::Closed {
            self.close(session);
        }
    }

    fn close(&mut self, session: &mut Session) {
        if session.protocol.state == SessionState::Closing {
            self.closing.remove();
        }
        session.protocol.state = SessionState::Closed;
        // mutant slot-freed-before-its-send-ended: adds session.output.clear(self.engine.bodies_mut(), &mut self.buffers);
        self.effects.push_back(Effect::Close(session.conn));
    }
}

impl Server {
    /// Frees what a connection has kept for the kernel. The driver has closed it.
    pub(in crate::server) fn remove_client(&mut self, conn: ConnId) {
        let Connection::Client(mut session) = self.connections.remove(conn) else {
            unreachable!("its id is that of a client")
        };
        assert_eq!(
            session.protocol.state,
            SessionState::Closed,
            "a driver closes a connection only on Effect::Close"
        );
        self.core.memory.count(Kept::LongLine, session.has_long_line, false);
        self.count_tables();
        session.output.clear(self.core.engine.bodies_mut(), &mut self.core.buffers);
        self.core.free_input(session.protocol.input);
    }
}
