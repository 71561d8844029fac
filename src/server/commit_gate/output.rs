//! The replies of one connection, from rendering to the end of their send.
//!
//! ```text
//!                its ticket is released                  sent
//!   replies ---> (earlier) ----------> in flight ----------------> buffer is reused
//!      |                                  ^
//!      '----------------------------------'
//!             its ticket is released
//! ```

use std::io::IoSlice;
use std::rc::Rc;

use super::Ticket;
use crate::bodies::{Bodies, PinnedBody, Slot};
use crate::protocol::reply::{ErrorKind, InsertedLine, Reply};
use crate::server::trace;
use crate::values::account::{Account, Held};
use crate::values::ids::JobId;
use crate::values::limits::{SEND_SLICES_MAX, SPARE_BUFFER_BYTES_MAX, SPARE_BUFFERS_MAX};

/// Rendered replies. Bytes in flight neither move nor change until they are sent: new replies gather in another batch.
pub(in crate::server) struct Output {
    /// The batch that the driver sends.
    in_flight: Batch,
    /// Bytes of `in_flight` that are sent.
    sent: usize,
    /// Bytes that were sent so far.
    sent_bytes: u64,
    /// Replies that need less than those in `replies`.
    earlier: Option<Box<Batch>>,
    replies: Replies,
    /// The largest ticket for which this connection is registered with the gate.
    pub(super) awaited: Ticket,
    /// The driver has an [`Effect::Send`](crate::server::Effect::Send) and has not yet sent everything that it may.
    pub(in crate::server) is_sending: bool,
}

/// The batch that new replies are appended to. [`Core::with_replies`](crate::server::Core) alone hands it out, and gives
/// all that was appended its ticket.
pub(in crate::server) struct Replies {
    /// See [`Service::number`](crate::server::Service::number).
    number: u64,
    batch: Batch,
    /// How much of the batch has a ticket.
    ticketed: usize,
    /// Unsent bytes in front of this batch.
    unsent_before: usize,
    /// A reply of this group may reveal a change that is not committed yet.
    reveals_uncommitted: bool,
    /// The replies that are appended now reveal no such change: see [`Replies::set_harmless`].
    is_harmless: bool,
    /// A reply of this group tells something of the queue.
    reveals_state: bool,
}

/// Bytes with large bodies set in between.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    bodies: Vec<SentBody>,
    len: usize,
    /// What this batch waits for.
    ticket: Ticket,
}

/// The beginning of a large body, before the byte at its position.
struct SentBody {
    position: usize,
    pinned: PinnedBody,
    len: usize,
}

/// What the replies of all connections share: buffers that no connection needs now, the number of errors, and the last
/// `INSERTED`. The last buffer given back is reused first: the CPU cache still holds it.
pub(in crate::server) struct Buffers {
    spare: Vec<Vec<u8>>,
    /// It has the capacity of the buffers in use and of the spare ones.
    account: Rc<Account>,
    /// Error replies since the start, by kind.
    errors: [u64; ErrorKind::COUNT],
    inserted: InsertedLine,
    /// For data that is rendered before its length is known.
    scratch: Vec<u8>,
}

impl Buffers {
    pub fn new(account: Rc<Account>) -> Self {
        Self {
            spare: Vec::new(),
            account,
            errors: [0; ErrorKind::COUNT],
            inserted: InsertedLine::default(),
            scratch: Vec::new(),
        }
    }

    fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        let is_reusable = (1..=SPARE_BUFFER_BYTES_MAX).contains(&buffer.capacity());
        if is_reusable && self.spare.len() < SPARE_BUFFERS_MAX {
            buffer.clear();
            self.spare.push(buffer);
        } else {
            self.account.change(Held::Replies, buffer.capacity(), 0);
        }
    }

    /// An empty buffer for data whose length is not known yet, to be given back.
    pub fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch
    }

    pub fn keep_scratch(&mut self, scratch: Vec<u8>) {
        if scratch.capacity() <= SPARE_BUFFER_BYTES_MAX {
            self.scratch = scratch;
        }
    }

    pub const fn scratch_bytes(&self) -> usize {
        self.scratch.capacity()
    }

    /// Counts a reply that is an error.
    #[inline]
    pub fn count_error(&mut self, reply: &Reply<'_>) {
        if let Some(kind) = reply.error() {
            self.errors[kind as usize] += 1;
        }
    }

    /// The number of error replies of this kind since the start.
    pub const fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors[kind as usize]
    }

    /// The memory of the spare buffers.
    pub fn spare_bytes(&self) -> usize {
        // Bounded by its caller: a test.
        self.spare.iter().map(Vec::capacity).sum()
    }
}

impl Replies {
    /// The number of the connection in log lines.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Appends a reply, or the first line of one.
    #[inline]
    pub fn reply(&mut self, reply: Reply<'_>, buffers: &mut Buffers) {
        self.note(&reply, buffers);
        self.reveals_state |= reply.reveals_state();
        self.write(buffers, |bytes| reply.render(bytes));
    }

    /// Appends the reply to a `put`.
    #[inline]
    pub fn inserted(&mut self, id: JobId, buffers: &mut Buffers) {
        self.note(&Reply::Inserted(id), buffers);
        self.reveals_state = true;
        buffers.inserted.set(id);
        let line = buffers.inserted;
        self.write(buffers, |bytes| line.render(bytes));
    }

    /// Appends data as it is.
    pub fn data(&mut self, data: &[u8], buffers: &mut Buffers) {
        self.reveals_state = true;
        self.write(buffers, |bytes| bytes.extend_from_slice(data));
    }

    /// Appends the first `len` bytes of a job's body. A small body is copied, a large one is sent from where it is.
    pub fn body(&mut self, slot: &Slot, len: usize, bodies: &mut Bodies, buffers: &mut Buffers) {
        match bodies.pin(slot) {
            Some(pinned) => {
                self.reveals_state = true;
                self.reveals_uncommitted |= !self.is_harmless;
                let position = self.batch.bytes.len();
                self.batch.bodies.push(SentBody { position, pinned, len });
                self.batch.len += len;
            }
            None => self.data(&bodies.bytes(slot)[..len], buffers),
        }
    }

    /// Appends bytes that reveal no change.
    pub fn bytes(&mut self, bytes: &[u8], buffers: &mut Buffers) {
        self.batch.write(buffers, |out| out.extend_from_slice(bytes));
    }

    /// Appends a reply that reveals no change: an error, or the refusal of a command.
    pub fn refuse(&mut self, reply: Reply<'_>, buffers: &mut Buffers) {
        self.note(&reply, buffers);
        self.batch.write(buffers, |bytes| reply.render(bytes));
    }

    /// Counts an error, and logs the line if lines are traced.
    #[inline]
    fn note(&self, reply: &Reply<'_>, buffers: &mut Buffers) {
        buffers.count_error(reply);
        if trace::is_on() {
            trace::reply(self.number, reply);
        }
    }

    /// Declares that the following replies of this group reveal no uncommitted change, or revokes that. While the job log is
    /// stalled, a group of harmless replies does not wait. Replies are not harmless unless declared so.
    #[inline]
    pub fn set_harmless(&mut self, is_harmless: bool) {
        self.is_harmless = is_harmless;
    }

    #[inline]
    fn write(&mut self, buffers: &mut Buffers, write: impl FnOnce(&mut Vec<u8>)) {
        self.reveals_uncommitted |= !self.is_harmless;
        self.batch.write(buffers, write);
    }

    /// Bytes of the connection that are not sent yet, with those of this group.
    #[inline]
    pub fn unsent_bytes(&self) -> usize {
        self.unsent_before + self.batch.len
    }
}

impl Output {
    /// For the connection of this number.
    pub fn new(number: u64) -> Self {
        Self {
            in_flight: Batch::default(),
            sent: 0,
            sent_bytes: 0,
            earlier: None,
            replies: Replies {
                number,
                batch: Batch::default(),
                ticketed: 0,
                unsent_before: 0,
                reveals_uncommitted: false,
                is_harmless: false,
                reveals_state: false,
            },
            awaited: Ticket::default(),
            is_sending: false,
        }
    }

    /// The number of the connection in log lines.
    pub const fn number(&self) -> u64 {
        self.replies.number
    }

    /// Begins a group of replies that may need `next`. Earlier replies that need less do not wait for it.
    #[inline]
    pub(super) fn begin_group(&mut self, next: Ticket) -> &mut Replies {
        let replies = &mut self.replies;
        assert_eq!(replies.ticketed, replies.batch.len, "every reply before this group has its ticket");
        if replies.batch.len > 0 && !next.is_within(replies.batch.ticket) && self.earlier.is_none() {
            self.earlier = Some(Box::new(std::mem::take(&mut replies.batch)));
            replies.ticketed = 0;
        }
        let earlier = self.earlier.as_ref().map_or(0, |batch| batch.len);
        replies.unsent_before = self.in_flight.len - self.sent + earlier;
        (replies.reveals_uncommitted, replies.is_harmless, replies.reveals_state) = (false, false, false);
        replies
    }

    /// Whether the group may reveal a change that is not committed yet.
    #[inline]
    pub(super) fn reveals_uncommitted(&self) -> bool {
        self.replies.reveals_uncommitted
    }

    /// Whether the group tells something of the queue.
    #[inline]
    pub(super) fn reveals_state(&self) -> bool {
        self.replies.reveals_state
    }

    /// Ends the group: its replies wait for this.
    #[inline]
    pub(super) fn end_group(&mut self, ticket: Ticket) {
        let Replies { batch, ticketed, .. } = &mut self.replies;
        if batch.len > *ticketed {
            batch.ticket = batch.ticket.max(ticket);
            *ticketed = batch.len;
        }
    }

    /// Bytes that are not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        let earlier = self.earlier.as_ref().map_or(0, |batch| batch.len);
        self.in_flight.len - self.sent + earlier + self.replies.batch.len
    }

    /// What the first reply waits for.
    pub(super) fn next_ticket(&self) -> Option<Ticket> {
        match &self.earlier {
            Some(earlier) => Some(earlier.ticket),
            None => (self.replies.batch.len > 0).then_some(self.replies.batch.ticket),
        }
    }

    /// Whether there is something to send once this is released.
    pub(super) fn can_send(&self, released: Ticket) -> bool {
        self.in_flight.len > 0 || self.next_ticket().is_some_and(|ticket| ticket.is_within(released))
    }

    /// Whether nothing waits for more than this.
    pub(super) fn is_released(&self, released: Ticket) -> bool {
        let earlier = self.earlier.as_ref().is_none_or(|batch| batch.ticket.is_within(released));
        earlier && self.replies.batch.ticket.is_within(released)
    }

    /// Replaces everything that waits for more than this by what `error` appends. Returns whether there was any.
    pub(super) fn fail(
        &mut self,
        released: Ticket,
        error: impl FnOnce(&mut Replies, &mut Buffers),
        bodies: &mut Bodies,
        buffers: &mut Buffers,
    ) -> bool {
        if self.is_released(released) {
            return false;
        }
        if let Some(mut earlier) = self.earlier.take_if(|earlier| !earlier.ticket.is_within(released)) {
            earlier.clear(bodies, buffers);
        }
        self.replies.batch.clear(bodies, buffers);
        error(&mut self.replies, buffers);
        self.replies.ticketed = self.replies.batch.len;
        true
    }

    /// Appends what to send next, in order, of what is released. Shows the same bytes, or more of them, until they are
    /// sent.
    #[inline(always)]
    pub(super) fn slices<'a>(
        &'a mut self,
        released: Ticket,
        bodies: &'a Bodies,
        slices: &mut Vec<IoSlice<'a>>,
    ) {
        if self.in_flight.len == 0 && self.next_ticket().is_some_and(|ticket| ticket.is_within(released)) {
            match self.earlier.take() {
                Some(earlier) => self.in_flight = *earlier,
                None => {
                    let Replies { batch, ticketed, .. } = &mut self.replies;
                    assert_eq!(*ticketed, batch.len, "a reply leaves with its ticket");
                    std::mem::swap(&mut self.in_flight, batch);
                    *ticketed = 0;
                }
            }
        }
        self.in_flight.slices(self.sent, bodies, slices);
    }

    /// Takes off the first `count` bytes of what was shown: they are sent.
    pub(super) fn advance(&mut self, count: usize, bodies: &mut Bodies, buffers: &mut Buffers) {
        self.sent += count;
        self.sent_bytes += count as u64;
        assert!(self.sent <= self.in_flight.len, "a driver sends only what it was shown");
        if self.sent == self.in_flight.len {
            self.in_flight.clear(bodies, buffers);
            self.sent = 0;
        }
    }

    /// Bytes that were sent so far.
    pub const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// The bodies in it whose jobs have ended, in bytes.
    pub fn ended_bytes(&self, bodies: &Bodies) -> u64 {
        let batches = [&self.in_flight, &self.replies.batch];
        // Small bodies are copied, so a batch of jobs has some 100 here.
        let pins = batches.into_iter().chain(self.earlier.as_deref()).flat_map(|batch| &batch.bodies);
        let ended = pins.filter(|body| bodies.is_ended(&body.pinned));
        ended.map(|body| body.pinned.len() as u64).sum()
    }

    /// The memory of its buffers.
    pub fn buffer_bytes(&self) -> usize {
        let earlier = self.earlier.as_ref().map_or(0, |batch| batch.bytes.capacity());
        self.in_flight.bytes.capacity() + earlier + self.replies.batch.bytes.capacity()
    }

    /// Gives everything back. The connection must be closed and no send in progress.
    pub fn clear(&mut self, bodies: &mut Bodies, buffers: &mut Buffers) {
        self.in_flight.clear(bodies, buffers);
        if let Some(mut earlier) = self.earlier.take() {
            earlier.clear(bodies, buffers);
        }
        self.replies.batch.clear(bodies, buffers);
        (self.sent, self.replies.ticketed) = (0, 0);
    }
}

impl Batch {
    /// Appends what `write` appends.
    #[inline]
    fn write(&mut self, buffers: &mut Buffers, write: impl FnOnce(&mut Vec<u8>)) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffers.take();
        }
        let (length, capacity) = (self.bytes.len(), self.bytes.capacity());
        write(&mut self.bytes);
        self.len += self.bytes.len() - length;
        if self.bytes.capacity() != capacity {
            buffers.account.change(Held::Replies, capacity, self.bytes.capacity());
        }
    }

    #[inline(always)]
    fn slices<'a>(&'a self, mut skip: usize, bodies: &'a Bodies, slices: &mut Vec<IoSlice<'a>>) {
        let mut add = |piece: &'a [u8]| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            if skipped < piece.len() && slices.len() < SEND_SLICES_MAX {
                slices.push(IoSlice::new(&piece[skipped..]));
            }
        };
        let mut from = 0;
        // Bounded by OUTPUT_BYTES_PAUSE: the bodies in the output of one connection.
        for SentBody { position, pinned, len } in &self.bodies {
            add(&self.bytes[from..*position]);
            add(&bodies.pinned_bytes(pinned)[..*len]);
            from = *position;
        }
        add(&self.bytes[from..]);
    }

    fn clear(&mut self, bodies: &mut Bodies, buffers: &mut Buffers) {
        if !self.bodies.is_empty() {
            // Bounded by OUTPUT_BYTES_PAUSE: the bodies in the output of one connection.
            std::mem::take(&mut self.bodies).into_iter().for_each(|body| bodies.unpin(body.pinned));
        }
        buffers.give(std::mem::take(&mut self.bytes));
        (self.len, self.ticket) = (0, Ticket::default());
    }
}
