//! The wide clients that wait, in the order in which their waits began.
//!
//! A tube remembers the sequence number up to which no waiting wide client watches it (`Tube::searched_through`). A search
//! starts behind that number, which a binary search finds in one sorted table. A client that stops waiting leaves a gap.
//! Gaps are removed when there are as many as clients.

use std::collections::VecDeque;

use crate::queue::store::client::Clients;
use crate::values::ids::ClientSlot;

/// Fewer gaps than this do not justify a pass over the table.
const GAPS_KEPT: usize = 64;

#[derive(Default)]
pub struct WideWaiters {
    /// Sorted by sequence number.
    places: VecDeque<WaiterPlace>,
    gaps: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct WaiterPlace {
    /// See [`Wait::seq`](crate::queue::store::client::Wait).
    pub seq: u64,
    /// `None` in a gap.
    pub client: Option<ClientSlot>,
}

impl WideWaiters {
    /// The number of clients.
    pub fn len(&self) -> usize {
        self.places.len() - self.gaps
    }

    /// Adds a client whose wait is the latest.
    pub fn push(&mut self, seq: u64, client: ClientSlot) {
        self.places.push_back(WaiterPlace { seq, client: Some(client) });
    }

    /// Removes the client whose wait has this sequence number.
    // Bounded by earlier calls: each place is passed once, after as many removals as there are places.
    pub fn remove(&mut self, seq: u64) {
        let at = self.first_after(seq - 1);
        let place = self.places.get_mut(at).filter(|place| place.seq == seq);
        let client = place.and_then(|place| place.client.take());
        assert!(client.is_some(), "a wide client that waits is in the table");
        self.gaps += 1;
        while self.places.pop_front_if(|place| place.client.is_none()).is_some() {
            self.gaps -= 1;
        }
        if self.gaps > self.len() + GAPS_KEPT {
            self.places.retain(|place| place.client.is_some());
            self.gaps = 0;
            if self.places.capacity() > 4 * self.places.len() {
                self.places.shrink_to(2 * self.places.len());
            }
        }
    }

    /// The number of places behind this sequence number, gaps included.
    #[inline]
    pub fn count_after(&self, seq: u64) -> usize {
        if self.places.back().is_none_or(|place| place.seq <= seq) {
            return 0;
        }
        self.places.len() - self.first_after(seq)
    }

    /// The places behind this sequence number, gaps included.
    pub fn after(&self, seq: u64) -> impl Iterator<Item = WaiterPlace> {
        // Bounded by its caller: an iterator.
        self.places.range(self.first_after(seq)..).copied()
    }

    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<WaiterPlace>()
    }

    fn first_after(&self, seq: u64) -> usize {
        self.places.partition_point(|place| place.seq <= seq)
    }

    /// Asserts that the places are sorted, and that every client in them is wide and waits.
    // Bounded by its caller: a test.
    pub fn check(&self, clients: &Clients) {
        assert!(
            self.places.iter().is_sorted_by_key(|place| place.seq),
            "the client that waits longest is first"
        );
        let gaps = self.places.iter().filter(|place| place.client.is_none()).count();
        assert_eq!(self.gaps, gaps, "the number of gaps is right");
        for place in &self.places {
            let Some(client) = place.client else { continue };
            assert!(clients[client].is_wide(), "a narrow client waits in the lists of its tubes");
            assert_eq!(
                clients.wait_seq(client),
                place.seq,
                "a place has the sequence number of its client's wait"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_skipped_and_do_not_accumulate() {
        const CLIENTS: u64 = 1000;
        let mut waiters = WideWaiters::default();
        for seq in 1..=CLIENTS {
            waiters.push(seq, ClientSlot(seq as u32));
        }
        let stays = |seq: &u64| seq.is_multiple_of(10);
        // The factor and the count plus one are coprime, so every number comes once.
        for seq in (1..=CLIENTS).map(|at| at * 3 % (CLIENTS + 1)).filter(|seq| !stays(seq)) {
            waiters.remove(seq);
            assert!(waiters.gaps <= waiters.len() + GAPS_KEPT);
        }
        assert_eq!(waiters.len(), 100);
        for seq in 0..=CLIENTS {
            let left: Vec<u64> =
                waiters.after(seq).filter(|place| place.client.is_some()).map(|place| place.seq).collect();
            let expected: Vec<u64> = (seq + 1..=CLIENTS).filter(stays).collect();
            assert_eq!(left, expected);
            assert!(waiters.count_after(seq) >= left.len());
        }
        assert!(waiters.bytes() < 1000 * size_of::<WaiterPlace>(), "a table that has become sparse shrinks");
    }
}
