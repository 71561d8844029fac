//! The commands of the queue as typed calls. The engine is a facade: each command says which parts it touches, in which order.

mod check;
mod long_work;
mod matching;
mod queries;
mod restored;
mod transitions;

use std::num::NonZeroU32;

pub use self::queries::{JobStats, TubeStats};
use self::transitions::To;
use crate::bodies::{Bodies, Slot};
use crate::queue::effects::{Change, Effects, Notice};
use crate::queue::extensions::concurrency::ConKeys;
use crate::queue::extensions::groups::Groups;
use crate::queue::extensions::idempotency::{First, IdpKeys, Repeated};
use crate::queue::extensions::job_waits::JobWaits;
use crate::queue::extensions::notes::JobNotes;
use crate::queue::extensions::rules::retry::AfterFailure;
use crate::queue::extensions::rules::{RuleSet, Rules};
use crate::queue::extensions::schedules::Schedules;
use crate::queue::logged::Recovered;
use crate::queue::long_work::{BACKGROUND_STEPS, FollowUp, LogRoom, QUOTAS, Work};
use crate::queue::reserving::draw::Rng;
use crate::queue::reserving::waits::Waits;
use crate::queue::store::job::{Failure, Job, JobState, NewJob};
use crate::queue::store::tube::Pause;
use crate::queue::store::tube_order::TubeList;
use crate::queue::store::{Store, TubeLimits};
use crate::time::{Seconds, Span, Time};
use crate::values::budget::{Budget, Cost, Limit, Quota};
use crate::values::ids::{ClientKey, ConnId, JobId, JobKey, TagsKey, TubeSlot};
use crate::values::limits::{KEYS_SHARE, MEMORY_BYTES_MIN};
use crate::values::reserve_mode::ReserveMode;
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::Rule;

/// The queue.
///
/// A command returns its answer, or that a [`Notice`] will follow. After each call the caller must drain
/// [`next_notice`](Self::next_notice), the notices for connections, and [`take_changes`](Self::take_changes), what the job log
/// must record. The order of the two does not matter.
///
/// [`step`](Self::step) does a bounded piece of what is due and of unfinished work. The caller must call it at
/// [`next_deadline`](Self::next_deadline) at the latest.
pub struct Engine {
    store: Store,
    effects: Effects,
    /// All work of the server is counted here.
    budget: Budget,
    /// What commands may set off before the next [`Engine::step`].
    quotas: [Quota; FollowUp::COUNT],
    waits: Waits,
    rng: Rng,
    groups: Groups,
    cons: ConKeys,
    rules: Rules,
    idps: IdpKeys,
    job_waits: JobWaits,
    notes: JobNotes,
    schedules: Schedules,
    recovered: Recovered,
}

/// The answer to a `reserve`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// The client has reserved this job.
    Job(JobKey),
    /// The client has reserved this job, after a weighted draw.
    Drawn(JobKey),
    /// There is no job, and a reserved job times out within the safety margin.
    DeadlineSoon,
    /// There is no job, and the timeout is zero.
    TimedOut,
    /// The client waits. A [`Notice`] will follow.
    Waiting,
}

/// The answer to a `release`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// The job is ready or delayed, in its tube or in the tube of dead letters.
    Done,
    /// The job has had all attempts, and is buried.
    Buried,
    /// The client has not reserved the job.
    NotFound,
}

/// Why a `job-note` has done nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoteRefusal {
    /// The client has not reserved the job.
    NotFound,
    /// A record of the job log has no room for the note beside the job.
    TooLong,
}

/// The answer to an `ignore`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignored {
    /// The client watches this many tubes now.
    Watching(usize),
    /// The client watches only this tube, and still does.
    Last,
}

impl Engine {
    /// An empty queue. `seed` keeps clients from choosing names, ids and watches whose hashes collide, and decides by chance
    /// for clients with such a [`ReserveMode`]. It has no other effect.
    pub fn new(seed: u64) -> Self {
        let mut store = Store::new(seed);
        let idps = IdpKeys::new(seed, &mut store.timers);
        let schedules = Schedules::new(&mut store.timers);
        Self {
            store,
            effects: Effects::default(),
            budget: Budget::default(),
            quotas: QUOTAS,
            waits: Waits::default(),
            rng: Rng::new(seed),
            groups: Groups::new(seed),
            cons: ConKeys::new(seed),
            rules: Rules::new(seed),
            idps,
            job_waits: JobWaits::new(seed),
            notes: JobNotes::new(seed),
            schedules,
            recovered: Recovered::default(),
        }
    }

    /// Turns on or off the recording of changes for [`take_changes`](Self::take_changes). It is off at first.
    pub fn record_changes(&mut self, on: bool) {
        self.effects.changes.record(on);
    }

    /// Turns on or off that reservations are changes, and that [`persisted_state`](Self::persisted_state) has them. It is off at
    /// first. Recovery restores those that it finds in any case:
    /// see [`settle_reservations`](Self::settle_reservations).
    pub fn keep_reservations(&mut self, on: bool) {
        self.effects.changes.keep_reservations(on);
    }

    /// Whether reservations are changes.
    pub const fn keeps_reservations(&self) -> bool {
        self.effects.changes.keeps_reservations()
    }

    /// Sets the limits of tubes and watches. A new queue has none.
    pub fn set_tube_limits(&mut self, limits: TubeLimits) {
        self.store.limits = limits;
    }

    /// Sets the room of the job log. A new queue has no limits.
    pub const fn set_log_room(&mut self, room: LogRoom) {
        self.store.log_room = room;
    }

    /// Sets the memory limit of the process, of which keys get a share. A new queue has no limit. Kept keys beyond the share
    /// are dropped by [`settle_restored`](Self::settle_restored) alone, so recovery comes after this.
    pub fn set_key_share(&mut self, memory_bytes_max: Option<u64>) {
        let share = |max: u64| (max.max(MEMORY_BYTES_MIN) / KEYS_SHARE) as usize;
        self.set_key_bytes_max(memory_bytes_max.map_or(usize::MAX, share));
    }

    /// Sets the size of the share itself.
    pub const fn set_key_bytes_max(&mut self, bytes_max: usize) {
        self.idps.set_bytes_max(bytes_max);
    }

    // Clients.

    /// Adds a client, which uses and watches `default`.
    pub fn connect(&mut self, conn: ConnId) -> ClientKey {
        let client = self.store.clients.add(conn, self.store.default_tube, &mut self.store.timers);
        self.store.tubes[self.store.default_tube].using += 1;
        self.waits.watch(client.slot, self.store.default_tube, &mut self.store);
        client
    }

    /// Notes that a client leaves in order: the jobs that it holds have not failed. [`disconnect`](Self::disconnect) must follow.
    pub fn quit(&mut self, client: ClientKey) {
        self.store.clients.get_mut(client).has_quit = true;
    }

    /// Removes a client. The jobs that it holds have failed, unless it has [quit](Self::quit) or `lost-counts` says no. Large work is left to background work, as is the rest once
    /// the disconnects since the last [`step`](Self::step) have used up their steps. The key becomes invalid.
    pub fn disconnect(&mut self, client: ClientKey, now: Time) {
        self.end_wait(client);
        let record = self.store.clients.get_mut(client);
        record.is_disconnecting = true;
        self.store.totals.producers -= u32::from(record.is_producer);
        // mutant count-not-taken-back: record.is_worker => record.is_worker && !record.is_producer
        self.store.totals.workers -= u32::from(record.is_worker);
        self.with_quota(FollowUp::Disconnects, |engine, limit| {
            if !engine.continue_disconnect(client, now, limit) {
                engine.effects.work.push_back(Work::Disconnect { client });
            }
        });
    }

    /// Counts the client as a producer from now on.
    #[inline(always)]
    pub fn mark_producer(&mut self, client: ClientKey) {
        let record = self.store.clients.get_mut(client);
        self.store.totals.producers += u32::from(!record.is_producer);
        record.is_producer = true;
    }

    /// Sets how the client's reserves choose among tubes.
    pub fn set_reserve_mode(&mut self, client: ClientKey, mode: ReserveMode) {
        self.store.clients.get_mut(client).mode = mode;
        self.store.tubes.heads.has_averages |= mode == ReserveMode::WeightedFair;
    }

    /// Sets the weight of a tube that the client watches.
    ///
    /// # Panics
    /// If the client does not watch the tube.
    pub fn set_weight(&mut self, client: ClientKey, name: TubeName<'_>, weight: NonZeroU32) {
        let client = self.store.clients.slot(client);
        let tube = self.store.tubes.find_slot(name);
        let watch = tube.and_then(|tube| self.store.clients.find_watch(client, tube));
        let position = self.store.clients.position(watch.expect("the client watches the tube"));
        self.store.clients.slab[client.0].watches[position].weight = weight;
    }

    // Tubes.

    /// Sets the tube that the client puts to. Creates the tube if it does not exist.
    pub fn use_tube(&mut self, client: ClientKey, name: TubeName<'_>) {
        let tube = self.find_or_create_tube(name);
        let previous = std::mem::replace(&mut self.store.clients.get_mut(client).used, tube);
        self.store.tubes[tube].using += 1;
        self.store.tubes[previous].using -= 1;
        self.store.remove_if_unreferenced(previous, &mut self.effects.changes);
    }

    /// Adds a watch. Creates the tube if it does not exist. Returns the number of watched tubes.
    pub fn watch(&mut self, client: ClientKey, name: TubeName<'_>) -> usize {
        let client = self.store.clients.slot(client);
        let tube = self.find_or_create_tube(name);
        if !self.store.clients.is_watching(client, tube) {
            self.waits.watch(client, tube, &mut self.store);
        }
        self.store.clients[client].watch_count()
    }

    /// Removes a watch, unless it is the last one.
    pub fn ignore(&mut self, client: ClientKey, name: TubeName<'_>) -> Ignored {
        let client = self.store.clients.slot(client);
        let watch =
            self.store.tubes.find_slot(name).and_then(|tube| self.store.clients.find_watch(client, tube));
        let count = self.store.clients[client].watch_count();
        match watch {
            None => Ignored::Watching(count),
            Some(_) if count == 1 => Ignored::Last,
            Some(watch) => {
                self.store.unwatch(watch, &mut self.effects.changes);
                Ignored::Watching(count - 1)
            }
        }
    }

    /// Looks at up to `count` watches before the place `end`, from the last to the first, and removes those of tubes that are not to
    /// be kept. The client may then watch no tube. Returns the place where to go on, 0 if it has looked at all.
    ///
    /// # Panics
    /// If the client waits for a job.
    pub fn keep_watches(
        &mut self,
        client: ClientKey,
        end: usize,
        count: usize,
        keep: impl Fn(TubeName<'_>) -> bool,
    ) -> usize {
        let client = self.store.clients.slot(client);
        let begin = end.saturating_sub(count);
        // The last watch takes the place of one that is removed, and is to be kept.
        // Bounded by WATCHES_PER_TURN: `count` is no larger.
        for place in (begin..end).rev() {
            let watched = self.store.clients[client].watches[place];
            if !keep(self.store.tubes[watched.tube].name()) {
                self.store.unwatch(watched.watch, &mut self.effects.changes);
            }
        }
        begin
    }

    /// Pauses a tube: no job is reserved from it until the pause ends. A length of zero ends a pause. Returns false if there
    /// is no such tube.
    pub fn pause(&mut self, name: TubeName<'_>, length: Span, now: Time) -> bool {
        let Some(key) = self.store.tubes.find(name) else { return false };
        let until = now + length;
        let slot = key.slot;
        let tube = &mut self.store.tubes[slot];
        tube.counts.pauses += 1;
        tube.pause = (length > Span::ZERO).then_some(Pause { until, length });
        self.store.timers.arm(tube.timer, until);
        self.store.refresh(slot);
        self.effects.changes.push(Change::Paused { tube: key, until });
        self.assign_jobs(slot, self.budget.within(BACKGROUND_STEPS), now);
        true
    }

    /// Sets a rule of a tube, which need not exist, or removes it.
    pub fn set_rule(&mut self, name: TubeName<'_>, rule: Rule<'_>, now: Time) {
        self.restore_rule(name, rule, now);
        self.effects.changes.push(Change::RuleSet(name.as_bytes().into(), rule.key()));
    }

    /// Does the same without a change for the job log.
    pub fn restore_rule(&mut self, name: TubeName<'_>, rule: Rule<'_>, now: Time) {
        let Some(RuleSet { tube, is_released }) = self.rules.set(name, rule, &mut self.store) else { return };
        if is_released {
            self.assign_jobs(tube, self.budget.within(BACKGROUND_STEPS), now);
        }
        self.store.remove_if_unreferenced(tube, &mut self.effects.changes);
    }

    /// Registers a list that is read across commands, while tubes are added and removed. During a list of its watches, a client
    /// must send no command.
    pub fn register_list(&mut self, list: &TubeList) {
        list.register(&mut self.store.tubes);
    }

    /// Ends a list, read to its end or not.
    pub fn end_list(&mut self, list: &TubeList) {
        if list.end(&mut self.store.tubes) {
            self.effects.work.purge_later();
        }
    }

    // Jobs.

    /// Takes the next job id. A `put` takes it with its command line, so that ids are in the order of commands and not in
    /// that of complete bodies.
    pub fn next_id(&mut self) -> JobId {
        self.next_ids(1)
    }

    /// Takes `count` consecutive ids. Returns the first.
    pub fn next_ids(&mut self, count: u32) -> JobId {
        let first = self.store.next_id;
        self.store.next_id += u64::from(count);
        JobId(first)
    }

    /// Stores the tags of a job whose body is still to come, if it has any. [`put`](Self::put) takes them.
    #[inline]
    pub fn store_tags(&mut self, tags: Tags<'_>) -> Option<TagsKey> {
        (!tags.is_empty()).then(|| {
            self.budget.charge(Cost::TAGS);
            self.store.store_tags(tags)
        })
    }

    /// Frees tags of a job that will not be put.
    #[inline]
    pub fn free_tags(&mut self, tags_key: Option<TagsKey>) {
        self.store.free_tags(tags_key);
    }

    /// Stores a job in the tube that the client uses.
    #[inline(always)]
    pub fn put(&mut self, client: ClientKey, new: NewJob, now: Time) -> JobKey {
        let (tube, has_tags) = (self.store.clients.get(client).used, new.tags_key.is_some());
        let job = self.store_job(tube, new, now);
        self.effects.changes.push(Change::Put(job));
        self.after_put(job, tube, has_tags, now);
        job
    }

    /// Returns the first job of the announced job's key in the tube that the client uses, and raises its priority to `pri` if
    /// that is more urgent. Returns `None` if the announced job is the first.
    pub fn repeat(&mut self, client: ClientKey, tags_key: TagsKey, pri: u32, now: Time) -> Option<Repeated> {
        let tube = self.store.clients.get(client).used;
        let first = self.idps.first(tube, tags_key, now, &mut self.store, &mut self.effects)?;
        self.store.totals.repeats += 1;
        let job = match first {
            First::Deleted(id) => return Some(Repeated { id, state: None, pri: None }),
            First::Job(job) => job,
        };
        let record = self.store.jobs.get(job);
        let (id, state, is_raised) = (record.id, record.state, pri < record.pri);
        if is_raised {
            self.set_priority(job, pri);
            self.effects.changes.push(Change::Reprioritized(job));
        }
        Some(Repeated { id, state: Some(state), pri: is_raised.then_some(pri) })
    }

    /// Reserves the job with this id, even beyond the limit of its concurrency key.
    pub fn take_job(&mut self, client: ClientKey, id: JobId, now: Time) -> Option<JobKey> {
        let client = self.store.clients.slot(client);
        let is_takeable = |state| !matches!(state, JobState::Reserved | JobState::Held);
        let job = self.store.jobs.find(id).filter(|&job| is_takeable(self.store.jobs.get(job).state))?;
        self.store.mark_worker(client);
        if self.store.jobs.get(job).state == JobState::Ready {
            self.reserve_ready(job, client, now);
        } else {
            self.leave(job, now);
            self.enter_reserved(job, client, None, now);
            if !self.effects.changes.keeps_reservations() {
                self.effects.changes.push(Change::TakenOut(job));
            }
        }
        Some(job)
    }

    /// Deletes each of these jobs that no other client has reserved. Returns how many were deleted, and how many were not.
    pub fn delete_batch(
        &mut self,
        client: ClientKey,
        ids: impl Iterator<Item = JobId>,
        now: Time,
    ) -> (u32, u32) {
        let (mut deleted, mut not_found) = (0, 0);
        // Bounded by LINE_BYTES_LONG_MAX: the ids of one line, some 500.
        for id in ids {
            self.budget.charge(Cost::STEP);
            if self.delete(client, id, now) {
                deleted += 1;
            } else {
                not_found += 1;
            }
        }
        (deleted, not_found)
    }

    /// Deletes a job that no other client has reserved, except before the start. Returns false if there is no such job.
    #[inline(always)]
    pub fn delete(&mut self, client: ClientKey, id: JobId, now: Time) -> bool {
        let client = self.store.clients.slot(client);
        let Some(job) = self.store.jobs.find(id) else { return false };
        let record = self.store.jobs.get(job);
        let tube = record.tube;
        if record.state == JobState::Reserved
            && self.store.jobs.holder(record) != Some(client)
            && !self.is_recovered(job)
        {
            return false;
        }
        self.delete_job(job, now);
        self.store.remove_if_unreferenced(tube, &mut self.effects.changes);
        true
    }

    /// Makes a reserved job ready or delayed, with a new priority. Without a delay, rules of the tube may set one. A job that has had
    /// all attempts is retired instead.
    pub fn release(&mut self, client: ClientKey, id: JobId, pri: u32, delay: Seconds, now: Time) -> Released {
        let client = self.store.clients.slot(client);
        let Some(job) = self.reservation(client, id) else { return Released::NotFound };
        // mutant order-after-release: self.store.jobs.get_mut(job).pri = pri =>
        //     let job = self.store.jobs.get_mut(job); job.pri = job.pri.min(pri)
        self.store.jobs.get_mut(job).pri = pri;
        self.store.jobs.lifecycle_mut(job).counts.add_failure(Failure::Release);
        self.store.totals.releases += 1;
        let limit = self.budget.within(BACKGROUND_STEPS);
        let change = Change::Released(job);
        match self.rules.after_failure(job, now, &self.store) {
            AfterFailure::Final => {
                self.retire(job, limit, now);
                let is_buried = self.store.jobs.get(job).state == JobState::Buried;
                return if is_buried { Released::Buried } else { Released::Done };
            }
            AfterFailure::Delayed(retry) if delay == Seconds::ZERO => {
                self.retry_after(job, retry, change, limit, now);
            }
            // mutant retry-delay-over-that-of-the-worker: To::After(delay) =>
            //     To::After(if let AfterFailure::Delayed(retry) = self.rules.after_failure(job, now, &self.store) { retry } else { delay })
            _ => self.transfer(job, To::After(delay), None, Some(change), limit, now),
        }
        Released::Done
    }

    /// Buries a reserved job, with a new priority. Returns false if the client has not reserved it.
    pub fn bury(&mut self, client: ClientKey, id: JobId, pri: u32, now: Time) -> bool {
        let client = self.store.clients.slot(client);
        let Some(job) = self.reservation(client, id) else { return false };
        self.store.jobs.get_mut(job).pri = pri;
        self.bury_reserved(job, self.budget.within(BACKGROUND_STEPS), now);
        true
    }

    /// Restarts the time to run of a reserved job. Returns false if the client has not reserved it.
    pub fn touch(&mut self, client: ClientKey, id: JobId, now: Time) -> bool {
        let client = self.store.clients.slot(client);
        // mutant touch-of-another: self.reservation(client, id) => self.store.jobs.find(id).filter(|&job| self.holder(job).is_some())
        let Some(job) = self.reservation(client, id) else { return false };
        let ttr = self.store.jobs.get(job).ttr;
        let lifecycle = self.store.jobs.lifecycle_key(job);
        let reserved = &mut self.store.clients[client].reserved;
        reserved.remove(&mut self.store.jobs.lifecycles, lifecycle);
        let record = &mut self.store.jobs.lifecycles[lifecycle];
        record.deadline = now + record.ttr(ttr);
        reserved.insert(&mut self.store.jobs.lifecycles, lifecycle);
        self.arm_client_timer(client);
        // mutant reservation-without-its-touch: removed
        self.effects.changes.push_reservation(job);
        true
    }

    /// Keeps a note of a reserved job, given with its CR LF.
    ///
    /// # Errors
    /// If it cannot be kept. The text is the caller's again.
    pub fn note(
        &mut self,
        client: ClientKey,
        id: JobId,
        text: Slot,
        now: Time,
    ) -> Result<(), (NoteRefusal, Slot)> {
        self.budget.charge(Cost::STEP);
        let client = self.store.clients.slot(client);
        let refusal = match self.reservation(client, id) {
            Some(job) if self.has_room_for_note(job, text.len()) => {
                self.notes.add(job, now, text, &mut self.store);
                self.effects.changes.push(Change::Noted(job));
                return Ok(());
            }
            Some(_) => NoteRefusal::TooLong,
            None => NoteRefusal::NotFound,
        };
        Err((refusal, text))
    }

    /// Makes one buried, delayed or held job ready. Returns false if there is none with this id.
    pub fn kick_job(&mut self, id: JobId, now: Time) -> bool {
        let Some(job) = self.store.jobs.find(id) else { return false };
        let is_kickable = !matches!(self.store.jobs.get(job).state, JobState::Ready | JobState::Reserved);
        if is_kickable {
            self.make_ready(job, Change::Kicked(job), self.budget.within(BACKGROUND_STEPS), now);
        }
        is_kickable
    }

    // Outputs.

    /// The number of notices that have not been taken.
    #[inline]
    pub fn notices(&self) -> usize {
        self.effects.notices.len()
    }

    /// Takes the next notice.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.effects.notices.pop_front()
    }

    /// Appends the changes since the last call.
    #[inline]
    pub fn take_changes(&mut self, changes: &mut Vec<Change>) {
        self.effects.changes.take_into(changes);
    }

    /// The counter of all work, with that of the server: tubes and clients checked, jobs moved, watches removed.
    #[inline(always)]
    pub const fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// Whether the turn of a connection with this limit is over. The answers that its commands have set off count: each is sent to
    /// another client.
    #[inline(always)]
    pub fn is_turn_over(&self, limit: Limit) -> bool {
        self.budget.is_reached_with(Cost::SEND, self.effects.notices.len(), limit)
    }

    /// The time of the next [`step`](Self::step) if nothing else happens. It is in the past while work is unfinished.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.effects.work.is_empty() { self.store.timers.next() } else { Some(Time::ZERO) }
    }

    /// The bodies, to allocate, read or free one.
    pub fn bodies_mut(&mut self) -> &mut Bodies {
        &mut self.store.bodies
    }

    /// A job and the bodies, for a borrow of both.
    pub fn job_and_bodies(&mut self, job: JobKey) -> (&Job, &mut Bodies) {
        (self.store.jobs.get(job), &mut self.store.bodies)
    }

    fn find_or_create_tube(&mut self, name: TubeName<'_>) -> TubeSlot {
        match self.store.tubes.find_slot(name) {
            Some(tube) => tube,
            None => {
                self.budget.charge(Cost::NEW_TUBE);
                let tube = self.store.tubes.add(name, &mut self.store.timers);
                self.rules.attach(tube, &mut self.store);
                tube
            }
        }
    }
}
