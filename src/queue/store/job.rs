//! Jobs: the record of each job, its tags, and finding it by id.

use std::cmp::Reverse;
use std::num::NonZeroU8;

use super::containers::Neighbors;
use super::job_index::JobIndex;
use crate::bodies::{Bodies, Slot};
use crate::intrusive::{Links, NIL, Pages, intrusive};
use crate::time::{Seconds, Span, Time};
use crate::values::ids::{
    ClientSlot, ConSlot, GroupSlot, HoldSlot, IdpSlot, JobId, JobKey, TagsKey, TubeSlot,
};
pub use crate::values::job_state::JobState;
use crate::values::tags::Tags;

/// A ready job with a priority below this counts as urgent in the statistics (protocol.txt).
pub const URGENT_BELOW: u32 = 1024;

/// What every job has, in one cache line. Jobs that were ever delayed, reserved, buried or kicked also have a
/// [`Lifecycle`]. Jobs with tags have one too, and a `JobTags`. So have jobs whose time to run is not in whole
/// seconds.
#[repr(align(64))]
#[derive(Debug)]
pub struct Job {
    // Persistent.
    /// The id on the wire.
    pub id: JobId,
    /// When the job was put.
    pub created: Time,
    /// The body with its CR LF.
    pub body: Slot,
    /// The priority. A smaller value is more urgent.
    pub pri: u32,
    /// Whole seconds of the time to run: see [`Jobs::ttr`].
    pub(in crate::queue) ttr: u32,
    /// A client can move a job that no client has reserved to another tube.
    pub tube: TubeSlot,
    /// The job log keeps a reserved job as ready.
    pub state: JobState,

    // In memory only.
    /// In the ready heap of the tube, its lists of delayed, held or buried jobs, or the list of jobs that its client has reserved.
    links: Links,
    rank: u8,
    pub(in crate::queue) has_lifecycle: bool,
    /// The job's lifecycle, if it has one. Otherwise, while the job is ready, the next job in its tube's
    /// [`ReadyOrder`](super::containers::ReadyOrder).
    pub(in crate::queue) lifecycle_or_after: u32,
    /// Of a job with a lifecycle, the key of its tags if it has any, else [`NIL`]. Otherwise, while the job is ready, the
    /// previous job in the ready order. So a job with tags has a lifecycle from the beginning.
    pub(in crate::queue) tags_or_before: u32,
}

const _: () = assert!(size_of::<Option<Job>>() == 64);

/// What a job has from the first time on that it is delayed, reserved, buried or kicked; with tags, or with a time to run that
/// is not in whole seconds, from the beginning.
#[derive(Debug)]
pub struct Lifecycle {
    // Persistent.
    /// When a delayed job becomes ready, or the delay of a held one is over. When a buried job was buried. Of a reserved job, which
    /// the job log keeps as ready: when it times out.
    pub deadline: Time,
    /// Whole seconds of the delay of the last put or release.
    delay: u32,
    /// Milliseconds beyond the whole seconds: those of the time to run in the lower 10 bits, and the lower 6 bits of those of the
    /// delay.
    ttr_and_delay_millis: u16,
    /// The upper 4 bits of those of the delay, and [`MARK`], which leaves a value for `Option`.
    delay_millis: NonZeroU8,
    /// For `stats-job`.
    pub counts: PackedCounts,
    /// Of a buried job: the number of its burial, which is larger than those of earlier ones. Of a reserved one: its neighbors in the
    /// [`ReservedOrder`](super::containers::ReservedOrder) of its tube, which the job log does not keep.
    burial_or_neighbors: u64,

    // In memory only.
    /// The id of the job, which orders equal deadlines.
    id: JobId,
    /// The job.
    pub job: JobKey,
    /// When the job became ready, or was reserved. Meaningless in other states.
    pub since: Time,
    /// The client that has reserved the job, or [`NIL`].
    holder: ClientSlot,
    /// In the tube's heap of delayed jobs, its ready order, or the holder's heap of reserved jobs.
    links: Links,
    rank: u8,
}

const _: () = assert!(size_of::<Option<Lifecycle>>() == 80);

/// The bits of a number of milliseconds below 1,000, and how many of them stand beside those of the time to run.
const MILLIS_BITS: u32 = 10;
const DELAY_BITS_LOW: u32 = u16::BITS - MILLIS_BITS;

/// Is always set.
const MARK: NonZeroU8 = NonZeroU8::new(0x80).expect("it is not zero");

/// Counts of events of one job, for `stats-job`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub reserves: u32,
    pub timeouts: u32,
    pub releases: u32,
    pub buries: u32,
    pub kicks: u32,
    /// Reservations that ended because the connection of the holder was lost.
    pub losses: u32,
}

impl Counts {
    /// How many reservations have failed.
    pub const fn attempts(&self) -> u64 {
        self.timeouts as u64 + self.releases as u64 + self.losses as u64
    }
}

/// How a reservation has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Its time to run was over.
    Timeout,
    /// Its holder released it.
    Release,
    /// The connection of its holder was lost.
    Loss,
}

/// [`Counts`] in the memory and the record of a job. Burials and kicks stop at 8,388,607, losses at 262,143.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackedCounts {
    reserves: u32,
    timeouts: u32,
    releases: u32,
    /// The lower bits are the burials. Those above are the lower bits of the losses.
    buries: u32,
    /// The lower bits are the kicks. Those above are the upper bits of the losses.
    kicks: u32,
}

/// The bits of the burials, and of the kicks.
const RARE_BITS: u32 = 23;
const RARE_MAX: u32 = (1 << RARE_BITS) - 1;

/// The bits of the losses beside each of both.
const LOSSES_BITS: u32 = u32::BITS - RARE_BITS;
const LOSSES_MAX: u32 = (1 << (2 * LOSSES_BITS)) - 1;

impl PackedCounts {
    /// Packs counts. Those that are too large become the maximum.
    pub fn of(counts: &Counts) -> Self {
        let &Counts { reserves, timeouts, releases, buries, kicks, losses } = counts;
        let losses = losses.min(LOSSES_MAX);
        Self {
            reserves,
            timeouts,
            releases,
            buries: losses << RARE_BITS | buries.min(RARE_MAX),
            kicks: losses >> LOSSES_BITS << RARE_BITS | kicks.min(RARE_MAX),
        }
    }

    /// The counts.
    pub const fn get(&self) -> Counts {
        let &Self { reserves, timeouts, releases, buries, kicks } = self;
        let losses = kicks >> RARE_BITS << LOSSES_BITS | buries >> RARE_BITS;
        Counts { reserves, timeouts, releases, buries: buries & RARE_MAX, kicks: kicks & RARE_MAX, losses }
    }

    /// The numbers that a record has.
    pub const fn numbers(&self) -> [u32; 5] {
        [self.reserves, self.timeouts, self.releases, self.buries, self.kicks]
    }

    /// The inverse of [`numbers`](Self::numbers).
    pub const fn of_numbers([reserves, timeouts, releases, buries, kicks]: [u32; 5]) -> Self {
        Self { reserves, timeouts, releases, buries, kicks }
    }

    pub(in crate::queue) const fn add_reserve(&mut self) {
        self.reserves += 1;
    }

    pub(in crate::queue) fn add_burial(&mut self) {
        let counts = self.get();
        *self = Self::of(&Counts { buries: counts.buries + 1, ..counts });
    }

    pub(in crate::queue) fn add_kick(&mut self) {
        let counts = self.get();
        *self = Self::of(&Counts { kicks: counts.kicks + 1, ..counts });
    }

    pub(in crate::queue) fn add_failure(&mut self, failure: Failure) {
        match failure {
            Failure::Timeout => self.timeouts += 1,
            Failure::Release => self.releases += 1,
            Failure::Loss => {
                let counts = self.get();
                *self = Self::of(&Counts { losses: counts.losses + 1, ..counts });
            }
        }
    }
}

/// All jobs.
pub struct Jobs {
    pub(in crate::queue) slab: Pages<Job>,
    pub(in crate::queue) lifecycles: Pages<Lifecycle>,
    pub(in crate::queue) tags: Pages<JobTags>,
    index: JobIndex,
}

impl Jobs {
    /// No jobs. `seed` keeps clients from choosing ids that collide.
    pub(in crate::queue) const fn new(seed: u64) -> Self {
        Self { slab: Pages::new(), lifecycles: Pages::new(), tags: Pages::new(), index: JobIndex::new(seed) }
    }

    /// The number of jobs.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns true if there are no jobs.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// The job with this id.
    pub fn find(&self, id: JobId) -> Option<JobKey> {
        self.index.find(id).map(JobKey)
    }

    /// The record of the job.
    pub fn get(&self, job: JobKey) -> &Job {
        &self.slab[job.0]
    }

    /// The lifecycle of the job, if it has one.
    pub fn lifecycle(&self, job: JobKey) -> Option<&Lifecycle> {
        self.slab[job.0].lifecycle().map(|key| &self.lifecycles[key])
    }

    /// The time to run of the job, at least a millisecond.
    pub fn ttr(&self, job: JobKey) -> Seconds {
        let millis = self.lifecycle(job).map_or(0, Lifecycle::ttr_millis);
        Seconds::new(self.slab[job.0].ttr, millis).expect("a job has milliseconds below a second")
    }

    pub(in crate::queue) fn holder(&self, job: &Job) -> Option<ClientSlot> {
        job.lifecycle().and_then(|key| self.lifecycles[key].holder())
    }

    /// All jobs, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (JobKey, &Job)> {
        // Bounded by its caller: an iterator.
        self.slab.iter().map(|(key, job)| (JobKey(key), job))
    }

    /// The memory of the jobs without their bodies.
    pub(in crate::queue) const fn bytes(&self) -> usize {
        self.slab.bytes() + self.lifecycles.bytes() + self.tags.bytes() + self.index.bytes()
    }

    /// The memory still to be allocated until every job has a [`Lifecycle`].
    pub(in crate::queue) const fn reserved_memory_bytes(&self) -> usize {
        self.slab.len().saturating_sub(self.lifecycles.touched()) * size_of::<Option<Lifecycle>>()
    }

    /// What the next `count` jobs add at most to [`bytes`](Self::bytes) and [`reserved_memory_bytes`](Self::reserved_memory_bytes)
    /// together, if their ids are consecutive.
    pub(in crate::queue) fn growth(&mut self, count: usize) -> usize {
        let with_lifecycle = self.lifecycles.touched().saturating_sub(self.slab.len()).min(count);
        let lifecycles = (count - with_lifecycle) * size_of::<Option<Lifecycle>>();
        self.slab.growth(count) + self.index.growth(count) + lifecycles
    }

    /// Adds a job that is in no container.
    pub(in crate::queue) fn insert(&mut self, new: NewJob, tube: TubeSlot, created: Time) -> JobKey {
        let NewJob { id, pri, ttr, body, tags_key, .. } = new;
        let key = self.slab.insert(Job {
            id,
            created,
            body,
            pri,
            ttr: ttr.as_whole(),
            tube,
            state: JobState::Ready,
            links: Links::NONE,
            rank: 0,
            has_lifecycle: false,
            lifecycle_or_after: NIL,
            tags_or_before: NIL,
        });
        self.index.insert(id, key);
        if let Some(tags_key) = tags_key {
            self.lifecycle_key(JobKey(key));
            self.slab[key].tags_or_before = tags_key.0;
        }
        if ttr.millis() != 0 {
            self.lifecycle_mut(JobKey(key)).set_ttr_millis(ttr.millis());
        }
        JobKey(key)
    }

    /// Removes a job that is in no container, and frees its body and its tags.
    pub(in crate::queue) fn remove(&mut self, job: JobKey, bodies: &mut Bodies) {
        let job = self.slab.remove(job.0);
        self.index.remove(job.id);
        if let Some(lifecycle) = job.lifecycle() {
            self.lifecycles.remove(lifecycle);
        }
        if let Some(tags_key) = job.tags_key() {
            bodies.free(self.tags.remove(tags_key.0).into_text());
        }
        bodies.free(job.body);
    }

    pub(in crate::queue) fn get_mut(&mut self, job: JobKey) -> &mut Job {
        &mut self.slab[job.0]
    }

    /// The key of the job's lifecycle, which is created if the job has none. The job must not be in a ready order then: its
    /// link there occupies the place of the key.
    pub(in crate::queue) fn lifecycle_key(&mut self, job: JobKey) -> u32 {
        let record = &mut self.slab[job.0];
        if !record.has_lifecycle {
            record.has_lifecycle = true;
            record.lifecycle_or_after = self.lifecycles.insert(Lifecycle {
                deadline: Time::ZERO,
                delay: 0,
                ttr_and_delay_millis: 0,
                delay_millis: MARK,
                counts: PackedCounts::default(),
                burial_or_neighbors: 0,
                id: record.id,
                job,
                since: Time::ZERO,
                holder: ClientSlot(NIL),
                links: Links::NONE,
                rank: 0,
            });
        }
        record.lifecycle_or_after
    }

    pub(in crate::queue) fn existing_lifecycle_mut(&mut self, job: JobKey) -> Option<&mut Lifecycle> {
        self.slab[job.0].lifecycle().map(|key| &mut self.lifecycles[key])
    }

    pub(in crate::queue) fn lifecycle_mut(&mut self, job: JobKey) -> &mut Lifecycle {
        let key = self.lifecycle_key(job);
        &mut self.lifecycles[key]
    }

    pub(in crate::queue) fn tags_of(&self, job: JobKey) -> Option<&JobTags> {
        self.slab[job.0].tags_key().map(|key| &self.tags[key.0])
    }

    /// The concurrency key of a job, if it has one.
    // Inlined: most jobs have no tags.
    #[inline(always)]
    pub(in crate::queue) fn con_of(&self, job: JobKey) -> Option<ConSlot> {
        self.get(job).tags_key().and_then(|tags_key| self.con_of_tags(tags_key))
    }

    #[cold]
    pub(in crate::queue) fn con_of_tags(&self, tags_key: TagsKey) -> Option<ConSlot> {
        self.tags[tags_key.0].con
    }

    /// The idempotency key of a job, if it has one.
    pub(in crate::queue) fn idp_of(&self, job: JobKey) -> Option<IdpSlot> {
        self.tags_of(job)?.idp
    }

    // Bounded by its caller: a test.
    pub(in crate::queue) fn check(&self) {
        self.slab.check();
        self.lifecycles.check();
        self.index.check(self.slab.len());
        let with_lifecycle = self.iter().filter(|(_, job)| job.has_lifecycle).count();
        assert_eq!(with_lifecycle, self.lifecycles.len(), "every lifecycle belongs to a job");
        for (key, _) in self.iter() {
            assert!(self.lifecycle(key).is_none_or(|lifecycle| lifecycle.job == key));
        }
    }
}

/// A job to be put.
#[derive(Debug)]
pub struct NewJob {
    /// From [`Engine::next_id`](crate::queue::Engine::next_id).
    pub id: JobId,
    /// The priority. A smaller value is more urgent.
    pub pri: u32,
    /// The time until the job is ready.
    pub delay: Seconds,
    /// The time to run, which is not zero.
    pub ttr: Seconds,
    /// The body with its CR LF.
    pub body: Slot,
    /// From [`Engine::store_tags`](crate::queue::Engine::store_tags), if the job has tags.
    pub tags_key: Option<TagsKey>,
}

impl Job {
    /// The key of the lifecycle, if the job has one.
    pub(in crate::queue) fn lifecycle(&self) -> Option<u32> {
        self.has_lifecycle.then_some(self.lifecycle_or_after)
    }

    /// The key of its tags, if the job has any.
    #[inline(always)]
    pub(in crate::queue) fn tags_key(&self) -> Option<TagsKey> {
        (self.has_lifecycle && self.tags_or_before != NIL).then_some(TagsKey(self.tags_or_before))
    }
}

impl Lifecycle {
    /// The delay of the last put or release.
    pub fn delay(&self) -> Seconds {
        let low = self.ttr_and_delay_millis >> MILLIS_BITS;
        let high = u16::from(self.delay_millis.get() & !MARK.get());
        let millis = high << DELAY_BITS_LOW | low;
        Seconds::new(self.delay, millis).expect("a delay has milliseconds below a second")
    }

    pub(in crate::queue) fn set_delay(&mut self, delay: Seconds) {
        self.delay = delay.as_whole();
        let (ttr_millis, delay_millis) = (self.ttr_millis(), delay.millis());
        self.ttr_and_delay_millis = delay_millis << MILLIS_BITS | ttr_millis;
        self.delay_millis = MARK | (delay_millis >> DELAY_BITS_LOW) as u8;
    }

    /// The time to run of a job with these whole seconds.
    #[inline]
    pub(in crate::queue) const fn ttr(&self, seconds: u32) -> Span {
        Span::from_nanos(
            Span::from_secs(seconds).as_nanos() + Span::from_millis(self.ttr_millis() as u32).as_nanos(),
        )
    }

    /// The milliseconds of the time to run beyond whole seconds.
    const fn ttr_millis(&self) -> u16 {
        self.ttr_and_delay_millis & ((1 << MILLIS_BITS) - 1)
    }

    const fn set_ttr_millis(&mut self, millis: u16) {
        self.ttr_and_delay_millis = self.ttr_and_delay_millis & !((1 << MILLIS_BITS) - 1) | millis;
    }

    /// The number of burials before that of the job, which must be buried.
    pub const fn burial(&self) -> u64 {
        self.burial_or_neighbors
    }

    pub(in crate::queue) const fn set_burial(&mut self, burials_before: u64) {
        self.burial_or_neighbors = burials_before;
    }

    /// The neighbors of the job, which must be reserved.
    pub(in crate::queue) const fn neighbors(&self) -> Neighbors {
        let both = self.burial_or_neighbors;
        Neighbors { before: both as u32, after: (both >> 32) as u32 }
    }

    pub(in crate::queue) const fn set_neighbors(&mut self, Neighbors { before, after }: Neighbors) {
        self.burial_or_neighbors = (after as u64) << 32 | before as u64;
    }

    /// The client that has reserved the job.
    pub(in crate::queue) fn holder(&self) -> Option<ClientSlot> {
        (self.holder != ClientSlot(NIL)).then_some(self.holder)
    }

    pub(in crate::queue) fn set_holder(&mut self, holder: ClientSlot) {
        self.holder = holder;
    }

    /// Ends the reservation. Returns the client that had reserved the job.
    pub(in crate::queue) fn take_holder(&mut self) -> ClientSlot {
        let holder = std::mem::replace(&mut self.holder, ClientSlot(NIL));
        assert!(holder != ClientSlot(NIL), "a client has reserved the job");
        holder
    }
}

/// The tags of one job, and what follows from them once it is in a tube.
#[derive(Debug)]
pub(in crate::queue) struct JobTags {
    /// The text of the [`Tags`].
    tags: Slot,
    /// The idempotency key, if the job has one.
    pub(in crate::queue) idp: Option<IdpSlot>,
    /// The concurrency key, if the job has one.
    pub(in crate::queue) con: Option<ConSlot>,
    /// The group that the job is a member of, if it has one and is in a tube.
    pub(in crate::queue) group: Option<GroupSlot>,
    /// What the job waits for, while it is held.
    pub(in crate::queue) hold: Option<HoldSlot>,
    /// The id of the job, and the limit that its tag gives to the key.
    pub(in crate::queue) id: JobId,
    pub(in crate::queue) limit: u32,
    /// In the heap of jobs of the concurrency key.
    links: Links,
    rank: u8,
}

impl JobTags {
    /// The record of a job that is in no tube yet.
    pub(in crate::queue) fn new(tags: Slot) -> Self {
        let (idp, con, group, hold) = (None, None, None, None);
        let (id, limit, links, rank) = (JobId(0), 0, Links::NONE, 0);
        Self { tags, idp, con, group, hold, id, limit, links, rank }
    }

    /// Ends the record. Returns the text of its tags, which is still to be freed.
    pub(in crate::queue) fn into_text(self) -> Slot {
        self.tags
    }

    pub(in crate::queue) fn tags<'a>(&self, bodies: &'a Bodies) -> Tags<'a> {
        Tags::checked_before(bodies.bytes(&self.tags))
    }
}

intrusive!(Job: in heaps by (u32, JobId), |job| (job.pri, job.id));
intrusive!(Lifecycle: in heaps by (Time, JobId), |lifecycle| (lifecycle.deadline, lifecycle.id));
// The newest job comes first.
intrusive!(JobTags: in heaps by Reverse<JobId>, |tags| Reverse(tags.id));
