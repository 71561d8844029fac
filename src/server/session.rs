//! One connection: what of its input is understood so far, and what it waits for.

use bytes::BytesMut;

use super::output::Output;
use crate::bodies::Slot;
use crate::ids::{ClientKey, ConnId, JobId};
use crate::limits::LIST_OUTPUT_BYTES_PAUSE;
use crate::protocol::command::PutArgs;
use crate::protocol::foreign::Opening;
use crate::protocol::framing::LineReader;
use crate::protocol::reply::Reply;
use crate::queue::List;
use crate::time::Time;

/// A connection from accept until the driver has closed it.
pub(super) struct Session {
    pub conn: ConnId,
    pub reader: LineReader,
    /// Its first line, until that is known to be no request of another protocol.
    pub opening: Option<Opening>,
    pub talk: ProtocolState,
    /// Input that came while the session could not be served.
    pub inbox: BytesMut,
    /// What that has been counted as.
    pub inbox_bytes: usize,
    /// The peer sends nothing more; what it sent before may still be on its way here.
    pub input_ending: bool,
    /// All input has come.
    pub input_ended: bool,
    /// In the queue of sessions that have input to be served.
    pub is_queued: bool,
    /// The driver was told to send and has not sent everything yet.
    pub is_sending: bool,
    /// The driver was told not to receive.
    pub is_paused: bool,
    /// The batch of the log that it is to be told of, or 0.
    pub awaited: u64,
    /// When the first input came that is not answered yet; zero if all is.
    pub asked: Time,
}

/// What commands read and change of their session.
pub(super) struct ProtocolState {
    pub client: ClientKey,
    pub phase: Phase,
    pub input: Input,
    pub output: Output,
    /// Too much output is unsent: see [`OUTPUT_BYTES_PAUSE`](crate::limits::OUTPUT_BYTES_PAUSE).
    pub is_choked: bool,
    /// The list that is being rendered, in [`Phase::Listing`].
    pub list: Option<Box<List>>,
}

/// ```text
///         reserve, a large kick or list      quit, end of input      broken
///   Serving -------------------> Waiting ---.        |                  |
///      ^      answer                |        '-------+--> Closing ------+--> Closed
///      '----------------------------'                        everything is sent
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    /// Commands are served as they come.
    Serving,
    /// A `reserve` has no answer yet.
    Waiting,
    /// A `kick` has no answer yet.
    Kicking,
    /// A `stats` waits for the driver's statistics.
    Sampling,
    /// A list of tubes is being rendered, no faster than it is sent.
    Listing,
    /// What is left to send is sent, nothing else.
    Closing,
    /// The driver was told to close it.
    Closed,
}

/// What the next byte of input is part of.
pub(super) enum Input {
    /// A command line.
    Line,
    /// A job's body.
    Body(Incoming),
    /// A body that is not wanted; then comes the answer.
    Skip { left: u64, answer: Reply<'static> },
}

/// A job whose body is on its way.
pub(super) struct Incoming {
    pub id: JobId,
    pub args: PutArgs,
    pub slot: Slot,
    /// How much of the slot is filled.
    pub filled: usize,
}

impl Incoming {
    /// Whether the body has come in whole.
    pub fn is_whole(&self) -> bool {
        self.filled == self.slot.len()
    }
}

impl Session {
    pub fn new(conn: ConnId, client: ClientKey, opening: Option<Opening>) -> Self {
        let (phase, input, output) = (Phase::Serving, Input::Line, Output::default());
        Self {
            conn,
            reader: LineReader::new(),
            opening,
            talk: ProtocolState { client, phase, input, output, is_choked: false, list: None },
            inbox: BytesMut::new(),
            inbox_bytes: 0,
            input_ending: false,
            input_ended: false,
            is_queued: false,
            is_sending: false,
            is_paused: false,
            awaited: 0,
            asked: Time::ZERO,
        }
    }

    /// Something is to be answered from now on, if nothing was before.
    #[inline]
    pub fn asked_by(&mut self, now: Time) {
        if self.asked == Time::ZERO {
            self.asked = now;
        }
    }
}

impl ProtocolState {
    /// Whether commands are served now.
    pub fn is_served(&self) -> bool {
        self.phase == Phase::Serving && !self.is_choked
    }

    /// Whether more of a list is to be rendered now.
    pub fn wants_list(&self) -> bool {
        self.phase == Phase::Listing && self.output.pending() < LIST_OUTPUT_BYTES_PAUSE
    }
}
