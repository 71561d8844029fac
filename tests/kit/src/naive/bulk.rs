//! Commands that name many jobs at once.

use beanring::queue::{JobMoved, JobState, MoveRefusal};

use super::{Conn, Job, Model, Name, Place};

/// A `move-jobs` or a `flush-tube`.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    kind: Kind,
    /// Its jobs so far.
    pub done: u32,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Move {
        from: Name,
        state: JobState,
        to: Name,
        left: u32,
    },
    /// Jobs from the id `end` on were announced later, and stay.
    Flush {
        tube: Name,
        end: u64,
    },
}

impl Bulk {
    pub const fn is_flush(&self) -> bool {
        matches!(self.kind, Kind::Flush { .. })
    }
}

impl Model {
    /// Begins to delete the jobs of a tube. Returns none if there is no such tube.
    pub fn begin_flush(&mut self, tube: Name) -> Option<Bulk> {
        self.tubes.iter().find(|there| there.name == tube)?;
        self.pinned.push(tube);
        Some(Bulk { kind: Kind::Flush { tube, end: self.last_id + 1 }, done: 0 })
    }

    /// Deletes the jobs of a tube, all at once. Returns their number, or none if there is no such tube.
    pub fn flush(&mut self, tube: Name) -> Option<u32> {
        self.begin_flush(tube).map(|work| self.finish(work))
    }

    /// Held jobs come first, then delayed, buried and ready ones, and within a state those that came there first. Ready jobs
    /// that are fresh come before the others. One that came there behind a job that stays does so, too: another client has released,
    /// kicked or buried it during the flush.
    fn next_to_flush(&self, name: Name, end: u64) -> Option<usize> {
        let rank = |job: &Job| match job.place {
            _ if job.tube != name => None,
            Place::Held { .. } => Some(0),
            Place::Delayed { .. } => Some(1),
            Place::Buried { .. } => Some(2),
            Place::Ready => Some(4 - u8::from(job.is_fresh)),
            Place::Reserved { .. } => None,
        };
        (0..=4).find_map(|list| {
            let front = self.first_by(|job| (rank(job) == Some(list)).then_some(job.entered))?;
            (self.jobs[front].id < end).then_some(front)
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
    pub fn begin_move(&mut self, from: Name, state: JobState, to: Name, bound: u32) -> Option<Bulk> {
        self.tubes.iter().find(|tube| tube.name == from)?;
        let there = self.jobs.iter().filter(|job| job.tube == from && job.state() == state).count();
        let left = bound.min(there as u32);
        if left > 0 {
            self.make_tube(to);
            self.pinned.extend([from, to]);
        }
        Some(Bulk { kind: Kind::Move { from, state, to, left }, done: 0 })
    }

    /// Moves or deletes the next job. Returns false if there is none, or one that cannot move: the other tube has its key, or no room
    /// for it.
    pub fn advance(&mut self, work: &mut Bulk) -> bool {
        match &mut work.kind {
            Kind::Move { left: 0, .. } => return false,
            Kind::Move { from, state, to, left } => {
                let next = match state {
                    JobState::Delayed => self.soonest_delayed(*from),
                    JobState::Buried => self.oldest_buried(*from),
                    // A job whose concurrency key is at its limit stays.
                    _ => self.most_urgent(*from),
                };
                let can_move = |&at: &usize| {
                    let job = &self.jobs[at];
                    let is_full = self.full_by(*to, 1, job.bytes).is_some();
                    !is_full && self.has_key_room_in(*to, job) && self.is_key_free_in(*to, job)
                };
                let Some(at) = next.filter(can_move) else { return false };
                self.change_tube(at, *to);
                *left -= 1;
            }
            // A deletion may release held jobs of the tube, or have a client reserve one.
            Kind::Flush { tube, end } => {
                let Some(at) = self.next_to_flush(*tube, *end) else { return false };
                self.remove(at);
            }
        }
        work.done += 1;
        true
    }

    /// Does what is left. Returns the number of its jobs.
    pub fn finish(&mut self, mut work: Bulk) -> u32 {
        while self.advance(&mut work) {}
        let tubes = match work.kind {
            Kind::Move { from, to, .. } => vec![from, to],
            Kind::Flush { tube, .. } => vec![tube],
        };
        for tube in tubes {
            if let Some(at) = self.pinned.iter().position(|&pinned| pinned == tube) {
                self.pinned.swap_remove(at);
            }
            self.drop_tubes();
        }
        work.done
    }

    /// Moves the first jobs in a state, all at once. Returns their number, or none if there is no such tube.
    pub fn move_jobs(&mut self, from: Name, state: JobState, to: Name, bound: u32) -> Option<u32> {
        self.begin_move(from, state, to, bound).map(|work| self.finish(work))
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
