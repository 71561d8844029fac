//! Commands and events that are too large for one call. Each does a share at once; what is left waits here, and background work
//! continues it in bounded pieces.

pub mod job_list;

use std::collections::VecDeque;

use self::job_list::JobSearch;
use super::extensions::idempotency::KeyFlush;
use super::extensions::job_waits::AwaitedKey;
use super::extensions::rules::FullBy;
use super::store::Store;
use super::store::job::JobState;
use crate::values::budget::{Cost, Quota};
use crate::values::ids::{ClientKey, ConSlot, ConnId, GroupSlot, JobId, JobKey, TubeKey};

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

/// Unfinished work. It pins the tube that it names, except for a flush of keys, which goes by the name.
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

/// The room of the job log for jobs whose tube name becomes longer.
#[derive(Clone, Copy, Debug)]
pub struct LogRoom {
    /// Tube name, tags and body together, with its CR LF, that one record has room for.
    pub job_bytes_max: usize,
    /// The disk is full: the space of jobs must not grow.
    pub is_full: bool,
}

impl LogRoom {
    /// Without a job log.
    pub const UNLIMITED: Self = Self { job_bytes_max: usize::MAX, is_full: false };
}

/// The answer to a `move-job`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobMoved {
    /// The job is in the tube.
    Done,
    /// There is no such job, or a client has reserved it.
    NotFound,
    /// The tube cannot take it.
    Refused(MoveRefusal),
}

/// Why a tube cannot take a job of another tube.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveRefusal {
    /// The job log has no room for the longer name.
    NoRoom,
    /// The share of idempotency keys has no room for the longer name.
    NoKeyRoom,
    /// The tube has the idempotency key of the job already.
    KeyExists,
    /// The tube is full by this rule.
    Full(FullBy),
}

/// What a `move-jobs` has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The number of jobs that it has moved.
    pub count: u32,
    /// The job that it has stopped at, if the other tube could not take one, and why.
    pub stop: Option<(JobId, MoveRefusal)>,
}

/// A `move-jobs` that is not finished.
pub struct Move {
    pub conn: ConnId,
    pub from: TubeKey,
    pub to: TubeKey,
    /// Neither `Reserved` nor `Held`.
    pub state: JobState,
    pub left: u32,
    pub moved: Moved,
}

/// A `flush-tube` that is not finished.
pub struct Flush {
    pub conn: ConnId,
    pub tube: TubeKey,
    /// Jobs from this id on were announced after the command, and stay.
    end: JobId,
    pub flushed: u32,
}

impl Flush {
    pub const fn new(conn: ConnId, tube: TubeKey, end: JobId) -> Self {
        Self { conn, tube, end, flushed: 0 }
    }

    /// The next job to delete.
    ///
    /// Each list has the jobs that came last at its end, so the jobs of the flush precede those that were put later. Held
    /// jobs come first, so that the end of a member of their group does not release them, and then delayed ones: one that
    /// becomes ready meets the flush again at the end of the ready order.
    pub fn next(&self, store: &Store) -> Option<JobKey> {
        let tube = store.tubes.get(self.tube);
        let [fresh, active] = tube.ready_order.fronts(&store.jobs);
        let fronts = [tube.held.front(), tube.delayed_order.front(), tube.buried.front(), fresh, active];
        fronts.into_iter().flatten().map(JobKey).find(|&job| store.jobs.get(job).id < self.end)
    }
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

/// Elementary steps of one piece of background work: some 25 us. Each kind of work that commands and events lead to at once has a
/// share of this size in an event-loop iteration.
pub const BACKGROUND_STEPS: u32 = 256;

/// An answer to a client whose wait is over: at the end of very many waits, each client is sent one.
pub const ANSWER: Cost = Cost::visits(4);

/// What commands and events of one event-loop iteration lead to besides their own work. All work of a kind shares
/// [`BACKGROUND_STEPS`]; background work does the rest. The end of each reservation opens one lane even beyond that.
#[derive(Clone, Copy)]
pub enum FollowUp {
    Disconnects,
    /// The release of jobs that a group has held.
    Releases,
    /// The opening of lanes of concurrency keys.
    Lanes,
    /// Jobs of puts that waiting clients get.
    Assignments,
    /// Answers to clients that wait for the end of a job.
    Answers,
}

impl FollowUp {
    pub const COUNT: usize = Self::Answers as usize + 1;
}

/// The steps that each kind of work has at first.
pub const QUOTAS: [Quota; FollowUp::COUNT] = [Quota::of(BACKGROUND_STEPS); FollowUp::COUNT];
