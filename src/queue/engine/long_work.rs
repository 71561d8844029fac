//! Timers that fire, and commands too large for one call: done in bounded steps between other work.

use super::Engine;
use super::matching::SAFETY_MARGIN;
use super::transitions::To;
use crate::bodies::Slot;
use crate::queue::effects::{Change, Notice};
use crate::queue::extensions::idempotency::KeyFlush;
use crate::queue::extensions::schedules::{Due, NewSchedule, ScheduleName};
use crate::queue::long_work::job_list::{JobPage, JobSearch, PageQuery};
use crate::queue::long_work::{
    ANSWER, BACKGROUND_STEPS, Begun, Flush, FollowUp, JobMoved, Kick, Move, MoveRefusal, Moved, QUOTAS, Work,
};
use crate::queue::store::client::{Client, Wait, Watched};
use crate::queue::store::job::{Failure, JobState};
use crate::queue::store::timers::Owner;
use crate::time::{Span, Time};
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, ClientSlot, JobId, JobKey, TubeSlot};
use crate::values::tube_name::TubeName;

/// A wait that should end does not end before the search for a job, and looks again after this time.
const SEARCH_PAUSE: Span = Span::from_millis(1);

/// Steps of one piece of unfinished work. Kinds of work take turns, piece by piece.
const PIECE_STEPS: u32 = BACKGROUND_STEPS / 4;

/// A ready or delayed job leaves one heap and enters another: among a million jobs that takes some 2.5 us, most of it for memory
/// that is in no cache.
const HEAP_MOVE: Cost = Cost::visits(8);

impl Engine {
    /// Makes up to `bound` jobs of the used tube ready: buried jobs in the order of burial or, if there are none, delayed
    /// jobs in the order of their deadlines.
    pub fn kick(&mut self, client: ClientKey, bound: u32, now: Time) -> Begun<u32> {
        let Client { conn, used, .. } = *self.store.clients.get(client);
        let tube = self.store.tubes.key(used);
        let record = &self.store.tubes[used];
        let from = if record.buried.is_empty() { JobState::Delayed } else { JobState::Buried };
        let left = bound.min(record.jobs_in(from) as u32);
        self.store.pin(used);
        let mut kick = Kick { conn, tube, from, left, kicked: 0 };
        let is_finished = self.continue_kick(&mut kick, now, self.budget.within(BACKGROUND_STEPS));
        self.begun(is_finished, kick.kicked, Work::Kick(kick))
    }

    /// Deletes the jobs of a tube that no client has reserved. A job that is put later stays.
    pub fn flush(&mut self, client: ClientKey, name: TubeName<'_>, now: Time) -> Begun<u32> {
        let Some(tube) = self.store.tubes.find(name) else { return Begun::NoTube };
        self.store.pin(tube.slot);
        let conn = self.store.clients.get(client).conn;
        let mut flush = Flush::new(conn, tube, self.upcoming_id());
        let is_finished = self.continue_flush(&mut flush, now, self.budget.within(BACKGROUND_STEPS));
        self.begun(is_finished, flush.flushed, Work::Flush(flush))
    }

    /// Forgets the kept keys of the tube of this name. Keys of jobs stay, and so do those of jobs that are put later.
    pub fn flush_keys(&mut self, client: ClientKey, tube: TubeName<'_>) -> Begun<u32> {
        let conn = self.store.clients.get(client).conn;
        let mut flush = KeyFlush::new(client, conn, tube, self.upcoming_id(), &self.idps);
        let is_finished = self.continue_key_flush(&mut flush, self.budget.within(BACKGROUND_STEPS));
        self.begun(is_finished, flush.flushed, Work::FlushKeys(Box::new(flush)))
    }

    /// Lists jobs of a tube. A job that changes its state during the search may be missing.
    pub fn list_jobs(&mut self, client: ClientKey, name: TubeName<'_>, query: PageQuery) -> Begun<JobPage> {
        let Some(tube) = self.store.tubes.find(name) else { return Begun::NoTube };
        if let Some(page) = JobPage::of_short_list(tube, query, &self.store, &mut self.budget) {
            return Begun::Done(page);
        }
        self.store.pin(tube.slot);
        let conn = self.store.clients.get(client).conn;
        self.effects.work.push_back(Work::List(Box::new(JobSearch::new(client, conn, tube, query))));
        Begun::Working
    }

    /// Moves a job that no client has reserved to the tube of this name, which is created if it does not exist.
    pub fn move_job(&mut self, id: JobId, name: TubeName<'_>, now: Time) -> JobMoved {
        let Some(job) = self.store.jobs.find(id).filter(|_| self.is_unreserved(id)) else {
            return JobMoved::NotFound;
        };
        if self.store.tube_of(job) != name
            && let Some(refusal) = self.move_refusal(name, job, now)
        {
            if let MoveRefusal::Full(_) = refusal {
                self.rules.count_refusal_in(name);
            }
            return JobMoved::Refused(refusal);
        }
        let (from, to) = (self.store.jobs.get(job).tube, self.find_or_create_tube(name));
        if from != to {
            self.change_tube(job, to, self.budget.within(BACKGROUND_STEPS), now);
            self.store.remove_if_unreferenced(from, &mut self.effects.changes);
        }
        JobMoved::Done
    }

    /// Moves up to `bound` jobs of one tube to another, which is created if it does not exist: the most urgent ready jobs,
    /// the delayed jobs with the earliest deadlines, or the jobs that were buried first. A ready job whose concurrency key is at
    /// its limit stays. Stops at a job that cannot move: see [`MoveRefusal`].
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
            self.store.pin(tube.slot);
        }
        let conn = self.store.clients.get(client).conn;
        let mut work = Move { conn, from, to, state, left, moved };
        let is_finished = self.continue_move(&mut work, now, self.budget.within(BACKGROUND_STEPS));
        self.begun(is_finished, work.moved, Work::Move(work))
    }

    /// The answer to a command whose work is finished, or is left to background work.
    fn begun<T>(&mut self, is_finished: bool, done: T, work: Work) -> Begun<T> {
        if is_finished {
            return Begun::Done(done);
        }
        self.effects.work.push_back(work);
        Begun::Working
    }

    /// Does a bounded piece of unfinished work, and of what is due at `now`. Returns true if more is left to do at once.
    ///
    /// Unfinished work gets half of the steps and timers get the rest, so neither waits for the other.
    #[inline(always)]
    pub fn step(&mut self, now: Time) -> bool {
        let had_work = self.has_work(now);
        if had_work {
            self.work_and_fire(now);
        }
        self.quotas = QUOTAS;
        had_work && self.has_work(now)
    }

    /// Whether there is unfinished work, or something due.
    #[inline]
    fn has_work(&self, now: Time) -> bool {
        !self.effects.work.is_empty() || self.store.timers.next().is_some_and(|at| at <= now)
    }

    #[inline(never)]
    fn work_and_fire(&mut self, now: Time) {
        let (half, whole) = (self.budget.within(BACKGROUND_STEPS / 2), self.budget.within(BACKGROUND_STEPS));
        while !self.budget.is_reached(half) {
            let Some(work) = self.effects.work.pop() else { break };
            let is_flush = matches!(work, Work::Flush(_) | Work::FlushKeys(_));
            if is_flush && (self.effects.changes.is_pending() || self.has_unread_page()) {
                // The flush could delete a job or forget a key whose change or page the caller has yet to read.
                self.effects.work.push_front(work);
                break;
            }
            let least = self.budget.within(1);
            self.run(work, now, half.min(self.budget.within(PIECE_STEPS)));
            self.budget.spend_up_to(least);
        }
        while !self.budget.is_reached(whole) {
            let Some((owner, at)) = self.store.timers.fire(now) else { break };
            let least = self.budget.within(1);
            match owner {
                Owner::Client(client) => {
                    let client = self.store.clients.slot(client);
                    // An early timer takes its turn among the others, so that a late call handles what is due in order.
                    if self.client_deadline(client).is_some_and(|deadline| deadline > at) {
                        self.arm_client_timer(client);
                    } else {
                        self.handle_client_timer(client, now, whole);
                    }
                }
                Owner::Tube(tube) => {
                    let tube = self.store.tubes.slot(tube);
                    if self.rules.tube_deadline(tube, &self.store).is_some_and(|deadline| deadline > at) {
                        self.rules.arm_tube_timer(tube, &mut self.store);
                    } else {
                        self.handle_tube_timer(tube, now, whole);
                    }
                }
                // The caller carries out what is due: see `begin_run`.
                Owner::Schedules => {}
                Owner::IdpKeys => {
                    self.idps.handle_timer(now, whole, &mut self.store, &mut self.effects, &mut self.budget)
                }
            }
            self.budget.spend_up_to(least);
        }
    }

    // Schedules.

    /// Takes the time of the system clock, by which schedules run.
    pub fn set_system_time(&mut self, system: Time, now: Time) {
        self.schedules.set_system_time(system, now, &mut self.store.timers);
    }

    /// Has the same system clock as another queue.
    pub const fn keep_system_clock(&mut self, other: &Self) {
        self.schedules.keep_clock(&other.schedules);
    }

    /// Whether there is room for a schedule of this name.
    pub fn can_put_schedule(&self, name: TubeName<'_>) -> bool {
        self.schedules.can_put(name)
    }

    /// Adds a schedule, or replaces that of the same name. `body` has its CR LF.
    pub fn put_schedule(&mut self, new: NewSchedule<'_>, body: Slot, now: Time) {
        self.budget.charge(Cost::SCHEDULE_RUN);
        let name = ScheduleName::from(new.name.as_bytes());
        self.schedules.put(new, body, now, &mut self.store);
        self.effects.changes.push(Change::ScheduleSet(name));
    }

    /// Deletes the schedule of this name. Returns false if there is none.
    pub fn delete_schedule(&mut self, name: TubeName<'_>) -> bool {
        self.budget.charge(Cost::STEP);
        let is_deleted = self.schedules.delete(name, &mut self.store.bodies);
        if is_deleted {
            // mutant schedule-back-after-a-restart: removed
            self.effects.changes.push(Change::ScheduleGone(name.as_bytes().into()));
        }
        is_deleted
    }

    /// Decides about the schedule of this name, which is due. Returns the time for which it is to [run](Self::run_schedule), if it is.
    ///
    /// # Panics
    /// If there is none.
    pub fn begin_run(&mut self, name: &ScheduleName, now: Time) -> Option<Time> {
        match self.schedules.begin(name, now, &self.store, &mut self.budget) {
            Due::Run(at) => Some(at),
            Due::LeftOut => {
                self.effects.changes.push(Change::LeftOut(ScheduleName::clone(name)));
                None
            }
        }
    }

    /// Finds the next time of one schedule again, after the system clock was set back. Returns whether there was one.
    pub fn recheck_schedule(&mut self, now: Time) -> bool {
        let has_one = self.schedules.recheck(now);
        if has_one {
            self.budget.charge(Cost::SCHEDULE_RUN);
        }
        has_one
    }

    /// Has a schedule that is due looked at again at this time.
    pub fn postpone_run(&mut self, name: &ScheduleName, until: Time) {
        self.budget.charge(Cost::BATCH_JOB);
        self.schedules.postpone(name, until);
    }

    /// Has the next [`step`](Self::step) come when a schedule is due, but not before `earliest`.
    pub fn arm_schedules(&mut self, earliest: Time, now: Time) {
        self.schedules.arm(earliest, now, &mut self.store.timers);
    }

    pub(super) fn has_unread_page(&self) -> bool {
        // Bounded by BACKGROUND_STEPS: the notices of one piece of work.
        self.effects.notices.iter().any(|notice| matches!(notice, Notice::Listed(..)))
    }

    /// Does a piece of follow-up work with what is left for its kind.
    pub(super) fn with_quota<R>(&mut self, kind: FollowUp, work: impl FnOnce(&mut Self, Limit) -> R) -> R {
        let limit = self.quotas[kind as usize].limit(&self.budget);
        let result = work(self, limit);
        self.quotas[kind as usize].settle(limit, &self.budget);
        result
    }

    /// Continues a piece of work, and puts it back if it is not finished then.
    fn run(&mut self, mut work: Work, now: Time, limit: Limit) {
        let is_finished = match &mut work {
            Work::Kick(kick) => {
                let is_finished = self.continue_kick(kick, now, limit);
                self.notify_if(is_finished, Notice::Kicked(kick.conn, kick.kicked))
            }
            Work::Flush(flush) => {
                let is_finished = self.continue_flush(flush, now, limit);
                self.notify_if(is_finished, Notice::Flushed(flush.conn, flush.flushed))
            }
            Work::Move(work) => {
                let is_finished = self.continue_move(work, now, limit);
                self.notify_if(is_finished, Notice::Moved(work.conn, work.moved))
            }
            Work::FlushKeys(flush) => {
                let is_connected = self.store.clients.is_connected(flush.client);
                let is_finished = is_connected && self.continue_key_flush(flush, limit);
                self.notify_if(is_finished, Notice::Flushed(flush.conn, flush.flushed)) || !is_connected
            }
            Work::List(search) => {
                let is_connected = self.store.clients.is_connected(search.client);
                let page =
                    if is_connected { search.advance(limit, &self.store, &mut self.budget) } else { None };
                let is_finished = page.is_some() || !is_connected;
                if is_finished {
                    self.store.unpin(search.tube.slot, &mut self.effects.changes);
                }
                self.effects.notices.extend(page.map(|page| Notice::Listed(search.conn, Box::new(page))));
                is_finished
            }
            Work::Disconnect { client } => self.continue_disconnect(*client, now, limit),
            Work::Search { client } => self.continue_search_for(*client, limit, now),
            Work::FreeHeld { group } => self.continue_free_held(*group, limit, now),
            Work::Answer { awaited } => self.continue_answering(*awaited, limit),
            Work::PurgeTubeOrder => !self.store.tubes.purge(&mut self.budget, limit),
            // These queue the rest of their work themselves.
            &mut Work::Reopen { con } => {
                self.run_reopen(con, limit, now);
                true
            }
            Work::Shut { tube } => {
                self.run_shut(self.store.tubes.slot(*tube), limit, now);
                true
            }
            Work::Assign { tube } => {
                let tube = self.store.tubes.slot(*tube);
                self.store.tubes.set_assigning(tube, false);
                self.assign_jobs(tube, limit, now);
                self.store.unpin(tube, &mut self.effects.changes);
                true
            }
        };
        if !is_finished {
            self.effects.work.push_back(work);
        }
    }

    /// Notifies a client if its command is finished. Returns whether it is.
    fn notify_if(&mut self, is_finished: bool, notice: Notice) -> bool {
        if is_finished {
            self.effects.notices.push_back(notice);
        }
        is_finished
    }

    /// Kicks jobs up to the limit. Returns true if the kick is finished.
    pub(super) fn continue_kick(&mut self, kick: &mut Kick, now: Time, limit: Limit) -> bool {
        while kick.left > 0 {
            if self.budget.is_reached(limit) {
                return false;
            }
            let next = self.store.tubes.get(kick.tube).first_in(kick.from, &self.store.jobs);
            let Some(job) = next else { break };
            self.make_ready(job, Change::Kicked(job), limit, now);
            kick.left -= 1;
            kick.kicked += 1;
        }
        self.store.unpin(kick.tube.slot, &mut self.effects.changes);
        true
    }

    /// Deletes jobs up to the limit. Returns true if the flush is finished.
    pub(super) fn continue_flush(&mut self, flush: &mut Flush, now: Time, limit: Limit) -> bool {
        while let Some(job) = flush.next(&self.store) {
            if self.budget.is_reached(limit) {
                // mutant flush-ends-with-its-first-step: return false => break
                return false;
            }
            self.budget.charge(Cost::STEP);
            self.delete_job(job, now);
            flush.flushed += 1;
        }
        self.store.unpin(flush.tube.slot, &mut self.effects.changes);
        true
    }

    /// Forgets keys up to the limit. Returns true if the flush is finished.
    pub(super) fn continue_key_flush(&mut self, flush: &mut KeyFlush, limit: Limit) -> bool {
        self.idps.continue_flush(flush, limit, &mut self.store, &mut self.effects, &mut self.budget)
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
            let next = self.store.tubes.get(work.from).first_in(work.state, &self.store.jobs);
            let Some(job) = next else { break };
            if let Some(refusal) = self.move_refusal(name, job, now) {
                work.moved.stop = Some((self.store.jobs.get(job).id, refusal));
                break;
            }
            self.change_tube(job, work.to.slot, limit, now);
            work.left -= 1;
            work.moved.count += 1;
        }
        self.store.unpin(work.from.slot, &mut self.effects.changes);
        self.store.unpin(work.to.slot, &mut self.effects.changes);
        true
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

    /// Why the tube of this name cannot take a job of another tube, if it cannot.
    fn move_refusal(&self, name: TubeName<'_>, job: JobKey, now: Time) -> Option<MoveRefusal> {
        let full =
            || self.rules.full_by(name, self.store.body_bytes(job), &self.store).map(MoveRefusal::Full);
        self.name_refusal(name, job, now).or_else(full)
    }

    /// Why the job cannot be in the tube of this name, if it cannot: its name is too long, or the tube has the key of the job.
    pub(super) fn name_refusal(&self, name: TubeName<'_>, job: JobKey, now: Time) -> Option<MoveRefusal> {
        let notes_bytes = self.notes.of(job, &self.store.bodies).room_bytes();
        if !self.store.has_room_in(name, job, notes_bytes) {
            return Some(MoveRefusal::NoRoom);
        }
        if !self.idps.has_room_for(job, name, &self.store) {
            return Some(MoveRefusal::NoKeyRoom);
        }
        (!self.idps.is_free_for(job, name, now, &self.store)).then_some(MoveRefusal::KeyExists)
    }

    /// Returns reserved jobs and removes watches up to the limit. Returns true if that is finished and the client is removed.
    pub(super) fn continue_disconnect(&mut self, client: ClientKey, now: Time, limit: Limit) -> bool {
        let slot = self.store.clients.slot(client);
        // In the order of reservation, as in beanstalkd: waiting clients get the jobs in this order.
        while let Some(job) = self.store.clients[slot].reserved_order.front().map(JobKey) {
            if self.budget.is_reached(limit) {
                return false;
            }
            self.end_lost(job, slot, limit, now);
        }
        // From the front, where the last watch takes the place of the removed one, as in beanstalkd: `list-tubes` shows in
        // which order the tubes are removed.
        while let Some(&Watched { watch, .. }) = self.store.clients[slot].watches.first() {
            if !self.budget.spend(Cost::STEP, limit) {
                return false;
            }
            self.store.unwatch(watch, &mut self.effects.changes);
        }
        let is_recovered = self.recovered.forget(client);
        let client = self.store.clients.remove(client);
        self.store.timers.remove(client.timer);
        if is_recovered {
            return true;
        }
        self.store.tubes[client.used].using -= 1;
        self.store.remove_if_unreferenced(client.used, &mut self.effects.changes);
        true
    }

    /// Ends the reservation of a client that has disconnected.
    fn end_lost(&mut self, job: JobKey, client: ClientSlot, limit: Limit, now: Time) {
        let tube = self.store.jobs.get(job).tube;
        // mutant quit-is-a-loss: self.store.clients[client].has_quit => false
        if self.store.clients[client].has_quit || !self.rules.counts_losses(tube, &self.store) {
            return self.make_ready(job, Change::Returned(job), limit, now);
        }
        self.store.totals.losses += 1;
        self.fail(job, Failure::Loss, Change::Returned(job), limit, now);
    }

    /// Ends the client's wait if it is over, and returns jobs whose reservation has timed out.
    fn handle_client_timer(&mut self, client: ClientSlot, now: Time, limit: Limit) {
        let record = &self.store.clients[client];
        if let Some(wait) = record.wait {
            let conn = record.conn;
            let margin = self.store.first_deadline(client).map(|deadline| deadline.back(SAFETY_MARGIN));
            let end = wait.until.filter(|&until| until <= now);
            let soon = margin.filter(|&margin| margin <= now);
            let notice = match (soon, end) {
                (Some(soon), end) if end.is_none_or(|end| soon <= end) => Some(Notice::DeadlineSoon(conn)),
                (_, Some(_)) if self.is_search_unfinished(client) => {
                    self.store.clients[client].wait = Some(Wait { until: Some(now + SEARCH_PAUSE), ..wait });
                    None
                }
                (_, Some(_)) => Some(Notice::TimedOut(conn)),
                _ => None,
            };
            if let Some(notice) = notice {
                self.budget.charge(ANSWER);
                self.waits.stop(client, &mut self.store);
                self.effects.notices.push_back(notice);
            }
        }
        if self.store.clients[client].job_wait.is_some_and(|wait| self.job_waits.until(wait) <= now) {
            self.job_waits.answer(client, &mut self.store, &mut self.effects, &mut self.budget);
        }
        while let Some(lifecycle) = self.store.clients[client].reserved.min() {
            // mutant reservation-ends-early: now => now + SAFETY_MARGIN
            if self.store.jobs.lifecycles[lifecycle].deadline > now || self.budget.is_reached(limit) {
                break;
            }
            let job = self.store.jobs.lifecycles[lifecycle].job;
            self.store.totals.timeouts += 1;
            let tube = self.store.jobs.get(job).tube;
            self.store.tubes[tube].counts.timeouts += 1;
            self.fail(job, Failure::Timeout, Change::TimedOut(job), limit, now);
        }
        self.arm_client_timer(client);
    }

    /// Ends the tube's pause if it is over, makes jobs ready whose delay is over, and does what the rules of the tube say.
    fn handle_tube_timer(&mut self, key: TubeSlot, now: Time, limit: Limit) {
        let tube = &mut self.store.tubes[key];
        if tube.pause.is_some_and(|pause| pause.until <= now) {
            tube.pause = None;
            self.store.refresh(key);
            self.assign_jobs(key, limit, now);
        }
        let had_rules = self.store.tubes[key].rules().is_some();
        if had_rules && self.rules.end_throttle(key, now, &mut self.store) {
            self.assign_jobs(key, limit, now);
        }
        while let Some(lifecycle) = self.store.tubes[key].delayed.min() {
            let lifecycle = &self.store.jobs.lifecycles[lifecycle];
            let job = lifecycle.job;
            if lifecycle.deadline > now || !self.budget.spend(Cost::STEP, limit) {
                break;
            }
            self.transfer(job, To::Ready, None, None, limit, now);
        }
        if had_rules {
            self.expire(key, limit, now);
        }
        self.rules.arm_tube_timer(key, &mut self.store);
        if had_rules {
            self.store.remove_if_unreferenced(key, &mut self.effects.changes);
        }
    }

    /// Deletes expired jobs up to the limit. A job that was buried so long ago has no change that the caller has yet to read, but it
    /// may be on such a page.
    fn expire(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        while let Some(job) = self.rules.next_expired(tube, now, &self.store) {
            if self.budget.is_reached(limit) || self.has_unread_page() {
                return;
            }
            self.budget.charge(Cost::STEP);
            self.rules.count_expiry(tube, &self.store);
            self.delete_job(job, now);
        }
    }
}
