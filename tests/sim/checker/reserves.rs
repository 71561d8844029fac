//! Reserves: of one job or several, at once or after a wait, with or without a choice by chance.

use beanring::limits::BATCH_BODY_BYTES_MAX;
use beanring::protocol::reply::Reply;
use beanring::time::Span;

use super::Checker;
use beanring_testkit::naive::{Conn, Reserve};

/// A reserve in which chance decides.
#[derive(Clone, Copy)]
pub(super) enum Draw {
    One,
    /// Up to this number, with the one that it already has.
    Batch {
        count: u32,
        first: Option<u64>,
    },
}

impl Checker {
    pub(super) fn reserve(&mut self, client: usize, patience: Option<Span>) {
        match self.model.reserve(client as Conn, patience) {
            Reserve::Job(id) => self.job_or_not(client, Some(id), "RESERVED"),
            Reserve::Draw => self.clients[client].draw = Some(Draw::One),
            Reserve::DeadlineSoon => self.answer(client, Reply::DeadlineSoon),
            Reserve::TimedOut => self.answer(client, Reply::TimedOut),
            Reserve::Waiting if self.clients[client].input_ending => self.end_wait(client),
            Reserve::Waiting => {}
        }
    }

    pub(super) fn reserve_batch(&mut self, client: usize, count: u32, patience: Option<Span>) {
        match self.model.reserve(client as Conn, Some(patience.unwrap_or(Span::ZERO))) {
            Reserve::Job(id) => self.batch(client, id, count),
            Reserve::Draw => self.clients[client].draw = Some(Draw::Batch { count, first: None }),
            Reserve::DeadlineSoon => self.answer(client, Reply::DeadlineSoon),
            Reserve::TimedOut if patience.is_none() => self.answer(client, Reply::ReservedBatch(0)),
            Reserve::TimedOut => self.answer(client, Reply::TimedOut),
            Reserve::Waiting if self.clients[client].input_ending => self.end_wait(client),
            Reserve::Waiting => self.clients[client].batch = Some(count),
        }
    }

    /// Completes a batch that has waited for its first job. The server says how many jobs it takes at most.
    pub(super) fn batch_after_wait(&mut self, client: usize, reported: u32) {
        let record = &mut self.clients[client];
        let (wanted, first) = (record.batch.take(), record.first_of_batch.take());
        let (Some(wanted), Some(first)) = (wanted, first) else {
            panic!("client {client} waits for no batch")
        };
        let count = self.batch_size(wanted);
        assert_eq!(count, reported, "the batch of client {client}, which wants {wanted}");
        self.batch(client, first, count);
    }

    /// How many jobs a batch of `wanted` jobs takes after a wait.
    fn batch_size(&self, wanted: u32) -> u32 {
        // A reply to `stats` shows the state after its command, so no job leaves that state before the sample.
        if self.is_sampling { 1 } else { wanted }
    }

    /// Takes further jobs after the first, and answers with all of them.
    pub(super) fn batch(&mut self, client: usize, first: u64, count: u32) {
        if self.model.get(client as Conn).mode.is_weighted() {
            self.clients[client].draw = Some(Draw::Batch { count, first: Some(first) });
            return;
        }
        let bytes_of = |id: u64| self.bodies[&id].len() - 2;
        let mut bytes = bytes_of(first);
        let more = self.model.reserve_more(client as Conn, count as usize - 1, |id| {
            bytes += bytes_of(id);
            bytes <= BATCH_BODY_BYTES_MAX
        });
        let ids: Vec<u64> = [first].into_iter().chain(more).collect();
        self.answer_batch(client, &ids);
    }

    pub(super) fn answer_batch(&mut self, client: usize, ids: &[u64]) {
        self.answer(client, Reply::ReservedBatch(ids.len()));
        for &id in ids {
            self.job_or_not(client, Some(id), "RESERVED");
        }
    }

    /// Takes the jobs that the server has drawn.
    pub(super) fn drawn(&mut self, client: usize, ids: &[u64]) {
        let conn = client as Conn;
        let Some(draw) = self.clients[client].draw.take() else { panic!("client {client} draws nothing") };
        let Draw::Batch { count, first } = draw else {
            assert_eq!(ids.len(), 1, "a reserve gets one job");
            self.model.draw(conn, ids[0]);
            return self.job_or_not(client, Some(ids[0]), "RESERVED");
        };
        assert!(first.is_none() || ids.first() == first.as_ref(), "{ids:?} begin with {first:?}");
        let bytes_of = |id: u64| self.bodies[&id].len() - 2;
        let bytes: usize = ids.iter().map(|&id| bytes_of(id)).sum();
        assert!(bytes <= BATCH_BODY_BYTES_MAX || ids.len() == 1, "a batch has {bytes} bytes");
        let had = usize::from(first.is_some());
        let fits = |id| bytes + bytes_of(id) <= BATCH_BODY_BYTES_MAX;
        self.model.draw_batch(conn, &ids[had..], count as usize - had, fits);
        self.answer_batch(client, ids);
    }

    pub(super) fn end_wait(&mut self, client: usize) {
        self.clients[client].batch = None;
        self.model.end_wait(client as Conn);
        self.answer(client, Reply::TimedOut);
    }
}
