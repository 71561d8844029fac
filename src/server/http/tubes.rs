//! The list of tubes: filtered, sorted, and one page of it. Both the walk over all tubes and the page are cut into bounded
//! steps.
//!
//! The walk keeps the first `offset + limit` tubes of the order in a heap whose greatest element is the last of them. In the
//! end the page is what comes off the heap first. A tube that comes or goes during the walk may be shown or not.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use memchr::memmem::Finder;

use super::tube_json::TubeJson;
use crate::ids::TubeKey;
use crate::limits::ALLOCATION_BYTES;
use crate::queue::Tube;
use crate::server::Core;
use crate::time::Time;

/// Slots of tubes that one step visits: some 100 us.
const STEP_SLOTS: usize = 1000;

/// Clients that are looked at in the time of one slot.
const LOOKS_PER_SLOT: usize = 16;

/// Tubes that one step renders: some 100 us.
const STEP_TUBES: usize = 100;

/// Which tubes a request wants, in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Query {
    /// A part of the names, in any case.
    pub filter: String,
    pub sort: SortKey,
    pub order: Order,
    pub offset: u32,
    pub limit: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SortKey {
    Name,
    Ready,
    Reserved,
    Delayed,
    Buried,
    Held,
    Waiting,
    Puts,
    Oldest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// A list that is rendered in pieces.
pub(super) struct TubeList {
    query: Query,
    /// Finds the filter in a name in lower case.
    finder: Finder<'static>,
    stage: Stage,
}

enum Stage {
    Walk { next_slot: u32, matched: usize, first: BinaryHeap<Place>, name_bytes: usize },
    Render { tubes: Vec<TubeKey>, at: usize, is_first: bool },
}

/// The place of a tube in the order.
#[derive(PartialEq, Eq)]
struct Place {
    rank: u64,
    name: Box<[u8]>,
    has_names_reversed: bool,
    tube: TubeKey,
}

impl SortKey {
    /// The key of this name in a query.
    pub fn find(word: &str) -> Option<Self> {
        Some(match word {
            "name" => Self::Name,
            "ready" => Self::Ready,
            "reserved" => Self::Reserved,
            "delayed" => Self::Delayed,
            "buried" => Self::Buried,
            "held" => Self::Held,
            "waiting" => Self::Waiting,
            "puts" => Self::Puts,
            "oldest" => Self::Oldest,
            _ => return None,
        })
    }

    /// The number that tubes are sorted by. Those of equal rank are sorted by name.
    fn rank(self, core: &Core, key: TubeKey, now: Time) -> u64 {
        let stats = || core.engine.tube_stats(key, now);
        match self {
            Self::Name => 0,
            Self::Ready => stats().ready as u64,
            Self::Reserved => stats().reserved.into(),
            Self::Delayed => stats().delayed as u64,
            Self::Buried => stats().buried as u64,
            Self::Held => stats().held as u64,
            Self::Waiting => core.engine.tube_waiting(key) as u64,
            Self::Puts => stats().total_jobs,
            Self::Oldest => stats().oldest_ready.as_nanos(),
        }
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        let names = self.name.cmp(&other.name);
        let names = if self.has_names_reversed { names.reverse() } else { names };
        self.rank.cmp(&other.rank).then(names)
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl TubeList {
    pub fn new(query: Query) -> Self {
        let filter = query.filter.to_ascii_lowercase();
        let finder = Finder::new(filter.as_bytes()).into_owned();
        let first = BinaryHeap::new();
        Self { query, finder, stage: Stage::Walk { next_slot: 0, matched: 0, first, name_bytes: 0 } }
    }

    pub fn memory_bytes(&self) -> usize {
        let stage_bytes = match &self.stage {
            Stage::Walk { first, name_bytes, .. } => first.capacity() * size_of::<Place>() + name_bytes,
            Stage::Render { tubes, .. } => tubes.capacity() * size_of::<TubeKey>(),
        };
        stage_bytes + 2 * self.query.filter.len()
    }

    /// Recounts the memory of the names.
    ///
    /// # Panics
    /// If the count is wrong: a defect of the list.
    pub fn check(&self) {
        if let Stage::Walk { first, name_bytes, .. } = &self.stage {
            let counted: usize = first.iter().map(|place| memory_of_name(&place.name)).sum();
            assert_eq!(counted, *name_bytes, "every name is counted");
        }
    }

    /// Does a bounded piece of the work. Returns true if it was the last.
    pub fn step(&mut self, core: &Core, now: Time, out: &mut Vec<u8>) -> bool {
        match self.stage {
            Stage::Walk { .. } => {
                if self.walk(core, now) {
                    self.begin_rendering(core, out);
                }
                false
            }
            Stage::Render { .. } => self.render(core, now, out),
        }
    }

    /// Visits a bounded number of tubes. Returns true after the last.
    fn walk(&mut self, core: &Core, now: Time) -> bool {
        let Self { query, finder, stage: Stage::Walk { next_slot, matched, first, name_bytes } } = self
        else {
            unreachable!("the list is still being walked")
        };
        let wanted = query.offset as usize + query.limit as usize;
        let tubes = core.engine.tubes();
        let end = tubes.slots_end();
        let mut steps = 0;
        while steps < STEP_SLOTS && *next_slot < end {
            steps += 1;
            let found = tubes.at_slot(*next_slot);
            *next_slot += 1;
            let Some((key, tube)) = found.filter(|(_, tube)| is_match(finder, tube)) else { continue };
            *matched += 1;
            if query.sort == SortKey::Waiting {
                steps += core.engine.tube_waiting_cost(key) / LOOKS_PER_SLOT;
            }
            let number = query.sort.rank(core, key, now);
            let is_descending = query.order == Order::Descending;
            let rank = if is_descending && query.sort != SortKey::Name { !number } else { number };
            let has_names_reversed = is_descending && query.sort == SortKey::Name;
            let name = tube.name().as_bytes();
            if first.len() == wanted {
                let last = first.peek().expect("a list shows at least one tube");
                let names = name.cmp(&last.name);
                let names = if has_names_reversed { names.reverse() } else { names };
                if rank.cmp(&last.rank).then(names).is_ge() {
                    continue;
                }
                *name_bytes -= memory_of_name(&last.name);
                first.pop();
            }
            *name_bytes += memory_of_name(name);
            first.push(Place { rank, name: name.into(), has_names_reversed, tube: key });
        }
        *next_slot >= end
    }

    fn begin_rendering(&mut self, core: &Core, out: &mut Vec<u8>) {
        let Stage::Walk { matched, first, .. } = &mut self.stage else {
            unreachable!("the walk has just ended")
        };
        let offset = self.query.offset as usize;
        let count = first.len().saturating_sub(offset);
        let last_first = (0..count).filter_map(|_| first.pop());
        let mut tubes: Vec<TubeKey> = last_first.map(|place| place.tube).collect();
        tubes.reverse();
        let total = core.engine.tubes().len();
        let head = format!("{{\"total\":{total},\"matched\":{matched},\"offset\":{offset},\"tubes\":[");
        out.extend_from_slice(head.as_bytes());
        self.stage = Stage::Render { tubes, at: 0, is_first: true };
    }

    /// Renders a bounded number of tubes. Returns true after the last.
    fn render(&mut self, core: &Core, now: Time, out: &mut Vec<u8>) -> bool {
        let Stage::Render { tubes, at, is_first } = &mut self.stage else {
            unreachable!("the list is being rendered")
        };
        let mut steps = 0;
        while steps < STEP_TUBES && *at < tubes.len() {
            let key = tubes[*at];
            (steps, *at) = (steps + 1, *at + 1);
            if core.engine.tubes().get_if_there(key).is_none() {
                continue;
            }
            steps += core.engine.tube_waiting_cost(key) / (LOOKS_PER_SLOT * STEP_SLOTS / STEP_TUBES);
            if !std::mem::take(is_first) {
                out.push(b',');
            }
            serde_json::to_writer(&mut *out, &TubeJson::of(core, key, now))
                .expect("plain data can be rendered");
        }
        let is_done = *at == tubes.len();
        if is_done {
            out.extend_from_slice(b"]}");
        }
        is_done
    }
}

/// Whether a name contains the filter.
fn is_match(finder: &Finder<'_>, tube: &Tube) -> bool {
    finder.needle().is_empty() || finder.find(&tube.name().as_bytes().to_ascii_lowercase()).is_some()
}

/// The memory of a copied name.
const fn memory_of_name(name: &[u8]) -> usize {
    name.len().next_multiple_of(ALLOCATION_BYTES) + ALLOCATION_BYTES
}
