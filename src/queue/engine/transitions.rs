//! Transitions between the states of a job.
//!
//! A job is in exactly one container, the one of its state; a ready job is also in the ready order. `leave` removes it from
//! its container, and one of the `enter` functions adds it to the next. Nothing else changes the state of a job.
//!
//! [`Engine::transfer`] is the way from one container to another, with all that follows. A put only enters, a delete only leaves, and a reserve
//! has a way of its own.

use std::mem;

use super::Engine;
use crate::bodies::OutOfMemory;
use crate::queue::effects::Change;
use crate::queue::extensions::groups::LastGone;
use crate::queue::extensions::job_waits::{AwaitedKey, Ended, JobEnd};
use crate::queue::extensions::rules::retry::AfterFailure;
use crate::queue::extensions::schedules::{RunRefusal, ScheduleName};
use crate::queue::long_work::{BACKGROUND_STEPS, FollowUp, Work};
use crate::queue::store::containers::ReadyJob;
use crate::queue::store::job::{Failure, Job, JobState, NewJob, URGENT_BELOW};
use crate::time::{Seconds, Time};
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientSlot, GroupSlot, JobId, JobKey, TubeSlot};
use crate::values::schedules::Plan;
use crate::values::tube_name::TubeName;

/// What the body of a run costs, in copies of one that is in a cache: there are two copies, into memory that is in none.
const RUN_COPIES: usize = 3;

/// Where a job goes.
#[derive(Clone, Copy)]
pub(super) enum To {
    Ready,
    /// Ready after a new delay, which may be zero.
    After(Seconds),
    /// Ready at this time. Its delay does not change.
    At(Time),
    Buried,
}

impl Engine {
    /// Stores a job in a tube. Its change and [`after_put`](Self::after_put) must follow.
    #[inline(always)]
    pub(super) fn store_job(&mut self, tube: TubeSlot, new: NewJob, now: Time) -> JobKey {
        let NewJob { delay, tags_key, .. } = new;
        let body_bytes = new.body.len() as u64 - 2;
        let job = self.store.jobs.insert(new, tube, now);
        let ahead = tags_key.and_then(|tags_key| {
            self.idps.claim(job, tags_key, &mut self.store);
            self.cons.join(job, tags_key, &mut self.store);
            self.groups.join(job, tags_key, &mut self.store);
            self.groups.ahead(tags_key, &self.store)
        });
        self.store.totals.total_jobs += 1;
        let record = &mut self.store.tubes[tube];
        record.counts.jobs += 1;
        record.body_bytes += body_bytes;
        match ahead {
            None => self.enter_ready_or_delayed(job, delay, now),
            Some(group) => {
                self.store.begin_delay(job, delay, now);
                self.enter_held(job, group);
            }
        }
        job
    }

    /// Assigns a new job to a client that waits.
    #[inline(always)]
    pub(super) fn after_put(&mut self, job: JobKey, tube: TubeSlot, has_tags: bool, now: Time) {
        if self.has_waiting(tube) {
            self.with_quota(FollowUp::Assignments, |engine, limit| engine.assign_jobs(tube, limit, now));
        }
        if has_tags && let Some(con) = self.store.jobs.con_of(job) {
            // mutant con-raised-limit-opens-no-lane: removed
            self.reopen_raised(con, now);
        }
    }

    /// Puts the job of a schedule, for this time of the system clock. Returns its id.
    ///
    /// # Errors
    /// If the tube cannot take the job.
    ///
    /// # Panics
    /// If there is no such schedule.
    pub fn run_schedule(&mut self, name: &ScheduleName, due: Time, now: Time) -> Result<JobId, RunRefusal> {
        let schedule = self.schedules.get(name).expect("the schedule is there");
        let body = self.store.bodies.bytes(&schedule.body).to_vec();
        let &Plan { pri, delay, ttr, .. } = &schedule.plan;
        let tube = Box::<[u8]>::from(schedule.tube().as_bytes());
        let tube = TubeName::checked_before(&tube);
        self.budget.charge(Cost::BATCH_JOB.plus(Cost::copied(body.len()).times(RUN_COPIES)));
        let body = match self.run_refusal(tube, body.len() as u64 - 2) {
            None => self.store.bodies.store(&body).map_err(|OutOfMemory| RunRefusal::NoMemory),
            Some(refusal) => Err(refusal),
        };
        let body = body.inspect_err(|_| self.refuse_run(name))?;
        let tube = self.find_or_create_tube(tube);
        let ttr = self.rules.ttr_in(tube, ttr, &self.store);
        let id = self.next_id();
        let job = self.store_job(tube, NewJob { id, pri, delay, ttr, body, tags_key: None }, now);
        self.schedules.ran(name, due, id, now);
        // mutant schedule-run-without-its-record: Change::Ran(job, ScheduleName::clone(name)) => Change::Put(job)
        self.effects.changes.push(Change::Ran(job, ScheduleName::clone(name)));
        self.after_put(job, tube, false, now);
        Ok(id)
    }

    /// Counts a run whose job cannot be put.
    pub fn refuse_run(&mut self, name: &ScheduleName) {
        self.schedules.refused(name);
        self.effects.changes.push(Change::LeftOut(ScheduleName::clone(name)));
    }

    /// Why the tube of this name cannot take a job of a schedule, if it cannot.
    fn run_refusal(&mut self, tube: TubeName<'_>, body_bytes: u64) -> Option<RunRefusal> {
        if let Some(full) = self.rules.full_by(tube, body_bytes, &self.store) {
            self.rules.count_refusal_in(tube);
            return Some(RunRefusal::Full(full));
        }
        (!self.store.can_use(tube)).then_some(RunRefusal::NoTube)
    }

    /// Moves a job from its container to another, of another tube if one is given. Clients that wait for the end of a buried job are
    /// answered, the change is recorded, clients that wait get ready jobs, and lanes open that its reservation has kept shut.
    pub(super) fn transfer(
        &mut self,
        job: JobKey,
        to: To,
        tube: Option<TubeSlot>,
        change: Option<Change>,
        limit: Limit,
        now: Time,
    ) {
        // mutant con-stays-full-at-a-burial: self.store.jobs.con_of(job) => self.store.jobs.con_of(job).filter(|_| !matches!(to, To::Buried))
        // mutant con-stays-full-at-a-timeout: self.store.jobs.con_of(job) =>
        //     self.store.jobs.con_of(job).filter(|_| !matches!(change, Some(Change::TimedOut(_))))
        let con =
            self.store.jobs.con_of(job).filter(|_| self.store.jobs.get(job).state == JobState::Reserved);
        self.leave(job, now);
        if let Some(tube) = tube {
            self.set_tube(job, tube, now);
        }
        match to {
            To::Ready => self.enter_ready(job, now),
            To::After(delay) => self.enter_ready_or_delayed(job, delay, now),
            To::At(until) => self.enter_delayed(job, until),
            // mutant move-keeps-the-number-of-the-burial: self.enter_buried(job, now) =>
            //     let burial = self.store.jobs.lifecycle_mut(job).burial();
            //     self.enter_buried(job, now);
            //     if tube.is_some() { self.store.jobs.lifecycle_mut(job).set_burial(burial) }
            To::Buried => self.enter_buried(job, now),
        }
        if let Some(change) = change {
            // mutant waiter-lost-on-hang-up: adds if let Change::Returned(_) = change { return self.effects.changes.push(change); }
            self.effects.changes.push(change);
        }
        // mutant move-serves-no-client: adds if tube.is_some() { return self.reopen(con, limit, now); }
        self.assign_jobs(self.store.jobs.get(job).tube, limit, now);
        self.reopen(con, limit, now);
    }

    pub(super) fn leave(&mut self, job: JobKey, now: Time) {
        let record = self.store.jobs.get(job);
        let (state, tags_key) = (record.state, record.tags_key());
        if state == JobState::Ready {
            self.leave_ready(job);
            return;
        }
        self.store.take_out(job, now);
        match (state, tags_key) {
            (JobState::Held, _) => self.groups.stop_waiting(job, &mut self.store),
            (JobState::Reserved, Some(tags_key)) => {
                self.cons.count_end_of_reservation(tags_key, &self.store.jobs)
            }
            _ => {}
        }
    }

    /// Removes a ready job from its containers. Returns the time at which it became ready.
    pub(super) fn leave_ready(&mut self, job: JobKey) -> Time {
        let ready = ReadyJob::of(job, self.store.jobs.get(job));
        self.cons.remove_ready(ready, &mut self.store);
        self.store.take_out_ready(ready)
    }

    #[inline(always)]
    pub(super) fn enter(&mut self, job: JobKey, state: JobState) -> &Job {
        self.store.totals.jobs[state as usize] += 1;
        let record = &mut self.store.jobs.slab[job.0];
        let before = mem::replace(&mut record.state, state);
        if let Some(tags_key) = record.tags_key() {
            self.groups.count_member(&self.store.jobs.tags[tags_key.0], before, state);
        }
        record
    }

    pub(super) fn enter_ready(&mut self, job: JobKey, now: Time) {
        let ready = ReadyJob::of(job, self.enter(job, JobState::Ready));
        self.cons.insert_ready(ready, &mut self.store);
        self.store.put_in_ready(ready, now);
    }

    #[inline]
    pub(super) fn enter_ready_or_delayed(&mut self, job: JobKey, delay: Seconds, now: Time) {
        if delay == Seconds::ZERO {
            if let Some(lifecycle) = self.store.jobs.existing_lifecycle_mut(job) {
                lifecycle.set_delay(Seconds::ZERO);
            }
            return self.enter_ready(job, now);
        }
        self.store.jobs.lifecycle_mut(job).set_delay(delay);
        self.enter_delayed(job, now + delay.span());
    }

    pub(super) fn enter_delayed(&mut self, job: JobKey, until: Time) {
        self.enter(job, JobState::Delayed);
        self.store.put_in_delayed(job, until);
    }

    pub(super) fn enter_held(&mut self, job: JobKey, group: GroupSlot) {
        self.enter(job, JobState::Held);
        self.store.put_in_held(job);
        self.groups.wait(job, group, &mut self.store);
    }

    pub(super) fn enter_buried(&mut self, job: JobKey, now: Time) {
        self.enter(job, JobState::Buried);
        self.store.put_in_buried(job, now);
        let tube = self.store.jobs.get(job).tube;
        if self.store.tubes[tube].rules().is_some() {
            self.rules.arm_tube_timer(tube, &mut self.store);
        }
        // mutant wait-job-not-told-of-a-burial: removed
        self.end_job_waits(job, JobEnd::Buried);
    }

    /// Gives the job to the client. The job must have left its container. `ready_since` is set if it was ready.
    pub(super) fn enter_reserved(
        &mut self,
        job: JobKey,
        client: ClientSlot,
        ready_since: Option<Time>,
        now: Time,
    ) {
        let tags_key = self.enter(job, JobState::Reserved).tags_key();
        self.store.put_in_reserved(job, client, ready_since, now);
        self.effects.changes.push_reservation(job);
        if let Some(tags_key) = tags_key {
            self.cons.count_reserved(tags_key, &self.store.jobs);
        }
    }

    /// Changes the tube of a job that is in no container. Its idempotency key moves with it, and must be free there.
    pub(super) fn set_tube(&mut self, job: JobKey, to: TubeSlot, now: Time) {
        // It has the time at which the job became ready in this tube.
        self.store.jobs.lifecycle_mut(job);
        // mutant rule-dead-letter-counts-in-its-old-tube: self.store.body_bytes(job) => 0
        let (from, bytes) = (self.store.jobs.get(job).tube, self.store.body_bytes(job));
        self.store.tubes[from].body_bytes -= bytes;
        self.store.tubes[to].body_bytes += bytes;
        // mutant idp-key-stays-in-the-old-tube: self.idps.set_tube(job, to, now, &mut self.store, &mut self.effects) =>
        //     self.store.jobs.get_mut(job).tube = to
        self.idps.set_tube(job, to, now, &mut self.store, &mut self.effects);
    }

    /// Deletes a job in any state. The caller removes its tube if nothing names it any more.
    #[inline(always)]
    pub(super) fn delete_job(&mut self, job: JobKey, now: Time) {
        let record = self.store.jobs.get(job);
        let (id, tube, tags_key) = (record.id, record.tube, record.tags_key());
        let con = tags_key.and_then(|_| self.store.jobs.con_of(job));
        self.leave(job, now);
        let (kept, done) = match tags_key {
            None => (None, None),
            Some(tags_key) => {
                self.budget.charge(Cost::TAGS_GONE);
                self.cons.leave(tags_key, &mut self.store.jobs);
                (
                    self.idps.give_up(job, tags_key, now, &mut self.store),
                    self.groups.leave(job, tags_key, &mut self.store),
                )
            }
        };
        self.end_job_waits(job, JobEnd::Deleted);
        self.notes.forget(job, &mut self.store);
        let body_bytes = self.store.body_bytes(job);
        self.store.jobs.remove(job, &mut self.store.bodies);
        let record = &mut self.store.tubes[tube];
        record.counts.deletes += 1;
        // mutant rule-max-bytes-counts-deleted-bodies: removed
        record.body_bytes -= body_bytes;
        self.store.totals.deletes += 1;
        self.effects.changes.push(match kept {
            None => Change::Deleted(job, id),
            Some(key) => Change::DeletedKeepingKey(job, key),
        });
        // A job that was ready before is handed out before one that only becomes ready.
        self.reopen(con, self.budget.within(BACKGROUND_STEPS), now);
        if let Some(group) = done {
            self.end_group(group, now);
        }
    }

    /// Buries a reserved job, and counts that.
    pub(super) fn bury_reserved(&mut self, job: JobKey, limit: Limit, now: Time) {
        self.store.tubes[self.store.jobs.get(job).tube].counts.buries += 1;
        self.store.totals.buries += 1;
        self.store.jobs.lifecycle_mut(job).counts.add_burial();
        self.transfer(job, To::Buried, None, Some(Change::Buried(job)), limit, now);
    }

    /// Ends a reservation that has failed. The job is ready again or delayed, or has had its last attempt.
    pub(super) fn fail(&mut self, job: JobKey, failure: Failure, change: Change, limit: Limit, now: Time) {
        self.store.jobs.lifecycle_mut(job).counts.add_failure(failure);
        match self.rules.after_failure(job, now, &self.store) {
            AfterFailure::Ready => self.make_ready(job, change, limit, now),
            AfterFailure::Delayed(delay) => self.retry_after(job, delay, change, limit, now),
            AfterFailure::Final => self.retire(job, limit, now),
        }
    }

    /// Delays a job whose reservation has failed, by a rule.
    #[cold]
    pub(super) fn retry_after(
        &mut self,
        job: JobKey,
        delay: Seconds,
        change: Change,
        limit: Limit,
        now: Time,
    ) {
        self.budget.charge(Cost::STEP);
        self.rules.count_retry(self.store.jobs.get(job).tube, &self.store);
        self.transfer(job, To::After(delay), None, Some(change), limit, now);
    }

    /// Moves a reserved job that has had all attempts to the tube of dead letters, or buries it where it is.
    #[cold]
    pub(super) fn retire(&mut self, job: JobKey, limit: Limit, now: Time) {
        self.budget.charge(Cost::STEP);
        let from = self.store.jobs.get(job).tube;
        let dead_letter: Option<Box<[u8]>> =
            self.rules.begin_retirement(from, &self.store).map(|name| name.as_bytes().into());
        match dead_letter.and_then(|name| self.dead_letter_tube(job, &name, now)) {
            None => self.bury_reserved(job, limit, now),
            to => self.transfer(job, To::Ready, to, Some(Change::Moved(job)), limit, now),
        }
        self.store.remove_if_unreferenced(from, &mut self.effects.changes);
    }

    /// The tube of dead letters of this name, which is created if it does not exist. `None` if it cannot get the job.
    fn dead_letter_tube(&mut self, job: JobKey, name: &[u8], now: Time) -> Option<TubeSlot> {
        let name = TubeName::new(name).expect("the name was checked");
        let may_get = self.name_refusal(name, job, now).is_none() && self.store.can_use(name);
        may_get.then(|| self.find_or_create_tube(name))
    }

    /// Makes a job ready that is in another state.
    pub(super) fn make_ready(&mut self, job: JobKey, change: Change, limit: Limit, now: Time) {
        self.budget.charge(Cost::STEP);
        if let Change::Kicked(_) = change {
            self.store.jobs.lifecycle_mut(job).counts.add_kick();
            self.store.totals.kicks += 1;
        }
        self.transfer(job, To::Ready, None, Some(change), limit, now);
    }

    /// Changes the priority of a job in any state.
    pub(super) fn set_priority(&mut self, job: JobKey, pri: u32) {
        let record = self.store.jobs.get(job);
        if record.state != JobState::Ready {
            self.store.jobs.get_mut(job).pri = pri;
            return;
        }
        let before = ReadyJob::of(job, record);
        self.cons.remove_ready(before, &mut self.store);
        self.store.jobs.get_mut(job).pri = pri;
        self.cons.insert_ready(ReadyJob { pri, ..before }, &mut self.store);
        let tube = &mut self.store.tubes[before.tube];
        for urgent in [&mut tube.urgent, &mut self.store.totals.urgent] {
            *urgent = *urgent + u32::from(pri < URGENT_BELOW) - u32::from(before.pri < URGENT_BELOW);
        }
        // The lane of a full key may have been shut.
        self.store.refresh(before.tube);
    }

    /// Releases the jobs that a group has held. It has no members any more.
    #[cold]
    pub(super) fn end_group(&mut self, gone: LastGone, now: Time) {
        let group = self.groups.end(gone, &self.store, &mut self.effects);
        self.with_quota(FollowUp::Releases, |engine, limit| {
            if !engine.continue_free_held(group, limit, now) {
                engine.effects.work.push_back(Work::FreeHeld { group });
            }
        });
    }

    /// Releases held jobs of a group that is done, up to the limit. Returns true if there are no more, and the group is removed.
    pub(super) fn continue_free_held(&mut self, group: GroupSlot, limit: Limit, now: Time) -> bool {
        while let Some(job) = self.groups.next_released(group) {
            if self.budget.is_reached(limit) {
                return false;
            }
            self.release_held(job, limit, now);
        }
        self.groups.remove(group, &mut self.store);
        true
    }

    /// Makes a held job ready, or delayed if its delay is not over.
    fn release_held(&mut self, job: JobKey, limit: Limit, now: Time) {
        self.budget.charge(Cost::STEP);
        let until = self.store.jobs.lifecycle_mut(job).deadline;
        // mutant grp-released-before-its-delay: until > now => false
        let to = if until > now { To::At(until) } else { To::Ready };
        self.transfer(job, to, None, None, limit, now);
    }

    /// Ends the waits for a job that is deleted or buried.
    #[inline]
    pub(super) fn end_job_waits(&mut self, job: JobKey, end: JobEnd) {
        if self.job_waits.len() > 0 {
            self.answer_waits_for(job, end);
        }
    }

    #[cold]
    fn answer_waits_for(&mut self, job: JobKey, end: JobEnd) {
        let Some(Ended { awaited, is_short }) = self.job_waits.end(job, end) else { return };
        self.with_quota(FollowUp::Answers, |engine, limit| {
            if !is_short || !engine.continue_answering(awaited, limit) {
                engine.effects.work.push_back(Work::Answer { awaited });
            }
        });
    }

    /// Answers clients that wait for a job that has ended, up to the limit. Returns true if all of them are answered.
    pub(super) fn continue_answering(&mut self, awaited: AwaitedKey, limit: Limit) -> bool {
        self.job_waits.continue_answering(
            awaited,
            limit,
            &mut self.store,
            &mut self.effects,
            &mut self.budget,
        )
    }

    /// Gives the client the recovered reservation of the job with this id, if it has one.
    #[cold]
    pub(super) fn take_over(&mut self, client: ClientSlot, id: JobId) -> Option<JobKey> {
        let job = self.store.jobs.find(id).filter(|&job| self.is_recovered(job))?;
        self.recovered.hand_over(job, client, &mut self.store);
        Some(job)
    }

    /// The job with this id, if the client has reserved it, or takes over its reservation.
    #[inline]
    pub(super) fn reservation(&mut self, client: ClientSlot, id: JobId) -> Option<JobKey> {
        self.store.reserved_by(client, id).or_else(|| self.take_over(client, id))
    }
}
