//! Tubes: the containers of each, the references to it, and finding it by name.

use std::ops::{Index, IndexMut};

use super::containers::{ReadyOrder, ReservedOrder};
use super::heads::{ASSIGNING, Heads, SHUTTING};
use super::job::{JobState, Jobs};
use super::latency::{LatencyKind, Sample, TubeLatency};
use super::names::{hash_names, text_bytes};
use super::timers::{Owner, TimerKey, Timers};
use super::tube_order::TubeOrder;
use crate::intrusive::{Heap, Links, List, NIL, Table, intrusive};
use crate::time::{Span, Time};
use crate::values::budget::{Budget, Limit};
use crate::values::ids::{JobId, JobKey, RulesSlot, TubeKey, TubeSlot};
use crate::values::tube_name::TubeName;

/// A tube. It exists while it has a job, a user, a watcher or unfinished work, and until its rate permits the next job. The tube
/// `default` always exists.
pub struct Tube {
    // Persistent.
    name: Box<[u8]>,
    /// While a tube is paused, no job is reserved from it.
    pub pause: Option<Pause>,

    // In memory only: jobs.
    /// Ready jobs by (priority, id), without parked ones.
    pub ready: Heap,
    /// The ready jobs in the order in which they became ready.
    pub(in crate::queue) ready_order: ReadyOrder,
    /// Delayed jobs by (deadline, id), through their lifecycles.
    pub delayed: Heap,
    /// The delayed jobs in the order in which their delays began.
    pub(in crate::queue) delayed_order: List,
    /// The held jobs in the order in which they were held.
    pub held: List,
    /// Buried jobs in the order of burial.
    pub buried: List,
    /// Number of ready jobs that are not in the heap, because their concurrency keys are at their limits or have a more
    /// urgent job there.
    pub(in crate::queue) parked: u32,
    /// The reserved jobs.
    pub(in crate::queue) reserved: ReservedOrder,
    /// Number of ready jobs that are urgent.
    pub urgent: u32,
    /// The size of all bodies without their CR LF.
    pub(in crate::queue) body_bytes: u64,

    // In memory only: clients.
    /// Number of clients that use the tube.
    pub using: u32,
    /// Number of clients that watch it.
    pub watching: u32,
    /// Watches of narrow clients that wait, the longest wait first.
    pub(in crate::queue) narrow_waiters: List,
    /// Watches of wide clients, waiting or not.
    pub(in crate::queue) wide_watches: List,
    /// Searches for a wide client begin behind this wait: clients whose waits began up to here do not watch the tube.
    pub(in crate::queue) searched_through: u64,

    // In memory only: work and statistics.
    /// Fires when a delay or the pause ends, when the rate permits the next job, and when a buried job expires.
    pub(in crate::queue) timer: TimerKey,
    /// Pieces of unfinished work that name the tube.
    pub(in crate::queue) pins: u32,
    /// Background work assigns the tube's jobs to waiting clients.
    pub(in crate::queue) assigning: bool,
    /// Background work shuts lanes of full concurrency keys. Until it has, no job of the tube is reserved.
    pub(in crate::queue) shutting: bool,
    /// The tube is in [`Tubes::reservable`].
    pub(in crate::queue) in_reservable: bool,
    /// The tube has handed out as many jobs as its rate permits for now.
    pub(in crate::queue) is_throttled: bool,
    /// The slot of its rules, or [`NIL`].
    rules: u32,
    /// Totals for `stats-tube`.
    pub counts: TubeCounts,
    /// `None` until a job is reserved.
    pub(in crate::queue) latency: Option<Box<TubeLatency>>,

    // In memory only: the place of the record.
    /// The version of the order of tubes before the tube was added.
    pub(super) added_at: u64,
    /// The place in the order of tubes.
    pub(super) position: u32,
    /// In [`Tubes::reservable`].
    links: Links,
    hash: u64,
    chain: u32,
}

const _: () = assert!(size_of::<Option<Tube>>() == 312);

/// A pause of a tube.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// When it ends.
    pub until: Time,
    /// The length that the client asked for.
    pub length: Span,
}

/// Totals of one tube since it was created.
#[derive(Clone, Copy, Default, Debug)]
pub struct TubeCounts {
    /// Jobs stored.
    pub jobs: u64,
    /// Jobs deleted, by clients or because their retention was over.
    pub deletes: u64,
    /// `pause-tube` commands.
    pub pauses: u64,
    /// Reservations that timed out.
    pub timeouts: u64,
    /// Jobs buried, by clients or after their last attempt.
    pub buries: u64,
}

/// All tubes.
pub struct Tubes {
    pub(in crate::queue) slab: Table<Tube>,
    pub(super) order: TubeOrder,
    /// Tubes with a ready job that are neither paused nor throttled, and whose lanes no background work shuts.
    pub(in crate::queue) reservable: List,
    /// What a reserve compares of each tube.
    pub(in crate::queue) heads: Heads,
    /// The memory of all names.
    name_bytes: usize,
    /// The length of all names.
    pub(super) name_lengths: usize,
    /// The memory of all latency counters.
    latency_bytes: usize,
}

impl Tube {
    /// The name.
    pub fn name(&self) -> TubeName<'_> {
        TubeName::new(&self.name).expect("a tube was created with a valid name")
    }

    /// The number of ready jobs.
    pub fn ready_jobs(&self) -> usize {
        self.ready.len() + self.parked as usize
    }

    /// The number of jobs, in any state.
    pub fn jobs(&self) -> usize {
        self.ready_jobs()
            + self.delayed.len()
            + self.held.len()
            + self.buried.len()
            + self.reserved.len() as usize
    }

    /// The first job in a state: the most urgent one, the one whose delay ends first, or the one that came first.
    pub(in crate::queue) fn first_in(&self, state: JobState, jobs: &Jobs) -> Option<JobKey> {
        match state {
            JobState::Ready => self.ready.min().map(JobKey),
            JobState::Reserved => self.reserved.front(jobs),
            JobState::Delayed => self.delayed.min().map(|lifecycle| jobs.lifecycles[lifecycle].job),
            JobState::Buried => self.buried.front().map(JobKey),
            JobState::Held => self.held.front().map(JobKey),
        }
    }

    /// The number of jobs in this state.
    pub(in crate::queue) fn jobs_in(&self, state: JobState) -> usize {
        match state {
            JobState::Ready => self.ready_jobs(),
            JobState::Reserved => self.reserved.len() as usize,
            JobState::Delayed => self.delayed.len(),
            JobState::Buried => self.buried.len(),
            JobState::Held => self.held.len(),
        }
    }

    /// Each tube is added at a version of its own, so tubes that share a slot differ.
    const fn generation(&self) -> u32 {
        self.added_at as u32
    }

    pub(in crate::queue) fn is_referenced(&self) -> bool {
        self.using > 0 || self.watching > 0 || self.pins > 0 || self.is_throttled || self.jobs() > 0
    }

    /// The rules of the tube, if it has any.
    #[inline]
    pub(in crate::queue) fn rules(&self) -> Option<RulesSlot> {
        (self.rules != NIL).then_some(RulesSlot(self.rules))
    }

    pub(in crate::queue) fn set_rules(&mut self, rules: Option<RulesSlot>) {
        self.rules = rules.map_or(NIL, |slot| slot.0);
    }

    /// The priority, id and key of the most urgent ready job.
    #[inline]
    fn first_ready(&self, jobs: &Jobs) -> Option<(u32, JobId, JobKey)> {
        let job = JobKey(self.ready.min()?);
        let record = jobs.get(job);
        Some((record.pri, record.id, job))
    }

    /// The most urgent ready job, if a reserve gets it.
    pub(in crate::queue) fn head(&self, jobs: &Jobs) -> Option<(u32, JobId, JobKey)> {
        self.first_ready(jobs).filter(|_| self.is_reservable())
    }

    /// Whether a client that watches it may get a job of it.
    #[inline]
    pub fn is_reservable(&self) -> bool {
        !self.ready.is_empty() && self.pause.is_none() && !self.is_throttled && !self.shutting
    }
}

impl Tubes {
    pub(in crate::queue) fn new(seed: u64) -> Self {
        Self {
            slab: Table::new(seed),
            order: TubeOrder::default(),
            reservable: List::new(),
            heads: Heads::default(),
            name_bytes: 0,
            name_lengths: 0,
            latency_bytes: 0,
        }
    }

    /// The tube.
    ///
    /// # Panics
    /// If the key is stale: the tube was removed, and another may have its slot.
    pub fn get(&self, tube: TubeKey) -> &Tube {
        let record = &self.slab[tube.slot.0];
        assert_eq!(record.generation(), tube.generation, "a tube key is not stale");
        record
    }

    /// The tube, unless it was removed.
    pub fn get_if_there(&self, tube: TubeKey) -> Option<&Tube> {
        self.slab.get(tube.slot.0).filter(|record| record.generation() == tube.generation)
    }

    /// The slot of the tube.
    ///
    /// # Panics
    /// If the key is stale.
    #[inline]
    pub(in crate::queue) fn slot(&self, tube: TubeKey) -> TubeSlot {
        self.get(tube);
        tube.slot
    }

    /// The key of the tube in this slot.
    pub fn key(&self, slot: TubeSlot) -> TubeKey {
        TubeKey { slot, generation: self[slot].generation() }
    }

    /// The number of tubes.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns true if there are no tubes, which is never so in a queue.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// The tube of this name.
    pub fn find(&self, name: TubeName<'_>) -> Option<TubeKey> {
        self.find_slot(name).map(|slot| self.key(slot))
    }

    pub(in crate::queue) fn find_slot(&self, name: TubeName<'_>) -> Option<TubeSlot> {
        self.slab.find(self.hash(name), |tube| *tube.name == *name.as_bytes()).map(TubeSlot)
    }

    /// All tubes, in the order of `list-tubes`.
    pub fn iter(&self) -> impl Iterator<Item = (TubeKey, &Tube)> {
        self.order.tubes().map(|slot| (self.key(slot), &self[slot]))
    }

    /// The tube in this slot, if there is one.
    pub fn at_slot(&self, slot: u32) -> Option<(TubeKey, &Tube)> {
        let tube = self.slab.get(slot)?;
        Some((TubeKey { slot: TubeSlot(slot), generation: tube.generation() }, tube))
    }

    /// A number above every slot that has a tube. Tubes keep their slots, so a walk over the slots can be interrupted.
    pub fn slots_end(&self) -> u32 {
        self.slab.keys_end()
    }

    pub(in crate::queue) fn bytes(&self) -> usize {
        let tables = self.slab.bytes() + self.order.bytes() + self.heads.bytes();
        tables + self.name_bytes + self.latency_bytes
    }

    /// What a new tube of this name adds to [`bytes`](Self::bytes).
    pub(in crate::queue) fn growth(&mut self, name: TubeName<'_>) -> usize {
        let tables = self.slab.growth() + self.order.growth() + self.heads.growth();
        tables + text_bytes(name.as_bytes())
    }

    /// The number of names: of tubes, and of removed tubes that a list still shows.
    pub fn names(&self) -> usize {
        self.len() + self.order.removed_names()
    }

    pub(in crate::queue) fn add(&mut self, name: TubeName<'_>, timers: &mut Timers) -> TubeSlot {
        let timer = timers.add();
        let slot = TubeSlot(self.slab.insert(Tube {
            name: name.as_bytes().into(),
            pause: None,
            ready: Heap::new(),
            ready_order: ReadyOrder::new(),
            delayed: Heap::new(),
            delayed_order: List::new(),
            held: List::new(),
            buried: List::new(),
            parked: 0,
            reserved: ReservedOrder::new(),
            urgent: 0,
            body_bytes: 0,
            using: 0,
            watching: 0,
            narrow_waiters: List::new(),
            wide_watches: List::new(),
            searched_through: 0,
            timer,
            pins: 0,
            assigning: false,
            shutting: false,
            in_reservable: false,
            is_throttled: false,
            rules: NIL,
            counts: TubeCounts::default(),
            latency: None,
            added_at: 0,
            position: 0,
            links: Links::NONE,
            hash: self.hash(name),
            chain: NIL,
        }));
        self.heads.add(slot);
        self.name_bytes += text_bytes(name.as_bytes());
        self.name_lengths += name.as_bytes().len();
        let (position, added_at) = self.order.add(slot);
        let tube = &mut self[slot];
        (tube.position, tube.added_at) = (position, added_at);
        timers.set_owner(timer, Owner::Tube(self.key(slot)));
        slot
    }

    /// Removes a tube that nothing refers to.
    pub(in crate::queue) fn remove(&mut self, slot: TubeSlot) {
        let tube = self.slab.remove(slot.0);
        assert!(!tube.is_referenced() && !tube.in_reservable, "a tube that is removed is empty");
        self.name_bytes -= text_bytes(&tube.name);
        self.name_lengths -= tube.name.len();
        self.latency_bytes -= tube.latency.map_or(0, |latency| latency.bytes());
        self.heads.shrink(self.slab.keys_end());
        self.order.remove(&mut self.slab, tube.name, tube.added_at, tube.position);
    }

    /// Brings the head of the tube and the list of reservable tubes in line with a change of its jobs, its pause or its work.
    pub(in crate::queue) fn refresh(&mut self, slot: TubeSlot, jobs: &Jobs) {
        let first = self[slot].first_ready(jobs);
        self.refresh_with(slot, first);
    }

    /// Brings the head in line for a tube with this most urgent ready job.
    #[inline(always)]
    pub(in crate::queue) fn refresh_with(&mut self, slot: TubeSlot, first: Option<(u32, JobId, JobKey)>) {
        let tube = &mut self.slab[slot.0];
        let is_reservable = tube.is_reservable();
        self.heads.set_job(slot, first.filter(|_| is_reservable));
        if is_reservable != tube.in_reservable {
            tube.in_reservable = is_reservable;
            if is_reservable {
                self.reservable.push_back(&mut self.slab, slot.0);
            } else {
                self.reservable.remove(&mut self.slab, slot.0);
            }
        }
    }

    /// Notes whether background work assigns the tube's jobs to waiting clients.
    pub(in crate::queue) fn set_assigning(&mut self, slot: TubeSlot, is_assigning: bool) {
        self[slot].assigning = is_assigning;
        self.heads.set_flag(slot, ASSIGNING, is_assigning);
    }

    /// Notes whether background work shuts lanes of the tube. [`refresh`](Self::refresh) must follow.
    pub(in crate::queue) fn set_shutting(&mut self, slot: TubeSlot, is_shutting: bool) {
        self[slot].shutting = is_shutting;
        self.heads.set_flag(slot, SHUTTING, is_shutting);
    }

    /// Counts a time of a job of the tube, if there is a counter for it.
    #[inline]
    pub(in crate::queue) fn add_sample(
        &mut self,
        slot: TubeSlot,
        kind: LatencyKind,
        sample: Sample,
        now: Time,
    ) -> bool {
        let Some(latency) = &mut self.slab[slot.0].latency else { return false };
        let is_counted = latency.add(kind, sample, now);
        if self.heads.has_averages && kind == LatencyKind::Reserved && is_counted {
            self.heads.set_rate(slot, latency.sum(kind).rate());
        }
        is_counted
    }

    /// The most memory that [`add_first_sample`](Self::add_first_sample) allocates.
    pub(in crate::queue) fn latency_growth(&self, slot: TubeSlot) -> usize {
        if self[slot].latency.is_some() { TubeLatency::BLOCK_BYTES } else { TubeLatency::BYTES_MIN }
    }

    /// Counts a sample for which the tube has no counter yet.
    pub(in crate::queue) fn add_first_sample(
        &mut self,
        slot: TubeSlot,
        kind: LatencyKind,
        sample: Sample,
        now: Time,
    ) {
        let latency = &mut self.slab[slot.0].latency;
        let before = latency.as_ref().map_or(0, |latency| latency.bytes());
        let latency = latency.get_or_insert_with(|| TubeLatency::new(now));
        latency.add_block(kind, sample);
        self.latency_bytes += latency.bytes() - before;
        self.add_sample(slot, kind, sample, now);
    }

    /// Removes names that no list shows any more, up to the limit. Returns true if there are more.
    pub(in crate::queue) fn purge(&mut self, budget: &mut Budget, limit: Limit) -> bool {
        self.order.purge(&mut self.slab, budget, limit)
    }

    fn hash(&self, name: TubeName<'_>) -> u64 {
        hash_names(self.slab.seed(), &[name.as_bytes()])
    }

    // Bounded by its caller: a test.
    pub(in crate::queue) fn check(&self) {
        self.slab.check(0);
        self.reservable.check(&self.slab);
        self.order.check(&self.slab);
        for (_, tube) in self.iter() {
            let is_in_place = tube.in_reservable == tube.is_reservable();
            assert!(is_in_place, "{} is in the list if it is reservable", tube.name().as_str());
        }
        let listed = self.iter().filter(|(_, tube)| tube.in_reservable).count();
        assert_eq!(self.reservable.len(), listed, "the reservable tubes are in the list");
        let names: usize = self.iter().map(|(_, tube)| text_bytes(&tube.name)).sum();
        assert_eq!(self.name_bytes, names, "the memory of names is counted");
        let lengths: usize = self.iter().map(|(_, tube)| tube.name.len()).sum();
        assert_eq!(self.name_lengths, lengths, "the length of names is counted");
        let latency: usize =
            self.iter().filter_map(|(_, tube)| tube.latency.as_ref()).map(|latency| latency.bytes()).sum();
        assert_eq!(self.latency_bytes, latency, "the memory of latency counters is counted");
    }
}

impl Index<TubeSlot> for Tubes {
    type Output = Tube;

    #[inline]
    fn index(&self, slot: TubeSlot) -> &Tube {
        &self.slab[slot.0]
    }
}

impl IndexMut<TubeSlot> for Tubes {
    #[inline]
    fn index_mut(&mut self, slot: TubeSlot) -> &mut Tube {
        &mut self.slab[slot.0]
    }
}

intrusive!(Tube: in lists);
intrusive!(Tube: in tables by |tube, _seed| tube.hash);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Engine, NewJob};
    use crate::time::Seconds;
    use crate::values::ids::ConnId;

    #[test]
    fn a_tube_has_latency_counters_from_its_first_reservation_on() {
        let mut engine = Engine::new(1);
        let client = engine.connect(ConnId { slot: 0, generation: 0 });
        let cycle = |engine: &mut Engine, name: &[u8]| {
            let name = TubeName::new(name).expect("a valid name");
            engine.use_tube(client, name);
            engine.watch(client, name);
            engine.ignore(client, TubeName::DEFAULT);
            let (id, body) = (engine.next_id(), engine.bodies_mut().allocate(66).expect("there is memory"));
            engine.put(
                client,
                NewJob { id, pri: 0, delay: Seconds::ZERO, ttr: Seconds::whole(60), body, tags_key: None },
                Time::ZERO,
            );
            let before = engine.memory_bytes();
            engine.reserve(client, None, Time::ZERO);
            let grown = engine.memory_bytes() - before;
            engine.delete(client, id, Time::ZERO);
            grown
        };
        // The first reservation also allocates the slab of lifecycles.
        cycle(&mut engine, b"first");
        let used = engine.tubes().latency_bytes;
        assert_eq!(cycle(&mut engine, b"second"), TubeLatency::BYTES_MIN);
        assert_eq!(cycle(&mut engine, b"second"), 0, "the tube has its counters");
        engine.use_tube(client, TubeName::DEFAULT);
        engine.watch(client, TubeName::DEFAULT);
        engine.ignore(client, TubeName::new(b"second").expect("a valid name"));
        assert_eq!(engine.tubes().latency_bytes, used, "the counters are removed with the tube");
        engine.check();
    }

    #[test]
    fn a_key_of_a_removed_tube_does_not_name_the_next_tube_in_its_slot() {
        let mut engine = Engine::new(1);
        let client = engine.connect(ConnId { slot: 0, generation: 0 });
        let [first, second] = [b"first".as_slice(), b"second"].map(|name| {
            engine.use_tube(client, TubeName::new(name).expect("a valid name"));
            let key = engine.tubes().key(engine.clients().get(client).used);
            engine.use_tube(client, TubeName::DEFAULT);
            key
        });
        engine.use_tube(client, TubeName::new(b"third").expect("a valid name"));
        assert!(first.slot == second.slot && first != second);
        assert!(
            engine.tubes().get_if_there(first).is_none() && engine.tubes().get_if_there(second).is_none()
        );
        let third = engine.tubes().key(first.slot);
        assert_eq!(engine.tubes().get(third).name().as_bytes(), b"third");
        let tubes = engine.tubes();
        let result = std::panic::catch_unwind(|| tubes.get(second).name().as_bytes().to_vec());
        assert!(result.is_err(), "the assertion catches a stale key");
    }
}
