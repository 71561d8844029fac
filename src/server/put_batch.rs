//! `put-batch`: several puts with one answer. Their jobs are stored together once the last body is complete, or none of them.
//!
//! Its lines and bodies are received like those of a `put`. A refused job refuses the batch, and the rest of it is discarded. If a
//! line announces no body, the end of the batch is unknown, and the connection is closed.
//!
//! Bounded by BATCH_JOBS_MAX: the jobs of one batch.

use super::Core;
use super::access::Permit;
use super::beanstalk::Session;
use super::client_state::{BodyOf, Incoming, Input, ProtocolState, PutLine, SessionState, Skipped};
use super::outcome::{Outcome, Refusal, Shortage, repeated};
use super::rights::Need;
use super::trace::Observation;
use crate::bodies::Slot;
use crate::intrusive::{Links, List, Pages, intrusive};
use crate::protocol::announced::Follows;
use crate::protocol::command::{Command, PutArgs};
use crate::protocol::parse::ParseError;
use crate::protocol::reply::Reply;
use crate::queue::NewJob;
use crate::time::Time;
use crate::values::account::Held;
use crate::values::budget::Cost;
use crate::values::ids::{ClientKey, JobId, TagsKey};
use crate::values::limits::{ALLOCATION_BYTES, BATCH_BODY_BYTES_MAX};
use crate::values::tags::Tags;
use crate::wal::{PutSpace, job_record_bytes, note_record_bytes};

/// A `put-batch` whose jobs are arriving.
pub(super) struct PutBatch {
    /// The number of jobs.
    count: u32,
    /// Jobs that have arrived, or that were discarded.
    arrived: u32,
    /// The jobs that have arrived, in order. Empty once the batch is refused.
    jobs: List,
    /// The bodies announced so far, without their CR LF.
    body_bytes: usize,
    /// The records that the job log needs for `jobs`.
    record_bytes: u64,
    /// Why the whole batch is refused, if it is.
    refusal: Option<Refusal>,
    /// The users with which it began.
    generation: u64,
}

/// The unfinished batches of all clients.
pub(super) struct Batches {
    count: usize,
    /// The jobs of them that have arrived.
    arrived: Pages<ArrivedJob>,
}

/// A job that has arrived, in the list of its batch.
struct ArrivedJob {
    line: PutLine,
    body: Slot,
    links: Links,
}

intrusive!(ArrivedJob: in lists);

impl PutBatch {
    /// The number of jobs that have arrived and are not discarded.
    pub fn arrived_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Why the whole batch is refused, if that is decided.
    pub const fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Checks the line of the next job. Returns its tags, or the reason to refuse it: after the first, it is that one.
    fn check<'a>(
        &mut self,
        args: &PutArgs,
        tags: Option<Tags<'a>>,
        max_job_bytes: u32,
    ) -> Result<Tags<'a>, Refusal> {
        // mutant batch-limit-for-each-body: adds self.body_bytes = 0;
        self.body_bytes += args.bytes as usize;
        let is_batch_too_big = self.count > 1 && self.body_bytes > BATCH_BODY_BYTES_MAX;
        match self.refusal {
            Some(refusal) => Err(refusal),
            None if args.bytes > max_job_bytes || is_batch_too_big => Err(Refusal::JobTooBig),
            None => tags.ok_or(Refusal::BadFormat),
        }
    }
}

impl Batches {
    pub fn new() -> Self {
        Self { count: 0, arrived: Pages::new() }
    }

    /// The number of batches, and of their jobs that have arrived.
    pub fn counts(&self) -> (usize, usize) {
        (self.count, self.arrived.len())
    }

    /// The memory of the batches without the bodies of their jobs.
    pub fn memory_bytes(&self) -> usize {
        self.count * (size_of::<PutBatch>() + ALLOCATION_BYTES) + self.arrived.bytes()
    }

    /// Appends a job to the list of its batch.
    fn push(&mut self, jobs: &mut List, line: PutLine, body: Slot) {
        let arrived = self.arrived.insert(ArrivedJob { line, body, links: Links::NONE });
        jobs.push_back(&mut self.arrived, arrived);
    }

    /// Removes the first job of the list of a batch.
    fn take(&mut self, jobs: &mut List) -> Option<ArrivedJob> {
        let first = jobs.front()?;
        jobs.remove(&mut self.arrived, first);
        Some(self.arrived.remove(first))
    }

    /// The tags of the jobs of a batch that have any.
    pub fn tags_keys(&self, jobs: &List) -> impl Iterator<Item = TagsKey> {
        jobs.iter(&self.arrived).filter_map(|key| self.arrived[key].line.tags_key)
    }

    /// Recomputes what it counts. Returns the number of jobs with tags.
    // Bounded by its caller: a test.
    pub fn check(&self) -> usize {
        self.arrived.check();
        self.arrived.iter().filter(|(_, arrived)| arrived.line.tags_key.is_some()).count()
    }
}

impl Core {
    /// Counts the memory of all batches.
    fn count_batches(&self) {
        self.memory.account().set(Held::Batches, self.batches.memory_bytes());
    }

    /// Begins a batch. Without a count its end is unknown.
    // No part of a batch is inlined into the path of a single command.
    #[inline(never)]
    pub(super) fn begin_put_batch(
        &mut self,
        protocol: &mut ProtocolState,
        count: Option<u32>,
    ) -> Outcome<'static> {
        let Some(count) = count else { return self.refuse_rest(protocol) };
        self.engine.mark_producer(protocol.client);
        // The jobs of a batch are skipped before it is refused.
        let refusal = self.authorize(protocol, Need::put(Tags::NONE)).err();
        let jobs = List::new();
        let generation = self.access.generation();
        let batch = PutBatch { count, arrived: 0, jobs, body_bytes: 0, record_bytes: 0, refusal, generation };
        self.batches.count += 1;
        self.count_batches();
        protocol.put_batch = Some(Box::new(batch));
        Outcome::Pending
    }

    /// Takes in the line of the next job.
    #[inline(never)]
    pub(super) fn begin_batch_job(
        &mut self,
        protocol: &mut ProtocolState,
        line: &[u8],
        command: Result<Command<'_>, ParseError>,
    ) -> Outcome<'static> {
        let Ok(Command::Put { args, tags }) = command else {
            return self.refuse_line(protocol, Follows::line(line));
        };
        let batch = protocol.put_batch.as_mut().expect("the line belongs to a batch");
        let checked = batch.check(&args, tags, self.config.max_job_bytes);
        let begun = checked.and_then(|tags| self.begin_in_batch(protocol, args, tags));
        protocol.input = match begun {
            Ok(job) => Input::Body(job),
            Err(refusal) => Input::Skip { left: u64::from(args.bytes) + 2, refusal, of: Skipped::Job },
        };
        Outcome::Pending
    }

    fn begin_in_batch(
        &mut self,
        protocol: &ProtocolState,
        args: PutArgs,
        tags: Tags<'_>,
    ) -> Result<Incoming, Refusal> {
        let permit = self.authorize(protocol, Need::put(tags))?;
        if !self.claim_memory(protocol.client, args.bytes + 2, tags) {
            return Err(Shortage::Memory.into());
        }
        let slot =
            self.engine.bodies_mut().allocate_unwritten(args.bytes + 2).map_err(|_| Shortage::Memory)?;
        let tags_key = self.store_tags(tags, &permit);
        Ok(Incoming { of: BodyOf::Job(None, PutLine { args, tags_key }), slot, filled: 0 })
    }

    /// Takes a job whose body is complete.
    #[inline(never)]
    pub(super) fn add_to_batch(&mut self, protocol: &mut ProtocolState, line: PutLine, body: Slot) {
        if !self.engine.bodies().bytes(&body).ends_with(b"\r\n") {
            self.free_job(line.tags_key, body);
            return self.refuse_in_batch(protocol, Refusal::NoCrlf);
        }
        let record_bytes = self.record_bytes(protocol.client, &line, &body);
        let batch = protocol.put_batch.as_mut().expect("the job belongs to a batch");
        batch.record_bytes += record_bytes;
        self.batches.push(&mut batch.jobs, line, body);
        self.count_batches();
        self.end_batch_job(protocol);
    }

    /// Refuses the batch because of a job whose body was discarded.
    #[inline(never)]
    pub(super) fn refuse_in_batch(&mut self, protocol: &mut ProtocolState, refusal: Refusal) {
        let batch = protocol.put_batch.as_mut().expect("the job belongs to a batch");
        batch.refusal = Some(refusal);
        self.free_jobs(&mut batch.jobs);
        self.count_batches();
        self.end_batch_job(protocol);
    }

    /// Returns whether the job log has space for a body that is complete, or for the batch that it completes.
    pub(super) fn space_for_body(&mut self, protocol: &ProtocolState) -> PutSpace {
        let Input::Body(Incoming { of, slot, .. }) = &protocol.input else {
            unreachable!("the caller has seen a body")
        };
        let job = match of {
            BodyOf::Job(_, line) => line,
            BodyOf::Note(_) => return self.log.space_for_records(note_record_bytes(slot.len()) as u64),
            BodyOf::Schedule(planned) => return self.log.space_for_records(planned.record_bytes(slot)),
        };
        let client = protocol.client;
        match &protocol.put_batch {
            None => {
                let tags = self.engine.stored_tags(job.tags_key);
                self.log.space_for_put(&self.engine, client, job.args.bytes, tags)
            }
            Some(batch) if batch.arrived + 1 < batch.count => PutSpace::Available,
            Some(batch) => {
                let bytes = batch.record_bytes + self.record_bytes(client, job, slot);
                self.log.space_for_records(bytes)
            }
        }
    }

    /// The size of the record of a job that has arrived.
    fn record_bytes(&self, client: ClientKey, line: &PutLine, body: &Slot) -> u64 {
        let (tube, tags) = (self.engine.used(client).name(), self.engine.stored_tags(line.tags_key));
        job_record_bytes(tube.as_bytes().len(), tags, body.len()) as u64
    }

    /// Ends the arrival of a job. A batch that is complete waits for the turn of its session, since a thousand jobs have just been
    /// received and a thousand are to be stored.
    fn end_batch_job(&mut self, protocol: &mut ProtocolState) {
        let batch = protocol.put_batch.as_mut().expect("the job belongs to a batch");
        batch.arrived += 1;
        if batch.arrived == batch.count {
            protocol.state = SessionState::Storing;
        }
    }

    /// Stores the jobs of a complete batch.
    pub(super) fn end_put_batch(&mut self, session: &mut Session, now: Time) {
        let Session { protocol, output, .. } = session;
        protocol.serve_again();
        self.with_replies(output, |core, replies| {
            let batch = protocol.put_batch.take().expect("a complete batch is stored");
            core.batches.count -= 1;
            let permit = core.authorize_batch(protocol, &batch);
            let outcome = core.store_batch(protocol.client, *batch, permit, now);
            core.count_batches();
            core.reply(protocol, replies, outcome, now);
            core.record_changes(now);
            protocol.is_choked = replies.unsent_bytes() >= core.memory.output_bytes_pause();
        });
        self.charge(Cost::COMMAND);
        self.after_serving(session, now);
    }

    /// Permits a batch that has arrived: the users may have changed since its lines.
    fn authorize_batch(&mut self, protocol: &ProtocolState, batch: &PutBatch) -> Result<Permit, Refusal> {
        if batch.generation != self.access.generation() {
            let tagged: Vec<TagsKey> = self.batches.tags_keys(&batch.jobs).collect();
            for tags_key in tagged {
                _ = self.authorize(protocol, Need::put_arrived(Some(tags_key)))?;
            }
        }
        self.authorize(protocol, Need::put_arrived(None))
    }

    /// Queues the jobs of a complete batch, unless it is refused.
    fn store_batch(
        &mut self,
        client: ClientKey,
        batch: PutBatch,
        permit: Result<Permit, Refusal>,
        now: Time,
    ) -> Outcome<'static> {
        let PutBatch { count, mut jobs, body_bytes, record_bytes, refusal, .. } = batch;
        let refusal = match permit.err().or(refusal) {
            Some(refusal) => Some(refusal),
            None if self.puts.is_draining() => Some(Refusal::Draining),
            // mutant batch-of-the-jobs-that-have-space: self.admit_jobs(client, &jobs, body_bytes, record_bytes, now).err() =>
            //     None
            None => self.admit_jobs(client, &jobs, body_bytes, record_bytes, now).err(),
        };
        if let Some(refusal) = refusal {
            self.free_jobs(&mut jobs);
            self.puts.refusals.note(refusal, &self.config, now);
            self.reporter.observe(&self.engine, client, Observation::PutBatch(refusal.reply(), None));
            return Outcome::Refused(refusal);
        }
        let first = self.engine.next_ids(count);
        let mut replies = Vec::with_capacity(jobs.len());
        for id in (first.0..).map(JobId) {
            let Some(job) = self.batches.take(&mut jobs) else { break };
            self.charge(Cost::BATCH_JOB.plus(Cost::copied(job.body.len())));
            replies.push(self.store(client, id, job, now));
        }
        self.memory.invalidate();
        self.reporter.observe(
            &self.engine,
            client,
            Observation::PutBatch(Reply::InsertedBatch(replies.len()), Some(first)),
        );
        Outcome::InsertedBatch(replies)
    }

    /// Queues a job of a batch, unless it repeats the idempotency key of another one.
    fn store(&mut self, client: ClientKey, id: JobId, job: ArrivedJob, now: Time) -> Reply<'static> {
        let ArrivedJob { line: PutLine { args: PutArgs { pri, delay, ttr, .. }, tags_key }, body, .. } = job;
        if let Some(first) = tags_key.and_then(|tags_key| self.engine.repeat(client, tags_key, pri, now)) {
            self.free_job(tags_key, body);
            return repeated(first);
        }
        let ttr = self.engine.ttr_of_put(client, ttr);
        self.engine.put(client, NewJob { id, pri, delay, ttr, body, tags_key }, now);
        Reply::Inserted(id)
    }

    /// Returns why the job log, memory or the rules of the tube have no space for jobs whose bodies are there, if they have none.
    fn admit_jobs(
        &mut self,
        client: ClientKey,
        jobs: &List,
        body_bytes: usize,
        record_bytes: u64,
        now: Time,
    ) -> Result<(), Refusal> {
        Refusal::for_space(self.log.space_for_records(record_bytes)).map_or(Ok(()), Err)?;
        if !self.has_memory_for_jobs(client, jobs) {
            return Err(Shortage::Memory.into());
        }
        if !self.engine.admits_keys(client, self.batches.tags_keys(jobs), now) {
            return Err(Shortage::Keys.into());
        }
        Ok(self.engine.admits(client, jobs.len(), body_bytes as u64).map_err(Shortage::Rule)?)
    }

    /// Closes a connection whose batch or body has no known end, and drops the batch: the input behind it must not be taken for
    /// commands.
    #[inline(never)]
    pub(super) fn refuse_rest(&mut self, protocol: &mut ProtocolState) -> Outcome<'static> {
        self.drop_batch(protocol);
        protocol.state = SessionState::Closing;
        Outcome::Refused(Refusal::BadFormat)
    }

    /// Frees what has arrived of a batch, if there is one.
    pub(super) fn drop_batch(&mut self, protocol: &mut ProtocolState) {
        if let Some(mut batch) = protocol.put_batch.take() {
            self.batches.count -= 1;
            // mutant batch-cut-off-keeps-its-bodies: removed
            self.free_jobs(&mut batch.jobs);
            self.count_batches();
        }
    }

    fn free_jobs(&mut self, jobs: &mut List) {
        self.charge(Cost::FREED_JOB.times(jobs.len()));
        while let Some(job) = self.batches.take(jobs) {
            self.free_job(job.line.tags_key, job.body);
        }
    }
}
