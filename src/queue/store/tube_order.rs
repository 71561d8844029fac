//! The order of `list-tubes`, and the lists of all tubes that clients are reading.
//!
//! A long list is rendered no faster than its client reads it. Its length is sent first, so the list must show the tubes as
//! they were when it began. It holds no copy of them: a list is a position in the order and a version. Each tube that is
//! added or removed makes a new version. While lists are read, no tube that one of them shows is moved. When such a tube is
//! removed, its name stays in its place until the last of these lists ends. One name serves all lists, so lists take less
//! memory than the tubes that they show.
//!
//! The order is that of beanstalkd: the last tube takes the place of a removed one, unless a list forbids the move.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::Store;
use super::client::Clients;
use super::names::text_bytes;
use super::tube::{Tube, Tubes};
use crate::intrusive::{Links, List, Pages, intrusive};
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{ClientKey, TubeSlot};
use crate::values::limits::ALLOCATION_BYTES;
use crate::values::tube_name::TubeName;

#[derive(Default)]
pub(in crate::queue) struct TubeOrder {
    places: Vec<TubePlace>,
    /// Names of removed tubes that a list still shows.
    removed: Pages<RemovedName>,
    /// The memory of these names.
    removed_bytes: usize,
    /// Vacant places. Some may have been cut off since.
    vacant: Vec<u32>,
    /// The number of tubes that have been added and removed since the start.
    version: u64,
    /// The lists that are being read, by the version that they show.
    snapshots: BTreeMap<u64, Snapshot>,
    /// Names of snapshots that have ended. Another list may show them, or nothing does.
    unclaimed: VecDeque<List>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TubePlace {
    Tube(TubeSlot),
    Removed(u32),
    Vacant,
}

struct RemovedName {
    name: Box<[u8]>,
    added_at: u64,
    removed_at: u64,
    position: u32,
    links: Links,
}

/// The lists that show one version.
#[derive(Default)]
struct Snapshot {
    readers: u32,
    /// Names of removed tubes that they show and no later list does.
    names: List,
}

/// A list of tubes that is being read.
///
/// [`Engine::list_tubes`](crate::queue::Engine::list_tubes) and [`Engine::list_watched`](crate::queue::Engine::list_watched) create one,
/// [`Engine::next_listed`](crate::queue::Engine::next_listed) reads it. A list that is not read
/// to its end before the next command must be registered with [`Engine::register_list`](crate::queue::Engine::register_list) and ended with [`Engine::end_list`](crate::queue::Engine::end_list).
#[derive(Clone, Debug)]
pub struct TubeList {
    source: ListSource,
    /// The next place to read.
    at: usize,
    /// The number of tubes still to be shown.
    tubes: usize,
    /// The length of their names.
    name_lengths: usize,
}

#[derive(Clone, Copy, Debug)]
enum ListSource {
    /// All tubes of this version.
    Tubes { version: u64 },
    /// The watches of one client. They do not change while the client waits for the list.
    Watched(ClientKey),
}

/// The next place of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed<'a> {
    /// A tube to show.
    Tube(TubeName<'a>),
    /// A place without a tube of this list.
    Nothing,
    /// The end of the list.
    End,
}

impl TubeOrder {
    /// Gives a new tube a place. Returns the place and the version before it.
    pub fn add(&mut self, tube: TubeSlot) -> (u32, u64) {
        // Bounded by earlier calls: a position that is no longer vacant is taken off once.
        let position = loop {
            match self.vacant.pop() {
                Some(position) if !self.is_vacant(position) => {}
                Some(position) => break position,
                None => {
                    self.places.push(TubePlace::Vacant);
                    break self.places.len() as u32 - 1;
                }
            }
        };
        self.places[position as usize] = TubePlace::Tube(tube);
        (position, self.next_version())
    }

    /// Removes a tube. Its name stays while a list shows it.
    pub fn remove(&mut self, slab: &mut Pages<Tube>, name: Box<[u8]>, added_at: u64, position: u32) {
        let removed_at = self.next_version();
        if self.snapshots.is_empty() {
            return self.vacate(slab, position);
        }
        let name =
            self.removed.insert(RemovedName { name, added_at, removed_at, position, links: Links::NONE });
        self.removed_bytes += text_bytes(&self.removed[name].name);
        self.places[position as usize] = TubePlace::Removed(name);
        self.keep_or_purge(slab, name);
    }

    /// All tubes, in order.
    pub fn tubes(&self) -> impl Iterator<Item = TubeSlot> {
        // Bounded by its caller: an iterator.
        self.places.iter().filter_map(|place| match place {
            TubePlace::Tube(tube) => Some(*tube),
            _ => None,
        })
    }

    /// The number of names that removed tubes have left behind.
    pub fn removed_names(&self) -> usize {
        self.removed.len()
    }

    /// Registers a list that shows the current version.
    pub fn begin(&mut self, version: u64) {
        assert_eq!(version, self.version, "a list is registered before the next change");
        self.snapshots.entry(version).or_default().readers += 1;
    }

    /// Ends a list of this version. Returns true if there is something to [purge](Self::purge).
    pub fn end(&mut self, version: u64) -> bool {
        let snapshot = self.snapshots.get_mut(&version).expect("a list that ends is registered");
        snapshot.readers -= 1;
        if snapshot.readers == 0 {
            let snapshot = self.snapshots.remove(&version).expect("a list that ends is registered");
            if !snapshot.names.is_empty() {
                self.unclaimed.push_back(snapshot.names);
            }
        }
        self.needs_purge()
    }

    /// Returns what a list of this version shows at a place.
    pub fn at<'a>(&'a self, slab: &'a Pages<Tube>, position: usize, version: u64) -> Listed<'a> {
        match self.places.get(position) {
            None => Listed::End,
            Some(&TubePlace::Tube(tube)) if slab[tube.0].added_at < version => {
                Listed::Tube(slab[tube.0].name())
            }
            Some(&TubePlace::Removed(name)) if self.removed[name].is_shown(version) => {
                Listed::Tube(TubeName::checked_before(&self.removed[name].name))
            }
            Some(_) => Listed::Nothing,
        }
    }

    /// Removes names that no list shows any more, and closes gaps, up to the limit. Returns true if there are more.
    pub fn purge(&mut self, slab: &mut Pages<Tube>, budget: &mut Budget, limit: Limit) -> bool {
        while self.needs_purge() && budget.spend(Cost::STEP, limit) {
            if let Some(names) = self.unclaimed.front_mut() {
                match names.front() {
                    Some(name) => {
                        names.remove(&mut self.removed, name);
                        self.keep_or_purge(slab, name);
                    }
                    None => drop(self.unclaimed.pop_front()),
                }
            } else if let Some(position) = self.vacant.pop_if(|_| self.snapshots.is_empty()) {
                if self.is_vacant(position) {
                    self.vacate(slab, position);
                }
            } else {
                break;
            }
        }
        self.needs_purge()
    }

    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<TubePlace>()
            + self.removed.bytes()
            + self.removed_bytes
            + self.vacant.capacity() * size_of::<u32>()
            + self.snapshots.len() * (size_of::<(u64, Snapshot)>() + ALLOCATION_BYTES)
            + self.unclaimed.capacity() * size_of::<List>()
    }

    /// What the next tube adds to [`bytes`](Self::bytes).
    pub fn growth(&self) -> usize {
        let is_full = self.vacant.is_empty() && self.places.len() == self.places.capacity();
        if is_full { self.places.capacity().max(4) * size_of::<TubePlace>() } else { 0 }
    }

    /// Asserts that each tube has its place, and that a name stays exactly as long as a list shows it.
    // Bounded by its caller: a test.
    pub fn check(&self, slab: &Pages<Tube>) {
        self.removed.check();
        let vacant: HashSet<u32> = self.vacant.iter().copied().collect();
        let mut tubes = 0;
        for (position, place) in self.places.iter().enumerate() {
            match *place {
                TubePlace::Tube(tube) => {
                    assert_eq!(slab[tube.0].position as usize, position, "a tube knows its place");
                    tubes += 1;
                }
                TubePlace::Removed(name) => assert_eq!(self.removed[name].position as usize, position),
                TubePlace::Vacant => {
                    assert!(vacant.contains(&(position as u32)), "the vacant places are known")
                }
            }
        }
        assert_eq!(tubes, slab.len(), "every tube has a place");
        let name_bytes: usize = self.removed.iter().map(|(_, removed)| text_bytes(&removed.name)).sum();
        assert_eq!(self.removed_bytes, name_bytes, "the memory of names is counted");
        let mut names = self.unclaimed.iter().map(List::len).sum::<usize>();
        for (&version, snapshot) in &self.snapshots {
            assert!(snapshot.readers > 0, "a snapshot has readers");
            snapshot.names.check(&self.removed);
            assert!(snapshot.names.iter(&self.removed).all(|name| self.removed[name].is_shown(version)));
            names += snapshot.names.len();
        }
        assert_eq!(names, self.removed.len(), "each name is in one list of names");
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version - 1
    }

    fn is_vacant(&self, position: u32) -> bool {
        self.places.get(position as usize) == Some(&TubePlace::Vacant)
    }

    fn needs_purge(&self) -> bool {
        !self.unclaimed.is_empty() || self.snapshots.is_empty() && !self.vacant.is_empty()
    }

    /// Moves a name to the latest snapshot that shows it, or removes it if there is none.
    fn keep_or_purge(&mut self, slab: &mut Pages<Tube>, name: u32) {
        let RemovedName { added_at, removed_at, position, .. } = self.removed[name];
        match self.snapshots.range_mut(..=removed_at).next_back() {
            Some((&version, snapshot)) if added_at < version => {
                snapshot.names.push_back(&mut self.removed, name)
            }
            _ => {
                self.removed_bytes -= text_bytes(&self.removed.remove(name).name);
                self.vacate(slab, position);
            }
        }
    }

    /// Closes a gap with the last tube, unless a list shows that tube.
    fn vacate(&mut self, slab: &mut Pages<Tube>, position: u32) {
        self.places[position as usize] = TubePlace::Vacant;
        // Bounded by earlier calls: each place is taken off once.
        while self.places.last() == Some(&TubePlace::Vacant) {
            self.places.pop();
        }
        let latest = self.snapshots.last_key_value().map(|(&version, _)| version);
        match self.places.last() {
            _ if self.places.len() <= position as usize => {}
            Some(&TubePlace::Tube(last)) if latest.is_none_or(|latest| slab[last.0].added_at >= latest) => {
                self.places.swap_remove(position as usize);
                slab[last.0].position = position;
            }
            _ => self.vacant.push(position),
        }
    }
}

impl RemovedName {
    fn is_shown(&self, version: u64) -> bool {
        self.added_at < version && version <= self.removed_at
    }
}

intrusive!(RemovedName: in lists);

impl TubeList {
    /// A list of all tubes.
    pub(in crate::queue) fn of_all(tubes: &Tubes) -> Self {
        let source = ListSource::Tubes { version: tubes.order.version };
        Self { source, at: 0, tubes: tubes.len(), name_lengths: tubes.name_lengths }
    }

    /// A list of the tubes that the client watches.
    pub(in crate::queue) fn of_watched(client: ClientKey, clients: &Clients) -> Self {
        let record = clients.get(client);
        let (tubes, name_lengths) = (record.watch_count(), record.name_lengths);
        Self { source: ListSource::Watched(client), at: 0, tubes, name_lengths }
    }

    pub(in crate::queue) fn register(&self, tubes: &mut Tubes) {
        if let ListSource::Tubes { version } = self.source {
            tubes.order.begin(version);
        }
    }

    /// Ends the list. Returns true if there is something to [purge](Tubes::purge).
    pub(in crate::queue) fn end(&self, tubes: &mut Tubes) -> bool {
        match self.source {
            ListSource::Tubes { version } => tubes.order.end(version),
            ListSource::Watched(_) => false,
        }
    }

    /// Returns the next place.
    pub(in crate::queue) fn next<'a>(&mut self, store: &'a Store) -> Listed<'a> {
        let found = match self.source {
            ListSource::Tubes { version } => store.tubes.order.at(&store.tubes.slab, self.at, version),
            ListSource::Watched(client) => {
                let watched = store.clients.get(client).watches.get(self.at);
                watched.map_or(Listed::End, |watched| Listed::Tube(store.tubes[watched.tube].name()))
            }
        };
        self.at += 1;
        match found {
            Listed::Tube(name) => {
                assert!(self.tubes > 0, "a list shows no more tubes than there were");
                self.tubes -= 1;
                self.name_lengths -= name.as_bytes().len();
            }
            Listed::Nothing => {}
            Listed::End => {
                assert_eq!((self.tubes, self.name_lengths), (0, 0), "a list shows all tubes that there were");
            }
        }
        found
    }

    /// The number of tubes still to be shown.
    pub fn tubes(&self) -> usize {
        self.tubes
    }

    /// The length of the names still to be shown.
    pub fn name_lengths(&self) -> usize {
        self.name_lengths
    }
}
