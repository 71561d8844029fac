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
