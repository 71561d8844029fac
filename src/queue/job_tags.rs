//! The tags of jobs, and what follows from them. A job without tags has no part in it.

use std::cmp::Reverse;

use super::engine::Engine;
use super::job::{Job, Jobs};
use super::names::store_text;
use crate::bodies::{Bodies, Slot};
use crate::intrusive::{Links, NIL, intrusive};
use crate::values::ids::{ClientKey, ConSlot, GroupSlot, HoldSlot, IdpSlot, JobId, JobKey, TagsKey};
use crate::values::tags::Tags;

/// The tags of one job, and what follows from them once it is in a tube.
#[derive(Debug)]
pub(super) struct JobTags {
    /// The text of the [`Tags`].
    tags: Slot,
    /// The idempotency key, if the job has one.
    pub(super) idp: Option<IdpSlot>,
    /// The concurrency key, if the job has one.
    pub(super) con: Option<ConSlot>,
    /// The group that the job is a member of, if it has one and is in a tube.
    pub(super) group: Option<GroupSlot>,
    /// What the job waits for, while it is held.
    pub(super) hold: Option<HoldSlot>,
    /// The id of the job, and the limit that its tag gives to the key.
    pub(super) id: JobId,
    pub(super) limit: u32,
    /// In the heap of jobs of the concurrency key.
    links: Links,
    rank: u8,
}

impl JobTags {
    /// The record of a job that is in no tube yet.
    fn new(tags: Slot) -> Self {
        let (idp, con, group, hold) = (None, None, None, None);
        let (id, limit, links, rank) = (JobId(0), 0, Links::NONE, 0);
        Self { tags, idp, con, group, hold, id, limit, links, rank }
    }

    /// Ends the record. Returns the text of its tags, which is still to be freed.
    pub(super) fn into_text(self) -> Slot {
        self.tags
    }

    pub(super) fn tags<'a>(&self, bodies: &'a Bodies) -> Tags<'a> {
        Tags::checked_before(bodies.bytes(&self.tags))
    }
}

impl Job {
    /// The key of its tags, if the job has any.
    #[inline(always)]
    pub(super) fn tags_key(&self) -> Option<TagsKey> {
        (self.has_lifecycle && self.tags_or_before != NIL).then_some(TagsKey(self.tags_or_before))
    }
}

impl Jobs {
    pub(super) fn tags_of(&self, job: JobKey) -> Option<&JobTags> {
        self.slab[job.0].tags_key().map(|key| &self.tags[key.0])
    }

    /// The concurrency key of a job, if it has one.
    // Inlined: most jobs have no tags.
    #[inline(always)]
    pub(super) fn con_of(&self, job: JobKey) -> Option<ConSlot> {
        self.get(job).tags_key().and_then(|tags_key| self.con_of_tags(tags_key))
    }

    #[cold]
    pub(super) fn con_of_tags(&self, tags_key: TagsKey) -> Option<ConSlot> {
        self.tags[tags_key.0].con
    }

    /// The idempotency key of a job, if it has one.
    pub(super) fn idp_of(&self, job: JobKey) -> Option<IdpSlot> {
        self.tags_of(job)?.idp
    }
}

impl Engine {
    /// Stores the tags of a job whose body is still to come, if it has any. [`put`](Self::put) takes them.
    #[inline]
    pub fn store_tags(&mut self, tags: Tags<'_>) -> Option<TagsKey> {
        if tags.is_empty() {
            return None;
        }
        let text = store_text(&mut self.store.bodies, tags.as_bytes());
        Some(TagsKey(self.store.jobs.tags.insert(JobTags::new(text))))
    }

    /// Frees tags of a job that will not be put.
    #[inline]
    pub fn free_tags(&mut self, tags_key: Option<TagsKey>) {
        if let Some(tags_key) = tags_key {
            self.store.bodies.free(self.store.jobs.tags.remove(tags_key.0).into_text());
        }
    }

    /// The tags of a job whose body is still to come.
    #[inline]
    pub fn stored_tags(&self, tags_key: Option<TagsKey>) -> Tags<'_> {
        self.store.stored_tags(tags_key)
    }

    /// The number of jobs with tags whose bodies are still to come.
    pub fn tags_to_come(&self) -> usize {
        // Bounded by its caller: a test.
        self.store.jobs.tags.len()
            - self.store.jobs.iter().filter(|(_, job)| job.tags_key().is_some()).count()
    }

    /// The number of bodies, of jobs and of those still to come. The arena has texts besides.
    pub fn body_count(&self) -> usize {
        let texts = self.store.jobs.tags.len() + self.cons.len() + self.groups.len() + self.idps.len();
        self.store.bodies.usage().slots - texts
    }

    /// The tags of a job.
    #[inline]
    pub fn tags(&self, job: JobKey) -> Tags<'_> {
        self.store.tags(job)
    }

    /// What the tags of one more job of the client add to the memory of the queue: nothing for a job without tags.
    pub fn tags_growth(&mut self, client: ClientKey, tags: Tags<'_>) -> usize {
        if tags.is_empty() {
            return 0;
        }
        let tube = self.store.tubes[self.store.clients.get(client).used].name();
        let text = self.store.bodies.growth(tags.as_bytes().len() as u32);
        let keys = self.idps.growth(tube, tags.idp(), &self.store.bodies)
            + self.cons.growth(tags.con(), &self.store.bodies);
        self.store.jobs.tags.growth(1) + text + keys + self.groups.growth(tags, &self.store.bodies)
    }

    /// What a job of the client with tags adds to it once its body is complete.
    pub fn stored_tags_growth(&mut self, client: ClientKey, tags_key: Option<TagsKey>) -> usize {
        let Some(tags_key) = tags_key else { return 0 };
        let tags = self.store.jobs.tags[tags_key.0].tags(&self.store.bodies);
        let tube = self.store.tubes[self.store.clients.get(client).used].name();
        self.idps.growth(tube, tags.idp(), &self.store.bodies)
            + self.cons.growth(tags.con(), &self.store.bodies)
            + self.groups.growth(tags, &self.store.bodies)
    }
}

// The newest job comes first.
intrusive!(JobTags: in heaps by Reverse<JobId>, |tags| Reverse(tags.id));
