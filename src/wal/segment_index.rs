//! Which segment each job's record is in: the live bytes of each segment, and the jobs that compaction has to append again
//! before it can go.

use std::collections::VecDeque;

use super::segment::SegmentNumber;
use crate::intrusive::NIL;
use crate::values::ids::JobKey;

/// All live records by segment. Those of jobs are linked, those of pauses only counted.
#[derive(Default)]
pub struct SegmentIndex {
    /// By the key of the job.
    entries: Vec<Entry>,
    /// The oldest first.
    segments: VecDeque<SegmentRecords>,
    pub live_bytes: u64,
    pub garbage: u64,
}

/// Where the record of one job is: 16 bytes, which only a server with a job log takes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The low half of the segment's number, or `NIL` for a key without a job.
    segment: u32,
    bytes: u32,
    next: u32,
    prev: u32,
}

/// The live records of one segment.
struct SegmentRecords {
    number: SegmentNumber,
    /// The jobs as a list, in the order of their records.
    head: u32,
    tail: u32,
    jobs: usize,
    /// Bytes of live records that are not of jobs.
    other_bytes: u64,
    /// Bytes that compaction would not append again: dead records, and zeros.
    garbage: u64,
}

impl SegmentRecords {
    const fn is_live(&self) -> bool {
        self.jobs > 0 || self.other_bytes > 0
    }
}

const VACANT: Entry = Entry { segment: NIL, bytes: 0, next: NIL, prev: NIL };

impl SegmentIndex {
    /// Adds a segment, which is the newest.
    ///
    /// # Panics
    /// If its number is not above all others.
    pub fn open_segment(&mut self, number: SegmentNumber) {
        assert!(self.segments.back().is_none_or(|newest| newest.number < number), "segments come in order");
        assert!((number.0 as u32) < NIL, "the low half of a number identifies a segment");
        let empty = SegmentRecords { number, head: NIL, tail: NIL, jobs: 0, other_bytes: 0, garbage: 0 };
        self.segments.push_back(empty);
    }

    /// Notes that the record of a job is in this segment. An earlier record of it does not count as garbage: compaction
    /// frees the segment of that one as a whole.
    pub fn insert(&mut self, job: JobKey, number: SegmentNumber, bytes: usize) {
        self.unlink(job);
        let key = job.0 as usize;
        if key >= self.entries.len() {
            self.entries.resize(key + 1, VACANT);
        }
        let at = self.position(number.0 as u32);
        let segment = &mut self.segments[at];
        let prev = std::mem::replace(&mut segment.tail, job.0);
        segment.jobs += 1;
        if prev == NIL {
            segment.head = job.0;
        } else {
            self.entries[prev as usize].next = job.0;
        }
        self.entries[key] = Entry { segment: number.0 as u32, bytes: bytes as u32, next: NIL, prev };
        self.live_bytes += bytes as u64;
    }

    /// The bytes that compaction would append for a job.
    pub fn bytes_of(&self, job: JobKey) -> usize {
        self.entries[job.0 as usize].bytes as usize
    }

    /// Notes that compaction would append this many bytes for a job, since a record of `moved` bytes was appended. What the
    /// job has grown by counts as a live part of that record.
    pub fn resize(&mut self, job: JobKey, bytes: usize, moved: usize) {
        let entry = &mut self.entries[job.0 as usize];
        assert_ne!(entry.segment, NIL, "a job that is moved has a record");
        let before = u64::from(std::mem::replace(&mut entry.bytes, bytes as u32));
        self.live_bytes = self.live_bytes - before + bytes as u64;
        self.add_garbage(moved as u64 + before - bytes as u64);
    }

    /// Removes a job, if it is there. Its record is garbage.
    pub fn remove(&mut self, job: JobKey) {
        if let Some((at, bytes)) = self.unlink(job) {
            self.segments[at].garbage += bytes;
            self.garbage += bytes;
        }
    }

    /// Adds bytes of a live record that is not of a job to this segment.
    pub fn add_live(&mut self, number: SegmentNumber, bytes: usize) {
        let at = self.position(number.0 as u32);
        self.segments[at].other_bytes += bytes as u64;
        self.live_bytes += bytes as u64;
    }

    /// Turns bytes of such a record into garbage.
    pub fn remove_live(&mut self, number: SegmentNumber, bytes: usize) {
        let at = self.position(number.0 as u32);
        let segment = &mut self.segments[at];
        segment.other_bytes -= bytes as u64;
        segment.garbage += bytes as u64;
        self.live_bytes -= bytes as u64;
        self.garbage += bytes as u64;
    }

    /// Adds garbage to the newest segment.
    pub fn add_garbage(&mut self, bytes: u64) {
        self.segments.back_mut().expect("there is a newest segment").garbage += bytes;
        self.garbage += bytes;
    }

    /// Returns the position of the segment that the job was in, and the size of its record.
    fn unlink(&mut self, job: JobKey) -> Option<(usize, u64)> {
        let entry = self.entries.get_mut(job.0 as usize).filter(|entry| entry.segment != NIL)?;
        let Entry { segment, bytes, next, prev } = std::mem::replace(entry, VACANT);
        let at = self.position(segment);
        let segment = &mut self.segments[at];
        segment.jobs -= 1;
        if prev == NIL {
            segment.head = next;
        } else {
            self.entries[prev as usize].next = next;
        }
        if next == NIL {
            segment.tail = prev;
        } else {
            self.entries[next as usize].prev = prev;
        }
        self.live_bytes -= u64::from(bytes);
        Some((at, u64::from(bytes)))
    }

    pub fn segment_of(&self, job: JobKey) -> Option<SegmentNumber> {
        let entry = self.entries.get(job.0 as usize).filter(|entry| entry.segment != NIL)?;
        Some(self.segments[self.position(entry.segment)].number)
    }

    /// The size of the largest record of a live job, in bytes.
    pub fn largest(&self) -> u64 {
        let live = self.entries.iter().filter(|entry| entry.segment != NIL);
        live.map(|entry| u64::from(entry.bytes)).max().unwrap_or(0)
    }

    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    pub fn oldest(&self) -> Option<SegmentNumber> {
        self.segments.front().map(|segment| segment.number)
    }

    pub fn newest(&self) -> Option<SegmentNumber> {
        self.segments.back().map(|segment| segment.number)
    }

    /// The first segment with a live record; without one, the newest.
    pub fn first_live(&self) -> Option<SegmentNumber> {
        self.segments
            .iter()
            .find(|segment| segment.is_live())
            .or(self.segments.back())
            .map(|segment| segment.number)
    }

    /// A job whose record is in the oldest segment.
    pub fn first_job_of_oldest(&self) -> Option<JobKey> {
        let head = self.segments.front()?.head;
        (head != NIL).then_some(JobKey(head))
    }

    /// Whether a record in the oldest segment is live.
    pub fn has_live_in_oldest(&self) -> bool {
        self.segments.front().is_some_and(SegmentRecords::is_live)
    }

    /// Removes the oldest segment.
    ///
    /// # Panics
    /// If it has a live record.
    pub fn drop_oldest(&mut self) {
        let segment = self.segments.pop_front().expect("there is an oldest segment");
        assert_eq!((segment.jobs, segment.other_bytes), (0, 0), "a segment without live records goes");
        self.garbage -= segment.garbage;
    }

    pub fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>() + self.segments.capacity() * size_of::<SegmentRecords>()
    }

    fn position(&self, segment: u32) -> usize {
        let at = self.segments.partition_point(|records| (records.number.0 as u32) < segment);
        assert_eq!(self.segments[at].number.0 as u32, segment, "a record is in a segment that exists");
        at
    }

    /// Recomputes all counters from the lists.
    ///
    /// # Panics
    /// If one differs.
    pub fn check(&self) {
        let mut listed = 0;
        for segment in &self.segments {
            let (mut key, mut jobs) = (segment.head, 0);
            while key != NIL {
                let entry = self.entries[key as usize];
                assert_eq!(entry.segment, segment.number.0 as u32);
                (key, jobs) = (entry.next, jobs + 1);
            }
            assert_eq!(jobs, segment.jobs);
            listed += jobs;
        }
        let live = self.entries.iter().filter(|entry| entry.segment != NIL);
        let (jobs, bytes) =
            live.fold((0, 0), |(jobs, bytes), entry| (jobs + 1, bytes + u64::from(entry.bytes)));
        let other: u64 = self.segments.iter().map(|segment| segment.other_bytes).sum();
        assert_eq!((jobs, bytes + other), (listed, self.live_bytes));
        assert_eq!(self.segments.iter().map(|segment| segment.garbage).sum::<u64>(), self.garbage);
    }
}
