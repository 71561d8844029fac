//! Commands that name many jobs at once.

use beanring::queue::{JobMoved, JobState, MoveRefusal};

use super::{Conn, Model, Name, Place};

/// A `move-jobs`.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    from: Name,
    state: JobState,
    to: Name,
    left: u32,
    moved: u32,
}

impl Model {
    /// Returns the number of jobs deleted, or none if there is no such tube.
    pub fn flush(&mut self, name: Name) -> Option<u32> {
        self.tubes.iter().find(|tube| tube.name == name)?;
        let mut count = 0;
        // A deletion may release held jobs of the tube, or have a client reserve one.
        while let Some(at) = self.next_to_flush(name) {
            self.remove(at);
            count += 1;
        }
        Some(count)
    }

    /// Held jobs come first, then delayed, buried and ready ones, and within a state those that came there first. Ready jobs
    /// that are fresh come before the others.
    fn next_to_flush(&self, name: Name) -> Option<usize> {
        self.first_by(|job| {
            let rank = match job.place {
                _ if job.tube != name => None,
                Place::Held { .. } => Some(0),
                Place::Delayed { .. } => Some(1),
                Place::Buried { .. } => Some(2),
                Place::Ready => Some(4 - u8::from(job.is_fresh)),
                Place::Reserved { .. } => None,
            };
            Some((rank?, job.entered))
        })
    }

    /// Moves a job that no client holds to a tube.
    pub fn move_job(&mut self, id: u64, to: Name) -> JobMoved {
        let Some(at) = self.find(id, |job| job.state() != JobState::Reserved) else {
            return JobMoved::NotFound;
        };
        if self.jobs[at].tube == to {
            return JobMoved::Done;
        }
        if !self.has_key_room_in(to, &self.jobs[at]) {
            return JobMoved::Refused(MoveRefusal::NoKeyRoom);
        }
        if !self.is_key_free_in(to, &self.jobs[at]) {
            return JobMoved::Refused(MoveRefusal::KeyExists);
        }
        if let Err(rule) = self.admits_to(to, 1, self.jobs[at].bytes) {
            return JobMoved::Refused(MoveRefusal::Full(rule));
        }
        self.make_tube(to);
        self.change_tube(at, to);
        self.drop_tubes();
        JobMoved::Done
    }

    /// Begins to move the first jobs in a state. Returns none if there is no such tube.
    pub fn begin_move(&mut self, from: Name, state: JobState, to: Name, bound: u32) -> Option<Move> {
        self.tubes.iter().find(|tube| tube.name == from)?;
        let there = self.jobs.iter().filter(|job| job.tube == from && job.state() == state).count();
        let left = bound.min(there as u32);
        if left > 0 {
            self.make_tube(to);
            self.pinned.extend([from, to]);
        }
        Some(Move { from, state, to, left, moved: 0 })
    }

    /// Moves the next job. Returns false if there is none, or one that cannot move: the other tube has its key, or no room for it.
    pub fn move_next(&mut self, work: &mut Move) -> bool {
        let next = match work.state {
            _ if work.left == 0 => None,
            JobState::Delayed => self.soonest_delayed(work.from),
            JobState::Buried => self.oldest_buried(work.from),
            // A job whose concurrency key is at its limit stays.
            _ => self.most_urgent(work.from),
        };
        let can_move = |&at: &usize| {
            let job = &self.jobs[at];
            let is_full = self.full_by(work.to, 1, job.bytes).is_some();
            !is_full && self.has_key_room_in(work.to, job) && self.is_key_free_in(work.to, job)
        };
        let Some(at) = next.filter(can_move) else { return false };
        self.change_tube(at, work.to);
        work.left -= 1;
        work.moved += 1;
        true
    }

    /// Ends a move. Returns the number of jobs moved.
    pub fn end_move(&mut self, work: &Move) -> u32 {
        for tube in [work.from, work.to] {
            if let Some(at) = self.pinned.iter().position(|&pinned| pinned == tube) {
                self.pinned.swap_remove(at);
            }
            self.drop_tubes();
        }
        work.moved
    }

    /// Moves the first jobs in a state, all at once. Returns their number, or none if there is no such tube.
    pub fn move_jobs(&mut self, from: Name, state: JobState, to: Name, bound: u32) -> Option<u32> {
        let mut work = self.begin_move(from, state, to, bound)?;
        while self.move_next(&mut work) {}
        Some(self.end_move(&work))
    }

    /// A ready job is ready in its new tube since now, and a buried one is the last.
    fn change_tube(&mut self, at: usize, to: Name) {
        let entered = self.next_turn();
        self.totals.moves += 1;
        let job = &mut self.jobs[at];
        (job.tube, job.since, job.entered, job.is_fresh) = (to, self.now, entered, false);
        if let Place::Buried { turn } = &mut job.place {
            *turn = entered;
        }
        self.serve();
    }

    /// Reserves up to `most` further jobs, the most urgent first, while their bodies fit.
    pub fn reserve_more(&mut self, conn: Conn, most: usize, mut fits: impl FnMut(u64) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(at) = self.best_ready(conn).filter(|&at| fits(self.jobs[at].id)) else { break };
            taken.push(self.hand_out(at, conn));
        }
        taken
    }

    /// Returns the numbers of jobs deleted and of ids without a job that the client may delete.
    pub fn delete_batch(&mut self, conn: Conn, ids: &[u64]) -> (u32, u32) {
        let deleted = ids.iter().filter(|&&id| self.delete(conn, id)).count() as u32;
        (deleted, ids.len() as u32 - deleted)
    }
}
