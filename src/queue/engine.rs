//! The commands of the queue, as typed calls.

use std::collections::VecDeque;

use super::background::{Kick, Work};
use super::bounds::Bounds;
use super::change::{Change, Changes};
use super::client::{Client, Clients};
use super::job::{Activity, Job, Jobs, NewJob, State};
use super::latency::QueueLatency;
use super::stats::JobTotals;
use super::timers::Timers;
use super::tube::{Pause, Tube, Tubes};
use crate::bodies::Bodies;
use crate::ids::{ClientKey, ClientSlot, ConnId, JobId, JobKey, TubeSlot, WatchKey};
use crate::limits::BACKGROUND_STEPS;
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// The queue.
///
/// Calls that a client makes return their answer, or that it comes later. Then, in any order but before
/// the next call: [`next_notice`](Self::next_notice) until it is dry tells whom something happened to,
/// and [`take_changes`](Self::take_changes) what to log. [`step`](Self::step) does what time and
/// unfinished work ask for, a bounded piece a call; [`next_deadline`](Self::next_deadline) says when
/// it must be called next.
pub struct Engine {
    pub(super) jobs: Jobs,
    pub(super) tubes: Tubes,
    pub(super) clients: Clients,
    pub(super) timers: Timers,
    pub(super) work: VecDeque<Work>,
    pub(super) notices: VecDeque<Notice>,
    pub(super) changes: Changes,
    pub(super) totals: JobTotals,
    pub(super) default_tube: TubeSlot,
    /// How many waits have begun.
    pub(super) turns: u64,
    /// See [`Engine::take_steps`].
    pub(super) steps: u32,
    /// What hang-ups may still take at once, all together, before the next [`Engine::step`].
    pub(super) hang_up_steps: u32,
    pub(super) next_id: u64,
    /// How many jobs have been buried.
    pub(super) burials: u64,
    pub(super) latency: QueueLatency,
    pub(super) bounds: Bounds,
    /// [`Work::Tidy`] is queued.
    pub(super) is_tidying: bool,
    bodies: Bodies,
}

/// Something that happened to a client that had no answer yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The `reserve` of this connection got a job.
    Reserved(ConnId, JobKey),
    /// It waited long enough.
    TimedOut(ConnId),
    /// It holds a job that times out within the safety margin.
    DeadlineSoon(ConnId),
    /// Its `kick` is done and has kicked so many jobs.
    Kicked(ConnId, u32),
}

impl Notice {
    /// Whom to tell.
    pub const fn conn(&self) -> ConnId {
        match *self {
            Self::Reserved(conn, _)
            | Self::TimedOut(conn)
            | Self::DeadlineSoon(conn)
            | Self::Kicked(conn, _) => conn,
        }
    }
}

/// The answer to a `reserve`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// The client holds this job now.
    Job(JobKey),
    /// No job, and one that it holds times out within the safety margin.
    DeadlineSoon,
    /// No job, and it did not want to wait.
    TimedOut,
    /// No job yet; a [`Notice`] will come.
    Waiting,
}

/// The answer to a `kick`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kicked {
    /// So many jobs were kicked.
    Jobs(u32),
    /// There are many; a [`Notice`] will come.
    Working,
}

/// The answer to an `ignore`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignored {
    /// The client watches so many tubes now.
    Watching(usize),
    /// It watches only this one.
    Last,
}

impl Engine {
    /// An empty queue. `seed` keeps clients from choosing names, ids and watches whose hashes collide; it changes
    /// nothing else.
    pub fn new(seed: u64) -> Self {
        let mut tubes = Tubes::new(seed);
        let mut timers = Timers::default();
        let default_tube = tubes.add(TubeName::DEFAULT, &mut timers);
        Self {
            jobs: Jobs::new(seed),
            tubes,
            clients: Clients::new(seed),
            timers,
            work: VecDeque::new(),
            notices: VecDeque::new(),
            changes: Changes::default(),
            totals: JobTotals::default(),
            default_tube,
            turns: 0,
            steps: 0,
            hang_up_steps: BACKGROUND_STEPS,
            next_id: 1,
            burials: 0,
            latency: QueueLatency::new(),
            bounds: Bounds::default(),
            is_tidying: false,
            bodies: Bodies::new(),
        }
    }

    /// Whether changes are kept for [`take_changes`](Self::take_changes); at first they are not.
    pub fn record_changes(&mut self, on: bool) {
        self.changes.record(on);
    }

    // Clients.

    /// A new client, which uses and watches `default`.
    pub fn connect(&mut self, conn: ConnId) -> ClientKey {
        let client = self.clients.add(conn, self.default_tube, &mut self.timers);
        self.tubes[self.default_tube].using += 1;
        self.watch_tube(client.slot, self.default_tube);
        client
    }

    /// The client has gone: what it held becomes ready, in steps if it, or what other clients held that have gone since
    /// the last [`step`](Self::step), is much. Its key is not valid any more.
    pub fn disconnect(&mut self, client: ClientKey, now: Time) {
        self.end_wait(client);
        let record = self.clients.get_mut(client);
        record.leaving = true;
        self.totals.producers -= u32::from(record.producer);
        self.totals.workers -= u32::from(record.worker);
        let (begin, limit) = (self.steps, self.limit(self.hang_up_steps));
        if !self.depart(client, now, limit) {
            self.work.push_back(Work::Depart { client });
        }
        self.hang_up_steps = self.hang_up_steps.saturating_sub(self.steps - begin);
    }

    /// The client has sent a `put`: it counts as a producer from now on.
    pub fn mark_producer(&mut self, client: ClientKey) {
        let record = self.clients.get_mut(client);
        self.totals.producers += u32::from(!record.producer);
        record.producer = true;
    }

    pub(super) fn mark_worker(&mut self, client: ClientSlot) {
        let record = &mut self.clients[client];
        self.totals.workers += u32::from(!record.worker);
        record.worker = true;
    }

    /// The tube is the one that the client puts to from now on; it is made if need be.
    pub fn use_tube(&mut self, client: ClientKey, name: TubeName<'_>) {
        let tube = self.find_or_make(name);
        let previous = std::mem::replace(&mut self.clients.get_mut(client).used, tube);
        self.tubes[tube].using += 1;
        self.tubes[previous].using -= 1;
        self.drop_if_unwanted(previous);
    }

    /// The client reserves from this tube too, which is made if need be. Returns how many it watches.
    pub fn watch(&mut self, client: ClientKey, name: TubeName<'_>) -> usize {
        let client = self.clients.slot(client);
        let tube = self.find_or_make(name);
        if !self.clients.is_watching(client, tube) {
            self.watch_tube(client, tube);
        }
        self.clients[client].watch_count()
    }

    /// The client does not reserve from this tube any more.
    pub fn ignore(&mut self, client: ClientKey, name: TubeName<'_>) -> Ignored {
        let client = self.clients.slot(client);
        let watch = self.tubes.find_slot(name).and_then(|tube| self.clients.find_watch(client, tube));
        let count = self.clients[client].watch_count();
        match watch {
            None => Ignored::Watching(count),
            Some(_) if count == 1 => Ignored::Last,
            Some(watch) => {
                self.unwatch(watch);
                Ignored::Watching(count - 1)
            }
        }
    }

    // Jobs.

    /// The next job id. Taken when a `put` is announced, so that jobs are ordered by their commands and not
    /// by when their bodies were complete.
    pub fn next_id(&mut self) -> JobId {
        let id = self.next_id;
        self.next_id += 1;
        JobId(id)
    }

    /// Stores a job in the tube that the client uses.
    pub fn put(&mut self, client: ClientKey, new: NewJob, now: Time) -> JobKey {
        let tube = self.clients.get(client).used;
        let NewJob { id, pri, delay, ttr, body } = new;
        let job = self.jobs.insert(id, pri, ttr, body, tube, now);
        self.totals.total_jobs += 1;
        self.tubes[tube].counts.jobs += 1;
        self.enter_ready_or_delayed(job, delay, now);
        self.changes.push(Change::Put(job));
        self.serve(tube, self.limit(BACKGROUND_STEPS), now);
        job
    }

    /// Gives the client this job, if it is ready, delayed or buried, in a paused tube too.
    pub fn reserve_job(&mut self, client: ClientKey, id: JobId, now: Time) -> Option<JobKey> {
        let client = self.clients.slot(client);
        let job = self.jobs.find(id).filter(|&job| self.jobs.get(job).state != State::Reserved)?;
        self.mark_worker(client);
        if self.jobs.get(job).state == State::Ready {
            self.take(job, client, now);
        } else {
            self.leave(job, now);
            self.hold(job, client, None, now);
            self.changes.push(Change::TakenOut(job));
        }
        Some(job)
    }

    /// Takes a job away that the client holds, or that nobody does. False if there is none.
    pub fn delete(&mut self, client: ClientKey, id: JobId, now: Time) -> bool {
        let client = self.clients.slot(client);
        let Some(job) = self.jobs.find(id) else { return false };
        let record = self.jobs.get(job);
        let tube = record.tube;
        if record.state == State::Reserved && self.jobs.holder(record) != Some(client) {
            return false;
        }
        self.leave(job, now);
        let body = self.jobs.remove(job);
        self.bodies.free(body);
        self.tubes[tube].counts.deletes += 1;
        self.changes.push(Change::Deleted(job, id));
        self.drop_if_unwanted(tube);
        true
    }

    /// Puts a job that the client holds back with a new priority. False if it does not hold it.
    pub fn release(&mut self, client: ClientKey, id: JobId, pri: u32, delay: u32, now: Time) -> bool {
        let client = self.clients.slot(client);
        let Some(job) = self.held_by(client, id) else { return false };
        self.leave(job, now);
        let record = self.jobs.get_mut(job);
        record.pri = pri;
        let tube = record.tube;
        self.jobs.activity_mut(job).counts.releases += 1;
        self.enter_ready_or_delayed(job, delay, now);
        self.changes.push(Change::Released(job));
        self.serve(tube, self.limit(BACKGROUND_STEPS), now);
        true
    }

    /// Puts a job that the client holds aside. False if it does not hold it.
    pub fn bury(&mut self, client: ClientKey, id: JobId, pri: u32, now: Time) -> bool {
        let client = self.clients.slot(client);
        let Some(job) = self.held_by(client, id) else { return false };
        self.leave(job, now);
        self.jobs.get_mut(job).pri = pri;
        self.jobs.activity_mut(job).counts.buries += 1;
        self.enter_buried(job);
        self.changes.push(Change::Buried(job));
        true
    }

    /// Starts the time to run of a job that the client holds again. False if it does not hold it.
    pub fn touch(&mut self, client: ClientKey, id: JobId, now: Time) -> bool {
        let client = self.clients.slot(client);
        let Some(job) = self.held_by(client, id) else { return false };
        let ttr = Span::from_secs(self.jobs.get(job).ttr);
        let activity = self.jobs.activity_key(job);
        let held = &mut self.clients[client].held;
        held.remove(&mut self.jobs.activities, activity);
        self.jobs.activities[activity].deadline = now + ttr;
        held.insert(&mut self.jobs.activities, activity);
        self.rearm_client(client);
        true
    }

    /// Makes up to `bound` jobs of the used tube ready: buried ones, the oldest first; only if there are
    /// none, delayed ones, the soonest first.
    pub fn kick(&mut self, client: ClientKey, bound: u32, now: Time) -> Kicked {
        let Client { conn, used, .. } = *self.clients.get(client);
        let tube = self.tubes.key(used);
        let record = &mut self.tubes[used];
        let from = if record.buried.is_empty() { State::Delayed } else { State::Buried };
        let there = if from == State::Buried { record.buried.len() } else { record.delayed.len() };
        let left = bound.min(there as u32);
        record.pins += 1;
        let mut kick = Kick { conn, tube, from, left, kicked: 0 };
        if self.kick_some(&mut kick, now, self.limit(BACKGROUND_STEPS)) {
            return Kicked::Jobs(kick.kicked);
        }
        self.work.push_back(Work::Kick(kick));
        Kicked::Working
    }

    /// Makes one buried or delayed job ready. False if there is none with this id.
    pub fn kick_job(&mut self, id: JobId, now: Time) -> bool {
        let Some(job) = self.jobs.find(id) else { return false };
        let is_kickable = matches!(self.jobs.get(job).state, State::Buried | State::Delayed);
        if is_kickable {
            self.make_ready(job, Change::Kicked(job), self.limit(BACKGROUND_STEPS), now);
        }
        is_kickable
    }

    /// No job is reserved from the tube for so long; a pause of no length ends one. False if there is no
    /// such tube.
    pub fn pause(&mut self, name: TubeName<'_>, length: Span, now: Time) -> bool {
        let Some(key) = self.tubes.find(name) else { return false };
        let until = now + length;
        let slot = key.slot;
        let tube = &mut self.tubes[slot];
        tube.counts.pauses += 1;
        tube.pause = (length > Span::ZERO).then_some(Pause { until, length });
        self.timers.arm(tube.timer, until);
        self.tubes.relist(slot);
        self.changes.push(Change::Paused { tube: key, until });
        self.serve(slot, self.limit(BACKGROUND_STEPS), now);
        true
    }

    /// The ready job of the used tube that is next.
    pub fn peek_ready(&self, client: ClientKey) -> Option<JobKey> {
        self.used(client).ready.min().map(JobKey)
    }

    /// The delayed job of the used tube that is ready first.
    pub fn peek_delayed(&self, client: ClientKey) -> Option<JobKey> {
        self.used(client).delayed.min().map(|activity| self.jobs.activities[activity].job)
    }

    /// The buried job of the used tube that was buried first.
    pub fn peek_buried(&self, client: ClientKey) -> Option<JobKey> {
        self.used(client).buried.front().map(JobKey)
    }

    // What came out.

    /// Whom something happened to.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Appends what to log since the last call.
    #[inline]
    pub fn take_changes(&mut self, changes: &mut Vec<Change>) {
        self.changes.take_into(changes);
    }

    /// Elementary steps taken since the last call beyond one a command: tubes and clients looked at, jobs moved, watches
    /// removed. For fairness between clients.
    pub fn take_steps(&mut self) -> u32 {
        std::mem::take(&mut self.steps)
    }

    /// When [`step`](Self::step) must be called next, if nothing else happens: at once while work is
    /// unfinished.
    pub fn next_deadline(&self) -> Option<Time> {
        if self.work.is_empty() { self.timers.next() } else { Some(Time::ZERO) }
    }

    // What is there.

    /// All jobs.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// All tubes.
    pub fn tubes(&self) -> &Tubes {
        &self.tubes
    }

    /// All clients.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The bodies of jobs.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// The bodies, for those that are on their way in or out.
    pub fn bodies_mut(&mut self) -> &mut Bodies {
        &mut self.bodies
    }

    /// A job beside the bodies, one of which is its own.
    pub fn job_and_bodies(&mut self, job: JobKey) -> (&Job, &mut Bodies) {
        (self.jobs.get(job), &mut self.bodies)
    }

    /// The job's body with its CR LF.
    pub fn body(&self, job: JobKey) -> &[u8] {
        self.bodies.bytes(&self.jobs.get(job).body)
    }

    /// The tube that the client uses.
    pub fn used(&self, client: ClientKey) -> &Tube {
        &self.tubes[self.clients.get(client).used]
    }

    // Tubes and watches.

    pub(super) fn find_or_make(&mut self, name: TubeName<'_>) -> TubeSlot {
        match self.tubes.find_slot(name) {
            Some(tube) => tube,
            None => self.tubes.add(name, &mut self.timers),
        }
    }

    pub(super) fn drop_if_unwanted(&mut self, key: TubeSlot) {
        let tube = &self.tubes[key];
        if key != self.default_tube && !tube.is_wanted() {
            if tube.pause.is_some() {
                self.changes.push(Change::PausedGone(tube.name().as_bytes().into()));
            }
            let tube = &self.tubes[key];
            self.timers.remove(tube.timer);
            self.tubes.remove(key);
        }
    }

    fn watch_tube(&mut self, client: ClientSlot, tube: TubeSlot) {
        let was_wide = self.clients[client].is_wide();
        let added = self.clients.add_watch(client, tube);
        let record = &mut self.tubes[tube];
        record.watching += 1;
        let name_length = record.name().as_bytes().len();
        let record = &mut self.clients[client];
        record.name_lengths += name_length;
        if was_wide {
            self.list_wide(added);
        } else if record.is_wide() {
            for watch in record.watches.clone() {
                self.list_wide(watch);
            }
        }
    }

    pub(super) fn unwatch(&mut self, watch: WatchKey) {
        let record = &self.clients.watches[watch.0];
        let (client, tube) = (record.client, record.tube);
        assert!(!self.clients[client].is_waiting(), "a client that waits sends no command");
        let was_wide = self.clients[client].is_wide();
        if was_wide {
            self.unlist_wide(watch);
        }
        self.clients.remove_watch(watch);
        let record = &self.clients[client];
        if was_wide && !record.is_wide() {
            for watch in record.watches.clone() {
                self.unlist_wide(watch);
            }
        }
        let record = &mut self.tubes[tube];
        record.watching -= 1;
        let name_length = record.name().as_bytes().len();
        self.clients[client].name_lengths -= name_length;
        self.drop_if_unwanted(tube);
    }

    fn list_wide(&mut self, watch: WatchKey) {
        let tube = &mut self.tubes[self.clients.watches[watch.0].tube];
        if tube.wide.is_empty() {
            tube.seen = self.turns;
        }
        tube.wide.push_back(&mut self.clients.watches, watch.0);
    }

    fn unlist_wide(&mut self, watch: WatchKey) {
        let tube = &mut self.tubes[self.clients.watches[watch.0].tube];
        tube.wide.remove(&mut self.clients.watches, watch.0);
    }

    // Who holds what.

    /// The client that holds the job.
    pub fn holder(&self, job: JobKey) -> Option<ClientKey> {
        self.jobs.holder(self.jobs.get(job)).map(|holder| self.clients.key(holder))
    }

    fn held_by(&self, client: ClientSlot, id: JobId) -> Option<JobKey> {
        self.jobs.find(id).filter(|&job| self.jobs.holder(self.jobs.get(job)) == Some(client))
    }

    /// The deadline of the reservation of this client that ends first.
    pub(super) fn soonest_held(&self, client: ClientSlot) -> Option<Time> {
        self.clients[client].held.min().map(|key| {
            let activity: &Activity = &self.jobs.activities[key];
            activity.deadline
        })
    }
}
