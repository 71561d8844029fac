//! Whether the disk has space, as far as the last operations have shown.

use std::collections::BTreeSet;

use crate::time::{Span, Time};
use crate::values::ids::JobId;

/// How long the disk is left alone after it had no space.
const RETRY_INTERVAL: Span = Span::from_secs(1);

/// Free space on the disk, as far as it is known.
///
/// The disk is *full* if a new file, or a write, found no space. The WAL is *stalled* if a write found none: on a
/// copy-on-write file system that happens although its segment was prepared (docs/internals/LOG.md).
#[derive(Default)]
pub struct DiskSpace {
    /// When to try to create a segment again.
    pub retry_create_at: Option<Time>,
    /// When to try again to recycle or remove a file.
    pub retry_change_at: Option<Time>,
    /// When to try the write again.
    pub retry_write_at: Option<Time>,
    pub is_stalled: bool,
    /// Jobs whose records wait for the stalled write.
    pending: BTreeSet<JobId>,
    /// Whether a write has ever stalled. If so, a write takes new space, and the file system frees the old space some
    /// time later.
    pub writes_take_space: bool,
}

impl DiskSpace {
    /// A new segment found no space.
    pub fn create_failed(&mut self, now: Time) {
        self.retry_create_at = Some(now + RETRY_INTERVAL);
    }

    /// A new segment was created, or none is needed: it is unknown again whether there is space.
    pub const fn clear_full(&mut self) {
        self.retry_create_at = None;
    }

    /// A file could not be recycled or removed. btrfs may have no space for a new name, and may still remove the file, which is
    /// tried at once.
    pub fn change_failed(&mut self, now: Time) {
        let later = Some(now + RETRY_INTERVAL);
        if std::mem::replace(&mut self.writes_take_space, true) {
            self.retry_change_at = later;
        }
        self.retry_create_at = later;
    }

    /// A write found no space. `unwritten` are the jobs whose records wait for it.
    pub fn write_failed(&mut self, unwritten: impl Iterator<Item = JobId>, now: Time) {
        self.write_waits(unwritten, now);
        self.retry_write_at = self.retry_create_at;
    }

    /// A write has found no space, and the destination tries it again by itself.
    pub fn write_waits(&mut self, unwritten: impl Iterator<Item = JobId>, now: Time) {
        self.pending.extend(unwritten);
        (self.is_stalled, self.writes_take_space) = (true, true);
        self.retry_create_at = Some(now + RETRY_INTERVAL);
    }

    /// Another record of this job waits for the stalled write.
    #[inline]
    pub fn note_unwritten(&mut self, job: Option<JobId>) {
        if self.is_stalled {
            self.pending.extend(job);
        }
    }

    /// A write has succeeded.
    pub fn write_succeeded(&mut self) {
        self.is_stalled = false;
        self.pending.clear();
    }

    /// A file was removed: the stalled write is tried at once.
    pub fn space_freed(&mut self, now: Time) {
        if let Some(at) = &mut self.retry_write_at {
            *at = now;
        }
    }

    /// Whether a write may start. If so, the pause after a failed one is over.
    pub fn may_write(&mut self, now: Time) -> bool {
        is_over(&mut self.retry_write_at, now)
    }

    /// Whether a file may be recycled or removed. If so, the pause after a failed attempt is over.
    pub fn may_change(&mut self, now: Time) -> bool {
        is_over(&mut self.retry_change_at, now)
    }

    /// Whether a segment may be created.
    pub fn may_create(&self, now: Time) -> bool {
        self.retry_create_at.is_none_or(|at| at <= now)
    }

    #[inline]
    pub const fn is_full(&self) -> bool {
        self.retry_create_at.is_some() || self.is_stalled
    }

    /// Whether a record of the job waits for the stalled write.
    pub fn is_pending(&self, job: JobId) -> bool {
        self.pending.contains(&job)
    }

    pub fn memory_bytes(&self) -> usize {
        // A tree keeps its nodes about half full.
        2 * self.pending.len() * size_of::<JobId>()
    }
}

/// Whether a pause up to this time is over. If so, there is none any more.
fn is_over(until: &mut Option<Time>, now: Time) -> bool {
    until.take_if(|until| *until <= now);
    until.is_none()
}
