//! The reserved jobs of a tube in the order in which they were reserved.
//!
//! A reserved job is in a heap and a list of its holder, which use all of its links. Its neighbors here lie in its
//! [`Lifecycle`], in the place of a number that only a buried job has.

use super::job::{JobState, Jobs, Lifecycle};
use crate::intrusive::{NIL, Pages};
use crate::values::ids::{JobKey, TubeSlot};

/// The reserved jobs of one tube. Every operation is O(1).
#[derive(Debug)]
pub struct ReservedOrder {
    /// The lifecycle of the first job.
    first: u32,
    /// The lifecycle of the last job.
    last: u32,
    len: u32,
}

/// The lifecycles of the jobs before and after a reserved one.
#[derive(Clone, Copy)]
pub struct Neighbors {
    pub before: u32,
    pub after: u32,
}

impl ReservedOrder {
    pub const fn new() -> Self {
        Self { first: NIL, last: NIL, len: 0 }
    }

    /// The number of jobs.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// The job that was reserved first.
    pub fn front(&self, jobs: &Jobs) -> Option<JobKey> {
        (self.first != NIL).then(|| jobs.lifecycles[self.first].job)
    }

    /// Appends the job with this lifecycle.
    pub fn push(&mut self, lifecycles: &mut Pages<Lifecycle>, key: u32) {
        let before = std::mem::replace(&mut self.last, key);
        lifecycles[key].set_neighbors(Neighbors { before, after: NIL });
        self.link_after(lifecycles, before, key);
        self.len += 1;
    }

    /// Removes the job with this lifecycle.
    pub fn remove(&mut self, lifecycles: &mut Pages<Lifecycle>, key: u32) {
        let Neighbors { before, after } = lifecycles[key].neighbors();
        self.link_after(lifecycles, before, after);
        if after == NIL {
            assert_eq!(self.last, key, "a job without a successor is the last");
            self.last = before;
        } else {
            let next = &mut lifecycles[after];
            next.set_neighbors(Neighbors { before, ..next.neighbors() });
        }
        self.len -= 1;
    }

    /// The jobs, first to last.
    pub fn iter(&self, jobs: &Jobs) -> impl Iterator<Item = JobKey> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let lifecycle = (at != NIL).then(|| &jobs.lifecycles[at])?;
            at = lifecycle.neighbors().after;
            Some(lifecycle.job)
        })
    }

    /// Asserts that the links agree in both directions, and that all jobs are reserved and of this tube.
    // Bounded by its caller: a test.
    pub fn check(&self, jobs: &Jobs, tube: TubeSlot) {
        let (mut before, mut at, mut count) = (NIL, self.first, 0);
        while at != NIL {
            let lifecycle = &jobs.lifecycles[at];
            let job = jobs.get(lifecycle.job);
            assert_eq!((job.state, job.tube), (JobState::Reserved, tube), "job {} is reserved", job.id);
            assert_eq!(lifecycle.neighbors().before, before, "the links agree in both directions");
            (before, at) = (at, lifecycle.neighbors().after);
            count += 1;
            assert!(count <= self.len, "the list ends");
        }
        assert_eq!((self.last, self.len), (before, count), "the list ends at its last job");
    }

    /// Makes `after` the successor of `before`, or the first.
    fn link_after(&mut self, lifecycles: &mut Pages<Lifecycle>, before: u32, after: u32) {
        if before == NIL {
            self.first = after;
        } else {
            let previous = &mut lifecycles[before];
            previous.set_neighbors(Neighbors { after, ..previous.neighbors() });
        }
    }
}
