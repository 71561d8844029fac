//! Limits on the number and the memory of tubes and watches.

use super::Store;
use super::client::NARROW_WATCH_MAX;
use super::latency::LatencyKind;
use crate::time::Time;
use crate::values::ids::{ClientKey, TubeSlot};
use crate::values::tube_name::TubeName;

/// Limits of tubes and watches. Recovery may exceed them.
#[derive(Clone, Copy, Debug)]
pub struct TubeLimits {
    /// Maximum number of tubes.
    pub tubes: usize,
    /// Maximum number of tubes that one client watches.
    pub watches: usize,
    /// Maximum memory of tubes, names and watches together.
    pub bytes: usize,
}

/// More than a new tube and its watch allocate apart from tables that double: a piece of each hash index and a page of
/// each slab.
const ROOM_BYTES: usize = 1024 * 1024;

impl TubeLimits {
    /// No limits.
    pub const NONE: Self = Self { tubes: usize::MAX, watches: usize::MAX, bytes: usize::MAX };
}

impl Default for TubeLimits {
    fn default() -> Self {
        Self::NONE
    }
}

impl Store {
    pub fn tube_bytes(&self) -> usize {
        self.tubes.bytes() + self.clients.watch_bytes() + self.tubes.len() * self.timers.element_bytes()
    }

    pub fn can_use(&mut self, name: TubeName<'_>) -> bool {
        self.is_far_below_limits() || self.tubes.find(name).is_some() || self.has_room(Some(name), None)
    }

    /// Returns true if the client may watch the tube of this name: it does so already, or there is room for the watch.
    ///
    /// The first watches of existing tubes are never refused for memory. So workers that reconnect can work even if other
    /// clients have filled the tables.
    pub fn can_watch(&mut self, client: ClientKey, name: TubeName<'_>) -> bool {
        let is_below_max = self.clients.get(client).watch_count() < self.limits.watches;
        if is_below_max && self.is_far_below_limits() {
            return true;
        }
        let is_narrow = self.clients.get(client).watch_count() < NARROW_WATCH_MAX;
        match self.tubes.find_slot(name) {
            Some(tube) if self.clients.is_watching(client.slot, tube) => true,
            Some(_) => is_below_max && (is_narrow || self.has_room(None, Some(client))),
            None => is_below_max && self.has_room(Some(name), Some(client)),
        }
    }

    /// Counts a latency of a job of the tube. Where memory is short, the tube counts it only if it has a counter for it.
    #[inline]
    pub fn record_latency(&mut self, tube: TubeSlot, kind: LatencyKind, since: Time, now: Time) {
        let sample = self.latency.add(kind, now.since(since));
        if !self.tubes.add_sample(tube, kind, sample, now)
            && self.tube_bytes() + self.tubes.latency_growth(tube) <= self.limits.bytes
        {
            self.tubes.add_first_sample(tube, kind, sample, now);
        }
    }

    fn is_far_below_limits(&self) -> bool {
        // A full table doubles, and no table is larger than all of them together.
        let bytes_most = self.tube_bytes().saturating_mul(2).saturating_add(ROOM_BYTES);
        self.tubes.names() < self.limits.tubes && bytes_most <= self.limits.bytes
    }

    /// Returns true if there is room for a new tube of this name, and for a watch of this client.
    fn has_room(&mut self, tube: Option<TubeName<'_>>, watcher: Option<ClientKey>) -> bool {
        let tube_growth = tube.map_or(0, |name| self.tubes.growth(name) + self.timers.element_bytes());
        let slots_end = self.tubes.slots_end() + 1;
        let watch_growth = watcher.map_or(0, |client| self.clients.watch_growth(client, slots_end));
        let has_number = tube.is_none() || self.tubes.names() < self.limits.tubes;
        has_number && self.tube_bytes() + tube_growth + watch_growth <= self.limits.bytes
    }
}
