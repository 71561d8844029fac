//! The search of a reserve: the tubes that a client watches and that have a job for it.

use super::client::Client;
use super::engine::{Engine, Notice};
use super::heads::{HEADS_PER_STEP, Head};
use super::store::Store;
use super::work::Work;
use crate::time::Time;
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, ClientSlot, JobId, JobKey, TubeSlot};

impl Engine {
    /// Finds the job that the client gets: the most urgent one, unless its mode leaves that to chance.
    pub(super) fn search(&mut self, client: ClientSlot, may_overtake: bool) -> Option<JobKey> {
        if self.store.clients[client].mode.is_weighted() {
            self.draw(client, may_overtake)
        } else {
            self.most_urgent(client, may_overtake)
        }
    }

    /// Has background work search for a client that waits, because lanes of full concurrency keys are to be shut first.
    pub(super) fn search_later(&mut self, client: ClientSlot) {
        let record = &mut self.store.clients[client];
        record.is_searching = true;
        if !std::mem::replace(&mut record.has_search, true) {
            self.effects.work.push_back(Work::Search { client: self.store.clients.key(client) });
        }
    }

    /// Continues [`Work::Search`]. Returns true if it is finished.
    pub(super) fn continue_search_for(&mut self, key: ClientKey, limit: Limit, now: Time) -> bool {
        let Some(client) = self.store.clients.find(key) else { return true };
        if self.store.clients[client].is_searching
            && !self.cons.shut_loose(limit, &mut self.store, &mut self.budget)
        {
            return false;
        }
        let record = &mut self.store.clients[client];
        record.has_search = false;
        if std::mem::take(&mut record.is_searching)
            && let Some(job) = self.search(client, false)
        {
            self.stop_waiting(client);
            self.hand_out(job, client, now);
            self.effects.notices.push_back(Notice::Reserved(self.store.clients[client].conn, job));
        }
        true
    }

    /// Whether it is not known yet whether there is a job for the client.
    pub(super) fn is_search_unfinished(&mut self, client: ClientSlot) -> bool {
        let record = &self.store.clients[client];
        if record.is_searching || !self.cons.is_shutting_any() {
            return record.is_searching;
        }
        self.budget.charge(Cost::visits(record.watch_count().div_ceil(HEADS_PER_STEP)));
        // Bounded by HEADS_PER_STEP: the watches, which are paid above.
        record.watches.iter().any(|watched| self.store.tubes.heads.get(watched.tube).is_shutting())
    }

    /// Finds the most urgent ready job that the client may get.
    #[inline]
    pub(super) fn most_urgent(&mut self, client: ClientSlot, may_overtake: bool) -> Option<JobKey> {
        if let [watched] = self.store.clients[client].watches[..] {
            self.budget.charge(Cost::STEP);
            return self.store.tubes.heads.get(watched.tube).job(may_overtake);
        }
        self.count_look(client);
        let Store { clients, tubes, .. } = &self.store;
        let (mut key, mut best) = ((u32::MAX, JobId(u64::MAX)), None);
        if self.searches_watches(&clients[client]) {
            // Bounded by count_look: it counts the steps of the whole look.
            for watched in &clients[client].watches {
                let head = tubes.heads.get(watched.tube);
                if head.key() < key
                    && let Some(job) = head.job(may_overtake)
                {
                    (key, best) = (head.key(), Some(job));
                }
            }
        } else {
            // Bounded by count_look: it counts the steps of the whole look.
            for tube in tubes.reservable.iter(&tubes.slab).map(TubeSlot) {
                let head = tubes.heads.get(tube);
                // Whether the client watches the tube takes longer to find out.
                if head.key() < key
                    && let Some(job) = head.job(may_overtake)
                    && clients.is_watching(client, tube)
                {
                    (key, best) = (head.key(), Some(job));
                }
            }
        }
        best
    }

    /// The places in the client's list of watches of the tubes from which it may get a job.
    pub(super) fn candidates(
        &self,
        client: ClientSlot,
        may_overtake: bool,
    ) -> impl Iterator<Item = (usize, &Head)> {
        let Store { clients, tubes, .. } = &self.store;
        let record = &clients[client];
        let by_watch = self.searches_watches(record);
        let places = by_watch.then_some(0..record.watches.len());
        let found = (!by_watch).then(|| {
            // Bounded by count_look: each caller pays for the look first, 32 watches in a step.
            let watches = tubes.reservable.iter(&tubes.slab).filter_map(move |tube| {
                let is_watched = clients.is_watching(client, TubeSlot(tube));
                is_watched.then(|| clients.find_watch(client, TubeSlot(tube))).flatten()
            });
            watches.map(|watch| clients.position(watch))
        });
        let places = places.into_iter().flatten().chain(found.into_iter().flatten());
        let with_heads = places.map(|place| (place, tubes.heads.get(record.watches[place].tube)));
        with_heads.filter(move |(_, head)| head.job(may_overtake).is_some())
    }

    /// The priorities and ids of the most urgent jobs of the [`candidates`](Self::candidates), with their tubes, up to `most` of
    /// them in no order. Returns also whether there are more.
    pub(super) fn most_urgent_heads(
        &mut self,
        client: ClientSlot,
        most: usize,
        may_overtake: bool,
    ) -> (Vec<(u32, JobId, TubeSlot)>, bool) {
        self.count_look(client);
        let (mut heads, mut is_cut) = (Vec::with_capacity(2 * most), false);
        let mut bound = (u32::MAX, JobId(u64::MAX));
        // Bounded by count_look: it counts the steps of the whole look.
        for (place, head) in self.candidates(client, may_overtake) {
            let (pri, id) = head.key();
            if (pri, id) > bound {
                continue;
            }
            heads.push((pri, id, self.store.clients[client].watches[place].tube));
            if heads.len() == 2 * most {
                // Half of them are discarded at once, so that each costs the same time in whatever order they come.
                let (_, &mut (pri, id, _), _) = heads.select_nth_unstable(most - 1);
                (bound, is_cut) = ((pri, id), true);
                heads.truncate(most);
            }
        }
        (heads, is_cut)
    }

    /// Whether a search looks at the watched tubes, and not at the reservable ones. Those are in many places of memory.
    #[inline]
    pub(super) fn searches_watches(&self, client: &Client) -> bool {
        client.watches.len() <= HEADS_PER_STEP * self.store.tubes.reservable.len()
    }

    /// Counts the steps of one look at all [`candidates`](Self::candidates).
    #[inline]
    pub(super) fn count_look(&mut self, client: ClientSlot) {
        let watches = self.store.clients[client].watch_count().div_ceil(HEADS_PER_STEP);
        self.budget.charge(Cost::visits(watches.min(self.store.tubes.reservable.len())));
    }
}
