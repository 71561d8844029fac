//! The names of all tubes in the order that `list-tubes` shows, and lists of them that are being read.
//!
//! A long list is rendered no faster than its client reads it. Its length went out first, so it shows the tubes of the
//! moment at which it began, whatever comes and goes until it ends. It holds no copy of them: a list is a place in the
//! order and a moment. While lists go on, no tube that one of them shows is moved. When such a tube goes, its name
//! stays in its place until the last of these lists is over: once, however many there are. So lists take less memory
//! than the tubes that they show.
//!
//! The order is that of beanstalkd, where the last tube takes the place of one that goes, unless a long list forbids
//! the move.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::tube::Tube;
use crate::ids::TubeSlot;
use crate::intrusive::{Linked, Links, List, Pages};
use crate::limits::ALLOCATION_BYTES;

/// Every tube in order, with the names that lists still show.
#[derive(Default)]
pub(super) struct Roll {
    places: Vec<Place>,
    /// Names of tubes that have gone.
    gone: Pages<Gone>,
    /// What these names take.
    gone_bytes: usize,
    /// Places that are vacant. Some may have been taken away since.
    vacant: Vec<u32>,
    /// How many tubes have come and gone since the start.
    moment: u64,
    /// The lists that go on, by the moment at which they began.
    lists: BTreeMap<u64, Reading>,
    /// Names that a list kept which is over.
    loose: VecDeque<List>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Tube(TubeSlot),
    Gone(u32),
    Vacant,
}

struct Gone {
    name: Box<[u8]>,
    born: u64,
    died: u64,
    position: u32,
    links: Links,
}

/// Lists that began at one moment.
#[derive(Default)]
struct Reading {
    lists: u32,
    /// Names that they still show. Each is kept by the latest lists that show it.
    kept: List,
}

/// What a list finds at a place.
pub(super) enum Found<'a> {
    /// A tube to show.
    Name(&'a [u8]),
    /// Nothing that the list shows.
    Nothing,
    /// The places are at an end.
    End,
}

impl Roll {
    /// Gives a new tube a place. Returns that, and the moment.
    pub fn add(&mut self, tube: TubeSlot) -> (u32, u64) {
        let position = loop {
            match self.vacant.pop() {
                Some(position) if !self.is_vacant(position) => {}
                Some(position) => break position,
                None => {
                    self.places.push(Place::Vacant);
                    break self.places.len() as u32 - 1;
                }
            }
        };
        self.places[position as usize] = Place::Tube(tube);
        (position, self.tick())
    }

    /// Takes a tube out that has gone. Its name stays while a list shows it.
    pub fn remove(&mut self, slab: &mut Pages<Tube>, name: Box<[u8]>, born: u64, position: u32) {
        let died = self.tick();
        if self.lists.is_empty() {
            return self.vacate(slab, position);
        }
        let gone = self.gone.insert(Gone { name, born, died, position, links: Links::NONE });
        self.gone_bytes += name_bytes(&self.gone[gone].name);
        self.places[position as usize] = Place::Gone(gone);
        self.keep_or_forget(slab, gone);
    }

    /// All tubes, in order.
    pub fn tubes(&self) -> impl Iterator<Item = TubeSlot> {
        self.places.iter().filter_map(|place| match place {
            Place::Tube(tube) => Some(*tube),
            _ => None,
        })
    }

    /// How many names are kept of tubes that have gone.
    pub fn gone(&self) -> usize {
        self.gone.len()
    }

    /// How many tubes have come and gone since the start.
    pub const fn moment(&self) -> u64 {
        self.moment
    }

    /// A list goes on that began at this moment, before any tube has come or gone since.
    pub fn begin(&mut self, moment: u64) {
        assert_eq!(moment, self.moment, "nothing has changed since the list began");
        self.lists.entry(moment).or_default().lists += 1;
    }

    /// A list is over that began at this moment. True if names are to be [forgotten](Self::tidy).
    pub fn end(&mut self, moment: u64) -> bool {
        let reading = self.lists.get_mut(&moment).expect("the list goes on");
        reading.lists -= 1;
        if reading.lists == 0 {
            let reading = self.lists.remove(&moment).expect("it was there");
            if !reading.kept.is_empty() {
                self.loose.push_back(reading.kept);
            }
        }
        self.is_untidy()
    }

    /// What a list shows at a place that began at this moment.
    pub fn at<'a>(&'a self, slab: &'a Pages<Tube>, position: usize, moment: u64) -> Found<'a> {
        match self.places.get(position) {
            None => Found::End,
            Some(&Place::Tube(tube)) if slab[tube.0].born < moment => {
                Found::Name(slab[tube.0].name().as_bytes())
            }
            Some(&Place::Gone(gone)) if self.gone[gone].is_shown(moment) => {
                Found::Name(&self.gone[gone].name)
            }
            Some(_) => Found::Nothing,
        }
    }

    /// Forgets names that no list shows any more, and closes gaps, a step each, while there are steps left. True if more
    /// is to be done.
    pub fn tidy(&mut self, slab: &mut Pages<Tube>, steps_left: &mut u32) -> bool {
        while *steps_left > 0 && self.is_untidy() {
            *steps_left -= 1;
            if let Some(kept) = self.loose.front_mut() {
                match kept.front() {
                    Some(gone) => {
                        kept.remove(&mut self.gone, gone);
                        self.keep_or_forget(slab, gone);
                    }
                    None => drop(self.loose.pop_front()),
                }
            } else if let Some(position) = self.vacant.pop_if(|_| self.lists.is_empty()) {
                if self.is_vacant(position) {
                    self.vacate(slab, position);
                }
            } else {
                break;
            }
        }
        self.is_untidy()
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
            + self.gone.bytes()
            + self.gone_bytes
            + self.vacant.capacity() * size_of::<u32>()
            + self.lists.len() * (size_of::<(u64, Reading)>() + ALLOCATION_BYTES)
            + self.loose.capacity() * size_of::<List>()
    }

    /// What the next tube adds to that.
    pub fn growth(&self) -> usize {
        let is_full = self.vacant.is_empty() && self.places.len() == self.places.capacity();
        if is_full { self.places.capacity().max(4) * size_of::<Place>() } else { 0 }
    }

    /// Asserts that each tube has its place, and that names are kept just as long as a list shows them.
    pub fn check(&self, slab: &Pages<Tube>) {
        self.gone.check();
        let vacant: HashSet<u32> = self.vacant.iter().copied().collect();
        let mut tubes = 0;
        for (position, place) in self.places.iter().enumerate() {
            match *place {
                Place::Tube(tube) => {
                    assert_eq!(slab[tube.0].position() as usize, position, "a tube knows its place");
                    tubes += 1;
                }
                Place::Gone(gone) => assert_eq!(self.gone[gone].position as usize, position),
                Place::Vacant => assert!(vacant.contains(&(position as u32)), "a gap is known"),
            }
        }
        assert_eq!(tubes, slab.len(), "every tube has a place");
        let names: usize = self.gone.iter().map(|(_, gone)| name_bytes(&gone.name)).sum();
        assert_eq!(self.gone_bytes, names, "names of tubes that have gone are counted");
        let mut kept = self.loose.iter().map(List::len).sum::<usize>();
        for (&moment, reading) in &self.lists {
            assert!(reading.lists > 0, "a moment is known while a list of it goes on");
            reading.kept.check(&self.gone);
            assert!(reading.kept.iter(&self.gone).all(|gone| self.gone[gone].is_shown(moment)));
            kept += reading.kept.len();
        }
        assert_eq!(kept, self.gone.len(), "each name is kept by a list");
    }

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment - 1
    }

    fn is_vacant(&self, position: u32) -> bool {
        self.places.get(position as usize) == Some(&Place::Vacant)
    }

    fn is_untidy(&self) -> bool {
        !self.loose.is_empty() || self.lists.is_empty() && !self.vacant.is_empty()
    }

    /// Leaves a name to the latest lists that show it, or forgets it.
    fn keep_or_forget(&mut self, slab: &mut Pages<Tube>, gone: u32) {
        let Gone { born, died, position, .. } = self.gone[gone];
        match self.lists.range_mut(..=died).next_back() {
            Some((&moment, reading)) if born < moment => reading.kept.push_back(&mut self.gone, gone),
            _ => {
                self.gone_bytes -= name_bytes(&self.gone.remove(gone).name);
                self.vacate(slab, position);
            }
        }
    }

    /// Closes a gap: with the last tube, unless a list goes on that shows it.
    fn vacate(&mut self, slab: &mut Pages<Tube>, position: u32) {
        self.places[position as usize] = Place::Vacant;
        while self.places.last() == Some(&Place::Vacant) {
            self.places.pop();
        }
        let latest = self.lists.last_key_value().map(|(&moment, _)| moment);
        match self.places.last() {
            _ if self.places.len() <= position as usize => {}
            Some(&Place::Tube(last)) if latest.is_none_or(|latest| slab[last.0].born >= latest) => {
                self.places.swap_remove(position as usize);
                slab[last.0].set_position(position);
            }
            _ => self.vacant.push(position),
        }
    }
}

impl Gone {
    fn is_shown(&self, moment: u64) -> bool {
        self.born < moment && moment <= self.died
    }
}

impl Linked for Gone {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// What the name of a tube takes.
pub(super) const fn name_bytes(name: &[u8]) -> usize {
    name.len().next_multiple_of(ALLOCATION_BYTES) + ALLOCATION_BYTES
}
