//! From the line of a `put` to the job.

use std::mem;

use super::Core;
use super::access::Permit;
use super::client_state::{BodyOf, Incoming, Input, ProtocolState, PutLine, Skipped};
use super::memory::Kept;
use super::outcome::{Outcome, Refusal, Shortage, repeated};
use super::put_refusals::PutRefusals;
use super::rights::Need;
use super::schedules::Configuring;
use super::trace::Observation;
use crate::bodies::Slot;
use crate::protocol::announced::Follows;
use crate::protocol::command::PutArgs;
use crate::protocol::reply::Reply;
use crate::queue::NewJob;
use crate::time::{Seconds, Span, Time};
use crate::values::ids::{ClientKey, JobId, TagsKey};
use crate::values::log_limit::LogLimit;
use crate::values::tags::Tags;
use crate::wal::PutSpace;

/// How often, at most, it is logged that the tube of a schedule could not take a job.
const WARNING_INTERVAL: Span = Span::from_secs(60);

/// The last `put` line without tags, and its numbers. Producers of jobs of one size repeat it, and it need not be parsed again.
pub(super) struct RecentPut {
    line: [u8; RecentPut::LINE_BYTES_MAX],
    length: usize,
    args: PutArgs,
}

/// State that the puts of all clients share, and those of schedules.
pub(super) struct Puts {
    pub recent: RecentPut,
    pub refusals: PutRefusals,
    /// For the log: runs of schedules whose tube could not take a job, and those that wait.
    pub refused_runs: LogLimit,
    pub configuring: Option<Configuring>,
    /// In drain mode every put is refused.
    is_draining: bool,
}

impl Puts {
    pub const fn new() -> Self {
        Self {
            recent: RecentPut::new(),
            refusals: PutRefusals::new(),
            refused_runs: LogLimit::every(WARNING_INTERVAL),
            configuring: None,
            is_draining: false,
        }
    }

    pub const fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Begins or ends drain mode. Returns whether this changes anything.
    pub const fn set_draining(&mut self, is_draining: bool) -> bool {
        mem::replace(&mut self.is_draining, is_draining) != is_draining
    }
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
    /// Executes a `put`, if `rest` has its whole body. Otherwise [`ProtocolState::input`] takes it. The checks come in the order of
    /// beanstalkd.
    #[inline(always)]
    pub(super) fn begin_put(
        &mut self,
        protocol: &mut ProtocolState,
        args: PutArgs,
        tags: Option<Tags<'_>>,
        rest: &mut &[u8],
        now: Time,
    ) -> Outcome<'static> {
        let bytes = u64::from(args.bytes) + 2;
        if args.bytes > self.config.max_job_bytes {
            return protocol.skip_body(bytes, Refusal::JobTooBig);
        }
        let Some(tags) = tags else { return protocol.skip_body(bytes, Refusal::BadFormat) };
        let permit = match self.authorize(protocol, Need::put(tags)) {
            Ok(permit) => permit,
            Err(refusal) => return protocol.skip_body(bytes, refusal),
        };
        let client = protocol.client;
        self.engine.mark_producer(client);
        let space = self.log.space_for_put(&self.engine, client, args.bytes, tags);
        if let Some(refusal) = Refusal::for_space(space) {
            return protocol.skip_body(bytes, refusal);
        }
        if !self.claim_memory(client, args.bytes + 2, tags) {
            return protocol.skip_body(bytes, Shortage::Memory.into());
        }
        let id = self.engine.next_id();
        let tags_key = self.store_tags(tags, &permit);
        if space == PutSpace::Available
            && let Some((body, following)) = rest.split_at_checked(bytes as usize)
        {
            *rest = following;
            return self.put_received(client, (id, PutLine { args, tags_key }), body, permit, now);
        }
        match self.engine.bodies_mut().allocate_unwritten(args.bytes + 2) {
            Ok(slot) => {
                let of = BodyOf::Job(Some(id), PutLine { args, tags_key });
                protocol.input = Input::Body(Incoming { of, slot, filled: 0 });
                Outcome::Pending
            }
            Err(_) => {
                self.engine.free_tags(tags_key);
                protocol.skip_body(bytes, Shortage::Memory.into())
            }
        }
    }

    /// Keeps the tags of a job that is arriving. It joins their keys and groups when it is stored.
    #[inline(always)]
    pub(super) fn store_tags(&mut self, tags: Tags<'_>, _permit: &Permit) -> Option<TagsKey> {
        self.engine.store_tags(tags)
    }

    /// Refuses a line that is no command where it stands, with what follows it: nothing of a body is taken for a command.
    #[cold]
    pub(super) fn refuse_line(&mut self, protocol: &mut ProtocolState, follows: Follows) -> Outcome<'static> {
        match follows {
            Follows::Body(bytes) => {
                let of_batch = protocol.put_batch.as_ref().and_then(|batch| batch.refusal());
                protocol.skip_body(u64::from(bytes) + 2, of_batch.unwrap_or(Refusal::BadFormat))
            }
            Follows::Commands if protocol.put_batch.is_none() => Outcome::Refused(Refusal::BadFormat),
            Follows::Commands | Follows::Unknown => self.refuse_rest(protocol),
        }
    }

    /// Queues a job whose whole body was received with its line.
    // Inlined: most jobs are put this way.
    #[inline(always)]
    fn put_received(
        &mut self,
        client: ClientKey,
        (id, job): (JobId, PutLine),
        body: &[u8],
        permit: Permit,
        now: Time,
    ) -> Outcome<'static> {
        let has_end = body.ends_with(b"\r\n");
        // Its line has asked for space.
        let refused = match self.refused(client, &job, has_end, PutSpace::Available, now) {
            None => match self.engine.bodies_mut().store(body) {
                Ok(slot) => return self.queue(client, (id, job), slot, permit, now),
                Err(_) => Outcome::Refused(Shortage::Memory.into()),
            },
            Some(refused) => refused,
        };
        self.engine.free_tags(job.tags_key);
        self.note_refused(client, id, &refused, now);
        refused
    }

    /// Queues a job whose body has arrived in pieces, if the job log has space for it now.
    pub(super) fn put(
        &mut self,
        client: ClientKey,
        (id, job): (JobId, PutLine),
        slot: Slot,
        space: PutSpace,
        permit: Permit,
        now: Time,
    ) -> Outcome<'static> {
        let has_end = self.engine.bodies().bytes(&slot).ends_with(b"\r\n");
        match self.refused(client, &job, has_end, space, now) {
            None => self.queue(client, (id, job), slot, permit, now),
            Some(refused) => {
                self.free_job(job.tags_key, slot);
                self.note_refused(client, id, &refused, now);
                refused
            }
        }
    }

    /// Returns the outcome for a job whose body is complete and that cannot be queued. `has_end` is whether the body ends in CR LF.
    #[inline]
    fn refused(
        &mut self,
        client: ClientKey,
        job: &PutLine,
        has_end: bool,
        space: PutSpace,
        now: Time,
    ) -> Option<Outcome<'static>> {
        let &PutLine { ref args, tags_key } = job;
        if !has_end {
            return Some(Outcome::Refused(Refusal::NoCrlf));
        }
        if self.puts.is_draining {
            return Some(Outcome::Refused(Refusal::Draining));
        }
        if let Some(refusal) = Refusal::for_space(space) {
            return Some(Outcome::Refused(refusal));
        }
        if let Some(tags_key) = tags_key {
            if let Some(first) = self.engine.repeat(client, tags_key, args.pri, now) {
                return Some(Outcome::Done(repeated(first)));
            }
            if !self.engine.admits_key(client, tags_key) {
                return Some(Outcome::Refused(Shortage::Keys.into()));
            }
        }
        let full = self.engine.admits(client, 1, args.bytes.into()).err();
        full.map(|full| Outcome::Refused(Shortage::Rule(full).into()))
    }

    #[inline]
    fn queue(
        &mut self,
        client: ClientKey,
        (id, job): (JobId, PutLine),
        body: Slot,
        _permit: Permit,
        now: Time,
    ) -> Outcome<'static> {
        let PutLine { args: PutArgs { pri, delay, ttr, .. }, tags_key } = job;
        let ttr = self.engine.ttr_of_put(client, ttr);
        self.engine.put(client, NewJob { id, pri, delay, ttr, body, tags_key }, now);
        self.reporter.observe(&self.engine, client, Observation::Put(id, Reply::Inserted(id)));
        Outcome::Done(Reply::Inserted(id))
    }

    #[cold]
    fn note_refused(&mut self, client: ClientKey, id: JobId, outcome: &Outcome<'static>, now: Time) {
        match outcome {
            Outcome::Done(reply) => self.reporter.observe(&self.engine, client, Observation::Put(id, *reply)),
            Outcome::Refused(refusal) => {
                self.puts.refusals.note(*refusal, &self.config, now);
                self.reporter.observe(&self.engine, client, Observation::Put(id, refusal.reply()));
            }
            other => unreachable!("{other:?} is no refusal"),
        }
    }

    /// Takes what `rest` has of a body that is arriving. Returns `None` if more of it must arrive, or if it waits for space in the job
    /// log.
    pub(super) fn receive_body(
        &mut self,
        protocol: &mut ProtocolState,
        rest: &mut &[u8],
        now: Time,
    ) -> Option<Outcome<'static>> {
        let Input::Body(incoming) = &mut protocol.input else { return self.skip(protocol, rest, now) };
        let count = rest.len().min(incoming.slot.len() - incoming.filled);
        let from = incoming.filled;
        incoming.filled += count;
        // Before the copy, which would fault page by page.
        let grown = self.expect_body(incoming, from);
        let (body, following) = rest.split_at(count);
        self.engine.bodies_mut().bytes_mut(&mut incoming.slot)[from..incoming.filled].copy_from_slice(body);
        *rest = following;
        let is_complete = incoming.is_complete();
        if !self.keep_or_skip(protocol, grown) {
            return self.skip(protocol, rest, now);
        }
        if !is_complete {
            return None;
        }
        let space = self.space_for_body(protocol);
        if space == PutSpace::Pending {
            return None;
        }
        let Input::Body(Incoming { of, slot, .. }) = mem::replace(&mut protocol.input, Input::Line) else {
            unreachable!("the body is complete")
        };
        Some(match of {
            BodyOf::Job(Some(id), job) => match self.authorize(protocol, Need::put_arrived(job.tags_key)) {
                Ok(permit) => self.put(protocol.client, (id, job), slot, space, permit, now),
                Err(refusal) => {
                    self.free_job(job.tags_key, slot);
                    let refused = Outcome::Refused(refusal);
                    self.note_refused(protocol.client, id, &refused, now);
                    refused
                }
            },
            BodyOf::Job(None, job) => {
                self.add_to_batch(protocol, job, slot);
                Outcome::Pending
            }
            text => self.end_text(protocol, &text, slot, space, now),
        })
    }

    /// Discards what `rest` has of a refused body.
    pub(super) fn skip(
        &mut self,
        protocol: &mut ProtocolState,
        rest: &mut &[u8],
        now: Time,
    ) -> Option<Outcome<'static>> {
        let Input::Skip { left, refusal, of } = &mut protocol.input else {
            unreachable!("the caller has seen a refused body")
        };
        let skipped = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        *rest = &rest[skipped..];
        *left -= skipped as u64;
        if *left > 0 {
            return None;
        }
        let (refusal, of) = (*refusal, *of);
        protocol.input = Input::Line;
        if of == Skipped::Text {
            return Some(Outcome::Refused(refusal));
        }
        if protocol.put_batch.is_none() {
            self.puts.refusals.note(refusal, &self.config, now);
            return Some(Outcome::Refused(refusal));
        }
        self.refuse_in_batch(protocol, refusal);
        Some(Outcome::Pending)
    }

    /// Counts a `put`, or a batch, that was refused before its last byte arrived. Its client leaves now, and gets no reply. A put that
    /// would be refused for its tube or in drain mode is not counted: that is decided once the body is complete.
    pub(super) fn note_put_cut_off(&mut self, protocol: &ProtocolState, now: Time) {
        let of_batch = protocol.put_batch.as_ref().and_then(|batch| batch.refusal());
        let of_body = match protocol.input {
            Input::Skip { refusal, of: Skipped::Job, .. } => Some(refusal),
            _ => None,
        };
        if let Some(refusal) = of_batch.or(of_body) {
            self.puts.refusals.note(refusal, &self.config, now);
        }
    }

    /// Frees the body and the tags of a job that is not put.
    pub(super) fn free_job(&mut self, tags_key: Option<TagsKey>, slot: Slot) {
        self.engine.free_tags(tags_key);
        self.engine.bodies_mut().free(slot);
    }

    /// Frees the body that is arriving, if there is one.
    pub(super) fn free_input(&mut self, input: Input) {
        if let Input::Body(Incoming { of, slot, .. }) = input {
            self.memory.count(Kept::ScheduleLine, of.is_schedule(), false);
            self.free_job(of.tags_key(), slot);
        }
    }
}
