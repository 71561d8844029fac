//! The memory of the server besides the queue and the job log, and the headroom for jobs.

use std::rc::Rc;

use crate::protocol::framing;
use crate::queue::TubeList;
use crate::server::beanstalk::Session;
use crate::server::http::{HTTP_KINDS, HttpConnection};
use crate::server::schedules::PlannedSchedule;
use crate::values::account::{Account, Held};
use crate::values::limits::{ALLOCATION_BYTES, LINE_BYTES_LONG_MAX, OUTPUT_BYTES_PAUSE};

/// The memory that is kept for peers, and how much jobs and replies may still take.
pub(in crate::server) struct MemoryGauge {
    /// The memory that is kept for peers, here and in other layers.
    account: Rc<Account>,
    /// Memory that other layers have allocated for themselves, in bytes.
    outer_bytes: u64,
    /// Memory that jobs of this iteration may take without another look at the totals.
    headroom_bytes: u64,
    /// The memory that was held for peers at that look.
    held_bytes: usize,
    /// A connection is not served while this much of its replies is unsent: see [`OUTPUT_BYTES_PAUSE`].
    output_bytes_pause: usize,
    kept: [usize; Kept::HttpList as usize + 1],
}

/// What a line of a `schedule-put` takes, at most.
const SCHEDULE_LINE_BYTES: usize = LINE_BYTES_LONG_MAX + size_of::<PlannedSchedule>();

/// Memory that few connections keep, each at most once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::server) enum Kept {
    /// A line that is longer than usual and has come in pieces.
    LongLine,
    /// A list that is being rendered.
    List,
    /// What the line of a `schedule-put` has said, until its body has come.
    ScheduleLine,
    /// A list of tubes over HTTP in progress.
    HttpList,
}

impl MemoryGauge {
    pub fn new(limit: Option<u64>) -> Self {
        Self {
            account: Rc::new(Account::new(limit)),
            outer_bytes: 0,
            headroom_bytes: 0,
            held_bytes: 0,
            output_bytes_pause: OUTPUT_BYTES_PAUSE,
            kept: [0; Kept::HttpList as usize + 1],
        }
    }

    pub const fn account(&self) -> &Rc<Account> {
        &self.account
    }

    /// Notes what other layers have allocated for themselves.
    pub const fn set_outer(&mut self, bytes: u64) {
        self.outer_bytes = bytes;
        self.invalidate();
    }

    /// Memory that is kept for peers, and that of other layers.
    pub fn bytes(&self) -> u64 {
        self.account.total() as u64 + self.outer_bytes
    }

    /// Makes the next job look at the totals: something else may have taken memory.
    pub const fn invalidate(&mut self) {
        self.headroom_bytes = 0;
    }

    /// Takes memory for a job from the headroom, if that has it.
    pub fn take_headroom(&mut self, bytes: u64) -> bool {
        let grown = self.account.total().saturating_sub(self.held_bytes) as u64;
        let has_room = bytes + grown <= self.headroom_bytes;
        if has_room {
            self.headroom_bytes -= bytes;
        }
        has_room
    }

    /// Sets the headroom after a look at the totals.
    pub fn set_headroom(&mut self, bytes: u64) {
        (self.headroom_bytes, self.held_bytes) = (bytes, self.account.total());
    }

    #[inline]
    pub const fn output_bytes_pause(&self) -> usize {
        self.output_bytes_pause
    }

    /// Decides how much of a connection's replies may be unsent while it is served: little once unsent replies take their share of
    /// the memory limit.
    pub fn update_output_pause(&mut self) {
        let is_short = self.account.output_room() == 0;
        self.output_bytes_pause = if is_short { 1 } else { OUTPUT_BYTES_PAUSE };
    }

    /// Counts the current size of an inbox.
    pub fn count_inbox(&self, session: &mut Session) {
        // Input served from the front stays allocated, though the capacity no longer includes it.
        let before = session.inbox_bytes;
        let capacity = session.inbox.capacity();
        session.inbox_bytes = if capacity == 0 { 0 } else { capacity.max(before) };
        self.account.change(Held::Inboxes, before, session.inbox_bytes);
    }

    /// Counts the current size of an HTTP connection.
    pub fn count_http(&self, connection: &mut HttpConnection) {
        let memory = connection.memory();
        self.change_http(std::mem::replace(&mut connection.counted, memory), memory);
    }

    /// Counts that an HTTP connection has gone.
    pub fn forget_http(&self, connection: &HttpConnection) {
        self.change_http(connection.counted, [0; HTTP_KINDS.len()]);
    }

    fn change_http(&self, before: [usize; HTTP_KINDS.len()], after: [usize; HTTP_KINDS.len()]) {
        // Bounded by HTTP_KINDS: the kinds of memory of one connection.
        for (at, kind) in HTTP_KINDS.into_iter().enumerate() {
            self.account.change(kind, before[at], after[at]);
        }
    }

    /// Counts the current size of lines and lists, and of sessions, tables and queues.
    pub fn count_tables(&mut self, sessions: usize) {
        self.invalidate();
        self.account.set(Held::Sessions, sessions);
        self.account.set(
            Held::Lines,
            self.kept(Kept::LongLine) * (framing::LONG_FRONT_BYTES + ALLOCATION_BYTES)
                + self.kept(Kept::ScheduleLine) * SCHEDULE_LINE_BYTES,
        );
        self.account.set(Held::Lists, self.kept(Kept::List) * (size_of::<TubeList>() + ALLOCATION_BYTES));
    }

    /// Counts whether a connection keeps one of these.
    pub fn count(&mut self, kept: Kept, before: bool, after: bool) {
        let count = &mut self.kept[kept as usize];
        *count = *count + usize::from(after) - usize::from(before);
    }

    /// The number of connections that keep one.
    pub const fn kept(&self, kept: Kept) -> usize {
        self.kept[kept as usize]
    }
}
