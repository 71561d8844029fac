//! Which tubes a client uses and watches, and when a tube begins and ends.

use super::engine::Engine;
use crate::values::ids::{ClientKey, ClientSlot, TubeSlot, WatchKey};
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
            self.watch_tube(client, tube);
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
                self.unwatch(watch);
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
                self.unwatch(watched.watch);
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

    pub(super) fn watch_tube(&mut self, client: ClientSlot, tube: TubeSlot) {
        let was_wide = self.store.clients[client].is_wide();
        let added = self.store.clients.add_watch(client, tube);
        let record = &mut self.store.tubes[tube];
        record.watching += 1;
        let name_length = record.name().as_bytes().len();
        let record = &mut self.store.clients[client];
        record.name_lengths += name_length;
        if was_wide {
            self.add_wide_watch(added);
        } else if record.is_wide() {
            // One more than a narrow client may watch.
            // Bounded by NARROW_WATCH_MAX: a client that has just become wide has one watch more.
            for watched in record.watches.clone() {
                self.add_wide_watch(watched.watch);
            }
        }
    }

    pub(super) fn unwatch(&mut self, watch: WatchKey) {
        let record = &self.store.clients.watches[watch.0];
        let (client, tube) = (record.client, record.tube);
        assert!(!self.store.clients[client].is_waiting(), "a client that waits sends no command");
        let was_wide = self.store.clients[client].is_wide();
        if was_wide {
            self.remove_wide_watch(watch);
        }
        self.store.clients.remove_watch(watch);
        let record = &self.store.clients[client];
        if was_wide && !record.is_wide() {
            // Bounded by NARROW_WATCH_MAX: the watches of a client that has just become narrow.
            for watched in record.watches.clone() {
                self.remove_wide_watch(watched.watch);
            }
        }
        let record = &mut self.store.tubes[tube];
        record.watching -= 1;
        let name_length = record.name().as_bytes().len();
        self.store.clients[client].name_lengths -= name_length;
        self.remove_if_unreferenced(tube);
    }

    fn add_wide_watch(&mut self, watch: WatchKey) {
        let tube = &mut self.store.tubes[self.store.clients.watches[watch.0].tube];
        if tube.wide_watches.is_empty() {
            tube.searched_through = self.waits_begun;
        }
        tube.wide_watches.push_back(&mut self.store.clients.watches, watch.0);
    }

    fn remove_wide_watch(&mut self, watch: WatchKey) {
        let tube = &mut self.store.tubes[self.store.clients.watches[watch.0].tube];
        tube.wide_watches.remove(&mut self.store.clients.watches, watch.0);
    }
}
