//! `reserve-mode`: a choice among tubes by chance.
//!
//! Each tube with a job draws a lot, and the smallest lot wins. A lot is a random time with an exponential distribution, whose
//! rate is the weight of the tube. So each tube wins with a probability in proportion to its weight. For a batch, the winner
//! draws its next lot behind its last one. The lots of a tube are then the arrivals of a Poisson process, so each job of
//! the batch is an independent choice, for the cost of one operation on a heap.

use std::cmp::Ordering;
use std::num::NonZeroU32;

use super::client::Watch;
use super::engine::Engine;
use super::latency::{LatencyKind, TimeSum};
use crate::ids::{ClientKey, ClientSlot, JobId, JobKey, TubeSlot, WatchKey};
use crate::intrusive::mix;
use crate::reserve_mode::ReserveMode;
use crate::tube_name::TubeName;

/// A place in the order in which tubes are served. Smaller is earlier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lot(f64);

/// The next job of a tube: its lot, its priority, id and key, and the watch of the tube.
pub(super) type Turn = (Lot, (u32, JobId, JobKey), WatchKey);

/// A generator of lots (SplitMix64).
#[derive(Clone, Copy)]
pub(super) struct Lots {
    state: u64,
    /// The average time that a tube without one of its own counts with: see [`Engine::lots_for`].
    unknown_ns: f64,
}

/// Times below this count as this: a job may be deleted within the same microsecond.
const HELD_NS_MIN: f64 = 1000.0;

impl Lot {
    /// The lot of every tube in a mode without chance: the most urgent job decides.
    pub(super) const FIRST: Self = Self(0.0);
}

impl Lots {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: mix(seed), unknown_ns: HELD_NS_MIN }
    }

    /// Draws a lot behind another one, for a tube with this weight.
    fn draw(&mut self, after: Lot, weight: f64) -> Lot {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // At least 0 and below 1.
        let unit = (mix(self.state) >> 11) as f64 / (1u64 << 53) as f64;
        Lot(after.0 - (1.0 - unit).ln() / weight)
    }
}

impl Engine {
    /// Sets how the client's reserves choose among tubes.
    pub fn set_reserve_mode(&mut self, client: ClientKey, mode: ReserveMode) {
        self.clients.get_mut(client).mode = mode;
    }

    /// Sets the weight of a tube that the client watches.
    ///
    /// # Panics
    /// If the client does not watch the tube.
    pub fn set_weight(&mut self, client: ClientKey, name: TubeName<'_>, weight: NonZeroU32) {
        let client = self.clients.slot(client);
        let tube = self.tubes.find_slot(name);
        let watch = tube.and_then(|tube| self.clients.find_watch(client, tube));
        let WatchKey(watch) = watch.expect("the client watches the tube");
        self.clients.watches[watch].weight = weight;
    }

    /// Draws the tube that serves a reserve of the client. Returns its most urgent job.
    pub(super) fn draw(&mut self, client: ClientSlot, may_overtake: bool) -> Option<JobKey> {
        self.count_looks(client);
        let mut lots = self.lots_for(client);
        let turns = self.reservable_watches(client);
        let first = turns.filter_map(|watch| self.turn(watch, Lot::FIRST, &mut lots, may_overtake)).min();
        self.lots = lots;
        first.map(|(_, (_, _, job), _)| job)
    }

    /// Returns the generator for a reserve of the client. With weighted-fair, a tube in which no reservation has ended counts
    /// with the smallest average of the other tubes that have jobs. So it is drawn at least as often for its weight as any of
    /// them, until it has a time of its own. With an average of all tubes, one long reservation elsewhere would starve it.
    pub(super) fn lots_for(&mut self, client: ClientSlot) -> Lots {
        if self.clients[client].mode == ReserveMode::WeightedFair {
            self.count_looks(client);
            let tubes = self.reservable_watches(client).map(|watch| self.clients.watches[watch.0].tube);
            let averages = tubes.filter_map(|tube| self.average_held_ns(tube));
            self.lots.unknown_ns = averages.reduce(f64::min).unwrap_or(HELD_NS_MIN);
        }
        self.lots
    }

    /// Returns the turn of a tube behind its last one, if it has a job. In a mode without chance all lots are equal.
    pub(super) fn turn(
        &self,
        watch: WatchKey,
        after: Lot,
        lots: &mut Lots,
        may_overtake: bool,
    ) -> Option<Turn> {
        let &Watch { client, tube, weight, .. } = &self.clients.watches[watch.0];
        let job = self.first_reservable(tube, may_overtake)?;
        let weight = f64::from(weight.get());
        let lot = match self.clients[client].mode {
            ReserveMode::Default | ReserveMode::Fifo => Lot::FIRST,
            ReserveMode::Weighted => lots.draw(after, weight),
            ReserveMode::WeightedFair => {
                let held_ns = self.average_held_ns(tube).unwrap_or(lots.unknown_ns);
                lots.draw(after, weight / held_ns)
            }
        };
        Some((lot, job, watch))
    }

    /// The watches of tubes with a job. Looks at the watched tubes or at the reservable ones, whichever are fewer.
    pub(super) fn reservable_watches(&self, client: ClientSlot) -> impl Iterator<Item = WatchKey> {
        let Self { clients, tubes, .. } = self;
        let watches = &clients[client].watches;
        let is_by_watch = watches.len() <= tubes.reservable.len();
        let by_watch = is_by_watch.then(|| {
            let has_job = |watch: &WatchKey| tubes[clients.watches[watch.0].tube].in_reservable;
            watches.iter().copied().filter(has_job)
        });
        let by_tube = (!is_by_watch).then(|| {
            let reservable = tubes.reservable.iter(&tubes.slab);
            reservable.filter_map(move |tube| clients.find_watch(client, TubeSlot(tube)))
        });
        by_watch.into_iter().flatten().chain(by_tube.into_iter().flatten())
    }

    /// Counts the steps of [`reservable_watches`](Self::reservable_watches).
    pub(super) fn count_looks(&mut self, client: ClientSlot) {
        self.steps += self.clients[client].watch_count().min(self.tubes.reservable.len()) as u32;
    }

    /// The average time for which clients held jobs of the tube, if one was held and is not any more.
    fn average_held_ns(&self, tube: TubeSlot) -> Option<f64> {
        let TimeSum { count, ns } = self.tubes[tube].latency.as_ref()?.sum(LatencyKind::Reserved);
        (count > 0).then(|| (ns / count as f64).max(HELD_NS_MIN))
    }
}

impl PartialEq for Lot {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Lot {}

impl PartialOrd for Lot {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Lot {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
