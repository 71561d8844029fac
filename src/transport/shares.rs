//! Connections whose clients must finish something soon, such as a handshake: each has a deadline, and each address has its share of
//! their number.
//!
//! When there are too many, a new one takes the place of another one of the address that has most. Of the connections of an address,
//! those that have sent nothing yet end before the others, while they are more than half of all. So an address that opens connections
//! without an end closes its own, and neither those of others nor those that it uses.

use std::collections::{BTreeMap, BTreeSet};

use crate::server::Origin;
use crate::time::{Span, Time};
use crate::values::ids::ConnId;

/// Memory of an entry in each of the trees.
const ENTRY_BYTES: usize = 256;

/// The key of an unfinished connection, in the order in which they have begun.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key(u64);

/// Unfinished connections. All have the same time.
pub(super) struct Shares {
    max: usize,
    time: Span,
    begun: u64,
    entries: BTreeMap<Key, Entry>,
    by_network: BTreeMap<u128, Share>,
}

struct Entry {
    conn: ConnId,
    until: Time,
    /// [`Origin::network`].
    network: u128,
}

/// The connections of an address.
#[derive(Default)]
struct Share {
    /// Those that have sent nothing yet.
    silent: BTreeSet<Key>,
    /// The others.
    begun: BTreeSet<Key>,
}

impl Share {
    fn count(&self) -> usize {
        self.silent.len() + self.begun.len()
    }

    /// The oldest one, or the oldest that is silent.
    fn oldest(&self, is_silent: bool) -> Option<Key> {
        let (silent, begun) = (self.silent.first(), self.begun.first());
        if is_silent { silent.copied() } else { silent.into_iter().chain(begun).min().copied() }
    }
}

impl Shares {
    /// For up to `max` connections, each of which has this time.
    pub const fn new(max: usize, time: Span) -> Self {
        Self { max, time, begun: 0, entries: BTreeMap::new(), by_network: BTreeMap::new() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> usize {
        self.entries.len() * ENTRY_BYTES
    }

    /// Adds a connection, which has sent nothing yet.
    pub fn insert(&mut self, conn: ConnId, origin: Origin, now: Time) -> Key {
        let key = Key(self.begun);
        self.begun += 1;
        let network = origin.network;
        self.entries.insert(key, Entry { conn, until: now + self.time, network });
        self.by_network.entry(network).or_default().silent.insert(key);
        key
    }

    /// Notes that a connection has sent something.
    ///
    /// # Panics
    /// If it is not here.
    pub fn note_input(&mut self, key: Key) {
        let network = self.entries[&key].network;
        let share = self.by_network.get_mut(&network).expect("a connection is in a share");
        if share.silent.remove(&key) {
            share.begun.insert(key);
        }
    }

    /// Removes a connection that has finished or failed.
    ///
    /// # Panics
    /// If it is not here.
    pub fn remove(&mut self, key: Key) {
        let Entry { network, .. } = self.entries.remove(&key).expect("a connection finishes once");
        let share = self.by_network.get_mut(&network).expect("a connection is in a share");
        if !share.silent.remove(&key) {
            share.begun.remove(&key);
        }
        if share.count() == 0 {
            self.by_network.remove(&network);
        }
    }

    /// The connection that must end before another one of this origin begins, if there are too many.
    pub fn surplus(&self, newest: Origin) -> Option<ConnId> {
        if self.entries.len() < self.max {
            return None;
        }
        let own = self.by_network.get(&newest.network).map_or(0, Share::count);
        // Bounded by HOPS_MAX: the addresses of unfinished connections. HANDSHAKES_MAX is less.
        let most = self.by_network.values().map(Share::count).max()?;
        // An address that is one of several with as many makes room for itself.
        let is_own = own > 0 && own + 1 >= most;
        let may_end = |&(network, share): &(&u128, &Share)| match is_own {
            true => *network == newest.network,
            false => share.count() == most,
        };
        // Bounded by HOPS_MAX: the addresses of unfinished connections. HANDSHAKES_MAX is less.
        let shares = || self.by_network.iter().filter(may_end).map(|(_, share)| share);
        let silent: usize = shares().map(|share| share.silent.len()).sum();
        let oldest = shares().filter_map(|share| share.oldest(silent > self.max / 2)).min()?;
        Some(self.entries[&oldest].conn)
    }

    /// A connection whose time is over.
    pub fn next_late(&self, now: Time) -> Option<ConnId> {
        let (_, first) = self.entries.first_key_value()?;
        (first.until <= now).then_some(first.conn)
    }

    /// When the time of the next one is over.
    pub fn next_deadline(&self) -> Option<Time> {
        self.entries.first_key_value().map(|(_, first)| first.until)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const MAX: usize = 64;

    /// Connections, of which some have ended for others.
    struct Crowd {
        shares: Shares,
        open: HashMap<ConnId, Key>,
        begun: u32,
    }

    const fn from(network: u128) -> Origin {
        Origin { network, is_local: false }
    }

    impl Crowd {
        fn new() -> Self {
            Self { shares: Shares::new(MAX, Span::from_secs(5)), open: HashMap::new(), begun: 0 }
        }

        fn connect(&mut self, network: u128, sends: bool) -> ConnId {
            if let Some(surplus) = self.shares.surplus(from(network)) {
                self.shares.remove(self.open.remove(&surplus).expect("it is open"));
            }
            self.begun += 1;
            let conn = ConnId::client(self.begun, 0);
            let now = Time::from_nanos(self.begun.into());
            let key = self.shares.insert(conn, from(network), now);
            if sends {
                self.shares.note_input(key);
            }
            self.open.insert(conn, key);
            assert!(self.shares.len() <= MAX && self.shares.len() == self.open.len());
            conn
        }

        fn connect_many(&mut self, count: usize, network: u128, sends: bool) {
            for _ in 0..count {
                self.connect(network, sends);
            }
        }

        fn count(&self, network: u128) -> usize {
            self.shares.by_network.get(&network).map_or(0, Share::count)
        }
    }

    #[test]
    fn an_address_without_an_end_of_connections_ends_only_its_own() {
        for sends in [false, true] {
            let mut crowd = Crowd::new();
            crowd.connect_many(500, 1, sends);
            let others: Vec<ConnId> =
                (2..32).map(|network| crowd.connect(network, network % 2 == 0)).collect();
            crowd.connect_many(500, 1, sends);
            assert!(others.iter().all(|conn| crowd.open.contains_key(conn)), "{sends}");
        }
    }

    #[test]
    fn addresses_that_all_want_more_have_equal_shares() {
        let mut crowd = Crowd::new();
        for _ in 0..200 {
            for network in 1..=4 {
                crowd.connect(network, false);
            }
        }
        assert!((1..=4).all(|network| (15..=17).contains(&crowd.count(network))));
        // One alone may have everything.
        let mut crowd = Crowd::new();
        crowd.connect_many(200, 7, true);
        assert_eq!(crowd.count(7), MAX);
        crowd.connect_many(200, 8, true);
        assert_eq!((crowd.count(7), crowd.count(8)), (MAX / 2, MAX / 2));
    }

    #[test]
    fn those_that_have_sent_nothing_end_first() {
        let mut crowd = Crowd::new();
        let begun = crowd.connect(1, true);
        crowd.connect_many(500, 1, false);
        assert!(crowd.open.contains_key(&begun));
        // Those that have begun keep a new one out no longer than others.
        let mut crowd = Crowd::new();
        crowd.connect_many(500, 1, true);
        let new = crowd.connect(1, false);
        crowd.connect_many(20, 1, true);
        assert!(crowd.open.contains_key(&new));
    }

    #[test]
    fn a_new_address_gets_a_place_among_many_with_one_each() {
        let mut crowd = Crowd::new();
        let first = crowd.connect(100, false);
        for network in 1000..1500 {
            crowd.connect(network, false);
        }
        let new = crowd.connect(101, false);
        assert!(crowd.open.contains_key(&new) && !crowd.open.contains_key(&first));
    }

    #[test]
    fn the_first_deadline_is_that_of_the_oldest() {
        let mut crowd = Crowd::new();
        let [first, second] = [1, 2].map(|network| crowd.connect(network, false));
        let due = Time::from_nanos(1) + Span::from_secs(5);
        assert_eq!(crowd.shares.next_deadline(), Some(due));
        assert_eq!(crowd.shares.next_late(Time::from_nanos(2)), None);
        assert_eq!(crowd.shares.next_late(due), Some(first));
        crowd.shares.remove(crowd.open[&first]);
        assert_eq!(crowd.shares.next_late(due + Span::from_secs(1)), Some(second));
        crowd.shares.remove(crowd.open[&second]);
        assert!(crowd.shares.next_deadline().is_none() && crowd.shares.by_network.is_empty());
    }
}
