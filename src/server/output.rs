//! Replies on their way to one connection.

use std::io::IoSlice;

use crate::bodies::{Bodies, PinnedBody, Slot};
use crate::limits::{SEND_SLICES_MAX, SPARE_BUFFER_BYTES_MAX, SPARE_BUFFERS_MAX};
use crate::protocol::reply::Reply;

/// Replies, rendered. What a driver has been shown neither moves nor changes until it has been sent:
/// new replies gather in a second batch.
#[derive(Default)]
pub struct Output {
    /// Shown to the driver.
    flight: Batch,
    /// How much of it is sent.
    sent: usize,
    /// Replies that wait for an earlier batch of the log than those in the queue.
    held: Option<Box<Batch>>,
    queue: Batch,
}

/// Bytes with large bodies set in between, each before the byte at its position.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    bodies: Vec<(usize, PinnedBody)>,
    len: usize,
    /// The batch of the log that must be safe before it is sent, and how much of this is known to need no
    /// later one.
    ticket: u64,
    stamped: usize,
}

/// Buffers that no connection needs now. The last one given back is still in the processor's cache.
#[derive(Default)]
pub struct Buffers {
    spare: Vec<Vec<u8>>,
    /// What those in use and the spare ones take.
    bytes: usize,
}

impl Buffers {
    fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        let is_useful = (1..=SPARE_BUFFER_BYTES_MAX).contains(&buffer.capacity());
        if is_useful && self.spare.len() < SPARE_BUFFERS_MAX {
            buffer.clear();
            self.spare.push(buffer);
        } else {
            self.bytes -= buffer.capacity();
        }
    }

    /// The memory that they take, in use or not.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What those take that nobody uses.
    pub fn spare_bytes(&self) -> usize {
        self.spare.iter().map(Vec::capacity).sum()
    }
}

impl Output {
    /// Appends a reply, or the first line of one.
    pub fn reply(&mut self, reply: Reply<'_>, buffers: &mut Buffers) {
        self.queue.write(buffers, |bytes| reply.render(bytes));
    }

    /// Appends data as it is.
    pub fn data(&mut self, data: &[u8], buffers: &mut Buffers) {
        self.queue.write(buffers, |bytes| bytes.extend_from_slice(data));
    }

    /// Appends a job's body with its CR LF: a small one is copied, a large one is sent from where it is.
    pub fn body(&mut self, slot: &Slot, bodies: &mut Bodies, buffers: &mut Buffers) {
        match bodies.pin(slot) {
            Some(pinned) => {
                let position = self.queue.bytes.len();
                self.queue.bodies.push((position, pinned));
                self.queue.len += slot.len();
            }
            None => self.data(bodies.bytes(slot), buffers),
        }
    }

    /// Bytes that are not sent yet.
    pub fn pending(&self) -> usize {
        self.flight.len - self.sent + self.held.as_ref().map_or(0, |held| held.len) + self.queue.len
    }

    /// Replies that follow may have to wait for this batch of the log; those that need not do not wait with
    /// them.
    pub fn begin(&mut self, ticket: u64) {
        if self.queue.len > 0 && self.queue.ticket < ticket && self.held.is_none() {
            self.held = Some(Box::new(std::mem::take(&mut self.queue)));
        }
    }

    /// What was appended since the last call has to wait for this batch of the log.
    pub fn stamp(&mut self, ticket: u64) {
        if self.queue.len > self.queue.stamped {
            self.queue.ticket = self.queue.ticket.max(ticket);
            self.queue.stamped = self.queue.len;
        }
    }

    /// The first batch of the log that something waits for.
    pub fn waits_for(&self) -> Option<u64> {
        match &self.held {
            Some(held) => Some(held.ticket),
            None => (self.queue.len > 0).then_some(self.queue.ticket),
        }
    }

    /// Whether there is something to send, when the log is safe up to this batch.
    pub fn can_send(&self, safe: u64) -> bool {
        self.flight.len > 0 || self.waits_for().is_some_and(|ticket| ticket <= safe)
    }

    /// Replaces all that waits for the log by one reply.
    pub fn fail(&mut self, reply: Reply<'_>, bodies: &mut Bodies, buffers: &mut Buffers) {
        if let Some(mut held) = self.held.take() {
            held.clear(bodies, buffers);
        }
        self.queue.clear(bodies, buffers);
        self.reply(reply, buffers);
    }

    /// Appends what to send next, in order, of what the log has made safe. Shows the same bytes, or more of
    /// them, until they are sent.
    pub fn slices<'a>(&'a mut self, safe: u64, bodies: &'a Bodies, slices: &mut Vec<IoSlice<'a>>) {
        if self.flight.len == 0 && self.waits_for().is_some_and(|ticket| ticket <= safe) {
            match self.held.take() {
                Some(held) => self.flight = *held,
                None => std::mem::swap(&mut self.flight, &mut self.queue),
            }
        }
        self.flight.slices(self.sent, bodies, slices);
    }

    /// The first `count` bytes of what was shown are sent.
    pub fn advance(&mut self, count: usize, bodies: &mut Bodies, buffers: &mut Buffers) {
        self.sent += count;
        assert!(self.sent <= self.flight.len, "only what was shown can be sent");
        if self.sent == self.flight.len {
            self.flight.clear(bodies, buffers);
            self.sent = 0;
        }
    }

    /// What the buffers take.
    pub fn buffer_bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.bytes.capacity());
        self.flight.bytes.capacity() + held + self.queue.bytes.capacity()
    }

    /// Forgets everything: the connection is gone and no send is under way.
    pub fn clear(&mut self, bodies: &mut Bodies, buffers: &mut Buffers) {
        self.flight.clear(bodies, buffers);
        if let Some(mut held) = self.held.take() {
            held.clear(bodies, buffers);
        }
        self.queue.clear(bodies, buffers);
        self.sent = 0;
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
        buffers.bytes += self.bytes.capacity() - capacity;
    }

    fn slices<'a>(&'a self, mut skip: usize, bodies: &'a Bodies, slices: &mut Vec<IoSlice<'a>>) {
        let mut add = |piece: &'a [u8]| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            if skipped < piece.len() && slices.len() < SEND_SLICES_MAX {
                slices.push(IoSlice::new(&piece[skipped..]));
            }
        };
        let mut from = 0;
        for (position, body) in &self.bodies {
            add(&self.bytes[from..*position]);
            add(bodies.pinned_bytes(body));
            from = *position;
        }
        add(&self.bytes[from..]);
    }

    fn clear(&mut self, bodies: &mut Bodies, buffers: &mut Buffers) {
        for (_, body) in self.bodies.drain(..) {
            bodies.unpin(body);
        }
        buffers.give(std::mem::take(&mut self.bytes));
        self.bodies = Vec::new();
        (self.len, self.ticket, self.stamped) = (0, 0, 0);
    }
}
