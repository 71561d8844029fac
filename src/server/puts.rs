//! From the line of a `put` to the job.

use super::Core;
use super::commit_gate::Replies;
use super::observer::Observation;
use super::session::{IncomingJob, Input, ProtocolState};
use crate::bodies::Slot;
use crate::protocol::command::PutArgs;
use crate::protocol::reply::Reply;
use crate::queue::{JobState, NewJob, Repeated};
use crate::time::{Seconds, Time};
use crate::values::ids::{ClientKey, ExtraKey, JobId};
use crate::values::tags::Tags;
use crate::wal::PutSpace;

/// The last `put` line without tags, and its numbers. Producers of jobs of one size repeat it, and it need not be parsed again.
pub(super) struct RecentPut {
    line: [u8; RecentPut::LINE_BYTES_MAX],
    length: usize,
    args: PutArgs,
}

/// A job whose line was served, without its body.
struct Announced {
    id: JobId,
    args: PutArgs,
    extra: Option<ExtraKey>,
}

/// Why a job is not queued.
enum Refusal {
    Error(Reply<'static>),
    /// It has repeated the idempotency key of another job, which the reply reveals.
    Repeated(Reply<'static>),
}

impl RecentPut {
    /// Longer lines are not kept.
    const LINE_BYTES_MAX: usize = 48;

    pub const fn new() -> Self {
        let args = PutArgs { pri: 0, delay: Seconds::ZERO, ttr: Seconds::ZERO, bytes: 0 };
        // No command is an empty line.
        Self { line: [0; Self::LINE_BYTES_MAX], length: 0, args }
    }

    /// Returns the numbers of this line, if it is the one.
    #[inline]
    pub fn args_of(&self, line: &[u8]) -> Option<PutArgs> {
        let is_same = line == &self.line[..self.length] && !line.is_empty();
        is_same.then_some(self.args)
    }

    /// Keeps a line that has these numbers and no tags.
    #[inline]
    pub fn note(&mut self, line: &[u8], args: PutArgs) {
        if let Some(kept) = self.line.get_mut(..line.len()) {
            kept.copy_from_slice(line);
            (self.length, self.args) = (line.len(), args);
        }
    }
}

impl Core {
    /// Serves a `put` line. The checks come in the order of beanstalkd.
    pub(super) fn serve_put_line(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        args: PutArgs,
        tags: Option<Tags<'_>>,
        rest: &mut &[u8],
        now: Time,
    ) {
        let bytes = u64::from(args.bytes) + 2;
        if args.bytes > self.config.max_job_bytes {
            protocol.input = Input::Skip { left: bytes, reply: Reply::JobTooBig };
            return;
        }
        let Some(tags) = tags else { return replies.refuse(Reply::BadFormat, &mut self.buffers) };
        let client = protocol.client;
        self.engine.mark_producer(client);
        let space = self.space_for_put(client, args.bytes, tags);
        if space.is_refused() || !self.has_memory_for(client, args.bytes + 2, tags) {
            protocol.input = Input::Skip { left: bytes, reply: refusal_for(space) };
            return;
        }
        let id = self.engine.next_id();
        let extra = self.engine.announce_tags(tags);
        if space == PutSpace::Available
            && let Some((body, following)) = rest.split_at_checked(bytes as usize)
        {
            *rest = following;
            return self.put_received(client, replies, Announced { id, args, extra }, body, now);
        }
        match self.engine.bodies_mut().announce(args.bytes + 2) {
            Ok(slot) => {
                protocol.input = Input::Body(IncomingJob { id: Some(id), args, extra, slot, filled: 0 });
            }
            Err(_) => {
                self.engine.free_tags(extra);
                protocol.input = Input::Skip { left: bytes, reply: Reply::OutOfMemory };
            }
        }
    }

    /// Returns whether the job log has space for a job in the tube that the client uses.
    pub(super) fn space_for_put(&mut self, client: ClientKey, body_bytes: u32, tags: Tags<'_>) -> PutSpace {
        let Some(wal) = &mut self.wal else { return PutSpace::Available };
        let tube = self.engine.used(client).name();
        wal.space_for_put(tube.as_bytes().len(), tags, body_bytes as usize + 2)
    }

    /// Whether the job log has space for a job whose tags the queue has.
    pub(super) fn space_for_announced(
        &mut self,
        client: ClientKey,
        body_bytes: u32,
        extra: Option<ExtraKey>,
    ) -> PutSpace {
        let Some(wal) = &mut self.wal else { return PutSpace::Available };
        let tube = self.engine.used(client).name();
        let tags = self.engine.announced_tags(extra);
        wal.space_for_put(tube.as_bytes().len(), tags, body_bytes as usize + 2)
    }

    /// Queues a job whose whole body was received with its line.
    // Inlined: most jobs are put this way.
    #[inline(always)]
    fn put_received(
        &mut self,
        client: ClientKey,
        replies: &mut Replies,
        job: Announced,
        body: &[u8],
        now: Time,
    ) {
        let has_end = body.ends_with(b"\r\n");
        // Its line has asked for space.
        let refusal = match self.refusal(client, &job, has_end, PutSpace::Available, now) {
            None => match self.engine.bodies_mut().store(body) {
                Ok(slot) => return self.queue(client, replies, job, slot, now),
                Err(_) => Refusal::Error(Reply::OutOfMemory),
            },
            Some(refusal) => refusal,
        };
        self.engine.free_tags(job.extra);
        self.refuse_put(client, replies, job.id, refusal);
    }

    /// Queues a job whose body has arrived in pieces, if the job log has space for it now.
    pub(super) fn put(
        &mut self,
        client: ClientKey,
        replies: &mut Replies,
        (id, incoming): (JobId, IncomingJob),
        space: PutSpace,
        now: Time,
    ) {
        let job = Announced { id, args: incoming.args, extra: incoming.extra };
        let has_end = self.engine.bodies().bytes(&incoming.slot).ends_with(b"\r\n");
        match self.refusal(client, &job, has_end, space, now) {
            None => self.queue(client, replies, job, incoming.slot, now),
            Some(refusal) => {
                self.free_incoming(incoming);
                self.refuse_put(client, replies, id, refusal);
            }
        }
    }

    /// Returns why a job whose body is complete cannot be queued, if it cannot. `has_end` is whether the body ends in CR LF.
    #[inline]
    fn refusal(
        &mut self,
        client: ClientKey,
        job: &Announced,
        has_end: bool,
        space: PutSpace,
        now: Time,
    ) -> Option<Refusal> {
        let &Announced { ref args, extra, .. } = job;
        if !has_end {
            Some(Refusal::Error(Reply::ExpectedCrlf))
        } else if self.draining {
            Some(Refusal::Error(Reply::Draining))
        } else if space.is_refused() {
            Some(Refusal::Error(Reply::OutOfMemory))
        } else if let Some(refusal) =
            extra.and_then(|extra| self.refusal_of_key(client, extra, args.pri, now))
        {
            Some(refusal)
        } else if !self.engine.admits(client, 1, args.bytes.into()) {
            Some(Refusal::Error(Reply::OutOfMemory))
        } else {
            None
        }
    }

    /// Returns why a job with tags cannot be queued because of its idempotency key, if it cannot.
    fn refusal_of_key(&mut self, client: ClientKey, extra: ExtraKey, pri: u32, now: Time) -> Option<Refusal> {
        if let Some(first) = self.engine.repeat(client, extra, pri, now) {
            return Some(Refusal::Repeated(repeated(first)));
        }
        let is_admitted = self.engine.admits_key(client, extra);
        (!is_admitted).then_some(Refusal::Error(Reply::OutOfMemory))
    }

    #[inline]
    fn queue(&mut self, client: ClientKey, replies: &mut Replies, job: Announced, body: Slot, now: Time) {
        let Announced { id, args: PutArgs { pri, delay, ttr, .. }, extra } = job;
        let ttr = self.engine.ttr_of_put(client, ttr);
        self.engine.put(client, NewJob { id, pri, delay, ttr, body, extra }, now);
        self.observe(client, Observation::Put(id, Reply::Inserted(id)));
        replies.inserted(id, &mut self.buffers);
    }

    #[cold]
    fn refuse_put(&mut self, client: ClientKey, replies: &mut Replies, id: JobId, refusal: Refusal) {
        match refusal {
            Refusal::Error(reply) => {
                self.observe(client, Observation::Put(id, reply));
                replies.refuse(reply, &mut self.buffers);
            }
            Refusal::Repeated(reply) => {
                self.observe(client, Observation::Put(id, reply));
                replies.reply(reply, &mut self.buffers);
            }
        }
    }

    /// Frees the body and the tags of a job that is not put.
    pub(super) fn free_incoming(&mut self, incoming: IncomingJob) {
        self.engine.free_tags(incoming.extra);
        self.engine.bodies_mut().free(incoming.slot);
    }
}

/// Makes the reply to a `put` from the first job of its idempotency key.
pub(super) fn repeated(first: Repeated) -> Reply<'static> {
    let Repeated { id, state, pri } = first;
    Reply::Repeated { id, state: state.map_or("deleted", JobState::word), pri }
}

/// Makes the reply to jobs that the server has no space for. Space for those that fit into no segment will never come.
pub(super) const fn refusal_for(space: PutSpace) -> Reply<'static> {
    match space {
        PutSpace::TooLarge => Reply::JobTooBig,
        _ => Reply::OutOfMemory,
    }
}
