//! `reserve-mode`: a choice among tubes by chance.
//!
//! Each tube with a job is drawn with a probability in proportion to its chance: its weight, or with weighted-fair its weight
//! times its rate, which is one over the average time for which its jobs are reserved. The chances of all tubes are added up once for
//! a reserve or a batch, by blocks. Each draw looks at the sums of the blocks, and then at one block.

use std::num::NonZeroU32;

use super::search::Look;
use crate::intrusive::mix;
use crate::queue::store::client::Watched;
use crate::queue::store::heads::{HEADS_PER_STEP, Head};
use crate::queue::store::latency::TimeSum;
use crate::values::budget::{Budget, Cost};
use crate::values::ids::{JobKey, TubeSlot};
use crate::values::reserve_mode::ReserveMode;

/// A generator of random numbers (SplitMix64).
pub struct Rng {
    state: u64,
}

/// The chances of tubes among which a client draws.
#[derive(Clone, Copy)]
struct Chances {
    mode: ReserveMode,
    /// The rate that a tube without one of its own counts with.
    unknown_rate: f64,
}

/// The sums of the chances of blocks, as a tree.
struct Sums {
    /// The sum of all at 1, those of its halves at 2 and 3. The second half of the vector has the blocks.
    sums: Vec<f64>,
}

/// What a reserve or a batch draws from.
pub struct WeightedChoice {
    chances: Chances,
    places: Places,
    sums: Sums,
}

/// Places in a client's list of watches.
enum Places {
    /// The first ones, of this number.
    All(usize),
    Some(Vec<u32>),
}

/// The number of a block of places in a weighted choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block(usize);

/// Places of a block. A draw looks at one block, twice; the sums of the blocks of 65,536 tubes stay in the cache of the CPU.
const BLOCK: usize = 64;

/// What some tubes add to the sum of chances.
///
/// With weighted-fair, a tube in which no reservation has ended counts with the largest rate of the other tubes that
/// have jobs. So it is drawn at least as often for its weight as any of them, until it has a time of its own. With an
/// average of all tubes, one long reservation elsewhere would starve it.
#[derive(Default)]
struct BlockChances {
    /// The chances of the tubes with a rate.
    known: f64,
    /// The weights of the others.
    unknown: f64,
    /// The largest rate, or 0.
    most: f64,
}

/// Times below this count as this, in nanoseconds: a job may be deleted within the same microsecond.
const HELD_NS_MIN: f64 = 1000.0;

impl TimeSum {
    /// One over the average time in nanoseconds, for the chance of a tube.
    #[inline]
    pub(in crate::queue) fn rate(self) -> f64 {
        (self.ns / self.count as f64).max(HELD_NS_MIN).recip()
    }
}

impl Rng {
    pub const fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// A number from 0 on and below 1.
    fn draw(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.state) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The rate of a tube, by which its weight is multiplied, unless it is unknown.
fn rate(mode: ReserveMode, head: &Head) -> Option<f64> {
    match mode {
        // mutant weighted-fair-without-the-time: head.rate() => Some(1.0)
        ReserveMode::WeightedFair => head.rate(),
        ReserveMode::Default | ReserveMode::Fifo | ReserveMode::Weighted => Some(1.0),
    }
}

impl Chances {
    fn of(self, weight: NonZeroU32, head: &Head) -> f64 {
        // mutant weights-ignored: f64::from(weight.get()) => 1.0
        f64::from(weight.get()) * rate(self.mode, head).unwrap_or(self.unknown_rate)
    }
}

impl BlockChances {
    /// What the tubes of a block add.
    fn of(places: &Places, block: Block, mode: ReserveMode, look: Look<'_>) -> Self {
        let mut chances = Self::default();
        // Bounded by BLOCK: the places of one block.
        for (watched, head) in places.in_block(block, look) {
            // mutant weights-ignored: f64::from(watched.weight.get()) => 1.0
            let weight = f64::from(watched.weight.get());
            match rate(mode, head) {
                Some(rate) => {
                    chances.known += weight * rate;
                    chances.most = chances.most.max(rate);
                }
                None => chances.unknown += weight,
            }
        }
        chances
    }

    fn sum(&self, chances: Chances) -> f64 {
        self.known + self.unknown * chances.unknown_rate
    }
}

impl Sums {
    // Bounded by Look::charge: the blocks of a look that was counted.
    fn new(blocks: impl ExactSizeIterator<Item = f64>) -> Self {
        let half = blocks.len().next_power_of_two();
        let mut sums = vec![0.0; 2 * half];
        sums[half..].iter_mut().zip(blocks).for_each(|(sum, block)| *sum = block);
        (1..half).rev().for_each(|at| sums[at] = sums[2 * at] + sums[2 * at + 1]);
        Self { sums }
    }

    /// Finds the block that a number from 0 on and below 1 falls in, and where in it. Returns `None` if all sums are 0.
    fn find(&self, number: f64) -> Option<(Block, f64)> {
        let half = self.sums.len() / 2;
        let mut left = number * self.sums[1];
        let mut at = 1;
        // Bounded by BLOCK: the height of the tree of sums is the logarithm of the number of blocks.
        while at < half {
            let [first, second] = [self.sums[2 * at], self.sums[2 * at + 1]];
            // By rounding, the rest may equal the sum.
            let is_first = second == 0.0 || left < first;
            left -= if is_first { 0.0 } else { first };
            at = 2 * at + usize::from(!is_first);
        }
        (self.sums[at] > 0.0).then_some((Block(at - half), left))
    }

    fn set(&mut self, Block(block): Block, sum: f64) {
        let mut at = self.sums.len() / 2 + block;
        self.sums[at] = sum;
        // Bounded by BLOCK: the height of the tree of sums is the logarithm of the number of blocks.
        while at > 1 {
            at /= 2;
            self.sums[at] = self.sums[2 * at] + self.sums[2 * at + 1];
        }
    }
}

impl Places {
    const fn count(&self) -> usize {
        match self {
            Self::All(count) => *count,
            Self::Some(places) => places.len(),
        }
    }

    fn of_block(&self, Block(block): Block) -> impl Iterator<Item = usize> {
        let begin = block * BLOCK;
        (begin..(begin + BLOCK).min(self.count())).map(|number| match self {
            Self::All(_) => number,
            Self::Some(places) => places[number] as usize,
        })
    }

    /// The tubes of a block from which the client may get a job.
    fn in_block<'a>(&self, block: Block, look: Look<'a>) -> impl Iterator<Item = (&'a Watched, &'a Head)> {
        let watches = &look.client().watches;
        // Bounded by its caller: an iterator.
        let tubes = self.of_block(block).map(move |place| {
            let watched = &watches[place];
            (watched, look.head(watched.tube))
        });
        tubes.filter(move |(_, head)| look.job(head).is_some())
    }
}

impl WeightedChoice {
    /// Adds up the chances of the tubes from which the client may get a job.
    // Bounded by Look::charge: it counts the steps of the whole look.
    pub fn fill(look: Look<'_>, budget: &mut Budget) -> Self {
        look.charge(budget);
        let record = look.client();
        let mode = record.mode;
        let places = if look.is_by_watch() {
            Places::All(record.watches.len())
        } else {
            Places::Some(look.candidates().map(|(place, _)| place as u32).collect())
        };
        let numbers = 0..places.count().div_ceil(BLOCK);
        let blocks: Vec<BlockChances> =
            numbers.map(|number| BlockChances::of(&places, Block(number), mode, look)).collect();
        // mutant weighted-fair-starves-a-new-tube: block.most => block.most / 1000.0
        let most = blocks.iter().map(|block| block.most).fold(0.0, f64::max);
        let chances = Chances { mode, unknown_rate: if most > 0.0 { most } else { 1.0 } };
        let sums = Sums::new(blocks.iter().map(|block| block.sum(chances)));
        Self { chances, places, sums }
    }

    /// Adds up a block again after a job of one of its tubes was taken.
    pub fn renew(&mut self, block: Block, look: Look<'_>, budget: &mut Budget) {
        budget.charge(Cost::visits(BLOCK / HEADS_PER_STEP));
        let chances = BlockChances::of(&self.places, block, self.chances.mode, look);
        // mutant blocks-of-a-draw-not-renewed: removed
        self.sums.set(block, chances.sum(self.chances));
    }
}

impl Rng {
    /// Draws the tube that serves a reserve of the client. Returns its most urgent job.
    pub fn draw_job(&mut self, look: Look<'_>, budget: &mut Budget) -> Option<JobKey> {
        let mut choice = WeightedChoice::fill(look, budget);
        let (tube, _) = self.draw_tube(&mut choice, look, budget)?;
        look.job(look.head(tube))
    }

    pub fn draw_tube(
        &mut self,
        choice: &mut WeightedChoice,
        look: Look<'_>,
        budget: &mut Budget,
    ) -> Option<(TubeSlot, Block)> {
        // Bounded by Cost::visits: each block is paid, and one without a tube is found once.
        loop {
            let (block, mut left) = choice.sums.find(self.draw())?;
            budget.charge(Cost::visits(BLOCK / HEADS_PER_STEP));
            let mut drawn = None;
            // Bounded by BLOCK: the places of one block.
            for (watched, head) in choice.places.in_block(block, look) {
                drawn = Some((watched.tube, block));
                left -= choice.chances.of(watched.weight, head);
                if left < 0.0 {
                    break;
                }
            }
            if drawn.is_some() {
                return drawn;
            }
            // The tubes of the block have lost their jobs to a full key.
            choice.sums.set(block, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_found_in_proportion_to_its_sum_until_it_is_set_to_0() {
        for count in [1, 2, 3, 63, 64, 65, 200] {
            let blocks: Vec<f64> = (0..count).map(|number| f64::from(number % 5)).collect();
            let mut sums = Sums::new(blocks.iter().copied());
            let mut left: Vec<usize> = (0..count as usize).filter(|&block| blocks[block] > 0.0).collect();
            while let Some(&out) = left.get(left.len() / 2) {
                let sum: f64 = left.iter().map(|&block| blocks[block]).sum();
                let mut before = 0.0;
                for &block in &left {
                    let half = blocks[block] / 2.0;
                    let found = sums.find((before + half) / sum);
                    let (Block(number), rest) = found.expect("the sum is not 0");
                    assert_eq!(number, block, "of {count}");
                    assert!((rest - half).abs() < 1e-9, "{rest} of {half}");
                    before += blocks[block];
                }
                assert!(sums.find(1.0).is_some_and(|(Block(block), _)| left.contains(&block)), "by rounding");
                sums.set(Block(out), 0.0);
                left.retain(|&block| block != out);
            }
            assert_eq!(sums.find(0.5), None);
        }
    }
}
