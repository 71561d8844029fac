//! Which segment each job's record is in: what is live where, and what has to move before a segment can go.

use std::collections::VecDeque;

use super::segment::SegmentNumber;
use crate::ids::JobKey;
use crate::intrusive::NIL;

/// All live jobs by segment.
#[derive(Default)]
pub struct SegmentIndex {
    /// By the key of the job.
    entries: Vec<Entry>,
    /// The oldest first.
    holdings: VecDeque<Holding>,
    live_bytes: u64,
    /// Of all segments.
    garbage: u64,
}

/// Where the record of one job is: 16 bytes, and those only with a log.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The low half of the segment's number, or `NIL` for a key that no job has.
    segment: u32,
    bytes: u32,
    next: u32,
    prev: u32,
}

/// The live records of one segment.
struct Holding {
    number: SegmentNumber,
    head: u32,
    tail: u32,
    jobs: usize,
    /// What other records take that mean something.
    kept_bytes: u64,
    /// What it would not take if it were written again: records that mean nothing any more, and zeros.
    garbage: u64,
}

const VACANT: Entry = Entry { segment: NIL, bytes: 0, next: NIL, prev: NIL };

impl SegmentIndex {
    /// Begins a segment, which is the newest.
    pub fn open(&mut self, number: SegmentNumber) {
        assert!(self.holdings.back().is_none_or(|newest| newest.number < number), "segments come in order");
        assert!((number.0 as u32) < NIL, "4 thousand million segments are enough");
        self.holdings.push_back(Holding { number, head: NIL, tail: NIL, jobs: 0, kept_bytes: 0, garbage: 0 });
    }

    /// The record of a job is in this segment from now on, and takes so many bytes.
    pub fn enter(&mut self, job: JobKey, number: SegmentNumber, bytes: usize) {
        self.take_out(job);
        let key = job.0 as usize;
        if key >= self.entries.len() {
            self.entries.resize(key + 1, VACANT);
        }
        let at = self.holding_at(number.0 as u32);
        let holding = &mut self.holdings[at];
        let prev = std::mem::replace(&mut holding.tail, job.0);
        holding.jobs += 1;
        if prev == NIL {
            holding.head = job.0;
        } else {
            self.entries[prev as usize].next = job.0;
        }
        self.entries[key] = Entry { segment: number.0 as u32, bytes: bytes as u32, next: NIL, prev };
        self.live_bytes += bytes as u64;
    }

    /// The job is gone, if it was there.
    pub fn leave(&mut self, job: JobKey) {
        if let Some((at, bytes)) = self.take_out(job) {
            self.holdings[at].garbage += bytes;
            self.garbage += bytes;
        }
    }

    /// A record of so many bytes in this segment, which is not one of a job, means something.
    pub fn keep(&mut self, number: SegmentNumber, bytes: usize) {
        let at = self.holding_at(number.0 as u32);
        self.holdings[at].kept_bytes += bytes as u64;
        self.live_bytes += bytes as u64;
    }

    /// Such a record means nothing any more.
    pub fn let_go(&mut self, number: SegmentNumber, bytes: usize) {
        let at = self.holding_at(number.0 as u32);
        let holding = &mut self.holdings[at];
        holding.kept_bytes -= bytes as u64;
        holding.garbage += bytes as u64;
        self.live_bytes -= bytes as u64;
        self.garbage += bytes as u64;
    }

    /// So many bytes of the newest segment are of no use.
    pub fn waste(&mut self, bytes: u64) {
        self.holdings.back_mut().expect("there is a newest segment").garbage += bytes;
        self.garbage += bytes;
    }

    /// Which segment it was in, and what it took there.
    fn take_out(&mut self, job: JobKey) -> Option<(usize, u64)> {
        let entry = self.entries.get_mut(job.0 as usize).filter(|entry| entry.segment != NIL)?;
        let Entry { segment, bytes, next, prev } = std::mem::replace(entry, VACANT);
        let at = self.holding_at(segment);
        let holding = &mut self.holdings[at];
        holding.jobs -= 1;
        if prev == NIL {
            holding.head = next;
        } else {
            self.entries[prev as usize].next = next;
        }
        if next == NIL {
            holding.tail = prev;
        } else {
            self.entries[next as usize].prev = prev;
        }
        self.live_bytes -= u64::from(bytes);
        Some((at, u64::from(bytes)))
    }

    /// The segment of a job's record.
    pub fn segment_of(&self, job: JobKey) -> Option<SegmentNumber> {
        let entry = self.entries.get(job.0 as usize).filter(|entry| entry.segment != NIL)?;
        Some(self.holdings[self.holding_at(entry.segment)].number)
    }

    /// What the largest record of a live job takes.
    pub fn largest(&self) -> u64 {
        let live = self.entries.iter().filter(|entry| entry.segment != NIL);
        live.map(|entry| u64::from(entry.bytes)).max().unwrap_or(0)
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.holdings.len()
    }

    /// The oldest segment.
    pub fn oldest(&self) -> Option<SegmentNumber> {
        self.holdings.front().map(|holding| holding.number)
    }

    /// The newest segment.
    pub fn newest(&self) -> Option<SegmentNumber> {
        self.holdings.back().map(|holding| holding.number)
    }

    /// The first segment with a record that means something, or the newest.
    pub fn first_of_use(&self) -> Option<SegmentNumber> {
        let is_of_use = |holding: &&Holding| holding.jobs > 0 || holding.kept_bytes > 0;
        self.holdings.iter().find(is_of_use).or(self.holdings.back()).map(|holding| holding.number)
    }

    /// A job whose record is in the oldest segment.
    pub fn first_of_oldest(&self) -> Option<JobKey> {
        let head = self.holdings.front()?.head;
        (head != NIL).then_some(JobKey(head))
    }

    /// The oldest segment is gone.
    ///
    /// # Panics
    /// If a record is still in it that means something.
    pub fn drop_oldest(&mut self) {
        let holding = self.holdings.pop_front().expect("there is an oldest segment");
        assert_eq!((holding.jobs, holding.kept_bytes), (0, 0), "a segment that goes holds nothing");
        self.garbage -= holding.garbage;
    }

    /// The memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>() + self.holdings.capacity() * size_of::<Holding>()
    }

    /// What all records take that mean something.
    pub const fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// What writing all segments again would save.
    pub const fn garbage(&self) -> u64 {
        self.garbage
    }

    fn holding_at(&self, segment: u32) -> usize {
        let at = self.holdings.partition_point(|holding| (holding.number.0 as u32) < segment);
        assert_eq!(self.holdings[at].number.0 as u32, segment, "a record is in a segment that exists");
        at
    }

    /// Recomputes everything.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        let mut listed = 0;
        for holding in &self.holdings {
            let (mut key, mut jobs) = (holding.head, 0);
            while key != NIL {
                let entry = self.entries[key as usize];
                assert_eq!(entry.segment, holding.number.0 as u32);
                (key, jobs) = (entry.next, jobs + 1);
            }
            assert_eq!(jobs, holding.jobs);
            listed += jobs;
        }
        let live = self.entries.iter().filter(|entry| entry.segment != NIL);
        let (jobs, bytes) =
            live.fold((0, 0), |(jobs, bytes), entry| (jobs + 1, bytes + u64::from(entry.bytes)));
        let kept: u64 = self.holdings.iter().map(|holding| holding.kept_bytes).sum();
        assert_eq!((jobs, bytes + kept), (listed, self.live_bytes));
        assert_eq!(self.holdings.iter().map(|holding| holding.garbage).sum::<u64>(), self.garbage);
    }
}
