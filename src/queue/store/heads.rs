//! What a reserve compares of each tube, side by side in one table: the most urgent job that it may hand out, and how long
//! its jobs are held.
//!
//! A client may watch 65,536 tubes that all have jobs. To look at as many tubes and jobs would take some 10 ms, since each is
//! in another place of memory. To look at as many entries of this table takes some 0.2 ms.

use crate::values::ids::{JobId, JobKey, TubeSlot};

/// Entries that a search looks at in the time of one elementary step.
pub const HEADS_PER_STEP: usize = 32;

/// Entries by which the table grows: 3 KiB. The allocator moves a large table without a copy, so it need not double.
const GROWTH: usize = 128;

/// The heads of all tubes, by slot.
#[derive(Default)]
pub struct Heads {
    heads: Vec<Head>,
    /// A client has chosen weighted-fair. Before that no average is kept up to date; a tube gets its own with the next reservation that
    /// ends.
    pub has_averages: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Head {
    id: JobId,
    pri: u32,
    job: JobKey,
    /// One over the average time in nanoseconds for which clients held jobs of the tube, or 0 if none has been held to its end.
    rate: f32,
    flags: u8,
}

/// A client that can wait takes no job of the tube: background work assigns them to clients that do.
pub const ASSIGNING: u8 = 1;
/// Background work finds out whether the tube has a job.
pub const SHUTTING: u8 = 2;

const _: () = assert!(size_of::<Head>() == 24);

impl Head {
    const NONE: Self =
        Self { id: JobId(u64::MAX), pri: u32::MAX, job: JobKey(u32::MAX), rate: 0.0, flags: 0 };

    /// The job, if there is one for this client. One that `may_overtake` need not leave jobs to clients that wait.
    #[inline]
    pub fn job(&self, may_overtake: bool) -> Option<JobKey> {
        let is_there = self.id.0 != u64::MAX && (may_overtake || self.flags & ASSIGNING == 0);
        is_there.then_some(self.job)
    }

    /// The priority and the id of the job. Without a job it is greater than that of any.
    #[inline]
    pub const fn key(&self) -> (u32, JobId) {
        (self.pri, self.id)
    }

    /// One over the average time in nanoseconds for which clients held jobs of the tube, if there is one.
    #[inline]
    pub fn rate(&self) -> Option<f64> {
        (self.rate > 0.0).then_some(f64::from(self.rate))
    }

    pub const fn is_shutting(&self) -> bool {
        self.flags & SHUTTING != 0
    }
}

impl Heads {
    #[inline]
    pub fn get(&self, tube: TubeSlot) -> &Head {
        &self.heads[tube.0 as usize]
    }

    /// Adds the head of a new tube.
    pub fn add(&mut self, tube: TubeSlot) {
        let slot = tube.0 as usize;
        if slot >= self.heads.len() {
            if slot >= self.heads.capacity() {
                self.heads.reserve_exact((slot + 1).next_multiple_of(GROWTH) - self.heads.len());
            }
            self.heads.resize(slot + 1, Head::NONE);
        }
        self.heads[slot] = Head::NONE;
    }

    /// Gives memory back once all tubes have slots below `slots_end`, far below what there were.
    pub fn shrink(&mut self, slots_end: u32) {
        let end = slots_end as usize;
        if end < self.heads.len() / 4 {
            self.heads.truncate(end);
            self.heads.shrink_to(2 * end);
        }
    }

    /// Sets the job that a reserve of this tube gets.
    #[inline]
    pub fn set_job(&mut self, tube: TubeSlot, job: Option<(u32, JobId, JobKey)>) {
        let head = &mut self.heads[tube.0 as usize];
        (head.pri, head.id, head.job) = job.unwrap_or((u32::MAX, JobId(u64::MAX), JobKey(u32::MAX)));
    }

    #[inline]
    pub fn set_rate(&mut self, tube: TubeSlot, rate: f64) {
        self.heads[tube.0 as usize].rate = rate as f32;
    }

    pub fn set_flag(&mut self, tube: TubeSlot, flag: u8, is_set: bool) {
        let flags = &mut self.heads[tube.0 as usize].flags;
        *flags = if is_set { *flags | flag } else { *flags & !flag };
    }

    pub const fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<Head>()
    }

    /// What another tube adds to [`bytes`](Self::bytes) at most.
    pub fn growth(&self) -> usize {
        if self.heads.len() == self.heads.capacity() { GROWTH * size_of::<Head>() } else { 0 }
    }

    /// Asserts that the head of a tube is this job.
    pub fn check(
        &self,
        tube: TubeSlot,
        job: Option<(u32, JobId, JobKey)>,
        [is_assigning, is_shutting]: [bool; 2],
    ) {
        let head = self.get(tube);
        let (pri, id) = head.key();
        assert_eq!(head.job(true).map(|key| (pri, id, key)), job, "the head is the most urgent job");
        let flags = [head.flags & ASSIGNING != 0, head.is_shutting()];
        assert_eq!(flags, [is_assigning, is_shutting], "the head knows the work on its tube");
    }
}
