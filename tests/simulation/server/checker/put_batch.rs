//! `put-batch`: how its jobs arrive, and what it is answered.

use std::ops::Range;

use beanring::protocol::announced::Follows;
use beanring::protocol::command::{Command, PutArgs};
use beanring::protocol::reply::Reply;
use beanring::time::Seconds;
use beanring::values::limits::BATCH_BODY_BYTES_MAX;
use beanring::values::tags;
use beanring::wal::job_record_bytes;
use beanring_testkit::naive::{Conn, Tags};

use super::{Checker, Expected, name_of};

/// A batch whose jobs are arriving.
pub(super) struct Batch {
    count: u32,
    /// The jobs so far, each with its tags if they are valid, and the place of its body in what the client has sent.
    jobs: Vec<(PutArgs, Option<Tags>, Range<usize>)>,
    /// It may be refused for lack of space.
    may_be_short: bool,
}

impl Checker {
    pub(super) fn begin_batch(&mut self, client: usize, count: Option<u32>) {
        let Some(count) = count else { return self.lose_batch(client) };
        self.model.mark_producer(client as Conn);
        let may_be_short = self.may_be_short;
        self.clients[client].put_batch = Some(Batch { count, jobs: Vec::new(), may_be_short });
    }

    /// Takes the line of the next job. One that announces no body leaves the end of the batch unknown.
    pub(super) fn batch_line(&mut self, client: usize, line: &[u8], is_too_long: bool) {
        let (args, tags) = match self.parse(line) {
            Ok(Command::Put { args, tags }) if !is_too_long => (args, tags.map(Tags::of)),
            _ => (PutArgs { pri: 0, delay: Seconds::ZERO, ttr: Seconds::ZERO, bytes: 0 }, None),
        };
        let Follows::Body(bytes) = Follows::line(line) else { return self.lose_batch(client) };
        let record = &mut self.clients[client];
        let begin = record.served;
        record.skip(bytes);
        let body = begin..record.served;
        record.put_batch.as_mut().expect("a batch is arriving").jobs.push((args, tags, body));
    }

    /// Puts the jobs of a batch that has arrived.
    pub(super) fn end_batch(&mut self, client: usize, first: Option<u64>, is_out_of_memory: bool) {
        let batch = self.clients[client].put_batch.take().expect("a batch is arriving");
        assert_eq!(batch.jobs.len(), batch.count as usize, "the whole batch has arrived");
        let record = &self.clients[client];
        assert!(record.served <= record.arrived, "the last body has arrived");
        let may_be_short = batch.may_be_short || self.may_be_short;
        let refusal = if may_be_short && is_out_of_memory {
            self.unclear_refusals += 1;
            Some(Reply::OutOfMemory)
        } else {
            self.refusal(client, &batch).or_else(|| {
                let bytes: usize = batch.jobs.iter().map(|(args, ..)| args.bytes as usize).sum();
                let admits = self.model.admits(client as Conn, batch.jobs.len(), bytes as u64);
                admits.err().map(|_| Reply::OutOfMemory)
            })
        };
        if let Some(reply) = refusal {
            return self.answer(client, reply);
        }
        let first = first.expect("the server has no reason to refuse the batch");
        let expected = self.model.last_id + 1;
        self.model.last_id += u64::from(batch.count);
        assert!(
            first == expected || self.has_been_short && first < expected,
            "the first job is {first} instead of {expected}"
        );
        let mut lines = Vec::new();
        Reply::InsertedBatch(batch.jobs.len()).render(&mut lines);
        for (id, (args, tags, body)) in (first..).zip(batch.jobs) {
            let tags = tags.expect("the batch has no reason to be refused");
            let body = self.clients[client].sent[body].into();
            self.store(client, id, args, tags, body).render(&mut lines);
        }
        self.push(client, Expected::Line(lines));
        self.take_notices();
    }

    /// The reason to refuse a whole batch that has space: the first one that a job gives.
    fn refusal(&self, client: usize, batch: &Batch) -> Option<Reply<'static>> {
        let tube = name_of(self.model.get(client as Conn).used);
        let (mut body_bytes, mut record_bytes) = (0, 0);
        for (args, tags, body) in &batch.jobs {
            body_bytes += args.bytes as usize;
            let text = tags.unwrap_or_default().text();
            let tags_of_record = tags::Tags::new(text.as_bytes()).unwrap_or(tags::Tags::NONE);
            record_bytes += job_record_bytes(tube.len(), tags_of_record, body.len());
            let is_too_big = args.bytes > self.totals.max_job_bytes;
            if is_too_big || batch.count > 1 && body_bytes > BATCH_BODY_BYTES_MAX {
                return Some(Reply::JobTooBig);
            } else if tags.is_none() {
                return Some(Reply::BadFormat);
            } else if !self.clients[client].sent[body.clone()].ends_with(b"\r\n") {
                return Some(Reply::ExpectedCrlf);
            }
        }
        if self.totals.draining {
            return Some(Reply::Draining);
        }
        self.record_bytes_max.is_some_and(|max| record_bytes > max).then_some(Reply::JobTooBig)
    }

    /// Closes the connection of a client whose jobs could be taken for commands.
    pub(super) fn lose_batch(&mut self, client: usize) {
        let record = &mut self.clients[client];
        (record.put_batch, record.has_quit) = (None, true);
        self.answer(client, Reply::BadFormat);
    }
}
