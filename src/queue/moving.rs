//! `move-job` and `move-jobs`: a job changes its tube, and keeps everything else.

use super::background::BACKGROUND_STEPS;
use super::change::Change;
use super::engine::Engine;
use super::job::JobState;
use super::rules::FullBy;
use super::transitions::To;
use super::work::{Begun, Work};
use crate::time::Time;
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, ConnId, JobId, JobKey, TubeKey, TubeSlot};
use crate::values::tube_name::TubeName;

/// A ready or delayed job leaves one heap and enters another: among a million jobs that takes some 2.5 us, most of it for memory
/// that is in no cache.
const HEAP_MOVE: Cost = Cost::visits(8);

/// The room of the job log for jobs whose tube name becomes longer.
#[derive(Clone, Copy, Debug)]
pub struct LogRoom {
    /// Tube name, tags and body together, with its CR LF, that one record has room for.
    pub job_bytes_max: usize,
    /// The disk is full: the space of jobs must not grow.
    pub is_full: bool,
}

impl LogRoom {
    /// Without a job log.
    pub const UNLIMITED: Self = Self { job_bytes_max: usize::MAX, is_full: false };
}

/// The answer to a `move-job`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobMoved {
    /// The job is in the tube.
    Done,
    /// There is no such job, or a client has reserved it.
    NotFound,
    /// The tube cannot take it.
    Barred(MoveBar),
}

/// Why a tube cannot take a job of another tube.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveBar {
    /// The job log has no room for the longer name.
    NoRoom,
    /// The share of idempotency keys has no room for the longer name.
    NoKeyRoom,
    /// The tube has the idempotency key of the job already.
    KeyExists,
    /// The tube is full by this rule.
    Full(FullBy),
}

/// What a `move-jobs` has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The number of jobs that it has moved.
    pub count: u32,
    /// The job that it has stopped at, if the other tube could not take one, and why.
    pub stop: Option<(JobId, MoveBar)>,
}

/// A `move-jobs` that is not finished.
pub(super) struct Move {
    pub(super) conn: ConnId,
    pub(super) from: TubeKey,
    pub(super) to: TubeKey,
    /// Neither `Reserved` nor `Held`.
    state: JobState,
    left: u32,
    pub(super) moved: Moved,
}

impl Engine {
    /// Sets the room of the job log. A new queue has no limits.
    pub const fn set_log_room(&mut self, room: LogRoom) {
        self.store.log_room = room;
    }

    /// Returns true if there is a job with this id that no client has reserved.
    pub fn can_move(&self, id: JobId) -> bool {
        self.store.jobs.find(id).is_some_and(|job| self.store.jobs.get(job).state != JobState::Reserved)
    }

    /// Moves a job that no client has reserved to the tube of this name, which is created if it does not exist.
    pub fn move_job(&mut self, id: JobId, name: TubeName<'_>, now: Time) -> JobMoved {
        let Some(job) = self.store.jobs.find(id).filter(|_| self.can_move(id)) else {
            return JobMoved::NotFound;
        };
        if self.store.tube_of(job) != name
            && let Some(bar) = self.bar(name, job, now)
        {
            if let MoveBar::Full(_) = bar {
                self.rules.count_refused_move(name);
            }
            return JobMoved::Barred(bar);
        }
        let (from, to) = (self.store.jobs.get(job).tube, self.find_or_create_tube(name));
        if from != to {
            self.change_tube(job, to, self.budget.within(BACKGROUND_STEPS), now);
            self.remove_if_unreferenced(from);
        }
        JobMoved::Done
    }

    /// Moves up to `bound` jobs of one tube to another, which is created if it does not exist: the most urgent ready jobs,
    /// the delayed jobs with the earliest deadlines, or the jobs that were buried first. A ready job whose concurrency key is at
    /// its limit stays. Stops at a job that cannot move: see [`MoveBar`].
    ///
    /// # Panics
    /// If the state is [`JobState::Reserved`] or [`JobState::Held`], or the tubes are the same.
    pub fn move_jobs(
        &mut self,
        client: ClientKey,
        [from, to]: [TubeName<'_>; 2],
        state: JobState,
        bound: u32,
        now: Time,
    ) -> Begun<Moved> {
        assert!(state.can_move() && from != to, "these jobs can move");
        let Some(from) = self.store.tubes.find(from) else { return Begun::NoTube };
        let left = bound.min(self.store.tubes.get(from).jobs_in(state) as u32);
        let moved = Moved { count: 0, stop: None };
        if left == 0 {
            return Begun::Done(moved);
        }
        let to = self.find_or_create_tube(to);
        let to = self.store.tubes.key(to);
        for tube in [from, to] {
            self.store.tubes[tube.slot].pins += 1;
        }
        let conn = self.store.clients.get(client).conn;
        let mut work = Move { conn, from, to, state, left, moved };
        if self.continue_move(&mut work, now, self.budget.within(BACKGROUND_STEPS)) {
            return Begun::Done(work.moved);
        }
        self.effects.work.push_back(Work::Move(work));
        Begun::Working
    }

    /// Moves jobs up to the limit. Returns true if the move is finished.
    pub(super) fn continue_move(&mut self, work: &mut Move, now: Time, limit: Limit) -> bool {
        while work.left > 0 {
            if self.budget.is_reached(limit) {
                return false;
            }
            if work.state == JobState::Ready {
                self.shut_full_lanes(work.from.slot, limit);
            }
            if work.state == JobState::Ready && self.store.tubes.get(work.from).shutting {
                return false;
            }
            let name = self.store.tubes.get(work.to).name();
            let Some(job) = self.next_to_move(work.from, work.state) else { break };
            if let Some(bar) = self.bar(name, job, now) {
                work.moved.stop = Some((self.store.jobs.get(job).id, bar));
                break;
            }
            self.change_tube(job, work.to.slot, limit, now);
            work.left -= 1;
            work.moved.count += 1;
        }
        self.unpin(work.from.slot);
        self.unpin(work.to.slot);
        true
    }

    /// The number of jobs moved so far, and of moves that are not finished.
    pub fn moves(&self) -> (u64, usize) {
        // Bounded by its caller: the observer of a test.
        let unfinished = self.effects.work.iter().filter(|work| matches!(work, Work::Move(_))).count();
        (self.store.totals.moves, unfinished)
    }

    /// The first job of a tube in a state in which jobs move.
    fn next_to_move(&self, from: TubeKey, state: JobState) -> Option<JobKey> {
        let tube = self.store.tubes.get(from);
        match state {
            JobState::Delayed => tube.delayed.min().map(|key| self.store.jobs.lifecycles[key].job),
            JobState::Buried => tube.buried.front().map(JobKey),
            _ => tube.ready.min().map(JobKey),
        }
    }

    /// Why the tube of this name cannot take a job of another tube, if it cannot.
    fn bar(&self, name: TubeName<'_>, job: JobKey, now: Time) -> Option<MoveBar> {
        if !self.store.has_room_in(name, job) {
            return Some(MoveBar::NoRoom);
        }
        if !self.idps.has_room_for(job, name, &self.store) {
            return Some(MoveBar::NoKeyRoom);
        }
        if !self.idps.is_free_for(job, name, now, &self.store) {
            return Some(MoveBar::KeyExists);
        }
        self.rules.full_by(name, self.store.body_bytes(job), &self.store).map(MoveBar::Full)
    }

    /// Moves a job that no client has reserved, and assigns it to a client that waits for jobs of the tube.
    fn change_tube(&mut self, job: JobKey, to: TubeSlot, limit: Limit, now: Time) {
        let state = self.store.jobs.get(job).state;
        let is_in_heap = matches!(state, JobState::Ready | JobState::Delayed);
        self.budget.charge(if is_in_heap { HEAP_MOVE } else { Cost::STEP });
        self.store.totals.moves += 1;
        if state == JobState::Held {
            return self.move_held(job, to, now);
        }
        let enter = match state {
            JobState::Ready => To::Ready,
            JobState::Delayed => To::At(self.store.jobs.lifecycle_mut(job).deadline),
            JobState::Buried => To::Buried,
            JobState::Reserved | JobState::Held => unreachable!("it is in none of these states"),
        };
        self.transfer(job, enter, Some(to), Some(Change::Moved(job)), limit, now);
    }

    /// Moves a held job. It keeps its turn among the jobs that wait for its group.
    fn move_held(&mut self, job: JobKey, to: TubeSlot, now: Time) {
        // mutant grp-moved-job-loses-its-turn: adds
        //     let tags_key = self.store.jobs.get(job).tags_key().expect("tags");
        //     let group = self.groups.ahead(tags_key, &self.store).expect("a group");
        //     self.groups.stop_waiting(job, &mut self.store);
        //     self.groups.wait(job, group, &mut self.store);
        let from = self.store.jobs.get(job).tube;
        self.store.tubes[from].held.remove(&mut self.store.jobs.slab, job.0);
        self.set_tube(job, to, now);
        self.store.tubes[to].held.push_back(&mut self.store.jobs.slab, job.0);
        self.effects.changes.push(Change::Moved(job));
    }
}
