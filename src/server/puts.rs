//! From the line of a `put` to the job.

use super::Core;
use super::commit_gate::Replies;
use super::observer::Observation;
use super::session::{IncomingJob, Input, ProtocolState};
use crate::ids::{ClientKey, ExtraKey, JobId};
use crate::protocol::command::PutArgs;
use crate::protocol::reply::Reply;
use crate::queue::{JobState, NewJob, Repeated};
use crate::tags::Tags;
use crate::time::Time;
use crate::wal::PutSpace;

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
        } else {
            let id = self.engine.next_id();
            let extra = self.engine.announce_tags(tags);
            let incoming = |slot| IncomingJob { id: Some(id), args, extra, slot, filled: 0 };
            let bodies = self.engine.bodies_mut();
            match bodies.announce(args.bytes + 2) {
                Ok(mut slot) => match rest.split_at_checked(slot.len()) {
                    Some((body, following)) if space == PutSpace::Available => {
                        *rest = following;
                        bodies.bytes_mut(&mut slot).copy_from_slice(body);
                        bodies.wrote(&slot, body.len());
                        self.put(client, replies, id, incoming(slot), now);
                    }
                    _ => protocol.input = Input::Body(incoming(slot)),
                },
                Err(_) => {
                    self.engine.free_tags(extra);
                    protocol.input = Input::Skip { left: bytes, reply: Reply::OutOfMemory };
                }
            }
        }
    }

    /// Returns whether the job log has space for a job in the tube that the client uses.
    pub(super) fn space_for_put(&mut self, client: ClientKey, body_bytes: u32, tags: Tags<'_>) -> PutSpace {
        let Some(wal) = &mut self.wal else { return PutSpace::Available };
        let tube = self.engine.used(client).name();
        wal.space_for_put(tube.as_bytes().len(), tags, body_bytes as usize + 2)
    }

    /// The same for a job whose tags the queue has.
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

    /// Queues a job whose body is complete.
    pub(super) fn put(
        &mut self,
        client: ClientKey,
        replies: &mut Replies,
        id: JobId,
        incoming: IncomingJob,
        now: Time,
    ) {
        let IncomingJob { args, extra, ref slot, .. } = incoming;
        let refusal = if !self.engine.bodies().bytes(slot).ends_with(b"\r\n") {
            Reply::ExpectedCrlf
        } else if self.draining {
            Reply::Draining
        } else if self.space_for_announced(client, args.bytes, extra).is_refused() {
            Reply::OutOfMemory
        } else if let Some(first) = extra.and_then(|extra| self.engine.repeat(client, extra, args.pri, now)) {
            self.free_incoming(incoming);
            let reply = repeated(first);
            self.observe(client, Observation::Put(id, reply));
            return replies.reply(reply, &mut self.buffers);
        } else if !self.engine.admits(client, 1, args.bytes.into()) {
            Reply::OutOfMemory
        } else {
            let PutArgs { pri, delay, ttr, .. } = args;
            let ttr = self.engine.ttr_of_put(client, ttr);
            let new = NewJob { id, pri, delay, ttr, body: incoming.slot, extra };
            self.engine.put(client, new, now);
            self.observe(client, Observation::Put(id, Reply::Inserted(id)));
            return replies.reply(Reply::Inserted(id), &mut self.buffers);
        };
        self.free_incoming(incoming);
        self.observe(client, Observation::Put(id, refusal));
        replies.refuse(refusal, &mut self.buffers);
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
