//! Tubes: what is in each, who refers to it, and finding it by name.

use std::hash::{DefaultHasher, Hasher};
use std::ops::{Index, IndexMut};

use super::latency::{LatencyKind, Sample, TubeLatency};
use super::order::Order;
use super::roll::{Found, Roll, name_bytes};
use super::timers::{Owner, TimerKey, Timers};
use crate::ids::{TubeKey, TubeSlot};
use crate::intrusive::{self, Chained, Heap, Linked, Links, List, NIL, Pages};
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// A tube exists while it has a job, a user, a watcher, or unfinished work; `default` always does.
pub struct Tube {
    name: Box<[u8]>,
    /// How many tubes had come and gone before it.
    pub born: u64,
    /// Jobs by (priority, id).
    pub ready: Heap,
    /// The same jobs in the order in which they became ready.
    pub(super) ready_order: Order,
    /// Jobs by (deadline, id), through their activities.
    pub delayed: Heap,
    /// Jobs in the order in which they were buried.
    pub buried: List,
    /// How many jobs clients hold.
    pub reserved: u32,
    /// How many ready jobs are urgent.
    pub urgent: u32,
    /// Clients that use the tube.
    pub using: u32,
    /// Clients that watch it.
    pub watching: u32,
    /// Background work that names it.
    pub(super) pins: u32,
    /// Watches of narrow clients that wait, the longest waiting first.
    pub(super) waiting: List,
    /// Watches of wide clients, waiting or not.
    pub(super) wide: List,
    /// No wide client watches it whose wait began up to this turn and goes on.
    pub(super) seen: u64,
    /// Until when no job is reserved from it.
    pub pause: Option<Pause>,
    /// What has happened in it.
    pub counts: TubeCounts,
    /// How long its jobs waited and were held, from the first time on that one was reserved.
    pub(super) latency: Option<Box<TubeLatency>>,
    /// Fires when a delay or the pause ends.
    pub(super) timer: TimerKey,
    /// In the list of servable tubes.
    pub(super) listed: bool,
    /// Jobs are being handed out in steps; nobody else need do so.
    pub(super) serving: bool,
    links: Links,
    chain: u32,
    hash: u64,
    /// In the order of names.
    position: u32,
}

const _: () = assert!(size_of::<Option<Tube>>() == 248);

/// A pause of a tube.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// When it ends.
    pub until: Time,
    /// How long it was asked to be.
    pub length: Span,
}

/// Totals of one tube, since it was made.
#[derive(Clone, Copy, Default, Debug)]
pub struct TubeCounts {
    /// Jobs stored.
    pub jobs: u64,
    /// `delete` commands that took a job.
    pub deletes: u64,
    /// `pause-tube` commands.
    pub pauses: u64,
}

/// All tubes.
pub struct Tubes {
    pub(super) slab: Pages<Tube>,
    index: intrusive::Index,
    /// Every tube, in the order that `list-tubes` shows.
    roll: Roll,
    /// What all names take.
    name_bytes: usize,
    /// How long they are together.
    name_lengths: usize,
    /// What the times of all tubes take.
    latency_bytes: usize,
    /// Tubes from which a job could be reserved now.
    pub(super) servable: List,
}

impl Tube {
    /// Its name.
    pub fn name(&self) -> TubeName<'_> {
        TubeName::new(&self.name).expect("a tube was made from a valid name")
    }

    /// How many jobs there are in it, in any state.
    pub fn jobs(&self) -> usize {
        self.ready.len() + self.delayed.len() + self.buried.len() + self.reserved as usize
    }

    /// Counts a sample. False if there is no memory for it [yet](Tubes::add_first_sample).
    #[inline]
    pub(super) fn add_sample(&mut self, kind: LatencyKind, sample: Sample) -> bool {
        self.latency.as_mut().is_some_and(|latency| latency.add(kind, sample))
    }

    /// No two tubes that have had one slot were born at the same time.
    const fn generation(&self) -> u32 {
        self.born as u32
    }

    pub(super) const fn position(&self) -> u32 {
        self.position
    }

    pub(super) fn set_position(&mut self, position: u32) {
        self.position = position;
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.using > 0 || self.watching > 0 || self.pins > 0 || self.jobs() > 0
    }

    pub(super) fn must_relist(&self) -> bool {
        self.is_servable() != self.listed
    }

    fn is_servable(&self) -> bool {
        !self.ready.is_empty() && self.pause.is_none()
    }
}

impl Tubes {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            slab: Pages::new(),
            index: intrusive::Index::new(seed),
            roll: Roll::default(),
            name_bytes: 0,
            name_lengths: 0,
            latency_bytes: 0,
            servable: List::new(),
        }
    }

    /// The tube.
    ///
    /// # Panics
    /// If it has gone, also if another has its slot since.
    pub fn get(&self, tube: TubeKey) -> &Tube {
        let record = &self.slab[tube.slot.0];
        assert_eq!(record.generation(), tube.generation, "a tube that is named has not gone");
        record
    }

    /// The tube, unless it has gone.
    pub fn get_if_there(&self, tube: TubeKey) -> Option<&Tube> {
        self.slab.get(tube.slot.0).filter(|record| record.generation() == tube.generation)
    }

    /// The slot of the tube.
    ///
    /// # Panics
    /// If it has gone, also if another has its slot since.
    #[inline]
    pub(super) fn slot(&self, tube: TubeKey) -> TubeSlot {
        self.get(tube);
        tube.slot
    }

    /// The key of the tube in this slot.
    pub fn key(&self, slot: TubeSlot) -> TubeKey {
        TubeKey { slot, generation: self[slot].generation() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether there are none: never, in a queue.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// How many tubes have come and gone since the start.
    pub const fn moment(&self) -> u64 {
        self.roll.moment()
    }

    /// The tube of this name, if there is one.
    pub fn find(&self, name: TubeName<'_>) -> Option<TubeKey> {
        self.find_slot(name).map(|slot| self.key(slot))
    }

    pub(super) fn find_slot(&self, name: TubeName<'_>) -> Option<TubeSlot> {
        self.index.find(&self.slab, self.hash(name), |tube| *tube.name == *name.as_bytes()).map(TubeSlot)
    }

    /// All tubes, in the order that `list-tubes` shows.
    pub fn iter(&self) -> impl Iterator<Item = (TubeKey, &Tube)> {
        self.roll.tubes().map(|slot| (self.key(slot), &self[slot]))
    }

    /// The memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.slab.bytes() + self.index.bytes() + self.roll.bytes() + self.name_bytes + self.latency_bytes
    }

    /// What a tube of this name adds to that.
    pub(super) fn growth(&mut self, name: TubeName<'_>) -> usize {
        self.slab.growth() + self.index.growth() + self.roll.growth() + name_bytes(name.as_bytes())
    }

    /// How many names there are, of tubes and of those that have gone but are in a list that is being read.
    pub(super) fn names(&self) -> usize {
        self.len() + self.roll.gone()
    }

    /// How long the names of all tubes are together.
    pub(super) const fn name_lengths(&self) -> usize {
        self.name_lengths
    }

    /// Makes a tube.
    pub(super) fn add(&mut self, name: TubeName<'_>, timers: &mut Timers) -> TubeSlot {
        let timer = timers.add();
        let key = self.slab.insert(Tube {
            name: name.as_bytes().into(),
            born: 0,
            ready: Heap::new(),
            ready_order: Order::new(),
            delayed: Heap::new(),
            buried: List::new(),
            reserved: 0,
            urgent: 0,
            using: 0,
            watching: 0,
            pins: 0,
            waiting: List::new(),
            wide: List::new(),
            seen: 0,
            pause: None,
            counts: TubeCounts::default(),
            latency: None,
            timer,
            listed: false,
            serving: false,
            links: Links::NONE,
            chain: NIL,
            hash: self.hash(name),
            position: 0,
        });
        self.index.insert(&mut self.slab, key);
        self.name_bytes += name_bytes(name.as_bytes());
        self.name_lengths += name.as_bytes().len();
        let tube = &mut self.slab[key];
        (tube.position, tube.born) = self.roll.add(TubeSlot(key));
        timers.set_owner(timer, Owner::Tube(self.key(TubeSlot(key))));
        TubeSlot(key)
    }

    /// Takes a tube away that nothing refers to.
    pub(super) fn remove(&mut self, key: TubeSlot) {
        self.index.remove(&mut self.slab, key.0);
        let tube = self.slab.remove(key.0);
        assert!(!tube.is_wanted() && !tube.listed, "a tube that goes is empty");
        self.name_bytes -= name_bytes(&tube.name);
        self.name_lengths -= tube.name.len();
        self.latency_bytes -= tube.latency.map_or(0, |latency| latency.bytes());
        self.roll.remove(&mut self.slab, tube.name, tube.born, tube.position);
    }

    /// Puts the tube in the list of servable ones, or takes it out, after its jobs or its pause have changed.
    pub(super) fn relist(&mut self, key: TubeSlot) {
        let tube = &mut self.slab[key.0];
        let servable = tube.is_servable();
        if servable != tube.listed {
            tube.listed = servable;
            if servable {
                self.servable.push_back(&mut self.slab, key.0);
            } else {
                self.servable.remove(&mut self.slab, key.0);
            }
        }
    }

    /// What [`add_first_sample`](Self::add_first_sample) takes.
    pub(super) fn latency_growth(&self, key: TubeSlot) -> usize {
        if self[key].latency.is_some() { TubeLatency::BLOCK_BYTES } else { TubeLatency::BYTES_MIN }
    }

    /// Counts a sample for which the tube has had no memory.
    pub(super) fn add_first_sample(&mut self, key: TubeSlot, kind: LatencyKind, sample: Sample) {
        let latency = &mut self.slab[key.0].latency;
        let before = latency.as_ref().map_or(0, |latency| latency.bytes());
        let latency = latency.get_or_insert_with(TubeLatency::new);
        latency.add_block(kind, sample);
        latency.add(kind, sample);
        self.latency_bytes += latency.bytes() - before;
    }

    /// A list begins that shows all tubes.
    pub(super) fn begin_list(&mut self, moment: u64) {
        self.roll.begin(moment);
    }

    /// A list is over. True if there is something to [tidy](Self::tidy).
    pub(super) fn end_list(&mut self, moment: u64) -> bool {
        self.roll.end(moment)
    }

    /// What a list that began at this moment shows at a place.
    pub(super) fn listed_at(&self, position: usize, moment: u64) -> Found<'_> {
        self.roll.at(&self.slab, position, moment)
    }

    /// Forgets names that no list shows any more, while there are steps left. True if more is to be done.
    pub(super) fn tidy(&mut self, steps_left: &mut u32) -> bool {
        self.roll.tidy(&mut self.slab, steps_left)
    }

    /// SipHash with the seed before the name.
    fn hash(&self, name: TubeName<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.index.seed());
        hasher.write(name.as_bytes());
        hasher.finish()
    }

    pub(super) fn check(&self) {
        self.slab.check();
        self.index.check(&self.slab);
        self.servable.check(&self.slab);
        assert_eq!(self.index.len(), self.slab.len(), "every tube can be found");
        self.roll.check(&self.slab);
        for (_, tube) in self.iter() {
            assert_eq!(tube.listed, tube.is_servable(), "{} is listed as it should", tube.name().as_str());
        }
        let listed = self.iter().filter(|(_, tube)| tube.listed).count();
        assert_eq!(self.servable.len(), listed, "the servable tubes are in the list");
        let names: usize = self.iter().map(|(_, tube)| name_bytes(&tube.name)).sum();
        assert_eq!(self.name_bytes, names, "the names are counted");
        let lengths: usize = self.iter().map(|(_, tube)| tube.name.len()).sum();
        assert_eq!(self.name_lengths, lengths, "the lengths of names are counted");
        let latency: usize =
            self.iter().filter_map(|(_, tube)| tube.latency.as_ref()).map(|latency| latency.bytes()).sum();
        assert_eq!(self.latency_bytes, latency, "the latency counters of tubes are counted");
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

impl Chained for Tube {
    fn hash(&self, _seed: u64) -> u64 {
        self.hash
    }

    fn chain(&self) -> u32 {
        self.chain
    }

    fn set_chain(&mut self, next: u32) {
        self.chain = next;
    }
}

impl Linked for Tube {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Engine, NewJob};
    use super::*;
    use crate::ids::ConnId;

    #[test]
    fn a_tube_takes_memory_for_times_from_its_first_reservation_until_it_goes() {
        let mut engine = Engine::new(1);
        let client = engine.connect(ConnId { slot: 0, generation: 0 });
        let cycle = |engine: &mut Engine, name: &[u8]| {
            let name = TubeName::new(name).expect("a valid name");
            engine.use_tube(client, name);
            engine.watch(client, name);
            engine.ignore(client, TubeName::DEFAULT);
            let (id, body) = (engine.next_id(), engine.bodies_mut().allocate(66).expect("there is memory"));
            engine.put(client, NewJob { id, pri: 0, delay: 0, ttr: 60, body }, Time::ZERO);
            let before = engine.memory_bytes();
            engine.reserve(client, None, Time::ZERO);
            let grown = engine.memory_bytes() - before;
            engine.delete(client, id, Time::ZERO);
            grown
        };
        // The record of what has happened to the job is new too, the first time.
        cycle(&mut engine, b"first");
        let used = engine.tubes.latency_bytes;
        assert_eq!(cycle(&mut engine, b"second"), TubeLatency::BYTES_MIN);
        assert_eq!(cycle(&mut engine, b"second"), 0, "it has them by now");
        engine.use_tube(client, TubeName::DEFAULT);
        engine.watch(client, TubeName::DEFAULT);
        engine.ignore(client, TubeName::new(b"second").expect("a valid name"));
        assert_eq!(engine.tubes.latency_bytes, used, "they go with the tube");
        engine.check();
    }

    #[test]
    fn a_key_of_a_removed_tube_does_not_name_the_next_tube_in_its_slot() {
        let mut engine = Engine::new(1);
        let client = engine.connect(ConnId { slot: 0, generation: 0 });
        let [first, second] = [b"first".as_slice(), b"second"].map(|name| {
            engine.use_tube(client, TubeName::new(name).expect("a valid name"));
            let key = engine.tubes.key(engine.clients.get(client).used);
            engine.use_tube(client, TubeName::DEFAULT);
            key
        });
        engine.use_tube(client, TubeName::new(b"third").expect("a valid name"));
        assert!(first.slot == second.slot && first != second);
        assert!(engine.tubes.get_if_there(first).is_none() && engine.tubes.get_if_there(second).is_none());
        let third = engine.tubes.key(first.slot);
        assert_eq!(engine.tubes.get(third).name().as_bytes(), b"third");
        let result = std::panic::catch_unwind(|| engine.tubes.get(second).name().as_bytes().to_vec());
        assert!(result.is_err(), "the assertion catches a stale key");
    }
}
