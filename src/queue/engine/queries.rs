//! What the queue tells, to the server and to the job log. The memory of the queue is counted as it changes, so that a query costs a few
//! additions.

use super::{Engine, check};
use crate::bodies::Bodies;
use crate::queue::effects::Notice;
use crate::queue::extensions::groups::GroupStats;
use crate::queue::extensions::idempotency::{KeptKey, KeyStats};
use crate::queue::extensions::rules::{FullBy, RuleCounts};
use crate::queue::extensions::schedules::{
    LoggedSchedule, NewSchedule, Schedule, ScheduleCounts, ScheduleName,
};
use crate::queue::logged::{LoggedState, PersistedState};
use crate::queue::long_work::Work;
use crate::queue::store::JobTotals;
use crate::queue::store::client::Clients;
use crate::queue::store::job::{Counts, JobState, Jobs, Lifecycle};
use crate::queue::store::latency::{LatencyKind, Percentiles, TimeSum};
use crate::queue::store::tube::{Tube, Tubes};
use crate::queue::store::tube_order::{Listed, TubeList};
use crate::time::{Seconds, Span, Time};
use crate::values::histogram::Histogram;
use crate::values::ids::{ClientKey, ConnId, IdpSlot, JobId, JobKey, TagsKey, TubeKey};
use crate::values::notes::{NOTE_FIELDS_BYTES, NOTES_LENGTH_BYTES, Notes};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, TubeRules};

/// Statistics of one tube.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct TubeStats<'a> {
    pub name: TubeName<'a>,
    pub urgent: u32,
    pub ready: usize,
    pub reserved: u32,
    pub delayed: usize,
    pub buried: usize,
    pub held: usize,
    pub total_jobs: u64,
    pub using: u32,
    pub watching: u32,
    pub deletes: u64,
    pub pauses: u64,
    pub timeouts: u64,
    pub buries: u64,
    /// The length of the current pause, zero without one.
    pub pause: Span,
    pub pause_left: Span,
    /// The age of the job that has been ready longest, zero without ready jobs.
    pub oldest_ready: Span,
}

/// Statistics of one job.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct JobStats<'a> {
    pub id: JobId,
    pub tube: TubeName<'a>,
    pub state: JobState,
    pub pri: u32,
    pub age: Span,
    pub delay: Seconds,
    pub ttr: Seconds,
    /// The time until a delayed job becomes ready or a reserved one times out. Zero in other states.
    pub time_left: Span,
    pub counts: Counts,
    /// Its tube has rules.
    pub has_rules: bool,
    pub tags: Tags<'a>,
    /// Why attempts have failed.
    pub notes: Notes<'a>,
    /// Of a job with a concurrency key: whether it is ready, and reserves pass it over because the key is at its limit.
    pub is_passed_over: Option<bool>,
    /// Of a held job: the group that it waits for, and how many members the group still has.
    pub waits_for: Option<(TubeName<'a>, u32)>,
}

impl Engine {
    // Jobs.

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

    /// The size of the body of the job without its CR LF.
    #[inline]
    pub fn body_bytes(&self, job: JobKey) -> u64 {
        self.store.body_bytes(job)
    }

    /// The body of the job with its CR LF.
    pub fn body(&self, job: JobKey) -> &[u8] {
        self.store.bodies.bytes(&self.store.jobs.get(job).body)
    }

    /// The name of the job's tube.
    pub fn tube_of(&self, job: JobKey) -> TubeName<'_> {
        self.store.tube_of(job)
    }

    /// The tube that the client uses.
    pub fn used(&self, client: ClientKey) -> &Tube {
        self.store.used(client)
    }

    /// The tags of a job.
    #[inline]
    pub fn tags(&self, job: JobKey) -> Tags<'_> {
        self.store.tags(job)
    }

    /// The tags of a job whose body is still to come.
    #[inline]
    pub fn stored_tags(&self, tags_key: Option<TagsKey>) -> Tags<'_> {
        self.store.stored_tags(tags_key)
    }

    /// The client that has reserved the job. None has if the reservation was recovered.
    pub fn holder(&self, job: JobKey) -> Option<ClientKey> {
        let holder = self.store.jobs.holder(self.store.jobs.get(job)).filter(|_| !self.is_recovered(job));
        holder.map(|holder| self.store.clients.key(holder))
    }

    /// The job with this id, if the client has reserved it.
    pub fn reserved_job(&self, client: ClientKey, id: JobId) -> Option<JobKey> {
        self.store.reserved_by(self.store.clients.slot(client), id)
    }

    /// Whether the job has been reserved since before the start, so that any client may finish it.
    #[inline]
    pub fn is_recovered(&self, job: JobKey) -> bool {
        self.recovered.client.is_some() && self.keeps_reservations() && self.recovered.holds(job, &self.store)
    }

    /// Whether recovery has restored a reservation.
    pub const fn has_recovered(&self) -> bool {
        self.recovered.client.is_some()
    }

    /// Reads the persistent state of a job.
    pub fn persisted_state(&self, job: JobKey) -> PersistedState {
        let record = self.store.jobs.get(job);
        let lifecycle = self.store.jobs.lifecycle(job);
        let state = match (record.state, lifecycle) {
            (JobState::Delayed, Some(lifecycle)) => LoggedState::Delayed(lifecycle.deadline),
            (JobState::Buried, Some(lifecycle)) => LoggedState::Buried(lifecycle.burial()),
            // mutant grp-released-job-logged-as-held: self.groups.is_released(job, &self.store) => false
            (JobState::Held, Some(lifecycle)) if self.groups.is_released(job, &self.store) => {
                LoggedState::Delayed(lifecycle.deadline)
            }
            (JobState::Held, Some(lifecycle)) => LoggedState::Held(lifecycle.deadline),
            (JobState::Reserved, Some(lifecycle)) if self.effects.changes.keeps_reservations() => {
                LoggedState::Reserved(lifecycle.deadline)
            }
            _ => LoggedState::Ready,
        };
        PersistedState {
            pri: record.pri,
            delay: lifecycle.map_or(Seconds::ZERO, Lifecycle::delay),
            state,
            counts: lifecycle.map_or(Counts::default(), |lifecycle| lifecycle.counts.get()),
        }
    }

    /// Returns the notes of a job.
    #[inline]
    pub fn notes(&self, job: JobKey) -> Notes<'_> {
        self.notes.of(job, &self.store.bodies)
    }

    /// Whether a record of the job log has room for the job with another note, given with its CR LF.
    pub(super) fn has_room_for_note(&self, job: JobKey, bytes: usize) -> bool {
        let notes = NOTES_LENGTH_BYTES + self.notes(job).logged_bytes() + NOTE_FIELDS_BYTES + bytes;
        self.store.logged_bytes(job) + notes <= self.store.log_room.job_bytes_max
    }

    /// The id of the next job.
    pub fn upcoming_id(&self) -> JobId {
        JobId(self.store.next_id)
    }

    /// Whether there is a job with this id that no client has reserved.
    pub fn is_unreserved(&self, id: JobId) -> bool {
        self.store.jobs.find(id).is_some_and(|job| self.store.jobs.get(job).state != JobState::Reserved)
    }

    /// The time since a ready job became ready.
    pub fn ready_age(&self, job: JobKey, now: Time) -> Span {
        let lifecycle = self.store.jobs.lifecycle(job);
        now.since(lifecycle.map_or(self.store.jobs.get(job).created, |lifecycle| lifecycle.since))
    }

    /// The reserved job of the used tube that was reserved first.
    pub fn peek_reserved(&self, client: ClientKey) -> Option<JobKey> {
        self.store.used(client).first_in(JobState::Reserved, &self.store.jobs)
    }

    /// The delayed job of the used tube with the earliest deadline.
    pub fn peek_delayed(&self, client: ClientKey) -> Option<JobKey> {
        self.store.used(client).first_in(JobState::Delayed, &self.store.jobs)
    }

    /// The buried job of the used tube that was buried first.
    pub fn peek_buried(&self, client: ClientKey) -> Option<JobKey> {
        self.store.used(client).first_in(JobState::Buried, &self.store.jobs)
    }

    // Rules, keys and groups.

    /// Returns true if a client may use the tube of this name: it exists, or there is room for it.
    pub fn can_use(&mut self, name: TubeName<'_>) -> bool {
        self.store.can_use(name)
    }

    /// Returns true if the client may watch the tube of this name: it does so already, or there is room for the watch.
    pub fn can_watch(&mut self, client: ClientKey, name: TubeName<'_>) -> bool {
        self.store.can_watch(client, name)
    }

    /// Whether there is room for a rule: the tube has others, or fewer than
    /// [`RULED_TUBES_MAX`](crate::values::limits::RULED_TUBES_MAX) tubes have rules.
    pub fn can_set_rule(&self, name: TubeName<'_>, rule: Rule<'_>) -> bool {
        self.rules.can_set(name, rule)
    }

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

    /// Counts of idempotency keys.
    pub const fn key_stats(&self) -> KeyStats {
        self.idps.stats()
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

    /// The groups that are done and still hold jobs.
    pub fn done_groups(&self) -> impl Iterator<Item = TubeName<'_>> {
        self.groups.done(&self.store, &self.effects)
    }

    /// Returns the statistics of a group, if it has a member.
    pub fn group_stats(&self, name: TubeName<'_>) -> Option<GroupStats> {
        self.groups.stats(name, &self.store)
    }

    /// The groups that members of a group wait for.
    pub fn groups_ahead(&self, name: TubeName<'_>) -> impl Iterator<Item = TubeName<'_>> {
        // Bounded by its caller: an iterator, of which `stats-group` takes GROUPS_SHOWN_MAX.
        self.groups.all_ahead(name, &self.store)
    }

    // Lists.

    /// A list of all tubes.
    pub fn list_tubes(&self) -> TubeList {
        TubeList::of_all(&self.store.tubes)
    }

    /// A list of the tubes that the client watches.
    pub fn list_watched(&self, client: ClientKey) -> TubeList {
        TubeList::of_watched(client, &self.store.clients)
    }

    /// Returns the next place of a list.
    ///
    /// # Panics
    /// If the list shows more or fewer tubes than there were at its start, which is a bug of the queue.
    pub fn next_listed(&self, list: &mut TubeList) -> Listed<'_> {
        list.next(&self.store)
    }

    // Memory.

    /// The memory of jobs with their bodies, tubes and clients, including what is kept for reuse.
    pub fn memory_bytes(&self) -> usize {
        self.bodies().resident_bytes()
            + self.store.jobs.bytes()
            + self.store.tubes.bytes()
            + self.store.clients.bytes()
            + self.waits.bytes()
            + self.store.clients.watch_bytes()
            + self.idps.bytes()
            + self.cons.bytes()
            + self.groups.bytes()
            + self.rules.bytes()
            + self.store.timers.bytes()
            + self.job_waits.bytes()
            + self.notes.bytes()
            + self.schedules.bytes()
            + self.effects.changes.bytes()
            + self.effects.work.bytes()
            + self.effects.notices.capacity() * size_of::<Notice>()
    }

    /// The memory of tubes, their names and watches.
    pub fn tube_bytes(&self) -> usize {
        self.store.tube_bytes()
    }

    /// Memory reserved for the lifecycles and lanes of jobs that have none yet. Commands that create one are never refused for
    /// lack of memory, so a put must leave room for it.
    pub fn reserved_memory_bytes(&self) -> usize {
        self.store.jobs.reserved_memory_bytes() + self.cons.reserved_memory_bytes()
    }

    /// What the next `count` jobs add to the memory that is used and to that which is reserved, without their bodies: nothing if they
    /// fit into memory that is kept for reuse.
    pub fn job_growth(&mut self, count: usize) -> usize {
        self.store.jobs.growth(count)
    }

    /// What the tags of one more job of the client add to the memory of the queue: nothing for a job without tags.
    pub fn tags_growth(&mut self, client: ClientKey, tags: Tags<'_>) -> usize {
        if tags.is_empty() {
            return 0;
        }
        let tube = self.store.tubes[self.store.clients.get(client).used].name();
        let text = self.store.bodies.growth(tags.as_bytes().len() as u32);
        let keys = self.idps.growth(tube, tags.idp(), &self.store.bodies)
            + self.cons.growth(tags.con(), &self.store.bodies);
        self.store.jobs.tags.growth(1) + text + keys + self.groups.growth(tags, &self.store.bodies)
    }

    /// What a job of the client with tags adds to the memory of the queue once its body is complete.
    pub fn stored_tags_growth(&mut self, client: ClientKey, tags_key: Option<TagsKey>) -> usize {
        let Some(tags_key) = tags_key else { return 0 };
        let tags = self.store.jobs.tags[tags_key.0].tags(&self.store.bodies);
        let tube = self.store.tubes[self.store.clients.get(client).used].name();
        self.idps.growth(tube, tags.idp(), &self.store.bodies)
            + self.cons.growth(tags.con(), &self.store.bodies)
            + self.groups.growth(tags, &self.store.bodies)
    }

    /// The number of jobs with tags whose bodies are still to come.
    pub fn tags_to_come(&self) -> usize {
        // Bounded by its caller: a test.
        self.store.jobs.tags.len()
            - self.store.jobs.iter().filter(|(_, job)| job.tags_key().is_some()).count()
    }

    /// The number of bodies, of jobs and of those still to come. The arena has texts besides.
    pub fn body_count(&self) -> usize {
        let texts = self.store.jobs.tags.len()
            + self.cons.len()
            + self.groups.len()
            + self.idps.len()
            + self.notes.len()
            + self.schedules.len();
        self.store.bodies.usage().slots - texts
    }

    // Schedules.

    /// Whether there is any schedule.
    #[inline]
    pub fn has_schedules(&self) -> bool {
        !self.schedules.is_empty()
    }

    /// The schedule of this name.
    pub fn schedule(&self, name: TubeName<'_>) -> Option<&Schedule> {
        self.schedules.get(name.as_bytes())
    }

    /// The schedule of this name as the job log has it.
    pub fn logged_schedule(&self, name: &ScheduleName) -> Option<LoggedSchedule<'_>> {
        self.schedules.get(name).map(|schedule| schedule.logged(&self.store.bodies))
    }

    /// Schedules in the order of their names, after this one.
    pub fn schedules_after<'a>(&'a self, name: Option<TubeName<'_>>) -> impl Iterator<Item = &'a Schedule> {
        // Bounded by its caller: an iterator.
        self.schedules.after(name)
    }

    /// Whether this schedule, with this body, is there already.
    pub fn has_schedule(&self, new: &NewSchedule<'_>, body: &[u8]) -> bool {
        self.schedules.is_as(new, body, &self.store.bodies)
    }

    /// The name of the schedule that is due first, if one is due now.
    pub fn due_schedule(&self, now: Time) -> Option<&Schedule> {
        self.schedules.next_due(now)
    }

    /// The number of schedules, and what they have done since the start.
    pub fn schedule_counts(&self) -> (usize, ScheduleCounts) {
        (self.schedules.len(), self.schedules.totals())
    }

    /// The time of the system clock.
    pub fn system_time(&self, now: Time) -> Time {
        self.schedules.system_time(now)
    }

    // Statistics.

    /// Counts of jobs and clients of the whole queue.
    pub const fn totals(&self) -> JobTotals {
        self.store.totals
    }

    /// Each `move-jobs` and `flush-tube` that is not finished, with the number of its jobs so far, in the order in which they go on.
    pub fn unfinished_changes(&self) -> impl Iterator<Item = (ConnId, u32)> {
        // Bounded by its caller: the observer of a test.
        self.effects.work.iter().filter_map(|work| match work {
            Work::Move(work) => Some((work.conn, work.moved.count)),
            Work::Flush(flush) => Some((flush.conn, flush.flushed)),
            _ => None,
        })
    }

    /// The number of clients that wait for the end of a job.
    pub fn job_waits(&self) -> usize {
        self.job_waits.len()
    }

    /// The times from ready to reserved, in nanoseconds, of the whole queue.
    pub fn queue_times(&self) -> &Histogram {
        self.store.latency.get(LatencyKind::Queue)
    }

    /// The times for which clients reserved jobs, in nanoseconds, of the whole queue.
    pub fn reserved_times(&self) -> &Histogram {
        self.store.latency.get(LatencyKind::Reserved)
    }

    /// Counts the clients that watch a tube and wait. Checks the wide ones that watch the tube or those that wait, whichever are fewer.
    pub fn tube_waiting(&self, key: TubeKey) -> usize {
        self.waits.count(key, &self.store)
    }

    /// The number of clients that [`tube_waiting`](Self::tube_waiting) checks: the wide ones that watch the tube, or the wide
    /// ones that wait and may watch it, whichever are fewer.
    pub fn tube_waiting_cost(&self, key: TubeKey) -> usize {
        self.waits.count_cost(key, &self.store)
    }

    /// Computes the percentiles of one tube over the last 5 to 10 minutes. Reads every counter of the tube.
    pub fn tube_times(&self, key: TubeKey, kind: LatencyKind, now: Time) -> Percentiles {
        let latency = self.store.tubes.get(key).latency.as_ref();
        latency.map_or(Percentiles::default(), |latency| latency.percentiles(kind, now))
    }

    /// Returns the number and the sum of the times of one tube since it exists.
    pub fn tube_time_sum(&self, key: TubeKey, kind: LatencyKind) -> TimeSum {
        let latency = self.store.tubes.get(key).latency.as_ref();
        latency.map_or(TimeSum::default(), |latency| latency.sum(kind))
    }

    /// Returns the statistics of one tube, without those that cost more: [`tube_waiting`](Self::tube_waiting) and
    /// [`tube_times`](Self::tube_times).
    pub fn tube_stats(&self, key: TubeKey, now: Time) -> TubeStats<'_> {
        let tube = self.store.tubes.get(key);
        TubeStats {
            name: tube.name(),
            urgent: tube.urgent,
            ready: tube.ready_jobs(),
            reserved: tube.reserved.len(),
            delayed: tube.delayed.len(),
            buried: tube.buried.len(),
            held: tube.held.len(),
            total_jobs: tube.counts.jobs,
            using: tube.using,
            watching: tube.watching,
            deletes: tube.counts.deletes,
            pauses: tube.counts.pauses,
            timeouts: tube.counts.timeouts,
            buries: tube.counts.buries,
            pause: tube.pause.map_or(Span::ZERO, |pause| pause.length),
            pause_left: tube.pause.map_or(Span::ZERO, |pause| pause.until.since(now)),
            oldest_ready: tube
                .ready_order
                .oldest(&self.store.jobs)
                .map_or(Span::ZERO, |since| now.since(since)),
        }
    }

    /// Returns the statistics of one job.
    pub fn job_stats(&self, key: JobKey, now: Time) -> JobStats<'_> {
        let job = self.store.jobs.get(key);
        let lifecycle = self.store.jobs.lifecycle(key);
        let runs = matches!(job.state, JobState::Delayed | JobState::Reserved);
        JobStats {
            id: job.id,
            tube: self.store.tubes[job.tube].name(),
            state: job.state,
            pri: job.pri,
            age: now.since(job.created),
            delay: lifecycle.map_or(Seconds::ZERO, Lifecycle::delay),
            ttr: self.store.jobs.ttr(key),
            time_left: lifecycle
                .filter(|_| runs)
                .map_or(Span::ZERO, |lifecycle| lifecycle.deadline.since(now)),
            counts: lifecycle.map_or(Counts::default(), |lifecycle| lifecycle.counts.get()),
            has_rules: self.store.tubes[job.tube].rules().is_some(),
            tags: self.store.tags(key),
            notes: self.notes(key),
            is_passed_over: self
                .store
                .jobs
                .con_of(key)
                .map(|_| job.state == JobState::Ready && self.cons.is_at_limit(key, &self.store.jobs)),
            waits_for: self.groups.ahead_of(key, &self.store),
        }
    }

    /// Asserts all invariants that hold between two calls.
    ///
    /// # Panics
    /// If an invariant does not hold, which is a bug of the queue.
    pub fn check(&self) {
        check::check(self);
    }
}
