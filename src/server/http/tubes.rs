//! The list of tubes: filtered, sorted, and one page of it. Both the walks over all tubes and the page are cut into bounded
//! steps. Nothing is allocated before the first of them.
//!
//! A [`Selection`] finds the page. A tube that comes or goes during the walk may be shown or not.

use std::sync::Arc;

use memchr::memmem::Finder;

use super::object::Object;
use super::page::Piece;
use super::selection::{KEPT_BYTES, Selection};
use super::target::Name;
use super::tube_json::listed_tube;
use crate::queue::Tube;
use crate::server::{Core, Rights, User};
use crate::time::Time;
use crate::values::budget::Cost;
use crate::values::ids::TubeKey;
use crate::values::limits::OUTPUT_BYTES_PAUSE;

/// Slots of tubes that one step visits: some 100 us.
const STEP_SLOTS: usize = 1000;

/// Clients that are looked at in the time of one slot.
const LOOKS_PER_SLOT: usize = 16;

/// Tubes that one step renders: some 100 us.
const STEP_TUBES: usize = 100;

/// Steps of the end of a walk, which sorts what it has kept.
const STEPS_OF_PASS_END: usize = 2 * STEP_SLOTS;

/// The most bytes of a tube in the response.
const TUBE_JSON_BYTES_MAX: usize = 700;

/// Which tubes a request wants, in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Query {
    /// A part of the names, in any case.
    pub filter: String,
    pub sort: SortKey,
    pub order: Order,
    /// The page begins after this name, whether or not a tube still has it. Only in the order of names.
    pub after: Option<Name>,
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
    Deletes,
    Oldest,
    Paused,
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
    /// Only tubes that this user may inspect are shown and counted.
    user: Option<Arc<User>>,
    /// Tubes that this pass has seen.
    seen: usize,
    stage: Stage,
}

enum Stage {
    Walk { next_slot: u32, matched: usize, selection: Option<Box<Selection>> },
    Render { tubes: Vec<TubeKey>, at: usize, is_first: bool },
}

impl Query {
    /// Whether the page begins after this tube.
    fn is_before_page(&self, tube: &Tube) -> bool {
        let Some(after) = self.after.as_ref().map(Name::get) else { return false };
        let (name, after) = (tube.name().as_bytes(), after.as_bytes());
        if self.order == Order::Ascending { name <= after } else { name >= after }
    }
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
            "deletes" => Self::Deletes,
            "oldest" => Self::Oldest,
            "paused" => Self::Paused,
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
            Self::Deletes => stats().deletes,
            Self::Oldest => stats().oldest_ready.as_nanos(),
            Self::Paused => stats().pause_left.as_nanos(),
        }
    }
}

impl TubeList {
    pub fn new(query: Query, user: Option<Arc<User>>) -> Self {
        let filter = query.filter.to_ascii_lowercase();
        let finder = Finder::new(filter.as_bytes()).into_owned();
        let stage = Stage::Walk { next_slot: 0, matched: 0, selection: None };
        Self { query, finder, user, seen: 0, stage }
    }

    /// The most memory that it takes, with the output that is not sent.
    pub fn memory_bytes_max(&self) -> usize {
        let json_bytes = (self.query.limit as usize * TUBE_JSON_BYTES_MAX).next_power_of_two();
        KEPT_BYTES + 2 * self.query.filter.len() + json_bytes.min(4 * OUTPUT_BYTES_PAUSE)
    }

    /// Does a bounded piece of the work. Returns true if it was the last.
    pub fn step(&mut self, core: &Core, now: Time, piece: &mut Piece<'_>) -> bool {
        match self.stage {
            Stage::Walk { .. } => {
                if let Some((matched, tubes)) = self.walk(core, now, piece) {
                    let (total, offset) = (self.seen, self.query.offset);
                    let head =
                        format!("{{\"total\":{total},\"matched\":{matched},\"offset\":{offset},\"tubes\":[");
                    piece.out.extend_from_slice(head.as_bytes());
                    self.stage = Stage::Render { tubes, at: 0, is_first: true };
                }
                false
            }
            Stage::Render { .. } => self.render(core, now, piece),
        }
    }

    /// Visits a bounded number of tubes. Returns the number of those that match and the page, after the last pass.
    fn walk(&mut self, core: &Core, now: Time, piece: &mut Piece<'_>) -> Option<(usize, Vec<TubeKey>)> {
        let Self { query, finder, user, seen, stage: Stage::Walk { next_slot, matched, selection } } = self
        else {
            unreachable!("the list is still being walked")
        };
        let is_descending = query.order == Order::Descending;
        let has_names_reversed = is_descending && query.sort == SortKey::Name;
        let selection = selection
            .get_or_insert_with(|| Box::new(Selection::new(query.offset, query.limit, has_names_reversed)));
        let tubes = core.engine.tubes();
        let end = tubes.slots_end();
        let mut steps = 0;
        if *next_slot == 0 {
            *seen = 0;
        }
        let each = cost_of_slot(user.as_deref());
        let may_see = |tube: &Tube| user.as_ref().is_none_or(|user| user.may(Rights::INSPECT, tube.name()));
        // Bounded by STEP_SLOTS: the slots of one piece.
        while steps < STEP_SLOTS && *next_slot < end {
            steps += each;
            let found = tubes.at_slot(*next_slot);
            *next_slot += 1;
            let Some((key, tube)) = found.filter(|(_, tube)| may_see(tube)) else { continue };
            *seen += 1;
            if !is_match(finder, tube) {
                continue;
            }
            *matched += 1;
            if query.is_before_page(tube) {
                continue;
            }
            if query.sort == SortKey::Waiting {
                steps += core.engine.tube_waiting_cost(key) / LOOKS_PER_SLOT;
            }
            let number = query.sort.rank(core, key, now);
            let rank = if is_descending && query.sort != SortKey::Name { !number } else { number };
            selection.offer(rank, key, tube.name().as_bytes(), tubes);
        }
        piece.steps += steps;
        if *next_slot < end {
            return None;
        }
        piece.steps += STEPS_OF_PASS_END;
        let page = selection.end_pass(tubes);
        let found = page.map(|page| (*matched, page));
        (*next_slot, *matched) = (0, 0);
        found
    }

    /// Renders a bounded number of tubes. Returns true after the last.
    fn render(&mut self, core: &Core, now: Time, piece: &mut Piece<'_>) -> bool {
        let Stage::Render { tubes, at, is_first } = &mut self.stage else {
            unreachable!("the list is being rendered")
        };
        let mut steps = 0;
        // Bounded by STEP_TUBES: the tubes of one piece.
        while steps < STEP_TUBES && *at < tubes.len() && piece.out.len() < piece.output_bytes_max {
            let key = tubes[*at];
            (steps, *at) = (steps + 1, *at + 1);
            if core.engine.tubes().get_if_there(key).is_none() {
                continue;
            }
            steps += core.engine.tube_waiting_cost(key) / (LOOKS_PER_SLOT * STEP_SLOTS / STEP_TUBES);
            if !std::mem::take(is_first) {
                piece.out.push(b',');
            }
            Object::append(piece.out, |object| listed_tube(core, key, now, object));
        }
        piece.steps += steps * (STEP_SLOTS / STEP_TUBES);
        let is_done = *at == tubes.len();
        if is_done {
            piece.out.extend_from_slice(b"]}");
        }
        is_done
    }
}

/// The elementary steps of a slot, with the comparison of its tube with the patterns of a user.
pub(super) fn cost_of_slot(user: Option<&User>) -> usize {
    let compared = user.map_or(Cost::NOTHING, |user| user.cost_of(Rights::INSPECT));
    Cost::STEP.plus(compared).steps() as usize
}

/// Whether a name contains the filter.
fn is_match(finder: &Finder<'_>, tube: &Tube) -> bool {
    finder.needle().is_empty() || finder.find(&tube.name().as_bytes().to_ascii_lowercase()).is_some()
}
