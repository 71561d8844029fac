//! The search of a reserve: the tubes that a client watches and that have a job for it.

use crate::queue::store::Store;
use crate::queue::store::client::{Client, Clients};
use crate::queue::store::heads::{HEADS_PER_STEP, Head};
use crate::queue::store::tube::Tubes;
use crate::values::budget::{Budget, Cost};
use crate::values::ids::{ClientSlot, JobId, JobKey, TubeSlot};

/// The view of one client that looks for a job.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    clients: &'a Clients,
    tubes: &'a Tubes,
    client: ClientSlot,
    /// A client that could wait must leave jobs that background work assigns to clients that do.
    may_overtake: bool,
}

impl<'a> Look<'a> {
    #[inline]
    pub const fn new(store: &'a Store, client: ClientSlot, may_overtake: bool) -> Self {
        Self { clients: &store.clients, tubes: &store.tubes, client, may_overtake }
    }

    /// The client that looks.
    #[inline]
    pub fn client(self) -> &'a Client {
        &self.clients[self.client]
    }

    #[inline]
    pub fn head(self, tube: TubeSlot) -> &'a Head {
        self.tubes.heads.get(tube)
    }

    /// The job of this head, if the client may get it.
    #[inline]
    pub fn job(self, head: &Head) -> Option<JobKey> {
        head.job(self.may_overtake)
    }

    /// Finds the most urgent ready job that the client may get.
    #[inline]
    pub fn most_urgent(self, budget: &mut Budget) -> Option<JobKey> {
        if let [watched] = self.client().watches[..] {
            budget.charge(Cost::STEP);
            return self.job(self.head(watched.tube));
        }
        self.charge(budget);
        let (mut key, mut best) = ((u32::MAX, JobId(u64::MAX)), None);
        if self.is_by_watch() {
            // Bounded by charge: it counts the steps of the whole look.
            for watched in &self.client().watches {
                let head = self.head(watched.tube);
                if head.key() < key
                    && let Some(job) = self.job(head)
                {
                    (key, best) = (head.key(), Some(job));
                }
            }
        } else {
            // Bounded by charge: it counts the steps of the whole look.
            for tube in self.tubes.reservable.iter(&self.tubes.slab).map(TubeSlot) {
                let head = self.head(tube);
                // Whether the client watches the tube takes longer to find out.
                if head.key() < key
                    && let Some(job) = self.job(head)
                    && self.clients.is_watching(self.client, tube)
                {
                    (key, best) = (head.key(), Some(job));
                }
            }
        }
        best
    }

    /// The places in the client's list of watches of the tubes from which it may get a job.
    pub fn candidates(self) -> impl Iterator<Item = (usize, &'a Head)> {
        let Self { clients, tubes, client, .. } = self;
        let record = self.client();
        let by_watch = self.is_by_watch();
        let places = by_watch.then_some(0..record.watches.len());
        let found = (!by_watch).then(|| {
            // Bounded by charge: each caller pays for the look first, 32 watches in a step.
            let watches = tubes.reservable.iter(&tubes.slab).filter_map(move |tube| {
                let is_watched = clients.is_watching(client, TubeSlot(tube));
                is_watched.then(|| clients.find_watch(client, TubeSlot(tube))).flatten()
            });
            watches.map(|watch| clients.position(watch))
        });
        let places = places.into_iter().flatten().chain(found.into_iter().flatten());
        let with_heads = places.map(move |place| (place, self.head(record.watches[place].tube)));
        with_heads.filter(move |(_, head)| self.job(head).is_some())
    }

    /// The priorities and ids of the most urgent jobs of the [`candidates`](Self::candidates), with their tubes, up to `most` of
    /// them in no order. Returns also whether there are more.
    pub fn most_urgent_heads(self, most: usize, budget: &mut Budget) -> (Vec<(u32, JobId, TubeSlot)>, bool) {
        self.charge(budget);
        let (mut heads, mut is_cut) = (Vec::with_capacity(2 * most), false);
        let mut bound = (u32::MAX, JobId(u64::MAX));
        // Bounded by charge: it counts the steps of the whole look.
        for (place, head) in self.candidates() {
            let (pri, id) = head.key();
            if (pri, id) > bound {
                continue;
            }
            heads.push((pri, id, self.client().watches[place].tube));
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
    pub fn is_by_watch(self) -> bool {
        self.client().watches.len() <= HEADS_PER_STEP * self.tubes.reservable.len()
    }

    /// Counts the steps of one look at all [`candidates`](Self::candidates).
    #[inline]
    pub fn charge(self, budget: &mut Budget) {
        let watches = self.client().watch_count().div_ceil(HEADS_PER_STEP);
        budget.charge(Cost::visits(watches.min(self.tubes.reservable.len())));
    }
}
