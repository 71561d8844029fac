//! Concurrency keys: each limits how many of its jobs are reserved at a time, over all tubes.
//!
//! The limit of a key is that of its newest job. The ready jobs of a key in one tube form a *lane*. Only the most urgent job
//! of a lane, its head, is in the ready heap of the tube, and only while the lane is open. The others are parked in the
//! lane. So no search meets more than one job per lane, however many are parked.
//!
//! ```text
//!            a search meets the head, and the key is full
//!          ┌───────────────────────────────────────────────▶
//!   Open: the head is in the tube's ready heap        Shut: the lane is in the key's heap of shut lanes
//!          ◀───────────────────────────────────────────────┘
//!            a job of the key is not reserved any more, most urgent head first
//! ```
//!
//! A key that becomes full leaves its lanes in other tubes open, because there may be very many. They are shut when a
//! search meets them. Each opening follows a shutting, and each shutting an opening or a job that became ready. A search that
//! meets very many of them leaves the rest to background work, and clients wait for a job of the tube until that is done.

use crate::bodies::Bodies;
use crate::intrusive::{Heap, Links, List, NIL, Table, intrusive, pair};
use crate::queue::effects::Effects;
use crate::queue::long_work::Work;
use crate::queue::store::Store;
use crate::queue::store::containers::ReadyJob;
use crate::queue::store::job::{Job, JobState, Jobs};
use crate::queue::store::names::{Name, named};
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{ClientSlot, ConSlot, JobId, JobKey, TagsKey, TubeSlot};
use crate::values::tags::Con;

/// All keys and lanes.
pub struct ConKeys {
    table: Table<ConKey>,
    lanes: Table<Lane>,
    /// Number of jobs with a key.
    jobs: usize,
    /// Keys that are full and have an open lane.
    loose: List,
    /// Number of tubes whose lanes background work shuts.
    shutting: u32,
}

struct ConKey {
    name: Name,
    /// The jobs of the key by their tags, the newest first.
    jobs: Heap,
    /// Number of reserved jobs.
    reserved: u32,
    /// The limit of the newest job.
    limit: u32,
    /// Open lanes.
    open: List,
    /// Shut lanes by the priority and id of their heads.
    shut: Heap,
    /// The key is in the list of loose keys.
    is_loose: bool,
    /// Background work opens the lanes.
    is_reopening: bool,
    /// In the list of loose keys.
    links: Links,
}

/// The ready jobs of one key in one tube, of which there is at least one.
struct Lane {
    con: ConSlot,
    tube: TubeSlot,
    head: JobKey,
    /// Priority and id of the head.
    head_key: (u32, JobId),
    /// The other jobs.
    parked: Heap,
    is_open: bool,
    chain: u32,
    /// In the list of open lanes, or in the heap of shut ones.
    links: Links,
    rank: u8,
}

impl ConKeys {
    /// No keys. `seed` keeps clients from choosing keys that collide.
    pub const fn new(seed: u64) -> Self {
        Self { table: Table::new(seed), lanes: Table::new(seed), jobs: 0, loose: List::new(), shutting: 0 }
    }

    pub const fn bytes(&self) -> usize {
        self.table.bytes() + self.lanes.bytes()
    }

    /// The number of keys.
    pub const fn len(&self) -> usize {
        self.table.len()
    }

    /// The memory still to be allocated until every job with a key has a lane of its own.
    pub fn reserved_memory_bytes(&self) -> usize {
        self.jobs.saturating_sub(self.lanes.touched()) * size_of::<Option<Lane>>()
    }

    /// What a job with this key adds at most to [`bytes`](Self::bytes) and
    /// [`reserved_memory_bytes`](Self::reserved_memory_bytes) together.
    pub fn growth(&mut self, con: Option<Con<'_>>, bodies: &Bodies) -> usize {
        let Some(con) = con else { return 0 };
        let lane = if self.jobs < self.lanes.touched() { 0 } else { size_of::<Option<Lane>>() };
        self.table.growth_with_name(con.key.as_bytes().len(), bodies) + lane + self.lanes.index_growth()
    }

    /// Whether background work shuts lanes of some tube.
    pub const fn is_shutting_any(&self) -> bool {
        self.shutting > 0
    }

    fn is_full(&self, con: ConSlot) -> bool {
        let key = &self.table[con.0];
        key.reserved >= key.limit
    }

    /// Whether a lane of the key may be opened. Shut lanes wait for background work that opens them.
    fn may_open(&self, con: ConSlot) -> bool {
        !self.is_full(con) && !self.table[con.0].is_reopening
    }

    fn add(&mut self, name: &[u8], bodies: &mut Bodies) -> ConSlot {
        ConSlot(self.table.insert(ConKey {
            name: Name::store(name, self.table.seed(), bodies),
            jobs: Heap::new(),
            reserved: 0,
            limit: 0,
            open: List::new(),
            shut: Heap::new(),
            is_loose: false,
            is_reopening: false,
            links: Links::NONE,
        }))
    }

    fn remove_if_unused(&mut self, con: ConSlot, bodies: &mut Bodies) {
        let key = &self.table[con.0];
        if key.jobs.is_empty() && !key.is_reopening {
            let key = self.table.remove(con.0);
            assert!(
                key.reserved == 0 && key.open.is_empty() && key.shut.is_empty(),
                "a key that is removed has no jobs"
            );
            key.name.free(bodies);
        }
    }

    fn update_loose(&mut self, con: ConSlot) {
        let key = &mut self.table[con.0];
        let is_loose = key.reserved >= key.limit && !key.open.is_empty();
        match (std::mem::replace(&mut key.is_loose, is_loose), is_loose) {
            (false, true) => self.loose.push_back(&mut self.table, con.0),
            (true, false) => self.loose.remove(&mut self.table, con.0),
            _ => {}
        }
    }

    fn find_lane(&self, con: ConSlot, tube: TubeSlot) -> Option<u32> {
        self.lanes.find_word(pair(con.0, tube.0))
    }

    fn add_lane(&mut self, con: ConSlot, tube: TubeSlot, head: JobKey, head_key: (u32, JobId)) -> u32 {
        self.lanes.insert(Lane {
            con,
            tube,
            head,
            head_key,
            parked: Heap::new(),
            is_open: false,
            chain: NIL,
            links: Links::NONE,
            rank: 0,
        })
    }

    /// Adds a job to its key, if it has one. It is in no container yet.
    pub fn join(&mut self, job: JobKey, tags_key: TagsKey, store: &mut Store) {
        let id = store.jobs.get(job).id;
        let record = &store.jobs.tags[tags_key.0];
        let Some(Con { key, limit }) = record.tags(&store.bodies).con() else { return };
        let con = match self.table.find_name(&[key.as_bytes()], &store.bodies).map(ConSlot) {
            Some(con) => con,
            None => {
                let name = key.as_bytes().to_vec();
                self.add(&name, &mut store.bodies)
            }
        };
        let record = &mut store.jobs.tags[tags_key.0];
        (record.con, record.id, record.limit) = (Some(con), id, limit.get());
        self.jobs += 1;
        self.table[con.0].jobs.insert(&mut store.jobs.tags, tags_key.0);
        self.update_limit(con, &store.jobs);
    }

    /// Removes a job that is in no container from its key.
    pub fn leave(&mut self, tags_key: TagsKey, jobs: &mut Jobs) {
        let Some(con) = jobs.tags[tags_key.0].con else { return };
        self.jobs -= 1;
        self.table[con.0].jobs.remove(&mut jobs.tags, tags_key.0);
        self.update_limit(con, jobs);
    }

    fn update_limit(&mut self, con: ConSlot, jobs: &Jobs) {
        let key = &mut self.table[con.0];
        key.limit = key.jobs.min().map_or(0, |newest| jobs.tags[newest].limit);
        self.update_loose(con);
    }

    /// Whether the key of a job is at its limit.
    #[inline]
    pub fn is_at_limit(&self, job: JobKey, jobs: &Jobs) -> bool {
        jobs.con_of(job).is_some_and(|con| self.is_full(con))
    }

    /// Counts a job with these tags as reserved.
    #[cold]
    pub fn count_reserved(&mut self, tags_key: TagsKey, jobs: &Jobs) {
        if let Some(con) = jobs.con_of_tags(tags_key) {
            self.table[con.0].reserved += 1;
            self.update_loose(con);
        }
    }

    /// Counts it as not reserved any more. [`open_next`](Self::open_next) must follow.
    #[cold]
    pub fn count_end_of_reservation(&mut self, tags_key: TagsKey, jobs: &Jobs) {
        if let Some(con) = jobs.con_of_tags(tags_key) {
            self.table[con.0].reserved -= 1;
            self.update_loose(con);
        }
    }

    /// Adds a job to the ready heap of its tube, or to the lane of its key.
    #[inline(always)]
    pub fn insert_ready(&mut self, ready: ReadyJob, store: &mut Store) {
        match ready.tags_key.and_then(|tags_key| store.jobs.con_of_tags(tags_key)) {
            None => store.tubes[ready.tube].ready.insert(&mut store.jobs.slab, ready.job.0),
            Some(con) => self.insert_into_lane(ready, con, store),
        }
    }

    /// Removes a job from there.
    #[inline(always)]
    pub fn remove_ready(&mut self, ready: ReadyJob, store: &mut Store) {
        match ready.tags_key.and_then(|tags_key| store.jobs.con_of_tags(tags_key)) {
            None => store.tubes[ready.tube].ready.remove(&mut store.jobs.slab, ready.job.0),
            Some(con) => self.remove_from_lane(ready.job, con, store),
        }
    }

    #[cold]
    fn insert_into_lane(&mut self, ready: ReadyJob, con: ConSlot, store: &mut Store) {
        let ReadyJob { job, pri, id, tube, .. } = ready;
        let Some(lane) = self.find_lane(con, tube) else {
            let lane = self.add_lane(con, tube, job, (pri, id));
            return self.place_head(lane, store);
        };
        let Lane { head, head_key, is_open, .. } = self.lanes[lane];
        // mutant con-urgent-job-behind-an-open-lane: (pri, id) < head_key => (pri, id) < head_key && !is_open
        let (is_head, may_open) = ((pri, id) < head_key, !is_open && self.may_open(con));
        if is_head || may_open {
            self.lift_head(lane, store);
        }
        let mut parked = job;
        if is_head {
            let record = &mut self.lanes[lane];
            (record.head, record.head_key, parked) = (job, (pri, id), head);
        }
        self.lanes[lane].parked.insert(&mut store.jobs.slab, parked.0);
        store.tubes[tube].parked += 1;
        if is_head || may_open {
            self.place_head(lane, store);
        }
    }

    #[cold]
    fn remove_from_lane(&mut self, job: JobKey, con: ConSlot, store: &mut Store) {
        let tube = store.jobs.get(job).tube;
        let lane = self.find_lane(con, tube).expect("a ready job with a key has a lane");
        if self.lanes[lane].head != job {
            self.lanes[lane].parked.remove(&mut store.jobs.slab, job.0);
            store.tubes[tube].parked -= 1;
            return;
        }
        self.lift_head(lane, store);
        let Some(next) = self.lanes[lane].parked.pop(&mut store.jobs.slab) else {
            self.lanes.remove(lane);
            return;
        };
        store.tubes[tube].parked -= 1;
        let &Job { pri, id, .. } = store.jobs.get(JobKey(next));
        let record = &mut self.lanes[lane];
        (record.head, record.head_key) = (JobKey(next), (pri, id));
        self.place_head(lane, store);
    }

    /// Opens a lane, or shuts it if its key is full. Its head is in no heap.
    fn place_head(&mut self, lane: u32, store: &mut Store) {
        let Lane { con, tube, head, .. } = self.lanes[lane];
        let is_open = self.may_open(con);
        self.lanes[lane].is_open = is_open;
        if is_open {
            self.table[con.0].open.push_back(&mut self.lanes, lane);
            store.tubes[tube].ready.insert(&mut store.jobs.slab, head.0);
        } else {
            self.table[con.0].shut.insert(&mut self.lanes, lane);
            store.tubes[tube].parked += 1;
        }
        self.update_loose(con);
    }

    /// Takes the head of a lane out of the heap that it is in.
    fn lift_head(&mut self, lane: u32, store: &mut Store) {
        let Lane { con, tube, head, is_open, .. } = self.lanes[lane];
        if is_open {
            self.table[con.0].open.remove(&mut self.lanes, lane);
            store.tubes[tube].ready.remove(&mut store.jobs.slab, head.0);
        } else {
            self.table[con.0].shut.remove(&mut self.lanes, lane);
            store.tubes[tube].parked -= 1;
        }
        self.update_loose(con);
    }

    /// Shuts the lanes of full keys whose heads are the most urgent jobs of the tube, up to the limit. If there are more, the tube
    /// is not reservable until background work has shut them.
    #[inline]
    pub fn shut_full(
        &mut self,
        tube: TubeSlot,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) {
        if !self.loose.is_empty() {
            self.shut_full_of(tube, limit, store, effects, budget);
        }
    }

    #[cold]
    fn shut_full_of(
        &mut self,
        tube: TubeSlot,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) {
        if store.tubes[tube].shutting {
            return;
        }
        while let Some(job) =
            store.tubes[tube].ready.min().map(JobKey).filter(|&job| self.is_at_limit(job, &store.jobs))
        {
            if !budget.spend(Cost::STEP, limit) {
                self.shut_later(tube, store, effects);
                break;
            }
            let con = store.jobs.con_of(job).expect("a job at its limit has a key");
            let lane = self.find_lane(con, tube).expect("a ready job with a key has a lane");
            self.lift_head(lane, store);
            self.place_head(lane, store);
        }
        store.refresh(tube);
    }

    /// Shuts the lanes of full keys that a search for this client may meet: those of its tubes, or all of them if it watches many.
    /// Returns false if there are more of all of them.
    #[inline]
    pub fn shut_full_for(
        &mut self,
        client: ClientSlot,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) -> bool {
        self.loose.is_empty() || self.shut_full_watched(client, limit, store, effects, budget)
    }

    #[cold]
    fn shut_full_watched(
        &mut self,
        client: ClientSlot,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) -> bool {
        if store.clients[client].is_wide() {
            return self.shut_loose(limit, store, budget);
        }
        // Bounded by NARROW_WATCH_MAX: the watches of a narrow client.
        for watched in store.clients[client].watches.clone() {
            if store.tubes[watched.tube].in_reservable {
                self.shut_full_of(watched.tube, limit, store, effects, budget);
            }
        }
        true
    }

    /// Shuts the open lanes of all full keys, up to the limit. Returns true if there are no more.
    pub fn shut_loose(&mut self, limit: Limit, store: &mut Store, budget: &mut Budget) -> bool {
        while let Some(con) = self.loose.front() {
            if !budget.spend(Cost::STEP, limit) {
                return false;
            }
            let lane = self.table[con].open.front().expect("a loose key has an open lane");
            let tube = self.lanes[lane].tube;
            self.lift_head(lane, store);
            self.place_head(lane, store);
            store.refresh(tube);
        }
        true
    }

    fn shut_later(&mut self, tube: TubeSlot, store: &mut Store, effects: &mut Effects) {
        store.pin(tube);
        store.tubes.set_shutting(tube, true);
        self.shutting += 1;
        effects.work.push_back(Work::Shut { tube: store.tubes.key(tube) });
    }

    /// Opens the next lane of a key that may not be full any more, up to the limit. Returns its tube, whose jobs are to be assigned. If
    /// there is none, the rest is left to background work, or the key may be gone.
    pub fn open_next(
        &mut self,
        con: ConSlot,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) -> Option<TubeSlot> {
        let shut = if self.may_open(con) { self.table[con.0].shut.min() } else { None };
        let Some(lane) = shut else {
            self.remove_if_unused(con, &mut store.bodies);
            return None;
        };
        if !budget.spend(Cost::STEP, limit) {
            self.table[con.0].is_reopening = true;
            effects.work.push_back(Work::Reopen { con });
            return None;
        }
        let tube = self.lanes[lane].tube;
        self.lift_head(lane, store);
        self.place_head(lane, store);
        store.refresh(tube);
        Some(tube)
    }

    /// Begins to continue [`Work::Reopen`].
    pub fn begin_reopen(&mut self, con: ConSlot) {
        self.table[con.0].is_reopening = false;
    }

    /// Continues [`Work::Shut`]. Clients that wait are to get the jobs that it has looked for.
    pub fn continue_shut(
        &mut self,
        tube: TubeSlot,
        limit: Limit,
        store: &mut Store,
        effects: &mut Effects,
        budget: &mut Budget,
    ) {
        store.tubes.set_shutting(tube, false);
        self.shutting -= 1;
        self.shut_full_of(tube, limit, store, effects, budget);
    }

    // Bounded by its caller: a test.
    pub fn check(&self, store: &Store, effects: &Effects) {
        let Self { table, lanes, .. } = self;
        table.check(0);
        lanes.check(0);
        let mut jobs = 0;
        for (slot, key) in table.iter() {
            let con = ConSlot(slot);
            key.jobs.check(&store.jobs.tags);
            key.shut.check(lanes);
            key.open.check(lanes);
            jobs += key.jobs.len();
            let of_key = store.jobs.iter().filter(|&(job, _)| store.jobs.con_of(job) == Some(con));
            let reserved = of_key.filter(|(_, job)| job.state == JobState::Reserved).count();
            assert_eq!(key.reserved as usize, reserved, "the reserved jobs of a key are counted");
            let newest = key.jobs.min().map(|newest| &store.jobs.tags[newest]);
            assert_eq!(newest.map_or(0, |newest| newest.limit), key.limit, "the newest job has the limit");
            let own = || lanes.iter().filter(|(_, lane)| lane.con == con);
            let open = own().filter(|(_, lane)| lane.is_open).count();
            assert_eq!((open, own().count() - open), (key.open.len(), key.shut.len()), "lanes are counted");
            assert_eq!(
                key.is_loose,
                key.reserved >= key.limit && !key.open.is_empty(),
                "a loose key is known"
            );
            assert!(self.is_full(con) || key.shut.is_empty() || key.is_reopening, "no lane is shut in vain");
            let is_queued = |work: &Work| matches!(work, Work::Reopen { con: queued } if *queued == con);
            assert_eq!(
                effects.work.iter().filter(|work| is_queued(work)).count(),
                usize::from(key.is_reopening)
            );
            assert!(key.is_reopening || !key.jobs.is_empty(), "a key without jobs is removed");
        }
        assert_eq!(jobs, self.jobs, "the jobs with a key are counted");
        self.loose.check(table);
        assert_eq!(table.iter().filter(|(_, key)| key.is_loose).count(), self.loose.len());
        let shutting = store.tubes.iter().filter(|(_, tube)| tube.shutting).count();
        assert_eq!(shutting, self.shutting as usize, "tubes whose lanes are being shut are counted");
        for (_, lane) in lanes.iter() {
            lane.parked.check(&store.jobs.slab);
            let &Job { pri, id, .. } = store.jobs.get(lane.head);
            assert_eq!(lane.head_key, (pri, id), "a lane knows its head");
            let check = |job: JobKey| {
                let record = store.jobs.get(job);
                assert_eq!((record.state, record.tube), (JobState::Ready, lane.tube), "job {}", record.id);
                assert_eq!(
                    store.jobs.con_of(job),
                    Some(lane.con),
                    "job {} is in the lane of its key",
                    record.id
                );
                assert!((record.pri, record.id) >= lane.head_key, "the head is the most urgent");
            };
            lane.parked.for_each(&store.jobs.slab, |job| check(JobKey(job)));
            check(lane.head);
        }
    }

    /// The number of ready jobs of a tube that are not in its ready heap.
    pub fn count_parked(&self, tube: TubeSlot) -> usize {
        // Bounded by its caller: a test.
        let lanes = self.lanes.iter().filter(|(_, lane)| lane.tube == tube);
        lanes.map(|(_, lane)| lane.parked.len() + usize::from(!lane.is_open)).sum()
    }
}

named!(ConKey);
intrusive!(ConKey: in lists);
intrusive!(Lane: in heaps by (u32, JobId), |lane| lane.head_key);
intrusive!(Lane: in tables by |lane| pair(lane.con.0, lane.tube.0));
