//! The tags of jobs, and what follows from them. A job without tags has no part in it.

use std::cmp::Reverse;

use super::job::{Job, Jobs};
use crate::bodies::{Bodies, Slot};
use crate::intrusive::{Links, NIL, intrusive};
use crate::values::ids::{ConSlot, GroupSlot, HoldSlot, IdpSlot, JobId, JobKey, TagsKey};
use crate::values::tags::Tags;

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

impl Job {
    /// The key of its tags, if the job has any.
    #[inline(always)]
    pub(in crate::queue) fn tags_key(&self) -> Option<TagsKey> {
        (self.has_lifecycle && self.tags_or_before != NIL).then_some(TagsKey(self.tags_or_before))
    }
}

impl Jobs {
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
}

// The newest job comes first.
intrusive!(JobTags: in heaps by Reverse<JobId>, |tags| Reverse(tags.id));
