//! Tubes: what is in each, who refers to it, and finding it by name.

use std::hash::{DefaultHasher, Hasher};

use super::order::Order;
use super::timers::{Owner, TimerKey, Timers};
use super::times::{Lapse, Sample, TubeTimes};
use crate::ids::TubeKey;
use crate::intrusive::{Chained, Heap, Index, Linked, Links, List, NIL, Pages};
use crate::limits::ALLOCATION_BYTES;
use crate::time::{Span, Time};
use crate::tube_name::TubeName;

/// A tube exists while it has a job, a user, a watcher, or unfinished work; `default` always does.
pub struct Tube {
    name: Box<[u8]>,
    /// How many tubes had been made before it.
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
    /// Until when no job is reserved from it.
    pub pause: Option<Pause>,
    /// What has happened in it.
    pub counts: TubeCounts,
    /// How long its jobs waited and were held, from the first time on that one was reserved.
    pub(super) times: Option<Box<TubeTimes>>,
    /// Fires when a delay or the pause ends.
    pub(super) timer: TimerKey,
    /// In the list of servable tubes.
    pub(super) listed: bool,
    /// Jobs are being handed out in steps; nobody else need do so.
    pub(super) serving: bool,
    links: Links,
    chain: u32,
    hash: u64,
    /// In the list of names.
    position: u32,
}

const _: () = assert!(size_of::<Option<Tube>>() == 240);

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
    /// Makes hashes of names that clients cannot foresee.
    seed: u64,
    pub(super) slab: Pages<Tube>,
    index: Index,
    /// Every tube, in the order that `list-tubes` shows.
    order: Vec<TubeKey>,
    /// How many tubes have been made.
    made: u64,
    /// What all names take.
    name_bytes: usize,
    /// How many tubes have times.
    timed: usize,
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

    /// How many clients watch it beside many others.
    pub fn wide_watchers(&self) -> usize {
        self.wide.len()
    }

    /// Takes note of a sample. True if it is the first one, for which the tube has taken memory.
    pub(super) fn note(&mut self, lapse: Lapse, sample: Sample) -> bool {
        let is_new = self.times.is_none();
        self.times.get_or_insert_with(TubeTimes::new).note(lapse, sample);
        is_new
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
            seed,
            slab: Pages::new(),
            index: Index::new(),
            order: Vec::new(),
            made: 0,
            name_bytes: 0,
            timed: 0,
            servable: List::new(),
        }
    }

    /// The tube.
    pub fn get(&self, tube: TubeKey) -> &Tube {
        &self.slab[tube.0]
    }

    /// The tube, unless it has gone. Another may have its key since.
    pub fn get_if_there(&self, tube: TubeKey) -> Option<&Tube> {
        self.slab.get(tube.0)
    }

    /// All tubes, in the order that `list-tubes` shows.
    pub fn keys(&self) -> &[TubeKey] {
        &self.order
    }

    /// How many tubes have been made since the start.
    pub const fn made(&self) -> u64 {
        self.made
    }

    /// The tube of this name, if there is one.
    pub fn find(&self, name: TubeName<'_>) -> Option<TubeKey> {
        self.index.find(&self.slab, self.hash(name), |tube| *tube.name == *name.as_bytes()).map(TubeKey)
    }

    /// All tubes, in the order that `list-tubes` shows.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (TubeKey, &Tube)> {
        self.order.iter().map(|&key| (key, self.get(key)))
    }

    /// The memory that they take.
    pub(super) const fn bytes(&self) -> usize {
        let order_bytes = self.order.capacity() * size_of::<TubeKey>();
        self.slab.bytes() + self.index.bytes() + order_bytes + self.name_bytes + self.timed * TubeTimes::BYTES
    }

    pub(super) fn get_mut(&mut self, tube: TubeKey) -> &mut Tube {
        &mut self.slab[tube.0]
    }

    /// Makes a tube.
    pub(super) fn add(&mut self, name: TubeName<'_>, timers: &mut Timers) -> TubeKey {
        let timer = timers.add();
        let key = self.slab.insert(Tube {
            name: name.as_bytes().into(),
            born: self.made,
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
            pause: None,
            counts: TubeCounts::default(),
            times: None,
            timer,
            listed: false,
            serving: false,
            links: Links::NONE,
            chain: NIL,
            hash: self.hash(name),
            position: self.order.len() as u32,
        });
        self.made += 1;
        timers.set_owner(timer, Owner::Tube(TubeKey(key)));
        self.index.insert(&mut self.slab, key);
        self.name_bytes += name_bytes(name.as_bytes());
        self.order.push(TubeKey(key));
        TubeKey(key)
    }

    /// Takes a tube away that nothing refers to.
    pub(super) fn remove(&mut self, key: TubeKey) {
        self.index.remove(&mut self.slab, key.0);
        let tube = self.slab.remove(key.0);
        assert!(!tube.is_wanted() && !tube.listed, "a tube that goes is empty");
        self.name_bytes -= name_bytes(&tube.name);
        self.timed -= usize::from(tube.times.is_some());
        // The last one takes its place, as in the reference, whose clients see the order.
        self.order.swap_remove(tube.position as usize);
        if let Some(&moved) = self.order.get(tube.position as usize) {
            self.slab[moved.0].position = tube.position;
        }
    }

    /// Puts the tube in the list of servable ones, or takes it out, after its jobs or its pause have changed.
    pub(super) fn relist(&mut self, key: TubeKey) {
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

    /// Call this with what [`Tube::note`] returned.
    pub(super) fn count_timed(&mut self, is_new: bool) {
        self.timed += usize::from(is_new);
    }

    /// SipHash with the seed before the name.
    fn hash(&self, name: TubeName<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write(name.as_bytes());
        hasher.finish()
    }

    pub(super) fn check(&self) {
        self.slab.check();
        self.index.check(&self.slab);
        self.servable.check(&self.slab);
        assert_eq!(self.index.len(), self.slab.len(), "every tube can be found");
        assert_eq!(self.order.len(), self.slab.len(), "every tube is in the list of names");
        for (position, (_, tube)) in self.iter().enumerate() {
            assert_eq!(tube.position as usize, position);
            assert_eq!(tube.listed, tube.is_servable(), "{} is listed as it should", tube.name().as_str());
        }
        let listed = self.iter().filter(|(_, tube)| tube.listed).count();
        assert_eq!(self.servable.len(), listed, "the servable tubes are in the list");
        let names: usize = self.iter().map(|(_, tube)| name_bytes(&tube.name)).sum();
        assert_eq!(self.name_bytes, names, "the names are counted");
        let timed = self.iter().filter(|(_, tube)| tube.times.is_some()).count();
        assert_eq!(self.timed, timed, "tubes with times are counted");
    }
}

/// What the name of a tube takes.
const fn name_bytes(name: &[u8]) -> usize {
    name.len().next_multiple_of(ALLOCATION_BYTES) + ALLOCATION_BYTES
}

impl Chained for Tube {
    fn hash(&self) -> u64 {
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
        let used = engine.tubes.timed;
        assert_eq!(cycle(&mut engine, b"second"), TubeTimes::BYTES);
        assert_eq!(cycle(&mut engine, b"second"), 0, "it has them by now");
        engine.use_tube(client, TubeName::DEFAULT);
        engine.watch(client, TubeName::DEFAULT);
        engine.ignore(client, TubeName::new(b"second").expect("a valid name"));
        assert_eq!(engine.tubes.timed, used, "they go with the tube");
        engine.check();
    }
}
