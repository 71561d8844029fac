//! Which tubes a client uses and watches, and when a tube begins and ends.

use std::num::NonZeroU32;

use super::engine::Engine;
use crate::values::ids::{ClientKey, TubeSlot};
use crate::values::reserve_mode::ReserveMode;
use crate::values::tube_name::TubeName;

/// The answer to an `ignore`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignored {
    /// The client watches this many tubes now.
    Watching(usize),
    /// The client watches only this tube, and still does.
    Last,
}

impl Engine {
    /// Sets the tube that the client puts to. Creates the tube if it does not exist.
    pub fn use_tube(&mut self, client: ClientKey, name: TubeName<'_>) {
        let tube = self.find_or_create_tube(name);
        let previous = std::mem::replace(&mut self.store.clients.get_mut(client).used, tube);
        self.store.tubes[tube].using += 1;
        self.store.tubes[previous].using -= 1;
        self.remove_if_unreferenced(previous);
    }

    /// Adds a watch. Creates the tube if it does not exist. Returns the number of watched tubes.
    pub fn watch(&mut self, client: ClientKey, name: TubeName<'_>) -> usize {
        let client = self.store.clients.slot(client);
        let tube = self.find_or_create_tube(name);
        if !self.store.clients.is_watching(client, tube) {
            self.waits.watch(client, tube, &mut self.store);
        }
        self.store.clients[client].watch_count()
    }

    /// Removes a watch, unless it is the last one.
    pub fn ignore(&mut self, client: ClientKey, name: TubeName<'_>) -> Ignored {
        let client = self.store.clients.slot(client);
        let watch =
            self.store.tubes.find_slot(name).and_then(|tube| self.store.clients.find_watch(client, tube));
        let count = self.store.clients[client].watch_count();
        match watch {
            None => Ignored::Watching(count),
            Some(_) if count == 1 => Ignored::Last,
            Some(watch) => {
                self.store.unwatch(watch, &mut self.effects.changes);
                Ignored::Watching(count - 1)
            }
        }
    }

    /// Looks at up to `count` watches before the place `end`, from the last to the first, and removes those of tubes that are not to
    /// be kept. The client may then watch no tube. Returns the place where to go on, 0 if it has looked at all.
    ///
    /// # Panics
    /// If the client waits for a job.
    pub fn keep_watches(
        &mut self,
        client: ClientKey,
        end: usize,
        count: usize,
        keep: impl Fn(TubeName<'_>) -> bool,
    ) -> usize {
        let client = self.store.clients.slot(client);
        let begin = end.saturating_sub(count);
        // The last watch takes the place of one that is removed, and is to be kept.
        // Bounded by WATCHES_PER_TURN: `count` is no larger.
        for place in (begin..end).rev() {
            let watched = self.store.clients[client].watches[place];
            if !keep(self.store.tubes[watched.tube].name()) {
                self.store.unwatch(watched.watch, &mut self.effects.changes);
            }
        }
        begin
    }

    pub(super) fn find_or_create_tube(&mut self, name: TubeName<'_>) -> TubeSlot {
        match self.store.tubes.find_slot(name) {
            Some(tube) => tube,
            None => {
                let tube = self.store.tubes.add(name, &mut self.store.timers);
                self.rules.attach(tube, &mut self.store);
                tube
            }
        }
    }

    pub(super) fn remove_if_unreferenced(&mut self, tube: TubeSlot) {
        self.store.remove_if_unreferenced(tube, &mut self.effects.changes);
    }

    /// Sets how the client's reserves choose among tubes.
    pub fn set_reserve_mode(&mut self, client: ClientKey, mode: ReserveMode) {
        self.store.clients.get_mut(client).mode = mode;
        self.store.tubes.heads.has_averages |= mode == ReserveMode::WeightedFair;
    }

    /// Sets the weight of a tube that the client watches.
    ///
    /// # Panics
    /// If the client does not watch the tube.
    pub fn set_weight(&mut self, client: ClientKey, name: TubeName<'_>, weight: NonZeroU32) {
        let client = self.store.clients.slot(client);
        let tube = self.store.tubes.find_slot(name);
        let watch = tube.and_then(|tube| self.store.clients.find_watch(client, tube));
        let position = self.store.clients.position(watch.expect("the client watches the tube"));
        self.store.clients.slab[client.0].watches[position].weight = weight;
    }
}
