//! One page of an order of tubes, found in memory that depends neither on the number of tubes nor on the offset of the page.
//!
//! The tubes pass by, several times if need be. Each pass counts the tubes before an interval of the order that contains the
//! beginning of the page, and keeps up to [`KEPT_MAX`] tubes of the interval: the first ones if the page begins with them, or
//! else a random sample, from which a shorter interval follows. The first pages need one pass, and those of 100,000 tubes four.
//! Tubes that change between two passes may be shown twice or not at all.

use std::cmp::Ordering;

use crate::queue::Tubes;
use crate::values::ids::TubeKey;

/// Tubes in a page, at most, and those before it that the last pass may keep with them.
pub(super) const LIMIT_MAX: u32 = 500;
const SKIPPED_MAX: usize = 500;

/// Tubes that a pass keeps.
const KEPT_MAX: usize = LIMIT_MAX as usize + SKIPPED_MAX;

/// Room for twice as many, so that they are cut back to the first ones only once for as many new ones.
const ROOM: usize = 2 * KEPT_MAX;

/// How far the ends of the next interval are from where the sample has the page: three times the standard error, in the middle.
const MARGIN: usize = 48;

/// More passes than ever needed while no tube changes its place. The last one shows what it has kept.
const PASSES_MAX: u32 = 12;

/// The memory of the tubes that are kept, in bytes.
pub(super) const KEPT_BYTES: usize = ROOM * size_of::<Entry>();

/// Finds one page.
pub(super) struct Selection {
    offset: usize,
    limit: usize,
    has_names_reversed: bool,
    /// The interval begins after this place.
    begin: Option<RankedName>,
    /// The interval ends with this place.
    end: Option<RankedName>,
    /// The pass keeps the first tubes of the interval. No tube from the last of them on is kept.
    keeps_first: bool,
    last: Option<RankedName>,
    kept: Vec<Entry>,
    /// Tubes of this pass before the interval, and within it.
    before: usize,
    within: usize,
    passes: u32,
    random: u64,
}

/// The place of a tube in the order: by its number, then by its name.
struct RankedName {
    rank: u64,
    name: Box<[u8]>,
}

#[derive(Clone, Copy)]
struct Entry {
    rank: u64,
    tube: TubeKey,
}

impl Selection {
    /// Takes [`KEPT_BYTES`] of memory.
    pub fn new(offset: u32, limit: u32, has_names_reversed: bool) -> Self {
        Self {
            offset: offset as usize,
            limit: limit as usize,
            has_names_reversed,
            begin: None,
            end: None,
            keeps_first: offset as usize <= SKIPPED_MAX,
            last: None,
            kept: Vec::with_capacity(ROOM),
            before: 0,
            within: 0,
            passes: 0,
            random: 0,
        }
    }

    /// Shows it the next tube of this pass.
    pub fn offer(&mut self, rank: u64, tube: TubeKey, name: &[u8], tubes: &Tubes) {
        let is_after = |place: &RankedName| self.compare((rank, name), (place.rank, &place.name)).is_gt();
        if self.begin.as_ref().is_some_and(|begin| !is_after(begin)) {
            self.before += 1;
            return;
        }
        if self.end.as_ref().is_some_and(is_after) {
            return;
        }
        let is_late = self.last.as_ref().is_some_and(is_after);
        self.within += 1;
        let entry = Entry { rank, tube };
        if self.keeps_first {
            if is_late {
                return;
            }
            if self.kept.len() == ROOM {
                self.cut_back(tubes);
            }
            self.kept.push(entry);
        } else if self.kept.len() < KEPT_MAX {
            self.kept.push(entry);
        } else {
            // Every tube of the interval is in the sample with the same probability.
            let at = self.draw() % self.within as u64;
            if let Some(replaced) = self.kept.get_mut(at as usize) {
                *replaced = entry;
            }
        }
    }

    /// Ends a pass. Returns the page, unless another pass is needed.
    pub fn end_pass(&mut self, tubes: &Tubes) -> Option<Vec<TubeKey>> {
        self.passes += 1;
        // Bounded by KEPT_MAX: the entries that are kept.
        self.kept.retain(|entry| tubes.get_if_there(entry.tube).is_some());
        let (offset, limit, before, within) = (self.offset, self.limit, self.before, self.within);
        let is_last = self.passes >= PASSES_MAX;
        let reaches_on = self.end.is_some();
        if !is_last && before > offset {
            // Tubes have moved: the page begins before the interval.
            let end = self.begin.take();
            return self.look_in(None, end, false);
        }
        let skipped = offset.saturating_sub(before);
        if !is_last && skipped >= within && reaches_on {
            let begin = self.end.take();
            return self.look_in(begin, None, false);
        }
        let has_all = self.keeps_first || within <= KEPT_MAX;
        if is_last || skipped >= within || has_all && (skipped + limit <= within || !reaches_on) {
            return Some(self.page(skipped, tubes));
        }
        if skipped <= SKIPPED_MAX {
            let begin = self.begin.take();
            return self.look_in(begin, None, true);
        }
        let in_sample = |at: usize| (at as u128 * self.kept.len() as u128 / within as u128) as usize;
        let begin = in_sample(skipped).checked_sub(MARGIN);
        let end = in_sample(skipped + limit) + MARGIN;
        let begin = match begin {
            Some(at) => Some(self.place_of(at, tubes)),
            None => self.begin.take(),
        };
        let end = if end < self.kept.len() { Some(self.place_of(end, tubes)) } else { self.end.take() };
        self.look_in(begin, end, false)
    }

    /// Begins a pass that looks at this interval.
    fn look_in(
        &mut self,
        begin: Option<RankedName>,
        end: Option<RankedName>,
        keeps_first: bool,
    ) -> Option<Vec<TubeKey>> {
        (self.begin, self.end, self.keeps_first, self.last) = (begin, end, keeps_first, None);
        self.kept.clear();
        (self.before, self.within) = (0, 0);
        None
    }

    /// The page, which begins after the first `skipped` tubes of the interval.
    fn page(&mut self, skipped: usize, tubes: &Tubes) -> Vec<TubeKey> {
        let begin = skipped.min(self.kept.len());
        let end = (skipped + self.limit).min(self.kept.len());
        if begin < end {
            if end < self.kept.len() {
                self.select(end, tubes);
            }
            let names_reversed = self.has_names_reversed;
            self.kept[..end].sort_unstable_by(|one, other| compare_tubes(one, other, names_reversed, tubes));
        }
        // Bounded by KEPT_MAX: the entries that are kept.
        self.kept[begin..end].iter().map(|entry| entry.tube).collect()
    }

    /// Leaves the first [`KEPT_MAX`] tubes.
    fn cut_back(&mut self, tubes: &Tubes) {
        // Bounded by KEPT_MAX: the entries that are kept.
        self.kept.retain(|entry| tubes.get_if_there(entry.tube).is_some());
        if self.kept.len() > KEPT_MAX {
            self.last = Some(self.place_of(KEPT_MAX - 1, tubes));
            self.kept.truncate(KEPT_MAX);
        }
    }

    /// Moves the tube to index `at` that belongs there in the order, those before it to the left of it and the others to the
    /// right. Returns its place.
    fn place_of(&mut self, at: usize, tubes: &Tubes) -> RankedName {
        let Entry { rank, tube } = self.select(at, tubes);
        RankedName { rank, name: name_of(tube, tubes).into() }
    }

    fn select(&mut self, at: usize, tubes: &Tubes) -> Entry {
        let names_reversed = self.has_names_reversed;
        let by = |one: &Entry, other: &Entry| compare_tubes(one, other, names_reversed, tubes);
        *self.kept.select_nth_unstable_by(at, by).1
    }

    fn compare(&self, one: (u64, &[u8]), other: (u64, &[u8])) -> Ordering {
        compare(one, other, self.has_names_reversed)
    }

    /// A number that depends on how many were drawn before (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn compare_tubes(one: &Entry, other: &Entry, names_reversed: bool, tubes: &Tubes) -> Ordering {
    // Most numbers differ, and names lie elsewhere in memory.
    one.rank
        .cmp(&other.rank)
        .then_with(|| compare((0, name_of(one.tube, tubes)), (0, name_of(other.tube, tubes)), names_reversed))
}

fn compare(one: (u64, &[u8]), other: (u64, &[u8]), names_reversed: bool) -> Ordering {
    one.0.cmp(&other.0).then_with(|| {
        let names = one.1.cmp(other.1);
        if names_reversed { names.reverse() } else { names }
    })
}

fn name_of(tube: TubeKey, tubes: &Tubes) -> &[u8] {
    tubes.get(tube).name().as_bytes()
}
