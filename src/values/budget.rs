//! The two counters of the server's work, and the price of each kind of work.
//!
//! Work is counted in elementary steps of some 100 ns: a tube or a client visited, a job moved. Its counter only grows, and a
//! [`Limit`] is a position of it. The arrival of events is counted apart and takes no one's turn. A [`Cost`] comes from a constructor
//! for its kind of work, so each price is written once.
//!
//! Commands are served in two phases of an event-loop iteration: the events of the driver, and then the turns of the connections
//! that wait. Each has [`RUN_STEPS`], and the second one less after many events.

/// What one connection may spend before the others have their turn: some 100 us.
pub const TURN_STEPS: u32 = 1024;

/// What a phase of an event-loop iteration may spend: some 300 us. Events that come after this get one command each, up to
/// [`RUN_STEPS_MAX`].
pub const RUN_STEPS: u32 = 3 * TURN_STEPS;

/// After this the commands of further events wait in inboxes for a later iteration. Enough for one command from each of
/// [`EVENTS_MAX`](super::limits::EVENTS_MAX) clients, unless they are large ones such as `kick 256`.
pub const RUN_STEPS_MAX: u32 = RUN_STEPS + 2 * TURN_STEPS;

/// Bytes that are copied in the time of one step.
const COPIED_BYTES_PER_STEP: usize = 1024;

/// Bytes of input that are searched for the end of a line, copied to a body or discarded in the time of one step.
const CONSUMED_BYTES_PER_STEP: usize = 1024;

/// What the events of an iteration may cost that a driver hands on, with all that they lead to: some 800 us. A driver keeps further
/// events for the next iteration.
const EVENTS_STEPS: u64 = 4 * TURN_STEPS as u64;

/// Bytes of statistics that are rendered in the time of one step.
const RENDERED_BYTES_PER_STEP: usize = 64;

/// Bytes of an HTTP request that are read, and of a response that are written, in the time of one step.
const PARSED_BYTES_PER_STEP: usize = 64;
const RESPONSE_BYTES_PER_STEP: usize = 256;

/// Entries of a list, with a tube or without one, that are visited in the time of one step.
const ENTRIES_PER_STEP: usize = 4;

/// Bytes of input that the kernel copies in the time of one step, and bytes of output.
const RECEIVED_BYTES_PER_STEP: usize = 512;
const SENT_BYTES_PER_STEP: usize = 512;

/// Bytes of handshake messages that are read in the time of one step. A message may have very many small parts.
const HELLO_BYTES_PER_STEP: usize = 4;

/// Bytes of a TLS record that are decrypted in the time of one step.
const DECRYPTED_BYTES_PER_STEP: usize = 256;

/// Patterns of a user that a tube is compared with in the time of one step.
const PATTERNS_PER_STEP: usize = 8;

/// The price of a piece of work, in elementary steps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cost(u64);

/// A position of a [`Budget`] at which a piece of work must stop. The smaller of two is reached first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Limit(u64);

/// The steps that one kind of work has left until it gets its whole share again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota(u32);

/// The counters.
#[derive(Default, Debug)]
pub struct Budget {
    /// The price of all work.
    spent: u64,
    /// The position at which the present phase has begun.
    phase: u64,
    /// What counts as spent in the present phase from its beginning.
    carried: u64,
    /// The price of all events. It is apart, since every connection is owed one command, however much has come.
    arrivals: u64,
    /// The steps that were [charged](Self::charged) before this event-loop iteration.
    iteration: u64,
}

impl Cost {
    /// Work that is not counted by itself.
    pub const NOTHING: Self = Self(0);
    /// A tube or client visited, or a job moved.
    pub const STEP: Self = Self(1);
    /// Any command, in addition to what it visits and moves: a `put` of 64 bytes takes some 300 ns.
    pub const COMMAND: Self = Self(3);
    /// The tags of a job, in addition to its `put`: a key that is new has records in several tables, which are in no cache.
    pub const TAGS: Self = Self(24);
    /// The deletion of a job with tags, in addition to what the command takes: it leaves several tables, and its key may be kept.
    pub const TAGS_GONE: Self = Self(8);
    /// A tube that is created, in addition to the command that names it.
    pub const NEW_TUBE: Self = Self(12);
    /// A run of a schedule, or another look at its times: the next one is searched in a calendar.
    pub const SCHEDULE_RUN: Self = Self(200);
    /// A run of a schedule behind which times were missed: the last one is searched.
    pub const SCHEDULE_SEARCH: Self = Self(4000);
    /// Times of a schedule that a client names: they are parsed, and may never come.
    pub const SCHEDULE_TIMES: Self = Self(800);
    /// A turn of a connection from the queue, or an answer to a client that has waited, in addition to their commands: the send is
    /// a system call of its own, of some 3 us.
    pub const SEND: Self = Self(32);
    /// A job that a batch stores or reserves: it takes 0.1 us if the CPU has its memory in the cache, and up to 2.5 us if not.
    pub const BATCH_JOB: Self = Self(8);
    /// A job of a batch that is not stored: its body and its tags are freed.
    pub const FREED_JOB: Self = Self(1);
    /// The percentiles of a tube: each reads all bins of a histogram.
    pub const PERCENTILES: Self = Self(8);
    /// A watch that a user may lose, and whose tube may disappear, in addition to the patterns that the tube is compared with.
    pub const WATCH_CHECK: Self = Self(8);
    /// A token, in addition to its command: its hash and the comparison, and the change of the user.
    pub const AUTH: Self = Self(8);
    /// Any answer over HTTP: some 1.5 us, and as much for its send, which often carries no other answer.
    pub const RESPONSE: Self = Self(30);
    /// An operation over HTTP, in addition to its commands: its client and its response.
    pub const CALL: Self = Self(20);

    /// A look at what the kernel knows of a connection: a system call.
    pub const SOCKET_LOOK: Self = Self(8);
    /// A line of the log: a system call.
    pub const LOG_LINE: Self = Self(50);
    /// A connection that is accepted: two system calls, and its entries in the tables.
    pub const ACCEPT: Self = Self(80);
    /// The end of the input of a connection, which usually ends its client: some 5 us, most of it in the kernel.
    pub const END: Self = Self(64);
    /// A connection that is closed: its descriptor, and its entries in the tables.
    pub const CLOSE: Self = Self(32);
    /// An operation of the job log that has ended.
    pub const DISK: Self = Self(10);

    /// A step of a TLS handshake, in addition to its keys: messages are made, and keys are derived. At most one goes on per iteration.
    pub const HANDSHAKE: Self = Self(200);
    /// A TLS record without plaintext, such as a change of keys, in addition to its decryption: keys are derived.
    pub const NEW_KEYS: Self = Self(40);

    /// The end of a connection over TLS, in addition to its close: an alert is encrypted and sent, and keys are cleared and freed.
    pub const TLS_CLOSE: Self = Self(80);

    /// Handshake messages that are read, in addition to the decryption of their records.
    pub const fn hello(bytes: usize) -> Self {
        Self::visits(bytes / HELLO_BYTES_PER_STEP)
    }

    /// A TLS record that is decrypted.
    #[inline]
    pub const fn record(bytes: usize) -> Self {
        Self::visits(7 + bytes / DECRYPTED_BYTES_PER_STEP)
    }

    /// Input that a system call has received.
    #[inline]
    pub const fn received(bytes: usize) -> Self {
        Self::visits(12 + bytes / RECEIVED_BYTES_PER_STEP)
    }

    /// Output that a system call has sent.
    #[inline]
    pub const fn sent(bytes: usize) -> Self {
        Self::visits(20 + bytes / SENT_BYTES_PER_STEP)
    }

    /// As many visits.
    #[inline]
    pub const fn visits(count: usize) -> Self {
        Self(count as u64)
    }

    /// Bytes of a body that are copied.
    #[inline]
    pub const fn copied(bytes: usize) -> Self {
        Self::visits(bytes / COPIED_BYTES_PER_STEP)
    }

    /// Bytes of input that are used up, whatever becomes of them.
    #[inline]
    pub const fn consumed(bytes: usize) -> Self {
        Self::visits(bytes / CONSUMED_BYTES_PER_STEP)
    }

    /// Bytes of statistics that are rendered.
    #[inline]
    pub const fn rendered(bytes: usize) -> Self {
        Self::visits(bytes / RENDERED_BYTES_PER_STEP)
    }

    /// Bytes of an HTTP request that are read.
    #[inline]
    pub const fn parsed(bytes: usize) -> Self {
        Self::visits(bytes / PARSED_BYTES_PER_STEP)
    }

    /// Bytes of an HTTP response that are written.
    #[inline]
    pub const fn responded(bytes: usize) -> Self {
        Self::visits(bytes / RESPONSE_BYTES_PER_STEP)
    }

    /// Entries of a list that are visited.
    #[inline]
    pub const fn entries(count: usize) -> Self {
        Self::visits(count / ENTRIES_PER_STEP)
    }

    /// Patterns that a tube is compared with.
    #[inline]
    pub const fn patterns(count: usize) -> Self {
        Self::visits(count.div_ceil(PATTERNS_PER_STEP))
    }

    /// Both.
    #[inline]
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This work, done as often.
    #[inline]
    #[must_use]
    pub const fn times(self, count: usize) -> Self {
        Self(self.0.saturating_mul(count as u64))
    }

    /// How many such pieces of work these steps pay for, at least one.
    #[must_use]
    pub fn fits(self, steps: u32) -> u32 {
        steps.checked_div(self.steps()).unwrap_or(steps).max(1)
    }

    /// The number of elementary steps.
    #[inline]
    pub const fn steps(self) -> u32 {
        if self.0 < u32::MAX as u64 { self.0 as u32 } else { u32::MAX }
    }
}

impl Quota {
    /// A share of this many steps.
    pub const fn of(steps: u32) -> Self {
        Self(steps)
    }

    /// Whether nothing is left.
    #[inline]
    pub const fn is_used_up(self) -> bool {
        self.0 == 0
    }

    /// The limit of a piece of work that begins now and may use what is left. [`settle`](Self::settle) ends it.
    #[inline]
    pub const fn limit(self, budget: &Budget) -> Limit {
        Limit(budget.spent + self.0 as u64)
    }

    /// Takes off what a piece of work with this limit has spent.
    #[inline]
    pub const fn settle(&mut self, limit: Limit, budget: &Budget) {
        self.0 = limit.0.saturating_sub(budget.spent) as u32;
    }
}

impl Budget {
    /// Spends for a piece of work that is not interrupted.
    #[inline]
    pub const fn charge(&mut self, cost: Cost) {
        self.spent += cost.0;
    }

    /// Counts the arrival of an event. Over TLS both have one: the event with ciphertext, and each with its plaintext.
    #[inline]
    pub const fn charge_arrival(&mut self, cost: Cost) {
        self.arrivals += cost.0;
    }

    /// Spends for the next piece of a loop. Returns false, and spends nothing, if the limit is reached: then the caller must stop.
    #[inline]
    #[must_use]
    pub const fn spend(&mut self, cost: Cost, limit: Limit) -> bool {
        let is_left = self.spent < limit.0;
        self.spent += if is_left { cost.0 } else { 0 };
        is_left
    }

    /// Whether a piece of work with this limit must stop.
    #[inline]
    pub const fn is_reached(&self, limit: Limit) -> bool {
        self.spent >= limit.0
    }

    /// Whether a piece of work with this limit must stop that has set off something for this price, as often.
    #[inline]
    pub const fn is_reached_with(&self, cost: Cost, count: usize, limit: Limit) -> bool {
        self.spent + cost.0 * count as u64 >= limit.0
    }

    /// The limit of a piece of work that begins now and may take this many steps.
    #[inline]
    pub const fn within(&self, steps: u32) -> Limit {
        Limit(self.spent + steps as u64)
    }

    /// Spends up to a limit, unless more is spent already.
    #[inline]
    pub fn spend_up_to(&mut self, limit: Limit) {
        self.spent = self.spent.max(limit.0);
    }

    /// All that is spent, in elementary steps.
    #[inline]
    pub const fn spent(&self) -> u64 {
        self.spent
    }

    /// All that is spent, and the price of all events, in elementary steps.
    #[inline]
    pub const fn charged(&self) -> u64 {
        self.spent + self.arrivals
    }

    /// Begins an event-loop iteration: its events come next.
    pub const fn begin_iteration(&mut self) {
        self.iteration = self.charged();
    }

    /// Whether a driver is to keep further events for the next iteration.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.charged() - self.iteration >= EVENTS_STEPS
    }

    /// Begins a phase. Returns what the one before has spent.
    pub const fn begin_phase(&mut self) -> u64 {
        let spent = self.spent - self.phase;
        (self.phase, self.carried) = (self.spent, 0);
        spent
    }

    /// Begins the phase of turns. An iteration with many events has fewer of them: half of what its events have cost counts, up to all but
    /// the share of one connection.
    pub fn begin_turns(&mut self) {
        const CARRIED_MAX: u64 = (RUN_STEPS - TURN_STEPS) as u64;
        let half = (self.charged() - self.iteration) / 2;
        self.phase = self.spent;
        self.carried = half.min(CARRIED_MAX);
    }

    /// Whether the present phase has spent its share.
    #[inline]
    pub const fn is_phase_over(&self) -> bool {
        self.in_phase() >= RUN_STEPS as u64
    }

    /// The limit of the turn that a connection has now. After the share of the phase a client that sends one command at a time does not
    /// wait behind clients that pipeline: each gets one.
    #[inline]
    pub fn turn(&self) -> Limit {
        const SHARE: u64 = RUN_STEPS as u64;
        const TURN: u64 = TURN_STEPS as u64;
        let spent = self.in_phase();
        let steps =
            if spent < SHARE { TURN.min(SHARE - spent) } else { (spent < RUN_STEPS_MAX as u64) as u64 };
        Limit(self.spent + steps)
    }

    #[inline]
    const fn in_phase(&self) -> u64 {
        self.spent - self.phase + self.carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget whose phase has spent this much.
    fn after(steps: u32) -> Budget {
        let mut budget = Budget::default();
        budget.charge(Cost(77));
        assert_eq!(budget.begin_phase(), 77);
        budget.charge(Cost(steps.into()));
        budget
    }

    #[test]
    fn a_turn_shrinks_to_one_command_and_then_to_none() {
        for (spent, turn) in [
            (0, TURN_STEPS),
            (RUN_STEPS - TURN_STEPS, TURN_STEPS),
            (RUN_STEPS - 1, 1),
            (RUN_STEPS, 1),
            (RUN_STEPS_MAX - 1, 1),
            (RUN_STEPS_MAX, 0),
        ] {
            let budget = after(spent);
            assert_eq!(budget.turn(), budget.within(turn), "after {spent}");
        }
    }

    #[test]
    fn many_events_leave_one_connection_its_share() {
        for (events, spent) in [(0, 0), (1000, 500), (EVENTS_STEPS, RUN_STEPS - TURN_STEPS)] {
            let mut budget = after(0);
            budget.begin_iteration();
            budget.charge_arrival(Cost(events));
            budget.begin_turns();
            assert_eq!(budget.in_phase(), u64::from(spent), "after {events}");
            assert_eq!(budget.turn(), budget.within(TURN_STEPS));
            assert_eq!(budget.begin_phase(), 0);
            assert_eq!(budget.in_phase(), 0);
        }
    }

    #[test]
    fn arrivals_fill_an_iteration_and_take_no_turn() {
        let mut budget = after(0);
        budget.begin_iteration();
        let turn = budget.turn();
        while !budget.is_full() {
            budget.charge_arrival(Cost::received(1000));
        }
        assert_eq!(budget.turn(), turn);
        budget.begin_iteration();
        assert!(!budget.is_full());
        budget.charge(Cost(EVENTS_STEPS));
        assert!(budget.is_full());
    }

    #[test]
    fn nothing_is_spent_at_a_limit() {
        let mut budget = after(5);
        let limit = budget.within(1);
        assert!(budget.spend(Cost::SEND, limit));
        assert!(budget.is_reached(limit) && !budget.spend(Cost::SEND, limit));
        assert_eq!(budget.begin_phase(), 5 + u64::from(Cost::SEND.steps()));
    }

    #[test]
    fn a_quota_is_used_up_by_several_pieces() {
        let (mut budget, mut quota) = (after(0), Quota::of(10));
        for (cost, is_used_up) in [(4, false), (4, false), (4, true)] {
            let limit = quota.limit(&budget);
            budget.charge(Cost(cost));
            quota.settle(limit, &budget);
            assert_eq!(quota.is_used_up(), is_used_up);
        }
    }
}
