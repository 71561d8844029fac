//! Clients: what each uses, watches, holds and waits for.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use super::timers::{Owner, TimerKey, Timers};
use super::watched_bits::{BITS_FROM, BITS_KEPT, WatchedBits};
use crate::intrusive::{Heap, Links, List, NIL, Pages, Table, intrusive, pair};
use crate::queue::extensions::job_waits::JobWaitKey;
use crate::time::Time;
use crate::values::ids::{ClientKey, ClientSlot, ConnId, TubeSlot, WatchKey};
use crate::values::limits::ALLOCATION_BYTES;
use crate::values::reserve_mode::ReserveMode;

/// A client that watches up to this many tubes is narrow: while it waits, it is in a list of each. A client of more tubes is
/// wide.
pub const NARROW_WATCH_MAX: usize = 16;

/// A client of the queue. All of it is in memory only.
pub struct Client {
    /// The connection, for notices.
    pub conn: ConnId,
    /// The tube of `put`, `kick` and the peeks.
    pub used: TubeSlot,
    /// In the order of `list-tubes-watched`.
    pub(in crate::queue) watches: Vec<Watched>,
    /// The watched tubes as a set, if they are very many.
    bits: WatchedBits,
    /// The length of the names of all watched tubes.
    pub(in crate::queue) name_lengths: usize,
    /// The jobs that it has reserved by (deadline, id), through their lifecycles.
    pub reserved: Heap,
    /// The jobs that it has reserved, in the order in which it did so.
    pub(in crate::queue) reserved_order: List,
    /// Set while the client waits for a job to reserve.
    pub(in crate::queue) wait: Option<Wait>,
    /// The client waits, and background work finds out whether there is a job for it.
    pub(in crate::queue) is_searching: bool,
    /// Such work is queued. It may be of an earlier wait.
    pub(in crate::queue) has_search: bool,
    /// Set while the client waits for the end of a job. Then it does not wait for another job.
    pub(in crate::queue) job_wait: Option<JobWaitKey>,
    /// How its reserves choose among tubes.
    pub mode: ReserveMode,
    /// The client has put.
    pub(in crate::queue) is_producer: bool,
    /// The client has reserved.
    pub(in crate::queue) is_worker: bool,
    /// The client leaves in order, so that the jobs that it holds have not failed.
    pub(in crate::queue) has_quit: bool,
    /// The client has disconnected, and its jobs are being returned.
    pub(in crate::queue) is_disconnecting: bool,
    /// Fires when a reservation or the wait may end.
    pub(in crate::queue) timer: TimerKey,
    /// See [`ClientKey`].
    generation: u32,
}

/// A `reserve` without an answer yet.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// The sequence number of the wait: an earlier wait has a smaller one.
    pub seq: u64,
    /// When the wait ends without a job.
    pub until: Option<Time>,
}

/// A vector of watches does not shrink below this capacity.
const WATCHES_KEPT: usize = 64;

/// The watch of one tube by one client.
pub struct Watch {
    pub(in crate::queue) client: ClientSlot,
    pub(in crate::queue) tube: TubeSlot,
    /// In the client's vector.
    position: u32,
    /// In the tube's list of narrow waiters or wide watches.
    links: Links,
    chain: u32,
}

/// A watch as the client's vector has it: all that a search needs of it, so that it reads one place of memory after the other.
#[derive(Clone, Copy)]
pub(in crate::queue) struct Watched {
    pub tube: TubeSlot,
    pub watch: WatchKey,
    /// For the modes of reserve in which chance decides.
    pub weight: NonZeroU32,
}

const _: () = assert!(size_of::<Option<Watch>>() == 32 && size_of::<Watched>() == 12);

/// All clients and their watches.
pub struct Clients {
    pub(in crate::queue) slab: Pages<Client>,
    pub(in crate::queue) watches: Table<Watch>,
    /// The number of clients since the start, modulo 2^32.
    connected: u32,
    /// The memory of the vectors of watches.
    list_bytes: usize,
}

impl Client {
    /// Returns true while a `reserve` of the client has no answer.
    pub fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// The number of watched tubes.
    pub fn watch_count(&self) -> usize {
        self.watches.len()
    }

    const fn list_bytes(&self) -> usize {
        self.watches.capacity() * size_of::<Watched>() + ALLOCATION_BYTES + self.bits.bytes()
    }

    /// Returns true if the client watches too many tubes to wait in the list of each.
    pub(in crate::queue) fn is_wide(&self) -> bool {
        self.watches.len() > NARROW_WATCH_MAX
    }
}

impl Clients {
    /// No clients. `seed` keeps clients from choosing watches that collide.
    pub(in crate::queue) fn new(seed: u64) -> Self {
        Self { slab: Pages::new(), watches: Table::new(seed), connected: 0, list_bytes: 0 }
    }

    /// The client.
    ///
    /// # Panics
    /// If the key is stale: the client was removed, and another may have its slot.
    #[inline(always)]
    pub fn get(&self, client: ClientKey) -> &Client {
        let record = &self.slab[client.slot.0];
        assert_eq!(record.generation, client.generation, "a client key is not stale");
        record
    }

    #[inline(always)]
    pub(in crate::queue) fn get_mut(&mut self, client: ClientKey) -> &mut Client {
        let record = &mut self.slab[client.slot.0];
        assert_eq!(record.generation, client.generation, "a client key is not stale");
        record
    }

    /// The slot of the client, if it exists.
    pub(in crate::queue) fn find(&self, client: ClientKey) -> Option<ClientSlot> {
        let record = self.slab.get(client.slot.0)?;
        (record.generation == client.generation).then_some(client.slot)
    }

    /// Whether the client exists and has not disconnected.
    pub(in crate::queue) fn is_connected(&self, client: ClientKey) -> bool {
        self.find(client).is_some_and(|client| !self[client].is_disconnecting)
    }

    /// The slot of the client.
    ///
    /// # Panics
    /// If the key is stale.
    #[inline]
    pub(in crate::queue) fn slot(&self, client: ClientKey) -> ClientSlot {
        self.get(client);
        client.slot
    }

    /// The key of the client in this slot.
    pub fn key(&self, slot: ClientSlot) -> ClientKey {
        ClientKey { slot, generation: self[slot].generation }
    }

    /// All clients, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (ClientKey, &Client)> {
        // Bounded by its caller: an iterator.
        self.slab.iter().map(|(slot, client)| {
            (ClientKey { slot: ClientSlot(slot), generation: client.generation }, client)
        })
    }

    /// The tubes that the client watches, in the order of `list-tubes-watched`.
    pub fn watched(&self, client: ClientKey) -> impl ExactSizeIterator<Item = TubeSlot> {
        // Bounded by its caller: an iterator.
        self.get(client).watches.iter().map(|watched| watched.tube)
    }

    /// Returns true if the client watches the tube.
    pub fn is_watching(&self, client: ClientSlot, tube: TubeSlot) -> bool {
        let shown = self[client].bits.get(tube);
        shown.unwrap_or_else(|| self.find_watch(client, tube).is_some())
    }

    /// The memory of the clients without their watches.
    pub(in crate::queue) const fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    /// The memory of the watches.
    pub(in crate::queue) const fn watch_bytes(&self) -> usize {
        self.watches.bytes() + self.list_bytes
    }

    /// What one more watch of the client, of a tube in a slot below `slots_end`, adds to [`watch_bytes`](Self::watch_bytes).
    pub(in crate::queue) fn watch_growth(&mut self, client: ClientKey, slots_end: u32) -> usize {
        let Client { watches: list, bits, .. } = self.get(client);
        let bits_growth = if list.len() + 1 >= BITS_FROM { bits.growth(slots_end) } else { 0 };
        let is_full = list.len() == list.capacity();
        let list_growth = if is_full { list.capacity().max(4) * size_of::<Watched>() } else { 0 };
        self.watches.growth() + list_growth + bits_growth
    }

    /// Adds a client that uses `used` and watches nothing.
    pub(in crate::queue) fn add(&mut self, conn: ConnId, used: TubeSlot, timers: &mut Timers) -> ClientKey {
        let timer = timers.add();
        self.list_bytes += ALLOCATION_BYTES;
        self.connected = self.connected.wrapping_add(1);
        let generation = self.connected;
        let slot = ClientSlot(self.slab.insert(Client {
            conn,
            used,
            watches: Vec::new(),
            bits: WatchedBits::default(),
            name_lengths: 0,
            reserved: Heap::new(),
            reserved_order: List::new(),
            wait: None,
            is_searching: false,
            has_search: false,
            job_wait: None,
            mode: ReserveMode::Default,
            is_producer: false,
            is_worker: false,
            is_disconnecting: false,
            has_quit: false,
            timer,
            generation,
        }));
        let key = ClientKey { slot, generation };
        timers.set_owner(timer, Owner::Client(key));
        key
    }

    /// Removes a client that has reserved nothing and watches nothing.
    pub(in crate::queue) fn remove(&mut self, client: ClientKey) -> Client {
        let generation = client.generation;
        let client = self.slab.remove(client.slot.0);
        assert_eq!(client.generation, generation, "a client key is not stale");
        assert!(client.reserved.is_empty() && client.watches.is_empty());
        assert!(client.wait.is_none() && client.job_wait.is_none());
        self.list_bytes -= client.list_bytes();
        client
    }

    pub(in crate::queue) fn find_watch(&self, client: ClientSlot, tube: TubeSlot) -> Option<WatchKey> {
        self.watches.find_word(pair(client.0, tube.0)).map(WatchKey)
    }

    /// The place of a watch in the vector of its client.
    pub(in crate::queue) fn position(&self, watch: WatchKey) -> usize {
        self.watches[watch.0].position as usize
    }

    /// Adds a watch. The client must not watch the tube yet.
    pub(in crate::queue) fn add_watch(&mut self, client: ClientSlot, tube: TubeSlot) -> WatchKey {
        let record = &mut self.slab[client.0];
        let position = record.watches.len() as u32;
        let key = self.watches.insert(Watch { client, tube, position, links: Links::NONE, chain: NIL });
        let before = record.list_bytes();
        record.watches.push(Watched { tube, watch: WatchKey(key), weight: NonZeroU32::MIN });
        if record.bits.is_on() {
            record.bits.set(tube);
        } else if record.watches.len() >= BITS_FROM {
            record.bits.turn_on();
            // Bounded by BITS_FROM: the watches of a client that gets its bits.
            record.watches.iter().for_each(|watched| record.bits.set(watched.tube));
        }
        self.list_bytes += record.list_bytes() - before;
        WatchKey(key)
    }

    /// Removes a watch that is in no list of its tube.
    pub(in crate::queue) fn remove_watch(&mut self, key: WatchKey) {
        let watch = self.watches.remove(key.0);
        // The last watch takes the place, as in beanstalkd: `list-tubes-watched` shows the order.
        let client = &mut self.slab[watch.client.0];
        let before = client.list_bytes();
        let list = &mut client.watches;
        list.swap_remove(watch.position as usize);
        client.bits.clear(watch.tube);
        if list.len() < BITS_KEPT {
            client.bits = WatchedBits::default();
        }
        if let Some(&moved) = list.get(watch.position as usize) {
            self.watches[moved.watch.0].position = watch.position;
        }
        if list.capacity() > WATCHES_KEPT && list.len() < list.capacity() / 4 {
            list.shrink_to(list.capacity() / 2);
        }
        self.list_bytes -= before - client.list_bytes();
    }

    // Bounded by its caller: a test.
    pub(in crate::queue) fn check(&self) {
        self.slab.check();
        self.watches.check(0);
        let lists: usize = self.slab.iter().map(|(_, client)| client.list_bytes()).sum();
        assert_eq!(self.list_bytes, lists, "the memory of the vectors is counted");
        let mut watches = 0;
        for (key, client) in self.slab.iter() {
            for (position, watched) in client.watches.iter().enumerate() {
                let watch = &self.watches[watched.watch.0];
                assert_eq!((watch.client, watch.position as usize), (ClientSlot(key), position));
                assert_eq!(watch.tube, watched.tube);
                assert_ne!(client.bits.get(watch.tube), Some(false), "the bits show every watch");
                watches += 1;
            }
            let has_bit = |watched: &&Watched| client.bits.get(watched.tube) == Some(true);
            let shown = client.watches.iter().filter(has_bit).count();
            assert_eq!(client.bits.shown(), shown, "the bits show only watches");
        }
        assert_eq!(watches, self.watches.len(), "every watch belongs to a client");
    }

    /// The sequence number of the wait of a waiting client.
    pub(in crate::queue) fn wait_seq(&self, client: ClientSlot) -> u64 {
        self[client].wait.expect("the client waits").seq
    }
}

impl Index<ClientSlot> for Clients {
    type Output = Client;

    #[inline]
    fn index(&self, slot: ClientSlot) -> &Client {
        &self.slab[slot.0]
    }
}

impl IndexMut<ClientSlot> for Clients {
    #[inline]
    fn index_mut(&mut self, slot: ClientSlot) -> &mut Client {
        &mut self.slab[slot.0]
    }
}

intrusive!(Watch: in lists);
intrusive!(Watch: in tables by |watch| pair(watch.client.0, watch.tube.0));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Engine;

    #[test]
    #[should_panic(expected = "a client key is not stale")]
    fn a_key_of_a_disconnected_client_does_not_name_the_next_client_in_its_slot() {
        let mut engine = Engine::new(1);
        let conn = ConnId { slot: 0, generation: 0 };
        let stale = engine.connect(conn);
        engine.disconnect(stale, Time::ZERO);
        let client = engine.connect(conn);
        assert_eq!(client.slot, stale.slot);
        engine.mark_producer(stale);
    }

    #[test]
    fn the_bits_of_a_client_show_its_watches() {
        let (mut clients, mut timers) = (Clients::new(1), Timers::default());
        let key = clients.add(ConnId { slot: 0, generation: 0 }, TubeSlot(0), &mut timers);
        let client = key.slot;
        // Some have no bit. The numbers are coprime, so that every tube comes once.
        let tubes: Vec<_> = (0..BITS_FROM as u32 + 50).map(|tube| TubeSlot(tube * 7919 % 200_003)).collect();
        for _ in 0..2 {
            for (at, &tube) in tubes.iter().enumerate() {
                assert!(!clients.is_watching(client, tube), "{tube:?}");
                let (before, growth) = (clients.watch_bytes(), clients.watch_growth(key, 200_003));
                clients.add_watch(client, tube);
                let grown = clients.watch_bytes() - before;
                // The tables begin with the first watch.
                assert!(at == 0 || grown <= growth, "{at} watches grow by {grown} bytes instead of {growth}");
                assert!(clients.is_watching(client, tube), "{tube:?}");
                assert_eq!(clients[client].bits.is_on(), at + 1 >= BITS_FROM);
                assert!(clients[client].bits.bytes() <= 16 * 1024, "tubes in high slots have no bit");
                clients.check();
            }
            for (at, &tube) in tubes.iter().enumerate() {
                let watch = clients.find_watch(client, tube).expect("the client watches the tube");
                clients.remove_watch(watch);
                assert!(!clients.is_watching(client, tube), "{tube:?}");
                assert_eq!(clients[client].bits.is_on(), tubes.len() - at > BITS_KEPT);
                clients.check();
            }
        }
    }
}
