//! The records of the queue: what clients, tubes and jobs are, and what every transition counts.

pub mod client;
pub mod containers;
pub mod heads;
pub mod job;
pub mod job_index;
pub mod latency;
pub mod names;
pub mod timers;
pub mod tube;
pub mod tube_order;
pub mod watched_bits;

use self::client::{Clients, NARROW_WATCH_MAX};
use self::job::{JobState, JobTags, Jobs};
use self::latency::{LatencyKind, QueueLatency};
use self::names::store_text;
use self::timers::Timers;
use self::tube::{Tube, Tubes};
use crate::bodies::Bodies;
use crate::queue::effects::{Change, Changes};
use crate::queue::long_work::LogRoom;
use crate::time::Time;
use crate::values::ids::{ClientKey, ClientSlot, JobId, JobKey, TagsKey, TubeSlot, WatchKey};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

/// Jobs, tubes and clients, which every part of the queue may read and change.
pub struct Store {
    pub jobs: Jobs,
    pub tubes: Tubes,
    pub clients: Clients,
    pub timers: Timers,
    pub bodies: Bodies,
    pub totals: JobTotals,
    pub latency: QueueLatency,
    pub limits: TubeLimits,
    pub log_room: LogRoom,
    pub default_tube: TubeSlot,
    pub next_id: u64,
    /// The smallest number that the next burial may have: see [`put_in_buried`](Self::put_in_buried).
    pub burials: u64,
}

/// Counts of the whole queue, updated by every transition.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct JobTotals {
    /// Number of jobs in each [`JobState`].
    pub jobs: [u32; JobState::COUNT],
    /// Number of ready jobs that are urgent.
    pub urgent: u32,
    /// Number of clients that wait.
    pub waiting: u32,
    /// Number of clients that have put.
    pub producers: u32,
    /// Number of clients that have reserved.
    pub workers: u32,
    /// Jobs stored since the start.
    pub total_jobs: u64,
    /// Reservations that timed out since the start.
    pub timeouts: u64,
    /// Reservations since the start that ended with the connection of their holder, and were counted as failures.
    pub losses: u64,
    /// Jobs deleted since the start.
    pub deletes: u64,
    /// Jobs released since the start.
    pub releases: u64,
    /// Jobs buried since the start.
    pub buries: u64,
    /// Jobs kicked since the start.
    pub kicks: u64,
    /// Jobs that commands moved to another tube since the start.
    pub moves: u64,
    /// Puts since the start that repeated the idempotency key of another job.
    pub repeats: u64,
}

impl JobTotals {
    /// The number of jobs in this state.
    pub const fn in_state(&self, state: JobState) -> u32 {
        self.jobs[state as usize]
    }
}

/// Limits of tubes and watches. Recovery may exceed them.
#[derive(Clone, Copy, Debug)]
pub struct TubeLimits {
    /// Maximum number of tubes.
    pub tubes: usize,
    /// Maximum number of tubes that one client watches.
    pub watches: usize,
    /// Maximum memory of tubes, names and watches together.
    pub bytes: usize,
}

/// More than a new tube and its watch allocate apart from tables that double: a piece of each hash index and a page of
/// each slab.
const ROOM_BYTES: usize = 1024 * 1024;

impl TubeLimits {
    /// No limits.
    pub const NONE: Self = Self { tubes: usize::MAX, watches: usize::MAX, bytes: usize::MAX };
}

impl Store {
    /// The tube `default` alone. `seed` keeps clients from choosing names, ids and watches whose hashes collide.
    pub fn new(seed: u64) -> Self {
        let mut tubes = Tubes::new(seed);
        let mut timers = Timers::default();
        let default_tube = tubes.add(TubeName::DEFAULT, &mut timers);
        Self {
            jobs: Jobs::new(seed),
            tubes,
            clients: Clients::new(seed),
            timers,
            bodies: Bodies::new(),
            totals: JobTotals::default(),
            latency: QueueLatency::new(),
            limits: TubeLimits::NONE,
            log_room: LogRoom::UNLIMITED,
            default_tube,
            next_id: 1,
            burials: 0,
        }
    }

    #[inline]
    pub fn body_bytes(&self, job: JobKey) -> u64 {
        self.jobs.get(job).body.len() as u64 - 2
    }

    pub fn tube_of(&self, job: JobKey) -> TubeName<'_> {
        self.tubes[self.jobs.get(job).tube].name()
    }

    #[inline]
    pub fn tags(&self, job: JobKey) -> Tags<'_> {
        self.stored_tags(self.jobs.get(job).tags_key())
    }

    #[inline]
    pub fn stored_tags(&self, tags_key: Option<TagsKey>) -> Tags<'_> {
        tags_key.map_or(Tags::NONE, |tags_key| self.jobs.tags[tags_key.0].tags(&self.bodies))
    }

    pub fn used(&self, client: ClientKey) -> &Tube {
        &self.tubes[self.clients.get(client).used]
    }

    /// Counts the client as a worker from now on.
    pub fn mark_worker(&mut self, client: ClientSlot) {
        let record = &mut self.clients[client];
        self.totals.workers += u32::from(!record.is_worker);
        record.is_worker = true;
    }

    /// Brings the head of a tube in line with a change of its ready jobs, its pause or its work.
    pub fn refresh(&mut self, tube: TubeSlot) {
        self.tubes.refresh(tube, &self.jobs);
    }

    pub fn reserved_by(&self, client: ClientSlot, id: JobId) -> Option<JobKey> {
        self.jobs.find(id).filter(|&job| self.jobs.holder(self.jobs.get(job)) == Some(client))
    }

    /// The deadline of the reservation that ends first.
    pub fn first_deadline(&self, client: ClientSlot) -> Option<Time> {
        self.clients[client].reserved.min().map(|key| self.jobs.lifecycles[key].deadline)
    }

    /// Makes a client the holder of a reserved job, which has a deadline and this lifecycle.
    #[inline(always)]
    pub fn give_to(&mut self, client: ClientSlot, job: JobKey, key: u32) {
        let lifecycle = &mut self.jobs.lifecycles[key];
        lifecycle.set_holder(client);
        let holder = &mut self.clients[client];
        self.timers.arm(holder.timer, lifecycle.deadline);
        holder.reserved.insert(&mut self.jobs.lifecycles, key);
        holder.reserved_order.push_back(&mut self.jobs.slab, job.0);
    }

    /// Removes a tube that nothing refers to any more.
    pub fn remove_if_unreferenced(&mut self, key: TubeSlot, changes: &mut Changes) {
        let tube = &self.tubes[key];
        if key != self.default_tube && !tube.is_referenced() {
            if tube.pause.is_some() {
                changes.push(Change::PausedGone(tube.name().as_bytes().into()));
            }
            // mutant timer-of-a-tube-that-is-gone: removed
            self.timers.remove(tube.timer);
            self.tubes.remove(key);
        }
    }

    /// Begins a piece of work that names the tube, which stays until [its end](Self::unpin).
    pub fn pin(&mut self, tube: TubeSlot) {
        self.tubes[tube].pins += 1;
    }

    /// Ends a piece of work that names the tube.
    pub fn unpin(&mut self, tube: TubeSlot, changes: &mut Changes) {
        self.tubes[tube].pins -= 1;
        self.remove_if_unreferenced(tube, changes);
    }

    /// Removes a watch of a client that does not wait.
    pub fn unwatch(&mut self, watch: WatchKey, changes: &mut Changes) {
        let record = &self.clients.watches[watch.0];
        let (client, tube) = (record.client, record.tube);
        assert!(!self.clients[client].is_waiting(), "a client that waits sends no command");
        let was_wide = self.clients[client].is_wide();
        if was_wide {
            self.remove_wide_watch(watch);
        }
        self.clients.remove_watch(watch);
        let record = &self.clients[client];
        if was_wide && !record.is_wide() {
            // Bounded by NARROW_WATCH_MAX: the watches of a client that has just become narrow.
            for watched in record.watches.clone() {
                self.remove_wide_watch(watched.watch);
            }
        }
        let record = &mut self.tubes[tube];
        record.watching -= 1;
        let name_length = record.name().as_bytes().len();
        self.clients[client].name_lengths -= name_length;
        self.remove_if_unreferenced(tube, changes);
    }

    fn remove_wide_watch(&mut self, watch: WatchKey) {
        let tube = &mut self.tubes[self.clients.watches[watch.0].tube];
        tube.wide_watches.remove(&mut self.clients.watches, watch.0);
    }

    /// Whether the job log has room for the job under the name of another tube, with notes of this size.
    pub fn has_room_in(&self, name: TubeName<'_>, job: JobKey, notes_bytes: usize) -> bool {
        let (before, after) = (self.tube_of(job).as_bytes().len(), name.as_bytes().len());
        let has_room = self.logged_bytes(job) - before + after + notes_bytes <= self.log_room.job_bytes_max;
        after <= before || !self.log_room.is_full && has_room
    }

    /// What a record has of a job besides its fixed fields and its notes, in bytes.
    pub fn logged_bytes(&self, job: JobKey) -> usize {
        self.tube_of(job).as_bytes().len() + self.tags(job).as_bytes().len() + self.jobs.get(job).body.len()
    }

    /// Stores the tags of a job whose body is still to come.
    #[inline(never)]
    pub fn store_tags(&mut self, tags: Tags<'_>) -> TagsKey {
        let text = store_text(&mut self.bodies, tags.as_bytes());
        TagsKey(self.jobs.tags.insert(JobTags::new(text)))
    }

    #[inline]
    pub fn free_tags(&mut self, tags_key: Option<TagsKey>) {
        if let Some(tags_key) = tags_key {
            self.bodies.free(self.jobs.tags.remove(tags_key.0).into_text());
        }
    }
}

// Limits of tubes and watches.
impl Store {
    pub fn tube_bytes(&self) -> usize {
        self.tubes.bytes() + self.clients.watch_bytes() + self.tubes.len() * Timers::ELEMENT_BYTES
    }

    pub fn can_use(&mut self, name: TubeName<'_>) -> bool {
        self.is_far_below_limits() || self.tubes.find(name).is_some() || self.has_room(Some(name), None)
    }

    /// Returns true if the client may watch the tube of this name: it does so already, or there is room for the watch.
    ///
    /// The first watches of existing tubes are never refused for memory. So workers that reconnect can work even if other
    /// clients have filled the tables.
    pub fn can_watch(&mut self, client: ClientKey, name: TubeName<'_>) -> bool {
        let is_below_max = self.clients.get(client).watch_count() < self.limits.watches;
        if is_below_max && self.is_far_below_limits() {
            return true;
        }
        let is_narrow = self.clients.get(client).watch_count() < NARROW_WATCH_MAX;
        match self.tubes.find_slot(name) {
            Some(tube) if self.clients.is_watching(client.slot, tube) => true,
            Some(_) => is_below_max && (is_narrow || self.has_room(None, Some(client))),
            None => is_below_max && self.has_room(Some(name), Some(client)),
        }
    }

    /// Counts a latency of a job of the tube. Where memory is short, the tube counts it only if it has a counter for it.
    #[inline]
    pub fn record_latency(&mut self, tube: TubeSlot, kind: LatencyKind, since: Time, now: Time) {
        let sample = self.latency.add(kind, now.since(since));
        if !self.tubes.add_sample(tube, kind, sample, now)
            && self.tube_bytes() + self.tubes.latency_growth(tube) <= self.limits.bytes
        {
            self.tubes.add_first_sample(tube, kind, sample, now);
        }
    }

    fn is_far_below_limits(&self) -> bool {
        // A full table doubles, and no table is larger than all of them together.
        let bytes_most = self.tube_bytes().saturating_mul(2).saturating_add(ROOM_BYTES);
        self.tubes.names() < self.limits.tubes && bytes_most <= self.limits.bytes
    }

    /// Returns true if there is room for a new tube of this name, and for a watch of this client.
    fn has_room(&mut self, tube: Option<TubeName<'_>>, watcher: Option<ClientKey>) -> bool {
        let tube_growth = tube.map_or(0, |name| self.tubes.growth(name) + Timers::ELEMENT_BYTES);
        let slots_end = self.tubes.slots_end() + 1;
        let watch_growth = watcher.map_or(0, |client| self.clients.watch_growth(client, slots_end));
        let has_number = tube.is_none() || self.tubes.names() < self.limits.tubes;
        has_number && self.tube_bytes() + tube_growth + watch_growth <= self.limits.bytes
    }
}
