//! `reserve-mode`: a choice among tubes by chance.
//!
//! Each tube with a job is drawn with a probability in proportion to its chance: its weight, or with weighted-fair its weight
//! divided by the average time for which clients hold its jobs. One draw adds up the chances of all tubes and walks through
//! them again. A batch builds a tree of sums once, and draws in logarithmic time.

use std::num::NonZeroU32;

use super::client::Watched;
use super::engine::Engine;
use super::heads::Head;
use super::latency::TimeSum;
use crate::ids::{ClientKey, ClientSlot, JobKey, TubeSlot};
use crate::intrusive::mix;
use crate::reserve_mode::ReserveMode;
use crate::tube_name::TubeName;

/// A generator of random numbers (SplitMix64).
pub(super) struct Lots {
    state: u64,
}

/// The chances of tubes among which a client draws.
#[derive(Clone, Copy)]
pub(super) struct Chances {
    mode: ReserveMode,
    /// The average time that a tube without one of its own counts with.
    unknown_ns: f64,
}

/// Numbered chances, and a tree over the sums of blocks of them. The tree of 65,536 chances has 1,024 blocks, so it stays in the
/// cache of the CPU.
pub(super) struct Urn {
    chances: Vec<f64>,
    /// The sum of all at 1, those of its halves at 2 and 3. The second half of the vector has the sums of the blocks.
    sums: Vec<f64>,
}

/// Chances of a block: a draw adds up at most as many.
const BLOCK: usize = 64;

/// Times below this count as this: a job may be deleted within the same microsecond.
const HELD_NS_MIN: f64 = 1000.0;

impl TimeSum {
    /// The average time, for the chance of a tube.
    #[inline]
    pub(super) fn average_ns(self) -> f64 {
        (self.ns / self.count as f64).max(HELD_NS_MIN)
    }
}

impl Lots {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// A number from 0 on and below 1.
    pub(super) fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.state) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Chances {
    pub(super) fn of(self, weight: NonZeroU32, head: &Head) -> f64 {
        let weight = f64::from(weight.get());
        match self.mode {
            ReserveMode::WeightedFair => weight / head.held_ns().unwrap_or(self.unknown_ns),
            ReserveMode::Default | ReserveMode::Fifo | ReserveMode::Weighted => weight,
        }
    }
}

impl Urn {
    pub(super) fn new(chances: Vec<f64>) -> Self {
        let blocks = chances.len().div_ceil(BLOCK).next_power_of_two();
        let mut sums = vec![0.0; 2 * blocks];
        for (sum, block) in sums[blocks..].iter_mut().zip(chances.chunks(BLOCK)) {
            *sum = block.iter().sum();
        }
        (1..blocks).rev().for_each(|at| sums[at] = sums[2 * at] + sums[2 * at + 1]);
        Self { chances, sums }
    }

    /// Draws a number by the lot, unless all are taken out.
    pub(super) fn draw(&self, lot: f64) -> Option<usize> {
        let blocks = self.sums.len() / 2;
        let mut left = lot * self.sums[1];
        let mut at = 1;
        while at < blocks {
            let [first, second] = [self.sums[2 * at], self.sums[2 * at + 1]];
            // By rounding, the rest may equal the sum.
            let is_first = second == 0.0 || left < first;
            left -= if is_first { 0.0 } else { first };
            at = 2 * at + usize::from(!is_first);
        }
        let begin = (at - blocks) * BLOCK;
        let block = self.chances.get(begin..)?;
        let mut drawn = None;
        for (number, &chance) in block.iter().enumerate().take(BLOCK).filter(|(_, chance)| **chance > 0.0) {
            drawn = Some(begin + number);
            left -= chance;
            if left < 0.0 {
                break;
            }
        }
        drawn
    }

    /// Takes out a number.
    pub(super) fn take_out(&mut self, number: usize) {
        self.chances[number] = 0.0;
        let block = number / BLOCK;
        let mut at = self.sums.len() / 2 + block;
        self.sums[at] = self.chances[block * BLOCK..].iter().take(BLOCK).sum();
        while at > 1 {
            at /= 2;
            self.sums[at] = self.sums[2 * at] + self.sums[2 * at + 1];
        }
    }
}

impl Engine {
    /// Sets how the client's reserves choose among tubes.
    pub fn set_reserve_mode(&mut self, client: ClientKey, mode: ReserveMode) {
        self.clients.get_mut(client).mode = mode;
        self.tubes.heads.has_averages |= mode == ReserveMode::WeightedFair;
    }

    /// Sets the weight of a tube that the client watches.
    ///
    /// # Panics
    /// If the client does not watch the tube.
    pub fn set_weight(&mut self, client: ClientKey, name: TubeName<'_>, weight: NonZeroU32) {
        let client = self.clients.slot(client);
        let tube = self.tubes.find_slot(name);
        let watch = tube.and_then(|tube| self.clients.find_watch(client, tube));
        let position = self.clients.position(watch.expect("the client watches the tube"));
        self.clients.slab[client.0].watches[position].weight = weight;
    }

    /// Draws the tube that serves a reserve of the client. Returns its most urgent job.
    pub(super) fn draw(&mut self, client: ClientSlot, may_overtake: bool) -> Option<JobKey> {
        let (chances, sum) = self.chances(client, may_overtake);
        self.count_look(client);
        let mut left = self.lots.draw() * sum;
        let mut drawn = None;
        for (watched, head) in self.candidates(client, may_overtake) {
            drawn = head.job(may_overtake);
            left -= chances.of(watched.weight, head);
            if left < 0.0 {
                break;
            }
        }
        drawn
    }

    /// Returns the chances of the tubes from which the client may get a job, and their sum.
    ///
    /// With weighted-fair, a tube in which no reservation has ended counts with the smallest average of the other tubes that
    /// have jobs. So it is drawn at least as often for its weight as any of them, until it has a time of its own. With an
    /// average of all tubes, one long reservation elsewhere would starve it.
    fn chances(&mut self, client: ClientSlot, may_overtake: bool) -> (Chances, f64) {
        self.count_look(client);
        let mode = self.clients[client].mode;
        let (mut known, mut unknown, mut least_ns) = (0.0, 0.0, f64::INFINITY);
        for (&Watched { weight, .. }, head) in self.candidates(client, may_overtake) {
            let weight = f64::from(weight.get());
            match head.held_ns().filter(|_| mode == ReserveMode::WeightedFair) {
                Some(held_ns) => {
                    known += weight / held_ns;
                    least_ns = least_ns.min(held_ns);
                }
                None => unknown += weight,
            }
        }
        let unknown_ns = if least_ns.is_finite() { least_ns } else { HELD_NS_MIN };
        let share = if mode == ReserveMode::WeightedFair { unknown / unknown_ns } else { unknown };
        (Chances { mode, unknown_ns }, known + share)
    }

    /// Returns the tubes from which the client may get a job, and an urn with the chance of each.
    pub(super) fn fill_urn(&mut self, client: ClientSlot, may_overtake: bool) -> (Vec<TubeSlot>, Urn) {
        let (chances, _) = self.chances(client, may_overtake);
        self.count_look(client);
        let most = self.clients[client].watch_count();
        let (mut tubes, mut shares) = (Vec::with_capacity(most), Vec::with_capacity(most));
        for (watched, head) in self.candidates(client, may_overtake) {
            tubes.push(watched.tube);
            shares.push(chances.of(watched.weight, head));
        }
        (tubes, Urn::new(shares))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_drawn_in_proportion_to_its_chance_until_it_is_taken_out() {
        for count in [1, 2, 3, 63, 64, 65, 200] {
            let chances: Vec<f64> = (0..count).map(|number| f64::from(number % 5)).collect();
            let mut urn = Urn::new(chances.clone());
            let mut left: Vec<usize> = (0..count as usize).filter(|&number| chances[number] > 0.0).collect();
            let mut lots = Lots::new(u64::from(count as u32));
            while let Some(&out) = left.get(left.len() / 2) {
                let sum: f64 = left.iter().map(|&number| chances[number]).sum();
                let mut before = 0.0;
                for &number in &left {
                    // The middle of the interval that belongs to the number.
                    let lot = (before + chances[number] / 2.0) / sum;
                    assert_eq!(urn.draw(lot), Some(number), "lot {lot} of {count}");
                    before += chances[number];
                }
                assert!(left.contains(&urn.draw(lots.draw()).expect("not all are taken out")));
                assert!(left.contains(&urn.draw(1.0).expect("not all are taken out")), "by rounding");
                urn.take_out(out);
                left.retain(|&number| number != out);
            }
            assert_eq!(urn.draw(0.5), None);
        }
    }
}
