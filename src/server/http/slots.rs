//! Which HTTP connection is closed when there are too many.
//!
//! Connections are few, so that they need little memory, and each peer has its share of them: a new connection takes the place of
//! another one of the peer that has most. Some places are reserved for this machine, where health checks come from. Of the
//! connections of a peer, those that have sent nothing yet are closed before those that have begun a request. A response that has
//! begun lately is finished: the client may not know whether its action was carried out.

use super::access::Origin;
use crate::time::{Span, Time};
use crate::values::ids::ConnId;

/// The part of them that only peers on this machine may have.
const LOCAL_SHARE: usize = 8;

/// Connections that have sent nothing yet and are not closed before all others of their peer.
const PENDING_MAX: usize = 32;

/// How long after its request a response keeps its place. A client that does not read must not keep others out.
pub(super) const ANSWER_KEPT: Span = Span::from_secs(3);

/// An open connection, as far as the choice depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub conn: ConnId,
    pub origin: Origin,
    pub activity: Activity,
    /// The time of its last input or output.
    pub active: Time,
}

/// What a connection is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Activity {
    /// It has sent nothing yet.
    Pending,
    /// It has begun a request, or its response takes longer than [`ANSWER_KEPT`].
    Busy,
    /// A response is made or sent.
    Answering,
    /// All its requests are answered.
    Idle,
}

/// Returns the connection that is closed for the newcomer, if there are more than `max`. Both are among all, and may be the same.
// Bounded by HTTP_CONNECTIONS_MAX: the HTTP connections.
pub(super) fn surplus(all: &[Candidate], newcomer: ConnId, max: usize) -> Option<ConnId> {
    let newest = all.iter().find(|one| one.conn == newcomer)?.origin;
    let elsewhere = all.iter().filter(|one| !one.origin.is_local).count();
    let takes_reserved = !newest.is_local && elsewhere > max - max / LOCAL_SHARE;
    if all.len() <= max && !takes_reserved {
        return None;
    }
    let may_close = |one: &&Candidate| !(takes_reserved && one.origin.is_local);
    let count = |origin: Origin| all.iter().filter(|one| one.origin == origin).count();
    let most = all.iter().filter(may_close).map(|one| count(one.origin)).max()?;
    let has_most = |one: &&Candidate| count(one.origin) == most;
    // A peer that is one of several with as many makes room for itself.
    let is_own = most > 1 && count(newest) == most;
    let of_peer = all.iter().filter(may_close).filter(has_most).filter(|one| !is_own || one.origin == newest);
    let others: Vec<&Candidate> = of_peer.filter(|one| one.conn != newcomer).collect();
    let quietest = |activity: Option<Activity>| {
        let of_kind = others.iter().filter(|one| activity.is_none_or(|activity| one.activity == activity));
        of_kind.min_by_key(|one| one.active).map(|one| one.conn)
    };
    let pending = others.iter().filter(|one| one.activity == Activity::Pending).count();
    let pending = (pending > PENDING_MAX).then_some(Activity::Pending);
    let rest = || if is_own { Some(newcomer) } else { quietest(None) };
    quietest(Some(Activity::Idle))
        .or_else(|| pending.and_then(|pending| quietest(Some(pending))))
        .or_else(|| quietest(Some(Activity::Busy)))
        .or_else(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::limits::HTTP_CONNECTIONS_MAX as CONNECTIONS_MAX;

    const LOCAL_RESERVED: usize = CONNECTIONS_MAX / LOCAL_SHARE;

    const PROBE: Origin = Origin { network: 1, is_local: true };
    const FLOOD: Origin = Origin { network: 2, is_local: false };

    /// The connections that are open, and those that were closed.
    #[derive(Default)]
    struct Slots {
        open: Vec<Candidate>,
        closed: Vec<Candidate>,
        number: u32,
    }

    impl Slots {
        fn connect(&mut self, origin: Origin, activity: Activity) -> ConnId {
            self.number += 1;
            let conn = ConnId::http(self.number, 0);
            let active = Time::from_nanos(self.number.into());
            self.open.push(Candidate { conn, origin, activity, active });
            if let Some(surplus) = surplus(&self.open, conn, CONNECTIONS_MAX) {
                let at = self.open.iter().position(|one| one.conn == surplus).expect("it is open");
                self.closed.push(self.open.remove(at));
            }
            assert!(self.open.len() <= CONNECTIONS_MAX);
            conn
        }

        fn connect_many(&mut self, count: usize, origin: Origin, activity: Activity) {
            for _ in 0..count {
                self.connect(origin, activity);
            }
        }

        fn is_open(&self, conn: ConnId) -> bool {
            self.open.iter().any(|one| one.conn == conn)
        }

        fn count(&self, origin: Origin) -> usize {
            self.open.iter().filter(|one| one.origin == origin).count()
        }
    }

    fn elsewhere(network: u128) -> Origin {
        Origin { network, is_local: false }
    }

    #[test]
    fn a_flood_from_one_address_closes_only_its_own() {
        for activity in [Activity::Pending, Activity::Busy, Activity::Idle] {
            for probe in [PROBE, elsewhere(7)] {
                let mut slots = Slots::default();
                slots.connect_many(500, FLOOD, activity);
                assert_eq!(slots.count(FLOOD), CONNECTIONS_MAX - LOCAL_RESERVED);
                let probes =
                    [Activity::Pending, Activity::Busy, Activity::Idle].map(|own| slots.connect(probe, own));
                slots.connect_many(500, FLOOD, activity);
                assert!(probes.iter().all(|&probe| slots.is_open(probe)), "{activity:?} {probe:?}");
                assert!(slots.closed.iter().all(|one| one.origin == FLOOD));
            }
        }
    }

    #[test]
    fn peers_have_equal_shares_when_all_want_more() {
        let mut slots = Slots::default();
        let peers = [elsewhere(3), elsewhere(4), elsewhere(5), PROBE];
        for _ in 0..200 {
            for peer in peers {
                slots.connect(peer, Activity::Busy);
            }
        }
        for peer in peers {
            assert!((14..=18).contains(&slots.count(peer)), "{peer:?} has {}", slots.count(peer));
        }
        // A peer alone may have all places that are not reserved.
        let mut slots = Slots::default();
        slots.connect_many(100, PROBE, Activity::Busy);
        assert_eq!(slots.count(PROBE), CONNECTIONS_MAX);
        slots.connect_many(100, FLOOD, Activity::Busy);
        assert_eq!((slots.count(FLOOD), slots.count(PROBE)), (32, 32));
    }

    #[test]
    fn places_are_reserved_for_this_machine() {
        let mut slots = Slots::default();
        for network in 10..500 {
            slots.connect(elsewhere(network), Activity::Busy);
        }
        assert_eq!(slots.open.len(), CONNECTIONS_MAX - LOCAL_RESERVED);
        let checks: Vec<ConnId> =
            (0..LOCAL_RESERVED).map(|_| slots.connect(PROBE, Activity::Pending)).collect();
        for network in 500..1000 {
            slots.connect(elsewhere(network), Activity::Busy);
        }
        assert!(checks.iter().all(|&check| slots.is_open(check)));
    }

    #[test]
    fn a_request_that_has_begun_outlives_connections_without_one() {
        let mut slots = Slots::default();
        let begun = slots.connect(FLOOD, Activity::Busy);
        slots.connect_many(500, FLOOD, Activity::Pending);
        assert!(slots.is_open(begun));
        // Connections that stay busy keep a new one out no longer than others.
        let mut slots = Slots::default();
        slots.connect_many(500, FLOOD, Activity::Busy);
        let new = slots.connect(FLOOD, Activity::Pending);
        slots.connect_many(20, FLOOD, Activity::Busy);
        assert!(slots.is_open(new));
        // A response that has begun is finished.
        let mut slots = Slots::default();
        slots.connect_many(CONNECTIONS_MAX, PROBE, Activity::Answering);
        let late = slots.connect(PROBE, Activity::Pending);
        assert!(slots.count(PROBE) == CONNECTIONS_MAX && !slots.is_open(late));
        // But not at the cost of another address.
        let other = slots.connect(FLOOD, Activity::Pending);
        assert!(slots.is_open(other));
        // An idle connection is closed first.
        let mut slots = Slots::default();
        slots.connect_many(CONNECTIONS_MAX - LOCAL_RESERVED - 1, FLOOD, Activity::Busy);
        let idle = slots.connect(FLOOD, Activity::Idle);
        slots.connect(FLOOD, Activity::Pending);
        assert!(!slots.is_open(idle));
    }

    /// A server with few descriptors has fewer connections, and reserves none of them for this machine.
    #[test]
    fn the_maximum_may_be_lower() {
        let one = |slot, origin| Candidate {
            conn: ConnId { slot, generation: 0 },
            origin,
            activity: Activity::Idle,
            active: Time::from_nanos(u64::from(slot)),
        };
        let mut all: Vec<Candidate> = (0..7).map(|slot| one(slot, FLOOD)).collect();
        assert!(surplus(&all, all[6].conn, 7).is_none());
        all.push(one(7, PROBE));
        assert_eq!(surplus(&all, all[7].conn, 7), Some(all[0].conn));
    }
}
