//! How many tubes and watches there may be, and what they may take of the memory.

use super::engine::Engine;
use super::latency::LatencyKind;
use crate::ids::{ClientKey, TubeSlot};
use crate::limits::NARROW_WATCH_MAX;
use crate::time::Span;
use crate::tube_name::TubeName;

/// Limits of tubes and watches. Recovery from a log may pass them.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many tubes there may be.
    pub tubes: usize,
    /// How many tubes one client may watch.
    pub watches: usize,
    /// What tubes, names and watches may take of the memory together.
    pub bytes: usize,
}

/// What a new tube and its watch take at most besides tables that double: a piece of each index, a page of each slab.
const ROOM_BYTES: usize = 1024 * 1024;

impl Bounds {
    /// No limits.
    pub const NONE: Self = Self { tubes: usize::MAX, watches: usize::MAX, bytes: usize::MAX };
}

impl Default for Bounds {
    fn default() -> Self {
        Self::NONE
    }
}

impl Engine {
    /// Sets limits of tubes and watches; at first there are none.
    pub fn bound(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The memory that tubes, their names and watches take.
    pub fn tube_bytes(&self) -> usize {
        self.tubes.bytes() + self.clients.watch_bytes() + self.tubes.len() * self.timers.element_bytes()
    }

    /// Whether a client may use a tube of this name: always, if there is one.
    pub fn can_use(&mut self, name: TubeName<'_>) -> bool {
        let is_plain = self.is_far_from_bounds();
        is_plain || self.tubes.find(name).is_some() || self.has_room(Some(name), None)
    }

    /// Whether the client may watch a tube of this name: always, if it does already. A few watches of tubes that exist are
    /// part of what a connection takes: workers that connect again are served, whoever has filled the tables.
    pub fn can_watch(&mut self, client: ClientKey, name: TubeName<'_>) -> bool {
        let is_few = self.clients.get(client).watch_count() < self.bounds.watches;
        if is_few && self.is_far_from_bounds() {
            return true;
        }
        let is_narrow = self.clients.get(client).watch_count() < NARROW_WATCH_MAX;
        match self.tubes.find_slot(name) {
            Some(tube) if self.clients.is_watching(client.slot, tube) => true,
            Some(_) => is_few && (is_narrow || self.has_room(None, Some(client))),
            None => is_few && self.has_room(Some(name), Some(client)),
        }
    }

    /// Counts how long a job of the tube waited or was held. Where memory is short, a tube counts only times that are
    /// near those it has had.
    #[inline]
    pub(super) fn record_latency(&mut self, tube: TubeSlot, kind: LatencyKind, span: Span) {
        let sample = self.latency.add(kind, span);
        if !self.tubes[tube].add_sample(kind, sample)
            && self.tube_bytes() + self.tubes.latency_growth(tube) <= self.bounds.bytes
        {
            self.tubes.add_first_sample(tube, kind, sample);
        }
    }

    fn is_far_from_bounds(&self) -> bool {
        // A table that is full takes as much again, and no table has more than there is.
        let bytes_most = self.tube_bytes().saturating_mul(2).saturating_add(ROOM_BYTES);
        self.tubes.names() < self.bounds.tubes && bytes_most <= self.bounds.bytes
    }

    /// Whether there is room for a new tube of this name, and for a watch of this client.
    fn has_room(&mut self, tube: Option<TubeName<'_>>, watcher: Option<ClientKey>) -> bool {
        let tube_growth = tube.map_or(0, |name| self.tubes.growth(name) + self.timers.element_bytes());
        let watch_growth = watcher.map_or(0, |client| self.clients.watch_growth(client));
        let has_number = tube.is_none() || self.tubes.names() < self.bounds.tubes;
        has_number && self.tube_bytes() + tube_growth + watch_growth <= self.bounds.bytes
    }
}
