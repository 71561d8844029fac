//! `move-jobs`: a long one takes several steps, and the server serves other clients between them.

use std::collections::VecDeque;

use beanring::protocol::reply::Reply;
use beanring::queue::JobState;
use beanring_testkit::naive::{Conn, Move, Name};

use super::Checker;

/// Moves that are not finished, each with its client.
#[derive(Default)]
pub(super) struct Moves {
    /// Its command is served. The server reports next how far it is.
    begun: Option<(usize, Move)>,
    /// In the order in which they are continued.
    unfinished: VecDeque<(usize, Move)>,
}

impl Checker {
    pub(super) fn begin_move(&mut self, client: usize, tubes: [Name; 2], state: JobState, bound: u32) {
        let [from, to] = tubes;
        match self.model.begin_move(from, state, to, bound) {
            None => self.answer(client, Reply::NotFound),
            Some(work) => self.moves.begun = Some((client, work)),
        }
    }

    /// Moves jobs until `moved` were moved since the start. Then so many moves are unfinished. Those that end must have no job that
    /// can move. Returns whether there is a move.
    pub(super) fn moved(&mut self, moved: u64, unfinished: usize) -> bool {
        let was_moving = self.moves.begun.is_some() || !self.moves.unfinished.is_empty();
        if let Some((client, mut work)) = self.moves.begun.take() {
            self.advance(&mut work, moved);
            if unfinished > self.moves.unfinished.len() {
                self.moves.unfinished.push_back((client, work));
            } else {
                self.end_move(client, work);
            }
        } else {
            // A step finishes some, and then leaves one at its limit.
            while self.moves.unfinished.len() > unfinished {
                let (client, mut work) = self.moves.unfinished.pop_front().expect("there are more");
                self.advance(&mut work, moved);
                self.end_move(client, work);
            }
            if self.model.totals.moves < moved {
                let (client, mut work) = self.moves.unfinished.pop_front().expect("a move is unfinished");
                self.advance(&mut work, moved);
                self.moves.unfinished.push_back((client, work));
            }
        }
        assert_eq!(self.model.totals.moves, moved, "jobs moved");
        assert_eq!(self.moves.unfinished.len(), unfinished, "moves that are not finished");
        was_moving
    }

    /// Whether the client waits for the end of its move.
    pub(super) fn is_moving(&self, client: usize) -> bool {
        self.moves.unfinished.iter().any(|&(mover, _)| mover == client)
    }

    fn advance(&mut self, work: &mut Move, moved: u64) {
        while self.model.totals.moves < moved && self.model.move_next(work) {}
        self.take_notices();
    }

    fn end_move(&mut self, client: usize, mut work: Move) {
        assert!(!self.model.move_next(&mut work), "the move of client {client} ends before its last job");
        let count = self.model.end_move(&work);
        if self.model.clients.iter().any(|known| known.conn == client as Conn) {
            self.answer(client, Reply::MovedJobs(count.into()));
        }
    }
}
