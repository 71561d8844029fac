//! What a client of either front door waits for, and the body that is arriving for it.

use super::access::SessionAccess;
use super::beanstalk::Listing;
use super::outcome::{Outcome, Refusal};
use super::put_batch::PutBatch;
use super::schedules::PlannedSchedule;
use crate::bodies::Slot;
use crate::protocol::command::PutArgs;
use crate::protocol::reply::Reply;
use crate::queue::Begun;
use crate::values::ids::{ClientKey, JobId, TagsKey};

/// The part of a session, or of a call over HTTP, that commands read and change.
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
    pub list: Option<Box<Listing>>,
    /// Who the client is. None without `--auth`: then it may do everything.
    pub access: Option<SessionAccess>,
}

/// ```text
///           reserve, wait-job (Waiting, then for a batch Gathering)
///           last job of put-batch (Storing)
///           large command     (Working)
///           long list         (Listing)
///           other rights      (Unwatching)   quit, end of input      broken
///           wrong token       (Refused, then Closing)
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
    /// The watches of tubes on which the user may not consume end in pieces.
    Unwatching,
    /// A wrong token was sent. Its reply comes late, and then the connection is closed.
    Refused,
    /// The remaining replies are sent, and input is ignored.
    Closing,
    /// The driver has an [`Effect::Close`](super::Effect::Close).
    Closed,
}

/// What the next byte of input belongs to.
pub(super) enum Input {
    /// A command line.
    Line,
    /// A body, or the text of a `job-note`.
    Body(Incoming),
    /// A refused body: `left` bytes are skipped, then the job is refused, or all of its batch. Or a refused text.
    Skip { left: u64, refusal: Refusal, of: Skipped },
}

/// What a refused body is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Skipped {
    Job,
    Text,
}

/// A body that is arriving.
pub(super) struct Incoming {
    pub of: BodyOf,
    /// The body with its CR LF.
    pub slot: Slot,
    /// Bytes of the slot that have arrived.
    pub filled: usize,
}

/// What a body is of.
pub(super) enum BodyOf {
    /// A job with this id. `None` for a job of a batch, which takes its ids when it is complete.
    Job(Option<JobId>, PutLine),
    /// A note of this job.
    Note(JobId),
    Schedule(Box<PlannedSchedule>),
}

/// What the line of a `put` has said.
pub(super) struct PutLine {
    pub args: PutArgs,
    /// The tags of the job, if it has any.
    pub tags_key: Option<TagsKey>,
}

impl Incoming {
    pub fn is_complete(&self) -> bool {
        self.filled == self.slot.len()
    }
}

impl BodyOf {
    pub const fn is_schedule(&self) -> bool {
        matches!(self, Self::Schedule(_))
    }

    /// The tags of the job, if it has any.
    pub const fn tags_key(&self) -> Option<TagsKey> {
        if let Self::Job(_, line) = self { line.tags_key } else { None }
    }
}

impl SessionState {
    /// Whether the session waits for its turn to carry out a command whose input is complete.
    pub const fn is_in_turn(self) -> bool {
        matches!(self, Self::Gathering | Self::Storing | Self::Unwatching)
    }
}

impl Input {
    /// The body that is arriving, if there is one.
    pub const fn body(&self) -> Option<&Incoming> {
        if let Self::Body(incoming) = self { Some(incoming) } else { None }
    }

    /// Whether it is a complete body, which waits for space in the job log.
    pub fn is_complete_body(&self) -> bool {
        self.body().is_some_and(Incoming::is_complete)
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
            access: None,
        }
    }

    /// Serves the next command, once the watches are those of the user.
    pub fn serve_again(&mut self) {
        let has_stale_watches = self.access.as_ref().is_some_and(SessionAccess::has_stale_watches);
        self.state = if has_stale_watches { SessionState::Unwatching } else { SessionState::Serving };
    }

    /// Leaves the reply to a later event.
    pub const fn wait_in(&mut self, state: SessionState) -> Outcome<'static> {
        self.state = state;
        Outcome::Pending
    }

    /// The outcome of a command that the queue has begun.
    pub fn begun<'a, T>(&mut self, begun: Begun<T>, done: impl FnOnce(T) -> Outcome<'a>) -> Outcome<'a> {
        match begun {
            Begun::Done(value) => done(value),
            Begun::Working => self.wait_in(SessionState::Working),
            Begun::NoTube => Outcome::Refused(Refusal::NoTube),
        }
    }

    /// Discards a body that is refused before it has come.
    pub fn skip_body(&mut self, bytes: u64, refusal: Refusal) -> Outcome<'static> {
        self.input = Input::Skip { left: bytes, refusal, of: Skipped::Job };
        Outcome::Pending
    }

    /// Discards a text that is refused before it has come.
    pub fn skip_text(&mut self, bytes: u64, refusal: Refusal) -> Outcome<'static> {
        self.input = Input::Skip { left: bytes, refusal, of: Skipped::Text };
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
