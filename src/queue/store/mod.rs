//! The records of the queue: what clients, tubes and jobs are, and what every transition counts.

pub mod client;
pub mod containers;
pub mod heads;
pub mod job;
pub mod job_index;
pub mod job_tags;
pub mod latency;
pub mod names;
pub mod ready_order;
pub mod reserved_order;
pub mod timers;
pub mod totals;
pub mod tube;
pub mod tube_limits;
pub mod tube_order;
pub mod watched_bits;

use self::client::Clients;
use self::job::{Jobs, Lifecycle};
use self::job_tags::JobTags;
use self::latency::QueueLatency;
use self::names::store_text;
use self::timers::Timers;
use self::totals::JobTotals;
use self::tube::{Tube, Tubes};
use self::tube_limits::TubeLimits;
use crate::bodies::Bodies;
use crate::queue::logged::change::{Change, Changes};
use crate::queue::long_work::moving::LogRoom;
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
            limits: TubeLimits::default(),
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
        self.clients[client].reserved.min().map(|key| {
            let lifecycle: &Lifecycle = &self.jobs.lifecycles[key];
            lifecycle.deadline
        })
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
            let tube = &self.tubes[key];
            // mutant timer-of-a-tube-that-is-gone: removed
            self.timers.remove(tube.timer);
            self.tubes.remove(key);
        }
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

    /// Stores the tags of a job whose body is still to come, if it has any.
    #[inline]
    pub fn store_tags(&mut self, tags: Tags<'_>) -> Option<TagsKey> {
        if tags.is_empty() {
            return None;
        }
        let text = store_text(&mut self.bodies, tags.as_bytes());
        Some(TagsKey(self.jobs.tags.insert(JobTags::new(text))))
    }

    #[inline]
    pub fn free_tags(&mut self, tags_key: Option<TagsKey>) {
        if let Some(tags_key) = tags_key {
            self.bodies.free(self.jobs.tags.remove(tags_key.0).into_text());
        }
    }
}
