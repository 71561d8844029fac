//! The index of jobs by id.
//!
//! Ids are assigned in order, so sixteen adjacent ids share a block. A hash finds the block, and the id gives the place in
//! it. Most puts and deletes touch the same block as the one before, and only every sixteenth job touches the hash table.
//! The index takes 5 bytes per job where ids are dense, and 84 where one in sixteen is left.

use std::cell::Cell;
use std::cmp::Ordering;

use crate::intrusive::{NIL, Table, intrusive, mix_seeded};
use crate::values::ids::JobId;

const BLOCK_IDS: usize = 16;

pub struct JobIndex {
    blocks: Table<Block>,
    /// The block with the highest ids. It is kept when it is empty, because the next ids belong there.
    latest: u32,
    /// The block that was found last, and often is the next one wanted.
    recent: Cell<u32>,
}

struct Block {
    /// The ids without their last four bits.
    number: u64,
    /// [`NIL`] for an id without a job.
    jobs: [u32; BLOCK_IDS],
    chain: u32,
    /// The number of ids with a job.
    used: u8,
    is_latest: bool,
}

const _: () = assert!(size_of::<Option<Block>>() == 80);

impl JobIndex {
    /// An empty index, which allocates nothing. `seed` keeps clients from choosing ids that collide.
    pub const fn new(seed: u64) -> Self {
        Self { blocks: Table::new(seed), latest: NIL, recent: Cell::new(NIL) }
    }

    /// The key of the job with this id.
    pub fn find(&self, id: JobId) -> Option<u32> {
        let block = self.find_block(number(id))?;
        Some(self.blocks[block].jobs[place(id)]).filter(|&key| key != NIL)
    }

    /// Adds a job with a new id.
    pub fn insert(&mut self, id: JobId, key: u32) {
        let block = match self.find_block(number(id)) {
            Some(block) => block,
            None => self.add_block(number(id)),
        };
        let block = &mut self.blocks[block];
        let before = std::mem::replace(&mut block.jobs[place(id)], key);
        assert_eq!(before, NIL, "an id is used once");
        block.used += 1;
    }

    /// Removes the job with this id.
    pub fn remove(&mut self, id: JobId) {
        let key = self.find_block(number(id)).expect("the job is in the index");
        let block = &mut self.blocks[key];
        let before = std::mem::replace(&mut block.jobs[place(id)], NIL);
        assert_ne!(before, NIL, "the job is in the index");
        block.used -= 1;
        if block.is_useless() {
            self.remove_block(key);
        }
    }

    pub const fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    /// What the next `count` jobs add at most to [`bytes`](Self::bytes) if their ids are consecutive, apart from a piece of the
    /// hash table every half a million jobs.
    pub fn growth(&mut self, count: usize) -> usize {
        (*self.blocks).growth(1 + (count + BLOCK_IDS - 2) / BLOCK_IDS)
    }

    /// Asserts that the hash finds every block, that no block is useless, and that there are `len` jobs.
    // Bounded by its caller: a test.
    pub fn check(&self, len: usize) {
        self.blocks.check(0);
        let mut count = 0;
        for (key, block) in self.blocks.iter() {
            let used = block.jobs.iter().filter(|&&job| job != NIL).count();
            assert_eq!(block.used as usize, used, "a block knows how many ids have a job");
            assert!(used > 0 || block.is_latest, "a block has jobs or is the latest");
            assert_eq!(block.is_latest, key == self.latest, "one block is the latest");
            count += used;
        }
        assert_eq!(count, len, "the index finds every job");
    }

    fn find_block(&self, number: u64) -> Option<u32> {
        let recent = self.recent.get();
        if self.blocks.get(recent).is_some_and(|block| block.number == number) {
            return Some(recent);
        }
        let found = match number.cmp(&self.blocks.get(self.latest)?.number) {
            Ordering::Less => {
                let hash = hash(number, self.blocks.seed());
                self.blocks.find(hash, |block| block.number == number)?
            }
            Ordering::Equal => self.latest,
            Ordering::Greater => return None,
        };
        self.recent.set(found);
        Some(found)
    }

    fn add_block(&mut self, number: u64) -> u32 {
        let latest = self.blocks.get(self.latest).map(|block| block.number);
        let is_latest = latest.is_none_or(|latest| latest < number);
        let block = Block { number, jobs: [NIL; BLOCK_IDS], chain: NIL, used: 0, is_latest };
        let key = self.blocks.insert(block);
        if is_latest {
            let before = std::mem::replace(&mut self.latest, key);
            if before != NIL {
                let block = &mut self.blocks[before];
                block.is_latest = false;
                if block.is_useless() {
                    self.remove_block(before);
                }
            }
        }
        key
    }

    #[inline(never)]
    fn remove_block(&mut self, key: u32) {
        self.blocks.remove(key);
    }
}

impl Block {
    fn is_useless(&self) -> bool {
        self.used == 0 && !self.is_latest
    }
}

intrusive!(Block: in tables by |block, seed| hash(block.number, seed));

/// Eight adjacent blocks share a cache line of the hash table. Groups of eight are spread, so that no pattern of remaining
/// jobs makes a chain longer than eight times the usual.
fn hash(number: u64, seed: u64) -> u64 {
    mix_seeded(number >> 3, seed) << 3 | (number & 7)
}

const fn number(id: JobId) -> u64 {
    id.0 / BLOCK_IDS as u64
}

const fn place(id: JobId) -> usize {
    id.0 as usize % BLOCK_IDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_exactly_the_jobs_that_are_there_in_any_order_of_changes() {
        const COUNT: u64 = 20_000;
        let mut index = JobIndex::new(1);
        assert_eq!(index.find(JobId(1)), None);
        // The factor and the count are coprime, so every id comes once.
        for (insert_step, remove_step) in [(1, 1), (1, 7919), (7919, 1)] {
            let inserted = |at: u64| JobId(at * insert_step % COUNT + 1);
            let removed = |at: u64| JobId(at * remove_step % COUNT + 1);
            for at in 0..COUNT {
                index.insert(inserted(at), at as u32);
            }
            index.check(COUNT as usize);
            assert_eq!(index.find(JobId(COUNT + 1)), None);
            for at in 0..COUNT {
                assert_eq!(index.find(inserted(at)), Some(at as u32));
            }
            for at in 0..COUNT {
                let id = removed(at);
                index.remove(id);
                assert_eq!(index.find(id), None);
            }
            index.check(0);
            assert_eq!(index.blocks.len(), 1, "only the latest block stays");
        }
    }

    #[test]
    fn a_few_old_jobs_keep_only_their_own_blocks() {
        let mut index = JobIndex::new(1);
        for id in 1..=100_000 {
            index.insert(JobId(id), id as u32);
        }
        for id in (1..=100_000).filter(|id| id % 1000 != 0) {
            index.remove(JobId(id));
        }
        index.check(100);
        assert_eq!(index.blocks.len(), 100);
    }

    #[test]
    fn ids_that_collide_under_one_seed_do_not_under_another() {
        const KNOWN: u64 = 1;
        let colliding: Vec<u64> =
            (0..).filter(|&number| hash(number, KNOWN) & 0xfff == 0).take(256).collect();
        let chain = |seed| {
            let mut index = JobIndex::new(seed);
            for (key, &number) in (0..).zip(&colliding) {
                index.insert(JobId(number * BLOCK_IDS as u64 + 1), key);
            }
            index.check(colliding.len());
            index.blocks.longest_chain()
        };
        assert_eq!(chain(KNOWN), colliding.len());
        for seed in 2..12 {
            println!("seed {seed}");
            assert!(chain(seed) < 20, "{} of {} blocks in one chain", chain(seed), colliding.len());
        }
    }
}
