//! Reserves: of one job or several, at once or after a wait, with or without a weighted draw.

use beanring::protocol::reply::Reply;
use beanring::queue::BatchRoom;
use beanring::time::Span;

use super::Checker;
use beanring_testkit::naive::{Conn, Reserve};

/// A reserve in which chance decides.
#[derive(Clone, Copy)]
pub(super) enum Draw {
    One,
    /// As many as there is room for, with the one that it already has. The room is not known before the server takes them.
    Batch {
        room: Option<BatchRoom>,
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
        let answer = self.model.reserve(client as Conn, Some(patience.unwrap_or(Span::ZERO)));
        let record = &mut self.clients[client];
        record.batch = matches!(answer, Reserve::Job(_) | Reserve::Draw | Reserve::Waiting).then_some(count);
        match answer {
            Reserve::Job(id) => record.first_of_batch = Some(id),
            Reserve::Draw => record.draw = Some(Draw::Batch { room: None, first: None }),
            Reserve::DeadlineSoon => self.answer(client, Reply::DeadlineSoon),
            Reserve::TimedOut if patience.is_none() => self.answer(client, Reply::ReservedBatch(0)),
            Reserve::TimedOut => self.answer(client, Reply::TimedOut),
            Reserve::Waiting if self.clients[client].input_ending => self.end_wait(client),
            Reserve::Waiting => {}
        }
    }

    /// Takes further jobs after the first, and answers with all of them.
    pub(super) fn take_batch(&mut self, client: usize, room: BatchRoom) {
        let record = &mut self.clients[client];
        let wanted = record.batch.take().unwrap_or_else(|| panic!("client {client} waits for no batch"));
        let whole = BatchRoom::new(wanted as usize);
        let is_smaller = (1..=whole.jobs).contains(&room.jobs) && room.body_bytes <= whole.body_bytes;
        assert!(
            room == whole || self.has_memory_limit && is_smaller,
            "client {client} wants {wanted}, not {room:?}"
        );
        if let Some(Draw::Batch { room: unknown @ None, .. }) = &mut record.draw {
            return *unknown = Some(room);
        }
        let first = record.first_of_batch.take().unwrap_or_else(|| panic!("client {client} has no job"));
        // Its reservation may have ended while the job log kept the client waiting.
        let first = Some(first).filter(|&first| self.model.holds(client as Conn, first));
        if self.model.get(client as Conn).mode.is_weighted() {
            self.clients[client].draw = Some(Draw::Batch { room: Some(room), first });
            return;
        }
        let bytes_of = |id: u64| (self.bodies[&id].len() - 2) as u64;
        let mut bytes = first.map_or(0, bytes_of);
        let most = room.jobs - usize::from(first.is_some());
        let more = self.model.reserve_more(client as Conn, most, |id| {
            bytes += bytes_of(id);
            bytes <= room.body_bytes
        });
        let ids: Vec<u64> = first.into_iter().chain(more).collect();
        self.answer_batch(client, &ids);
    }

    pub(super) fn answer_batch(&mut self, client: usize, ids: &[u64]) {
        if ids.is_empty() {
            return self.answer(client, Reply::TimedOut);
        }
        self.answer(client, Reply::ReservedBatch(ids.len()));
        for &id in ids {
            self.job_or_not(client, Some(id), "RESERVED");
        }
    }

    /// Takes the jobs that the server has drawn.
    pub(super) fn drawn(&mut self, client: usize, ids: &[u64]) {
        let conn = client as Conn;
        let Some(draw) = self.clients[client].draw.take() else { panic!("client {client} draws nothing") };
        let Draw::Batch { room, first } = draw else {
            assert_eq!(ids.len(), 1, "a reserve gets one job");
            self.model.draw(conn, ids[0]);
            return self.job_or_not(client, Some(ids[0]), "RESERVED");
        };
        assert!(first.is_none() || ids.first() == first.as_ref(), "{ids:?} begin with {first:?}");
        let room = room.expect("the server says how many jobs it takes");
        let bytes_of = |id: u64| (self.bodies[&id].len() - 2) as u64;
        let bytes: u64 = ids.iter().map(|&id| bytes_of(id)).sum();
        assert!(bytes <= room.body_bytes || ids.len() == 1, "a batch has {bytes} bytes");
        let had = usize::from(first.is_some());
        let fits = |id| bytes + bytes_of(id) <= room.body_bytes;
        self.model.draw_batch(conn, &ids[had..], room.jobs - had, fits);
        self.answer_batch(client, ids);
    }

    pub(super) fn end_wait(&mut self, client: usize) {
        self.clients[client].batch = None;
        self.model.end_wait(client as Conn);
        self.answer(client, Reply::TimedOut);
    }
}
