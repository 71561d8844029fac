//! `move-jobs` and `flush-tube`: a long one takes several steps, and the server serves other clients between them.

use std::collections::VecDeque;

use beanring::protocol::reply::Reply;
use beanring::values::ids::ConnId;
use beanring_testkit::naive::{Bulk, Conn};

use super::Checker;

/// Commands that are not finished.
#[derive(Default)]
pub(super) struct Bulks {
    /// The command of this client is served. The server reports next how far it is.
    begun: Option<(usize, Bulk)>,
    /// In the order in which they go on.
    unfinished: VecDeque<Unfinished>,
}

struct Unfinished {
    client: usize,
    conn: ConnId,
    work: Bulk,
}

impl Checker {
    /// Begins a command, unless there is no such tube.
    pub(super) fn begin_bulk(&mut self, client: usize, work: Option<Bulk>) {
        match work {
            None => self.answer(client, Reply::NotFound),
            Some(work) => self.bulks.begun = Some((client, work)),
        }
    }

    /// Takes in how far the unfinished commands are: the model does as many of their jobs. Commands that are not among them end. Returns
    /// whether there was one.
    pub(super) fn changed(&mut self, unfinished: &[(ConnId, u32)]) -> bool {
        let had_some = self.bulks.begun.is_some() || !self.bulks.unfinished.is_empty();
        if let Some((client, work)) = self.bulks.begun.take() {
            match unfinished.get(self.bulks.unfinished.len()) {
                Some(&(conn, _)) => self.bulks.unfinished.push_back(Unfinished { client, conn, work }),
                None => self.end_bulk(client, work),
            }
        }
        let mut works = std::mem::take(&mut self.bulks.unfinished);
        for Unfinished { client, conn, mut work } in works.drain(..) {
            let Some(&(_, done)) = unfinished.iter().find(|(other, _)| *other == conn) else {
                self.end_bulk(client, work);
                continue;
            };
            while work.done < done && self.model.advance(&mut work) {}
            assert_eq!(work.done, done, "jobs of the command of client {client}");
            self.take_notices();
            self.bulks.unfinished.push_back(Unfinished { client, conn, work });
        }
        let place = |conn| unfinished.iter().position(|&(other, _)| other == conn);
        self.bulks.unfinished.make_contiguous().sort_by_key(|work| place(work.conn));
        assert_eq!(self.bulks.unfinished.len(), unfinished.len(), "commands that are not finished");
        had_some
    }

    /// Whether the client waits for the end of its command.
    pub(super) fn is_changing(&self, client: usize) -> bool {
        self.bulks.unfinished.iter().any(|work| work.client == client)
    }

    fn end_bulk(&mut self, client: usize, work: Bulk) {
        let count = self.model.finish(work).into();
        self.take_notices();
        if self.model.clients.iter().any(|known| known.conn == client as Conn) {
            self.answer(
                client,
                if work.is_flush() { Reply::Flushed(count) } else { Reply::MovedJobs(count) },
            );
        }
    }
}
