//! The commands of the queue as typed calls.

use super::background::{BACKGROUND_STEPS, FollowUp, QUOTAS, Quotas};
use super::change::Change;
use super::client::{Client, Clients};
use super::concurrency::ConKeys;
use super::draw::Lots;
use super::effects::Effects;
use super::groups::Groups;
use super::idempotency::{First, IdpKeys, KeptKey, KeyFlush, KeyStats, Repeated};
use super::job::{Job, JobState, Jobs, NewJob};
use super::job_list::JobPage;
use super::job_waits::{JobEnd, JobWaits};
use super::moving::Moved;
use super::recovered::Recovered;
use super::rules::{FullBy, RuleCounts, RuleSet, Rules};
use super::store::Store;
use super::transitions::To;
use super::tube::{Pause, Tube, Tubes};
use super::tube_limits::TubeLimits;
use super::waits::Waits;
use super::work::{Begun, Kick, Work};
use crate::bodies::Bodies;
use crate::time::{Seconds, Span, Time};
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{ClientKey, ClientSlot, ConnId, IdpSlot, JobId, JobKey, TagsKey, TubeKey};
use crate::values::limits::{KEYS_SHARE, MEMORY_BYTES_MIN};
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, TubeRules};

/// The queue.
///
/// A command returns its answer, or that a [`Notice`] will follow. After each call the caller must drain
/// [`next_notice`](Self::next_notice), the notices for connections, and [`take_changes`](Self::take_changes), what the job log
/// must record. The order of the two does not matter.
///
/// [`step`](Self::step) does a bounded piece of what is due and of unfinished work. The caller must call it at
/// [`next_deadline`](Self::next_deadline) at the latest.
pub struct Engine {
    pub(super) store: Store,
    pub(super) effects: Effects,
    /// All work of the server is counted here.
    pub(super) budget: Budget,
    pub(super) idps: IdpKeys,
    pub(super) cons: ConKeys,
    pub(super) groups: Groups,
    pub(super) rules: Rules,
    pub(super) job_waits: JobWaits,
    pub(super) lots: Lots,
    pub(super) recovered: Recovered,
    pub(super) waits: Waits,
    /// What commands may set off before the next [`Engine::step`].
    pub(super) quotas: Quotas,
}

/// The late answer to a command.
#[derive(PartialEq, Eq, Debug)]
pub enum Notice {
    /// The waiting client of this connection has reserved a job.
    Reserved(ConnId, JobKey),
    /// The wait of this connection timed out.
    TimedOut(ConnId),
    /// The wait ended because a reserved job times out within the safety margin.
    DeadlineSoon(ConnId),
    /// The `kick` is finished. It has kicked this many jobs.
    Kicked(ConnId, u32),
    /// The `flush-tube` or `flush-keys` is finished. It has deleted this many jobs, or forgotten this many keys.
    Flushed(ConnId, u32),
    /// The job that this connection has waited for has ended.
    JobEnded(ConnId, JobEnd),
    /// The `move-jobs` is finished.
    Moved(ConnId, Moved),
    /// The `list-jobs` is finished, with this page. Its jobs must be read before the next call.
    Listed(ConnId, Box<JobPage>),
}

impl Notice {
    /// The connection to notify.
    pub const fn conn(&self) -> ConnId {
        match *self {
            Self::Reserved(conn, _)
            | Self::TimedOut(conn)
            | Self::DeadlineSoon(conn)
            | Self::Kicked(conn, _)
            | Self::Flushed(conn, _)
            | Self::JobEnded(conn, _)
            | Self::Moved(conn, _)
            | Self::Listed(conn, _) => conn,
        }
    }
}

/// The answer to a `reserve`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// The client has reserved this job.
    Job(JobKey),
    /// The client has reserved this job, after a choice by chance.
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

impl Engine {
    /// An empty queue. `seed` keeps clients from choosing names, ids and watches whose hashes collide, and decides by chance
    /// for clients with such a [`ReserveMode`](crate::values::reserve_mode::ReserveMode). It has no other effect.
    pub fn new(seed: u64) -> Self {
        let mut store = Store::new(seed);
        let idps = IdpKeys::new(seed, &mut store.timers);
        Self {
            store,
            effects: Effects::default(),
            budget: Budget::default(),
            idps,
            cons: ConKeys::new(seed),
            groups: Groups::new(seed),
            rules: Rules::new(seed),
            job_waits: JobWaits::new(seed),
            lots: Lots::new(seed),
            recovered: Recovered::default(),
            waits: Waits::default(),
            quotas: QUOTAS,
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

    // Clients.

    /// Adds a client, which uses and watches `default`.
    pub fn connect(&mut self, conn: ConnId) -> ClientKey {
        let client = self.store.clients.add(conn, self.store.default_tube, &mut self.store.timers);
        self.store.tubes[self.store.default_tube].using += 1;
        self.waits.watch(client.slot, self.store.default_tube, &mut self.store);
        client
    }

    /// Removes a client and makes the jobs that it holds ready. Large work is left to background work, as is the rest once
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

    /// Stores a job in the tube that the client uses.
    #[inline(always)]
    pub fn put(&mut self, client: ClientKey, new: NewJob, now: Time) -> JobKey {
        let tube = self.store.clients.get(client).used;
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
        self.effects.changes.push(Change::Put(job));
        if self.has_waiting(tube) {
            self.with_quota(FollowUp::Assignments, |engine, limit| engine.assign_jobs(tube, limit, now));
        }
        if tags_key.is_some()
            && let Some(con) = self.store.jobs.con_of(job)
        {
            // mutant con-raised-limit-opens-no-lane: removed
            self.reopen_raised(con, now);
        }
        job
    }

    /// Reserves the job with this id, which may be ready, delayed or buried, but not held, unless its concurrency key is at its
    /// limit. A pause of its tube does not matter.
    pub fn reserve_job(&mut self, client: ClientKey, id: JobId, now: Time) -> Option<JobKey> {
        self.store.jobs.find(id).filter(|&job| !self.cons.is_at_limit(job, &self.store.jobs))?;
        self.take_job(client, id, now)
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
        self.remove_if_unreferenced(tube);
        true
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
                self.cons.leave(tags_key, &mut self.store.jobs);
                (
                    self.idps.give_up(job, tags_key, now, &mut self.store),
                    self.groups.leave(job, tags_key, &mut self.store),
                )
            }
        };
        self.end_job_waits(job, JobEnd::Deleted);
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

    /// Makes a reserved job ready or delayed, with a new priority. A job that has had all attempts is retired instead.
    pub fn release(&mut self, client: ClientKey, id: JobId, pri: u32, delay: Seconds, now: Time) -> Released {
        let client = self.store.clients.slot(client);
        let Some(job) = self.reservation(client, id) else { return Released::NotFound };
        // mutant order-after-release: self.store.jobs.get_mut(job).pri = pri =>
        //     let job = self.store.jobs.get_mut(job); job.pri = job.pri.min(pri)
        self.store.jobs.get_mut(job).pri = pri;
        self.store.jobs.lifecycle_mut(job).counts.releases += 1;
        self.store.totals.releases += 1;
        let limit = self.budget.within(BACKGROUND_STEPS);
        if self.rules.is_exhausted(job, &self.store) {
            self.retire(job, limit, now);
            let is_buried = self.store.jobs.get(job).state == JobState::Buried;
            return if is_buried { Released::Buried } else { Released::Done };
        }
        self.transfer(job, To::After(delay), None, Some(Change::Released(job)), limit, now);
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

    /// Makes up to `bound` jobs of the used tube ready: buried jobs in the order of burial or, if there are none, delayed
    /// jobs in the order of their deadlines.
    pub fn kick(&mut self, client: ClientKey, bound: u32, now: Time) -> Begun<u32> {
        let Client { conn, used, .. } = *self.store.clients.get(client);
        let tube = self.store.tubes.key(used);
        let record = &mut self.store.tubes[used];
        let from = if record.buried.is_empty() { JobState::Delayed } else { JobState::Buried };
        let there = if from == JobState::Buried { record.buried.len() } else { record.delayed.len() };
        let left = bound.min(there as u32);
        record.pins += 1;
        let mut kick = Kick { conn, tube, from, left, kicked: 0 };
        if self.continue_kick(&mut kick, now, self.budget.within(BACKGROUND_STEPS)) {
            return Begun::Done(kick.kicked);
        }
        self.effects.work.push_back(Work::Kick(kick));
        Begun::Working
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

    /// The most urgent ready job of the used tube whose concurrency key is not at its limit. `None` as long as background work
    /// has to find it.
    pub fn peek_ready(&mut self, client: ClientKey) -> Option<JobKey> {
        self.shut_full_lanes(self.store.clients.get(client).used, self.budget.within(BACKGROUND_STEPS));
        let tube = self.store.used(client);
        tube.ready.min().filter(|_| !tube.shutting).map(JobKey)
    }

    /// The reserved job of the used tube that was reserved first.
    pub fn peek_reserved(&self, client: ClientKey) -> Option<JobKey> {
        self.store.used(client).reserved.front(&self.store.jobs)
    }

    /// The delayed job of the used tube with the earliest deadline.
    pub fn peek_delayed(&self, client: ClientKey) -> Option<JobKey> {
        self.store.used(client).delayed.min().map(|lifecycle| self.store.jobs.lifecycles[lifecycle].job)
    }

    /// The buried job of the used tube that was buried first.
    pub fn peek_buried(&self, client: ClientKey) -> Option<JobKey> {
        self.store.used(client).buried.front().map(JobKey)
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

    // Getters.

    /// All jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.store.jobs
    }

    /// All tubes.
    pub fn tubes(&self) -> &Tubes {
        &self.store.tubes
    }

    /// All clients.
    pub fn clients(&self) -> &Clients {
        &self.store.clients
    }

    /// The bodies of jobs.
    pub fn bodies(&self) -> &Bodies {
        &self.store.bodies
    }

    /// The bodies, to allocate, read or free one.
    pub fn bodies_mut(&mut self) -> &mut Bodies {
        &mut self.store.bodies
    }

    /// A job and the bodies, for a borrow of both.
    pub fn job_and_bodies(&mut self, job: JobKey) -> (&Job, &mut Bodies) {
        (self.store.jobs.get(job), &mut self.store.bodies)
    }

    /// The size of the body of the job without its CR LF.
    #[inline]
    pub fn body_bytes(&self, job: JobKey) -> u64 {
        self.store.body_bytes(job)
    }

    /// The body of the job with its CR LF.
    pub fn body(&self, job: JobKey) -> &[u8] {
        self.store.bodies.bytes(&self.store.jobs.get(job).body)
    }

    /// The tube that the client uses.
    pub fn used(&self, client: ClientKey) -> &Tube {
        self.store.used(client)
    }

    /// The memory of tubes, their names and watches.
    pub fn tube_bytes(&self) -> usize {
        self.store.tube_bytes()
    }

    /// Returns true if a client may use the tube of this name: it exists, or there is room for it.
    pub fn can_use(&mut self, name: TubeName<'_>) -> bool {
        self.store.can_use(name)
    }

    /// Returns true if the client may watch the tube of this name: it does so already, or there is room for the watch.
    pub fn can_watch(&mut self, client: ClientKey, name: TubeName<'_>) -> bool {
        self.store.can_watch(client, name)
    }

    // Reserved jobs.

    /// The client that has reserved the job. None has if the reservation was recovered.
    pub fn holder(&self, job: JobKey) -> Option<ClientKey> {
        let holder = self.store.jobs.holder(self.store.jobs.get(job)).filter(|_| !self.is_recovered(job));
        holder.map(|holder| self.store.clients.key(holder))
    }

    /// The job with this id, if the client has reserved it.
    pub fn reserved_job(&self, client: ClientKey, id: JobId) -> Option<JobKey> {
        self.store.reserved_by(self.store.clients.slot(client), id)
    }

    /// The job with this id, if the client has reserved it, or takes over its reservation.
    #[inline]
    fn reservation(&mut self, client: ClientSlot, id: JobId) -> Option<JobKey> {
        self.store.reserved_by(client, id).or_else(|| self.take_over(client, id))
    }

    // Rules.

    /// Whether any tube has rules.
    #[inline]
    pub fn has_rules(&self) -> bool {
        self.rules.is_any()
    }

    /// The rules of the tube of this name, which need not exist, and what they have led to. `None` if it has no rules.
    pub fn rules_of(&self, name: TubeName<'_>) -> Option<(&TubeRules, RuleCounts)> {
        self.rules.of(name)
    }

    /// Counts of what the rules of a tube have done. `None` if it has no rules.
    pub fn rule_counts(&self, tube: TubeKey) -> Option<RuleCounts> {
        self.rules.counts(tube, &self.store)
    }

    /// All tubes with rules, in no order.
    pub fn ruled_tubes(&self) -> impl Iterator<Item = (TubeName<'_>, &TubeRules)> {
        self.rules.tubes()
    }

    /// The number of tubes with rules, with those that do not exist.
    pub const fn ruled_tubes_len(&self) -> usize {
        self.rules.len()
    }

    /// What rules have led to since the start.
    pub const fn rule_totals(&self) -> RuleCounts {
        self.rules.totals()
    }

    /// Whether there is room for a rule: the tube has others, or fewer than
    /// [`RULED_TUBES_MAX`](crate::values::limits::RULED_TUBES_MAX) tubes have rules.
    pub fn can_set_rule(&self, name: TubeName<'_>, rule: Rule<'_>) -> bool {
        self.rules.can_set(name, rule)
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
        self.remove_if_unreferenced(tube);
    }

    /// The time to run of a job that the client puts with this one.
    #[inline]
    pub fn ttr_of_put(&self, client: ClientKey, ttr: Seconds) -> Seconds {
        self.rules.ttr_of_put(client, ttr, &self.store)
    }

    /// Returns the rule that forbids this many further jobs in the tube that the client uses, if one does. Their bodies have this
    /// size together without their CR LF. A refusal is counted.
    #[inline]
    pub fn admits(&mut self, client: ClientKey, jobs: usize, body_bytes: u64) -> Result<(), FullBy> {
        self.rules.admits(client, jobs, body_bytes, &self.store)
    }

    // Idempotency keys.

    /// Returns the first job of the announced job's key in the tube that the client uses, and raises its priority to `pri` if
    /// that is more urgent. Returns `None` if the announced job is the first.
    pub fn repeat(&mut self, client: ClientKey, tags_key: TagsKey, pri: u32, now: Time) -> Option<Repeated> {
        let tube = self.store.clients.get(client).used;
        let first = self.idps.first(tube, tags_key, now, &mut self.store, &mut self.effects.changes)?;
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

    /// The key in this slot, if it is that of a deleted job.
    pub fn kept_key(&self, slot: IdpSlot) -> Option<KeptKey<'_>> {
        self.idps.kept_key(slot, &self.store.bodies)
    }

    /// All keys of deleted jobs, in no order.
    pub fn kept_keys(&self) -> impl Iterator<Item = KeptKey<'_>> {
        // Bounded by its caller: an iterator, for tools that read a job log.
        self.idps.kept_keys(&self.store.bodies)
    }

    /// Restores the key of a deleted job, for at most its time to live from now on.
    pub fn restore_key(&mut self, kept: &KeptKey<'_>) -> IdpSlot {
        self.idps.restore(kept, &mut self.store)
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

    /// Counts of idempotency keys.
    pub const fn key_stats(&self) -> KeyStats {
        self.idps.stats()
    }

    /// Whether the share has room for the key of an announced job of the client, which must be new to its tube. A refusal is
    /// counted.
    pub fn admits_key(&mut self, client: ClientKey, tags_key: TagsKey) -> bool {
        self.idps.admits(client, tags_key, &self.store)
    }

    /// Whether the share has room for all keys of announced jobs of the client that are new to its tube. A refusal is counted.
    pub fn admits_keys(
        &mut self,
        client: ClientKey,
        tags_keys: impl Iterator<Item = TagsKey>,
        now: Time,
    ) -> bool {
        self.idps.admits_all(client, tags_keys, now, &self.store)
    }

    /// Forgets the kept keys of the tube of this name. Keys of jobs stay, and so do those of jobs that are put later.
    pub fn flush_keys(&mut self, client: ClientKey, tube: TubeName<'_>) -> Begun<u32> {
        let conn = self.store.clients.get(client).conn;
        let mut flush = KeyFlush::new(client, conn, tube, self.upcoming_id(), &self.idps);
        if self.continue_key_flush(&mut flush, self.budget.within(BACKGROUND_STEPS)) {
            return Begun::Done(flush.flushed);
        }
        self.effects.work.push_back(Work::FlushKeys(Box::new(flush)));
        Begun::Working
    }

    /// Forgets keys up to the limit. Returns true if the flush is finished.
    pub(super) fn continue_key_flush(&mut self, flush: &mut KeyFlush, limit: Limit) -> bool {
        self.idps.continue_flush(flush, limit, &mut self.store, &mut self.effects.changes, &mut self.budget)
    }
}
