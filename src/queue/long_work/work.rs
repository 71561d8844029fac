//! Unfinished work: commands and events too large for one call, which background work continues in bounded pieces.

use std::collections::VecDeque;

use super::flush::Flush;
use super::job_list::JobSearch;
use super::moving::Move;
use crate::queue::extensions::idempotency::KeyFlush;
use crate::queue::extensions::job_waits::AwaitedKey;
use crate::queue::store::job::JobState;
use crate::values::ids::{ClientKey, ConSlot, ConnId, GroupSlot, TubeKey};

/// The answer to a command that may be too large for one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun<T> {
    /// It is finished.
    Done(T),
    /// It is unfinished. A [`Notice`](crate::queue::Notice) will follow, for a list or a flush of keys unless the client disconnects.
    Working,
    /// There is no such tube.
    NoTube,
}

/// Unfinished work. It pins the tube that it names.
pub enum Work {
    /// Make jobs ready, then notify the client of their number.
    Kick(Kick),
    /// Delete the jobs of a tube, then notify the client of their number.
    Flush(Flush),
    /// Forget the kept keys of a tube, then notify the client of their number.
    FlushKeys(Box<KeyFlush>),
    /// Move jobs to another tube, then notify the client of their number.
    Move(Move),
    /// Find the jobs of a page, then show them to the client.
    List(Box<JobSearch>),
    /// Return the reserved jobs of a client that has disconnected, and remove its watches.
    Disconnect { client: ClientKey },
    /// Open the lanes of a concurrency key.
    Reopen { con: ConSlot },
    /// Shut the lanes of full concurrency keys in a tube.
    Shut { tube: TubeKey },
    /// Shut the lanes of all full concurrency keys, and search for a job of a client that watches many tubes.
    Search { client: ClientKey },
    /// Assign ready jobs to waiting clients.
    Assign { tube: TubeKey },
    /// Release the jobs that wait for a group that is done.
    FreeHeld { group: GroupSlot },
    /// Notify the clients that wait for a job that has ended.
    Answer { awaited: AwaitedKey },
    /// Remove the names of removed tubes that no list shows any more.
    PurgeTubeOrder,
}

/// A `kick` that is not finished.
pub struct Kick {
    pub conn: ConnId,
    pub tube: TubeKey,
    /// `Buried` or `Delayed`.
    pub from: JobState,
    pub left: u32,
    pub kicked: u32,
}

/// Kinds of work take turns, so that thousands of one kind do not delay the others.
#[derive(Clone, Copy)]
enum Kind {
    /// Commands that change jobs.
    Change,
    /// Commands that read.
    Read,
    /// What hands jobs out: no client has asked for it, and clients wait for it.
    HandOut,
    Disconnect,
    FreeHeld,
    Answer,
    Purge,
}

const KINDS: usize = Kind::Purge as usize + 1;

/// All unfinished work.
#[derive(Default)]
pub struct WorkQueue {
    by_kind: [VecDeque<Work>; KINDS],
    /// The kind whose turn is next.
    next: usize,
    len: usize,
    /// The memory of lists of jobs and flushes of keys.
    boxed_bytes: usize,
}

impl Work {
    const fn boxed_bytes(&self) -> usize {
        match self {
            Self::List(search) => search.bytes(),
            Self::FlushKeys(flush) => flush.bytes(),
            _ => 0,
        }
    }

    const fn kind(&self) -> Kind {
        match self {
            Self::Kick(_) | Self::Flush(_) | Self::FlushKeys(_) | Self::Move(_) => Kind::Change,
            Self::List(_) => Kind::Read,
            Self::Reopen { .. } | Self::Shut { .. } | Self::Search { .. } | Self::Assign { .. } => {
                Kind::HandOut
            }
            Self::Disconnect { .. } => Kind::Disconnect,
            Self::FreeHeld { .. } => Kind::FreeHeld,
            Self::Answer { .. } => Kind::Answer,
            Self::PurgeTubeOrder => Kind::Purge,
        }
    }
}

impl WorkQueue {
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn push_back(&mut self, work: Work) {
        self.count(&work);
        self.by_kind[work.kind() as usize].push_back(work);
    }

    /// Has the names of removed tubes removed, unless that is queued.
    pub fn purge_later(&mut self) {
        if self.by_kind[Kind::Purge as usize].is_empty() {
            self.push_back(Work::PurgeTubeOrder);
        }
    }

    /// Puts work back that cannot be continued yet. It is the next of its kind.
    pub fn push_front(&mut self, work: Work) {
        self.count(&work);
        self.by_kind[work.kind() as usize].push_front(work);
    }

    fn count(&mut self, work: &Work) {
        self.len += 1;
        self.boxed_bytes += work.boxed_bytes();
    }

    /// Takes the first work of the kind whose turn it is.
    pub fn pop(&mut self) -> Option<Work> {
        let in_turn = (self.next..KINDS).chain(0..self.next);
        let kind = in_turn.into_iter().find(|&kind| !self.by_kind[kind].is_empty())?;
        // mutant work-of-one-kind-first: (kind + 1) % KINDS => kind
        self.next = (kind + 1) % KINDS;
        self.len -= 1;
        let queue = &mut self.by_kind[kind];
        let work = queue.pop_front();
        self.boxed_bytes -= work.as_ref().map_or(0, Work::boxed_bytes);
        if queue.is_empty() && queue.capacity() > 1024 {
            *queue = VecDeque::new();
        }
        work
    }

    pub fn iter(&self) -> impl Iterator<Item = &Work> {
        // Bounded by its caller: an iterator.
        self.by_kind.iter().flatten()
    }

    pub fn bytes(&self) -> usize {
        // Bounded by KINDS: the kinds of work.
        let queues: usize = self.by_kind.iter().map(|queue| queue.capacity() * size_of::<Work>()).sum();
        queues + self.boxed_bytes
    }

    // Bounded by its caller: a test.
    pub fn check(&self) {
        assert_eq!(self.len, self.iter().count(), "unfinished work is counted");
        assert!(self.by_kind[Kind::Purge as usize].len() <= 1, "one piece of work purges");
        let boxed: usize = self.iter().map(Work::boxed_bytes).sum();
        assert_eq!(self.boxed_bytes, boxed, "the memory of lists and flushes is counted");
    }
}
