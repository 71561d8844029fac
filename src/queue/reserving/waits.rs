//! The clients that wait for a job, and which of them gets the next one.
//!
//! A narrow client, one of up to [`NARROW_WATCH_MAX`](crate::queue::store::client::NARROW_WATCH_MAX) tubes, waits in the list of each tube that it
//! watches. For a wide client, one of more tubes, that would cost too much per wait. It waits in one table of wide clients
//! ([`WideWaiters`]), and each tube lists the wide clients that watch it.
//!
//! A job that becomes ready goes to the client that has waited longest: the first in its tube's list, or the first in the
//! table that watches the tube. If all workers of a pool watch the same tubes, that is the first in the table.
//!
//! A client that waits cannot change its watches. So a tube checks each entry of the table at most once, however many jobs
//! become ready: it remembers the sequence number through which it has searched. A search that runs out of steps resumes
//! there in background work, as does the assignment of very many jobs.

use super::wide_waiters::WideWaiters;
use crate::queue::long_work::BACKGROUND_STEPS;
use crate::queue::store::Store;
use crate::queue::store::client::{Client, Wait, Watched};
use crate::time::Time;
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::{ClientSlot, TubeKey, TubeSlot, WatchKey};

/// A tube checks its wide watches instead of the table of wide clients if they are fewer, and at most this many.
const WATCHES_CHECKED_MAX: usize = (BACKGROUND_STEPS / 4) as usize;

/// All waits for a job.
#[derive(Default)]
pub struct Waits {
    /// The number of waits so far, which is the sequence number of the last.
    begun: u64,
    wide: WideWaiters,
}

/// The result of a search for a waiting client.
pub enum Longest {
    Found(ClientSlot),
    None,
    /// The search ran out of steps. The next one resumes where it stopped.
    Unfinished,
}

impl Waits {
    pub fn bytes(&self) -> usize {
        self.wide.bytes()
    }

    /// Has a client wait. Its timer is to be armed then.
    pub fn start(&mut self, client: ClientSlot, until: Option<Time>, store: &mut Store) {
        self.begun += 1;
        store.totals.waiting += 1;
        let record = &mut store.clients.slab[client.0];
        record.wait = Some(Wait { seq: self.begun, until });
        if record.is_wide() {
            return self.wide.push(self.begun, client);
        }
        // Bounded by NARROW_WATCH_MAX: the watches of a narrow client.
        for &Watched { tube, watch, .. } in &record.watches {
            store.tubes[tube].narrow_waiters.push_back(&mut store.clients.watches, watch.0);
        }
    }

    /// Ends the wait of a client, if it waits.
    pub fn stop(&mut self, client: ClientSlot, store: &mut Store) {
        let record = &mut store.clients.slab[client.0];
        let Some(wait) = record.wait.take() else { return };
        record.is_searching = false;
        store.totals.waiting -= 1;
        if record.is_wide() {
            return self.wide.remove(wait.seq);
        }
        // Bounded by NARROW_WATCH_MAX: the watches of a narrow client.
        for &Watched { tube, watch, .. } in &record.watches {
            store.tubes[tube].narrow_waiters.remove(&mut store.clients.watches, watch.0);
        }
    }

    /// Whether a client that waits may watch the tube.
    pub fn may_have(&self, tube: TubeSlot, store: &Store) -> bool {
        !store.tubes[tube].narrow_waiters.is_empty() || self.may_have_wide(tube, store)
    }

    fn may_have_wide(&self, tube: TubeSlot, store: &Store) -> bool {
        let record = &store.tubes[tube];
        !record.wide_watches.is_empty() && self.wide.count_after(record.searched_through) > 0
    }

    /// Finds the client that has waited longest for a job of this tube.
    pub fn longest(&self, tube: TubeSlot, limit: Limit, store: &mut Store, budget: &mut Budget) -> Longest {
        let record = &store.tubes[tube];
        let narrow = record.narrow_waiters.front().map(|watch| store.clients.watches[watch].client);
        let narrow_seq = narrow.map_or(u64::MAX, |client| store.clients.wait_seq(client));
        if self.may_have_wide(tube, store) {
            match self.longest_wide(tube, narrow_seq, limit, store, budget) {
                Longest::None => {}
                found_or_unfinished => return found_or_unfinished,
            }
        }
        narrow.map_or(Longest::None, Longest::Found)
    }

    /// Finds the wide client that has waited longest for a job of this tube, if the sequence number of its wait is below
    /// `end`.
    fn longest_wide(
        &self,
        tube: TubeSlot,
        end: u64,
        limit: Limit,
        store: &mut Store,
        budget: &mut Budget,
    ) -> Longest {
        let Store { clients, tubes, .. } = store;
        let record = &mut tubes[tube];
        let watchers = record.wide_watches.len();
        if watchers <= WATCHES_CHECKED_MAX && watchers < self.wide.count_after(record.searched_through) {
            budget.charge(Cost::visits(watchers));
            // Bounded by WATCHES_CHECKED_MAX: the watches of the tube.
            let watching =
                record.wide_watches.iter(&clients.watches).map(|watch| clients.watches[watch].client);
            let waiting = watching.filter_map(|client| Some((clients[client].wait?.seq, client)));
            let longest = waiting.min_by_key(|&(seq, _)| seq);
            record.searched_through = longest.map_or(self.begun, |(seq, _)| seq - 1);
            let found = longest.filter(|&(seq, _)| seq < end);
            return found.map_or(Longest::None, |(_, client)| Longest::Found(client));
        }
        for place in self.wide.after(record.searched_through).take_while(|place| place.seq < end) {
            if !budget.spend(Cost::STEP, limit) {
                return Longest::Unfinished;
            }
            if let Some(client) = place.client.filter(|&client| clients.is_watching(client, tube)) {
                return Longest::Found(client);
            }
            record.searched_through = place.seq;
        }
        Longest::None
    }

    // Bounded by count_cost: each caller counts that many steps. It is at most the number of connections.
    pub fn count(&self, key: TubeKey, store: &Store) -> usize {
        let (tube, clients) = (store.tubes.get(key), &store.clients);
        let wide = if self.wide.count_after(tube.searched_through) < tube.wide_watches.len() {
            let waiting = self.wide.after(tube.searched_through).filter_map(|place| place.client);
            waiting.filter(|&client| clients.is_watching(client, key.slot)).count()
        } else {
            let watching =
                tube.wide_watches.iter(&clients.watches).map(|watch| clients.watches[watch].client);
            watching.filter(|&client| clients[client].is_waiting()).count()
        };
        tube.narrow_waiters.len() + wide
    }

    /// The number of clients that [`count`](Self::count) checks.
    pub fn count_cost(&self, key: TubeKey, store: &Store) -> usize {
        let tube = store.tubes.get(key);
        tube.wide_watches.len().min(self.wide.count_after(tube.searched_through))
    }

    /// Adds a watch of a client that does not wait.
    pub fn watch(&mut self, client: ClientSlot, tube: TubeSlot, store: &mut Store) {
        let was_wide = store.clients[client].is_wide();
        let added = store.clients.add_watch(client, tube);
        let record = &mut store.tubes[tube];
        record.watching += 1;
        let name_length = record.name().as_bytes().len();
        let record = &mut store.clients[client];
        record.name_lengths += name_length;
        if was_wide {
            self.add_wide_watch(added, store);
        } else if record.is_wide() {
            // One more than a narrow client may watch.
            // Bounded by NARROW_WATCH_MAX: a client that has just become wide has one watch more.
            for watched in record.watches.clone() {
                self.add_wide_watch(watched.watch, store);
            }
        }
    }

    fn add_wide_watch(&self, watch: WatchKey, store: &mut Store) {
        let tube = &mut store.tubes[store.clients.watches[watch.0].tube];
        if tube.wide_watches.is_empty() {
            tube.searched_through = self.begun;
        }
        tube.wide_watches.push_back(&mut store.clients.watches, watch.0);
    }

    // Bounded by its caller: a test.
    pub fn check(&self, store: &Store) {
        self.wide.check(&store.clients);
        let is_waiting = |client: &Client| client.is_wide() && client.is_waiting();
        let waiting = store.clients.iter().filter(|(_, client)| is_waiting(client)).count();
        assert_eq!(waiting, self.wide.len(), "wide clients that wait are in the table");
    }
}
