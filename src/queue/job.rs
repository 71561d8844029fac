//! Jobs: the record of each.

use super::job_index::Directory;
use crate::bodies::Slot;
use crate::ids::{ClientSlot, JobId, JobKey, TubeSlot};
use crate::intrusive::{Linked, Links, NIL, Pages, Ranked};
use crate::time::Time;

/// Where a job is in its life.
///
/// ```text
///            put             reserve              delete
///   ---------------> Ready -----------> Reserved --------> gone
///   put with delay   ^  ^ ^              |  |  |
///   ----> Delayed ---'  | '--------------'  |  | bury
///            ^   time   |  release, TTR,    |  v
///            |   kick   |  hang-up          | Buried --> delete
///            |          '-------------------|----' kick
///            '------------------------------'
///               release with delay
/// ```
/// A delayed or buried job may also be reserved by id, and any job that nobody else holds be deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// In its tube's ready heap.
    Ready,
    /// In its holder's heap and list of held jobs.
    Reserved,
    /// In its tube's heap of delayed jobs.
    Delayed,
    /// In its tube's list of buried jobs.
    Buried,
}

/// What every job has: one cache line. What only some have is in [`Activity`].
#[repr(align(64))]
#[derive(Debug)]
pub struct Job {
    // PersistedState by a log.
    /// The name of the job.
    pub id: JobId,
    /// When it was put.
    pub created: Time,
    /// Its body, with CR LF.
    pub body: Slot,
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds that a worker may hold it; at least 1.
    pub ttr: u32,
    /// The tube that it spends its life in.
    pub tube: TubeSlot,
    /// Where it is in its life.
    pub state: State,
    // In memory only.
    /// In the ready heap of the tube, its list of buried jobs, or the holder's list of held ones.
    links: Links,
    rank: u8,
    /// The job has an [`Activity`].
    pub(super) is_active: bool,
    /// The job's activity, if it has one. Else, while the job is ready, the one that became ready after it, in its
    /// tube's [`Order`](super::order::Order).
    pub(super) activity_or_after: u32,
    /// The one that became ready before it, while it is ready and has no activity.
    pub(super) before: u32,
}

const _: () = assert!(size_of::<Option<Job>>() == 64);

/// What a job has from the first time that it is delayed, reserved, buried or kicked.
#[derive(Debug)]
pub struct Activity {
    // PersistedState by a log.
    /// When a delayed job becomes ready, or a reserved one times out.
    pub deadline: Time,
    /// The delay of the last put or release, in seconds.
    pub delay: u32,
    /// What has happened to the job.
    pub counts: Counts,
    /// How many jobs had been buried before it, if it is.
    pub burial: u64,
    // In memory only.
    /// The job's own id, which orders equal deadlines.
    id: JobId,
    /// The job.
    pub job: JobKey,
    /// Since when the job is ready, or held. Means nothing in other states.
    pub since: Time,
    is_held: bool,
    /// The one that holds the job, or was the last to do so.
    last_holder: ClientSlot,
    /// In the tube's heap of delayed jobs, its order of ready ones, or the holder's heap of held ones.
    links: Links,
    rank: u8,
}

const _: () = assert!(size_of::<Option<Activity>>() == 80);

/// How often things have happened to one job, for `stats-job`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub reserves: u32,
    pub timeouts: u32,
    pub releases: u32,
    pub buries: u32,
    pub kicks: u32,
}

/// All jobs.
pub struct Jobs {
    pub(super) slab: Pages<Job>,
    pub(super) activities: Pages<Activity>,
    directory: Directory,
}

impl Jobs {
    /// None yet. `seed` keeps clients from choosing ids that collide.
    pub(super) const fn new(seed: u64) -> Self {
        Self { slab: Pages::new(), activities: Pages::new(), directory: Directory::new(seed) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// The job with this id, in one probe.
    pub fn find(&self, id: JobId) -> Option<JobKey> {
        self.directory.find(id).map(JobKey)
    }

    /// The job's record.
    pub fn get(&self, job: JobKey) -> &Job {
        &self.slab[job.0]
    }

    /// What has happened to the job, if anything has.
    pub fn activity(&self, job: JobKey) -> Option<&Activity> {
        self.slab[job.0].activity().map(|key| &self.activities[key])
    }

    /// Who holds the job.
    pub(super) fn holder(&self, job: &Job) -> Option<ClientSlot> {
        job.activity().and_then(|key| self.activities[key].holder())
    }

    /// All jobs, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (JobKey, &Job)> {
        self.slab.iter().map(|(key, job)| (JobKey(key), job))
    }

    /// The memory that they take, without their bodies.
    pub(super) const fn bytes(&self) -> usize {
        self.slab.bytes() + self.activities.bytes() + self.directory.bytes()
    }

    /// What they would take more if each had an [`Activity`].
    pub(super) const fn set_aside_bytes(&self) -> usize {
        self.slab.len().saturating_sub(self.activities.touched()) * size_of::<Option<Activity>>()
    }

    /// What one more job adds to both at most.
    pub(super) fn growth(&mut self) -> usize {
        let has_activity = self.slab.len() < self.activities.touched();
        let activity = if has_activity { 0 } else { size_of::<Option<Activity>>() };
        self.slab.growth() + self.directory.growth() + activity
    }

    /// Adds a job, which is in no container yet.
    pub(super) fn insert(
        &mut self,
        id: JobId,
        pri: u32,
        ttr: u32,
        body: Slot,
        tube: TubeSlot,
        created: Time,
    ) -> JobKey {
        let key = self.slab.insert(Job {
            id,
            created,
            body,
            pri,
            ttr,
            tube,
            state: State::Ready,
            links: Links::NONE,
            rank: 0,
            is_active: false,
            activity_or_after: NIL,
            before: NIL,
        });
        self.directory.insert(id, key);
        JobKey(key)
    }

    /// Takes a job out that is in no container any more, and returns its body.
    pub(super) fn remove(&mut self, job: JobKey) -> Slot {
        let job = self.slab.remove(job.0);
        self.directory.remove(job.id);
        if let Some(activity) = job.activity() {
            self.activities.remove(activity);
        }
        job.body
    }

    pub(super) fn get_mut(&mut self, job: JobKey) -> &mut Job {
        &mut self.slab[job.0]
    }

    /// The key of the job's activity, which is made if there is none. Not for a job that is ready and has none.
    pub(super) fn activity_key(&mut self, job: JobKey) -> u32 {
        let record = &mut self.slab[job.0];
        if !record.is_active {
            record.is_active = true;
            record.activity_or_after = self.activities.insert(Activity {
                deadline: Time::ZERO,
                delay: 0,
                counts: Counts::default(),
                burial: 0,
                id: record.id,
                job,
                since: Time::ZERO,
                is_held: false,
                last_holder: ClientSlot(NIL),
                links: Links::NONE,
                rank: 0,
            });
        }
        record.activity_or_after
    }

    pub(super) fn existing_activity_mut(&mut self, job: JobKey) -> Option<&mut Activity> {
        self.slab[job.0].activity().map(|key| &mut self.activities[key])
    }

    pub(super) fn activity_mut(&mut self, job: JobKey) -> &mut Activity {
        let key = self.activity_key(job);
        &mut self.activities[key]
    }

    pub(super) fn check(&self) {
        self.slab.check();
        self.activities.check();
        self.directory.check(self.slab.len());
        let with_activity = self.iter().filter(|(_, job)| job.is_active).count();
        assert_eq!(with_activity, self.activities.len(), "no activity outlives its job");
        for (key, _) in self.iter() {
            assert!(self.activity(key).is_none_or(|activity| activity.job == key));
        }
    }
}

/// A job to be put.
#[derive(Debug)]
pub struct NewJob {
    /// From [`Engine::next_id`](super::Engine::next_id).
    pub id: JobId,
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds until it is ready.
    pub delay: u32,
    /// Seconds that a worker may hold it; at least 1.
    pub ttr: u32,
    /// The body with its CR LF.
    pub body: Slot,
}

impl Job {
    /// The key of its activity, if it has one.
    pub(super) fn activity(&self) -> Option<u32> {
        self.is_active.then_some(self.activity_or_after)
    }
}

impl Activity {
    /// Who holds the job.
    pub(super) fn holder(&self) -> Option<ClientSlot> {
        self.is_held.then_some(self.last_holder)
    }

    pub(super) fn set_holder(&mut self, holder: ClientSlot) {
        (self.is_held, self.last_holder) = (true, holder);
    }

    /// Nobody holds the job any more. Returns who did.
    pub(super) fn take_holder(&mut self) -> ClientSlot {
        assert!(std::mem::take(&mut self.is_held), "somebody holds the job");
        self.last_holder
    }
}

impl Linked for Job {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Ranked for Job {
    type Key = (u32, JobId);

    fn key(&self) -> (u32, JobId) {
        (self.pri, self.id)
    }

    fn rank(&self) -> u8 {
        self.rank
    }

    fn set_rank(&mut self, rank: u8) {
        self.rank = rank;
    }
}

impl Linked for Activity {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Ranked for Activity {
    type Key = (Time, JobId);

    fn key(&self) -> (Time, JobId) {
        (self.deadline, self.id)
    }

    fn rank(&self) -> u8 {
        self.rank
    }

    fn set_rank(&mut self, rank: u8) {
        self.rank = rank;
    }
}
