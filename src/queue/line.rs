//! The wide clients that wait, in the order in which their waits began.
//!
//! A tube remembers the last turn up to which none of them watches it (`Tube::seen`), so a search begins behind that
//! turn: a binary search finds the place in one sorted table. A client that does not wait any more leaves a gap; gaps
//! are removed when they are as many as the clients.

use std::collections::VecDeque;

use super::client::Clients;
use crate::ids::ClientSlot;

/// Gaps that are not worth a pass over the table.
const GAPS_KEPT: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Line {
    /// In the order of turns.
    places: VecDeque<Place>,
    gaps: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) turn: u64,
    /// `None` in a gap.
    pub(super) client: Option<ClientSlot>,
}

impl Line {
    /// How many clients wait.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.gaps
    }

    /// Adds the client whose wait has just begun.
    pub(super) fn push(&mut self, turn: u64, client: ClientSlot) {
        self.places.push_back(Place { turn, client: Some(client) });
    }

    /// Removes the client whose wait had this turn.
    pub(super) fn remove(&mut self, turn: u64) {
        let at = self.first_after(turn - 1);
        let place = self.places.get_mut(at).filter(|place| place.turn == turn);
        let client = place.and_then(|place| place.client.take());
        assert!(client.is_some(), "a wide client that waits is in the line");
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

    /// How many places there are behind this turn.
    #[inline]
    pub(super) fn count_after(&self, turn: u64) -> usize {
        if self.places.back().is_none_or(|place| place.turn <= turn) {
            return 0;
        }
        self.places.len() - self.first_after(turn)
    }

    /// The places behind this turn.
    pub(super) fn after(&self, turn: u64) -> impl Iterator<Item = Place> {
        self.places.range(self.first_after(turn)..).copied()
    }

    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }

    fn first_after(&self, turn: u64) -> usize {
        self.places.partition_point(|place| place.turn <= turn)
    }

    /// Asserts that just the wide clients that wait are in the line, the longest waiting first.
    pub(super) fn check(&self, clients: &Clients) {
        assert!(self.places.iter().is_sorted_by_key(|place| place.turn), "the longest waiting is first");
        let gaps = self.places.iter().filter(|place| place.client.is_none()).count();
        assert_eq!(self.gaps, gaps, "the gaps are counted");
        for place in &self.places {
            let Some(client) = place.client else { continue };
            assert!(clients[client].is_wide(), "a narrow client is in the lists of its tubes");
            assert_eq!(clients.turn(client), place.turn, "a client that waits knows its turn");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_skipped_and_do_not_pile_up() {
        const CLIENTS: u64 = 1000;
        let mut line = Line::default();
        for turn in 1..=CLIENTS {
            line.push(turn, ClientSlot(turn as u32));
        }
        let stays = |turn: &u64| turn.is_multiple_of(10);
        // The factor and the count plus one have no divisor in common, so every turn comes once.
        for turn in (1..=CLIENTS).map(|at| at * 3 % (CLIENTS + 1)).filter(|turn| !stays(turn)) {
            line.remove(turn);
            assert!(line.gaps <= line.len() + GAPS_KEPT);
        }
        assert_eq!(line.len(), 100);
        for turn in 0..=CLIENTS {
            let left: Vec<u64> =
                line.after(turn).filter(|place| place.client.is_some()).map(|place| place.turn).collect();
            let expected: Vec<u64> = (turn + 1..=CLIENTS).filter(stays).collect();
            assert_eq!(left, expected);
            assert!(line.count_after(turn) >= left.len());
        }
        assert!(line.bytes() < 1000 * size_of::<Place>(), "the memory of a crowd goes back");
    }
}
